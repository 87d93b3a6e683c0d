"""The study of step times against PyTorch's own checkpoints and budget."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from experiments.demo.models import Gpt
from experiments.readme.blocks import step_time
from experiments.step_time import __main__ as command
from experiments.step_time.between import aim
from experiments.step_time.measure import BESIDE, Bench, distance
from experiments.step_time.models import MODELS, Subject
from experiments.step_time.plans import Frontier
from experiments.step_time.rivals import Contender
from experiments.step_time.rows import Outcome, Planned, Result, Rival
from experiments.step_time.study import ROUNDS, study
from experiments.step_time.summary import ahead, summary
from experiments.step_time.table import exact, lines
from lowtide.frontends.chains import linear_chain

if TYPE_CHECKING:
    from pathlib import Path


def tiny() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A GPT of two narrow blocks with dropout."""
    torch.manual_seed(0)
    model = Gpt(2, 32, 2, 32, attention_dropout=0.1)
    return model.train(), (torch.randint(0, 256, (4, 33)),)


TINY = Subject("tiny", tiny, "Block")


def planned(peak: int, ratio: float, over_plain: float | None = None) -> Planned:
    """A plan that replays with the predicted peak."""
    return Planned(Outcome(peak, ratio, True, 0.0, True), peak, 0.1, 0.0, 1.0, over_plain)


def result(name: str) -> Result:
    """One model with a rival of each fate."""
    worse = Outcome(20_000_000, 1.5, False, 0.25, True)
    rivals = [
        Rival("block", None, worse, "", planned(20_000_000, 1.2, 0.25), planned(15_000_000, 1.4)),
        Rival("selective", None, None, "no such operator"),
        Rival("budget", 0.7, Outcome(9, 0.9, True, 0.0, False)),
    ]
    plans = [planned(15_000_000, 1.4), planned(20_000_000, 1.2, 0.25)]
    unplanned = planned(100_000_000, 1.0)
    budgets = [rivals[2], Rival("budget", 0.3, worse)]
    return Result(name, name, 9, 100_000_000, 5.0, unplanned, rivals, budgets, plans)


def test_lowtide_meets_the_peak_of_both_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints save memory; plans stay within what these were measured to need, bit by bit."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    said: list[str] = []
    found = study("tiny", TINY, settings=(), repeats=2, time_limit=0.5, told=said.append)
    assert [rival.name for rival in found.rivals] == ["block", "selective"]
    for rival in found.rivals:
        assert rival.outcome is not None
        assert rival.same_peak is not None
        assert rival.outcome.equal
        assert rival.outcome.peak_bytes < found.plain_bytes
        assert rival.same_peak.outcome.peak_bytes <= rival.outcome.peak_bytes
        if rival.same_time is not None:
            assert rival.same_time.outcome.ratio <= rival.outcome.ratio
    assert all(exact(plan) for plan in found.plans)
    assert found.unplanned.predicted_overhead == 0.0


@pytest.mark.slow
def test_the_budget_draws_other_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed dropout under PyTorch's budget gives other gradients: the table must say so."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(tmp_path))
    found = study("tiny", TINY, settings=(0.1,), repeats=1, time_limit=2.0, told=lambda text: None)
    outcome = next(r.outcome for r in found.rivals if r.name == "budget")
    assert outcome is not None
    assert not outcome.equal
    assert outcome.error > 1e-3


def test_the_smallest_plan_for_a_time() -> None:
    """It is as fast as wanted, and smaller than what a looser time gives nothing for."""
    frontier = Frontier(linear_chain(16), 0.5)
    plan = frontier.within_time(0.3)
    assert plan is not None
    assert plan.overhead <= 0.3
    assert frontier.room(plan) < 0.6 * frontier.room(frontier.unplanned)
    assert frontier.within_time(-0.1) is None
    curve = frontier.curve(0.3)
    assert curve[0] is frontier.unplanned
    assert all(a.time_ns <= b.time_ns for a, b in itertools.pairwise(curve))
    assert all(frontier.room(b) < frontier.room(a) for a, b in itertools.pairwise(curve))
    assert plan in curve
    assert all(one.overhead <= 0.3 for one in curve)


def test_the_smallest_peak_in_a_time_is_searched_finely() -> None:
    """Time falls with memory: whatever is fast enough, the smallest is found within a tenth."""
    for smallest, floor in ((37, 10), (95, 10), (11, 10), (10, 10)):
        at, tries = {100_000: 1.0, 20_000: 1.9}, 0
        while (room := aim(at, 1.4, 1000 * floor)) is not None:
            at[room] = 1.3 if room >= 1000 * smallest else 1.5
            tries += 1
        found = min(room for room, ratio in at.items() if ratio <= 1.4)
        least = max(1000 * smallest, 20_001)
        assert least <= found <= 1.12 * least
        assert tries <= ROUNDS
    assert aim({100: 1.5}, 1.4, 0) is None
    assert aim({100: 1.0}, 1.4, 0) == 70


def test_models_have_blocks() -> None:
    """What a checkpoint per block wraps is found, and not twice."""
    counts = {
        name: len(subject.blocks(subject.make()[0]))
        for name, subject in MODELS.items()
        if name in ("gpt", "gpt_dropout", "resnet50", "unet", "lstm")
    }
    assert counts == {"gpt": 12, "gpt_dropout": 12, "resnet50": 16, "unet": 9, "lstm": 1}


def test_plain_steps_are_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios are of one round each: neither a slowing machine nor one odd plain step moves them."""
    order: list[str] = []

    def fake(steps: dict[str, Any], repeats: int, **_: Any) -> dict[str, list[float]]:
        order.extend(steps)
        plain = [name for name in steps if not name.startswith("c")]
        times = {name: [1.5 * 2.0**turn for turn in range(repeats)] for name in steps}
        times |= {name: [2.0**turn for turn in range(repeats)] for name in plain}
        times[plain[0]] = [100.0] * repeats
        return times

    model = torch.nn.Linear(2, 1)
    contender = Contender(model, lambda x: model(x).sum())
    bench = Bench(contender, (torch.ones(3, 2),))
    monkeypatch.setattr("experiments.step_time.measure.measure_step_time", fake)
    names = [f"c{number}" for number in range(9)]
    ratios, milliseconds = bench.ratios(dict.fromkeys(names, contender), 5)
    assert ratios == dict.fromkeys(names, 1.5)
    assert milliseconds == 4000.0
    assert [name for name in order if name in names] == names
    assert not order[0].startswith("c")
    assert not order[-1].startswith("c")
    longest = max(len(list(run)) for c, run in itertools.groupby(order, lambda n: n[0] == "c") if c)
    assert longest == BESIDE


def test_distance_is_relative() -> None:
    """A missing gradient is no distance; the scale is the largest value."""
    a, b = torch.tensor([4.0, 0.0]), torch.tensor([4.0, 1.0])
    assert distance([(a, b), (None, None)]) == 0.25
    assert distance([(a, a)]) == 0.0


def test_lines_of_every_fate(tmp_path: Path) -> None:
    """What fails, what is impossible and what differs is said; the README has the same cells."""
    rows = lines([result("gpt")])
    assert rows[1][2:] == ["20.0 MB", "x1.50", "no, by 0.2", "x1.20", "x1.25", "15.0 MB", "yes"]
    assert rows[2][2:] == ["fails", "", "", "", "", "", ""]
    assert rows[3][1:] == [
        "memory budget 0.7",
        "0.0 MB",
        "x0.90",
        "not buffers; at 0.3 no",
        "cannot",
        "",
        "none",
        "",
    ]
    assert step_time(tmp_path) is None
    (tmp_path / "step_time").mkdir()
    (tmp_path / "step_time" / "results.json").write_bytes(msgspec.json.encode([result("gpt")]))
    block = step_time(tmp_path) or ""
    assert " | ".join(rows[1]) in block
    assert " ".join(block.split()).endswith(f"| {' '.join(summary([result('gpt')]))}")


def test_the_summary_counts_what_the_rows_say() -> None:
    """Lost comparisons are named; distances are of those plans whose time over plain was told."""
    one = result("gpt")
    assert summary([one]) == [
        "Faster at the rival's peak and smaller in its time in 1 of 2 comparisons (not: gpt: "
        "budget).",
        "A replay without recomputation takes x1.00 to x1.00 of plain PyTorch's time.",
        "Predicted and measured time over plain PyTorch's differ for the plans at the rivals' "
        "peaks by 5.0 points in the median, 5.0 at most, 0 of 1 within 3; for all measured plans "
        "by 5.0 points in the median, 5.0 at most, 0 of 1 within 3.",
    ]
    untold = msgspec.structs.replace(one, plans=one.plans[:1], rivals=one.rivals[1:])
    assert len(summary([untold])) == 2
    assert summary([msgspec.structs.replace(one, rivals=[])]) == []


def test_a_tie_is_not_ahead() -> None:
    """Both are needed: less time at the same peak, and a smaller peak in the same time."""
    outcome = Outcome(20, 1.5, True, 0.0, True)
    assert ahead(Rival("block", None, outcome, "", planned(20, 1.4), planned(19, 1.5)))
    assert not ahead(Rival("block", None, outcome, "", planned(20, 1.5), planned(19, 1.5)))
    assert not ahead(Rival("block", None, outcome, "", planned(20, 1.4), planned(20, 1.4)))
    assert not ahead(Rival("block", None, outcome, "", planned(20, 1.4), None))


def test_models_of_other_runs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are saved model by model; Ctrl-C keeps them, and --resume goes on there."""
    seen: list[str] = []

    def fake(name: str, subject: Subject, **options: Any) -> Result:
        seen.append(name)
        if name == "gpt2":
            raise KeyboardInterrupt
        return result(name)

    monkeypatch.setattr(command, "study", fake)
    path = tmp_path / "results.json"
    arguments = ["--out", str(tmp_path), "--only"]
    assert command.main([*arguments, "unet"]) == 0
    assert command.main([*arguments, "gpt", "gpt2", "llama"]) == 130
    assert [found.model for found in command.read(path)] == ["gpt", "unet"]
    assert (tmp_path / "step_time.svg").exists()
    capsys.readouterr()
    assert command.main([*arguments, "gpt", "llama", "--resume", "--json"]) == 0
    assert seen == ["unet", "gpt", "gpt2", "llama"]
    document = capsys.readouterr().out
    assert [row["model"] for row in msgspec.json.decode(document)] == ["gpt", "llama", "unet"]
    path.write_text("[1]")
    assert command.main([*arguments, "gpt"]) == 2
    assert "holds no results of this study" in capsys.readouterr().err
