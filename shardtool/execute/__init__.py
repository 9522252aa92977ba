"""Worker processes: a function and its tasks go out, results come back as they are done.

Here it is decided where they run: on this machine, or on a Ray cluster.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.execute.local_pool import LocalPool, usable_cores
from shardtool.messages import option_text

if TYPE_CHECKING:
    from shardtool.execute.pool import Pool
    from shardtool.request.observer import Observer
    from shardtool.request.output_options import WorkerOptions

_RAY_VARIABLES = {  # of Ray, which looks at them when it is imported; where the environment does not say otherwise
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else it warns of its own future
    "RAY_DEDUP_LOGS_SKIP_REGEX": "(?s).*",  # print nothing of the nodes' logs, for which stdout is not meant
    "RAY_gcs_server_port_wait_time_s": "1",  # attempts at a cluster that does not answer, each of half a minute
    "GRPC_VERBOSITY": "NONE",
}


def start_pool(
    asked: WorkerOptions, again: str = "Run the same command again.", observer: Observer | None = None
) -> Pool:
    """Start the workers that options ask for.

    Args:
        asked: The options.
        again: What to do after a worker has died.
        observer: Hears of a cluster that had to be started.

    Raises:
        InvalidRequest: Ray is not installed, there is no cluster at the address, or a node of it has other versions.
        WorkerDied: Workers cannot be started.
        OutOfMemory: There is no memory for them.
    """
    if asked.executor == "local":
        return LocalPool(asked.workers or usable_cores(), asked.start_method, again)
    for name, value in _RAY_VARIABLES.items():
        os.environ.setdefault(name, value)
    try:
        from shardtool.execute.ray_pool import RayPool
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        remedy = "Run `pip install 'shardtool[ray]'`, here and on each node."
        raise InvalidRequest(option_text("executor", "ray"), "Ray is not installed here", remedy=remedy) from None
    return RayPool(asked, again, usable_cores(), observer)
