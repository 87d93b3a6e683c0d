"""Views that need not be made because another value of the same storage looks just like them.

Backward graphs are full of `t(t(x))` and `detach(x)`: same memory, shape and strides. Below
autograd they are the same tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ...frontends.torch.program import Program

# Views that only move the window on the storage: what they show follows from shape, strides and
# offset. Others (conjugation, reinterpretation, as_strided) are made as they are written.
_PLAIN = frozenset(
    f"aten.{name}"
    for name in (
        "_unsafe_view", "alias", "detach", "expand", "permute", "select", "slice", "squeeze", "t",
        "transpose", "unsqueeze", "view",
    )
)  # fmt: skip


def equal_views(program: Program) -> dict[int, int]:
    """Value -> earlier value of the same memory that is equal in all but identity.

    Values that the step returns are left out: the caller gets the tensor that the plain step gives.
    """
    returned = {spec.value for spec in program.outputs}
    known: dict[int, bool] = {}

    def plain(value: int) -> bool:
        path = []
        while value in program.views and value not in known:
            path.append(value)
            value = next(program.views[value].refs())
        result = known.get(value, True)
        for step in reversed(path):
            target = program.views[step].target
            name = str(getattr(target, "overloadpacket", target))
            is_plain = type(target) is torch._ops.OpOverload and name in _PLAIN
            result = result and is_plain and target.__name__ != "view.dtype"
            known[step] = result
        return result

    def root(value: int) -> int:
        """What a value is a view of, which a trace has at the start of the memory.

        Parameters in one buffer, or parts of one batch, share a storage and are not the same.
        """
        while value in program.views:
            value = next(program.views[value].refs())
        return value

    first: dict[tuple[object, ...], int] = {}
    same: dict[int, int] = {}
    for value, tensor in enumerate(program.value_tensor):
        if tensor < 0 or not plain(value):
            continue
        meta = program.value_meta[value]
        look = (root(value), meta.shape, meta.stride, meta.storage_offset, meta.dtype)
        found = first.setdefault(look, value)
        if found != value and value in program.views and value not in returned:
            same[value] = found
    return same
