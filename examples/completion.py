"""Complete a text, as with llama_cpp.Llama, and see what the draft did.

python examples/completion.py                     the demo pair (downloaded once)
python examples/completion.py TARGET.gguf [DRAFT.gguf]
"""

import sys

from specgguf import SpeculativeLlama

llm = SpeculativeLlama(*sys.argv[1:3]) if sys.argv[1:] else SpeculativeLlama.from_preset("demo")

with llm:
    reply = llm.create_completion("def fibonacci(n: int) -> int:\n", max_tokens=96, temperature=0.0)
    print(reply["choices"][0]["text"])

    timings = reply["timings"]
    print(f"\n{timings['predicted_n']} tokens at {timings['predicted_per_second']:.1f} tokens/s", end="; ")
    print(f"{timings['draft_n_accepted']} of {timings['draft_n']} drafted tokens were accepted")
