"""A program for vLLM, with another import and other files: some prompts, several answers to each, in shared passes.

python examples/vllm_offline.py TARGET.gguf [DRAFT.gguf]
"""

import sys

from specgguf.vllm import LLM, SamplingParams

target, draft = (*sys.argv[1:3], None)[:2]
llm = LLM(
    model=target, speculative_model=draft, tensor_parallel_size=1, gpu_memory_utilization=0.90, max_model_len=2048
)

prompts = [
    "The reason why decoding one token at a time is slow is",
    "A Python function that reverses a linked list:\n\n",
    "Once upon a time",
]
params = SamplingParams(n=2, temperature=0.8, top_p=0.95, max_tokens=64, seed=1)

for output in llm.generate(prompts, params):
    print(f"{output.prompt!r}: {len(output.prompt_token_ids)} tokens")
    for answer in output.outputs:
        print(f"  {answer.index}: {answer.text!r} ({answer.finish_reason}, {len(answer.token_ids)} tokens)")

for output in llm.chat(
    [{"role": "user", "content": "What is a mutex?"}], SamplingParams(temperature=0.0, max_tokens=64)
):
    print(output.outputs[0].text)
    print(f"accepted {output.metrics.num_accepted_tokens} of {output.metrics.num_draft_tokens} drafted tokens")
