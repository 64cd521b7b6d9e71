"""Devices of other machines: ggml's RPC backend, which is experimental and ends the process over a lost connection.

So a model whose layers lie on workers is loaded in a child process, and everything else stays here: `remote` is what
the rest of `native` sees of it, `child` is the process itself, `wire` asks a worker about itself without llama.cpp,
`placement` says which layers go where, `library` has ggml's own server, which a worker runs, `keepalive` gives up
connections whose other end is gone, `elsewhere` is a context in the child as `backend`'s callers see it. Nothing here
knows of drafting, text or requests.
"""
