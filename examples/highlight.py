"""Stream an answer and show in green what the draft model wrote (and the target model would have written too).

python examples/highlight.py [TARGET.gguf [DRAFT.gguf]]
"""

import sys

from specgguf import SpeculativeLlama

GREEN, PLAIN = "\x1b[32m", "\x1b[0m"
QUESTION = {"role": "user", "content": "Write a Python class for a stack, with push, pop and peek."}

llm = SpeculativeLlama(*sys.argv[1:3]) if sys.argv[1:] else SpeculativeLlama.from_preset("demo")

with llm:
    for chunk in llm.create_chat_completion([QUESTION], stream=True, max_tokens=200, temperature=0.0):
        text = chunk["choices"][0]["delta"].get("content") or ""
        print(f"{GREEN}{text}{PLAIN}" if chunk["from_draft"] else text, end="", flush=True)
    stats = llm.last_stats
    print(f"\n\n{stats.n_from_draft} of {stats.n_generated} tokens by the draft, {stats.tokens_per_pass:.2f} per pass")
