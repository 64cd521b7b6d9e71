"""Does drafting pay here? Interleaved runs, their samples on disk, and the recommendation that follows.

It shows nothing and decides nothing about a running generation. Begin at `runs`; `recommend` reads the samples.
"""
