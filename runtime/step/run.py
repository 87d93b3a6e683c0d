"""What a forward of a replayed step leaves for its backward, and how that runs.

Parameters are never saved through autograd (wrappers like FSDP exchange them); what it would have
checked, that nothing read by backward was changed in place, is checked here.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch

from ...solver.errors import ReplayError
from ..guards.transforms import batched_error, in_batches
from ..guards.whereabouts import address
from .quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from ...frontends.torch.switches import Running
    from ..distributed.fsdp import Units
    from ..generate.code import StepCode
    from ..generate.sums import Sums
    from ..guards.shared_casts import CastContext
    from ..guards.whereabouts import Whereabouts
    from .probes import Probe, Seeds
    from .tangents import Tangent

_FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


_private: Any = torch._C
_version = attrgetter("_version")
_NONE: frozenset[int] = frozenset()


class Run:
    """What one forward leaves for its backward.

    Attributes
    ----------
    code
        The generated step.
    tangents
        For each tangent: which gradient of which output it is.
    saved
        Values that backward needs; None once a backward has consumed them.
    watched, versions, names
        Tensors that backward reads and others can change, their versions after forward, and what
        to call them.
    whereabouts, lay
        Where these lay in forward; None if they may move.
    settings
        What backward may run otherwise than forward did, and how it was in forward; None if
        backward runs nothing again.
    sums
        Gradients that are sums; None if there are none such.
    given, seeds
        What the running backward was given, and its probes, if there are sums.
    units
        Sharded units whose parameters the code asks for; None without.
    alarm
        Called by a backward that finds gradients to add to, if the budget does not allow for them.
    owners
        Leaves in which it looks for these.
    casts
        The autocast context whose casts it shares with other calls; None if it shares none.
    absent, backward
        Places of tangents that did not arrive in the running backward, and its code.
    passed_on
        Gradients of inputs that have a history.
    keeping
        Whether the running backward leaves the saved values for another one.
    """

    # Most runs leave these as they are.
    whereabouts: Whereabouts | None = None
    lay: list[int]
    units: Units | None = None
    alarm: Callable[[], None] | None = None
    owners: Sequence[torch.Tensor] = ()
    casts: CastContext | None = None
    settings: tuple[Running, list[Any]] | None = None
    sums: Sums | None = None
    seeds: Seeds
    given: list[Any]
    absent = _NONE
    passed_on = _NONE
    keeping = False
    running: Generator[int | None, None, None] | None = None
    taken: list[torch.Tensor]
    backward: Callable[..., Any]

    def __init__(
        self,
        code: StepCode,
        tangents: Sequence[Tangent],
        saved: list[Any],
        watched: Sequence[torch.Tensor],
        names: Sequence[str],
    ) -> None:
        self.code = code
        self.tangents = tangents
        self.saved: list[Any] | None = saved
        self.watched = watched
        self.versions = [*map(_version, watched)]
        self.names = names

    def start(self, gradients: Sequence[torch.Tensor | None]) -> list[Any]:
        """What a backward is given, for `whole` or `begin`.

        Returns
        -------
        list
            What the generated code takes: what forward left, and the tangents.

        Raises
        ------
        RuntimeError
            As PyTorch does: on a second backward without `retain_graph`, and if a tensor that
            backward reads was changed in place since forward.
        ReplayError
            If a setting that kernels read is another one than in forward, and some run again; if
            several gradients of outputs come at once, as one batched tensor.
        """
        if in_batches():
            raise batched_error()
        saved = self.saved
        if saved is None:
            raise RuntimeError(_FREED)
        if [*map(_version, self.watched)] != self.versions:
            raise self._changed()
        if self.whereabouts is not None and [*map(address, self.watched)] != self.lay:
            self._stay(self.whereabouts)
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
        self.keeping = _private._autograd._get_current_graph_task_keep_graph()
        if self.keeping:
            saved = _kept(saved, self.code.overwritten)
        else:
            self.saved = None
            self.watched, self.versions, self.lay = (), [], []
        given: list[Any] = [saved]
        absent = []
        for place, tangent in enumerate(self.tangents):
            gradient = tangent.arrived(gradients)
            if gradient is None:
                absent.append(place)
                given.append(None)
            else:
                given.append(tangent.fitted(gradient))
        self.absent = frozenset(absent) if absent else _NONE
        self.backward = self.code.backward
        if absent or self.passed_on:
            self.backward = self.code.without(self.absent, self.passed_on)
        if self.alarm is not None and any(leaf.grad is not None for leaf in self.owners):
            self.alarm()
        return given

    def probe(self, gradients: Sequence[torch.Tensor | None]) -> list[Probe | None]:
        """Start a backward with sums: what to send to the tensors whose gradients they are."""
        assert self.sums is not None
        self.given = self.start(gradients)
        self.seeds = self.sums.seeds(self.absent)
        return self.seeds.probes

    def probed(self) -> list[Any]:
        """What the generated code of a backward with sums takes: what came before as well."""
        assert self.sums is not None
        given, self.given = self.given, []
        found = self.seeds.close()
        if found:
            self.sums.tell(self.seeds)
        given.append(self.seeds if found else None)
        return given

    def _changed(self) -> RuntimeError:
        """What was changed in place, in PyTorch's words."""
        tensor, version, name = next(
            item
            for item in zip(self.watched, self.versions, self.names, strict=True)
            if item[0]._version != item[1]
        )
        return RuntimeError(
            "one of the variables needed for gradient computation has been modified by an "
            f"inplace operation: {name} ({tensor.type()} {list(tensor.shape)}) is at "
            f"version {tensor._version}; expected version {version} instead"
        )

    def _stay(self, whereabouts: Whereabouts) -> None:
        """Refuse memory that was exchanged since forward, which changes no version."""
        place = whereabouts.moved(self.watched, self.lay)
        if place >= 0:
            raise ReplayError(
                f"{self.names[place]} was given other memory (.data = ..., .to(), set_()) between "
                "forward and backward, which reads it: exchange it before or after both"
            )

    def whole(self, given: list[Any]) -> Sequence[torch.Tensor | None]:
        """A backward that does not stop: all gradients at once."""
        with quiet():
            made = self.backward(*given)
        return self._leaving(made, 0) if self.keeping or self.absent else made

    def begin(self, given: list[Any]) -> None:
        """Begin a backward that stops."""
        saved, *tangents = given
        self.taken = []
        self.running = self.backward(saved, self.taken.append, *tangents)

    def advance(self, stage: int) -> Sequence[torch.Tensor | None]:
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
        gradients = self._leaving(self.taken, stage)
        self.taken.clear()
        return gradients

    def _leaving(self, made: Sequence[torch.Tensor], stage: int) -> list[torch.Tensor | None]:
        """The gradients of a stage as autograd gets them."""
        gradients: list[torch.Tensor | None] = [*made]
        code = self.code
        if self.keeping and code.early:
            # The next backward hands out the same memory: this one's caller gets a copy.
            for place, gradient in enumerate(code.stages[stage]):
                if gradient in code.early:
                    gradients[place] = made[place].clone()
        if self.absent:
            for place, gradient in enumerate(code.stages[stage]):
                behind = code.tangents_behind[gradient]
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
