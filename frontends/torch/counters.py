"""Numbers that a step changes itself: counters, which it may keep, but not compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ...solver.errors import CaptureError
from . import export
from .dry_run import renew

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .export import Joint
    from .step import Step


def refuse_counted(step: Step, mode: Any, joint: Joint, counters: Iterable[str]) -> None:
    """Trace a step again, now that its counters are others: it has to be the same.

    Parameters
    ----------
    step, mode, joint
        What was traced, and the joint graph that came of it.
    counters
        Labels of the numbers that it changes.

    Raises
    ------
    CaptureError
        If it is not the same: a replay would go on with the numbers of the trace.
    """
    for shift in (False, True):
        renew(step.sources, mode)
        if shift:  # a trace may count by two: once more alone, so that odd and even are seen
            with mode:
                step.run(tuple(source.fake for source in step.sources), _unknown)
            renew(step.sources, mode)
        again = export.export_joint(step, [source.fake for source in step.sources])
        if not same_step(joint, again):
            raise CaptureError(
                f"the step changes {' and '.join(sorted(counters))} and is another one then; a "
                "replay would repeat the first: keep such a number in a tensor (a buffer), or give "
                "it as input"
            )


def _unknown(tensor: torch.Tensor) -> torch.Tensor:
    raise CaptureError("the step closes over another tensor each time that it runs")


def same_step(one: Joint, other: Joint) -> bool:
    """Whether two joint graphs have the same operators, numbers and constants."""
    if (one.arguments, one.results) != (other.arguments, other.results):
        return False
    nodes, others = list(one.module.graph.nodes), list(other.module.graph.nodes)
    if len(nodes) != len(others):
        return False
    place = {node: index for index, node in enumerate(nodes)}
    place |= {node: index for index, node in enumerate(others)}

    def written(node: fx.Node) -> list[Any]:
        """What a node calls, and with what; repr tells 1 from 1.0 and finds NaN equal."""
        leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
        words = [place[leaf] if isinstance(leaf, fx.Node) else repr(leaf) for leaf in leaves]
        return [node.op, node.target if node.op == "call_function" else "", str(spec), *words]

    for node, twin in zip(nodes, others, strict=True):
        if written(node) != written(twin):
            return False
        if node.op == "get_attr" and not _same_constant(
            getattr(one.module, node.target), getattr(other.module, twin.target)
        ):
            return False
    return True


def _same_constant(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)
