"""How the arguments of a call differ from those that were captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from ...frontends.torch.autocasts import casts_are_kept
from ...frontends.torch.interface import LiteralGuard, TensorGuard
from ...frontends.torch.outside.alike import same_literal, same_strides
from ...frontends.torch.outside.arrays import Numbers
from ...frontends.torch.questions import first_changed
from ...frontends.torch.sources import INFERENCE, NO_INFERENCE
from ..step.flatten import children, describe_structure, leaf_names
from .difference import ADVICE, Difference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...frontends.torch.interface import InputSpec
    from ...frontends.torch.program import Program


def argument_differences(
    program: Program, args: tuple[Any, ...], kwargs: dict[str, Any], exact: bool
) -> Iterator[Difference]:
    """First differences: in structure, leaves, which are one tensor, answers to questions."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    names = leaf_names(program.in_spec)
    if spec != program.in_spec:
        sample = pytree.tree_unflatten(names, program.in_spec)
        extra = [key for key in kwargs if key not in sample[1]]
        missing = [key for key in sample[1] if key not in kwargs]
        if len(args) != len(sample[0]):
            what = f"{len(args)} positional arguments; the plan was made for {len(sample[0])}"
        elif extra or missing:
            what = " and ".join(
                [f"no argument {key!r}" for key in missing]
                + [f"the unplanned argument {key!r}" for key in extra]
            )
        else:
            given, wanted = (
                " and ".join(describe_structure(part) for part in children(tree))
                for tree in (spec, program.in_spec)
            )
            what = f"arguments of structure {given}; the plan was made for {wanted}"
        yield Difference(f"the call has {what}", ADVICE, False)
        return
    same = True
    for name, leaf, guard in zip(names, flat, program.guards, strict=True):
        found = _leaf_difference(leaf, guard, exact)
        if found is not None:
            same = False
            yield Difference(
                f"{name} {found}", NO_INFERENCE if found == INFERENCE else ADVICE, False
            )
    for place, guard in enumerate(program.guards):
        if same and isinstance(guard, TensorGuard):
            before = next(i for i in range(place + 1) if flat[i] is flat[place])
            then = guard.same_as
            if (then >= 0 and before != then) or (
                then < 0 and guard.requires_grad and before < place
            ):
                same = False
                yield Difference(_apart(names, place, before, then), ADVICE, False)
    for item in program.inputs if same else ():
        words = cast_difference(item, flat[item.position]) if item.kind == "input" else ""
        if words:
            same = False
            yield Difference(f"{names[item.position]} {words}", ADVICE, False)
    changed = first_changed(program.questions, flat) if same else ()
    if changed:
        question, answer = changed
        what = (
            f"{question.origin}: the step asks about the batch here ({question.name}) and takes a "
            f"branch; the answer is {answer} and was {question.answer} when captured"
        )
        yield Difference(what, ADVICE, False)


def _apart(names: Sequence[str], place: int, now: int, then: int) -> str:
    """What is said of an argument that is one tensor with another now, or was then."""
    if then < 0:
        return (
            f"{names[place]} is the same tensor as {names[now]}; "
            "the plan was made for tensors of their own"
        )
    return (
        f"{names[place]} is another tensor than {names[then]}; "
        "the plan was made for the same one in both places"
    )


def _leaf_difference(leaf: Any, guard: TensorGuard | LiteralGuard, exact: bool) -> str | None:
    if isinstance(guard, LiteralGuard):
        if same_literal(leaf, guard.value):
            return None
        if isinstance(guard.value, Numbers):
            return f"is {guard.value.difference(leaf)} when captured"
        shown = "a tensor" if isinstance(leaf, torch.Tensor) else repr(leaf)
        return f"is {shown}; the plan was made for the value {guard.value!r}"
    if not isinstance(leaf, torch.Tensor):
        return f"is {leaf!r}; the plan was made for a tensor"
    if leaf.is_inference():
        return INFERENCE
    if tuple(leaf.shape) != guard.shape:
        return f"has shape {list(leaf.shape)}; the plan was made for {list(guard.shape)}"
    if leaf.dtype is not guard.dtype:
        return f"is {leaf.dtype}; the plan was made for {guard.dtype}"
    if leaf.device != guard.device:
        return f"is on {leaf.device}; the plan was made for {guard.device}"
    if not same_strides(leaf, guard.stride):
        return (
            f"has strides {list(leaf.stride())}; the plan was made for {list(guard.stride)} "
            "(.contiguous() or .to(memory_format=...) may be all it needs)"
        )
    if leaf.requires_grad and not guard.requires_grad:
        return "requires a gradient; the plan was made for one that does not"
    if exact and guard.requires_grad and not leaf.requires_grad:
        return "requires no gradient; the plan was made for one that does"
    return None


def cast_difference(spec: InputSpec, tensor: torch.Tensor) -> str:
    """What autocast does otherwise with a tensor that it makes narrow several times; or nothing."""
    kept = spec.casts_kept
    if kept is None or not tensor.requires_grad or casts_are_kept(tensor) is kept:
        return ""
    leaf, other = "a leaf, of which autocast keeps one cast", "no leaf, and cast for each use"
    now, then = (other, leaf) if kept else (leaf, other)
    return f"is {now}; the plan was made for {then}"
