"""What measured costs depend on beside the operator: hardware, versions, settings in force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .heap import keeps_freed_memory


def device_name(device: torch.device) -> str:
    """Name of the hardware behind a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    import platform

    return platform.processor() or platform.machine()


def machine_text(device: torch.device) -> str:
    """All that a measurement depends on beside its signature: hardware, version, settings."""
    parts = [device_name(device), f"torch {torch.__version__}"]
    if device.type == "cuda":
        matmul: Any = torch.backends.cuda.matmul
        cudnn: Any = torch.backends.cudnn
        parts += [
            f"cuda {torch.version.cuda}",
            f"tf32 {matmul.fp32_precision} {cudnn.conv.fp32_precision}",
            f"cudnn {cudnn.enabled} {cudnn.benchmark} {cudnn.deterministic}",
        ]
    else:
        parts += [
            f"threads {torch.get_num_threads()}",
            f"mkldnn {torch.backends.mkldnn.enabled}",
            f"isa {torch.backends.cpu.get_cpu_capability()}",
        ]
        if keeps_freed_memory():
            parts.append("freed memory kept")
    parts.append(f"deterministic {torch.are_deterministic_algorithms_enabled()}")
    return ", ".join(parts)
