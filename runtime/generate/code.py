"""What the code generator hands to the runtime: two functions and what to know about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Sharding:
    """Which parameters come and go with sharded units.

    Attributes
    ----------
    of_input
        Place of a parameter in the inputs (tangents not counted), to its unit.
    outside
        For each unit the one around it, or -1; an outer unit has the smaller number.
    """

    of_input: dict[int, int] = field(default_factory=dict)
    outside: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepCode:
    """The generated code of one training step.

    Attributes
    ----------
    source
        Source text of all generated functions.
    forward
        `forward(inputs) -> (outputs, saved)`: the output values, and the list of what backward
        needs. With sharded units it is a generator function, which returns the same; it yields a
        unit that comes in and is sent its parameters, and yields `-1 - unit` when that goes out.
    staged
        Whether backward stops: there is more than one stage, or there are sharded units.
    backward
        `backward(saved, *tangents)`: empties `saved`, and returns the gradients; with gradients
        that are sums it takes `Seeds`, or None, as well. If it is staged, a generator function
        `backward(saved, push, *tangents)`, which pushes gradients and yields
        None at the end of each stage but the last, and a sharded unit that comes in.
    alias_outputs
        `alias_outputs(inputs) -> tuple`: outputs that are or view an input, made by ordinary calls
        so that autograd sees them; None if there are none.
    output_values
        The values that `forward` returns.
    leaves
        For each output leaf: ("value", i) into what `forward` returns, ("alias", i) into what
        `alias_outputs` returns, or ("literal", leaf).
    stages
        For each stage: gradients (indices into `Program.gradients`), in the order of the pushes.
    stage_ends
        For each stage: the execution of the schedule (its place among them) after which it ends.
    tangents_behind
        For each of `Program.gradients`: places of the tangents that it depends on.
    early
        Gradients (indices into `Program.gradients`) that forward makes and backward hands over.
    overwritten
        Places in `saved` of values whose memory backward may use for something else.
    saved_outputs
        Pairs (place in `saved`, place in the outputs) of output values that backward reads.
    without
        Gives `backward` for places of tangents that do not arrive (None is passed for these) and
        gradients of inputs that have a history.
    done
        For each stage: sharded units whose parameters and gradients are done with after it.
    begun
        Sums (places in `sums_of`) to which backward adds what came before.
    extra
        Pairs (execution of the schedule, bytes): what that takes there beyond the schedule.
    watched_outputs, watched_inputs
        Places of outputs and inputs (tangents not counted) whose storage backward reads.
    """

    source: str
    staged: bool
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    alias_outputs: Callable[..., Any] | None
    output_values: tuple[int, ...]
    leaves: tuple[tuple[str, int], ...]
    stages: tuple[tuple[int, ...], ...]
    stage_ends: tuple[int, ...]
    tangents_behind: tuple[frozenset[int], ...]
    early: frozenset[int]
    overwritten: tuple[int, ...]
    saved_outputs: tuple[tuple[int, int], ...]
    watched_outputs: tuple[int, ...]
    watched_inputs: tuple[int, ...]
    without: Callable[[frozenset[int], frozenset[int]], Callable[..., Any]]
    done: tuple[tuple[int, ...], ...] = ()
    begun: frozenset[int] = frozenset()
    extra: tuple[tuple[int, int], ...] = ()
