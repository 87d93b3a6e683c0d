"""Write the README's results tables anew from the JSON files of the studies.

    python -m experiments.readme [--check]

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`. Tables whose study has no results file
are left as they are. With --check nothing is written, and the exit code is 1 if a table is out of
date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from lowtide.solver.errors import InputError
from lowtide.solver.files import write_atomic

from .blocks import BLOCKS

ROOT = Path(__file__).resolve().parents[2]


def renewed(text: str, studies: Path) -> str:
    """The README with every table that has results.

    Raises
    ------
    InputError
        If a table has no place in the README.
    """
    for name, make in BLOCKS.items():
        table = make(studies)
        if table is None:
            continue
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        place = pattern.search(text)
        if place is None:
            raise InputError(f"README.md has no place for the table {name}: <!-- {name} -->")
        text = f"{text[: place.start()]}{place[1]}{table}\n{place[2]}{text[place.end() :]}"
    return text


def main(argv: list[str] | None = None) -> int:
    """Renew the README."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.readme",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing, tell what differs")
    options = parser.parse_args(argv)
    path = ROOT / "README.md"
    before = path.read_text(encoding="utf-8")
    try:
        after = renewed(before, ROOT / "experiments")
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if options.check:
        if after != before:
            print("README.md is out of date: python -m experiments.readme", file=sys.stderr)
        return int(after != before)
    if after != before:
        write_atomic(path, after.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
