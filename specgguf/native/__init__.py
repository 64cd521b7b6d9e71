"""The only package that touches llama.cpp: loaded weights, contexts, the sequences in them, vocabularies, devices.

It knows nothing of drafting, sampling or text: it decodes token ids and hands out rows of logits. Begin at
`context.Context`; what one sequence holds is in `sequence`, who may have how many cells in `pool`, how rejected tokens
are dropped in `rollback`, the bare calls in `backend`, and what a newer llama-cpp-python may break in `compat`.
"""
