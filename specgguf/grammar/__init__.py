"""Structured output: what a caller may ask of an answer's form, and which tokens that form allows next.

`sources` reads what a caller gives, `gbnf` and `json_schema` say it in words that llguidance keeps to, `cursor`
compiles it and follows it along generated tokens. Nothing here knows distributions, drafts, models or messages.
"""
