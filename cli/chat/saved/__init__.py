"""Conversations on disk: their files, the locks that keep two programs apart, and what is written while one is open.

Nothing here knows an engine or a terminal. Begin at `sessions`.
"""
