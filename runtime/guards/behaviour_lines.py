"""Lines of a guard that compare how one module behaves with what it was at capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...frontends.torch.outside.behaviour import forward_differs, hook_keys
from ...frontends.torch.processes import is_sharded, same_class

if TYPE_CHECKING:
    from ...frontends.torch.outside.behaviour import Behaviour
    from ..generate.literals import Namespace


def behaviour_lines(
    found: Behaviour,
    module: str,
    tensors: dict[int, str],
    bound: set[int],
    names: Namespace,
    strict: bool,
) -> list[str]:
    """Class, code, children and hooks of one module; and its tensors by the names in `tensors`.

    A class that `fully_shard` made of the captured one passes if not `strict`.
    """
    names.globals.update(
        {
            "hook_keys": hook_keys,
            "forward_differs": forward_differs,
            "same_class": same_class,
            "is_sharded": is_sharded,
        }
    )
    state = f"{module}_state"
    tests = [f"len({state}['_modules']) != {found.children}"]
    if found.kind is not None:
        kind = names.bind(found.kind, f"class_{found.kind.__name__}")
        code = names.bind(found.code, f"{found.kind.__name__}_forward")
        other = "" if strict else f"and not same_class({module}, {kind}) "
        tests.append(f"type({module}) is not {kind} {other}or {kind}.forward is not {code}")
    elif strict:
        tests.append(f"is_sharded({module})")
    if found.own is None:
        tests.append(f"'forward' in {state} and forward_differs({module}, None)")
    else:
        tests.append(f"forward_differs({module}, {names.bind(found.own, 'own_forward')})")
    for table, keys in found.hooks.items():
        closer = f"hook_keys({state}[{table!r}]) != {keys!r}"
        tests.append(closer if keys else f"{state}[{table!r}] and {closer}")
    lines = [f"{state} = {module}.__dict__", f"if {' or '.join(tests)}: return None"]
    for name, function in found.functions.items():
        known = names.bind(function, f"function_{name}")  # no name of the guard's own
        lines.append(f"if {state}[{name!r}] is not {known}: return None")
    for name, value in found.tensors.items():
        target = tensors[value]
        if value in bound:
            lines.append(f"if {state}[{name!r}] is not {target}: return None")
        else:
            lines.append(f"{target} = {state}[{name!r}]")
            bound.add(value)
    return lines
