"""Addresses: no overlap, no shorter than what is live, and as short as can be where proven."""

from __future__ import annotations

import itertools
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.frontends.chains import transformer
from lowtide.solver.control import Control
from lowtide.solver.errors import CheckError, InputError
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.memory.addresses import addresses, pack
from lowtide.solver.memory.blocks import Block, blocks_of
from lowtide.solver.memory.caching import MIB, CachingAllocator, reserved_bytes
from lowtide.solver.memory.exact import pack_exactly
from lowtide.solver.memory.pack import live_bytes, orders, padded, place
from lowtide.solver.memory.verify import check_addresses
from lowtide.solver.schedule import Schedule

from ..strategies import plan_of, with_computes

if TYPE_CHECKING:
    from collections.abc import Sequence


@st.composite
def intervals(draw: st.DrawFn, *, most: int = 12) -> list[Block]:
    """Blocks of random sizes and lifetimes."""
    found = []
    for _ in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, 12))
        size = draw(st.integers(1, 20))
        found.append(Block(size, first, first + draw(st.integers(0, 6))))
    return found


def overlaps(blocks: Sequence[Block], offsets: Sequence[int]) -> bool:
    """Whether two blocks that are live together share a byte, seen pair by pair."""
    return any(
        a.first <= b.last and b.first <= a.last and x < y + b.size_bytes and y < x + a.size_bytes
        for (a, x), (b, y) in itertools.combinations(zip(blocks, offsets, strict=True), 2)
    )


@settings(max_examples=60, deadline=None)
@given(intervals(), st.sampled_from([1, 4, 64]))
def test_rules_never_overlap_and_respect_the_bound(blocks: list[Block], alignment: int) -> None:
    """Every rule of thumb gives aligned offsets without overlap, and no buffer below what lives."""
    bound = live_bytes(blocks, alignment)
    shortest = None
    for order in orders(blocks).values():
        offsets = place(blocks, order, alignment)
        assert not overlaps(blocks, offsets)
        assert all(offset % alignment == 0 for offset in offsets)
        ends = [o + padded(block, alignment) for o, block in zip(offsets, blocks, strict=True)]
        assert max(ends, default=0) >= bound
        shortest = min(max(ends, default=0), max(ends, default=0) if shortest is None else shortest)
    found = pack(blocks, alignment)
    assert found.arena_bytes == shortest or found.proven
    assert found.lower_bound_bytes == bound


def _optimum(blocks: Sequence[Block]) -> int:
    """Shortest buffer by trying every order: one of them pushed down is an optimum."""
    best = sum(block.size_bytes for block in blocks)
    for order in itertools.permutations(range(len(blocks))):
        offsets = [0] * len(blocks)
        for done, i in enumerate(order):
            below = [
                offsets[j] + blocks[j].size_bytes
                for j in order[:done]
                if blocks[i].first <= blocks[j].last and blocks[j].first <= blocks[i].last
            ]
            offsets[i] = max(below, default=0)
        best = min(best, max(o + b.size_bytes for o, b in zip(offsets, blocks, strict=True)))
    return best


@settings(max_examples=25, deadline=None)
@given(intervals(most=6))
def test_exact_is_the_optimum(blocks: list[Block]) -> None:
    """Rules of thumb >= constraint programming = enumeration >= live bytes."""
    rough = pack(blocks, 1)
    bound = live_bytes(blocks, 1)
    offsets, proven = pack_exactly(
        blocks, 1, rough.offsets, lower_bound=bound, control=Control(30.0), seed=0, threads=1
    )
    assert not overlaps(blocks, offsets)
    ends = [o + block.size_bytes for o, block in zip(offsets, blocks, strict=True)]
    length = max(ends, default=0)
    assert rough.arena_bytes >= length == proven >= bound
    if blocks:
        assert length == _optimum(blocks)


@settings(max_examples=60, deadline=None)
@given(with_computes())
def test_any_schedule_gets_addresses(case: tuple[Graph, list[int]]) -> None:
    """Second copies, workspaces, overwritten inputs: what lives is what `simulate` counts."""
    graph, computes = case
    plan = plan_of(graph, computes)
    found = addresses(graph, plan, alignment=1)  # checked inside
    last = graph.resident_bytes + found.live_bytes
    assert last == plan.peak_bytes
    assert found.arena_bytes >= found.lower_bound_bytes == found.live_bytes
    bare = addresses(graph, plan, workspace=False)
    assert set(bare.of) == {make for make in found.of if make[1] >= 0}


def _chain(overwrites: int = -1) -> Graph:
    return Graph(
        "chain",
        (
            Op("a", "k", 1, (), (0,), workspace_bytes=100),
            Op("b", "k", 1, (0,), (1,), overwrites=overwrites),
            Op("c", "k", 1, (1,), (2,)),
        ),
        (Tensor("a", 128), Tensor("b", 128), Tensor("c", 1, output=True)),
    )


def test_an_overwritten_input_hands_on_its_place() -> None:
    """One block for both; without the right to overwrite there are two."""
    graph = _chain(0)
    plan = plan_of(graph, [0, 1, 2])
    found = addresses(graph, plan)
    assert found.of[0, 0] == found.of[1, 1]
    assert found.arena_bytes == 128 + 128
    assert found.proven
    assert found.lower_bound_bytes == 256
    assert found.live_bytes == 228
    assert found.fragmentation == pytest.approx(1 - 228 / 256)
    plain = _chain()
    assert len(blocks_of(plain, Schedule.keep_everything(plain))) == 1 + len(found.blocks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({(1, 1): 0}, "b, made by execution 1 .b., lies on a: bytes 0 to 128"),
        ({(1, 1): 3}, "has no place"),
        ({(1, 1): 1 << 20}, "has no place"),
        ({(0, -1): 64}, "a workspace, made by execution 0 .a., lies on a"),
    ],
)
def test_checker_finds_what_is_wrong(change: dict[tuple[int, int], int], message: str) -> None:
    """Overlaps, misaligned offsets and places outside the buffer are named."""
    graph = _chain()
    plan = plan_of(graph, [0, 1, 2])
    found = addresses(graph, plan)
    check_addresses(graph, plan, found.of, found.arena_bytes, 64)
    with pytest.raises(CheckError, match=message):
        check_addresses(graph, plan, {**found.of, **change}, found.arena_bytes, 64)
    missing = {make: offset for make, offset in found.of.items() if make != (2, 2)}
    with pytest.raises(CheckError, match="has no place"):
        check_addresses(graph, plan, missing, found.arena_bytes, 64)


def test_exact_goes_on_from_the_rules_of_thumb() -> None:
    """On a training step, proof or not: no longer than before, and no shorter than its bound."""
    graph = transformer(1)
    plan = plan_of(graph, range(len(graph.ops)))
    rough, exact = addresses(graph, plan), addresses(graph, plan, exact=True, time_limit=1.0)
    assert rough.arena_bytes >= exact.arena_bytes >= exact.lower_bound_bytes
    assert exact.lower_bound_bytes >= rough.lower_bound_bytes


def test_other_graphs_and_alignments_are_refused() -> None:
    """A plan of another graph, or an alignment of nothing, is one clear error."""
    graph = _chain()
    with pytest.raises(CheckError, match="another graph"):
        addresses(_chain(0), plan_of(graph, [0, 1, 2]))
    with pytest.raises(InputError, match="alignment"):
        addresses(graph, plan_of(graph, [0, 1, 2]), alignment=0)
    with pytest.raises(InputError, match="alignment"):
        addresses(graph, plan_of(graph, [0, 1, 2]), alignment=10**23)


def test_caching_allocator_by_hand() -> None:
    """Segments of 2, 20 and more MiB; best fit, split, merge; nothing goes back."""
    allocator = CachingAllocator()
    small = [allocator.allocate(n) for n in (1, 513, MIB)]
    assert small == [0, 512, 1536]
    assert allocator.reserved_bytes == 2 * MIB
    first = allocator.allocate(3 * MIB)
    second = allocator.allocate(4 * MIB)
    assert (first, second) == (2 * MIB, 5 * MIB)
    assert allocator.reserved_bytes == 22 * MIB
    allocator.release(first)
    assert allocator.allocate(2 * MIB + 1) == first  # tightest; less than 1 MiB is left: not split
    allocator.allocate(13 * MIB)
    assert allocator.reserved_bytes == 22 * MIB
    large = allocator.allocate(11 * MIB - 5)
    assert allocator.reserved_bytes == 34 * MIB
    for address in (large, second):
        allocator.release(address)
    assert allocator.allocate(12 * MIB) == large
    assert allocator.reserved_bytes == 34 * MIB


@settings(max_examples=60, deadline=None)
@given(intervals(most=40))
def test_caching_allocator_never_reserves_less(blocks: list[Block]) -> None:
    """What it reserves is no less than what is live, in its own unit."""
    wide = [Block(block.size_bytes * 100_000, block.first, block.last) for block in blocks]
    assert reserved_bytes(wide) >= live_bytes(wide, 512)
    assert reserved_bytes(wide) % (2 * MIB) == 0


def test_ctrl_c_ends_the_proof_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """No exception, and the flag says that it happened."""

    def pressed(*args: Any, **kwargs: Any) -> tuple[list[int], int]:
        signal.raise_signal(signal.SIGINT)
        return pack_exactly(*args, **kwargs)

    monkeypatch.setattr("lowtide.solver.memory.addresses.pack_exactly", pressed)
    graph = transformer(2)
    plan = plan_of(graph, range(len(graph.ops)))
    rough, interrupt = addresses(graph, plan), threading.Event()
    assert not rough.proven
    found = addresses(graph, plan, exact=True, time_limit=60.0, interrupt=interrupt)
    assert interrupt.is_set()
    assert found.arena_bytes <= rough.arena_bytes
