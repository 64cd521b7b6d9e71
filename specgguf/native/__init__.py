"""The only package that touches llama.cpp: loaded weights, contexts, the sequences in them, vocabularies, devices.

It knows nothing of drafting, sampling or text: it decodes token ids and hands out rows of logits. Begin at
`context.Model`; the bare calls are in `backend`, the ways of dropping rejected tokens in `rollback`.
"""
