"""Options that mean the same in every subcommand."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer


class Times(StrEnum):
    """Where op times come from."""

    CALIBRATED = "calibrated"
    MEASURED = "measured"
    ROOFLINE = "roofline"


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number")
    return value


BUDGETS_HELP = (
    "Budgets, such as 30%,50%,70% or 4GiB,6GiB; 20%..90%:8 are eight spread evenly, 20%..90%:10% "
    "one every 10%."
)
GraphFile = Annotated[Path, typer.Argument(metavar="GRAPH", help="A *.graph.json[.gz] file.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A *.plan.json[.gz] file.")]
StepSource = Annotated[
    str,
    typer.Argument(
        metavar="PKG.MOD:FUNC",
        help="Function that returns (model, batch[, loss_fn]); also path/to/file.py:FUNC.",
    ),
]
TimeLimit = Annotated[
    float,
    typer.Option(min=0.0, callback=_finite, metavar="S", help="Seconds to search at most."),
]
Gap = Annotated[
    float,
    typer.Option(
        min=0.0,
        callback=_finite,
        metavar="G",
        help="Stop once (time - lower bound) / time is no more than this.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Threads of one solve.", show_default="2, if there are"),
]
Order = Annotated[
    Literal["any", "base"],
    typer.Option(help="base: ops run first in the order of the graph; any: better orders too."),
]
Moves = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Moves of the search, instead of as many as time allows: a result that repeats.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0, max=2**31 - 1, metavar="N", help="Seed of the search; see --moves for repeating it."
    ),
]
Backend = Annotated[
    str, typer.Option(metavar="NAME", help="highs, ortools, cpsat or pulp[:SOLVER].")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors on stderr.")]
