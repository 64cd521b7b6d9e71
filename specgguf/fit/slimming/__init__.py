"""Cutting a draft's vocabulary: which tokens are worth keeping (`ranking`), how many (`size`), the file (`cutting`).

It knows no target: what a draft would bring for one is `fit.gains`'.
"""
