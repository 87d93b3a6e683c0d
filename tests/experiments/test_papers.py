"""What the studies of published experiments share."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from experiments.checkmate2020.batches import Line, fits
from experiments.checkmate2020.ratios import ratios
from experiments.chen2016.__main__ import Results as ChenResults
from experiments.chen2016.__main__ import Row as ChenRow
from experiments.chen2016.__main__ import keep, stages
from experiments.models.steps import NETWORKS, WithLoss, graph_of, recurrent_graph, step
from experiments.papers.command import main
from experiments.papers.rows import Row, Subject, read
from experiments.papers.show import table
from experiments.papers.trained import Row as TrainedRow
from lowtide.frontends.chains import transformer
from lowtide.solver.errors import InputError

FOLDER = Path("experiments")


def a_row(method: str, budget: str, overhead: float | None, subject: str = "vgg16 b256") -> Row:
    """A row of a study."""
    status = "infeasible" if overhead is None else "feasible"
    return Row(subject, 9, budget, 100, method, status, "", None, overhead, None, 0.1)


def test_a_study_writes_results_table_and_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of subjects and methods that are not run again stay in the file."""

    def subjects(_: Path | None) -> list[Subject]:
        figures = {("greedy", "60%"): "printed: 1%"}
        return [Subject(n, lambda: transformer(2), ("60%",), figures) for n in ("one", "two")]

    common = ["--out", str(tmp_path), "--time-limit", "5"]
    assert main(tmp_path, "", subjects, "greedy,sqrt_n", argv=common) == 0
    printed = capsys.readouterr().out
    assert "[printed: 1%]" in printed
    assert (tmp_path / "one.svg").exists()
    again = ["--out", str(tmp_path), "--time-limit", "6", "--only", "tw*"]
    assert main(tmp_path, "", subjects, "greedy", argv=again) == 0
    found = read(tmp_path / "results.json")
    assert found is not None
    assert [(r.subject, r.method) for r in found.rows] == [
        ("one", "greedy"), ("one", "sqrt_n"), ("two", "greedy"), ("two", "sqrt_n"),
    ]  # fmt: skip
    assert [r.time_limit for r in found.rows] == [5.0, 5.0, 6.0, 5.0]
    assert main(tmp_path, "", subjects, "greedy", argv=[*common, "--only", "three"]) == 2
    (tmp_path / "results.json").write_text("[]")
    with pytest.raises(InputError, match="holds no results"):
        read(tmp_path / "results.json")


def test_ratios_are_geometric_means_over_budgets_met() -> None:
    """Budgets that only one of the two meets do not count."""
    rows = [
        a_row("auto", "80%", 0.0), a_row("auto", "60%", 0.1), a_row("auto", "40%", 0.5),
        a_row("greedy", "80%", 0.21), a_row("greedy", "60%", 0.1), a_row("greedy", "40%", None),
    ]  # fmt: skip
    value, met, of = ratios(rows, "vgg16")["greedy"]
    assert value == pytest.approx(1.1)
    assert (met, of) == (2, 3)
    assert "cannot" in table(rows)


def test_published_folders_have_their_readme() -> None:
    """Each study says how it is run."""
    root = Path(__file__).resolve().parents[2] / "experiments"
    for name in ("chen2016", "kumar2019", "checkmate2020", "kusumoto2019", "monet2021"):
        text = (root / name / "README.md").read_text()
        assert f"python -m experiments.{name}" in text


def test_parts_that_are_not_run_again_stay(tmp_path: Path) -> None:
    """Depths one by one, and what was trained, come together in one file."""
    path = tmp_path / "results.json"
    trained = [TrainedRow("m", 9, 1, "auto", "feasible", 1, 1, 0.1, 0.1, True)]
    keep(path, ChenResults([ChenRow("resnet", 50, 9, "none", 7, 0.0, 0.0)], trained))
    keep(path, ChenResults([ChenRow("resnet", 101, 9, "none", 8, 0.0, 0.0)], []))
    keep(path, ChenResults([ChenRow("resnet", 50, 9, "none", 6, 0.0, 0.0)], []))
    found = msgspec.json.decode(path.read_bytes(), type=ChenResults)
    assert [(row.size, row.peak_bytes) for row in found.planned] == [(101, 8), (50, 6)]
    assert found.trained == trained


def test_depths_are_those_asked_for() -> None:
    """Three layers a block, and the first and the last."""
    assert stages(50) == (3, 4, 6, 3)
    assert 3 * sum(stages(1001)) + 2 == 1001


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_run_on_small_images(name: str) -> None:
    """Every network of the studies gives a loss with gradients."""
    torch.manual_seed(0)
    if name in ("vgg16", "vgg19"):
        pytest.skip("its linear layers fix the size of images")
    network = WithLoss(NETWORKS[name].make())
    size = 97 if name == "pspnet" else 64
    shape = (2, size, size) if NETWORKS[name].dense else (2,)
    loss = network(torch.randn(2, 3, size, size), torch.zeros(shape, dtype=torch.int64))
    loss.backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.slow
def test_a_step_at_any_batch_lies_on_the_line(tmp_path: Path) -> None:
    """Bytes of a captured batch of eight are those of the line through two and four."""
    line = Line("vgg19", tmp_path)
    eight = graph_of("vgg19", 8, tmp_path)
    drawn = line.at(8)
    assert [t.size_bytes for t in drawn.tensors] == [t.size_bytes for t in eight.tensors]
    assert fits(drawn, "keep_everything", 5.0) is not None


def test_graphs_are_kept(tmp_path: Path) -> None:
    """The second time the file is read."""
    first = recurrent_graph(2, 3, tmp_path)
    (path,) = tmp_path.glob("*.graph.json.gz")
    before = path.stat().st_mtime_ns
    again = recurrent_graph(2, 3, tmp_path)
    assert path.stat().st_mtime_ns == before
    assert msgspec.json.encode(again) == msgspec.json.encode(first)
    model, batch = step("mobilenet", 2, "meta")
    assert next(model.parameters()).device.type == "meta"
    assert batch[0].shape[0] == 2
