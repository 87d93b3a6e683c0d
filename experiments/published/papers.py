"""Figures that stand in papers only, each with its place; the others are read from a file."""

from __future__ import annotations

# Short names of the Moccasin paper, as the beginnings of file names.
MOCCASIN_GRAPHS = {
    "RL1": "moccasin_random_layered_n100_",
    "RL2": "moccasin_random_layered_n250_",
    "RL3": "moccasin_random_layered_n500_",
    "RL4": "moccasin_random_layered_n1000_",
    "CM1": "moccasin_fcn_8_vgg_",
    "CM2": "moccasin_ResNet50_",
}

# Checkmate's integer program as Bartan et al. ran it (Moccasin, ICML 2023, table of the poster):
# (graph, budget % of the peak of the stored order, overhead %, seconds).
CHECKMATE: tuple[tuple[str, int, float, float], ...] = (
    ("RL1", 90, 0.8, 18.5),
    ("RL1", 80, 2.3, 22.7),
    ("RL2", 90, 0.9, 685.1),
    ("CM1", 90, 0.0, 6.3),
    ("CM1", 80, 0.1, 5.6),
    ("CM2", 90, 0.1, 434.1),
    ("CM2", 80, 0.3, 485.3),
)

# Jain et al., Checkmate, MLSys 2020, figure 6 (the README of the artifact has lower figures for
# some): largest batch within 16e9 bytes at the cost of at most one more forward pass.
MAX_BATCH_BYTES = 16_000_000_000
MAX_BATCH: tuple[tuple[str, int], ...] = (
    ("checkmate_flops_vgg_unet", 61),
    ("checkmate_flops_MobileNet", 1105),
)

# Why an instance is not compared: by the beginning of its name.
NOT_COMPARABLE: tuple[tuple[str, str], ...] = (
    ("monet_", "another accounting of gradients than the published solves"),
    ("moccasin_", "no overhead published for this graph"),
    ("dtr_", "no simulated run published for this log"),
    ("pfnet_", "published as memory of a GPU run at another batch size"),
    ("checkmate_flops_", "only curves without figures published"),
    ("poet_", "published figures are energy on a microcontroller"),
    ("model_toy_", "a unit test of its authors"),
    ("rockmate_", "published for whole models only"),
)
