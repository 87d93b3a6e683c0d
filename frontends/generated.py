"""Random graphs for tests and benchmarks: generic DAGs, and steps that look like training.

One builder serves two sources of numbers: a seeded generator (`random_graph`) and the property
tests, which hand in a function that draws from their own search.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..solver.graph import Graph, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..solver.graph import Phase

    Draw = Callable[[int, int], int]  # an integer between two bounds, both included


def random_graph(
    seed: int, ops: int, *, training: bool = True, fixed_share: int = 10, largest: int = 64
) -> Graph:
    """Make a random graph; the same arguments give the same graph.

    Parameters
    ----------
    seed
        Of NumPy's default generator.
    ops
        Ops of a generic graph, or forward ops of a training step; at least 1.
    training
        True for a forward DAG, the boundary `lowtide.backward` and a backward op for most
        forward ops; False for a generic DAG without phases.
    fixed_share
        Percentage of ops that may run only once.
    largest
        Largest tensor in bytes, and longest op in nanoseconds.
    """
    generator = np.random.default_rng(seed)

    def draw(low: int, high: int) -> int:
        return int(generator.integers(low, high, endpoint=True))

    name = f"random-{'training' if training else 'dag'}-{ops}-{seed}"
    return build_random(
        draw, ops, training=training, fixed_share=fixed_share, largest=largest, name=name
    )


def build_random(
    draw: Draw,
    ops: int,
    *,
    training: bool,
    fixed_share: int = 10,
    largest: int = 64,
    name: str = "random",
) -> Graph:
    """Make a random graph from `draw(low, high)`; see `random_graph` for the parameters."""
    builder = _Builder(draw, fixed_share, largest)
    for _ in range(draw(0, 2)):
        builder.tensor("resident")
    for _ in range(ops):
        builder.generic_op("forward" if training else "none")
    if training:
        builder.backward()
    extra = draw(0, 1) * draw(0, largest)
    return Graph(name, tuple(builder.ops), tuple(builder.tensors), extra_resident_bytes=extra)


class _Builder:
    """Ops and tensors so far."""

    def __init__(self, draw: Draw, fixed_share: int, largest: int) -> None:
        self.draw = draw
        self.fixed_share = fixed_share
        self.largest = largest
        self.ops: list[Op] = []
        self.tensors: list[Tensor] = []

    def tensor(self, prefix: str, output: bool = False, size: int = -1) -> int:
        """Add a tensor, of random size unless given."""
        index = len(self.tensors)
        amount = self.draw(0, self.largest) if size < 0 else size
        self.tensors.append(Tensor(f"{prefix}{index}", amount, output))
        return index

    def chance(self, percent: int) -> bool:
        """Draw True that often; the smallest number drawn means False."""
        return self.draw(0, 99) >= 100 - percent

    def pick(self, choices: list[int], at_most: int) -> tuple[int, ...]:
        """Draw a few of `choices`, recent ones more often."""
        chosen: dict[int, None] = {}
        for _ in range(self.draw(0, min(at_most, len(choices)))):
            back = min(self.draw(0, len(choices) - 1), self.draw(0, len(choices) - 1))
            chosen[choices[len(choices) - 1 - back]] = None
        return tuple(chosen)

    def add(
        self, phase: Phase, inputs: tuple[int, ...], outputs: tuple[int, ...], fixed: int
    ) -> None:
        """Add an op with random time and workspace."""
        workspace = self.draw(1, self.largest) if self.chance(20) else 0
        rerun = self.draw(0, self.largest) if self.chance(20) else -1
        index = len(self.ops)
        self.ops.append(
            Op(
                name=f"op{index}",
                kind="random",
                time_ns=self.draw(0, self.largest),
                inputs=inputs,
                outputs=outputs,
                workspace_bytes=workspace,
                rerun_workspace_bytes=rerun,
                recompute=not self.chance(fixed),
                phase=phase,
                module=f"blocks.{index // 4}",
            )
        )

    def generic_op(self, phase: Phase) -> None:
        """Add an op that reads a few earlier tensors and makes none, one or several."""
        inputs = self.pick(list(range(len(self.tensors))), 3)
        count = 1 if self.chance(80) else self.draw(0, 3)
        outputs = tuple(self.tensor("t", output=self.chance(10)) for _ in range(count))
        # An op without outputs stands for a side effect: there is nothing to run it again for.
        self.add(phase, inputs, outputs, self.fixed_share if outputs else 100)

    def backward(self) -> None:
        """Add the boundary and, in reverse order, backward ops for the forward ones."""
        forward = list(self.ops)
        made = {t for op in forward for t in op.outputs}
        tangent = self.tensor("tangent", output=True, size=4)
        self.ops.append(
            Op(
                name="backward",
                kind="lowtide.backward",
                time_ns=0,
                inputs=(),
                outputs=(tangent,),
                recompute=False,
                phase="backward",
            )
        )
        gradients: dict[int, list[int]] = {}
        for op in reversed(forward):
            upstream = [g for t in op.outputs for g in gradients.get(t, [])]
            if not upstream and (gradients or not op.outputs) and self.chance(70):
                continue  # nothing downstream is differentiable
            saved = self.pick([*op.inputs, *op.outputs], 3)
            outputs: list[int] = []
            for t in op.inputs:
                if t in made and self.chance(90):
                    gradient = self.tensor("gradient")
                    gradients.setdefault(t, []).append(gradient)
                    outputs.append(gradient)
                elif t not in made and self.chance(90):
                    outputs.append(self.tensor("parameter_gradient", output=True))
            reads = dict.fromkeys([*(upstream or [tangent]), *saved])
            self.add("backward", tuple(reads), tuple(outputs), self.fixed_share)
