"""Measurements, recordings and pictures. One entry: `scripts/bench/run NAME`; `run` lists what there is."""
