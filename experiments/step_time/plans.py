"""Plans of lowtide at a rival's peak, and at its time."""

from __future__ import annotations

import lowtide
from lowtide.solver.errors import InfeasibleError, NoPlanError
from lowtide.solver.plan import Stop

GAP = 2e-3  # well below what a measured step tells
NEAR = 0.02  # two budgets this close, as a share of the larger, are one
DOWN = 0.7  # the next budget to try, as a share, while nothing below is known
SOLVES = 3  # for each time, at most


class Frontier:
    """Plans of one step by their budgets; each solve starts from what the others found.

    Parameters
    ----------
    graph
        The step.
    time_limit
        Seconds for each solve.
    """

    def __init__(self, graph: lowtide.Graph, time_limit: float) -> None:
        self.graph, self.time_limit = graph, time_limit
        self.plans = [self._solve("max", None)]
        self.floor = 0  # no plan was found within so many bytes, without resident ones

    @property
    def unplanned(self) -> lowtide.Plan:
        """The step as it is."""
        return self.plans[0]

    def room(self, plan: lowtide.Plan) -> int:
        """Peak beyond the resident bytes."""
        return plan.peak_bytes - self.graph.resident_bytes

    def within(self, room: int) -> lowtide.Plan | None:
        """A fast plan whose peak is at most `room` beyond the resident bytes."""
        start = min(
            (plan for plan in self.plans if self.room(plan) <= room),
            key=lambda plan: plan.time_ns, default=None,
        )  # fmt: skip
        budget = self.graph.resident_bytes + room
        try:
            plan = self._solve(budget, start)
        except (InfeasibleError, NoPlanError):
            self.floor = max(self.floor, room)
            return None
        self.plans.append(plan)
        return plan

    def within_time(self, overhead: float) -> lowtide.Plan | None:
        """The smallest plan that is predicted to take no more than `overhead` beyond the step.

        The curve of time over memory falls ever less steeply: the budget where the straight line
        between a plan that is too slow and one that is not meets the wanted time has a plan that
        is fast enough, and the next line begins there.
        """
        for _ in range(SOLVES):
            fast = self._fast(overhead)
            if fast is None:
                return None
            room = self.room(fast)
            below = (plan for plan in self.plans if self.room(plan) < room)
            slow = max(
                (plan for plan in below if plan.overhead > overhead), key=self.room, default=None
            )
            low = max(self.floor, 0 if slow is None else self.room(slow))
            if room - low <= NEAR * room:
                break
            if slow is None:
                aim = max(int(DOWN * room), (low + room) // 2 if low else 0)
            else:
                share = (slow.overhead - overhead) / (slow.overhead - fast.overhead)
                aim = low + int(share * (room - low))
                aim = min(max(aim, low + (room - low) // 5), room - (room - low) // 10)
            self.within(aim)
        return self._fast(overhead)

    def curve(self, overhead: float) -> list[lowtide.Plan]:
        """Plans up to `overhead` by falling peak, each slower than those before it."""
        found: list[lowtide.Plan] = []
        for plan in sorted(self.plans, key=lambda plan: (plan.time_ns, plan.peak_bytes)):
            clear = not found or self.room(plan) < (1 - NEAR) * self.room(found[-1])
            if clear and plan.overhead <= overhead:
                found.append(plan)
        return found

    def _solve(self, budget: str | int, start: lowtide.Plan | None) -> lowtide.Plan:
        plan = lowtide.solve(self.graph, budget, time_limit=self.time_limit, gap=GAP, start=start)
        if plan.stopped_by is Stop.INTERRUPTED:
            raise KeyboardInterrupt
        return plan

    def _fast(self, overhead: float) -> lowtide.Plan | None:
        fast = (plan for plan in self.plans if plan.overhead <= overhead)
        return min(fast, key=self.room, default=None)
