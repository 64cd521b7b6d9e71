"""Does it fit, which draft, and what would it gain: arithmetic over headers and devices, before anything is loaded.

Only `slimming` loads something: the draft that it cuts. It knows no sampling and no controller. Begin at `search` (what
fits), `footprint` (memory), `predict` (speed).
"""
