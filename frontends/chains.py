"""Generated families of graphs: chains, residual chains, U-Nets, transformers, layered DAGs.

They are what the literature's arguments and plots are about (Chen et al. 2016; Checkmate, 2020,
appendix A; Gagrani et al. 2022 for layered graphs), at any size and with known structure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..solver.errors import InputError
from ..solver.graph import Graph, Op, Tensor
from .steps import StepBuilder

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = 1 << 20
MILLISECOND = 1_000_000


def linear_chain(
    layers: int,
    *,
    size_bytes: int | Sequence[int] = MIB,
    time_ns: int | Sequence[int] = MILLISECOND,
    weight_bytes: int | Sequence[int] = 0,
    backward_ratio: float = 2.0,
    saves_output: bool = False,
) -> Graph:
    """Make a training step of layers in a row; the gradient of each reads the layer's input.

    Parameters
    ----------
    layers
        Number of layers, at least 1.
    size_bytes, time_ns, weight_bytes
        Of each layer's output, forward execution and parameter; one number for all, or one each.
    backward_ratio
        Backward time as a multiple of forward time.
    saves_output
        True if gradients read the output as well (as those of normalisations and sigmoids do).
    """
    sizes = _each(size_bytes, layers, "size_bytes")
    times = _each(time_ns, layers, "time_ns")
    weights = _each(weight_bytes, layers, "weight_bytes")
    builder = StepBuilder(f"chain-{layers}", backward_ratio)
    last = builder.resident("input", sizes[0])
    for i in range(layers):
        last = builder.forward(
            f"layer{i}",
            [last],
            sizes[i],
            times[i],
            module=f"layers.{i}",
            weight_bytes=weights[i],
            saves_output=saves_output,
        )
    return builder.finish(last)


def residual_chain(
    blocks: int, *, inner: int = 3, size_bytes: int = MIB, time_ns: int = MILLISECOND
) -> Graph:
    """Make a training step of residual blocks: `inner` layers then the sum with the input.

    Parameters
    ----------
    blocks, inner
        Number of blocks, and of layers in each.
    size_bytes, time_ns
        Of each layer's output and forward execution; a sum takes an eighth of the time.
    """
    builder = StepBuilder(f"residual-{blocks}x{inner}")
    last = builder.forward(
        "stem", [builder.resident("input", size_bytes)], size_bytes, time_ns, module="stem"
    )
    for block in range(blocks):
        start = last
        for i in range(inner):
            last = builder.forward(
                f"block{block}.layer{i}",
                [last],
                size_bytes,
                time_ns,
                module=f"blocks.{block}.layers.{i}",
            )
        last = builder.forward(
            f"block{block}.sum",
            [start, last],
            size_bytes,
            time_ns // 8,
            kind="add",
            module=f"blocks.{block}",
            saved=[],
        )
    return builder.finish(last)


def residual_network(
    layers: int,
    *,
    stages: Sequence[float] = (1.0,),
    batch: int = 32,
    width: int = 64,
    size: int = 32,
    flops_per_ns: float = 10_000.0,
    bytes_per_ns: float = 1_000.0,
) -> Graph:
    """Make a training step of a deep ResNet: bottleneck blocks with batch norm, by roofline.

    Parameters
    ----------
    layers
        Convolutions, about: three a block. 1000 layers have more than 10,000 ops.
    stages
        Shares of the blocks in stages; each stage halves the image and doubles the width.
    batch, width, size
        Images, channels of a block's output in the first stage, height and width of the image.
    flops_per_ns, bytes_per_ns
        Speed of the imagined device.
    """
    builder = StepBuilder(f"resnet-{layers}")
    element = 4

    def light(tensors: float, unit: int) -> int:
        return round(tensors * unit / bytes_per_ns)

    def convolution(
        name: str, source: int, channels: tuple[int, int], kernel: int, side: int
    ) -> int:
        """A convolution, its batch norm; returns the normalised result."""
        read, made = channels
        unit = batch * made * side * side * element
        weight = read * made * kernel * kernel
        out = builder.forward(
            f"{name}.conv",
            [source],
            unit,
            round(2 * batch * side * side * weight / flops_per_ns),
            kind=f"convolution{kernel}",
            module=name,
            weight_bytes=weight * element,
        )
        return builder.forward(
            f"{name}.norm",
            [out],
            unit,
            light(3, unit),
            kind="batch_norm",
            module=name,
            extra_output_bytes=2 * made * element,
            weight_bytes=2 * made * element,
        )

    def relu(name: str, source: int, channels: int, side: int) -> int:
        unit = batch * channels * side * side * element
        return builder.forward(
            f"{name}.relu",
            [source],
            unit,
            light(2, unit),
            kind="relu",
            module=name,
            saved=[],
            saves_output=True,
        )

    last = convolution(
        "stem", builder.resident("images", batch * 3 * size**2 * element), (3, width), 3, size
    )
    last = relu("stem", last, width, size)
    blocks = max(1, round((layers - 1) / 3))
    for stage, share in enumerate(stages):
        channels, side = width << stage, max(1, size >> stage)
        for b in range(max(1, round(blocks * share / sum(stages)))):
            name = f"stages.{stage}.{b}"
            skip, read = last, channels
            if stage > 0 and b == 0:  # half the image, twice the width
                read = channels // 2
                skip = convolution(f"{name}.skip", last, (read, channels), 1, side)
            inner = convolution(f"{name}.a", last, (read, channels // 4), 1, side)
            inner = relu(f"{name}.a", inner, channels // 4, side)
            inner = convolution(f"{name}.b", inner, (channels // 4, channels // 4), 3, side)
            inner = relu(f"{name}.b", inner, channels // 4, side)
            inner = convolution(f"{name}.c", inner, (channels // 4, channels), 1, side)
            unit = batch * channels * side * side * element
            inner = builder.forward(
                f"{name}.sum",
                [skip, inner],
                unit,
                light(3, unit),
                kind="add",
                module=name,
                saved=[],
            )
            last = relu(name, inner, channels, side)
    return builder.finish(last)


def unet(
    levels: int, *, layers: int = 2, size_bytes: int = 16 * MIB, time_ns: int = 4 * MILLISECOND
) -> Graph:
    """Make a training step of a U-Net: down, bottom, up, with a long skip at every level.

    Parameters
    ----------
    levels
        Number of levels; each halves the bytes and the time of the one above.
    layers
        Layers a level on each side.
    size_bytes, time_ns
        Of a layer at the top level.
    """
    builder = StepBuilder(f"unet-{levels}x{layers}")
    last = builder.resident("input", size_bytes)
    skips: list[int] = []

    def run(side: str, level: int, first: list[int]) -> int:
        reads = first
        for i in range(layers):
            name = f"{side}{level}.layer{i}"
            result = builder.forward(
                name, reads, size_bytes >> level, time_ns >> level, module=f"{side}.{level}"
            )
            reads = [result]
        return reads[0]

    for level in range(levels):
        last = run("down", level, [last])
        skips.append(last)
        last = builder.forward(
            f"pool{level}",
            [last],
            size_bytes >> (level + 1),
            time_ns >> (level + 3),
            kind="pool",
            module=f"down.{level}",
        )
    last = run("bottom", levels, [last])
    for level in reversed(range(levels)):
        last = builder.forward(
            f"grow{level}",
            [last],
            size_bytes >> level,
            time_ns >> (level + 3),
            kind="upsample",
            module=f"up.{level}",
            saved=[],
        )
        last = run("up", level, [skips[level], last])
    return builder.finish(last)


def transformer(
    blocks: int,
    *,
    batch: int = 4,
    sequence: int = 512,
    width: int = 768,
    heads: int = 12,
    element_bytes: int = 2,
    flops_per_ns: float = 100_000.0,
    bytes_per_ns: float = 1_000.0,
) -> Graph:
    """Make a training step of a decoder: pre-norm attention and MLP blocks, times by roofline.

    Parameters
    ----------
    blocks
        Number of blocks.
    batch, sequence, width, heads
        Shape of the model and its input.
    element_bytes
        Bytes of an activation or parameter.
    flops_per_ns, bytes_per_ns
        Speed of the imagined device.
    """
    tokens = batch * sequence
    unit = tokens * width * element_bytes
    builder = StepBuilder(f"transformer-{blocks}x{width}")

    def light(units: float) -> int:
        return round(units * unit / bytes_per_ns)

    def matmul(columns: int, rows: int) -> int:
        return round(2 * tokens * columns * rows / flops_per_ns)

    def weight(columns: int, rows: int) -> int:
        return columns * rows * element_bytes

    last = builder.forward(
        "embed", [builder.resident("tokens", tokens * 8)], unit, light(1), module="embed", saved=[]
    )
    for b in range(blocks):
        path, name = f"blocks.{b}", f"block{b}"
        norm = builder.forward(
            f"{name}.norm1",
            [last],
            unit,
            light(2),
            kind="norm",
            module=f"{path}.norm1",
            extra_output_bytes=tokens * 8,
        )
        qkv = builder.forward(
            f"{name}.qkv",
            [norm],
            3 * unit,
            matmul(width, 3 * width),
            kind="linear",
            module=f"{path}.attention.qkv",
            saved=[],
            weight_bytes=weight(width, 3 * width),
        )
        attention = builder.forward(
            f"{name}.attention",
            [qkv],
            unit,
            round(4 * tokens * sequence * width / flops_per_ns),
            kind="attention",
            module=f"{path}.attention",
            saves_output=True,
            extra_output_bytes=tokens * heads * 4,
        )
        out = builder.forward(
            f"{name}.out",
            [attention],
            unit,
            matmul(width, width),
            kind="linear",
            module=f"{path}.attention.out",
            saved=[],
            weight_bytes=weight(width, width),
        )
        middle = builder.forward(
            f"{name}.sum1", [last, out], unit, light(3), kind="add", module=path, saved=[]
        )
        norm = builder.forward(
            f"{name}.norm2",
            [middle],
            unit,
            light(2),
            kind="norm",
            module=f"{path}.norm2",
            extra_output_bytes=tokens * 8,
        )
        wide = builder.forward(
            f"{name}.up",
            [norm],
            4 * unit,
            matmul(width, 4 * width),
            kind="linear",
            module=f"{path}.mlp.up",
            saved=[],
            weight_bytes=weight(width, 4 * width),
        )
        active = builder.forward(
            f"{name}.gelu", [wide], 4 * unit, light(8), kind="gelu", module=f"{path}.mlp"
        )
        down = builder.forward(
            f"{name}.down",
            [active],
            unit,
            matmul(4 * width, width),
            kind="linear",
            module=f"{path}.mlp.down",
            saved=[],
            weight_bytes=weight(4 * width, width),
        )
        last = builder.forward(
            f"{name}.sum2", [middle, down], unit, light(3), kind="add", module=path, saved=[]
        )
    return builder.finish(last, loss_time_ns=light(1))


def random_layered(
    nodes: int,
    *,
    seed: int = 0,
    width: float = 0.3,
    edge_density: float = 0.2,
    skip_density: float = 0.14,
    largest: int = 1000,
) -> Graph:
    """Make a random layered DAG without phases, in the style of Gagrani et al. (2022).

    Nodes fall into layers of random width; each reads one node of the layer before, others of it
    with probability `edge_density`, and nodes further up with a probability that adds up to
    `skip_density` a node. The last node reads all nodes that nobody else reads and is the output.

    Parameters
    ----------
    nodes
        Number of ops, at least 2.
    seed
        Of NumPy's default generator.
    width
        Mean layer width as a power of `nodes`: nodes ** width.
    edge_density, skip_density
        See above.
    largest
        Largest size and time.
    """
    if nodes < 2:
        raise InputError(f"a layered graph needs at least 2 nodes, not {nodes}")
    generator = np.random.default_rng(seed)
    mean = max(1.0, nodes**width)
    layers: list[list[int]] = []
    reads: list[list[int]] = []
    while len(reads) < nodes - 1:
        room = nodes - 1 - len(reads)
        count = min(room, int(generator.integers(1, round(2 * mean), endpoint=True)))
        layer: list[int] = []
        for _ in range(count):
            inputs: set[int] = set()
            if layers:
                above = layers[-1]
                inputs.add(int(generator.choice(above)))
                inputs.update(t for t in above if generator.random() < edge_density)
                older = len(reads) - len(layer) - len(above)
                if older > 0 and generator.random() < skip_density:
                    inputs.add(int(generator.integers(older)))
            layer.append(len(reads))
            reads.append(sorted(inputs))
        layers.append(layer)
    used = {t for inputs in reads for t in inputs}
    reads.append([t for t in range(nodes - 1) if t not in used])
    sizes = generator.integers(1, largest, size=nodes, endpoint=True).tolist()
    times = generator.integers(1, largest, size=nodes, endpoint=True).tolist()
    return Graph(
        f"layered-{nodes}-{seed}",
        tuple(Op(f"node{i}", "node", times[i], tuple(reads[i]), (i,)) for i in range(nodes)),
        tuple(Tensor(f"t{i}", sizes[i], output=i == nodes - 1) for i in range(nodes)),
        size_unit="elements",
        time_unit="cost",
    )


def _each(value: int | Sequence[int], count: int, name: str) -> list[int]:
    """One number a layer."""
    if count < 1:
        raise InputError(f"a chain needs at least 1 layer, not {count}")
    if isinstance(value, int):
        return [value] * count
    if len(value) != count:
        raise InputError(f"{name} has {len(value)} numbers for {count} layers")
    return list(value)
