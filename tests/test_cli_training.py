"""`lowtide capture` and `lowtide replay` on a small model, from the function to the exit code."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from lowtide.__main__ import main
from lowtide.commands.source import load_step
from lowtide.commands.training import Measured, loss_of
from lowtide.runtime.capture import capture
from lowtide.solver.errors import InputError
from lowtide.solver.files import read_graph, read_plan, write_plan
from lowtide.solver.live import LiveProgress
from tests.plans import plan_of, recomputing

from .test_cli_progress import Screen

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.frontends.torch.captured import Captured
    from lowtide.runtime.parity.verify import Verification

SOURCE = """
import torch
from torch import nn

def make_step():
    torch.manual_seed(0)
    print("loading data")
    layers = [m for _ in range(4) for m in (nn.Linear(16, 16), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    target = torch.randint(0, 4, (32,))
    return model, (torch.randn(32, 16),), lambda out: nn.functional.cross_entropy(out, target)

def counting():
    calls = []
    return nn.Linear(3, 1), torch.randn(2, 3), lambda out: (calls.append(1), out.sum())[1]

def other():
    return nn.Linear(3, 1), torch.randn(2, 3), lambda out: out.sum()
"""


@pytest.fixture(autouse=True)
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of microseconds beside other tests vary: whether they may is not tested here."""
    monkeypatch.setattr("lowtide.runtime.measure.step_times.MOST_NOISE", 10.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's file, its graph, and a plan that recomputes half of the forward."""
    path = tmp_path_factory.mktemp("training")
    (path / "steps.py").write_text(SOURCE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOWTIDE_CACHE_DIR", str(path / "cache"))
        arguments = ["capture", f"{path}/steps.py:make_step", "-o", f"{path}/step.graph.json"]
        assert main([*arguments, "--times", "roofline", "-q"]) == 0
    graph = read_graph(path / "step.graph.json")
    schedule = recomputing(graph)
    assert schedule.recomputes() > 0
    write_plan(plan_of(graph, schedule, budget_bytes=10**7), path / "step.plan.json")
    return path


@pytest.fixture(autouse=True)
def cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements go to a folder of their own."""
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(folder / "cache"))


def test_a_plain_step_that_cannot_be_timed_has_no_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss that counts its calls is not called again and again: null, and no row."""
    arguments = ["capture", f"{folder}/steps.py:counting", "-o", f"{folder}/counting.graph.json"]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["times"] == "calibrated"
    assert document["plain_step_ns"] is None
    assert main(arguments) == 0
    assert "plain PyTorch" not in capsys.readouterr().out


def test_capture_tells_what_it_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON document that agrees with the graph file; what user code prints is on stderr."""
    output = folder / "again.graph.json.gz"
    arguments = ["capture", f"{folder}/steps.py:make_step", "-o", str(output), "--json"]
    assert main([*arguments, "--times", "roofline"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    graph = read_graph(output)
    assert document["graph_hash"] == graph.structure_hash
    assert document["ops"] == len(graph.ops)
    assert document["resident_bytes"] == graph.resident_bytes
    assert document["base_peak_percent"] == 100.0
    assert "loading data" in err


def test_phases_of_a_capture_are_lines_of_a_log(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One each where stderr is no terminal; the graph is that of the library, number for number."""
    source, output = f"{folder}/steps.py:make_step", folder / "phases.graph.json"
    assert main(["capture", source, "-o", str(output), "--optimizer", "adamw", "--accumulate"]) == 0
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.endswith(" ...")]
    assert lines == [
        f"lowtide: capturing {source} ...",
        "lowtide: measuring operators ...",
        "lowtide: timing whole steps under a few plans ...",
    ]
    assert "\x1b" not in err
    step = load_step(source)
    captured = capture(
        step.model, step.batch, step.loss_fn, times="calibrated", optimizer="adamw", accumulate=True
    )
    assert read_graph(output) == captured.graph


@pytest.mark.parametrize("quiet", [False, True])
def test_phases_of_a_capture_on_a_terminal(
    quiet: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that counts the operators and is gone at the end; nothing if quiet."""
    told: list[str] = []
    say = LiveProgress.say

    def listen(line: LiveProgress, text: str) -> None:
        told.append(text)
        say(line, text)

    monkeypatch.setattr(LiveProgress, "say", listen)
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LOWTIDE_CACHE_DIR", str(folder / f"empty {quiet}"))
    arguments = ["capture", f"{folder}/steps.py:other", "-o", f"{folder}/other.graph.json"]
    assert main([*arguments, *(["-q"] if quiet else [])]) == 0
    if quiet:
        assert not told
        return
    assert told[0].startswith("capturing ")
    assert told[1] == "measuring operators"
    counts = [text for text in told if text.startswith("measuring operators: ")]
    assert counts[0].startswith("measuring operators: 0 of ")
    assert len(counts) > 2
    assert told[-1] == "timing whole steps under a few plans"


def test_capture_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes, GiB and percent of the step, and where the graph is."""
    output = folder / "table.graph.json"
    arguments = ["capture", f"{folder}/steps.py:make_step", "-o", str(output), "-q"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "100.0%)" in out
    assert "(calibrated)" in out
    assert "plain PyTorch" in out
    assert str(output) in out


def test_memory_beside_the_step_is_part_of_budget_and_peak(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Optimizer state given at capture counts as resident, in the plan and in what is measured."""
    graph_file, plan_file = folder / "extra.graph.json", folder / "extra.plan.json"
    source = f"{folder}/steps.py:make_step"
    arguments = ["capture", source, "-o", str(graph_file), "--times", "roofline", "-q"]
    assert main([*arguments, "--extra-resident", "1MiB"]) == 0
    graph = read_graph(graph_file)
    assert graph.extra_resident_bytes == 2**20
    plan = plan_of(graph, recomputing(graph), budget_bytes=10**7)
    write_plan(plan, plan_file)
    capsys.readouterr()
    arguments = ["replay", source, str(plan_file), "--times", "roofline", "--json", "-q"]
    assert main([*arguments, "--steps", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured_peak_bytes"] >= plan.resident_bytes > 2**20
    for wrong in ("10%", "max", "lots"):
        assert main(["capture", source, "-o", str(graph_file), "--extra-resident", wrong]) == 2
        words = f"--extra-resident {wrong!r} is not an amount: write it like 64MiB"
        assert words in capsys.readouterr().err


def test_existing_gradients_and_optimizer_state(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both count, are named in every table, and the replay measures a step that adds."""
    graph_file, plan_file = folder / "adds.graph.json", folder / "adds.plan.json"
    source = f"{folder}/steps.py:make_step"
    arguments = ["capture", source, "-o", str(graph_file), "--accumulate", "--optimizer", "adamw"]
    assert main([*arguments, "-q"]) == 0
    out = capsys.readouterr().out
    assert "existing gradients" in out
    assert "optimizer state" in out
    graph = read_graph(graph_file)
    parameters = 4 * (16 * 16 + 16) + 16 * 4 + 4
    assert graph.existing_gradient_bytes == 4 * parameters
    assert graph.extra_resident_bytes == 8 * parameters + 4 * 10
    arguments = ["solve", str(graph_file), "--budget", "max", "-o", str(plan_file)]
    assert main([*arguments, "--time-limit", "1", "-q"]) in (0, 4)
    assert "existing ones are added to" in capsys.readouterr().out
    arguments = ["replay", source, str(plan_file), "--json", "-q", "--steps", "2"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["measured_peak_bytes"] == document["predicted_peak_bytes"]
    for name, words in (("lbfgs", "give extra_resident_bytes"), ("adamm", "use one of ada")):
        assert main(["capture", source, "-o", str(graph_file), "--optimizer", name]) == 2
        assert words in capsys.readouterr().err


def test_replay_trains_and_verifies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Losses fall, every bit is that of the plain step, and peaks are told beside the budget."""
    arguments = ["replay", f"{folder}/steps.py:make_step", str(folder / "step.plan.json")]
    assert main([*arguments, "--steps", "8", "--lr", "0.01", "--verify", "--json"]) == 0
    out, _ = capsys.readouterr()
    document = json.loads(out)
    plan = read_plan(folder / "step.plan.json")
    assert document["verified"] is True
    assert document["first_difference"] is None
    assert len(document["losses"]) == document["steps"] == 8
    assert document["losses"][-1] < document["losses"][0]
    assert document["predicted_peak_bytes"] == plan.peak_bytes
    assert document["measured_peak_bytes"] < document["plain_peak_bytes"]
    assert document["seconds"] > 0
    assert document["plain_seconds"] > 0


def test_replay_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured and predicted peak, budget, first and last loss, step times."""
    arguments = ["replay", f"{folder}/steps.py:make_step", str(folder / "step.plan.json")]
    assert main([*arguments, "--steps", "1", "--times", "roofline", "-q"]) == 0
    out = capsys.readouterr().out
    for words in ("measured peak", "predicted peak", "budget", "1 steps", "plain", "loss"):
        assert words in out


def test_replay_fails_if_a_bit_differs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A difference is exit code 1, and the first one is named."""
    from lowtide.runtime.parity import verify as module

    whole = module.verify

    def different(*arguments: object, **options: object) -> Verification:
        found = whole(*arguments, **options)  # type: ignore[arg-type]
        item = module.Item(0, "gradient", "0.weight", "largest difference 1e-07")
        return module.Verification((item, *found.items), -1, -1, 0, 0.0, 0.0)

    monkeypatch.setattr(module, "verify", different)
    arguments = ["replay", f"{folder}/steps.py:make_step", str(folder / "step.plan.json"), "-q"]
    assert main([*arguments, "--steps", "1", "--times", "roofline", "--verify"]) == 1
    assert "gradient 0.weight: largest difference" in capsys.readouterr().err


def test_replay_refuses_a_plan_of_another_step(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hash of the captured step must be the plan's."""
    arguments = ["replay", f"{folder}/steps.py:other", str(folder / "step.plan.json"), "-q"]
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "another graph" in line


def test_replay_warns_if_measured_workspaces_break_the_plan(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan made without workspaces still runs, and its user is told to measure."""

    def larger(captured: Captured, **_: object) -> Captured:
        return captured.with_costs(workspace=[10**7] * len(captured.graph.ops))

    monkeypatch.setattr("lowtide.frontends.torch.costs.profile.profile", larger)
    arguments = ["replay", f"{folder}/steps.py:make_step", str(folder / "step.plan.json")]
    assert main([*arguments, "--steps", "1"]) == 0
    assert "with measured workspaces the plan needs" in capsys.readouterr().err


def test_replay_warns_above_the_budget(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A measured peak above the budget is told, with both numbers."""
    measured = Measured((1.0, float("nan")), 20 * 2**20, None, 0.5, None)
    monkeypatch.setattr("lowtide.commands.training.train", lambda *_, **__: measured)
    arguments = ["replay", f"{folder}/steps.py:make_step", str(folder / "step.plan.json")]
    assert main([*arguments, "--times", "roofline", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "measured peak of 20.00 MiB (20,971,520 B, " in err
    assert "above the budget of 9.54 MiB (10,000,000 B, " in err
    document = json.loads(out)
    assert document["losses"] == [1.0, None]
    assert document["plain_peak_bytes"] is None


def test_out_of_memory_is_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device that is too small is told as such, with the step and what to do."""

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")

    monkeypatch.setattr("lowtide.commands.training.measure_peak", full)
    arguments = ["replay", f"{folder}/steps.py:make_step", str(folder / "step.plan.json"), "-q"]
    assert main([*arguments, "--times", "roofline"]) == 1
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if line != "loading data"]  # what the user's function says
    assert "out of memory in training step 1" in line


def test_loss_is_found_in_what_models_return() -> None:
    """A scalar, the mean of a tensor, `loss` of a dict or object, the first of a tuple."""
    loss = torch.ones((), requires_grad=True)
    wide = torch.ones(4, requires_grad=True)
    assert loss_of(loss) is loss
    assert loss_of(wide).item() == 1.0
    assert loss_of({"loss": loss, "logits": wide}) is loss
    assert loss_of(SimpleNamespace(loss=loss)) is loss
    assert loss_of((loss, wide)) is loss
    for nothing in (3, {"logits": wide}, (), torch.ones(()), SimpleNamespace(loss=None)):
        with pytest.raises(InputError, match="returns no loss"):
            loss_of(nothing)
