"""What a step changes outside of its modules: numbers that it counts, tensors that it keeps."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from ....solver.errors import CaptureError
from .alike import same_literal
from .iterators import is_iterator, moved, position_of
from .memos import clear_traced
from .moving import is_generator, is_traced, put_back, state_of
from .places import Place
from .reads import Reads
from .search import Search, places_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from .search import Found


def numbers_of(modules: Mapping[str, nn.Module], loss_fn: Any, reads: Reads) -> dict[str, Any]:
    """What would be compared now, by its label."""
    return {place.label: place.plain for place in places_of(modules, loss_fn, {}, reads)}


def changed_numbers(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    """Labels of numbers that are others after the step has run: it changes them itself."""
    return frozenset(
        label
        for label in before.keys() | after.keys()
        if label not in before
        or label not in after
        or not same_literal(before[label], after[label])
    )


class Leftovers:
    """What running a step leaves outside of its modules, beside numbers.

    Parameters
    ----------
    modules, loss_fn
        The step's.
    """

    def __init__(self, modules: Mapping[str, nn.Module], loss_fn: Any) -> None:
        self.modules = modules
        self.loss_fn = loss_fn
        self._states: dict[int, tuple[Found, bytes]] = {}
        self._positions: dict[int, tuple[Found, Any]] = {}

    def note(self, reads: Reads) -> list[Found]:
        """Note where generators and iterators are that were not met before; returns all of them."""
        search = Search(self.modules, {}, reads)
        for _ in search.run(self.loss_fn):
            pass
        for found in search.moving:
            if is_generator(found.item):
                self._states.setdefault(id(found.item), (found, state_of(found.item)))
            elif is_iterator(found.item) and id(found.item) not in self._positions:
                self._positions[id(found.item)] = found, position_of(found.item)
        return search.moving

    def refuse(self, reads: Reads) -> None:
        """Refuse what the step has left by now; `reads` are the names that its code looks up.

        Raises
        ------
        CaptureError
            If tensors of a trace are in containers, objects or functions, from which they are taken
            out, or if the step asks iterators for their next item.
        """
        moving = self.note(reads)
        kept = self._take_out(moving)
        if kept:
            raise CaptureError(
                f"the step puts a tensor into {kept}, which a replayed step would not "
                "do; return it, or, if it only fills a cache, run the model once before capture"
            )
        memo = clear_traced()
        if memo:
            raise CaptureError(
                f"the step fills the cache of {memo} with a tensor, in whose place a replay would "
                "not notice another; make the tensor a buffer or an attribute of the model"
            )
        for found in moving:
            if is_iterator(found.item) and self._asked(found, reads):
                raise CaptureError(
                    f"the step asks the iterator {found.label} for its next item, which a replayed "
                    "step would not do; give the item as input"
                )

    def _take_out(self, moving: list[Found]) -> str:
        """Take tensors of a trace out of where they are; the name of a place, or nothing."""
        # attributes of modules are looked at by themselves
        traced = [f for f in moving if is_traced(f.item) and f.path is None]
        for found in reversed(traced):  # later entries of a list before earlier ones
            Place(*found[:4]).remove(self.modules)
        return traced[0].label if traced else ""

    def clean(self) -> None:
        """Leave no tensors of a trace, where it was given up before it was asked for them."""
        self._take_out(self.note(Reads()))
        clear_traced()

    def _asked(self, found: Found, reads: Reads) -> bool:
        """Whether the step has asked an iterator; where nothing tells, whether it may have."""
        before, now = self._positions[id(found.item)][1], position_of(found.item)
        if before is None or now is None:
            return found.named and "next" in reads.names
        return moved(before, now)

    def put_back(self) -> str:
        """Set generators to the states that they had; names one that had another, or none."""
        changed = [
            (found, state)
            for found, state in self._states.values()
            if state and state_of(found.item) != state
        ]
        for found, state in changed:
            put_back(found.item, state)
        return changed[0][0].label if changed else ""


@contextlib.contextmanager
def nothing_left(modules: Mapping[str, nn.Module], loss_fn: Any) -> Iterator[Leftovers]:
    """Watch what a step leaves; generators of the user's own have their states afterwards.

    Raises
    ------
    CaptureError
        If the step drew from one.
    """
    left = Leftovers(modules, loss_fn)
    left.note(Reads())
    changed = ""
    try:
        yield left
    except BaseException:
        left.clean()
        raise
    finally:
        changed = left.put_back()
    if changed:
        raise CaptureError(
            f"the step draws from the generator {changed}, which a replayed step would not do; use "
            "PyTorch's default generator, or give what is drawn as input"
        )
