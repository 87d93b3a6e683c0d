"""Table of the Hugging Face models: which train exactly by a plan, which are refused, and why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .cells import markdown

if TYPE_CHECKING:
    from pathlib import Path


def hugging_face(studies: Path) -> str | None:
    """One line a family."""
    path = studies / "hugging_face" / "results.json"
    if not path.exists():
        return None
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for family in dict.fromkeys(row["family"] for row in found):
        here = [row for row in found if row["family"] == family]
        exact = [row["model"] for row in here if row["exact"]]
        differing = [f"{row['model']}: {row['reason']}" for row in here if differs(row)]
        refused = [f"{row['model']}: {reason(row)}" for row in here if row["ops"] < 0]
        rows.append([family, ", ".join(exact), "; ".join([*differing, *refused])])
    return markdown(("family", "equal in every bit", "refused"), rows)


def differs(row: dict[str, Any]) -> bool:
    """Whether a model was captured and does not train exactly."""
    return row["ops"] > 0 and not row["exact"]


def reason(row: dict[str, Any]) -> str:
    """Line of the library's code, and what stands in the way there."""
    line, _, words = row["reason"].replace("|", "/").partition(": the step")
    place, _, code = line.partition("  ")
    file = place.rpartition("/")[2]
    what = f"the step{words}".partition(" here (")[0] if words else ""
    return f"{file} `{code.rstrip(':')}`: {what}" if what else line
