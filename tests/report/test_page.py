"""The page of a report: self-contained, with the numbers of the plan that it checked."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import msgspec
import pytest

from lowtide.__main__ import main
from lowtide.frontends.chains import transformer
from lowtide.frontends.generated import random_graph
from lowtide.report.peak import find_peak
from lowtide.report.report import plan_script, render_report, write_report
from lowtide.report.scale import Scale
from lowtide.solver.errors import CheckError
from lowtide.solver.files import write_graph, write_plan
from lowtide.solver.graph import Graph, Op, Tensor
from lowtide.solver.schedule import Schedule
from tests.plans import plan_of, recomputing

if TYPE_CHECKING:
    from pathlib import Path


from .drawing import GRAPH, PLAN


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
