"""Drafts whose ids are not the target's: two vocabularies side by side (`pair`).

It knows llama.cpp's vocabularies; what is made of a map is `decode.vocab_map`'s business.
"""
