"""Rows of a comparison at the same time, here or on a cluster, through joblib."""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .comparison import Row

CLUSTERS = ("local", "dask", "ray")


def rows_of(
    one: Callable[..., Row],
    pairs: Sequence[tuple[str, int, str]],
    *,
    jobs: int,
    cluster: str = "local",
    address: str | None = None,
) -> Iterator[Row]:
    """Rows in the order of `pairs`, as they are done.

    Parameters
    ----------
    one
        Makes the row of a pair; it must be possible to pickle it.
    jobs
        How many at the same time; on a cluster, how many are handed over at the same time.
    cluster
        `local` (processes of this machine), `dask` or `ray`.
    address
        Of the scheduler; None: a new one on this machine.

    Raises
    ------
    InputError
        If the cluster's package is missing, or its scheduler cannot be reached.
    """
    if cluster == "local" and address is not None:
        raise InputError(f"an address ({address}) is of a cluster: choose dask or ray")
    if cluster == "local" and (jobs == 1 or len(pairs) == 1):
        for pair in pairs:
            yield one(*pair)
        return
    import joblib

    with _cluster(cluster, jobs, address):
        # Dask and Ray return whole lists: a batch at a time, so that rows are kept as they come.
        batch = len(pairs) if cluster == "local" else max(1, jobs)
        for start in range(0, len(pairs), batch):
            part = pairs[start : start + batch]
            kind = "generator" if cluster == "local" else "list"
            run = joblib.Parallel(n_jobs=min(jobs, len(pairs)), return_as=kind)
            yield from run(joblib.delayed(one)(*pair) for pair in part)


@contextlib.contextmanager
def _cluster(name: str, jobs: int, address: str | None) -> Iterator[None]:
    import joblib

    if name == "local":
        yield
        return
    if name not in CLUSTERS:
        raise InputError(f"no cluster {name!r}: choose one of {', '.join(CLUSTERS)}")
    try:
        if name == "dask":
            with _dask(jobs, address), joblib.parallel_config(backend="dask"):
                yield
        else:
            import_module("ray.util.joblib").register_ray()
            import_module("ray").init(address=address, ignore_reinit_error=True)
            with joblib.parallel_config(backend="ray"):
                yield
    except ModuleNotFoundError as error:
        package = {"dask": "dask[distributed]", "ray": "ray"}[name]
        raise InputError(
            f"{name} needs the package {error.name}: pip install '{package}'"
        ) from None


@contextlib.contextmanager
def _dask(jobs: int, address: str | None) -> Iterator[None]:
    distributed = import_module("distributed")
    if address is None:
        local = distributed.LocalCluster(
            n_workers=jobs, threads_per_worker=1, dashboard_address=None
        )
        with local, distributed.Client(local):
            yield
        return
    try:
        client = distributed.Client(address, timeout=20)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler at {address}: {error}") from None
    with client:
        yield
