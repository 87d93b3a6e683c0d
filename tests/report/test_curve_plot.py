"""Curves of a comparison: points, bounds, what is shaded and what is cut off."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from lowtide.report.curve_plot import bounds_by_budget, plot_curve
from lowtide.report.figures import look
from lowtide.solver.assemble import ANY_ORDER_CLASS
from lowtide.solver.plan import Status
from lowtide.solver.solve import METHODS

from .drawing import comparison, labels, row, vertices


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
