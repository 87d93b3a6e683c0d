"""Takes nested arguments apart with generated code, as fast as unpacking by hand.

Builtin tuples, lists and dicts are unpacked by name; anything else falls back to `pytree`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.utils._pytree import TreeSpec


def children(spec: TreeSpec) -> Sequence[TreeSpec]:
    """Direct children of a tree specification."""
    found = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    return list(found)


def flatten_lines(spec: TreeSpec, prefix: str) -> list[str] | None:
    """Statements that bind the leaves of `(args, kwargs)` to `{prefix}0`, `{prefix}1`, ...

    They return None from the function when the structure differs. None if a container is not a
    builtin one.
    """
    lines: list[str] = []
    count = [0]

    def visit(node: TreeSpec, name: str) -> bool:
        if node.is_leaf():
            lines.append(f"{prefix}{count[0]} = {name}")
            count[0] += 1
            return True
        if node.type not in (tuple, list, dict):
            return False
        below = children(node)
        lines.append(
            f"if type({name}) is not {node.type.__name__} or len({name}) != {len(below)}: "
            "return None"
        )
        if node.type is dict:
            keys = list(node.context)
            if not all(type(key) is str for key in keys):
                return False
            lines.extend(f"if {key!r} not in {name}: return None" for key in keys)
            places = [repr(key) for key in keys]
        else:
            places = [str(place) for place in range(len(below))]
        return all(
            visit(child, f"{name}[{place}]") for child, place in zip(below, places, strict=True)
        )

    arguments, keywords = children(spec)
    if not (visit(arguments, "args") and visit(keywords, "kwargs")):
        return None
    return lines


def describe_structure(spec: TreeSpec) -> str:
    """A tree in one line, a star for each leaf: `(*, {'mask': *})`."""
    if spec.is_leaf():
        return "*"
    below = [describe_structure(child) for child in children(spec)]
    if spec.type is dict:
        return (
            "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(spec.context, below, strict=True)) + "}"
        )
    if spec.type is tuple:
        return f"({', '.join(below)}{',' if len(below) == 1 else ''})"
    if spec.type is list:
        return f"[{', '.join(below)}]"
    return f"{getattr(spec.type, '__name__', spec.type)}({', '.join(below)})"


def leaf_names(spec: TreeSpec) -> list[str]:
    """What to call each leaf of `(args, kwargs)` in an error message."""
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    found, _ = pytree.tree_flatten_with_path(tree)
    return [_describe(path) for path, _ in found]


def _describe(path: tuple[Any, ...]) -> str:
    if len(path) < 2:
        return pytree.keystr(path)
    where, what, rest = path[0], path[1], path[2:]
    inner = f" at {pytree.keystr(rest)}" if rest else ""
    if getattr(where, "idx", None) == 1:
        return f"argument {getattr(what, 'key', what)!r}{inner}"
    return f"positional argument {getattr(what, 'idx', what)}{inner}"
