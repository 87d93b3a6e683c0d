"""Gradients that are sums, and how they begin with what came before from elsewhere.

A tensor that the model uses more than once gets one gradient from a replayed step: the sum of those
of its uses. `Probe` finds what it got before in the same backward, from a loss outside of the
module or from a later call; the generated code adds this to the first part of the sum, so that all
is added up in the order of plain PyTorch. What comes after the sum is added as ever.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...solver.warn import warn_user
from ..step.probes import Look, Seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...frontends.torch.program import Program
    from .code import StepCode
    from .order import Order, Step

_log = logging.getLogger(__name__)
_ADD = torch.ops.aten.add.Tensor
_COPIES = ("aten.clone.default", "lowtide.clone_strided")


@dataclass(frozen=True)
class Sum:
    """One gradient that is a sum.

    Attributes
    ----------
    gradient
        Which of `Program.gradients`.
    adds
        Ops that add its second, third, ... part, in this order; empty if they cannot be told.
    """

    gradient: int
    adds: tuple[int, ...]


def sums_of(program: Program) -> tuple[Sum, ...]:
    """The gradients of a step that are sums."""
    maker = {value: i for i, op in enumerate(program.ops) if op.call for value in op.writes}
    readers: dict[int, int] = {}
    for value in _read(program):
        readers[value] = readers.get(value, 0) + 1
    found = []
    taken: set[int] = set()
    for gradient, spec in enumerate(program.gradients):
        if spec.value is None or spec.parts < 2:
            continue
        value = spec.value
        call = program.ops[maker[value]].call if value in maker else None
        if call is not None and call.name in _COPIES:
            value = next(call.refs())  # autograd's own copy, an op of the step
        adds: list[int] = []
        while value in maker and len(adds) < spec.parts - 1:
            call = program.ops[maker[value]].call
            if call is None or call.target is not _ADD or readers[value] != 1:
                break
            adds.append(maker[value])
            value = next(call.refs())
        if len(adds) < spec.parts - 1 or not taken.isdisjoint(adds):
            adds = []
        taken.update(adds)
        found.append(Sum(gradient, tuple(reversed(adds))))
    return tuple(found)


def _read(program: Program) -> Iterator[int]:
    """Values that are read, by an op, a view, or as a gradient: once for each."""
    for op in program.ops:
        if op.call is not None:
            yield from set(op.call.refs())
    for view in {id(view): view for view in program.views.values()}.values():
        yield from set(view.refs())
    yield from (spec.value for spec in program.gradients if spec.value is not None)


@dataclass(frozen=True)
class Begin:
    """An execution of the op in which a sum begins.

    Attributes
    ----------
    number
        Which sum: place in `sums_of`.
    over
        Whether the result may lie where the first part does.
    last
        Whether no later execution begins it again.
    extra
        Bytes beyond the schedule, if something came before.
    """

    number: int
    over: bool
    last: bool
    extra: int


def where_sums_begin(
    program: Program, order: Order, dead: Callable[[int], bool], *, placed: bool
) -> dict[int, Begin]:
    """For each execution in which a sum begins: its place in the schedule, to what is to be known.

    The first part of a sum is the first argument of its op. Sums of which anything runs in forward
    are not among them.

    Parameters
    ----------
    program, order
        The step and its executions.
    dead
        Whether a value is not there: sums begin later then.
    placed
        Whether results lie in a buffer at addresses of their own.
    """
    of, tensors = program.value_tensor, program.graph.tensors
    early = {step.op for step in order.forward}
    begins: dict[int, int] = {}
    for number, item in enumerate(sums_of(program)):
        if early.isdisjoint(item.adds):
            live = (op for op in item.adds if not any(map(dead, program.ops[op].reads)))
            begins.update((op, number) for op in itertools.islice(live, 1))
    made = _made(program, order.backward) - _made(program, order.forward)
    given = {of[spec.value] for spec in program.gradients if spec.value is not None}
    found: dict[int, Begin] = {}
    seen: set[int] = set()
    freed: set[int] = set()
    for step in reversed(order.backward):
        if step.op < 0:
            freed.add(step.free)
            continue
        call = program.ops[step.op].call
        if step.op in begins and call is not None:
            first, second = (of[value] for value in call.refs())
            size = tensors[of[program.ops[step.op].writes[0]]].size_bytes
            dies = first in freed and first != second and tensors[first].size_bytes == size
            over = dies and first in made - given and not tensors[first].output
            if placed:  # the first part's place is somebody else's from now on, unless it is taken
                over = over and step.overwrites == first
            taken = step.overwrites >= 0 or placed
            found[step.place] = Begin(
                begins[step.op], over, step.op not in seen, size if taken and not over else 0
            )
            seen.add(step.op)
        freed = set()
    return found


def _made(program: Program, steps: Sequence[Step]) -> set[int]:
    """Tensors that calls make in some steps."""
    ops = (program.ops[step.op] for step in steps if step.op >= 0)
    return {program.value_tensor[v] for op in ops if op.call is not None for v in op.writes}


class Sums:
    """What is constant about the sums of a step.

    Attributes
    ----------
    inputs
        For each sum: index into `Program.inputs` of the tensor whose gradient it is.
    alarm
        What to say if something came before and the budget does not allow for it; empty if it does.
    """

    def __init__(self, program: Program, code: StepCode) -> None:
        sums = sums_of(program)
        specs = [program.gradients[item.gradient] for item in sums]
        self.inputs = [spec.input for spec in specs]
        self.alarm = ""
        place = {item.gradient: number for number, item in enumerate(sums)}
        self.stages = [[place[g] for g in stage if g in place] for stage in code.stages]
        self._behind = [code.tangents_behind[item.gradient] for item in sums]
        metas = [program.value_meta[program.inputs[spec.input].value] for spec in specs]
        self._looks = [Look(m.shape, m.stride, m.dtype, m.device) for m in metas]
        inputs = (program.inputs[index] for index in self.inputs)
        names = [spec.fqn or f"input {spec.position}" for spec in inputs]
        self._inexact = {
            number: name for number, name in enumerate(names) if number not in code.begun
        }

    def seeds(self, absent: frozenset[int]) -> Seeds:
        """Probes for a backward without some tangents."""
        return Seeds(
            [
                None if behind and behind <= absent else look
                for behind, look in zip(self._behind, self._looks, strict=True)
            ]
        )

    def tell(self, seeds: Seeds) -> None:
        """Something came before the step: warn once of what is not as it should be then.

        That is a budget which is exceeded, and sums that do not begin with what came.
        """
        text, self.alarm = self.alarm, ""
        if text:
            warn_user(text)
        for number in [number for number in self._inexact if seeds.found(number)]:
            _log.warning(
                "%s is used more than once by the model, and had got a gradient from elsewhere "
                "before: plain PyTorch adds them up in another order, so that its last bits may "
                "differ. Give the whole loss as loss_fn, or call the model once for all",
                self._inexact.pop(number),
            )
