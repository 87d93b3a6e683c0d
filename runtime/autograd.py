"""Puts generated code under autograd: one chain of nodes for each forward, one node a stage.

The node nearest to the outputs starts the generated backward; each node advances it by a stage and
returns the gradients that are final by then, so that autograd accumulates them, and fires hooks,
while backward goes on. A token without elements ties each node to the next.

Parameters are never saved through autograd (wrappers like FSDP exchange them); what it would have
checked, that nothing read by backward was changed in place, is checked here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..solver.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ..frontends.torch.switches import Running
    from .code import StepCode
    from .fsdp import Units
    from .shared_casts import CastContext
    from .sums import Sums

_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


_private: Any = torch._C


class quiet:
    """No autograd, no autocast: generated code calls kernels and nothing above them."""

    __slots__ = ("_autocast", "_autograd", "_grad")

    def __enter__(self) -> None:
        self._grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        self._autograd = _private._AutoDispatchBelowADInplaceOrView()
        self._autograd.__enter__()
        self._autocast = _private._DisableAutocast()
        self._autocast.__enter__()

    def __exit__(self, *error: object) -> None:
        self._autocast.__exit__(None, None, None)
        self._autograd.__exit__(None, None, None)
        torch._C._set_grad_enabled(self._grad)


class Run:
    """What one forward leaves for its backward.

    Attributes
    ----------
    code
        The generated step.
    device
        Where its outputs are.
    tangents
        For each tangent: place in the outputs of its output, shape, strides, dtype, device.
    alarm
        Called by a backward that finds gradients to add to, if the budget does not allow for them.
    casts
        The autocast context whose casts it shares with other calls; None if it shares none.
    absent
        Places of tangents that did not arrive in the running backward.
    keeping
        Whether the running backward leaves the saved values for another one.
    saved
        Values that backward needs; None once a backward has consumed them.
    settings
        What backward may run otherwise than forward did, and how it was in forward; None if
        backward runs nothing again.
    sums
        Follows gradients that other ones may be added to; None if there are none such.
    units
        Sharded units whose parameters the code asks for; None without.
    """

    __slots__ = (
        "absent", "alarm", "casts", "code", "device", "keeping", "running", "saved", "settings",
        "sums", "taken", "tangents", "units", "watched",
    )  # fmt: skip

    def __init__(
        self,
        code: StepCode,
        tangents: Sequence[Tangent],
        saved: list[Any],
        units: Units | None = None,
    ) -> None:
        self.code = code
        self.tangents = tangents
        self.units = units
        # Tokens live where the outputs do, so that all nodes run on one thread and stream.
        self.device = torch.device("cpu")
        self.saved: list[Any] | None = saved
        self.alarm: Callable[[], None] | None = None
        self.casts: CastContext | None = None
        self.sums: Sums | None = None
        self.settings: tuple[Running, list[Any]] | None = None
        self.absent: frozenset[int] = frozenset()
        self.keeping = False
        self.watched: list[tuple[torch.Tensor, int, str]] = []
        self.running: Generator[int | None, None, None] | None = None
        self.taken: list[torch.Tensor] = []

    def watch(self, tensor: torch.Tensor, name: str) -> None:
        """Remember the version of a tensor that backward will read."""
        self.watched.append((tensor, tensor._version, name))

    def start(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Begin a backward with the gradients of the outputs.

        Raises
        ------
        RuntimeError
            As PyTorch does: on a second backward without `retain_graph`, and if a tensor that
            backward reads was changed in place since forward.
        ReplayError
            If a setting that kernels read is another one than in forward, and some run again.
        """
        saved = self.saved
        if saved is None:
            raise RuntimeError(_FREED)
        for tensor, version, name in self.watched:
            if tensor._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation: {name} ({tensor.type()} {list(tensor.shape)}) is at "
                    f"version {tensor._version}; expected version {version} instead"
                )
        if self.settings is not None:
            running, before = self.settings
            words = running.difference(before)
            if words:
                raise ReplayError(
                    f"{words}, and operators of forward run again in it, which would compute "
                    "otherwise: keep such settings the same from forward to backward"
                )
        if self.casts is not None:
            self.casts.backward()
        self.keeping = torch._C._autograd._get_current_graph_task_keep_graph()
        if self.keeping:
            saved = _kept(saved, self.code.overwritten)
        else:
            self.saved = None
            self.watched = []
        self.absent = frozenset(
            place for place, t in enumerate(self.tangents) if t.arrived(gradients) is None
        )
        tangents = [tangent.of(gradients) for tangent in self.tangents]
        self.taken = []
        self.running = self.code.backward(saved, self._push(), *tangents)

    def _push(self) -> Callable[[torch.Tensor], None]:
        return self.taken.append

    def advance(self, stage: int) -> list[torch.Tensor | None]:
        """Run the next stage; the gradients that are final after it.

        None for one that depends on absent tangents only, as for a parameter out of reach.
        """
        assert self.running is not None
        if self.units is not None and stage > 0:
            # Autograd has accumulated what the stage before handed over.
            for done in self.code.done[stage - 1]:
                self.units.reduce(done)
        with quiet():
            unit = next(self.running, None)
        while unit is not None:
            assert self.units is not None
            self.units.gather_again(unit)
            with quiet():
                unit = next(self.running, None)
        gradients: list[torch.Tensor | None] = [*self.taken]
        self.taken.clear()
        if self.keeping and self.code.early:
            # The next backward hands out the same memory: this one's caller gets a copy.
            for place, gradient in enumerate(self.code.stages[stage]):
                made = gradients[place]
                if gradient in self.code.early and made is not None:
                    gradients[place] = made.clone()
        if self.absent:
            for place, gradient in enumerate(self.code.stages[stage]):
                behind = self.code.tangents_behind[gradient]
                if behind and behind <= self.absent:
                    gradients[place] = None
        return gradients

    def stop(self) -> None:
        """Forget a backward that is done, or whose later stages nobody asked for."""
        self.running = None


def _kept(saved: list[Any], overwritten: Sequence[int]) -> list[Any]:
    """The same values, those that are overwritten in memory of their own."""
    result = list(saved)
    copies: dict[int, torch.UntypedStorage] = {}
    for place in overwritten:
        value = saved[place]
        storage = value.untyped_storage()
        if storage._cdata not in copies:
            copies[storage._cdata] = storage.clone()
        result[place] = torch.empty(0, dtype=value.dtype, device=value.device).set_(
            copies[storage._cdata], value.storage_offset(), value.shape, value.stride()
        )
    return result


class Tangent:
    """The gradient of one output, as the captured program expects it."""

    __slots__ = ("_allowed", "_layouts", "device", "dtype", "output", "shape", "stride")

    def __init__(
        self,
        output: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        allowed: Callable[[tuple[int, ...]], bool] = lambda _: False,
    ) -> None:
        self.output = output
        self._allowed = allowed
        self._layouts: dict[tuple[int, ...], bool] = {}
        self.shape, self.stride, self.dtype, self.device = shape, stride, dtype, device

    def arrived(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """The gradient of the output, if there is one."""
        return gradients[self.output] if self.output >= 0 else None

    def of(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """The gradient that arrived, in the captured layout or one that will do; zeros if none."""
        gradient = self.arrived(gradients)
        if gradient is None:
            new = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
            return new.zero_()
        found = gradient.stride()
        if found == self.stride or gradient.numel() <= 1:
            return gradient
        if found not in self._layouts:
            self._layouts[found] = self._allowed(found)
        if self._layouts[found]:
            return gradient
        new = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return new.copy_(gradient)


class _Stage(torch.autograd.Function):
    """Node of one stage: forward hands out what the step already computed."""

    @staticmethod
    def forward(ctx: Any, run: Run, stage: int, made: list[Any], token: Any, *leaves: Any) -> Any:
        ctx.run, ctx.stage = run, stage
        ctx.set_materialize_grads(False)
        if stage > 0:
            return torch.empty(0, device=run.device)
        outputs = tuple(made)
        made.clear()
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        run: Run = ctx.run
        if torch.is_grad_enabled():
            raise ReplayError(
                "create_graph=True cannot differentiate through a replayed step: it holds first "
                "derivatives only. Use the original model where gradients of gradients are needed"
            )
        if ctx.stage == 0:
            run.start(gradients)
            if run.alarm is not None and any(map(_holds_gradient, ctx.next_functions)):
                run.alarm()
        final = run.advance(ctx.stage)
        if run.sums is not None:
            run.sums.follow(ctx.stage, final, ctx.next_functions)
        following = ctx.next_functions[0][0] if ctx.stage + 1 < len(run.code.stages) else None
        if following is None or not torch._C._will_engine_execute_node(following):
            run.stop()
        return (None, None, None, None, *final)


def _holds_gradient(edge: tuple[Any, int]) -> bool:
    """Whether an edge leads to a leaf that has a gradient already."""
    leaf = getattr(edge[0], "variable", None)
    return leaf is not None and leaf.grad is not None


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


_stage: Any = _Stage
_refuse: Any = _Refuse


def attach(
    run: Run,
    outputs: list[torch.Tensor],
    leaves: Sequence[Sequence[torch.Tensor]],
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
    """
    token: torch.Tensor | None = None
    run.device = next((o.device for o in outputs if o.device.type != "cpu"), outputs[0].device)
    for stage in range(len(leaves) - 1, 0, -1):
        token = _stage.apply(run, stage, None, token, *leaves[stage])
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
