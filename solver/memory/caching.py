"""What PyTorch's caching allocator on CUDA takes for a schedule, on paper.

The rules are those of `CUDACachingAllocator` with its default settings: sizes in blocks of 512
bytes; up to 1 MiB from segments of 2 MiB, up to 10 MiB from segments of 20 MiB, larger ones from
segments of their own, in steps of 2 MiB; the smallest free block that fits, split if enough is
left; neighbours merge when freed; segments are never given back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .blocks import Block

MIB = 1 << 20
BLOCK, SMALL, SMALL_SEGMENT = 512, MIB, 2 * MIB
LARGE, LARGE_SEGMENT, STEP = 10 * MIB, 20 * MIB, 2 * MIB


@dataclass
class _Piece:
    """A stretch of a segment, in use or free."""

    start: int
    size: int
    small: bool
    before: _Piece | None = None
    after: _Piece | None = None
    free: bool = False


class CachingAllocator:
    """Segments and their pieces.

    Attributes
    ----------
    reserved_bytes
        Sum of all segments.
    """

    def __init__(self) -> None:
        self.reserved_bytes = 0
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._at: dict[int, _Piece] = {}

    def allocate(self, size: int) -> int:
        """Address of a new block of at least `size` > 0 bytes."""
        size = -(-size // BLOCK) * BLOCK
        small = size <= SMALL
        pool = self._free[small]
        place = bisect_left(pool, (size, -1))
        fits = place < len(pool)
        piece = self._at[pool.pop(place)[1]] if fits else self._segment(size, small)
        piece.free = False
        left = piece.size - size
        if left >= BLOCK if small else left > SMALL:
            rest = _Piece(piece.start + size, left, small, piece, piece.after, True)
            if piece.after is not None:
                piece.after.before = rest
            piece.size, piece.after = size, rest
            self._at[rest.start] = rest
            insort(pool, (rest.size, rest.start))
        return piece.start

    def release(self, address: int) -> None:
        """Free the block at `address`."""
        piece = self._at[address]
        pool = self._free[piece.small]
        for other in (piece.before, piece.after):
            if other is None or not other.free:
                continue
            del pool[bisect_left(pool, (other.size, other.start))]
            low, high = (other, piece) if other is piece.before else (piece, other)
            low.size += high.size
            low.after = high.after
            if high.after is not None:
                high.after.before = low
            del self._at[high.start]
            piece = low
        piece.free = True
        insort(pool, (piece.size, piece.start))

    def _segment(self, size: int, small: bool) -> _Piece:
        length = -(-size // STEP) * STEP
        if small:
            length = SMALL_SEGMENT
        elif size < LARGE:
            length = LARGE_SEGMENT
        # Segments do not touch: pieces of two of them never merge.
        piece = _Piece(self.reserved_bytes, length, small)
        self.reserved_bytes += length
        self._at[piece.start] = piece
        return piece


def reserved_bytes(blocks: Iterable[Block]) -> int:
    """Bytes that the allocator reserves for blocks that come and go at their executions."""
    allocator = CachingAllocator()
    events = []
    for number, block in enumerate(blocks):
        # All that an execution makes is there before anything of it goes.
        events.append((block.first, 0, number, block.size_bytes))
        events.append((block.last, 1, number, 0))
    address: dict[int, int] = {}
    for _, leaves, number, size in sorted(events):
        if leaves:
            allocator.release(address.pop(number))
        else:
            address[number] = allocator.allocate(size)
    return allocator.reserved_bytes
