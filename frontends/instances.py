"""Public benchmark instances in their neutral JSON form, as graphs.

One document: `nodes` in execution order (time, inputs, outputs, workspace, is_backward), `data`
(size, alias_of: the root storage), `targets` (data kept to the end), `units`. Aliases are folded
into their root storage; data without producer are resident; data of size zero that are targets mark
nodes which have to run. Times in microseconds become nanoseconds, cost units stay what they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..solver.errors import InputError
from ..solver.files import read_bytes
from ..solver.graph import Graph, Op, Tensor

if TYPE_CHECKING:
    import os

    from ..solver.graph import Phase

PHASES: dict[bool | None, Phase] = {False: "forward", True: "backward", None: "none"}


class _Node(msgspec.Struct):
    id: int
    name: str
    op: str
    time: float
    inputs: list[int]
    outputs: list[int]
    is_backward: bool | None = None
    workspace: float = 0


class _Data(msgspec.Struct):
    id: int
    size: float
    alias_of: int | None = None
    kind: str = ""
    name: str = ""


class _Instance(msgspec.Struct):
    name: str
    nodes: list[_Node]
    data: list[_Data]
    targets: list[int]
    units: dict[str, str]
    source: Any = None


def read_instance(path: str | os.PathLike[str]) -> Graph:
    """Read an instance file, gzip or not.

    Parameters
    ----------
    path
        Of the JSON document.

    Returns
    -------
    Graph
        `time_unit` is `ns`, or `cost` with all costs scaled by 1000 if some are not integers
        (`meta["cost_scale"]`); `size_unit` is `bytes` or `elements`.

    Raises
    ------
    InputError
        If the file is missing, damaged or not an instance.
    """
    try:
        instance = msgspec.json.decode(read_bytes(path), type=_Instance)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not an instance file: {error}") from None
    try:
        return _graph(instance)
    except KeyError as error:
        raise InputError(f"{path} names data {error}, which it does not list") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _graph(instance: _Instance) -> Graph:
    """Fold aliases and number tensors in the order of the file."""
    root = {d.id: d.id if d.alias_of is None else d.alias_of for d in instance.data}
    roots = [d for d in instance.data if d.alias_of is None]
    number = {d.id: index for index, d in enumerate(roots)}
    targets = {root[t] for t in instance.targets}
    tensors = tuple(
        Tensor(d.name or f"d{d.id}", round(d.size), output=d.id in targets) for d in roots
    )
    scale, time_unit = _time_scale(instance)
    ops: list[Op] = []
    names: dict[str, int] = {}
    for node in instance.nodes:
        outputs = [t for t in node.outputs if root[t] == t]
        inputs = dict.fromkeys(root[t] for t in node.inputs if root[t] not in outputs)
        repeats = names[node.name] = names.get(node.name, 0) + 1
        ops.append(
            Op(
                name=node.name if repeats == 1 else f"{node.name}#{repeats}",
                kind=node.op,
                time_ns=round(node.time * scale),
                inputs=tuple(number[r] for r in inputs),
                outputs=tuple(number[r] for r in outputs),
                workspace_bytes=round(node.workspace),
                phase=PHASES[node.is_backward],
            )
        )
    return Graph(
        instance.name,
        tuple(ops),
        tensors,
        size_unit="elements" if instance.units.get("size") == "elements" else "bytes",
        time_unit=time_unit,
        meta={"source": str(instance.source or ""), "cost_scale": str(scale)},
    )


def _time_scale(instance: _Instance) -> tuple[int, str]:
    """Factor from the file's times to integers, and their unit."""
    if instance.units.get("time") == "us":
        return 1000, "ns"
    whole = all(node.time == round(node.time) for node in instance.nodes)
    return (1 if whole else 1000), "cost"
