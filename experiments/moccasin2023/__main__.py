"""Moccasin's graphs (Bartan et al., ICML 2023) under its budgets, every method in one table.

    python -m experiments.moccasin2023 [--only PATTERN ...] [--methods M,M] [--time-limit S]

Reads moccasin_* from the folder LOWTIDE_INSTANCES. Published beside `auto`: Moccasin (16 cores),
FastSA and Checkmate. Methods that need a backward phase say that they do not apply to the random
layered graphs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..monet2021.__main__ import METHODS
from ..papers.command import main
from ..papers.instances import subjects

if __name__ == "__main__":
    here = Path(__file__).parent
    chosen = f"{METHODS},moccasin,checkmate"
    sys.exit(main(here, __doc__ or "", lambda _: subjects("moccasin_"), chosen, time_limit=10.0))
