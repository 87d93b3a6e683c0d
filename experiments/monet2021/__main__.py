"""MONeT's training graphs (Shah et al., ICLR 2021) under its budgets, every method in one table.

    python -m experiments.monet2021 [--only PATTERN ...] [--methods M,M] [--time-limit S] [--json]

Reads monet_*_ckm from the folder LOWTIDE_INSTANCES. Published beside `auto`: Checkmate's program as
MONeT's authors solved it with Gurobi.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ..papers.command import main
from ..papers.instances import subjects

METHODS = (
    "auto,per_block,sqrt_n,log_n,greedy,ap_sqrt_n,linearized_sqrt_n,ap_greedy,linearized_greedy,"
    "revolve,rotor,kusumoto,treewidth,pathwidth,knapsack_dp,knapsack_greedy,dtr,dtr_eq,lru,"
    "checkmate_lp"
)

if __name__ == "__main__":
    here = Path(__file__).parent
    sys.exit(main(here, __doc__ or "", lambda _: subjects("monet_"), METHODS, time_limit=10.0))
