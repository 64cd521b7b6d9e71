"""Forward passes of several sequences together: one native pass for all that stand in the same context.

It knows what a part of a pass is, and nothing of why it is asked for.
"""

from __future__ import annotations

from collections import abc

from specgguf.decode.sampling import Logits
from specgguf.decode.sequence import Forward, decode_in_turn
from specgguf.native.sequence import Part, Sequence


def decode_together(parts: abc.Sequence[Forward]) -> abc.Sequence[Logits]:
    """The rows of logits of each part, in their order: views that a context's next forward pass overwrites."""
    if len(parts) == 1:
        return decode_in_turn(parts)
    groups: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        groups.setdefault(id(part.sequence.context) if isinstance(part.sequence, Sequence) else -1 - i, []).append(i)
    found: dict[int, Logits] = {}
    for places in groups.values():
        rows = _decode([parts[i] for i in places])
        found.update(zip(places, rows, strict=True))
    return [found[i] for i in range(len(parts))]


def _decode(parts: abc.Sequence[Forward]) -> abc.Sequence[Logits]:
    """Parts of one context."""
    own = [
        Part(part.sequence, part.tokens, part.n_outputs, part.n_padding)
        for part in parts
        if isinstance(part.sequence, Sequence)
    ]
    return own[0].sequence.context.decode(own) if own else decode_in_turn(parts)
