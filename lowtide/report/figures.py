"""Figures without any global state, and figures as text to be put into a page.

`matplotlib.pyplot` is never imported: a report must not touch the figures of its caller.
"""

from __future__ import annotations

import io
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Blue-grey for what is kept, orange for what is done again, red for limits: told apart by people
# with any colour vision, and in grey.
INK = "#1f2933"
MUTED = "#7b8794"
RESIDENT = "#9aa5b1"
KEPT = "#bcd4ea"
COMPUTED = "#2b6cb0"
RECOMPUTED = "#e07b00"
LIMIT = "#c81e1e"
SERIES = ("#2b6cb0", "#e07b00", "#2f855a", "#8e44ad", "#c81e1e", "#8d6e63", "#0f8b8d", "#555555")
MARKERS = "osD^vPX*"
# Which series a method is, so that it looks the same in every picture; from 8 on the colours come
# again with the next marker.
KNOWN = {
    "auto": 0, "greedy": 1, "sqrt_n": 2, "log_n": 3, "milp": 4, "per_block": 5,
    "keep_everything": 7, "checkmate": 8, "ap_sqrt_n": 9, "linearized_sqrt_n": 10, "revolve": 11,
    "rotor": 12, "kusumoto": 13, "kusumoto_exact": 14, "treewidth": 15, "pathwidth": 16,
    "moccasin": 17, "knapsack_dp": 18, "knapsack_greedy": 19, "dtr": 20, "dtr_eq": 21, "lru": 22,
    "ap_greedy": 23, "linearized_greedy": 24, "checkmate_lp": 25,
}  # fmt: skip

_RC: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "lowtide"}
SUFFIXES = (".svg", ".png", ".pdf")


def new_axes(width: float = 9.0, height: float = 4.0) -> Axes:
    """Axes in a figure of their own.

    Parameters
    ----------
    width, height
        Inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def look(name: str) -> tuple[str, str]:
    """Colour and marker of a method: by its name alone, whatever else is in the picture."""
    number = KNOWN.get(name)
    if number is not None:
        turn = number // len(SERIES)
        return SERIES[number % len(SERIES)], MARKERS[(number + turn) % len(MARKERS)]
    digest = zlib.crc32(name.encode())  # `hash` differs from run to run
    return SERIES[digest % len(SERIES)], MARKERS[digest // len(SERIES) % len(MARKERS)]


def figure_of(ax: Axes) -> Figure:
    """The whole figure that `ax` is in."""
    from matplotlib.figure import Figure

    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure


def style(ax: Axes) -> None:
    """Thin lines, no box."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(MUTED)
    ax.tick_params(colors=INK, labelsize=9)


def to_svg(ax: Axes, prefix: str) -> str:
    """The figure as an `<svg>` element whose ids all start with `prefix`, the same every time."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context(_RC):
        figure_of(ax).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # Two figures on one page must not share ids.
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    return re.sub(r"url\(#", f"url(#{prefix}-", text)


def save(ax: Axes, path: str | Path) -> None:
    """Write the figure as SVG, PNG or PDF, whole or not at all.

    Raises
    ------
    InputError
        If the name has another ending, or the file cannot be written.
    """
    import matplotlib as mpl

    from ..solver.errors import InputError
    from ..solver.files import write_atomic

    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"cannot write {path}: the name must end in {' or '.join(SUFFIXES)}")
    date = {"CreationDate": None} if suffix == ".pdf" else {"Date": None}
    buffer = io.BytesIO()
    with mpl.rc_context(_RC):
        figure_of(ax).savefig(
            buffer,
            format=suffix[1:],
            dpi=150,
            metadata=None if suffix == ".png" else date,
        )
    write_atomic(path, buffer.getvalue())
