"""`lowtide env`: versions, devices and solvers, to be pasted into a bug report."""

from __future__ import annotations

import os
import platform
from typing import Any

from .options import Json, Quiet
from .terminal import Terminal, facts, stdout_to_stderr

PACKAGES = (
    "torch", "numpy", "highspy", "ortools", "pulp", "numba", "networkx", "msgspec", "joblib",
    "matplotlib", "jinja2", "typer", "rich",
)  # fmt: skip


def env(json: Json = False, quiet: Quiet = False) -> int:
    """Print versions, devices and solvers."""
    from ..solver.version import versions

    with stdout_to_stderr():
        document: dict[str, Any] = {
            "versions": versions(*PACKAGES),
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": _cpus(),
            "devices": _devices(),
            "pulp_solvers": _pulp_solvers(),
        }
    found = document["versions"]
    rows = [(name, found.get(name, "not installed")) for name in ("lowtide", *PACKAGES)]
    rows += [
        ("python", document["python"]),
        ("platform", document["platform"]),
        ("cpus", str(document["cpus"])),
        ("cuda devices", ", ".join(document["devices"]) or "none"),
        ("pulp solvers", ", ".join(document["pulp_solvers"]) or "none"),
    ]
    Terminal(json, quiet).product(facts(rows), document)
    return 0


def _cpus() -> int:
    """CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices() -> list[str]:
    """CUDA devices by name and memory."""
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"{device.name} ({device.total_memory / 2**30:.1f} GiB)" for device in found]


def _pulp_solvers() -> list[str]:
    """Solvers that PuLP can start here."""
    try:
        import pulp
    except ImportError:
        return []
    return [str(name) for name in pulp.listSolvers(onlyAvailable=True)]
