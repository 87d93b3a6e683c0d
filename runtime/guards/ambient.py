"""What a call depends on beside its arguments and its module: autocast, and settings of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...frontends.torch.switches import TRACED, changed, of_kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...frontends.torch.program import Program
    from ..generate.literals import Namespace


def device_kinds(program: Program) -> set[str]:
    """Types of devices whose settings matter."""
    return {"cpu", *(meta.device.type for meta in program.value_meta)} - {"meta"}


def ambient_lines(program: Program, names: Namespace) -> list[str]:
    """Source lines that return None if the surroundings are not those of the capture."""
    names.globals["autocast_on"] = torch.is_autocast_enabled
    names.globals["autocast_dtype"] = torch.get_autocast_dtype
    names.globals["autocast_cache"] = torch.is_autocast_cache_enabled
    planned = dict(program.autocast)
    lines = []
    for kind in _autocast_kinds(program):
        test = f"autocast_on({kind!r})"
        if kind in planned:
            dtype = names.bind(planned[kind], str(planned[kind]))
            test = f"not {test} or autocast_dtype({kind!r}) is not {dtype}"
        lines.append(f"if {test}: return None")
    lines.append(f"if autocast_cache() is not {program.autocast_cache}: return None")
    values = dict(program.switches)
    tests = []
    for place, switch in enumerate(of_kinds(TRACED, device_kinds(program))):
        if switch.name in values:
            value = values[switch.name]
            same = "is not" if isinstance(value, (bool, torch.dtype)) else "!="
            read = names.bind(switch.read, f"switch_{place}")
            tests.append(f"{read}() {same} {names.bind(value, f'was_{place}')}")
    if tests:
        lines.append(f"if {' or '.join(tests)}: return None")
    return lines


def ambient_differences(program: Program) -> Iterator[tuple[str, str]]:
    """What differs from the surroundings of the capture, and what to do about it."""
    planned = dict(program.autocast)
    for kind in _autocast_kinds(program):
        found = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        wanted = planned.get(kind)
        if found is not wanted:
            now, then = (f"on ({dtype})" if dtype else "off" for dtype in (found, wanted))
            yield (
                f"autocast on {kind} is {now} and was {then} when captured",
                "call under the same autocast, or capture and solve again",
            )
    if torch.is_autocast_cache_enabled() is not program.autocast_cache:
        now, then = ("off", "on") if program.autocast_cache else ("on", "off")
        yield (
            f"autocast's cache of casts is {now} and was {then} when captured",
            f"switch it {then}, or capture and solve again",
        )
    for name, value, before in changed(program.switches, device_kinds(program)):
        yield (
            f"{name} is {value} and was {before} when captured, and decides of which operators "
            "the step is made",
            "set it back, or capture and solve again",
        )


def _autocast_kinds(program: Program) -> list[str]:
    """Device types whose autocast matters."""
    return sorted((device_kinds(program) | {kind for kind, _ in program.autocast}) - {"meta"})
