"""Calls of tools: what a caller may ask for, and how models write them. Knows no tokens, chunks or templates.

Begin at `calls`; the formats of the common templates are in `formats`.
"""
