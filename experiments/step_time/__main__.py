"""Step time and peak of training steps against what PyTorch itself offers.

    python -m experiments.step_time [--only MODEL ...] [--resume] [--out FOLDER] [--json]

Nine models; each is trained plainly, with a checkpoint around every block, with selective
checkpoints that keep matrix products, and under PyTorch's activation memory budget (aot_eager,
several settings; the table has the fastest of those that save a tenth of the peak). Lowtide then
gets the peak that each of these was measured to have, and the other way round its time: plans are
made between those that are fast enough and those that are not, until the smallest peak in that time
is known within a tenth (by fewer timed steps than the table's). Peaks are
those of loss and backward beyond parameters, buffers and batch; times are medians of processor time
over the plain step's, steps in turns, on one thread.

Results are saved after each model; models that are in the file already stay, and with --resume they
are not measured again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lowtide.report.figures import save
from lowtide.solver.errors import InputError, LowtideError
from lowtide.solver.files import write_atomic

from ..papers.command import INTERRUPTED, tell
from .models import MODELS
from .picture import picture
from .rows import Result
from .study import SETTINGS, study
from .summary import summary
from .table import exact, table

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: list[str] | None = None) -> int:
    """Measure what was asked for; 1 if a replay differs from plain PyTorch or from its plan."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.step_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--settings", nargs="+", type=float, default=list(SETTINGS))
    parser.add_argument("--repeats", type=int, default=7, help="timed steps of each")
    parser.add_argument("--time-limit", type=float, default=6.0, metavar="S", help="each plan")
    parser.add_argument("--resume", action="store_true", help="keep models that are in the file")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    code = 0
    try:
        results = {result.model: result for result in read(path)}
        for name in options.only:
            if options.resume and name in results:
                tell(f"{name}: in {path} already")
                continue
            results[name] = study(
                name, MODELS[name], settings=options.settings, repeats=options.repeats,
                time_limit=options.time_limit, told=tell,
            )  # fmt: skip
            results = {key: results[key] for key in MODELS if key in results}
            write_atomic(path, encode(list(results.values())) + b"\n")
    except KeyboardInterrupt:
        tell("interrupted: the models so far")
        code = INTERRUPTED
    except LowtideError as error:
        tell(str(error))
        return error.exit_code
    found = list(results.values())
    if found:
        save(picture(found).axes[0], options.out / "step_time.svg")
    print(encode(found).decode() if options.json else "\n".join([table(found), *summary(found)]))
    measured = [plan for result in found for plan in result.plans]
    return code or int(not all(exact(plan) for plan in measured))


def read(path: Path) -> list[Result]:
    """Results of earlier runs; none if there is no file."""
    if not path.exists():
        return []
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Result])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path} holds no results of this study ({error}): delete it") from None


def encode(results: Sequence[Result]) -> bytes:
    """As the file holds them."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1)


if __name__ == "__main__":
    sys.exit(main())
