"""vLLM's offline face over `SpeculativeLlama`: a program that says `from vllm import LLM` runs with that line and the
files changed.

Nothing here decodes; what cannot be honoured is refused by name, what has no meaning here is said in a warning.
Begin at `llm`; `arguments` tells what becomes of each of vLLM's.
"""

from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from .sampling import GuidedDecodingParams, SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "GuidedDecodingParams",
    "Logprob",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]
