"""Write the README's results tables anew from the JSON files of the studies.

    python -m experiments.readme [--check]

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`, in the README or in
experiments/README.md, and on the pages of the studies. Tables whose study has no results file are
left as they are. With --check nothing is written, and the exit code is 1 if a table is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lowtide.solver.errors import InputError
from lowtide.solver.files import write_atomic

from .blocks import BLOCKS
from .literature import PAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]


def renewed(texts: Sequence[str], studies: Path) -> list[str]:
    """The README and the page of results, with every table that has results.

    Raises
    ------
    InputError
        If a table has no place in any of them.
    """
    found = list(texts)
    for name, make in BLOCKS.items():
        table = make(studies)
        if table is not None:
            where = next((k for k, text in enumerate(found) if f"<!-- {name} -->" in text), 0)
            found[where] = placed(found[where], name, table, "README.md")
    return found


def placed(text: str, name: str, table: str, where: str) -> str:
    """The page with a table in its place.

    Raises
    ------
    InputError
        If it has none.
    """
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    place = pattern.search(text)
    if place is None:
        raise InputError(f"{where} has no place for the table {name}: <!-- {name} -->")
    return f"{text[: place.start()]}{place[1]}{table}\n{place[2]}{text[place.end() :]}"


def pages(studies: Path) -> dict[Path, tuple[str, str]]:
    """The pages of the studies that have results: as they are, and as they should be."""
    found: dict[Path, tuple[str, str]] = {}
    for (study, name), make in PAGES.items():
        table = make(studies)
        if table is not None:
            path = studies / study / "README.md"
            text = path.read_text(encoding="utf-8")
            before, after = found.get(path, (text, text))
            found[path] = before, placed(after, name, table, f"experiments/{study}/README.md")
    return found


def main(argv: list[str] | None = None) -> int:
    """Renew the README."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.readme",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing, tell what differs")
    options = parser.parse_args(argv)
    studies = ROOT / "experiments"
    general = (ROOT / "README.md", studies / "README.md")
    before = [path.read_text(encoding="utf-8") for path in general]
    try:
        after = renewed(before, studies)
        all_pages = dict(zip(general, zip(before, after, strict=True), strict=True))
        all_pages |= pages(studies)
    except InputError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    old = {path: new for path, (was, new) in all_pages.items() if new != was}
    if options.check:
        for path in old:
            name = path.relative_to(ROOT)
            print(f"{name} is out of date: python -m experiments.readme", file=sys.stderr)
        return int(bool(old))
    for path, new in old.items():
        write_atomic(path, new.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
