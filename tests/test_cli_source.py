"""The user's function: found by module or file, and every way in which it can be wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from lowtide.__main__ import main
from lowtide.commands.source import load_step, on_device
from lowtide.solver.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEAD = "import torch\nfrom torch import nn\n"
GOOD = HEAD + "def make_step():\n    return nn.Linear(2, 2), (torch.ones(1, 2),)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current folder; modules that a test imports are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if str(tmp_path) in file:
            del sys.modules[name]


def test_module_in_the_current_folder(folder: Path) -> None:
    """`train:make_step` finds train.py beside the user."""
    (folder / "train.py").write_text(GOOD)
    step = load_step("train:make_step")
    assert isinstance(step.model, nn.Linear)
    assert step.loss_fn is None


def test_module_in_a_package(folder: Path) -> None:
    """`pkg.train:make_step` works without `__init__.py` too."""
    (folder / "pkg").mkdir()
    (folder / "pkg" / "train.py").write_text(GOOD)
    assert isinstance(load_step("pkg.train:make_step").batch, tuple)


def test_file_by_path_imports_its_neighbours(folder: Path) -> None:
    """A file given by path can import what lies beside it, as a script can."""
    (folder / "src").mkdir()
    (folder / "src" / "neighbour.py").write_text("SIZE = 3\n")
    (folder / "src" / "my-train.py").write_text(
        HEAD + "from neighbour import SIZE\n"
        "def make_step():\n    return nn.Linear(SIZE, 1), {'input': torch.ones(1, SIZE)}\n"
    )
    step = load_step("src/my-train.py:make_step")
    assert isinstance(step.model, nn.Linear)
    assert step.model.in_features == 3
    assert set(step.batch) == {"input"}


def test_static_method_and_loss(folder: Path) -> None:
    """A dotted name reaches into a class; the third value is the loss."""
    (folder / "train.py").write_text(
        HEAD + "class Steps:\n    @staticmethod\n    def small():\n"
        "        return [nn.Linear(2, 2), [torch.ones(1, 2)], lambda out: out.sum()]\n"
    )
    step = load_step("train:Steps.small")
    assert isinstance(step.batch, tuple)
    assert step.loss_fn is not None
    assert float(step.loss_fn(torch.ones(2))) == 2.0


@pytest.mark.parametrize(
    ("source", "text", "words"),
    [
        ("make_step", GOOD, ["names no function", "PKG.MOD:FUNC"]),
        ("train:", GOOD, ["names no function"]),
        ("trian:make_step", GOOD, ["no module named trian", "did you mean train"]),
        ("trian.py:make_step", GOOD, ["no file trian.py", "did you mean train.py"]),
        ("nowhere.mod:f", GOOD, ["no module named nowhere"]),
        ("train:make_stp", GOOD, ["no function 'make_stp'", "did you mean make_step"]),
        ("train:zzz", GOOD, ["it has make_step"]),
        ("train:zzz", "", ["it defines none"]),
        ("train:SIZE", "SIZE = 3\n", ["SIZE in train is an int, not a function"]),
        ("train:f", "def f(size):\n    pass\n", ["must take no arguments", "size"]),
        ("train:f", "def f(:\n", ["importing train failed", "SyntaxError", "train.py:1"]),
        ("train:f", "import not_there\n", ["ModuleNotFoundError", "not_there", "train.py:1"]),
        ("train:f", "import sys\nsys.exit(3)\n", ["ended the program", "__main__"]),
        ("train.py:f", "1 / 0\n", ["ZeroDivisionError", "train.py:1"]),
        (
            "train:f",
            "def f():\n    raise ValueError('no data\\nsecond line')\n",
            ["f() of train failed: ValueError: no data at", "train.py:2"],
        ),
        (
            "train:f",
            "class Odd(Exception):\n    def __str__(self):\n        raise ValueError\n"
            "def f():\n    raise Odd\n",
            ["f() of train failed: Odd: its message cannot be shown", "train.py:5"],
        ),
        (
            "train:f",
            "class Odd(BaseException):\n    pass\ndef f():\n    raise Odd('no data')\n",
            ["f() of train failed: Odd: no data", "train.py:4"],
        ),
        ("train.py:f", "raise BaseException('x')\n", ["failed: BaseException: x", "train.py:1"]),
        ("train:f", "raise BaseException('x')\n", ["failed: BaseException: x", "train.py:1"]),
        ("train:f", "async def f():\n    return 1, 2\n", ["f() of train is asynchronous"]),
        (".:f", GOOD, ["'.' in '.:f' is neither a module", "../train.py"]),
        ("..train:f", GOOD, ["'..train' in '..train:f' is neither a module"]),
        ("train:f", "def f():\n    return 3\n", ["returned an int", "(model, batch, loss_fn)"]),
        ("train:f", "def f():\n    return 1, 2, 3, 4\n", ["a tuple of 4"]),
        ("train:f", "def f():\n    return 1, 2\n", ["an int as the model", "torch.nn.Module"]),
        ("train:f", HEAD + "def f():\n    return nn.Linear(1, 1), 2\n", ["an int as the batch"]),
        (
            "train:f",
            HEAD + "def f():\n    return nn.Linear(1, 1), torch.ones(1, 1), 2\n",
            ["an int as loss_fn"],
        ),
    ],
)
def test_every_mistake_is_one_line(
    source: str, text: str, words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line that says what is wrong, where, and what to do."""
    (folder / "train.py").write_text(text)
    assert main(["capture", source, "-o", "step.graph.json", "-q"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    for word in words:
        assert word in line
    assert not (folder / "step.graph.json").exists()


def test_debugging_shows_the_users_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """LOWTIDE_DEBUG=1 prints where the user's function failed."""
    (folder / "train.py").write_text("def f():\n    return 1 / 0\n")
    monkeypatch.setenv("LOWTIDE_DEBUG", "1")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_step("train:f")
    assert "return 1 / 0" in capsys.readouterr().err


def test_devices(folder: Path) -> None:
    """The CPU works, unknown and absent devices are told, meta models stay where they are."""
    (folder / "train.py").write_text(GOOD)
    step = load_step("train:make_step")
    assert on_device(step, None) is step
    assert on_device(step, "cpu").model is step.model
    for name in ("cpuu", "meta", "cuda:99"):
        with pytest.raises(InputError, match=name):
            on_device(step, name)
    (folder / "big.py").write_text(
        HEAD + "def f():\n    with torch.device('meta'):\n"
        "        return nn.Linear(2, 2), (torch.ones(1, 2),)\n"
    )
    big = load_step("big:f")
    assert on_device(big, "cuda") is big
