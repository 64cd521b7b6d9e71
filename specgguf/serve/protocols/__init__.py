"""What requests and answers look like in each protocol that clients speak; nothing here opens a connection.

Begin at `openai`. No HTTP and no queue: a body is JSON, an answer is a dict or an iterator of dicts.
"""
