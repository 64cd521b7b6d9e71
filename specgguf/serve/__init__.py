"""One engine over HTTP, in OpenAI's protocol. Needs the extra `server`.

It knows nothing of models or drafting: a request is keywords of `SpeculativeLlama`. Begin at `server` (how it
starts and stops) and `app` (what happens to a request).
"""
