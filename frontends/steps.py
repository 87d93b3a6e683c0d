"""Builds the graph of a training step from its forward ops: boundary, gradients, their sums."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..solver.graph import Graph, Op, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..solver.graph import Phase


@dataclass(frozen=True)
class _Layer:
    """What the backward phase has to know of a forward op."""

    name: str
    kind: str
    module: str
    time_ns: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    saved: tuple[int, ...]
    weight: int | None
    workspace_bytes: int


@dataclass
class StepBuilder:
    """Collects forward ops, then makes the whole step.

    Parameters
    ----------
    name
        Of the graph.
    backward_ratio
        Time of an op's gradients together, as a multiple of its forward time.
    """

    name: str
    backward_ratio: float = 2.0
    ops: list[Op] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    _layers: list[_Layer] = field(default_factory=list)

    def resident(self, name: str, size_bytes: int) -> int:
        """Add a tensor that is always in memory (an input); returns its index."""
        return self._tensor(name, size_bytes)

    def forward(
        self,
        name: str,
        inputs: Sequence[int],
        size_bytes: int,
        time_ns: int,
        *,
        kind: str = "layer",
        module: str = "",
        saved: Sequence[int] | None = None,
        saves_output: bool = False,
        extra_output_bytes: int = 0,
        weight_bytes: int = 0,
        workspace_bytes: int = 0,
    ) -> int:
        """Add a forward op and say what its gradients read.

        Parameters
        ----------
        name, kind, module
            As in `Op`; names must be unique.
        inputs
            Tensors it reads, each once.
        size_bytes, time_ns, workspace_bytes
            Of its output, of one execution, and beside inputs and outputs.
        saved
            Tensors that the gradient of the inputs reads beside the upstream gradient; None means
            all inputs.
        saves_output
            True if it reads the output as well.
        extra_output_bytes
            Size of a second output that only the gradient reads (statistics, a mask), 0 for none.
        weight_bytes
            Size of its parameter, 0 for none; the gradient of the weight is an op of its own that
            reads the inputs.

        Returns
        -------
        int
            The output tensor.
        """
        weight = self._tensor(f"{name}.weight", weight_bytes) if weight_bytes else None
        output = self._tensor(name, size_bytes)
        outputs = [output]
        keeps = list(inputs if saved is None else saved) + [output] * saves_output
        if extra_output_bytes:
            outputs.append(self._tensor(f"{name}.extra", extra_output_bytes))
            keeps.append(outputs[-1])
        reads = [*inputs, *([] if weight is None else [weight])]
        self._op(name, kind, time_ns, reads, outputs, "forward", module, workspace_bytes)
        self._layers.append(
            _Layer(
                name=name,
                kind=kind,
                module=module,
                time_ns=time_ns,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                saved=tuple(keeps),
                weight=weight,
                workspace_bytes=workspace_bytes,
            )
        )
        return output

    def finish(self, last: int, *, loss_time_ns: int = 0) -> Graph:
        """Add the loss of tensor `last`, the boundary and the backward phase.

        The builder must not be used any more afterwards.
        """
        loss = self._tensor("loss", 4, output=True)
        self._op("loss", "loss", loss_time_ns, [last], [loss], "forward")
        tangent = self._tensor("tangent", 4, output=True)
        self._op("backward", "lowtide.backward", 0, [], [tangent], "backward", recompute=False)
        upstream = self._tensor(
            f"{self.tensors[last].name}.gradient", self.tensors[last].size_bytes
        )
        spent = round(loss_time_ns * self.backward_ratio)
        self._op("loss.gradient", "loss_backward", spent, [tangent, last], [upstream], "backward")
        gradients: dict[int, list[int]] = {last: [upstream]}
        made = {layer.outputs[0] for layer in self._layers}
        for layer in reversed(self._layers):
            if layer.outputs[0] in gradients:
                self._gradients(layer, gradients, made)
        return Graph(self.name, tuple(self.ops), tuple(self.tensors))

    def _gradients(self, layer: _Layer, gradients: dict[int, list[int]], made: set[int]) -> None:
        """Add the backward ops of one layer."""
        size = self.tensors[layer.outputs[0]].size_bytes
        upstream = gradients.pop(layer.outputs[0])
        while len(upstream) > 1:  # gradients from several users are added two by two
            total = self._tensor(f"{layer.name}.sum{len(upstream)}", size)
            parts = [upstream.pop(0), upstream.pop(0)]
            name = f"{layer.name}.add{len(upstream) + 2}"
            self._op(name, "add", layer.time_ns // 8, parts, [total], "backward", layer.module)
            upstream.insert(0, total)
        targets = [t for t in layer.inputs if t in made]
        both = bool(targets) and layer.weight is not None
        spent = round(layer.time_ns * self.backward_ratio / (2 if both else 1))
        if layer.weight is not None:
            weight = self.tensors[layer.weight]
            result = self._tensor(f"{weight.name}.gradient", weight.size_bytes, output=True)
            self._op(
                f"{layer.name}.weight_gradient",
                f"{layer.kind}_weight_backward",
                spent,
                [*upstream, *layer.inputs],
                [result],
                "backward",
                layer.module,
                layer.workspace_bytes,
            )
        if targets or layer.weight is None:
            # The first layer has no gradient to hand on: a token stands for its parameters' one.
            results = [] if targets else [self._tensor(f"{layer.name}.end", 0, output=True)]
            for t in targets:
                tensor = self.tensors[t]
                results.append(
                    self._tensor(f"{tensor.name}.gradient_{layer.name}", tensor.size_bytes)
                )
                gradients.setdefault(t, []).append(results[-1])
            reads = [*upstream, *layer.saved, *([] if layer.weight is None else [layer.weight])]
            self._op(
                f"{layer.name}.gradient",
                f"{layer.kind}_backward",
                spent,
                reads,
                results,
                "backward",
                layer.module,
                layer.workspace_bytes,
            )

    def _tensor(self, name: str, size_bytes: int, output: bool = False) -> int:
        self.tensors.append(Tensor(name, size_bytes, output))
        return len(self.tensors) - 1

    def _op(
        self,
        name: str,
        kind: str,
        time_ns: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        phase: Phase,
        module: str = "",
        workspace_bytes: int = 0,
        recompute: bool = True,
    ) -> None:
        self.ops.append(
            Op(
                name=name,
                kind=kind,
                time_ns=time_ns,
                inputs=tuple(dict.fromkeys(inputs)),
                outputs=tuple(outputs),
                workspace_bytes=workspace_bytes,
                recompute=recompute,
                phase=phase,
                module=module,
            )
        )
