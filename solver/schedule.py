"""A schedule: the sequence of `Compute(op)` and `Free(tensor)` that one training step runs.

Frees follow from the computes: an instance of a tensor dies right after the op that last needs it
before the tensor is produced again. `Schedule.from_computes` derives them, so planners only decide
which op runs when.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .errors import CheckError, InputError
from .units import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .graph import Graph

SHOWN = 40  # characters of a step that cannot be read


@dataclass(frozen=True)
class Schedule:
    """Steps in order; a value i >= 0 computes op i, a value v < 0 frees tensor -v - 1."""

    steps: tuple[int, ...]

    @classmethod
    def from_computes(cls, graph: Graph, computes: Sequence[int]) -> Schedule:
        """Add the earliest possible frees to a sequence of op indices.

        Raises
        ------
        CheckError
            If an op runs before one of its inputs has ever been produced.
        """
        arrays = graph.arrays
        ins = [arrays.inputs(op).tolist() for op in range(len(graph.ops))]
        outs = [arrays.outputs(op).tolist() for op in range(len(graph.ops))]
        keep = arrays.output.tolist()
        restores = arrays.restores.tolist()
        left = [0] * len(graph.ops)
        for op in computes:
            left[op] += 1
        # Walk backwards: a tensor's last need before its next production is where it dies.
        needed = [False] * len(graph.tensors)
        dies: list[list[int]] = [[] for _ in computes]
        for position in range(len(computes) - 1, -1, -1):
            op = computes[position]
            for t in outs[op]:
                if not needed[t] and not keep[t]:
                    dies[position].append(t)
                needed[t] = False
            left[op] -= 1
            for t in ins[op]:
                if not needed[t] and (left[op] or t != restores[op]):
                    needed[t] = True
                    if not keep[t]:
                        dies[position].append(t)
        if any(needed):
            t = needed.index(True)
            raise CheckError(f"tensor {t} ({graph.tensors[t].name}) is read before it is produced")
        steps: list[int] = []
        for position, op in enumerate(computes):
            steps.append(op)
            steps.extend(-t - 1 for t in dies[position])
        return cls(tuple(steps))

    @classmethod
    def keep_everything(cls, graph: Graph) -> Schedule:
        """The base order, nothing recomputed."""
        return cls.from_computes(graph, range(len(graph.ops)))

    @classmethod
    def from_text(cls, words: Iterable[str]) -> Schedule:
        """Read `compute 12` and `free 3`, as plan files hold them.

        Raises
        ------
        InputError
            With the first step that is neither.
        """
        steps: list[int] = []
        for position, word in enumerate(words):
            verb, _, digits = word.partition(" ")
            number = whole_number(digits)
            if verb not in ("compute", "free") or number is None:
                raise InputError(
                    f"step {position} of the schedule is {word[:SHOWN]!r}: expected `compute N` or "
                    "`free N`"
                )
            steps.append(number if verb == "compute" else -number - 1)
        return cls(tuple(steps))

    def to_text(self) -> tuple[str, ...]:
        """The steps as `compute 12` and `free 3`."""
        return tuple(f"compute {s}" if s >= 0 else f"free {-s - 1}" for s in self.steps)

    def computes(self) -> tuple[int, ...]:
        """Op indices in the order in which they run."""
        return tuple(s for s in self.steps if s >= 0)

    def recomputes(self) -> int:
        """How many executions are not the first of their op."""
        ran = self.computes()
        return len(ran) - len(set(ran))

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)
