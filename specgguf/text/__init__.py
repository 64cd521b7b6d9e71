"""Between people and token ids: messages, templates, tokens to characters, grammars, tool calls, reply dicts.

It knows nothing of drafting and loads no model. Begin at `template` (what is asked) and `detokenize` (what is
answered); `completion` writes the dicts.
"""
