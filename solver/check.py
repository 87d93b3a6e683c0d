"""An independent checker: shares no code with `simulate` or with any solver.

It works from the file's words, per tensor instead of per step: every instance of a tensor becomes
an interval of steps, reads must fall into an interval, and the peak is found by sweeping the
interval ends. A plan is returned or replayed only after it passed.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from .errors import CheckError, OtherGraphError
from .units import whole_number

if TYPE_CHECKING:
    from .graph import Graph
    from .plan import Plan


def check(graph: Graph, plan: Plan) -> None:
    """Raise unless `plan` is a valid schedule of `graph` with the peak and time that it claims.

    Raises
    ------
    CheckError
        With the first violation: another graph, a read of a missing tensor, a forbidden
        recomputation, an op or output left out, a wrong peak, a peak above the budget, a wrong
        time. Times come last: where a step was measured again, only they are others.
    """
    check_schedule(graph, plan)
    _check_memory(graph, plan)
    _check_times(graph, plan)


def _check_memory(graph: Graph, plan: Plan) -> None:
    """Raise unless all that the plan says of bytes is so."""
    peak = check_peak(graph, plan.steps)
    if peak != plan.peak_bytes:
        raise CheckError(f"the plan claims a peak of {plan.peak_bytes} B, it is {peak} B")
    made = {t for op in graph.ops for t in op.outputs}
    resident = sum(x.size_bytes for i, x in enumerate(graph.tensors) if i not in made)
    resident += graph.extra_resident_bytes
    if resident != plan.resident_bytes:
        raise CheckError(f"the plan claims {plan.resident_bytes} B resident, not {resident} B")
    adding = {t for op in graph.ops if op.kind == "lowtide.deliver" for t in op.inputs}
    held = sum(graph.tensors[t].size_bytes for t in adding if t not in made)
    if held != plan.existing_gradient_bytes:
        raise CheckError(
            f"the plan claims {plan.existing_gradient_bytes} B of existing gradients, not {held} B"
        )
    if plan.peak_bytes > plan.budget_bytes:
        raise CheckError(f"peak {plan.peak_bytes} B is above the budget {plan.budget_bytes} B")


def _check_times(graph: Graph, plan: Plan) -> None:
    """Raise unless all that the plan says of times is so; its schedule and bytes are."""
    words = [word.split(" ") for word in plan.steps]
    spent = sum(graph.ops[int(n)].time_ns for verb, n in words if verb == "compute")
    base, unit = sum(op.time_ns for op in graph.ops), graph.time_unit
    todo = "solve again for the graph's, or replay the plan as it is"
    if spent != plan.time_ns and base != plan.base_time_ns:
        raise CheckError(
            f"the op times of {graph.name} are others than the plan was made with (measured "
            f"again?): without recomputation {base} {unit}, in the plan {plan.base_time_ns} "
            f"{unit}; schedule, peak and budget are right: {todo}"
        )
    if spent != plan.time_ns:
        raise CheckError(
            f"the plan claims {plan.time_ns} {unit}, its schedule takes {spent} {unit}"
        )
    if base != plan.base_time_ns:
        raise CheckError(
            f"the plan claims {plan.base_time_ns} {unit} without recomputation, not {base}"
        )
    if plan.calibration != graph.calibration:
        raise CheckError(
            "the plan tells its overhead by another calibration than the graph's (steps timed "
            f"again?); schedule, peak, budget and op times are right: {todo}"
        )
    if plan.lower_bound_ns > plan.time_ns:
        raise CheckError(
            f"the lower bound of {plan.lower_bound_ns} {unit} is above the time "
            f"{plan.time_ns} {unit}"
        )


def check_schedule(graph: Graph, plan: Plan) -> None:
    """Raise unless the plan is for `graph` and its steps can run; says nothing of peak and time."""
    if plan.graph_hash != graph.structure_hash:
        raise OtherGraphError(
            f"the plan was made for another graph ({plan.graph_name}, {plan.graph_hash[:12]}) than "
            f"{graph.name} ({graph.structure_hash[:12]}): capture and solve again"
        )
    producer = {t: i for i, op in enumerate(graph.ops) for t in op.outputs}
    alive: set[int] = set()
    runs = [0] * len(graph.ops)
    for position, word in enumerate(plan.steps):
        verb, _, digits = word.partition(" ")
        number = whole_number(digits)
        index = -1 if number is None else number
        limit = len(graph.ops) if verb == "compute" else len(graph.tensors)
        if verb not in ("compute", "free") or not 0 <= index < limit:
            raise CheckError(f"step {position} is {word[:40]!r}: no such step in {graph.name}")
        if verb == "free":
            if index not in alive:
                raise CheckError(f"step {position} frees tensor {index}, which is not in memory")
            if graph.tensors[index].output:
                raise CheckError(f"step {position} frees the output {graph.tensors[index].name}")
            alive.remove(index)
            continue
        op = graph.ops[index]
        missing = [t for t in op.inputs if t in producer and t not in alive]
        if runs[index] == 0 and op.restores in missing and runs[producer[op.restores]] > 0:
            missing.remove(op.restores)  # its time to be saved has come, and nobody wanted it
        if missing:
            raise CheckError(
                f"step {position} computes {op.name}, whose input "
                f"{graph.tensors[missing[0]].name} is not in memory"
            )
        runs[index] += 1
        if runs[index] > 1 and not op.recompute:
            raise CheckError(f"step {position} runs {op.name} again, which must run only once")
        alive.update(op.outputs)
    for index, count in enumerate(runs):
        if count == 0:
            raise CheckError(f"op {index} ({graph.ops[index].name}) never runs")
    for t in producer:
        if graph.tensors[t].output and t not in alive:
            raise CheckError(f"the output {graph.tensors[t].name} is missing at the end")


def check_peak(graph: Graph, steps: tuple[str, ...]) -> int:
    """Peak in bytes, resident ones included, found from the interval of every tensor instance."""
    total = len(steps)
    change = [0] * (total + 1)
    born: dict[int, int] = {}
    ends: dict[int, int] = {}
    seen: set[int] = set()
    only_again = _only_again(graph)
    for position, word in enumerate(steps):
        verb, number = word.split(" ")
        index = int(number)
        if verb == "free":
            if index in only_again and _last_compute(steps, position) == born[index]:
                del born[index]  # nobody put it back: it was not saved
                continue
            change[born.pop(index)] += graph.tensors[index].size_bytes
            change[ends.pop(index, position)] -= graph.tensors[index].size_bytes
            continue
        op = graph.ops[index]
        extra = op.workspace_bytes
        if index in seen and op.rerun_workspace_bytes >= 0:
            extra = op.rerun_workspace_bytes
        seen.add(index)
        if _in_place(graph, steps, position):
            ends[op.overwrites] = position  # from here on its bytes are the output's
        for t in op.outputs:
            if t in born:  # the second copy lives for this step only
                extra += graph.tensors[t].size_bytes
            else:
                born[t] = position
        change[position] += extra
        change[position + 1] -= extra
    for t, position in born.items():
        change[position] += graph.tensors[t].size_bytes
    made = {t for op in graph.ops for t in op.outputs}
    constant = graph.extra_resident_bytes
    constant += sum(x.size_bytes for i, x in enumerate(graph.tensors) if i not in made)
    return constant + max(accumulate(change[:total]), default=0)


def _only_again(graph: Graph) -> set[int]:
    """Tensors that ops read to put a state back, and for nothing else."""
    put_back = {op.restores for op in graph.ops}
    read = {t for op in graph.ops for t in op.inputs if t != op.restores}
    read |= {t for op in graph.ops if op.overwrites >= 0 for t in op.outputs}
    return {t for t in put_back - read if t >= 0 and not graph.tensors[t].output}


def _last_compute(steps: tuple[str, ...], position: int) -> int:
    """Position of the execution that a free follows."""
    while steps[position].startswith("free "):
        position -= 1
    return position


def _in_place(graph: Graph, steps: tuple[str, ...], position: int) -> bool:
    """Whether the op at `position` puts its output where an input was that is freed right after."""
    op = graph.ops[int(steps[position].removeprefix("compute "))]
    if op.overwrites < 0:
        return False
    one, other = graph.tensors[op.overwrites], graph.tensors[op.outputs[0]]
    word, following = f"free {op.overwrites}", position + 1
    while following < len(steps) and steps[following].startswith("free "):
        if steps[following] == word:
            return one.size_bytes == other.size_bytes
        following += 1
    return False
