"""Plans by hand: Chen et al.'s algorithms with what the user gives them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import pytest

from lowtide.frontends.chains import linear_chain, residual_chain, transformer, unet
from lowtide.solver.baselines import log_n, sqrt_n
from lowtide.solver.check import check
from lowtide.solver.checkpoint import checkpoint
from lowtide.solver.errors import InfeasibleError, InputError
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate

if TYPE_CHECKING:
    from lowtide.solver.graph import Graph, Op

CHAIN = linear_chain(16)
TRANSFORMER = transformer(4)


def peak(graph: Graph) -> int:
    """Without recomputation."""
    return simulate(graph, Schedule.keep_everything(graph)).peak_bytes


def forward_ns(graph: Graph) -> int:
    """Time of the forward phase."""
    return sum(op.time_ns for op in graph.ops if op.phase == "forward")


def test_segments_by_module_names() -> None:
    """Each named module is recomputed from its inputs; the others are kept."""
    modules = sorted({op.module for op in TRANSFORMER.ops if op.phase == "forward" and op.module})
    blocks = sorted({".".join(m.split(".")[:2]) for m in modules if m.split(".")[1:]})
    every = checkpoint(TRANSFORMER, segments=blocks)
    one = checkpoint(TRANSFORMER, segments=[blocks[0]])
    check(TRANSFORMER, every)
    assert every.peak_bytes < one.peak_bytes < peak(TRANSFORMER)
    assert 0 < one.overhead < every.overhead
    again = {TRANSFORMER.ops[op].module for op in recomputed(one.schedule)}
    assert all(module.startswith(blocks[0]) for module in again)


def recomputed(schedule: Schedule) -> set[int]:
    """Ops that run more than once."""
    computes = schedule.computes()
    return {op for op in computes if computes.count(op) > 1}


def test_segments_by_function_and_by_number() -> None:
    """A function may join what modules do not; a number is what `checkpoint_sequential` takes."""
    first = {op.name: i for i, op in enumerate(CHAIN.ops)}
    plan = checkpoint(
        CHAIN, segments=lambda op: first[op.name] // 4 if first[op.name] < 8 else None
    )
    assert {op for op in recomputed(plan.schedule)} <= set(range(8))
    equal = checkpoint(CHAIN, segments=4)
    assert equal.peak_bytes < peak(CHAIN)
    assert equal.time_ns <= sum(op.time_ns for op in CHAIN.ops) + forward_ns(CHAIN)
    assert checkpoint(CHAIN, segments=1).overhead == 0.0


def test_mirror_counts() -> None:
    """0 keeps; 1 recomputes once; more let an op run that often, for less memory."""
    forward = [op for op in CHAIN.ops if op.phase == "forward"]
    place = {op.name: i for i, op in enumerate(forward)}
    assert checkpoint(CHAIN, mirror=lambda op: 0).overhead == 0.0
    once = checkpoint(CHAIN, mirror=lambda op: int(place[op.name] % 4 != 3))
    twice = checkpoint(CHAIN, mirror=lambda op: 2 * int(place[op.name] % 4 != 3))
    assert twice.peak_bytes <= once.peak_bytes < peak(CHAIN)
    assert once.time_ns < twice.time_ns
    runs = [once.schedule.computes().count(i) for i in range(len(forward))]
    assert max(runs) == 2
    runs = [twice.schedule.computes().count(i) for i in range(len(forward))]
    assert max(runs) == 3
    assert min(runs) == 1


def test_cheap_results_are_dropped() -> None:
    """Only normalisations, activations, dropout and pooling run again."""
    kinds = ("conv", "aten.native_batch_norm", "aten.relu")
    ops = [
        msgspec.structs.replace(op, kind=kinds[i % 3], time_ns=100 if i % 3 == 0 else 1)
        if op.phase == "forward"
        else op
        for i, op in enumerate(CHAIN.ops)
    ]
    graph = msgspec.structs.replace(CHAIN, ops=tuple(ops))
    plan = checkpoint(graph, mirror="cheap")
    again = {graph.ops[op].kind for op in recomputed(plan.schedule)}
    assert again == set(kinds[1:])
    assert plan.peak_bytes < peak(graph)
    assert plan.overhead < 0.05


def test_bytes_and_boundary_function() -> None:
    """Borders come where the function allows them, the first time after B bytes."""
    size = 2**20
    fine = checkpoint(CHAIN, border_bytes=3 * size)
    coarse = checkpoint(CHAIN, border_bytes=3 * size, boundary=lambda op: op.name.endswith("0"))
    never = checkpoint(CHAIN, border_bytes=3 * size, boundary=lambda op: False)
    assert fine.schedule != coarse.schedule
    assert fine.overhead > 0.0
    assert never.overhead == 0.0


def test_depth_of_the_recursion() -> None:
    """Deeper is less memory and more time."""
    graph = linear_chain(64)
    plans = [checkpoint(graph, depth=d) for d in (1, 2, 3, 4)]
    peaks = [plan.peak_bytes for plan in plans]
    times = [plan.time_ns for plan in plans]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4
    assert times == sorted(times)
    assert checkpoint(graph, depth=1, branches=7).peak_bytes < plans[0].peak_bytes


def test_a_budget_is_met_or_refused() -> None:
    """The refusal names what the rule needs."""
    needs = checkpoint(CHAIN, segments=4).peak_bytes
    assert checkpoint(CHAIN, segments=4, budget=needs).budget_bytes == needs
    with pytest.raises(InfeasibleError, match=f"by segments needs .*{needs} B") as caught:
        checkpoint(CHAIN, segments=4, budget=needs - 1)
    assert caught.value.smallest_bytes == needs


def test_refusals() -> None:
    """One rule, known names, sensible numbers."""
    with pytest.raises(InputError, match="exactly one"):
        checkpoint(CHAIN)
    with pytest.raises(InputError, match="exactly one"):
        checkpoint(CHAIN, segments=2, depth=1)
    with pytest.raises(InputError, match="module 'nowhere'"):
        checkpoint(TRANSFORMER, segments=["nowhere"])
    for nothing in ([], [""], "", ["layers.0", " "]):
        with pytest.raises(InputError, match="no segment is named"):
            checkpoint(TRANSFORMER, segments=nothing)
    with pytest.raises(InputError, match="mirror counts 'dear'"):
        checkpoint(CHAIN, mirror="dear")
    with pytest.raises(InputError, match="between 1 and"):
        checkpoint(CHAIN, segments=0)
    with pytest.raises(InputError, match="at least 1"):
        checkpoint(CHAIN, depth=0)
    with pytest.raises(InputError, match="branches are of a recursion"):
        checkpoint(CHAIN, segments=3, branches=4)
    with pytest.raises(InputError, match="in a segment"):
        checkpoint(CHAIN, segments=lambda op: None)


@pytest.mark.parametrize("graph", [residual_chain(6), unet(3)], ids=lambda g: g.name)
def test_any_graph(graph: Graph) -> None:
    """Not only chains."""
    names = sorted({op.module for op in graph.ops if op.module and op.phase == "forward"})
    for plan in (
        checkpoint(graph, segments=names) if names else checkpoint(graph, segments=3),
        checkpoint(graph, mirror=lambda op: 1),
        checkpoint(graph, border_bytes=10 * 2**20),
        checkpoint(graph, depth=2),
    ):
        check(graph, plan)


def exponent(layers: list[int], values: list[float]) -> float:
    """Slope of the line through the logarithms, by least squares."""
    x = [math.log(n) for n in layers]
    y = [math.log(v) for v in values]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return top / sum((a - mx) ** 2 for a in x)


def test_asymptotics_of_sqrt_n_and_log_n() -> None:
    """Memory of chains of 16 to 4096 layers: n^0.5 at one more forward, log n at n log n time."""
    layers = [16, 64, 256, 1024, 4096]
    root, recursion, runs = [], [], []
    for n in layers:
        graph = linear_chain(n, size_bytes=1000)
        plain = simulate(graph, Schedule.keep_everything(graph))
        found = sqrt_n(graph, None)
        assert found is not None
        result = simulate(graph, found)
        root.append(result.peak_bytes / 1000)
        assert result.time_ns <= plain.time_ns + forward_ns(graph)
        deep = log_n(graph, None)
        assert deep is not None
        result = simulate(graph, deep)
        recursion.append(result.peak_bytes / 1000)
        runs.append((result.time_ns - plain.time_ns) / forward_ns(graph))
    assert exponent(layers, root) == pytest.approx(0.5, abs=0.06)
    # a + b log2 n: each fourfold adds about the same, and the exponent vanishes.
    assert exponent(layers[2:], recursion[2:]) < 0.25
    assert all(value <= 3 * math.log2(n) + 6 for n, value in zip(layers, recursion, strict=True))
    assert all(value <= math.log2(n) for n, value in zip(layers, runs, strict=True))


def test_ops_keep_their_types() -> None:
    """The functions get the graph's own ops."""
    seen: list[Op] = []
    checkpoint(CHAIN, mirror=lambda op: seen.append(op) or 0)  # type: ignore[func-returns-value]
    assert seen
    assert all(op.phase == "forward" for op in seen)
