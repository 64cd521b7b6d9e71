"""Speculative decoding as the papers have it, on token ids.

Knows no llama.cpp, no text, no files and no clock of its own: errors, config and numpy are all it imports. Begin at
`step` (the round), `verifier` (why the output is exact) and `sampling` (how p and q are made).
"""
