"""Many prompts: a file of requests in OpenAI's batch format becomes a file of answers, a row each.

It can be interrupted anywhere and goes on where it was. It knows no terminal and no flags; what a body may hold is
`serve.protocols`' to say. Begin at `runner`; `requests` and `output` are the two files, `answering` and `over_ray` what
makes rows of requests.
"""
