"""`lowtide solve` and `lowtide check`: products, files and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from lowtide.__main__ import main
from lowtide.commands.summary import plan_rows
from lowtide.frontends.chains import linear_chain, transformer
from lowtide.report.scale import Scale
from lowtide.solver.assemble import BASE_ORDER_CLASS
from lowtide.solver.calibration import Calibration
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.files import read_plan, write_graph, write_plan
from lowtide.solver.plan import Plan, Status, Stop
from tests.plans import plan_of, recomputing

if TYPE_CHECKING:
    from pathlib import Path

    from lowtide.solver.progress import Progress

GRAPH = linear_chain(8)


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """A chain as a file."""
    path = tmp_path / "step.graph.json"
    write_graph(GRAPH, path)
    return path


def stand_in(monkeypatch: pytest.MonkeyPatch, outcome: Plan | Exception) -> list[dict[str, Any]]:
    """Replace the solver by one that returns or raises `outcome`; the calls it got."""
    calls: list[dict[str, Any]] = []

    def solve(graph: object, budget: int, **options: Any) -> Plan:
        calls.append({"budget": budget, **options})
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr("lowtide.solver.solve.solve", solve)
    return calls


def test_solve_writes_a_plan_that_check_accepts(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan goes to the file, a table with bytes, GiB and percent to stdout, nothing else."""
    plan_file = tmp_path / "step.plan.json.gz"
    code = main(["solve", str(graph_file), "-b", "75%", "-m", "sqrt-n", "-o", str(plan_file), "-q"])
    assert code == 0
    out, err = capsys.readouterr()
    assert err == ""
    plan = read_plan(plan_file)
    assert plan.method == "sqrt_n"
    assert f"({plan.budget_bytes:,} B, 75.0%)" in out
    assert f"({plan.peak_bytes:,} B, " in out
    assert "MiB" in out
    assert main(["check", str(graph_file), str(plan_file)]) == 0
    assert "valid" in capsys.readouterr().out


def test_solve_prints_one_json_document(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json stdout is one document that agrees with the plan; progress is on stderr."""
    plan_file = tmp_path / "step.plan.json"
    arguments = ["solve", str(graph_file), "-b", "max", "-o", str(plan_file), "--json"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    plan = read_plan(plan_file)
    assert document["peak_bytes"] == plan.peak_bytes == document["base_peak_bytes"]
    assert document["overhead"] == 0.0
    assert document["status"] == "optimal"
    assert document["budget_percent"] == 100.0
    assert document["budget_gib"] == pytest.approx(plan.budget_bytes / 2**30, abs=1e-6)
    assert "solving" in err


def test_options_reach_the_solver(
    graph_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Budget in bytes, limits, seed, threads and backend are passed on."""
    calls = stand_in(monkeypatch, plan_of(GRAPH, recomputing(GRAPH)))
    code = main(
        ["solve", str(graph_file), "--budget", "9e6", "-o", str(tmp_path / "p.json"), "-q",
         "--method", "milp", "--time-limit", "7", "--gap", "0.01", "--threads", "2",
         "--seed", "3", "--backend", "cpsat", "--order", "base", "--moves", "9"]
    )  # fmt: skip
    assert code == 0
    assert calls == [
        {"budget": 9_000_000, "method": "milp", "time_limit": 7.0, "gap": 0.01, "threads": 2,
         "seed": 3, "backend": "cpsat", "order": "base", "moves": 9, "progress": None}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stop", "code"), [(Stop.DONE, 0), (Stop.TIME_LIMIT, 4), (Stop.INTERRUPTED, 130)]
)
def test_exit_code_says_why_the_search_ended(
    stop: Stop,
    code: int,
    graph_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At the time limit and on Ctrl-C the best plan is written all the same."""
    plan = plan_of(GRAPH, recomputing(GRAPH), stopped_by=stop)
    stand_in(monkeypatch, plan)
    plan_file = tmp_path / "p.json"
    arguments = ["solve", str(graph_file), "-b", "80%", "-o", str(plan_file)]
    assert main(arguments) == code
    assert msgspec.json.encode(read_plan(plan_file)) == msgspec.json.encode(plan)
    out, err = capsys.readouterr()
    if stop is not Stop.DONE:
        assert stop.value in out
        assert f"the best plan so far is in {plan_file}" in err


def test_infeasible_budget_names_the_smallest_one(
    graph_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 3: the smallest budget in bytes, GiB and percent, and the op that sets it."""
    plan_file = tmp_path / "p.json"
    error = InfeasibleError("no", smallest_bytes=5 * 2**20, limiting_op="conv", proven=True)
    stand_in(monkeypatch, error)
    arguments = ["solve", str(graph_file), "-b", "1MiB", "-o", str(plan_file), "-q"]
    assert main(arguments) == 3
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "5.00 MiB (5,242,880 B, " in line
    assert "set by op conv" in line
    assert "-" not in line.replace("--", "")  # no negative percentage below the resident bytes
    assert line.endswith("--budget 5242880")
    assert main([argument.replace("1MiB", "50") for argument in arguments]) == 3
    assert "50 B: did you mean 50% or 50MB?" in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "infeasible"
    assert document["smallest_bytes"] == 5 * 2**20
    assert document["limiting_op"] == "conv"
    assert not plan_file.exists()


def test_the_class_of_a_weaker_bound_is_told() -> None:
    """A plan in another order may beat the bound of the captured order: then both are named."""
    base = sum(op.time_ns for op in GRAPH.ops)
    plan = msgspec.structs.replace(
        plan_of(GRAPH, recomputing(GRAPH)),
        lower_bound_ns=1,
        bound_class="all schedules",
        base_order_bound_ns=base + base // 10,
        status=Status.FEASIBLE,
    )
    words = "all schedules; in the base order none has less than {} overhead"
    rows = dict(plan_rows(plan, Scale.of(GRAPH)))
    assert rows["bound holds for"] == words.format(f"{(base // 10) / base:.3%}")
    steps = Calibration(((base, 4 * base), (2 * base, 5 * base)))
    rows = dict(plan_rows(msgspec.structs.replace(plan, calibration=steps), Scale.of(GRAPH)))
    assert rows["bound holds for"] == words.format(f"{(base // 10) / (4 * base):.3%}")
    usual = msgspec.structs.replace(plan, bound_class=BASE_ORDER_CLASS, base_order_bound_ns=-1)
    assert "bound holds for" not in dict(plan_rows(usual, Scale.of(GRAPH)))


def test_an_amount_below_the_resident_bytes_has_no_percentage() -> None:
    """Percentages of budgets begin at the resident bytes."""
    scale = replace(Scale.of(GRAPH), resident_bytes=2048, base_peak_bytes=4096)
    assert scale.memory(1024) == "1.00 KiB (1,024 B, less than the 2.00 KiB resident)"
    assert scale.memory(8192).endswith("B, more than the 4.00 KiB without recomputation)")
    assert scale.memory(3072) == "3.00 KiB (3,072 B, 50.0%)"
    assert scale.document("state", 1024) == {
        "state_bytes": 1024, "state_gib": 1e-6, "state_percent": None,
    }  # fmt: skip
    assert scale.document("peak", 3072)["peak_percent"] == 50.0


def test_heuristic_that_cannot_meet_a_budget_is_exit_code_3(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real solver: keeping everything does not fit below 100%, and auto is suggested."""
    plan_file = tmp_path / "p.json"
    arguments = ["solve", str(graph_file), "-b", "60%", "-o", str(plan_file), "-q"]
    assert main([*arguments, "-m", "keep_everything"]) == 3
    assert "--method auto" in capsys.readouterr().err
    assert not plan_file.exists()


def test_nothing_found_in_time_is_exit_code_5(
    graph_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The time limit without any plan: one line, no file."""
    stand_in(monkeypatch, NoPlanError("no schedule within the budget found in 1 s"))
    arguments = ["solve", str(graph_file), "-b", "60%", "-o", str(tmp_path / "p.json"), "-q"]
    assert main(arguments) == 5
    assert "found in 1 s" in capsys.readouterr().err
    assert main([*arguments, "--json"]) == 5
    assert json.loads(capsys.readouterr().out)["status"] == "no plan"
    assert list(tmp_path.iterdir()) == [graph_file]


def test_what_a_solver_prints_does_not_reach_stdout(
    graph_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A backend that prints cannot break the JSON document."""
    plan = plan_of(GRAPH, recomputing(GRAPH))

    def noisy(*_: object, progress: Progress | None, **__: object) -> Plan:
        print("banner of some solver")
        return plan

    monkeypatch.setattr("lowtide.solver.solve.solve", noisy)
    arguments = ["solve", str(graph_file), "-b", "80%", "-o", str(tmp_path / "p.json"), "--json"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert "banner of some solver" in err


def test_check_reports_the_first_violation(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 and the violation in one line; with --json also a document."""
    plan_file = tmp_path / "wrong.plan.json"
    right = plan_of(GRAPH, recomputing(GRAPH))
    write_plan(msgspec.structs.replace(right, peak_bytes=right.peak_bytes - 1), plan_file)
    assert main(["check", str(graph_file), str(plan_file)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "the plan claims a peak of" in err
    assert len(err.splitlines()) == 1
    assert main(["check", str(graph_file), str(plan_file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["valid"] is False
    assert "the plan claims a peak of" in document["violation"]


def test_check_of_a_step_measured_again(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other op times are said to be just that; the exit code stays 1."""
    plan_file = tmp_path / "earlier.plan.json"
    earlier = msgspec.structs.replace(
        GRAPH, ops=tuple(msgspec.structs.replace(op, time_ns=3 * op.time_ns) for op in GRAPH.ops)
    )
    write_plan(plan_of(earlier, recomputing(earlier)), plan_file)
    assert main(["check", str(graph_file), str(plan_file)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "measured again" in line
    assert "schedule, peak and budget are right" in line
    assert "not a valid plan" not in line


def test_check_refuses_a_plan_of_another_graph(
    graph_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hash tells plans of different graphs apart."""
    other = linear_chain(9)
    plan_file = tmp_path / "other.plan.json"
    write_plan(plan_of(other, recomputing(other)), plan_file)
    assert main(["check", str(graph_file), str(plan_file)]) == 1
    assert "another graph" in capsys.readouterr().err


def test_plan_can_go_to_a_device(graph_file: Path) -> None:
    """Writing to /dev/null leaves it the device that it is."""
    assert main(["solve", str(graph_file), "-b", "max", "-o", os.devnull, "-q"]) == 0
    assert not os.path.isfile(os.devnull)


def test_plan_goes_through_a_link(graph_file: Path, tmp_path: Path) -> None:
    """An output that is a link stays one; the file it points to is replaced."""
    target, link = tmp_path / "real.plan.json", tmp_path / "link.plan.json"
    target.write_text("old")
    link.symlink_to(target)
    assert main(["solve", str(graph_file), "-b", "max", "-o", str(link), "-q"]) == 0
    assert link.is_symlink()
    assert read_plan(target).method == "auto"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_signals_write_the_best_plan(tmp_path: Path, sent: signal.Signals) -> None:
    """Ctrl-C, or what a batch system sends, in a real solve: exit code 130, and a valid plan."""
    graph_file, plan_file = tmp_path / "gpt.graph.json", tmp_path / "gpt.plan.json"
    write_graph(transformer(12), graph_file)
    process = subprocess.Popen(
        [sys.executable, "-m", "lowtide", "solve", str(graph_file), "-b", "60%",
         "-o", str(plan_file), "--time-limit", "300", "--gap", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if " s  overhead" in line:
            break
    process.send_signal(sent)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, "".join(seen) + err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert read_plan(plan_file).stopped_by is Stop.INTERRUPTED
    assert "feasible (interrupted)" in out
    assert main(["check", str(graph_file), str(plan_file), "-q"]) == 0
