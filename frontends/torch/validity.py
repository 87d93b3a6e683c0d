"""Questions of PyTorch's own code whether arguments are valid: a check that raises, and no branch.

`torch.distributions` asks in each step whether parameters and samples satisfy their constraints,
and raises if not. A step that goes on has had the same answer, so a trace follows it, with an
operator that raises where plain PyTorch would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_library: Any = torch.library
_LIBRARY = _library.Library("lowtide", "FRAGMENT")
_LIBRARY.define("require(Tensor holds, bool wanted, str message) -> ()")
_QUESTIONS = ("__bool__", "is_nonzero", "item")
# functions in `torch.distributions` that ask; `check` is one of a constraint
_ASKERS = {"__init__", "_mvdigamma", "_validate_sample", "check"}


def _require(holds: torch.Tensor, wanted: bool, message: str) -> None:
    """Raise, as PyTorch's own code does, unless a tensor of one element is what is wanted."""
    if holds.device.type != "cpu":
        torch._assert_async(holds.bool() == wanted, message)  # nobody waits for the device
    elif bool(holds) != wanted:
        raise ValueError(message)


_LIBRARY.impl("require", _require, "CompositeExplicitAutograd")
_LIBRARY.impl("require", lambda holds, wanted, message: None, "Meta")
REQUIRE: Any = torch.ops.lowtide.require.default


def answer(
    name: str, args: tuple[Any, ...], asker: FrameType | None, origin: Callable[[], str]
) -> Any:
    """The answer to a question about validity, and the check that goes with it; None for
    others.

    Parameters
    ----------
    name, args
        The function that asks for a value, and its arguments.
    asker
        The frame that it is called from.
    origin
        Gives the user's line, for what is raised.
    """
    if asker is None or name not in _QUESTIONS or not isinstance(args[0], torch.Tensor):
        return None
    module = str(asker.f_globals.get("__name__", ""))
    if not module.startswith("torch.distributions.") or asker.f_code.co_name not in _ASKERS:
        return None
    REQUIRE(args[0], True, f"{origin()}: {_subject(asker)} found invalid values")
    return True


def _subject(asker: FrameType) -> str:
    """What finds invalid values."""
    owner = asker.f_locals.get("self")
    return asker.f_code.co_name if owner is None else type(owner).__name__
