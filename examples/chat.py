"""A conversation of several turns. What the caches hold of it is not read again.

python examples/chat.py [TARGET.gguf [DRAFT.gguf]]
"""

import sys

from specgguf import SpeculativeLlama

QUESTIONS = ["Name three sorting algorithms.", "Which of them is stable?", "Write that one in Python."]

llm = SpeculativeLlama(*sys.argv[1:3]) if sys.argv[1:] else SpeculativeLlama.from_preset("demo")

with llm:
    messages = [{"role": "system", "content": "Answer briefly."}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        reply = llm.create_chat_completion(messages, max_tokens=160, temperature=0.7)
        answer = reply["choices"][0]["message"]
        messages.append(answer)
        print(f"> {question}\n{answer['content']}")
        print(f"  ({reply['timings']['cache_n']} of {reply['usage']['prompt_tokens']} prompt tokens were cached)\n")
