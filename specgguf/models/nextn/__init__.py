"""Prediction heads in files, which GGUF calls NextN: what a header tells of them (`prediction_heads`).

What they take of memory is in `models.hparams`; how they run, in `native.heads`.
"""
