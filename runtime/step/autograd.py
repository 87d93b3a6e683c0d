"""Puts generated code under autograd: one chain of nodes for each forward, one node a stage.

The node nearest to the outputs starts the generated backward; each node advances it by a stage and
returns the gradients that are final by then, so that autograd accumulates them, and fires hooks,
while backward goes on. A token without elements ties each node to the next.

A step of one stage has one node, which runs forward as well: small models notice each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import ReplayError
from .quiet import quiet
from .unused import pass_over

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..wiring import Wiring
    from .run import Run

_TWICE = (
    "create_graph=True cannot differentiate through a replayed step: it holds first derivatives "
    "only. Use the original model where gradients of gradients are needed"
)


class _OneStage(torch.autograd.Function):
    """Node of a step of one stage: forward runs the step."""

    @staticmethod
    def forward(ctx: Any, wiring: Wiring, inputs: list[Any], *leaves: Any) -> Any:
        code = wiring.code
        with quiet():
            outputs, saved = code.forward(inputs)
        ctx.run = wiring.run(inputs, outputs, saved, leaves)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        run: Run = ctx.run
        if torch.is_grad_enabled():
            raise ReplayError(_TWICE)
        given = run.start(gradients)
        made = run.whole(given)
        if run.absent:
            pass_over(ctx.next_functions, made)
        return (None, None, *made)


class _Stage(torch.autograd.Function):
    """Node of one stage: forward hands out what the step already computed."""

    @staticmethod
    def forward(
        ctx: Any,
        run: Run | None,
        stage: int,
        made: list[Any] | torch.device,
        token: Any,
        *leaves: Any,
    ) -> Any:
        ctx.run, ctx.stage = run, stage
        ctx.set_materialize_grads(False)
        if isinstance(made, torch.device):
            return torch.empty(0, device=made)
        outputs = tuple(made)
        made.clear()
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        run: Run = ctx.run
        if torch.is_grad_enabled():
            raise ReplayError(_TWICE)
        if ctx.stage == 0:
            given = run.start(gradients) if run.sums is None else run.probed()
            if run.code.staged:
                run.begin(given)
        final = run.advance(ctx.stage) if run.code.staged else run.whole(given)
        if run.absent:
            pass_over(ctx.next_functions, final)
        if run.sums is not None:
            run.seeds.deliver(run.sums.stages[ctx.stage])
        following = ctx.next_functions[0][0] if ctx.stage + 1 < len(run.code.stages) else None
        if following is None or not torch._C._will_engine_execute_node(following):
            run.stop()
        return (None, None, None, None, *final)


class _Probing(torch.autograd.Function):
    """Node before the first stage of a step with sums: asks what came before it."""

    @staticmethod
    def forward(ctx: Any, run: Any, made: list[Any], token: Any, *leaves: Any) -> Any:
        ctx.run = run
        ctx.set_materialize_grads(False)
        outputs = tuple(made)
        made.clear()
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise ReplayError(_TWICE)
        probes = ctx.run.probe(gradients)
        if ctx.run.absent:
            pass_over(ctx.next_functions, probes)
        return (None, None, None, *probes)


class _OneStageOfSums(_Probing):
    """The same for a step of one stage, whose node `token` is from: forward runs the step."""

    @staticmethod
    def forward(ctx: Any, wiring: Any, inputs: list[Any], token: Any, *leaves: Any) -> Any:
        with quiet():
            outputs, saved = wiring.code.forward(inputs)
        ctx.run = token.grad_fn.run = wiring.run(inputs, outputs, saved, wiring.leaves_of(inputs))
        ctx.set_materialize_grads(False)
        return outputs


class _Refuse(torch.autograd.Function):
    """Outputs through which the captured step has no gradient, though the plain one has."""

    @staticmethod
    def forward(ctx: Any, made: list[Any], *behind: Any) -> Any:
        outputs = tuple(made)
        made.clear()
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ReplayError(
            "this output has no gradient in the replayed step, which was captured for the gradient "
            "of the loss only. Detach it, or capture the model without its own loss "
            "and give the whole loss as loss_fn"
        )


# What `Function.apply` calls, after questions that a replayed step has answered by then.
_whole: Any = super(torch.autograd.Function, _OneStage)
_whole_of_sums: Any = super(torch.autograd.Function, _OneStageOfSums)
_stage: Any = super(torch.autograd.Function, _Stage)
_probing: Any = super(torch.autograd.Function, _Probing)
_refuse: Any = _Refuse


def run_whole(wiring: Wiring, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Run the forward of a step of one stage; its outputs with the node behind them.

    Parameters
    ----------
    wiring
        The step: `wiring.whole` must be true.
    inputs
        What its code takes.
    """
    leaves = wiring.leaves_of(inputs)
    made: tuple[torch.Tensor, ...]
    if wiring.sums is None:
        made = _whole.apply(wiring, inputs, *leaves)
    else:
        token = _stage.apply(None, 0, wiring.device, None, *leaves)
        made = _whole_of_sums.apply(wiring, inputs, token, *wiring.summed_of(inputs))
    return made


def attach(
    run: Run,
    outputs: list[torch.Tensor],
    leaves: Sequence[Sequence[torch.Tensor]],
    summed: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor, ...]:
    """Outputs with the chain of nodes behind them.

    Parameters
    ----------
    run
        The forward that made them.
    outputs
        Tensors without autograd history; emptied.
    leaves
        For each stage: the tensors whose gradients it gives, in its order.
    summed
        Tensors whose gradients are sums: those of `run.sums`, in their order.
    """
    token: torch.Tensor | None = None
    # Tokens live where the outputs do, so that all nodes run on one thread and stream.
    device = next((o.device for o in outputs if o.device.type != "cpu"), outputs[0].device)
    for stage in range(len(leaves) - 1, 0 if run.sums is None else -1, -1):
        token = _stage.apply(run, stage, device, token, *leaves[stage])
    if run.sums is not None:
        probed: tuple[torch.Tensor, ...] = _probing.apply(run, outputs, token, *summed)
        return probed
    result: tuple[torch.Tensor, ...] = _stage.apply(run, 0, outputs, token, *leaves[0])
    return result


def refuse(outputs: list[torch.Tensor], behind: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Outputs that require a gradient, and raise when one reaches them; `outputs` is emptied.

    Parameters
    ----------
    outputs
        Tensors without autograd history.
    behind
        What they were computed from: whoever asks for the gradient of any of it is told.
    """
    result: tuple[torch.Tensor, ...] = _refuse.apply(outputs, *behind)
    return result
