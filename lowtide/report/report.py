"""The report: one HTML file with its pictures and its plan inside, and nothing to download."""

from __future__ import annotations

import datetime
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from ..solver.check import check
from ..solver.files import CURRENT_VERSION, PLAN_SCHEMA, write_atomic
from ..solver.memory.addresses import addresses
from ..solver.units import format_percent
from ..solver.version import __version__
from .address_plot import plot_addresses
from .figures import to_svg
from .memory_plot import plot_memory
from .peak import find_peak
from .scale import Scale
from .schedule_plot import plot_schedule
from .words import label_of, status_words

if TYPE_CHECKING:
    import os

    from ..solver.graph import Graph, Op
    from ..solver.memory.addresses import AddressPlan
    from ..solver.plan import Plan

TOP_TENSORS = 15
TOP_RECOMPUTED = 15


def write_report(graph: Graph, plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the report of `plan` to an HTML file that needs no network.

    Parameters
    ----------
    graph, plan
        A plan of this graph; it is checked first.
    path
        The file to write.

    Raises
    ------
    CheckError
        If the plan is not a valid one of this graph.
    InputError
        If the file cannot be written.
    """
    check(graph, plan)
    write_atomic(path, render_report(graph, plan).encode())


def render_report(graph: Graph, plan: Plan) -> str:
    """The report as text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lowtide.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template("report.html.j2")
    return page.render(**_context(graph, plan))


def _context(graph: Graph, plan: Plan) -> dict[str, Any]:
    from markupsafe import Markup

    scale = Scale.of(graph)
    again = plan.schedule.recomputes()
    placed = addresses(graph, plan)
    return {
        "title": graph.name,
        "ops": len(graph.ops),
        "tensors": len(graph.tensors),
        "headline": _headline(plan, scale),
        "facts": _facts(graph, plan, scale),
        "recomputes": again,
        "memory_svg": Markup(to_svg(plot_memory(graph, plan), "memory")),
        "schedule_svg": Markup(to_svg(plot_schedule(graph, plan), "schedule")),
        "address_svg": Markup(to_svg(plot_addresses(graph, plan, found=placed), "address")),
        "buffer": _buffer(placed, scale),
        "peak": _peak(graph, plan, scale),
        "recomputed": (recomputed := _recomputed(graph, plan, scale)),
        "recomputed_places": any(row["module"] or row["source"] for row in recomputed),
        "plan_json": Markup(plan_script(plan)),
        "version": __version__,
        "written": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _buffer(placed: AddressPlan, scale: Scale) -> str:
    """How long the buffer is, against what no buffer can go below."""
    least = scale.size(placed.lower_bound_bytes)
    end = "the least there can be" if placed.proven else f"at least {least} needed"
    return f"{scale.size(placed.arena_bytes)}, {end}"


def plan_script(plan: Plan) -> str:
    """The plan's document, safe inside a `<script>` element and still the same JSON."""
    document = {
        "schema": PLAN_SCHEMA,
        "schema_version": CURRENT_VERSION[PLAN_SCHEMA],
        "lowtide_version": __version__,
        "body": plan,
    }
    text = msgspec.json.encode(document).decode()
    # In JSON these characters occur inside strings only, where an escape means the same.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _headline(plan: Plan, scale: Scale) -> list[dict[str, str]]:
    """The four numbers that matter, each with a smaller line below."""
    saved = scale.base_peak_bytes - plan.peak_bytes
    share = saved / scale.base_peak_bytes if scale.base_peak_bytes else 0.0
    bound = "no lower bound"
    least = plan.overhead_bound
    if least is not None:
        bound = f"at least {format_percent(least)} needed"
    return [
        {
            "name": "budget",
            "value": scale.size(plan.budget_bytes),
            "note": scale.memory(plan.budget_bytes).partition(" (")[2].rstrip(")"),
        },
        {
            "name": "peak",
            "value": scale.size(plan.peak_bytes),
            "note": f"{100 * share:.1f}% less than {scale.size(scale.base_peak_bytes)} without",
        },
        {"name": "overhead", "value": format_percent(plan.overhead), "note": bound},
        {
            "name": "gap to the optimum",
            "value": "unknown" if plan.gap is None else format_percent(plan.gap),
            "note": status_words(plan),
        },
    ]


def _facts(graph: Graph, plan: Plan, scale: Scale) -> list[tuple[str, str]]:
    bound = "none" if plan.step_bound_ns is None else scale.time(plan.step_bound_ns)
    if plan.bound_class and plan.lower_bound_ns >= 0:
        bound += f" ({plan.bound_words})"
    label = label_of(plan.method)
    facts = [
        ("Graph", f"{graph.name}: {len(graph.ops):,} ops, {len(graph.tensors):,} tensors"),
        ("Graph hash", graph.structure_hash),
        ("Budget", scale.memory(plan.budget_bytes)),
        ("Predicted peak", scale.memory(plan.peak_bytes)),
        ("Peak without recomputation", scale.memory(scale.base_peak_bytes)),
        ("Resident", scale.memory(plan.resident_bytes)),
        ("Step time", f"{scale.time(plan.step_ns)} ({scale.time(plan.base_step_ns)} without)"),
        ("Overhead", format_percent(plan.overhead)),
        ("Lower bound on the step time", bound),
        ("Gap", "unknown" if plan.gap is None else format_percent(plan.gap)),
        ("Status", status_words(plan)),
        ("Method", label if label == plan.method else f"{label} ({plan.method})"),
        ("Solved in", f"{plan.solve_seconds:.2f} s, {plan.threads} thread(s), seed {plan.seed}"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in plan.versions.items())),
    ]
    facts += [(f"Capture: {key}", value) for key, value in sorted(graph.meta.items())]
    return facts


def _peak(graph: Graph, plan: Plan, scale: Scale) -> dict[str, Any] | None:
    peak = find_peak(graph, plan)
    if peak is None:
        return None
    rows = [
        {
            "name": graph.tensors[entry.index].name,
            "spec": graph.tensors[entry.index].spec,
            "size": scale.size(entry.size_bytes),
            "share": 100.0 * entry.size_bytes / peak.total_bytes if peak.total_bytes else 0.0,
            "role": entry.role,
            "op": entry.maker.name,
            **_place(entry.maker),
        }
        for entry in peak.live[:TOP_TENSORS]
    ]
    rest = peak.live[TOP_TENSORS:]
    return {
        "op": peak.op.name,
        "kind": peak.op.kind,
        **_place(peak.op),
        "again": peak.again,
        "position": peak.position,
        "total": scale.memory(peak.total_bytes),
        "rows": rows,
        "places": any(row["module"] or row["source"] for row in rows),
        "rest_count": len(rest),
        "rest": scale.size(sum(entry.size_bytes for entry in rest)),
        "extra": scale.size(peak.extra_bytes),
        "resident": scale.size(peak.resident_bytes),
    }


def _recomputed(graph: Graph, plan: Plan, scale: Scale) -> list[dict[str, Any]]:
    """Ops that run more than once, the most expensive first."""
    counts = Counter(plan.schedule.computes())
    extra = plan.time_ns - plan.base_time_ns
    found = [(graph.ops[op], runs - 1) for op, runs in counts.items() if runs > 1]
    found.sort(key=lambda entry: -entry[0].time_ns * entry[1])
    return [
        {
            "op": op.name,
            "kind": op.kind,
            **_place(op),
            "runs": again,
            "time": scale.time(op.time_ns * again),
            "share": 100.0 * op.time_ns * again / extra if extra > 0 else 0.0,
        }
        for op, again in found[:TOP_RECOMPUTED]
    ]


def _place(op: Op) -> dict[str, str]:
    return {"module": op.module, "source": op.source}
