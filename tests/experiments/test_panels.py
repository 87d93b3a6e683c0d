"""Pictures of the studies: a panel for each subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.papers.panels import Point, panels

if TYPE_CHECKING:
    from pathlib import Path


def test_a_panel_for_each_subject(tmp_path: Path) -> None:
    """Titles, labels and methods stand in the picture; without points there is none."""
    points = [Point(name, m, x, 2.0 * x) for name in "ab" for m in ("auto", "lru") for x in (1, 2)]
    panels(points, tmp_path / "some.svg", "peak", "time", logarithmic=True)
    text = (tmp_path / "some.svg").read_text()
    for word in ("a", "b", "lowtide", "lru", "peak", "time"):
        assert f">{word}</text>" in text
    panels([], tmp_path / "none.svg", "peak", "time", logarithmic=False)
    assert not (tmp_path / "none.svg").exists()
