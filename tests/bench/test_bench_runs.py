"""Benchmarks over a scripted generator with its own clock: what is run, what is timed, what is said and kept."""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from conftest import Pair
from specgguf.cli import exits
from specgguf.cli import open_pair as cli_engine
from specgguf.cli.main import cli
from specgguf.cli.open_pair import Loaded
from specgguf.cli.terminal.views import bench_view
from support.cli_support import home

from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import recommend, results
from specgguf.bench.break_even import break_even
from specgguf.bench.recommend import gains, report, speed
from specgguf.bench.runs import KINDS, Prompt, Sample, Trial, load_prompts, measure, run, schedule
from specgguf.decode.records import Round
from specgguf.decode.stats import Stats
from specgguf.errors import Cancelled, ConfigError, Unsupported
from specgguf.fit.predict import expected_tokens

__all__ = ["home"]  # fixture

READ_S, PASS_S, DRAFT_S, HOST_S = 2.0, 0.1, 0.02, 0.001  # reading the prompt, a pass, a drafted token, Python


class Scripted:
    """A generator that accepts `accepted` of each draft; every step moves its own clock.

    `slow` holds factors by which the generation of that number is slowed.
    """

    def __init__(self, accepted: int = 2, slow: dict[int, float] | None = None) -> None:
        self.accepted = accepted
        self.slow = slow or {}
        self.now = 100.0
        self.decode_s = 0.0
        self.last_stats = Stats()
        self.calls: list[tuple[int | str, SamplingParams]] = []
        self.n_resets = 0
        self.cancelled = threading.Event()
        self.closed = False
        self.interrupt_at = -1
        self.warnings: list[str] = []

    def clock(self) -> float:
        return self.now

    def reset(self) -> None:
        self.n_resets += 1

    def render(self, messages: Sequence[Any], *, enable_thinking: bool | None = None) -> list[int]:
        return list(range(len(messages[0]["content"].split())))

    def tokenize(self, text: bytes) -> list[int]:
        return list(text)

    def cancel(self) -> None:
        self.cancelled.set()

    def close(self) -> None:
        self.closed = True

    def _spend(self, decode_s: float, host_s: float = 0.0) -> None:
        factor = self.slow.get(len(self.calls) - 1, 1.0)
        self.now += factor * (decode_s + host_s)
        self.decode_s += factor * decode_s

    def generate(
        self, tokens: Sequence[int], params: SamplingParams, *, draft: int | str, draft_max: int | None
    ) -> Any:
        self.calls.append((draft, params))
        self.last_stats = Stats()
        self.last_stats.begin(len(tokens), 0)
        return SimpleNamespace(stats=self.last_stats, rounds=lambda: self._rounds(draft, params))

    def _rounds(self, draft: int | str, params: SamplingParams) -> Iterator[Round]:
        assert params.max_tokens is not None
        n, left = 0, params.max_tokens
        while left:
            k = 0 if draft == "off" or (draft == "auto" and n == 0) else 3 if draft == "auto" else int(draft)
            k = min(k, left - 1)
            accepted = min(self.accepted, k)
            started = self.now
            if n == 0:
                self._spend(READ_S)
            if k:
                self._spend(k * DRAFT_S)
            if k or n:
                self._spend(PASS_S)
            self._spend(0.0, HOST_S)
            left -= accepted + 1
            round = Round(
                tuple(range(accepted + 1)),
                draft_n=k,
                draft_n_accepted=accepted,
                finish_reason=None if left else "length",
                prefill_s=READ_S if n == 0 else 0.0,
                verify_s=self.now - started - (READ_S if n == 0 else 0.0),
            )
            n += 1
            self.last_stats.add(round)
            if len(self.calls) - 1 == self.interrupt_at:
                signal.raise_signal(signal.SIGINT)
                assert self.cancelled.wait(30)  # another thread passes it on
            if self.cancelled.is_set():
                raise Cancelled("stopped")
            yield round


def trial(draft: int | str = "off", repeat: int = 0) -> Trial:
    return Trial("code", 0, "write a program", repeat, draft, 7)


def test_the_break_even_acceptance_is_what_a_round_costs() -> None:
    """A plain token takes PASS_S, a draft of n tokens n times DRAFT_S; all of it a little of Python's."""
    engine = Scripted()
    trials = [trial(draft, repeat) for repeat in range(2) for draft in ("off", 1, 2, 4, "auto")]
    samples = [
        measure(cast(SpeculativeLlama, engine), one, SamplingParams(max_tokens=60), clock=engine.clock)
        for one in trials
    ]
    found = {one.draft_n: one for one in break_even(samples)}
    assert list(found) == [1, 2, 4]
    for n, one in found.items():
        assert one.round_cost == pytest.approx(1 + n * DRAFT_S / PASS_S, rel=0.05)
        assert one.needed is not None
        assert expected_tokens(one.needed, n) == pytest.approx(one.round_cost, abs=1e-3)
    assert found[4].measured == pytest.approx(0.5, abs=0.05)
    assert break_even([s for s in samples if s.draft != "off"]) == []


def test_a_draft_that_costs_more_than_it_can_give_never_breaks_even() -> None:
    engine = Scripted()
    samples = [
        measure(cast(SpeculativeLlama, engine), trial(d), SamplingParams(max_tokens=60), clock=engine.clock)
        for d in ("off", 2)
    ]
    slow = [replace(s, total_s=s.total_s * 4) if s.draft == 2 else s for s in samples]
    assert [one.needed for one in break_even(slow)] == [None]


# --- what is run ----------------------------------------------------------------------------------------------


def test_built_in_prompts_have_two_of_every_kind() -> None:
    counts = Counter(p.kind for p in load_prompts())
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 2


def test_settings_run_back_to_back_in_both_directions() -> None:
    trials = schedule([Prompt("a", "code"), Prompt("b", "code"), Prompt("c", "story")], ["off", 2, "auto"], 4)
    assert [t.kind for t in trials] == ["code"] * 12 + ["story"] * 12
    code = trials[:12]
    assert [t.draft for t in code] == ["off", 2, "auto", "auto", 2, "off"] * 2
    assert [t.repeat for t in code] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert [t.prompt for t in code] == ["a"] * 6 + ["b"] * 6
    assert all(t.seed == 1 + t.repeat for t in trials)


def test_prompts_of_a_file(tmp_path: Path) -> None:
    lines = tmp_path / "mine.jsonl"
    lines.write_text('{"kind": "mail", "prompt": "Answer:"}\n\n{"prompt": "No kind"}\n')
    assert load_prompts(lines) == [Prompt("Answer:", "mail"), Prompt("No kind", "own")]
    text = tmp_path / "mine.txt"
    text.write_text("\ufefffirst\n\nstill first\n---\nsecond\n---\n\n", encoding="utf-8")
    assert load_prompts(text) == [Prompt("first\n\nstill first"), Prompt("second")]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "", "holds no prompt"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.jsonl", '{"prompt": "x"}\nnonsense\n', "line 2: not JSON"),
        ("a.jsonl", '{"kind": "x"}', "line 1: an object with a prompt"),
        ("a.jsonl", '{"prompt": "x", "kid": "y"}', "unknown key 'kid'"),
        ("a.jsonl", '{"prompt": 3}', "prompt must be a text"),
        ("a.jsonl", '{"prompt": " "}', "prompt must be a text"),
    ],
)
def test_what_is_no_prompt_is_refused(tmp_path: Path, name: str, content: str | bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ConfigError, match=said):
        load_prompts(path)


# --- what is timed --------------------------------------------------------------------------------------------


def sample_of(generator: Scripted, draft: int | str, n: int = 13) -> Sample:
    return measure(cast(Any, generator), trial(draft), SamplingParams(max_tokens=n, seed=99), clock=generator.clock)


def test_a_plain_run() -> None:
    generator = Scripted()
    sample = sample_of(generator, "off")
    assert generator.n_resets == 1  # every sample reads its prompt
    assert generator.calls[0][1].seed == 7  # the trial's
    assert (sample.n_prompt, sample.n_generated, sample.n_rounds, sample.draft_n) == (3, 13, 13, 0)
    assert sample.n_timed == 12  # the first token came with the prompt
    assert sample.first_s == pytest.approx(READ_S + HOST_S)
    assert sample.predicted_s == pytest.approx(12 * PASS_S + 13 * HOST_S)
    assert sample.decode_s == pytest.approx(READ_S + 12 * PASS_S)
    assert sample.rounds_by_draft_n == (13,)
    assert sample.finish_reason == "length"


def test_a_drafting_run() -> None:
    sample = sample_of(Scripted(accepted=2), 3)
    assert sample.n_timed == sample.n_generated == 13  # its first pass verified a draft: nothing came for free
    assert sample.n_rounds == 5
    assert sample.rounds_by_draft_n == (1, 0, 0, 4)
    assert (sample.draft_n, sample.draft_n_accepted) == (12, 8)
    assert (sample.reached_by_position, sample.accepted_by_position) == ((4, 4, 4), (4, 4, 0))
    assert sample.predicted_s == pytest.approx(12 * DRAFT_S + 5 * (PASS_S + HOST_S))


def test_an_auto_run_pays_for_what_it_drafts() -> None:
    sample = sample_of(Scripted(accepted=2), "auto")
    assert sample.rounds_by_draft_n[0] == 1
    assert sample.n_timed == 12
    assert sample.tokens_per_second == pytest.approx(12 / (11 * DRAFT_S + 4 * PASS_S + 5 * HOST_S))


def test_a_model_without_a_template_gets_the_text_itself() -> None:
    class Base(Scripted):
        def render(self, messages: Sequence[Any], *, enable_thinking: bool | None = None) -> list[int]:
            raise Unsupported("no template")

    assert sample_of(Base(), "off").n_prompt == len(b"write a program")


# --- what is said ---------------------------------------------------------------------------------------------


def samples(
    draft: int | str, speeds: Sequence[float], *, accepted: float | None = None, resting: float = 0.0
) -> list[Sample]:
    """A sample per repeat, of 100 rounds at these speeds; drafts of 4 tokens unless drafting is off."""
    drafts = draft != "off" and accepted is not None
    n_plain = round(100 * resting) if drafts else 100
    draft_n = 4 * (100 - n_plain)
    n_accepted = round(draft_n * (accepted or 0.0))
    n_tokens = 100 + n_accepted
    return [
        Sample(
            engine="specgguf",
            kind="code",
            index=0,
            repeat=r,
            draft=draft,
            temperature=0.8,
            seed=r,
            n_prompt=10,
            n_generated=n_tokens,
            n_timed=n_tokens,
            first_s=1.0,
            total_s=1.0 + n_tokens / tokens_per_s,
            prompt_s=1.0,
            n_rounds=100,
            draft_n=draft_n,
            draft_n_accepted=n_accepted,
            rounds_by_draft_n=(n_plain, 0, 0, 0, 100 - n_plain),
        )
        for r, tokens_per_s in enumerate(speeds)
    ]


PLAIN = samples("off", [10, 10, 10])


@pytest.mark.parametrize(
    ("others", "draft", "sure", "text"),
    [
        ([("auto", [16, 16, 17], 0.9, 0)], "auto", True, "on, K about 4, 1.60×"),
        ([("auto", [9, 13, 17], 0.9, 0)], "auto", False, "on, K about 4, 1.30×; not sure: 0.90 to 1.70×"),
        ([("auto", [16] * 3, 0.9, 0), (4, [17] * 3, 0.9, 0)], "auto", True, "on, K about 4, 1.60×"),
        ([("auto", [12] * 3, 0.9, 0), (4, [16] * 3, 0.9, 0)], 4, True, "on, always K = 4, 1.60× (auto: 1.20×)"),
        ([(4, [8] * 3, 0.41, 0)], "off", True, "leave it off: 41 % accepted, 0.80×"),
        (
            [("auto", [9.9] * 3, 0.5, 0.95), (4, [8] * 3, 0.41, 0)],
            "off",
            True,
            "leave it off: 41 % accepted, 0.80× (auto turns it off: 0.99×)",
        ),
        ([("auto", [9] * 3, 0.5, 0)], "off", True, "leave it off: 50 % accepted, 0.90×"),
        ([("auto", [10.2] * 3, 0.6, 0), (4, [10.1] * 3, 0.6, 0)], None, True, "makes no difference: 1.02×"),
        ([("auto", [11] * 3, None, 1)], None, True, "makes no difference: nothing was drafted"),
        ([], None, False, "too little was measured"),
    ],
)
def test_recommendations(others: list[tuple[Any, list[float], Any, float]], draft: Any, sure: bool, text: str) -> None:
    measured = [*PLAIN, *(s for d, v, a, r in others for s in samples(d, v, accepted=a, resting=r))]
    (only,) = report(measured)
    assert (only.recommendation.draft, only.recommendation.sure) == (draft, sure)
    assert only.recommendation.text.startswith(text)


def test_no_gain_is_claimed_above_what_its_own_figures_allow() -> None:
    """1.54 times plain at 1.4 tokens a forward pass: plain decoding was disturbed."""
    (only,) = report([*PLAIN, *samples("auto", [15.4] * 3, accepted=0.1)])
    assert only.rows[1].gain_max == pytest.approx(1.4)
    assert (only.recommendation.draft, only.recommendation.sure) == (None, False)
    assert only.recommendation.text.startswith("not known: 1.54× was measured, and 1.40 tokens per forward pass")
    (close,) = report([*PLAIN, *samples("auto", [14.2] * 3, accepted=0.1)])
    assert close.recommendation.text.startswith("on, K about 4, 1.40×")


def test_a_gain_that_was_none_is_not_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    bench_view.show([*PLAIN, *samples("auto", [15.4] * 3, accepted=0.1)])
    table = capsys.readouterr().out.partition("not known")[0]
    assert "1.54" not in table
    assert "?" in table
    bench_view.show([*PLAIN, *samples("auto", [14.0] * 3, accepted=0.1)])
    assert "1.40" in capsys.readouterr().out.partition("not known")[0]


def test_a_doubt_names_no_gain_that_is_impossible() -> None:
    (only,) = report([*PLAIN, *samples("auto", [9, 13, 30], accepted=0.1)])
    assert only.recommendation.text.endswith("not sure: 0.90 to 1.40×, more repeats would tell")


def test_without_plain_runs_nothing_is_claimed() -> None:
    (only,) = report(samples("auto", [10, 10], accepted=0.9))
    assert only.recommendation.text == "too little was measured"
    assert only.rows[0].gain is None


def test_what_slows_the_machine_for_a_while_does_not_decide() -> None:
    """Repeat 1 ran at a third of the speed for everybody; a comparison of totals would be moved by it."""
    plain, drafted = samples("off", [10, 3, 10]), samples("auto", [16, 4.8, 16], accepted=0.9)
    assert gains(drafted, plain) == pytest.approx([1.6, 1.6, 1.6])
    unpaired = speed(drafted) / speed([*plain[:1], *plain[2:]])  # the control: plain missed the bad minute
    assert abs(unpaired - 1.6) > 0.3


def test_rows_come_in_order_with_their_figures() -> None:
    generator = Scripted(accepted=2)
    trials = schedule([Prompt("p", "code"), Prompt("q", "story")], ["off", 1, 3, "auto"], 3)
    code, story = report(list(run(cast(Any, generator), trials, SamplingParams(max_tokens=13), clock=generator.clock)))
    assert (code.kind, story.kind) == ("code", "story")
    assert [row.draft for row in code.rows] == ["off", 1, 3, "auto"]
    plain, _, three, auto = code.rows
    assert plain.gain == 1.0
    assert plain.acceptance is None
    assert three.by_position == (1.0, 1.0, 0.0)
    assert three.acceptance == pytest.approx(2 / 3)
    assert three.tokens_per_pass == pytest.approx(13 / 5)
    assert auto.mean_draft_n == pytest.approx(11 / 4)  # the last round has room for two
    assert auto.off_share == pytest.approx(1 / 5)
    assert plain.host_share == pytest.approx(13 * HOST_S / (READ_S + 12 * PASS_S + 13 * HOST_S))
    assert code.recommendation.draft == "auto"


# --- what is kept ---------------------------------------------------------------------------------------------


def test_a_result_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"abc")
    path = tmp_path / "new" / "result.json"
    head = results.describe({"model": model}, note="ä")
    kept = samples("auto", [16, 17], accepted=0.5)
    results.save(path, head, kept)
    assert len(path.read_text(encoding="utf-8").split('"samples"')[1].strip().splitlines()) == 2 + len(kept)
    again, back = results.load(path)
    assert back == [replace(s, total_s=round(s.total_s, 6)) for s in kept]
    assert again == head
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert again["files"]["model"] == {"name": "model.gguf", "bytes": 3, "sha256": digest}
    assert again["machine"]["devices"][-1]["kind"] == "cpu"
    assert {"specgguf", "llama-cpp-python", "python"} <= set(again["versions"])
    assert [p.name for p in path.parent.iterdir()] == ["result.json"]  # no half-written one


@pytest.mark.parametrize("content", ["", "[]", '{"format": 99, "samples": []}', '{"format": 1, "samples": [{"x": 1}]}'])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="not a saved benchmark"):
        results.load(path)


# --- the command ----------------------------------------------------------------------------------------------


class Ran:
    """One run of `specgguf bench`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, generator: Any, arguments: Sequence[str], draft: str) -> None:
        def open_engine(settings: Any, notes: Any, *, yes: bool = False, brief: bool = False) -> Loaded:
            assert settings["draft"] == "auto"
            return Loaded(generator, "target.gguf", draft)

        monkeypatch.setattr(cli_engine, "open_engine", open_engine)
        result: Any = CliRunner().invoke(cli, ["bench", *arguments], prog_name="specgguf")
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr


def bench(monkeypatch: pytest.MonkeyPatch, generator: Any, *arguments: str, draft: str = "draft.gguf") -> Ran:
    return Ran(monkeypatch, generator, arguments, draft)


def test_the_command_measures_shows_and_saves(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "result.json"
    generator = Scripted()
    ran = bench(
        monkeypatch, generator, "--kind", "code", "--kind", "story", "--draft-max", "2", "--repeats", "2",
        "--max-tokens", "16", "--temp", "0", "--save", str(path),
    )  # fmt: skip
    assert ran.code == exits.OK
    assert "16 runs, about" in ran.err
    for word in ("code", "story", "off", "auto", "% accepted", "memory: "):
        assert word in ran.out
    assert "\x1b" not in ran.out
    head, kept = results.load(path)
    assert head["complete"] is True
    assert head["settings"]["max_tokens"] == 16
    assert [row["draft"] for row in head["summary"][0]["rows"]] == ["off", 1, 2, "auto"]
    assert len(kept) == 16
    assert {s.temperature for s in kept} == {0.0}
    assert generator.closed


def test_ctrl_c_keeps_what_was_measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "result.json"
    generator = Scripted()
    generator.interrupt_at = 2 + 9  # two warm-ups; the first kind has eight runs
    arguments = ("--draft-max", "2", "--repeats", "2", "--max-tokens", "16", "--save", str(path))
    ran = bench(monkeypatch, generator, "--kind", "code", "--kind", "story", *arguments)
    assert ran.code == exits.INTERRUPTED
    head, kept = results.load(path)
    assert head["complete"] is False
    assert len(kept) == 9
    assert "code" in ran.out
    assert "too little was measured" in ran.out.split("story")[-1]
    assert generator.closed


def test_ctrl_c_before_anything_was_measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Scripted()
    generator.interrupt_at = 1
    ran = bench(monkeypatch, generator, "--save", str(home / "result.json"))
    assert (ran.code, ran.out) == (exits.INTERRUPTED, "")
    assert not (home / "result.json").exists()


def test_what_is_not_clear_is_repeated_until_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three repeats that disagree are followed by more, of that kind alone, and never by more than six in all."""
    unsure = {"code": [False, False, True], "story": [True, True, True]}

    def report(samples: Sequence[Sample]) -> list[recommend.Report]:
        n = 1 + max(s.repeat for s in samples)
        kinds = dict.fromkeys(s.kind for s in samples)
        return [recommend.Report(k, (), recommend.Recommendation(None, (unsure[k] * 2)[n - 3], "")) for k in kinds]

    arguments = ("--kind", "code", "--kind", "story", "--draft-max", "1", "--max-tokens", "8")
    monkeypatch.setattr(recommend, "report", report)
    monkeypatch.setattr(bench_view, "show", lambda *_, **__: None)
    generator = Scripted()
    ran = bench(monkeypatch, generator, *arguments)
    assert "not clear yet: code; once more (repeat 5 of at most 6)" in ran.err
    assert len(generator.calls) == 2 + 3 * 3 * 2 + 2 * 3
    unsure["code"] = [False] * 3
    generator = Scripted()
    bench(monkeypatch, generator, *arguments)
    assert len(generator.calls) == 2 + 3 * 3 * 2 + 3 * 3
    generator = Scripted()
    bench(monkeypatch, generator, *arguments, "--repeats", "3")
    assert len(generator.calls) == 2 + 3 * 3 * 2, "what was asked for is what is run"


def test_quick_is_short(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Scripted()
    assert bench(monkeypatch, generator, "--quick").code == exits.OK
    assert [call[0] for call in generator.calls[2:5]] == ["off", 2, "auto"]
    assert len(generator.calls) == 2 + 3 * len(KINDS)
    assert generator.calls[-1][1].max_tokens == 48


@pytest.mark.parametrize(
    ("arguments", "draft", "said"),
    [
        (["--kind", "stroy"], "d.gguf", "did you mean 'story'?"),
        (["--kind", "poem"], "d.gguf", "kinds: code, json, edit, explain, story"),
        (["--prompts", "missing.txt"], "d.gguf", "does not exist"),
        (["--repeats", "0"], "d.gguf", "--repeats"),
        (["--temp", "warm"], "d.gguf", "temperature must be a number"),
        ([], "", "there is nothing to compare: no draft"),
    ],
)
def test_wrong_input_is_said_in_a_line(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], draft: str, said: str
) -> None:
    ran = bench(monkeypatch, Scripted(), *arguments, draft=draft)
    assert (ran.code, ran.out) == (exits.USAGE, "")
    assert said in ran.err


def test_a_real_pair(home: Path, monkeypatch: pytest.MonkeyPatch, tiny_chat: Pair) -> None:
    path = home / "result.json"
    llm = SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), n_ctx=2048)
    ran = bench(
        monkeypatch, llm, "--kind", "code", "--draft-max", "2", "--repeats", "1", "--max-tokens", "12",
        "--save", str(path),
    )  # fmt: skip
    assert ran.code == exits.OK
    kept = {s.draft: s for s in results.load(path)[1]}
    assert list(kept) == ["off", 1, 2, "auto"]
    assert json.loads(path.read_text())["complete"] is True
    for draft, sample in kept.items():
        assert 0 < sample.n_generated <= 12
        assert sample.n_prompt == kept["off"].n_prompt > 50
        assert sample.prompt_s < sample.total_s
        assert sample.decode_s is not None
        assert 0 < sample.decode_s < sample.total_s
        assert sum(sample.rounds_by_draft_n) == sample.n_rounds
        assert (sample.draft_n > 0) == (draft in (1, 2)) or draft == "auto"
