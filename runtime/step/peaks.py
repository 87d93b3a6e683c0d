"""What a step takes beyond its plan in calls for which the plan is not, and what is said then.

Gradients of an earlier backward, gradients from a loss outside, inputs with a history: whether they
come shows when the step runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...frontends.torch.deliveries import is_accumulating
from ...frontends.torch.gradients import own_copy
from ...solver.simulate import peak_on_existing, simulate
from ...solver.units import format_bytes
from .passed_on import copied_inputs, more_bytes

if TYPE_CHECKING:
    from ...frontends.torch.program import Program
    from ...solver.graph import Graph
    from ...solver.schedule import Schedule
    from ..generate.code import StepCode


def existing_peak(program: Program, code: StepCode, graph: Graph, schedule: Schedule) -> int:
    """Predicted peak, in bytes, of a step that adds to gradients of an earlier backward.

    `graph` is the program's, or that with an arena.
    """
    if is_accumulating(graph):
        return simulate(graph, schedule).peak_bytes
    leaving = []
    for end, stage in zip(code.stage_ends, code.stages, strict=True):
        for spec in (program.gradients[g] for g in stage):
            if spec.value is not None and program.inputs[spec.input].kind == "param":
                leaving.append((end, program.value_tensor[spec.value]))
    return peak_on_existing(graph, schedule, leaving)


def begun_peak(code: StepCode, graph: Graph, schedule: Schedule) -> int:
    """Predicted peak at the beginnings of sums if something came before; 0 without such."""
    if not code.extra:
        return 0
    during = simulate(graph, schedule).during_bytes
    return max(during[place] + size for place, size in code.extra)


def gaps_peak(program: Program, graph: Graph, schedule: Schedule) -> int:
    """Largest peak with gradients that are passed on with gaps in them; 0 without such."""
    more = more_bytes(program)
    if not more:
        return 0
    copies = {own_copy(program, g) for g in copied_inputs(program)}
    first = next(i for i, op in enumerate(schedule.computes()) if op in copies)
    return max(simulate(graph, schedule).during_bytes[first:]) + more


def existing_words(need: int, budget: int) -> str:
    """What is said if a backward finds gradients, and the step then takes `need` bytes."""
    return (
        "this backward adds to gradients that are there already: the step then needs "
        f"{_amount(need)}, more than its budget of {_amount(budget)}, for the plan is for steps "
        "that begin without gradients. Capture or fit with accumulate=True, or call zero_grad() "
        "before each step"
    )


def begun_words(need: int, budget: int) -> str:
    """The same of gradients from elsewhere."""
    return (
        "gradients from a loss outside of the module, or from a later call, came before this "
        "backward: to begin its sums with them, as plain PyTorch does, it needs "
        f"{_amount(need)}, more than its budget of {_amount(budget)}. Give the whole loss as "
        "loss_fn, or a larger budget"
    )


def gaps_words(need: int, budget: int) -> str:
    """The same of an input with a history."""
    return (
        "an input of the module is the result of something outside, and gets its gradient with "
        f"gaps, as in plain PyTorch: the step then needs at most {_amount(need)}, more than its "
        f"budget of {_amount(budget)}. Detach the input, or give a larger budget"
    )


def _amount(size: int) -> str:
    return f"{format_bytes(size)} ({size} B)"
