"""Many prompts, one a line on stdin; one JSON object a line on stdout; progress on stderr.

    python examples/batch.py [TARGET.gguf [DRAFT.gguf]] < prompts.txt > answers.jsonl

Prompts run one after another: speculative decoding shortens the wait for one answer, it does not fill a batch. Prompts
that begin alike share what the caches hold.
"""

import json
import sys

from specgguf import SpecggufError, SpeculativeLlama

prompts = [line.strip() for line in sys.stdin if line.strip()]
llm = SpeculativeLlama(*sys.argv[1:3]) if sys.argv[1:] else SpeculativeLlama.from_preset("demo")

with llm:
    for i, prompt in enumerate(prompts, 1):
        record = {"prompt": prompt}
        try:
            reply = llm.create_chat_completion([{"role": "user", "content": prompt}], max_tokens=200, seed=i)
            record |= {"answer": reply["choices"][0]["message"]["content"], **reply["usage"]}
        except SpecggufError as error:  # a prompt that is too long does not end the batch
            record["error"] = str(error)
        print(json.dumps(record, ensure_ascii=False), flush=True)
        print(f"\r{i} of {len(prompts)}, {llm.stats.tokens_per_second:.1f} tokens/s", end="", file=sys.stderr)
    print(file=sys.stderr)
