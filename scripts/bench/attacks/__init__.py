"""Attacks and load, with what came of them: random bodies, damaged HTTP and GGUF files, and a crowd of clients."""
