"""Plots and the report: drawn is what the accounting says, and the page is self-contained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from matplotlib.colors import to_rgba

from lowtide.__main__ import main
from lowtide.frontends.chains import linear_chain, transformer
from lowtide.frontends.generated import random_graph
from lowtide.report.address_plot import plot_addresses
from lowtide.report.curve_plot import bounds_by_budget, plot_curve
from lowtide.report.figures import RECOMPUTED, look, new_axes, save, to_svg
from lowtide.report.memory_plot import plot_memory, repeats, size_axis, time_axis
from lowtide.report.peak import find_peak
from lowtide.report.report import plan_script, render_report, write_report
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
from lowtide.solver.assemble import ANY_ORDER_CLASS
from lowtide.solver.compare import Comparison, Row
from lowtide.solver.errors import CheckError, InputError
from lowtide.solver.files import write_graph, write_plan
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.memory.addresses import addresses
from lowtide.solver.plan import Status
from lowtide.solver.schedule import Schedule
from lowtide.solver.simulate import simulate
from lowtide.solver.solve import METHODS
from tests.plans import plan_of, recomputing

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

GRAPH = linear_chain(8, weight_bytes=2**19)
PLAN = plan_of(GRAPH, recomputing(GRAPH))


class Page(HTMLParser):
    """What a browser would load, which ids there are, and which tags stay open."""

    VOID = ("meta", "link", "img", "br", "hr", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note links and ids."""
        for name, value in attrs:
            if (
                name in ("src", "href", "xlink:href")
                and value
                and not value.startswith(("#", "data:"))
            ):
                self.outside.append(value)
            if name == "id" and value:
                self.ids.append(value)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself."""
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """The innermost open tag must be the one that closes."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep the content of scripts."""
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)


@pytest.fixture(scope="module")
def page_text() -> str:
    """The report of the chain."""
    return render_report(GRAPH, PLAN)


def labels(ax: Axes) -> list[str]:
    """The words of the legend."""
    legend = ax.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def stairs(ax: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Values and edges of the step curve with that label."""
    from matplotlib.patches import StepPatch

    for patch in ax.patches:
        if isinstance(patch, StepPatch) and str(patch.get_label()).startswith(label):
            values, edges, _ = patch.get_data()
            return np.asarray(values), np.asarray(edges)
    raise AssertionError(label)


def vertices(line: Line2D) -> list[tuple[float, float]]:
    """The points of a line."""
    x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    return [(float(a), round(float(b), 6)) for a, b in zip(x, y, strict=True)]


def test_plotting_leaves_pyplot_alone() -> None:
    """No global figure state is touched: pyplot is not even imported."""
    code = (
        "import sys\n"
        "from tests.test_report import GRAPH, PLAN, render_report\n"
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


def row(method: str, budget: int, overhead: float | None, **changes: object) -> Row:
    """A row with a plan of the given overhead, or without one."""
    base = PLAN.base_time_ns
    plan = None
    if overhead is not None:
        bound = changes.pop("bound", -1.0)
        assert isinstance(bound, float)
        plan = msgspec.structs.replace(
            PLAN,
            time_ns=int(base * (1 + overhead)),
            lower_bound_ns=-1 if bound < 0 else int(base * (1 + bound)),
        )
    status = "infeasible" if plan is None else "feasible"
    made = Row(method, f"{budget}", budget * 2**20, status, plan, 1.0)
    return replace(made, **changes)  # type: ignore[arg-type]


def comparison(*rows: Row) -> Comparison:
    """Rows on a graph with 1 MiB resident and a peak of 11 MiB."""
    return Comparison("g", "h", "bytes", "ns", 2**20, 11 * 2**20, PLAN.base_time_ns, rows)


def test_curve_tells_proven_from_time_limited() -> None:
    """Optima are filled, others hollow with a whisker from the value down to the bound."""
    ax = plot_curve(
        comparison(
            row("auto", 4, 0.2, bound=0.1),
            row("auto", 8, 0.05, bound=0.05, status=Status.OPTIMAL.value),
            row("sqrt_n", 8, 0.3),
        )
    )
    points = {
        where[0]: str(line.get_markerfacecolor())
        for line in ax.lines
        if line.get_marker() not in ("None", "_") and len(where := vertices(line)) == 1
    }
    assert points[4.0, 20.0] == "white"
    assert points[8.0, 5.0] != "white"
    assert points[8.0, 30.0] == "white"
    whiskers = [vertices(line) for line in ax.lines if line.get_linestyle() == "-"]
    assert [(4.0, 10.0), (4.0, 20.0)] in whiskers
    assert not any(line[0] == (8.0, 5.0) for line in whiskers if line)
    assert labels(ax) == ["lowtide", "sqrt(n)", "below the lower bound"]
    assert not any("infeasible" in text.get_text() for text in ax.texts)


def test_a_method_looks_the_same_in_every_picture() -> None:
    """Colour and marker follow from the name; known methods differ, new ones have a look too."""
    assert len({look(name) for name in METHODS}) == len(METHODS)
    assert look("newcomer") == look("newcomer") != look("auto")
    alone = plot_curve(comparison(row("greedy", 8, 0.1)))
    among = plot_curve(comparison(row("auto", 8, 0.1), row("greedy", 8, 0.1)))
    colors = [ax.lines[-2].get_color() for ax in (alone, among)]
    assert colors[0] == colors[1] == look("greedy")[0]


def test_curve_shades_what_the_bound_rules_out() -> None:
    """A step downwards at each larger budget; one bound alone is a whisker only."""
    rows = [row("auto", 4, 0.2, bound=0.1), row("auto", 8, 0.05, bound=0.05)]
    ax = plot_curve(comparison(*rows))
    assert "below the lower bound" in labels(ax)
    (area,) = [c for c in ax.collections if c.get_label() == "below the lower bound"]
    corners = {
        (float(x), float(y)) for path in area.get_paths() for x, y in np.asarray(path.vertices)
    }
    assert {(4.0, 10.0), (8.0, 5.0)} <= corners
    assert "below the lower bound" not in labels(plot_curve(comparison(rows[0])))


def test_bounds_of_larger_budgets_are_shaded_at_smaller_ones() -> None:
    """Whoever proved them; those of the base order not where a plan in another order beats it."""
    rows = [row("milp", 4, 0.3, bound=0.0), row("auto", 8, 0.2, bound=0.1)]
    assert bounds_by_budget(rows) == {4 * 2**20: pytest.approx(0.1), 8 * 2**20: pytest.approx(0.1)}
    plan = rows[0].plan
    assert plan is not None
    other = msgspec.structs.replace(
        plan, bound_class=ANY_ORDER_CLASS, base_order_bound_ns=plan.time_ns + 1
    )
    found = bounds_by_budget([replace(rows[0], plan=other), rows[1]])
    assert found == {4 * 2**20: 0.0, 8 * 2**20: pytest.approx(0.1)}


def test_a_slow_method_does_not_flatten_the_others() -> None:
    """What is far above lowtide's points is cut, with an arrow each and a word in the legend."""
    rows = [row("auto", 4, 0.2), row("auto", 8, 0.1), row("greedy", 4, 0.3), row("lru", 4, 2.06)]
    rows += [row("dtr", 4, 0.9), row("sqrt_n", 8, 0.25)]
    ax = plot_curve(comparison(*rows))
    assert 30.0 < ax.get_ylim()[1] < 60.0
    arrows = [line for line in ax.lines if line.get_marker() == "^" and len(vertices(line)) == 1]
    assert {str(line.get_color()) for line in arrows} == {look("lru")[0], look("dtr")[0]}
    assert [word for word in labels(ax) if "up to 206%" in word]
    shown = [
        y for line in ax.lines if str(line.get_marker()) in "osDvPX*" for _, y in vertices(line)
    ]
    assert max(shown) == 30.0


def test_nothing_is_cut_without_need() -> None:
    """Where all are near lowtide's points, or lowtide has none above zero, all of them stand."""
    for rows in (
        [row("auto", 4, 0.2), row("lru", 4, 0.6)],
        [row("auto", 8, 0.0), row("greedy", 8, 0.1), row("lru", 8, 0.2)],
        [row("greedy", 8, 0.1)],
        [row("auto", 8, 0.0)],
    ):
        ax = plot_curve(comparison(*rows))
        assert not [word for word in labels(ax) if word.startswith("cut off")]
        assert ax.get_ylim()[1] >= 100.0 * max(one.overhead or 0.0 for one in rows)


def test_whiskers_end_at_the_best_bound() -> None:
    """A method that proved nothing itself is not drawn as if nothing were known."""
    rows = [row("milp", 4, 0.3, bound=0.0), row("auto", 4, 0.2, bound=0.1)]
    ax = plot_curve(comparison(*rows))
    whiskers = [vertices(line) for line in ax.lines if line.get_linestyle() == "-"]
    assert [(4.0, 10.0), (4.0, 30.0)] in whiskers


def test_curve_shades_budgets_that_nobody_met() -> None:
    """Shaded up to the largest missed budget; called infeasible only if that is proven."""
    met = row("auto", 8, 0.1)
    for proven, word in ((True, "infeasible"), (False, "no plan found")):
        ax = plot_curve(comparison(row("auto", 2, None), row("auto", 3, None, proven=proven), met))
        assert word in [text.get_text() for text in ax.texts]
        (shade,) = [patch for patch in ax.patches if patch.get_alpha() == 0.1]
        box = shade.get_extents().transformed(ax.transData.inverted())
        assert box.x1 == pytest.approx(3.0)
    one_method_only = plot_curve(comparison(met, row("sqrt_n", 8, None)))
    assert not [patch for patch in one_method_only.patches if patch.get_alpha() == 0.1]


def test_curve_of_misses_only() -> None:
    """A comparison without any plan is a picture too."""
    ax = plot_curve(comparison(row("auto", 2, None)))
    assert "no plan found" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_the_peak_add_up(seed: int) -> None:
    """Tensors, workspace and resident bytes at the peak sum to the plan's peak."""
    graph = random_graph(seed, 14)
    plan = plan_of(graph, recomputing(graph))
    peak = find_peak(graph, plan)
    assert peak is not None
    parts = sum(entry.size_bytes for entry in peak.live)
    assert peak.resident_bytes + parts + peak.extra_bytes == plan.peak_bytes == peak.total_bytes
    assert peak.extra_bytes >= 0
    sizes = [entry.size_bytes for entry in peak.live]
    assert sizes == sorted(sizes, reverse=True)
    reads = {entry.index for entry in peak.live if entry.role == "input"}
    assert reads <= set(peak.op.inputs)


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


def test_report_loads_nothing_and_is_well_formed(page_text: str) -> None:
    """No address outside the page, ids only once, every tag closed."""
    page = Page(page_text)
    assert page.outside == []
    assert len(page.ids) == len(set(page.ids))
    assert page.open == []


def test_report_says_the_numbers(page_text: str) -> None:
    """Budget, peak, overhead, bound, gap, method, versions, and who fills the peak."""
    scale = Scale.of(GRAPH)
    for words in (
        scale.memory(PLAN.budget_bytes), scale.memory(PLAN.peak_bytes), PLAN.method,
        GRAPH.structure_hash, "lowtide 0.1.0", f"{100 * PLAN.overhead:.3f}%",
    ):  # fmt: skip
        assert words in page_text
    assert PLAN.gap is not None
    assert f"{100 * PLAN.gap:.3f}%" in page_text
    peak = find_peak(GRAPH, PLAN)
    assert peak is not None
    for entry in peak.live[:3]:
        assert f'<td class="code">{GRAPH.tensors[entry.index].name}</td>' in page_text


def hostile() -> Graph:
    """A graph whose names try to break out of the page."""
    evil = "</script><script>alert(1)</script>&amp;\u2028"
    return Graph(
        name=evil,
        ops=(
            Op(f"a{evil}", evil, 5, (0,), (1,), phase="forward", module=evil, source=evil),
            Op("b", "k", 5, (1,), (2,), phase="backward"),
        ),
        tensors=(Tensor("w", 4), Tensor(evil, 1000), Tensor("o", 8, output=True)),
    )


def test_report_escapes_names_and_embeds_the_plan() -> None:
    """Names cannot become markup, and the embedded plan is the plan."""
    graph = hostile()
    plan = plan_of(graph, Schedule.from_computes(graph, (0, 0, 1)), method="<b>&")
    text = render_report(graph, plan)
    page = Page(text)
    assert len(page.scripts) == 1
    document = json.loads(page.scripts[0])
    assert document["schema"] == "lowtide.plan"
    assert document["body"] == json.loads(msgspec.json.encode(plan))
    assert "<script>alert" not in text
    assert not re.search(r"[<>&\u2028]", plan_script(plan))


def test_report_checks_the_plan_first(tmp_path: Path) -> None:
    """A plan that is not what it claims gets no report."""
    wrong = msgspec.structs.replace(PLAN, time_ns=PLAN.time_ns + 1)
    with pytest.raises(CheckError):
        write_report(GRAPH, wrong, tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


def test_report_of_a_plan_that_keeps_everything() -> None:
    """Nothing is recomputed, and the page says so."""
    plan = plan_of(GRAPH, Schedule.keep_everything(GRAPH), lower_bound_ns=-1)
    text = render_report(GRAPH, plan)
    assert "Nothing is recomputed." in text
    assert "unknown" in text


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lowtide report` writes the page and says where on stderr."""
    files = [tmp_path / name for name in ("g.graph.json", "p.plan.json", "r.html")]
    write_graph(GRAPH, files[0])
    write_plan(PLAN, files[1])
    assert main(["report", *map(str, files[:2]), "-o", str(files[2])]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert str(files[2]) in err
    assert files[2].read_text().startswith("<!DOCTYPE html>")
    assert main(["report", *map(str, files[:2]), "-o", str(files[2]), "--json", "-q"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["report"] == str(files[2])
    assert document["time_ns"] == PLAN.time_ns
    write_plan(msgspec.structs.replace(PLAN, time_ns=PLAN.time_ns + 1), files[1])
    assert main(["report", *map(str, files[:2]), "-o", str(files[2]), "-q"]) == 1


def test_large_report_stays_small() -> None:
    """A plan of 3,000 executions is less than 2 MB of page."""
    graph = transformer(120)
    plan = plan_of(graph, recomputing(graph, 3))
    assert len(plan.schedule.computes()) > 3000
    assert len(render_report(graph, plan).encode()) < 2_000_000
