"""The command line as a whole: help, versions, one line an error, exit codes, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from lowtide.__main__ import main
from lowtide.frontends.chains import linear_chain
from lowtide.solver.files import write_graph
from lowtide.solver.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = ("capture", "solve", "compare", "check", "replay", "report", "env")


@pytest.fixture
def graph_file(tmp_path: Path) -> Path:
    """A small graph as a file."""
    path = tmp_path / "step.graph.json"
    write_graph(linear_chain(6), path)
    return path


def only_error(capsys: pytest.CaptureFixture[str]) -> str:
    """The single line on stderr, with nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("lowtide: error: ")
    return line


def test_help_starts_with_the_two_commands_most_people_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The help shows capture and solve before it lists the commands in order of use."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.index("lowtide capture train.py:make_step") < text.index("lowtide solve")
    listed = text[text.index("Commands") :]
    places = [listed.index(f" {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert "130 interrupted" in " ".join(text.split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`lowtide NAME --help` describes the command and its options."""
    assert main([name, "--help"]) == 0
    assert f"lowtide {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["solve", "compare", "check", "capture", "replay", "env"])
def test_reporting_commands_speak_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that prints a table can print a document instead."""
    main([name, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["-V", "--version"])
def test_version(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The version goes to stdout."""
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"lowtide {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slove"], ["No such command", "slove", "solve"]),
        (["solve", "a", "--bugdet", "1"], ["--bugdet"]),
        (["solve"], ["Missing argument", "GRAPH", "lowtide solve --help"]),
        (["solve", "{graph}", "-b", "50%"], ["Missing option", "--output"]),
        (["solve", "{graph}", "-b", "many", "-o", "{out}"], ["'many'", "6GiB"]),
        (["solve", "{graph}", "-b", "-3", "-o", "{out}"], ["'-3'"]),
        (["solve", "{graph}", "-b", "5 GX", "-o", "{out}"], ["unit", "gx"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{out}", "-m", "sqrtn"], ["sqrt_n"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{out}", "-m", "greedy,log_n"], ["compare"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{out}", "--threads", "0"], ["--threads"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{out}", "--time-limit", "inf"], ["finite"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{out}", "--backend", "gurobi"], ["highs"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{missing}/p.json"], ["missing", "No such file"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{folder}"], ["is a folder"]),
        (["solve", "{graph}", "-b", "50%", "-o", "{graph}"], ["is the input"]),
        (["solve", "{graph}", "-b", "50%", "-o", "-"], ["name a file"]),
        (["solve", "{missing}", "-b", "50%", "-o", "{out}"], ["cannot read", "missing"]),
        (["check", "{graph}", "{graph}"], ["lowtide.graph", "expected lowtide.plan"]),
        (["report", "{graph}", "{graph}", "-o", "{out}"], [".html"]),
        (["compare", "{graph}", "-b", "50%", "--plot", "{folder}/c.bmp"], [".svg"]),
        (["compare", "{graph}", "-b", ","], ["at least one"]),
        (["compare", "{graph}", "-b", "50%", "-m", "gready"], ["greedy"]),
        (["capture", "train", "-o", "{out}"], ["PKG.MOD:FUNC"]),
        (["replay", "train:f", "{graph}"], ["expected lowtide.plan"]),
        (["replay", "train:f", "{graph}", "--steps", "0"], ["--steps"]),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(
    arguments: list[str],
    words: list[str],
    graph_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A wrong command line says what is wrong in one line, before any work."""
    places = {
        "graph": graph_file,
        "out": tmp_path / "out.json",
        "folder": tmp_path,
        "missing": tmp_path / "missing",
    }
    before = graph_file.read_bytes()
    assert main([part.format_map(places) for part in arguments]) == 2
    line = only_error(capsys)
    for word in words:
        assert word in line
    assert graph_file.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [graph_file]


def test_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no JSON is refused with its name."""
    path = tmp_path / "broken.graph.json"
    path.write_text("{")
    assert main(["solve", str(path), "-b", "50%", "-o", str(tmp_path / "p.json"), "-q"]) == 2
    assert "broken.graph.json is not a lowtide.graph file" in only_error(capsys)


def test_unexpected_error_is_one_line(
    monkeypatch: pytest.MonkeyPatch, graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug is reported in one line with its place; LOWTIDE_DEBUG=1 lets it through."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("first\nsecond")

    monkeypatch.delenv("LOWTIDE_DEBUG", raising=False)
    monkeypatch.setattr("lowtide.solver.files.read_graph", broken)
    arguments = ["check", str(graph_file), str(graph_file)]
    assert main(arguments) == 1
    line = only_error(capsys)
    assert "unexpected ZeroDivisionError: first second" in line
    assert "test_cli_usage.py" in line
    monkeypatch.setenv("LOWTIDE_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(arguments)


def test_ctrl_c_anywhere_is_exit_code_130(
    monkeypatch: pytest.MonkeyPatch, graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C in a command that has nothing to save ends it without a traceback."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("lowtide.solver.files.read_graph", interrupted)
    assert main(["check", str(graph_file), str(graph_file)]) == 130
    assert capsys.readouterr().err == "lowtide: interrupted\n"


def test_ctrl_c_behind_another_error_is_still_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, graph_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While an extension module is imported it comes out as an `ImportError`."""

    def importing(*_: object, **__: object) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.delenv("LOWTIDE_DEBUG", raising=False)
    monkeypatch.setattr("lowtide.solver.files.read_graph", importing)
    assert main(["check", str(graph_file), str(graph_file)]) == 130
    assert capsys.readouterr().err == "lowtide: interrupted\n"


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
def test_ctrl_c_while_a_string_is_evaluated_is_exit_code_130(tmp_path: Path) -> None:
    """Python would end by the signal then, and batch systems see no code."""
    (tmp_path / "train.py").write_text("exec('raise KeyboardInterrupt')\n")
    done = subprocess.run(
        [sys.executable, "-m", "lowtide", "capture", f"{tmp_path}/train.py:f", "-q",
         "-o", f"{tmp_path}/step.graph.json"],
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == "lowtide: interrupted\n"
    assert done.returncode == 130


def test_env_lists_versions(capsys: pytest.CaptureFixture[str]) -> None:
    """`lowtide env --json` is one document with the versions of what plans depend on."""
    assert main(["env", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["versions"]["lowtide"] == __version__
    assert {"torch", "highspy", "ortools", "pulp"} <= set(document["versions"])
    assert document["cpus"] >= 1
    assert main(["env"]) == 0
    assert "highspy" in capsys.readouterr().out


def test_program_runs_as_a_module_and_ends_quietly_when_nobody_reads(graph_file: Path) -> None:
    """`python -m lowtide` works, and a closed pipe is no error and prints nothing."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lowtide", "compare", str(graph_file), "-b", "max", "-q",
             "-m", "keep_everything"],
            stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_full_disk_under_stdout_is_one_line() -> None:
    """A product that cannot be written is an error, in one line."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lowtide", "--version"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "No space left" in line


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize(
    ("streams", "code", "words"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">&- 2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        (">/dev/full", 1, "lowtide: error: cannot write to stdout: No space left on device"),
    ],
)
def test_streams_that_take_nothing(
    streams: str, code: int, words: str, graph_file: Path, tmp_path: Path
) -> None:
    """Work is done where nobody can be told; news never end up in the product."""
    plan = tmp_path / "step.plan.json"
    command = [
        sys.executable, "-m", "lowtide", "solve", str(graph_file), "-b", "max",
        "-m", "keep_everything", "-o", str(plan), "--json",
    ]  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", f'"$@" {streams}', "sh", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert plan.exists()
    assert words in done.stderr
    assert "unexpected" not in done.stderr
    if done.stdout:
        assert json.loads(done.stdout)["plan"] == str(plan)


def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and not the program's own error."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["capture", "/x/train.py:f", "-o", str(tmp_path / "step.json"), "-q"]) == 2
    assert "the current folder does not exist any more" in only_error(capsys)


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Bare `lowtide` shows its help page on stdout, line by line."""
    assert main([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: lowtide")
    assert len(out.splitlines()) > 15
