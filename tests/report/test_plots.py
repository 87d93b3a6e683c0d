"""Plots of one plan: drawn is what the accounting says; files are written whole."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_rgba

from lowtide.frontends.chains import linear_chain
from lowtide.frontends.generated import random_graph
from lowtide.report.address_plot import plot_addresses
from lowtide.report.figures import RECOMPUTED, new_axes, save, to_svg
from lowtide.report.memory_plot import plot_memory, repeats, size_axis, time_axis
from lowtide.report.scale import Scale
from lowtide.report.schedule_plot import (
    AGAIN,
    FIRST,
    HELD,
    NOTHING,
    plot_schedule,
    schedule_cells,
    shrink,
    thicken,
)  # fmt: skip
from lowtide.solver.errors import InputError
from lowtide.solver.memory.addresses import addresses
from lowtide.solver.simulate import simulate
from tests.plans import plan_of, recomputing

if TYPE_CHECKING:
    from pathlib import Path


from .drawing import GRAPH, PLAN, labels, stairs


def test_plotting_leaves_pyplot_alone() -> None:
    """No global figure state is touched: pyplot is not even imported."""
    code = (
        "import sys\n"
        "from tests.report.drawing import GRAPH, PLAN\n"
        "from lowtide.report.report import render_report\n"
        "render_report(GRAPH, PLAN)\n"
        "assert 'matplotlib.figure' in sys.modules\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_memory_plot_shows_the_accounting() -> None:
    """The curve is the simulated one, its top is the plan's peak, its end the plan's time."""
    ax = plot_memory(GRAPH, PLAN)
    run = simulate(GRAPH, PLAN.schedule)
    values, edges = stairs(ax, "live during")
    assert np.allclose(values * 2**20, run.during_bytes)
    assert values.max() * 2**20 == pytest.approx(PLAN.peak_bytes)
    assert edges[-1] == pytest.approx(PLAN.time_ns / 1e6)
    again, _ = stairs(ax, "recomputing")
    assert np.isfinite(again).sum() == PLAN.schedule.recomputes() > 0
    plain, _ = stairs(ax, "without")
    assert plain.max() * 2**20 == pytest.approx(Scale.of(GRAPH).base_peak_bytes)
    assert any(word.startswith("budget") for word in labels(ax))
    assert {"forward", "backward"} <= {text.get_text() for text in ax.texts}


def test_address_plot_shows_the_blocks() -> None:
    """A rectangle for each block, as high as it is large, and none over another."""
    found = addresses(GRAPH, PLAN)
    ax = plot_addresses(GRAPH, PLAN)
    (shapes,) = ax.collections
    boxes = [path.get_extents() for path in shapes.get_paths()]
    assert len(boxes) == len(found.blocks)
    unit = size_axis(Scale.of(GRAPH), found.arena_bytes)[1]
    for box, block, offset in zip(boxes, found.blocks, found.offsets, strict=True):
        assert (box.x0, box.x1) == (block.first, block.last + 1)
        assert box.y0 * unit == pytest.approx(offset)
        assert (box.y1 - box.y0) * unit == pytest.approx(block.size_bytes)
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            wide = min(a.x1, b.x1) - max(a.x0, b.x0)
            assert wide <= 0 or min(a.y1, b.y1) - max(a.y0, b.y0) <= 1e-9
    orange = to_rgba(RECOMPUTED)
    made_again = sum(tuple(color) == orange for color in np.asarray(shapes.get_facecolor()))
    assert made_again == PLAN.schedule.recomputes() > 0


def test_memory_plot_without_times_counts_executions() -> None:
    """Where all times are zero the x axis is the execution."""
    graph = linear_chain(4, time_ns=0)
    ax = plot_memory(graph, plan_of(graph, recomputing(graph)))
    assert "executions" in ax.get_xlabel()


def test_plots_draw_into_given_axes() -> None:
    """Given axes are used and returned."""
    for draw in (plot_memory, plot_schedule):
        ax = new_axes()
        assert draw(GRAPH, PLAN, ax) is ax


def test_units_of_axes_follow_the_amounts() -> None:
    """Bytes and nanoseconds get a unit; abstract amounts keep theirs."""
    scale = Scale(0, 100, 100)
    assert size_axis(scale, 3 * 2**30) == ("GiB", 2.0**30)
    assert size_axis(scale, 3 * 2**10) == ("KiB", 2.0**10)
    assert size_axis(scale, 3) == ("B", 1.0)
    assert time_axis(scale, 5_000_000) == ("ms", 1e-6)
    assert time_axis(scale, 5) == ("ns", 1.0)
    assert time_axis(scale, 0) == ("executions", 0.0)
    abstract = Scale(0, 100, 100, "elements", "cost")
    assert size_axis(abstract, 2**40) == ("elements", 1.0)
    assert time_axis(abstract, 10) == ("cost", 1.0)
    assert abstract.memory(50) == "50 elements (50.0%)"


def test_repeats_marks_all_but_the_first() -> None:
    """An execution is a recomputation if its op ran before."""
    assert repeats((0, 1, 0, 2, 1, 0)) == [False, False, True, False, True, True]


@pytest.mark.parametrize("seed", range(5))
def test_schedule_cells_agree_with_the_simulator(seed: int) -> None:
    """At every execution the shaded ops are those with an output in memory."""
    graph = random_graph(seed, 12)
    schedule = recomputing(graph)
    cells = schedule_cells(graph, plan_of(graph, schedule))
    present: set[int] = set()
    ran: set[int] = set()
    at = -1
    column: list[int] = []

    def compare_column() -> None:
        if at >= 0:
            assert cells[:, at].tolist() == column

    for step in schedule.steps:
        if step < 0:
            present.discard(-step - 1)
            continue
        compare_column()
        at += 1
        present.update(graph.ops[step].outputs)
        column = [HELD if present & set(op.outputs) else NOTHING for op in graph.ops]
        column[step] = AGAIN if step in ran else FIRST
        ran.add(step)
    compare_column()
    assert cells.shape == (len(graph.ops), at + 1)


def test_shrinking_keeps_what_matters() -> None:
    """One recomputation among thousands of cells is still there, and drawn wide enough to see."""
    cells = np.zeros((1500, 2000), dtype=np.uint8)
    cells[1234, 777] = AGAIN
    small = shrink(cells, 300)
    assert small.shape == (300, 300)
    assert (small == AGAIN).sum() == 1
    assert (thicken(small) == AGAIN).sum() == 9
    few = np.zeros((3, 3), dtype=np.uint8)
    assert thicken(few) is few


def test_svg_is_well_formed_and_the_same_every_time() -> None:
    """The same plan gives the same text; ids carry the prefix, text stays text."""
    svg = to_svg(plot_memory(GRAPH, PLAN), "one")
    assert svg == to_svg(plot_memory(GRAPH, PLAN), "one")
    root = ElementTree.fromstring(svg)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert ids
    assert all(str(name).startswith("one-") for name in ids)
    assert "backward</text>" in svg


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_figures_are_written_whole(suffix: str, tmp_path: Path) -> None:
    """SVG, PNG and PDF by name; two runs write the same bytes."""
    files = [tmp_path / f"{name}.{suffix}" for name in "ab"]
    for file in files:
        save(plot_memory(GRAPH, PLAN), file)
    first, second = (file.read_bytes() for file in files)
    assert first == second
    head = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert first.startswith(head)


def test_unknown_picture_format(tmp_path: Path) -> None:
    """Other endings are refused with those that work."""
    with pytest.raises(InputError, match=r"\.svg or \.png or \.pdf"):
        save(plot_memory(GRAPH, PLAN), tmp_path / "a.bmp")
