"""What one round of speculative decoding hands from part to part.

Plain frozen records: who fills them is written on the left, who reads them on the right.

    drafter -> Draft -> verifier -> VerifyResult -> step -> Round -> controller, stats; Generation -> Chunk
    controller -> Plan -> drafter
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .sampling import Distribution, Logits

ToDistribution = Callable[[Logits, Sequence[int]], Distribution]  # (logits, drafted tail) -> p or q
KeepDrafting = Callable[[int, Distribution | None], bool]  # see `Plan`

FORCED = 0  # the `match` of a candidate that no n-gram led to: a grammar leaves no other tokens
PROBE_MAX = 16  # plain tokens that one probe can score


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens and the distributions they were drawn from.

    Attributes:
        tokens: the drafted ids, at most `n_max`; ends at its first end-of-generation token, which it keeps.
        probs: probs[i] is the distribution that tokens[i] was drawn from; None means one-hot (n-gram).
        source: the drafter's name, "" for an empty draft.
        n_prefilled: committed tokens that the draft model read before its first draw.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[Distribution | None, ...] = ()
    source: str = ""
    n_prefilled: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What the verifier decided.

    Attributes:
        n_accepted: how many drafted tokens are kept, from the left.
        next_token: the residual or bonus token after them; None when the last accepted one ends the
            generation.
        survival: survival[i] = Pr(n_accepted > i | the drafted tokens), i = 0..n_drafted-1.
    """

    n_accepted: int
    next_token: int | None
    survival: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that can be had for nothing.

    Attributes:
        tokens: the ids, at least one.
        match: how long the n-gram was that led to them, or FORCED.
    """

    tokens: tuple[int, ...]
    match: int


def always(_i: int, _distribution: Distribution | None) -> bool:
    """The rule of a plan that drafts its full length."""
    return True


def no_padding(_batch_size: int) -> int:
    """The padding of a plan that wants none."""
    return 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the controller wants of the next round.

    Attributes:
        n_max: draft at most so many tokens; 0 does not draft.
        keep_drafting: asked before token i is drawn, with the distribution it would be drawn from, and for i > 0 with
            None before the draft's pass that makes that distribution; False ends the draft.
        source: "ngram" takes the candidate (of an n-gram, or forced), else the drafter is asked.
        probe: score so many of the last plain tokens with the draft model before this round; 0 does not.
        padding: how many dummies to add to a pass of the target over so many tokens, because a wider one is faster.
        notes: the controller's own, about the round in flight: given back to it with the round.
    """

    n_max: int
    keep_drafting: KeepDrafting = always
    source: str = ""
    probe: int = 0
    padding: Callable[[int], int] = no_padding
    notes: object = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The log-probability of one emitted token under the model's own softmax, before any transform.

    Attributes:
        token: the id.
        logprob: natural logarithm.
        top: the most likely ids with their log-probabilities, in descending order.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """One token of a generation, as whoever shows it wants it; the chunks of a generation add up to its text.

    Attributes:
        text: whole characters of the answer that this token releases; "" for special tokens and while a character or
            a possible stop string is pending.
        token: the id; -1 where a generation was ended by `stop` and only text that was pending is left.
        from_draft: whether the draft wrote this token.
        reasoning: the same as `text`, of the model's reasoning before its answer.
        logprob: the token's log-probability, when asked for.
        finish_reason: in the last chunk why the text ends: "eos", "stop" or "length".
    """

    text: str
    token: int
    from_draft: bool = False
    reasoning: str = ""
    logprob: TokenLogprob | None = None
    finish_reason: str | None = None

    @property
    def ends_text(self) -> bool:
        """Whether the token is the model's own end of the text: committed, but not counted by usage."""
        return self.finish_reason == "eos"


@dataclass(slots=True)
class Round:
    """One forward pass of the target and what came of it. Who made the pass sets its seconds.

    Attributes:
        tokens: the committed tokens, at least one. The first `n_from_draft` were drafted and accepted.
        n_from_draft: how many of `tokens` the draft wrote.
        draft_n: how many tokens were drafted (llama.cpp's name).
        draft_n_accepted: how many of them the verifier accepted, before any cut at the end of the text.
        finish_reason: None, "eos", "stop" or "length".
        survival: see `VerifyResult.survival`.
        logprobs: one entry per token when asked for, else empty.
        source: the drafter's name, "" when nothing was drafted.
        probe: (confidence, Σ min(p, q)) of plain tokens that the draft scored before this round.
        n_pending: committed tokens that the target decoded in this pass before the drafted ones.
        n_padding: dummies that the target decoded with this pass and dropped again.
        n_prefilled: prompt tokens that the target read with or before this pass; later, tokens that it read again.
        n_draft_prefilled: committed tokens that the draft model read before its first draw.
        n_context: committed tokens before this round, the prompt included.
        prefill_s: seconds of reading those; not in verify_s.
        draft_s, verify_s, host_s: seconds in the drafter, in the target's pass, and outside both.
        n_sequences: how many sequences had their rounds together, in all of these seconds.
    """

    tokens: tuple[int, ...]
    n_from_draft: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    finish_reason: str | None = None
    survival: tuple[float, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = field(default=())
    source: str = ""
    probe: tuple[tuple[float, float], ...] = ()
    n_pending: int = 1
    n_padding: int = 0
    n_prefilled: int = 0
    n_draft_prefilled: int = 0
    n_context: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    n_sequences: int = 1
