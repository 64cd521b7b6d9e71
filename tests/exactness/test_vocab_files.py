"""Real files of different tokenizers: the whole loop over llama.cpp's own caches has the target's distribution.

Byte-level BPE beside SentencePiece in both roles, dense and hybrid; texts are enumerated as in test_gguf.py, and
greedy text is that of plain decoding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.alone import generate
from support.enumeration import output_distribution, total_variation
from support.fakes import FakeStopCheck, Script
from test_gguf import DENSE, RECURRENT, Loaded, loaded, reference, rules, top

from specgguf import SpeculativeLlama
from specgguf.config import SamplingParams
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import Round
from specgguf.decode.sampling import Rng, Transform
from specgguf.decode.vocab_map import MappedTransform
from specgguf.native.mapped.pair import vocab_map

WORDS = [" the", " word", " value", "ing", "er", " of", " list"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vocabularies")
    return {
        f"{arch} {name}": tiny.WRITERS[arch](folder / f"{arch}-{name}.gguf", vocab)
        for arch in ("llama", "lfm2")
        for name, vocab in (("sp", tiny.chat()), ("bpe", tiny.byte_level(WORDS)))
    }


def rounds_of(
    target: Loaded, draft: Loaded, lengths: tuple[int, ...], n: int, params: SamplingParams, **more: Any
) -> Iterator[Round]:
    found = vocab_map(target.weights, draft.weights)
    assert found is not None
    return generate(
        target.model,
        ModelDrafter(draft.model, eog=target.model.eog, vocab_map=found),
        target.weights.tokenize(b"a list of", add_bos=True),
        transform=Transform(params, n_vocab=target.model.n_vocab, eog=target.model.eog),
        draft_transform=MappedTransform(params, found, eog=target.model.eog),
        controller=Script(lengths),
        stop_check=FakeStopCheck(n, eog=target.model.eog),
        max_tokens=n,
        **more,
    )


@rules
@pytest.mark.parametrize(
    ("target", "draft"),
    [("llama sp", "llama bpe"), ("llama bpe", "llama sp"), ("llama bpe", "lfm2 sp"), ("lfm2 sp", "llama bpe")],
)
def test_the_distribution_is_the_targets(files: dict[str, Path], target: str, draft: str, rule: Any) -> None:
    with loaded(files[target]) as ours, loaded(files[draft]) as theirs:
        prompt = ours.weights.tokenize(b"a list of", add_bos=True)

        def play(rng: Rng) -> tuple[int, ...]:
            rounds = rounds_of(ours, theirs, (2, 0, 3), 4, top(2), rng=rng, verify=rule)
            return tuple(token for round in rounds for token in round.tokens)

        wanted = reference(ours, top(2), 4, prompt=prompt)
        limit = DENSE if ours.model.rollback.name == "plain" else RECURRENT
        assert total_variation(output_distribution(play), wanted) < limit


@pytest.mark.parametrize(("target", "draft"), [("llama sp", "llama bpe"), ("llama bpe", "llama sp")])
def test_greedy_text_is_that_of_plain_decoding(files: dict[str, Path], target: str, draft: str) -> None:
    greedy = top(0, temperature=0.0, ignore_eos=True)
    with loaded(files[target]) as ours, loaded(files[draft]) as theirs:
        plain, drafted = (list(rounds_of(ours, theirs, (k,), 80, greedy, rng=Rng(0))) for k in (0, 3))
        assert [t for r in drafted for t in r.tokens] == [t for r in plain for t in r.tokens]
        assert sum(r.draft_n for r in drafted) > 50


def test_several_at_once_with_a_draft_of_another_vocabulary(files: dict[str, Path]) -> None:
    """Each keeps its own text of the draft's ids, longer than the target's; answers are those given alone."""
    prompts = [b"a list of the value", b"a list of words in it", b"the number is"]
    keywords: dict[str, Any] = {"n_ctx": 128, "strict": True, "n_threads": 1, "n_threads_batch": 1, "draft": 3}
    # Flash attention rounds by the layout of the cache, and so does a half-precision one.
    keywords |= {"flash_attn": False, "type_k": "f32", "type_v": "f32"}
    params = top(0, temperature=0.0, ignore_eos=True, max_tokens=100)
    with SpeculativeLlama(str(files["llama sp"]), str(files["llama bpe"]), **keywords) as llm:
        ids = [llm.tokenize(text) for text in prompts]
        alone = [[chunk.token for chunk in llm.generate(one, params)] for one in ids]
    with SpeculativeLlama(str(files["llama sp"]), str(files["llama bpe"]), n_parallel=3, **keywords) as llm:
        running = [llm.generate(one, params) for one in ids]
        found: list[list[int]] = [[], [], []]
        for chunks in itertools.zip_longest(*running):
            for mine, chunk in zip(found, chunks, strict=True):
                mine += [chunk.token] if chunk is not None else []
        assert all(generation.stats.off_reason == "" for generation in running)
        assert sum(generation.stats.draft_n for generation in running) > 50
    assert found == alone
