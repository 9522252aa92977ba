"""Run tasks in worker processes, in the calling process, or on a Ray cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.execute.local_pool import RERUN_ADVICE, LocalPool, usable_cores
from shardtool.execute.pool import Pool
from shardtool.messages import option_text

if TYPE_CHECKING:
    from shardtool.request.observer import Observer
    from shardtool.request.output_options import WorkerOptions

_RAY_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # prevent Ray from printing the logs of nodes to stdout
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",
    # try to connect only once, because a failed attempt takes half a minute
    "RAY_gcs_server_port_wait_time_s": "1",
    "GRPC_VERBOSITY": "NONE",
}


def start_pool(
    options: WorkerOptions, advice: str = RERUN_ADVICE, observer: Observer | None = None, *, lazy: bool = False
) -> Pool:
    """Start the pool that `options` requests. If a worker dies, the error contains `advice`.

    For `lazy`, see `LocalPool`.
    """
    if options.workers == 0 and (options.executor != "local" or options.start_method != "auto"):
        name = "executor" if options.executor != "local" else "start_method"
        found = f"used with {option_text('workers', 0)}, which runs all tasks in this process"
        raise InvalidRequest(option_text(name, getattr(options, name)), found, expected="only one of them")
    if options.executor == "local":
        workers = usable_cores() if options.workers is None else options.workers
        return LocalPool(workers, options.start_method, advice, lazy=lazy) if workers else Pool()
    for name, value in _RAY_VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        from shardtool.execute.ray_pool import RayPool
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        remedy = "Run `pip install 'shardtool[ray]'` here and on every node."
        raise InvalidRequest(option_text("executor", "ray"), "Ray is not installed here", remedy=remedy) from None
    return RayPool(options, advice, usable_cores(), observer)
