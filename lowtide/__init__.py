"""Optimal rematerialization schedules for PyTorch training under a memory budget.

The public names are loaded when they are first used: `import lowtide` imports neither PyTorch nor a
solver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .solver.version import __version__ as __version__

if TYPE_CHECKING:
    from .frontends.torch.captured import Captured as Captured
    from .frontends.torch.costs.heap import keep_freed_memory as keep_freed_memory
    from .report.curve_plot import plot_curve as plot_curve
    from .report.memory_plot import plot_memory as plot_memory
    from .report.report import write_report as write_report
    from .report.schedule_plot import plot_schedule as plot_schedule
    from .runtime.capture import capture as capture
    from .runtime.compile.backend import backend as backend
    from .runtime.compile.partitioner import partitioner as partitioner
    from .runtime.measure.time_plans import time_plans as time_plans
    from .runtime.parity.verify import verify as verify
    from .runtime.plans.fit import fit as fit
    from .runtime.replay import replay as replay
    from .runtime.trainer import fit_trainer as fit_trainer
    from .solver.check import check as check
    from .solver.checkpoint import checkpoint as checkpoint
    from .solver.compare import Comparison as Comparison
    from .solver.compare import compare as compare
    from .solver.errors import InfeasibleError as InfeasibleError
    from .solver.errors import LowtideError as LowtideError
    from .solver.files import read_graph as read_graph
    from .solver.files import read_plan as read_plan
    from .solver.files import write_graph as write_graph
    from .solver.files import write_plan as write_plan
    from .solver.graph import Graph as Graph
    from .solver.memory.addresses import AddressPlan as AddressPlan
    from .solver.memory.addresses import addresses as addresses
    from .solver.plan import Plan as Plan
    from .solver.schedule import Schedule as Schedule
    from .solver.simulate import simulate as simulate
    from .solver.solve import solve as solve
    from .solver.sweep import sweep as sweep
else:
    # The same names for the interpreter; a test keeps the two lists equal.
    _MODULES = {
        "capture": ".runtime.capture",
        "Captured": ".frontends.torch.captured",
        "plot_curve": ".report.curve_plot",
        "plot_memory": ".report.memory_plot",
        "write_report": ".report.report",
        "plot_schedule": ".report.schedule_plot",
        "backend": ".runtime.compile.backend",
        "partitioner": ".runtime.compile.partitioner",
        "fit": ".runtime.plans.fit",
        "keep_freed_memory": ".frontends.torch.costs.heap",
        "time_plans": ".runtime.measure.time_plans",
        "replay": ".runtime.replay",
        "fit_trainer": ".runtime.trainer",
        "verify": ".runtime.parity.verify",
        "check": ".solver.check",
        "checkpoint": ".solver.checkpoint",
        "Comparison": ".solver.compare",
        "compare": ".solver.compare",
        "InfeasibleError": ".solver.errors",
        "LowtideError": ".solver.errors",
        "read_graph": ".solver.files",
        "read_plan": ".solver.files",
        "write_graph": ".solver.files",
        "write_plan": ".solver.files",
        "Graph": ".solver.graph",
        "AddressPlan": ".solver.memory.addresses",
        "addresses": ".solver.memory.addresses",
        "Plan": ".solver.plan",
        "Schedule": ".solver.schedule",
        "simulate": ".solver.simulate",
        "solve": ".solver.solve",
        "sweep": ".solver.sweep",
    }

    def __getattr__(name):
        import importlib

        if name not in _MODULES:
            raise AttributeError(f"module 'lowtide' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES[name], __name__), name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *_MODULES})
