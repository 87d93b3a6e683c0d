"""The command line that these studies share."""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lowtide.solver.errors import LowtideError

from . import show
from .rows import Row, run, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .rows import Subject

INTERRUPTED = 130


def main(
    folder: Path,
    description: str,
    subjects: Callable[[Path | None], Sequence[Subject]],
    methods: str,
    *,
    time_limit: float = 60.0,
    argv: list[str] | None = None,
) -> int:
    """Run the chosen subjects, write `results.json` and a picture of each into `folder`.

    Parameters
    ----------
    folder
        Of the study.
    subjects
        Takes the folder that keeps captured graphs (None: not kept), gives the subjects.
    methods
        Run by default, as `compare` takes them.
    time_limit
        Seconds for each method and budget, by default.
    """
    name = folder.name
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN")
    parser.add_argument("--methods", default=methods, metavar="M,M,...")
    parser.add_argument("--time-limit", type=float, default=time_limit, metavar="S")
    parser.add_argument("--graphs", type=Path, metavar="FOLDER", help="keep captured graphs here")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="keep finished rows here")
    parser.add_argument("--out", type=Path, default=folder, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    code = 0
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        chosen = [
            subject
            for subject in subjects(options.graphs)
            if any(fnmatch(subject.name, pattern) for pattern in options.only)
        ]
        if not chosen:
            tell(f"nothing to run that matches {' '.join(options.only)}")
            return 2
        found = run(
            chosen, options.methods.split(","), time_limit=options.time_limit,
            resume=options.resume, tell=tell,
        )  # fmt: skip
        for row in found:
            rows.append(row)
    except KeyboardInterrupt:
        tell("interrupted: the rows so far")
        code = INTERRUPTED
    except LowtideError as error:
        tell(str(error))
        return error.exit_code
    again = dict.fromkeys(row.subject for row in rows)
    rows = write(options.out / "results.json", f"python -m experiments.{name}", rows)
    for subject in again:
        show.picture(rows, subject, options.out / f"{slug(subject)}.svg")
    rows = [row for row in rows if row.subject in again]
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode() + "\n")
    else:
        print(show.table(rows))
    return code


def slug(name: str) -> str:
    """A subject's name as part of a file name."""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")


def tell(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)
