"""Drafting with the target's own prediction heads, over sequences that read hidden states beside tokens."""
