"""GGUF files: finding them, fetching them, and reading what their headers say.

Nothing here loads a model or touches llama.cpp: a file is bytes with a header. Begin at `hub.resolve` (a reference
becomes a local file) or at `header.read`.
"""
