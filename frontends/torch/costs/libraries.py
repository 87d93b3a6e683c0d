"""Memory that CUDA libraries keep between ops: cuBLAS takes a workspace per thread and stream.

Forward runs in the caller's thread and backward in autograd's, each with a workspace of its own
that PyTorch's allocator hands out once and never frees. They are resident, like parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import torch

if TYPE_CHECKING:
    from ..captured import Captured

_MATRIX = ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul")
_KEY = "library_bytes"


def with_libraries(captured: Captured) -> Captured:
    """The step with the workspaces of its libraries among its resident bytes; CUDA only."""
    graph = captured.graph
    if captured.device.type != "cuda":
        return captured
    kinds = {op.kind.split(".")[1] for op in graph.ops if op.kind.count(".") > 1}
    found = workspace_bytes(captured.device) if kinds & set(_MATRIX) else 0
    before = int(graph.meta.get(_KEY, "0"))
    graph = msgspec.structs.replace(
        graph,
        extra_resident_bytes=graph.extra_resident_bytes - before + found,
        meta={**graph.meta, _KEY: str(found)},
    )
    return replace(captured, program=replace(captured.program, graph=graph))


def workspace_bytes(device: torch.device) -> int:
    """Bytes that a matrix product and its backward leave allocated on a CUDA device."""
    cuda: Any = torch.cuda
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        return 0
    with torch.enable_grad(), cuda.device(device):
        cuda.synchronize(device)
        clear()
        before = int(cuda.memory_allocated(device))
        square = torch.ones(64, 64, device=device, requires_grad=True)
        (square @ square).sum().backward()  # type: ignore[no-untyped-call]
        del square
        cuda.synchronize(device)
        return max(0, int(cuda.memory_allocated(device)) - before)
