"""Drafts whose ids are not the target's: two vocabularies side by side (`pair`), slimmed drafts loaded (`slimmed`).

It knows llama.cpp's vocabularies and ggml's number formats (`rows`); what is made of a map is `decode.vocab_map`'s.
"""
