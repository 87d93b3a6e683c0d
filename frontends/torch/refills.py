"""What a step takes out of lists and dicts of its batch, or puts there: done again in each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from ...solver.errors import CaptureError
from .outside.alike import same_literal
from .outside.holders import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils._pytree import TreeSpec

_WHAT = "the step changes what a list or dict in its batch holds"
_INSTEAD = "have it work on a copy (batch = dict(batch)), and return what is new"


class Taken(NamedTuple):
    """The leaf of the arguments of that number."""

    place: int


class Refill(NamedTuple):
    """What the arguments of a call hold after it: leaves that they held, and constants."""

    spec: TreeSpec
    leaves: tuple[Any, ...]

    def apply(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do to the lists and dicts in the arguments of a call what the step does to them."""
        flat = pytree.tree_leaves((args, kwargs))
        after = [flat[leaf.place] if type(leaf) is Taken else leaf for leaf in self.leaves]
        _fill((args, kwargs), pytree.tree_unflatten(after, self.spec))


def holders_of(arguments: Any) -> dict[tuple[Any, ...], Any]:
    """The lists, dicts and tuples in arguments by their place, before a step changes them."""
    return dict(_holders((), arguments))


def refill_of(
    arguments: Any, holders: dict[tuple[Any, ...], Any], flat: list[Any], spec: TreeSpec
) -> Refill | None:
    """What a step has done to its arguments, None for nothing.

    Parameters
    ----------
    arguments
        Arguments and keywords after the step.
    holders
        `holders_of` them before.
    flat, spec
        Leaves and structure before.

    Raises
    ------
    CaptureError
        If they hold something now that a later call could not put there, such as tensors that the
        step computes.
    """
    leaves, now = pytree.tree_flatten(arguments)
    if now == spec and all(_same(a, b) for a, b in zip(leaves, flat, strict=True)):
        return None
    place = {id(leaf): index for index, leaf in enumerate(flat)}
    after = []
    for leaf in leaves:
        if id(leaf) in place:
            after.append(Taken(place[id(leaf)]))
        elif is_plain(leaf):
            after.append(leaf)
        else:
            raise CaptureError(
                f"{_WHAT}, which a replayed step would not do for the caller; {_INSTEAD}"
            )
    found = Refill(now, tuple(after))
    trial: Any = pytree.tree_unflatten(flat, spec)
    found.apply(*trial)
    if _moved(holders, holders_of(arguments)) or pytree.tree_structure(trial) != now:
        raise CaptureError(f"{_WHAT}, in more than its entries; {_INSTEAD}")
    return found


def with_own_holders(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same arguments in lists and dicts of their own, so that a step can be run again."""
    if not any(_is_holder(item) for item in (*args, *kwargs.values())):
        return args, kwargs
    found: tuple[tuple[Any, ...], dict[str, Any]]
    found = pytree.tree_map(lambda leaf: leaf, (args, kwargs))
    return found


def same_refill(a: Refill | None, b: Refill | None) -> bool:
    """Whether two runs of a step did the same to its arguments."""
    if a is None or b is None:
        return a is b
    same = a.spec == b.spec and len(a.leaves) == len(b.leaves)
    return same and all(map(same_literal, a.leaves, b.leaves))


def refuse_changing() -> CaptureError:
    """For a step whose runs leave different things in the arguments: counts, or times."""
    return CaptureError(f"{_WHAT} to something else in each run; {_INSTEAD}")


def _same(now: Any, before: Any) -> bool:
    if isinstance(now, torch.Tensor) or not is_plain(now):
        return now is before
    return same_literal(now, before)


def _holders(place: tuple[Any, ...], item: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(item, dict):
        yield place, item
        for key, inner in item.items():
            yield from _holders((*place, key), inner)
    elif isinstance(item, (list, tuple)):
        yield place, item
        for index, inner in enumerate(item):
            yield from _holders((*place, index), inner)


def _moved(before: dict[tuple[Any, ...], Any], after: dict[tuple[Any, ...], Any]) -> bool:
    """Whether a list, dict or tuple is in another place, or in the place of another, than before.

    The outermost two are made anew for each call.
    """
    places = {id(item): place for place, item in before.items()}
    return any(
        places.get(id(item), place) != place or before.get(place, item) is not item
        for place, item in after.items()
        if len(place) > 1
    )


def _fill(old: Any, new: Any) -> None:
    """Put into lists and dicts below `old` what those below `new` hold."""
    if isinstance(old, dict):
        for key in [key for key in old if key not in new]:
            del old[key]
        for key, item in new.items():
            if key in old and _is_holder(old[key]) and _is_holder(item):
                _fill(old[key], item)
            else:
                old[key] = item
        if list(old) != list(new):  # what was taken out and put back is the last
            items = [(key, old[key]) for key in new]
            old.clear()
            old.update(items)
    elif isinstance(old, list):
        kept = old[: len(new)]
        old[:] = new
        for index, (was, item) in enumerate(zip(kept, new, strict=False)):
            if _is_holder(was) and _is_holder(item):
                _fill(was, item)
                old[index] = was
    elif isinstance(old, tuple):
        for was, item in zip(old, new, strict=False):
            if _is_holder(was) and _is_holder(item):
                _fill(was, item)


def _is_holder(item: Any) -> bool:
    return isinstance(item, (dict, list, tuple))
