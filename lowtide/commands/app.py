"""The `lowtide` program: its subcommands in the order in which they are used."""

from __future__ import annotations

from typing import Annotated

import typer

from ..solver.version import __version__
from .capture import capture
from .check import check
from .checkpoint import checkpoint
from .compare import compare
from .env import env
from .memory import memory
from .replay import replay
from .report import report
from .smallest import smallest
from .solve import solve
from .sweep import sweep

app = typer.Typer(
    name="lowtide",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain text: wraps well, and needs no rich
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 done; 1 failed check or unexpected error; 2 usage or bad input; "
        "3 infeasible (the smallest budget found is printed); 4 time limit, best plan written; "
        "5 time limit, none found; 130 interrupted, best plan written."
    ),
)
COMMANDS = (
    capture, solve, sweep, smallest, compare, checkpoint, check, memory, replay, report, env
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"lowtide {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "-V", "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Plan which results of a training step to keep and which to recompute.

    \b
      lowtide capture train.py:make_step -o step.graph.json
      lowtide solve step.graph.json --budget 60% -o step.plan.json

    The first line records the step that make_step() returns as (model, batch[, loss_fn]); the
    second finds the fastest schedule that fits the budget. In training:
    lowtide.fit(model, batch, memory_budget="60%").
    """
