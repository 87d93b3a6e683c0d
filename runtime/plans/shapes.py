"""Plans for other calls than the first: found by their guards, made on first sight, kept in memory.

A call is new if no plan's guard accepts it: another shape, data type, structure or mode, another
ambient autocast, other parameters trained. A plan never serves a call that its guard refuses.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ...frontends.torch.capture import capture_call
from ...frontends.torch.interface import LiteralGuard
from ...frontends.torch.outside.alike import same_literal
from ...solver.errors import LowtideError, ReplayError
from ...solver.plan import Stop
from ..distributed.fsdp import refuse_sharded
from ..guards.differences import differences, explain
from ..step.flatten import leaf_names
from ..wiring import Planned
from .plan_cache import adapted, solve_cached

if TYPE_CHECKING:
    from ..guards.difference import Difference
    from .settings import Settings

_log = logging.getLogger(__name__)

_AHEAD = "to plan it before training, give such a batch in fit(..., shapes=[...]) or to prepare()"
_TOLD_MOST = 100


class Shapes:
    """The plans of one module beside its first, the one used last in front.

    Not for use from several threads at once.
    """

    def __init__(self, settings: Settings, others: list[Planned] | None = None) -> None:
        self.settings = settings
        self.others = others or []
        self._told: set[str] = set()

    def copy(self, model: nn.Module, loss_fn: Any) -> Shapes:
        """The same plans for a copy of the module."""
        others = []
        for planned in self.others:
            captured = replace(planned.captured, model=model, loss_fn=loss_fn)
            sharded = planned.wiring.units is not None
            others.append(
                Planned.of(captured, planned.plan, exact=True)
                if sharded
                else planned._replace(captured=captured)
            )
        return Shapes(self.settings, others)

    def __getstate__(self) -> dict[str, Any]:
        """Captured steps and plans; the code is generated again."""
        return {
            "settings": self.settings,
            "others": [(planned.captured, planned.plan) for planned in self.others],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        others = [Planned.of(captured, plan, exact=True) for captured, plan in state["others"]]
        Shapes.__init__(self, state["settings"], others)

    def find(
        self, model: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Planned, list[torch.Tensor]] | None:
        """The plan that a call is for, and its inputs; the plan moves to the front."""
        for place, planned in enumerate(self.others):
            inputs = planned.wiring.guards.fast(model, loss_fn, args, kwargs)
            if inputs is not None:
                if place:
                    self.others.insert(0, self.others.pop(place))
                return planned, inputs
        return None

    def find_any_form(
        self, model: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Planned, list[torch.Tensor]] | None:
        """The same, also if positional and keyword arguments are mixed in another way."""
        found = self.find(model, loss_fn, args, kwargs)
        for planned in () if found is not None else tuple(self.others):
            again = planned.wiring.guards.normalise(model, args, kwargs)
            if again is not None:
                found = self.find(model, loss_fn, *again)
            if found is not None:
                break
        return found

    def meet(
        self, first: Planned, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Planned, list[torch.Tensor]] | None:
        """Deal with a call whose guards all refused it as it is written; None: run it plain.

        Raises
        ------
        ReplayError
            If the module itself was changed, or the policy is to refuse.
        LowtideError
            If the call cannot be captured, or its plan cannot meet the budget.
        KeyboardInterrupt
            If Ctrl-C ended the solve; the plan is kept.
        """
        model, loss_fn = first.captured.model, first.captured.loss_fn
        if first.wiring.units is not None:
            self.others = [planned.rewired(model) for planned in self.others]
        known = self.find_any_form(model, loss_fn, args, kwargs)
        if known is not None:
            return known
        found = self._differences(first, args, kwargs)
        self._refuse_outside(first, args, kwargs)
        policy = self.settings.on_new_shape
        if not _trains(model, loss_fn, args, kwargs):
            return None
        if policy == "refuse":
            raise self._refusal(found)
        if policy == "plain":
            self._tell(
                f"new call: {_words(found)}. It runs without a plan (on_new_shape='plain'), and "
                f"may take more memory than the budget; {_AHEAD}"
            )
            return None
        self._refuse_numbers(first, args, kwargs)
        planned = self.add(first, args, kwargs, ahead=False)
        if planned.plan.stopped_by is Stop.INTERRUPTED:
            raise KeyboardInterrupt
        inputs = planned.wiring.guards.fast(model, loss_fn, args, kwargs)
        if inputs is None:
            self.others.remove(planned)
            raise explain(planned.wiring.guards, model, loss_fn, args, kwargs)
        return planned, inputs

    def add(
        self, first: Planned, args: tuple[Any, ...], kwargs: dict[str, Any], *, ahead: bool
    ) -> Planned:
        """Capture and plan a call, and keep the plan; `ahead` says that nobody waits for it."""
        began = time.perf_counter()
        settings, step = self.settings, first.captured
        if first.wiring.units is None:  # of children that were sharded since, nothing can be said
            refuse_sharded(step.model, "this is a new kind of call")
        words = _words(self._differences(first, args, kwargs))
        refuse_sharded(step.model, words)
        _log.log(
            logging.INFO if ahead else logging.WARNING,
            "planning a new call (the solver may take %g s): %s", settings.solving.time_limit, words
        )  # fmt: skip
        try:
            with torch.enable_grad():
                captured = capture_call(
                    step.model, step.batch_style, args, kwargs, step.loss_fn,
                    times=settings.times, extra_resident_bytes=settings.extra_resident_bytes,
                    accumulate=settings.accumulate,
                )  # fmt: skip
                start = next(
                    (
                        plan
                        for p in (*self.others, first)
                        if (plan := adapted(p.plan, p.captured.graph, captured.graph)) is not None
                    ),
                    None,
                )
                plan, cached = solve_cached(
                    captured.graph, settings.budget_bytes, settings.solving, start=start
                )
        except LowtideError as error:
            error.args = (f"no plan for a new call ({words}): {error}", *error.args[1:])
            raise
        planned = Planned.of(captured, plan, exact=True)
        self.others.insert(0, planned)
        seconds = time.perf_counter() - began
        source = "from the cache, " if cached else ""
        _log.log(
            logging.INFO if ahead else logging.WARNING,
            "new call: %s. Planned in %.1f s (%splan %d): %s. %s",
            words, seconds, source, len(self.others) + 1, plan.summary, _AHEAD.capitalize(),
        )  # fmt: skip
        if len(self.others) > settings.max_plans:
            self.others.pop()
            self._tell(
                f"more than {settings.max_plans + 1} kinds of calls: the plan used longest ago is "
                "dropped, and made again when it is needed. Pad batches to few shapes, or raise "
                "max_plans"
            )
        return planned

    def _differences(
        self, first: Planned, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Difference]:
        """How a call differs from the first one.

        Raises
        ------
        ReplayError
            If the module is another one than it was.
        """
        step = first.captured
        found = list(differences(first.wiring.guards, step.model, step.loss_fn, args, kwargs))
        for difference in found:
            if difference.of_module:
                raise ReplayError(str(difference))
        return found

    def _refusal(self, found: list[Difference]) -> ReplayError:
        """What differs from the first call, and how such a call would be taken."""
        count = len(self.others)
        either = f", nor is any of {count + 1} plans for it" if count else ""
        return ReplayError(
            f"{_words(found[:1])}{either}, and on_new_shape='refuse' allows no other: {_AHEAD}"
        )

    def _refuse_numbers(
        self, first: Planned, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Refuse a number that no plan knows: a number that changes would be planned each time."""
        leaves, spec = pytree.tree_flatten((args, kwargs))
        alike = [
            p.captured.program for p in (first, *self.others) if p.captured.program.in_spec == spec
        ]
        for place, leaf in enumerate(leaves):
            guards = [program.guards[place] for program in alike]
            if type(leaf) not in (int, float) or not guards:
                continue
            known = [guard.value for guard in guards if isinstance(guard, LiteralGuard)]
            if not any(same_literal(leaf, value) for value in known):
                raise ReplayError(
                    f"{leaf_names(spec)[place]} is {leaf!r}, a number that no plan was made for, "
                    "and numbers are constants of a plan: pass it as a tensor, or plan it ahead "
                    "by prepare()"
                )

    def _refuse_outside(
        self, first: Planned, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """The same for numbers that the step reads elsewhere, in modules, globals, containers."""
        step, changed = first.captured, None
        for planned in (first, *self.others):
            found = differences(planned.wiring.guards, step.model, step.loss_fn, args, kwargs)
            number = next((difference for difference in found if difference.number), None)
            if number is None:
                return
            changed = changed or number
        raise ReplayError(f"{changed}, pass it as a tensor, or plan it ahead by prepare()")

    def _tell(self, text: str) -> None:
        """Log a line once."""
        if text not in self._told and len(self._told) < _TOLD_MOST:
            self._told.add(text)
            _log.warning("%s", text)


def _words(found: list[Difference]) -> str:
    """The first difference, and how many there are."""
    if not found:
        return "as the first one"
    more = len(found) - 1
    return found[0].what + (f" ({more} more difference{'s' * (more > 1)})" if more else "")


def _trains(model: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether anything can get a gradient; if not, there is no backward to plan."""
    tensors = [*model.parameters(), *pytree.tree_leaves((args, kwargs))]
    if isinstance(loss_fn, nn.Module):
        tensors += loss_fn.parameters()
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)
