"""What the results lose without each technique of `auto`.

    python -m experiments.ablation [--all] [--only PATTERN] [--without NAME] [--results FILE]

Every row is solved with everything, then once without each switch of `Techniques`. The usual
selection takes at most 20 minutes on two free cores; --all adds the other rows (about an hour
more). Instances are read from the folder that LOWTIDE_INSTANCES names and left out where it is
missing; the other rows are captured on fake tensors. The last lines say for each technique by how
much the overhead, the gap (both in points) and the time grow: mean, and the worst row. `mip_start`
is left out beside `cutoff`, since a start is used only where there is no cutoff. One seed each:
differences of a few hundredths of a point are noise. With --results every row is saved as it is
done, and a second run with the same settings goes on from there.
"""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from experiments.published.folder import instances_folder
from lowtide.commands.terminal import aligned
from lowtide.frontends.chains import linear_chain
from lowtide.solver.errors import InputError, LowtideError
from lowtide.solver.files import write_atomic
from lowtide.solver.solve import solve

from ..papers.command import INTERRUPTED, tell
from .study import BESIDE, EVERYTHING, TASKS, Row, load, losses, measure, techniques

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .study import Key


def main(argv: list[str] | None = None) -> int:
    """Print the table of what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="store_true", help="rows beyond the usual selection, too")
    parser.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="such as gpt2")
    parser.add_argument("--without", nargs="+", choices=techniques(), default=list(techniques()))
    parser.add_argument(
        "--time-limit",
        type=float,
        default=None,
        metavar="S",
        help="each solve; by default as the row says",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, metavar="FILE", help="save rows, and go on there")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    code = 0
    try:
        for row in _rows(options):
            rows.append(row)
    except KeyboardInterrupt:
        tell("interrupted: the rows so far")
        code = INTERRUPTED
    except LowtideError as error:
        tell(str(error))
        return error.exit_code
    print(_encode(rows).decode() if options.json else table(rows))
    return code


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    tasks = [
        task
        for task in TASKS
        if (task.usual or options.all or options.only)
        and any(fnmatch(task.name, f"*{p}*") for p in options.only or ["*"])
    ]
    if not tasks:
        raise InputError(f"no row matches: {', '.join(task.name for task in TASKS)}")
    stored = _read(options.results)
    solve(linear_chain(6), "60%", time_limit=5.0)  # compiles the search, which no row should pay
    for task in tasks:
        seconds = options.time_limit or task.seconds
        names = [EVERYTHING, *(n for n in options.without if not task.only or n in task.only)]
        names += [BESIDE[n] for n in names if n in BESIDE and BESIDE[n] not in names]
        graph = load(task, instances_folder())
        if graph is None:
            tell(f"{task.name}: no such instance, skipped")
            continue
        for name in names:
            key = (
                graph.structure_hash, task.budget, name, seconds, options.seed, options.threads
            )  # fmt: skip
            row = stored.get(key)
            if row is None:
                row = measure(
                    graph, task, name, time_limit=seconds, seed=options.seed,
                    threads=options.threads,
                )  # fmt: skip
                stored[key] = row
                if options.results is not None:
                    write_atomic(options.results, _encode(list(stored.values())) + b"\n")
            tell(f"{task.name}, {_label(name)}: {' / '.join(_cells(row))}")
            yield row


def table(rows: Sequence[Row]) -> str:
    """A block for each row of the study, then what each technique is worth."""
    lines: list[list[str]] = [["graph", "budget", "", "overhead", "gap", "s", "status"]]
    for row in rows:
        lines.append([row.graph, row.budget, _label(row.without), *_cells(row), row.status])
    text = [aligned(lines, right=(3, 4, 5)), ""]
    summary = [["left out", "overhead", "worst", "gap", "worst", "time", "worst", "plans lost"]]
    for name, pairs in losses(rows):
        both = [(a, b) for a, b in pairs if a.overhead is not None and b.overhead is not None]
        more = [100 * ((b.overhead or 0) - (a.overhead or 0)) for a, b in both]
        wider = [100 * ((b.gap or 0) - (a.gap or 0)) for a, b in both]
        longer = [b.seconds / max(a.seconds, 0.1) for a, b in pairs]
        lost = sum(a.overhead is not None and b.overhead is None for a, b in pairs)
        cells = [name]
        for values, form in ((more, "{:+.3f}"), (wider, "{:+.3f}"), (longer, "x{:.2f}")):
            mean = form.format(sum(values) / len(values)) if values else ""
            cells += [mean, form.format(max(values)) if values else ""]
        summary.append([*cells, str(lost) if lost else ""])
    text.append(aligned(summary, right=range(1, 8)))
    return "\n".join(text)


def _cells(row: Row) -> list[str]:
    return [
        "-" if row.overhead is None else f"{100 * row.overhead:.3f}%",
        "-" if row.gap is None else f"{100 * row.gap:.3f}%",
        f"{row.seconds:.1f}",
    ]


def _label(name: str) -> str:
    return name if name == EVERYTHING else f"without {name}"


def _read(path: Path | None) -> dict[Key, Row]:
    if path is None or not path.exists():
        return {}
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=list[Row])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path} holds no rows of this study ({error}): delete it") from None
    return {row.key: row for row in rows}


def _encode(rows: Sequence[Row]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(rows), indent=1)


if __name__ == "__main__":
    sys.exit(main())
