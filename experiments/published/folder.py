"""Where the public instances are."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def instances_folder() -> Path:
    """The folder that LOWTIDE_INSTANCES names, or the usual place beside the project."""
    return Path(os.environ.get("LOWTIDE_INSTANCES", ROOT.parent / "shared" / "graphs"))
