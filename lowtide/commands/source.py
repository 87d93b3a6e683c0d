"""The user's function that makes a training step: `PKG.MOD:FUNC` or `path/to/file.py:FUNC`."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import logging
import os
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..frontends.torch.costs.heap import keep_freed_memory
from ..solver.errors import InputError, a_type, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from torch import nn

    from .terminal import Terminal

SHAPE = "it must return (model, batch) or (model, batch, loss_fn)"


@dataclass(frozen=True)
class Step:
    """What the user's function returned."""

    model: nn.Module
    batch: Any
    loss_fn: Callable[..., Any] | None


def split_source(text: str) -> tuple[str, str]:
    """Module or file, and function; `InputError` if `text` does not name both."""
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise InputError(
            f"{text!r} names no function: write PKG.MOD:FUNC or path/to/file.py:FUNC, "
            "such as train.py:make_step"
        )
    if not _is_file(where) and "" in where.split("."):
        raise InputError(
            f"{where!r} in {text!r} is neither a module such as pkg.train nor a path such as "
            "../train.py"
        )
    return where, name


def _is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where or os.sep in where


def load_step(text: str) -> Step:
    """Import and call the function that `text` names.

    Parameters
    ----------
    text
        `PKG.MOD:FUNC`, found from the current folder and `sys.path`, or `path/to/file.py:FUNC`.

    Raises
    ------
    InputError
        If there is no such module or function, it fails, or it returns something else than
        `(model, batch[, loss_fn])`.
    """
    where, name = split_source(text)
    try:
        here = os.getcwd()
    except OSError:
        raise InputError("the current folder does not exist any more: change to another") from None
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _load_file(Path(where)) if _is_file(where) else _load_module(where)
    function = _find(module, where, name)
    keep_freed_memory()  # this process is ours, and its step times are what users see
    value = _run(function, f"{name}() of {where}")
    return _unpack(value, f"{name}() of {where}")


def on_device(step: Step, device: str | None) -> Step:
    """The step with everything on `device`; None leaves it where it is.

    A model on the `meta` device stays there: capture only has to know where it would be.

    Raises
    ------
    InputError
        If there is no such device here.
    """
    if device is None:
        return step
    import torch
    from torch.utils import _pytree as pytree

    try:
        where = torch.device(device)
    except RuntimeError:
        raise InputError(f"no device {device!r}: use cpu, cuda or cuda:N") from None
    if where.type not in ("cpu", "cuda"):
        raise InputError(f"device {device!r} is not supported: use cpu, cuda or cuda:N")
    if any(tensor.is_meta for tensor in step.model.parameters()):
        return step
    if where.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (where.index or 0) >= count:
            raise InputError(f"no device {device!r} here: PyTorch sees {count} CUDA devices")

    def moved(leaf: Any) -> Any:
        return leaf.to(where) if isinstance(leaf, torch.Tensor) else leaf

    loss_fn = step.loss_fn
    if isinstance(loss_fn, torch.nn.Module):
        loss_fn = loss_fn.to(where)
    return Step(step.model.to(where), pytree.tree_map(moved, step.batch), loss_fn)


@contextlib.contextmanager
def warnings_as_lines(terminal: Terminal) -> Iterator[None]:
    """Say every warning of the user's code and of PyTorch once, in one line, at the end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        yield
    for text in dict.fromkeys(" ".join(str(entry.message).split()) for entry in caught):
        terminal.log(f"warning: {text}")


@contextlib.contextmanager
def notes_as_lines(terminal: Terminal) -> Iterator[None]:
    """Say in a line each what the profile notes on its way."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            terminal.log(record.getMessage())

    logger = logging.getLogger("lowtide.frontends.torch.costs.profile")
    handler, level = Handler(logging.INFO), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(error, f"importing {name}") from None
        here = sorted(path.stem for path in Path.cwd().glob("*.py"))
        close = difflib.get_close_matches(name, here, n=1)
        hint = f"did you mean {close[0]}?" if close else "give its path, such as src/train.py:FUNC"
        raise InputError(
            f"no module named {error.name} in {Path.cwd()} or on sys.path: {hint}"
        ) from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(error, f"importing {name}") from None


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        here = sorted(str(p) for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        close = difflib.get_close_matches(str(path), here, n=1)
        raise InputError(f"no file {path}" + (f": did you mean {close[0]}?" if close else ""))
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python path/to/file.py` has it
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else ""
    name = name or f"_lowtide_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look classes up here
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _failed(error, f"importing {path}") from None
    return module


def _find(module: ModuleType, where: str, name: str) -> Callable[..., Any]:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
        if value is None:
            raise InputError(f"no function {name!r} in {where}: {_suggest(module, name)}")
    if not callable(value):
        raise InputError(f"{name} in {where} is {a_type(type(value))}, not a function")
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise InputError(f"{name}() of {where} must take no arguments: {error}") from None
    except ValueError:
        pass  # no signature to look at: calling it will tell
    result: Callable[..., Any] = value
    return result


def _suggest(module: ModuleType, name: str) -> str:
    own = [
        key
        for key, value in vars(module).items()
        if callable(value)
        and not key.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    ]
    close = difflib.get_close_matches(name, own, n=1)
    if close:
        return f"did you mean {close[0]}?"
    if not own:
        return "it defines none"
    functions = [key for key in own if not inspect.isclass(getattr(module, key))]
    return f"it has {', '.join((functions or own)[:8])}"


def _run(function: Callable[..., Any], what: str) -> Any:
    try:
        return function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(error, what) from None


def _failed(error: BaseException, what: str) -> InputError:
    """One line with the place in the user's code, which is the last one outside this package."""
    if os.environ.get("LOWTIDE_DEBUG") == "1":
        traceback.print_exception(error)
    name = type(error).__name__
    if isinstance(error, SystemExit):
        hint = 'put what runs a training behind if __name__ == "__main__":'
        return InputError(f"{what} ended the program ({name}: {text_of(error)}): {hint}")
    place = ""
    if isinstance(error, SyntaxError):
        place = f" at {error.filename}:{error.lineno}"
    else:
        own = str(Path(__file__).resolve())
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if f.filename != own and not f.filename.startswith("<frozen")
        ]
        ours = [f for f in frames if "site-packages" not in f.filename] or frames
        place = f" at {ours[-1].filename}:{ours[-1].lineno}" if ours else ""
    message = text_of(error).strip().splitlines()
    return InputError(f"{what} failed: {name}: {message[0] if message else ''}{place}")


def _unpack(value: Any, what: str) -> Step:
    from torch import Tensor, nn

    if inspect.iscoroutine(value):
        value.close()  # nobody will wait for it
        raise InputError(f"{what} is asynchronous, and must be a plain function: {SHAPE}")
    if not isinstance(value, (tuple, list)) or len(value) not in (2, 3):
        size = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
        raise InputError(f"{what} returned {a_type(type(value))}{size}: {SHAPE}")
    model, batch = value[0], value[1]
    loss_fn = value[2] if len(value) == 3 else None
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{what} returned {a_type(type(model))} as the model, which must be a "
            f"torch.nn.Module: {SHAPE}"
        )
    if isinstance(batch, list):
        batch = tuple(batch)
    # Mappings such as the output of a tokenizer are taken for the dict that they mean.
    if not isinstance(batch, (tuple, dict, Tensor)) and hasattr(batch, "keys"):
        batch = dict(batch)
    if not isinstance(batch, (tuple, dict, Tensor)):
        raise InputError(
            f"{what} returned {a_type(type(batch))} as the batch, which must be a tuple of "
            "arguments, a dict of keyword arguments or one tensor"
        )
    if loss_fn is not None and not callable(loss_fn):
        raise InputError(
            f"{what} returned {a_type(type(loss_fn))} as loss_fn, which must be a function"
        )
    return Step(model, batch, loss_fn)
