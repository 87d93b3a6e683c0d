"""Training steps of the studies by name, captured on the meta device with roofline times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import lowtide

from .classifiers import RESNET, densenet, googlenet, mobilenet, resnet, vgg
from .recurrent import Unrolled
from .segmenters import PSPNet, UNet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Images:
    """A network on images.

    Attributes
    ----------
    make
        Builds the network.
    height, width
        Of an image, in pixels.
    dense
        Whether it scores every pixel instead of the image.
    """

    make: Callable[[], nn.Module]
    height: int = 224
    width: int = 224
    dense: bool = False


NETWORKS: dict[str, Images] = {
    "vgg16": Images(lambda: vgg(16)),
    "vgg19": Images(lambda: vgg(19)),
    "resnet50": Images(lambda: resnet(RESNET[50])),
    "resnet152": Images(lambda: resnet(RESNET[152])),
    "mobilenet": Images(mobilenet),
    "densenet161": Images(densenet),
    "googlenet": Images(googlenet),
    "unet": Images(UNet, 416, 608, dense=True),
    "unet_square": Images(UNet, 576, 576, dense=True),
    "pspnet": Images(PSPNet, 713, 713, dense=True),
}


def step(name: str, batch: int, device: str = "cpu") -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A network with its loss inside, and a batch of so many images.

    Parameters
    ----------
    device
        `meta` allocates nothing.
    """
    network = NETWORKS[name]
    with torch.device(device):
        model = WithLoss(network.make())
        images = torch.zeros(batch, 3, network.height, network.width)
        shape = (batch, network.height, network.width) if network.dense else (batch,)
        labels = torch.zeros(shape, dtype=torch.int64)
    return model.train(), (images, labels)


class WithLoss(nn.Module):
    """A network whose forward gives the cross entropy of its scores."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Loss of a batch."""
        return nn.functional.cross_entropy(self.network(images), labels)


def graph_of(name: str, batch: int, folder: Path | None = None) -> lowtide.Graph:
    """The graph of a step; kept in `folder` for the next time."""
    return kept(f"{name}-b{batch}", lambda: step(name, batch, "meta"), folder)


def recurrent_graph(length: int, batch: int = 64, folder: Path | None = None) -> lowtide.Graph:
    """The step of the unrolled LSTM over `length` frames."""

    def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        with torch.device("meta"):
            labels = torch.zeros(batch, dtype=torch.int64)
            return Unrolled().train(), (torch.zeros(length, batch, 50), labels)

    return kept(f"lstm-t{length}-b{batch}", make, folder)


def kept(
    name: str,
    make: Callable[[], tuple[nn.Module, Any]],
    folder: Path | None,
) -> lowtide.Graph:
    """The graph of the step that `make` gives, from the folder if it is there."""
    path = None if folder is None else folder / f"{name}.graph.json.gz"
    if path is not None and path.exists():
        return lowtide.read_graph(path)
    model, batch = make()
    graph = lowtide.capture(model, batch, device="cpu", times="roofline").graph
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lowtide.write_graph(graph, path)
    return graph
