"""Many prompts, one a line on stdin; one JSON object a line on stdout; progress on stderr.

    python examples/batch.py [TARGET.gguf [DRAFT.gguf]] < prompts.txt > answers.jsonl

Calls from several threads run together, in shared forward passes. Prompts that begin alike share what the caches hold.
A file in OpenAI's format that can be interrupted: `specgguf batch`.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

from specgguf import SpecggufError, SpeculativeLlama

N_PARALLEL = 4

prompts = [line.strip() for line in sys.stdin if line.strip()]
if sys.argv[1:]:
    llm = SpeculativeLlama(*sys.argv[1:3], n_parallel=N_PARALLEL)
else:
    llm = SpeculativeLlama.from_preset("demo", n_parallel=N_PARALLEL)


def answer(i: int, prompt: str) -> dict[str, object]:
    try:
        reply = llm.create_chat_completion([{"role": "user", "content": prompt}], max_tokens=200, seed=i)
    except SpecggufError as error:  # a prompt that is too long does not end the batch
        return {"prompt": prompt, "error": str(error)}
    return {"prompt": prompt, "answer": reply["choices"][0]["message"]["content"], **reply["usage"]}


with llm, ThreadPoolExecutor(N_PARALLEL) as pool:
    for n, record in enumerate(pool.map(answer, range(len(prompts)), prompts), 1):
        print(json.dumps(record, ensure_ascii=False), flush=True)
        print(f"\r{n} of {len(prompts)}, {llm.stats.n_generated} tokens", end="", file=sys.stderr)
    print(file=sys.stderr)
