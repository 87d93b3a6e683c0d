"""A captured training step: its graph, its program, and the user's model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch

from ...solver.errors import InputError
from .deliveries import accumulating, is_accumulating, matched_sizes
from .optimizer_state import state_bytes
from .program import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ...solver.calibration import Calibration
    from ...solver.graph import Graph
    from .optimizer_state import OptimizerLike
    from .outside.behaviour import Behaviour
    from .program import Program

BatchStyle = Literal["tuple", "dict", "tensor"]


@dataclass(frozen=True, repr=False)
class Captured:
    """What `capture` makes and `replay` needs.

    Attributes
    ----------
    program
        The step as code over values.
    model
        The user's model itself, not a copy.
    loss_fn, loss_takes_batch
        The user's loss, None if the model computes its own, and whether it is called as
        `loss_fn(out, batch)` rather than `loss_fn(out)`.
    batch_style
        How the batch was given: a tuple of positional arguments, a dict of keywords, or one tensor.
    example
        Leaves of `(args, kwargs)`, for profiling: integer and boolean tensors hold a CPU copy of
        the example's values, other tensors are on the `meta` device, the rest is as it was.
    device
        Where the step runs.
    behaviours
        What the modules were, so that a replay notices other code, hooks and children. None for a
        step that was copied or unpickled: then they count as they are when it is replayed.
    """

    program: Program
    model: nn.Module
    loss_fn: Callable[..., Any] | None
    loss_takes_batch: bool
    batch_style: BatchStyle
    example: tuple[Any, ...]
    device: torch.device
    behaviours: tuple[Behaviour, ...] | None = None

    def __repr__(self) -> str:
        """One line; the program and the model in full would be thousands."""
        ops = f"{len(self.graph.ops)} ops, {len(self.graph.tensors)} tensors"
        return f"<captured step of {self.graph.name}: {ops}, on {self.device}>"

    def __getstate__(self) -> dict[str, Any]:
        """The state without `behaviours`, which refer to functions and classes."""
        return {**self.__dict__, "behaviours": None}

    @property
    def graph(self) -> Graph:
        """The step for the solver."""
        return self.program.graph

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the plain step, as if lowtide were not there: the model, then the loss."""
        out = self.model(*args, **kwargs)
        if self.loss_fn is None:
            return out
        if not self.loss_takes_batch:
            return self.loss_fn(out)
        return self.loss_fn(out, self.batch_of(args, kwargs))

    def batch_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The batch as the user gave it: what a loss of two parameters gets."""
        if self.batch_style == "dict":
            return kwargs
        return args[0] if self.batch_style == "tensor" else args

    def with_costs(
        self,
        time_ns: Sequence[int] | None = None,
        workspace: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        meta: dict[str, str] | None = None,
    ) -> Captured:
        """The same step with other costs.

        Parameters
        ----------
        time_ns, workspace
            Per op: nanoseconds, and transient bytes of its first run. The extra bytes that a later
            run of a random op takes for the generator's state are added to its new workspace.
        sizes
            Per graph tensor: bytes of its allocation on the device.
        meta
            Entries to put into `graph.meta`.

        Raises
        ------
        InputError
            If a sequence has the wrong length.
        """
        graph = self.graph
        _need("op times", time_ns, len(graph.ops))
        _need("op workspaces", workspace, len(graph.ops))
        _need("tensor sizes", sizes, len(graph.tensors))
        ops = []
        for index, op in enumerate(graph.ops):
            time = op.time_ns if time_ns is None else int(time_ns[index])
            space = op.workspace_bytes if workspace is None else int(workspace[index])
            if self.program.ops[index].kind is not Kind.CALL:
                space = op.workspace_bytes
            rerun = op.rerun_workspace_bytes
            if rerun >= 0:
                rerun += space - op.workspace_bytes
            ops.append(
                msgspec.structs.replace(
                    op, time_ns=time, workspace_bytes=space, rerun_workspace_bytes=rerun
                )
            )
        tensors = graph.tensors
        if sizes is not None:
            tensors = tuple(
                msgspec.structs.replace(tensor, size_bytes=int(size))
                for tensor, size in zip(tensors, sizes, strict=True)
            )
        new = msgspec.structs.replace(
            graph,
            ops=tuple(ops),
            tensors=tensors,
            meta={**graph.meta, **(meta or {})},
            calibration=graph.calibration if time_ns is None else None,
        )
        if is_accumulating(new):
            new = matched_sizes(new)
        return replace(self, program=replace(self.program, graph=new))

    def calibrated(self, calibration: Calibration) -> Captured:
        """The same step with measured times of whole steps."""
        graph = msgspec.structs.replace(self.graph, calibration=calibration)
        return replace(self, program=replace(self.program, graph=graph))

    def with_optimizer(self, optimizer: OptimizerLike) -> Captured:
        """The same step with the state of an optimizer, as `capture` takes it, always in memory."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        if isinstance(self.loss_fn, torch.nn.Module):
            named = self.loss_fn.named_parameters(remove_duplicate=False)
            parameters.update({f"loss_fn.{name}": parameter for name, parameter in named})
        more = state_bytes(optimizer, self.program, parameters, self.device)
        graph = self.graph
        graph = msgspec.structs.replace(
            graph,
            extra_resident_bytes=graph.extra_resident_bytes + more,
            meta={**graph.meta, "optimizer_bytes": str(more)},
        )
        return replace(self, program=replace(self.program, graph=graph))

    def accumulating(self) -> Captured:
        """The same step on gradients of earlier micro-batches, which are there and are added to."""
        if is_accumulating(self.graph):
            return self
        return replace(self, program=accumulating(self.program))


def _need(what: str, given: Sequence[int] | None, count: int) -> None:
    """Refuse a sequence of the wrong length."""
    if given is not None and len(given) != count:
        raise InputError(f"{len(given)} {what} given; the graph has {count}")
