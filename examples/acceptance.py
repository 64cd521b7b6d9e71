"""How well does this draft serve this target on your own texts? Each file is continued from its middle.

    python examples/acceptance.py TARGET.gguf DRAFT.gguf FILE...

Per file: how many drafted tokens were accepted at each place in the draft, and tokens per forward pass of the target
(the most that drafting could speed things up, if it were free). `specgguf bench` weighs that against the costs.
"""

import sys

from specgguf import SamplingParams, SpeculativeLlama

N_DRAFT = 4

if len(sys.argv) < 4:
    sys.exit(__doc__)

target, draft, *files = sys.argv[1:]
with SpeculativeLlama(target, draft, draft=N_DRAFT) as llm:
    for name in files:
        with open(name, encoding="utf-8", errors="replace") as file:
            ids = llm.tokenize(file.read().encode())
        prompt = ids[: min(len(ids) // 2 + 1, llm.n_ctx() - 200)]
        for temperature in (0.0, 1.0):
            for _ in llm.generate(prompt, SamplingParams(temperature=temperature, max_tokens=128, seed=1)):
                pass
            stats = llm.last_stats
            accepted = zip(stats.accepted_by_position, stats.reached_by_position, strict=True)
            by_place = " ".join(f"{a / reached:4.0%}" if reached else "   -" for a, reached in accepted)
            print(f"{name}  T={temperature:g}  {by_place}  {stats.tokens_per_pass:.2f} tokens per forward pass")
