"""A conversation in the terminal: reading lines, slash commands, turns, sessions on disk.

It knows models only as a loaded engine, and what is shown only through `terminal`. Begin at `loop`.
"""
