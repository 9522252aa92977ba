"""Read and write objects in object stores, on web servers and through fsspec.

The modules in `STORE_MODULES` are imported on first use, because local files do not need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardtool.storage.remote import lock as lock
    from shardtool.storage.remote import network as network
    from shardtool.storage.remote import objects as objects
    from shardtool.storage.remote import store_access as store_access
    from shardtool.storage.remote import store_copy as store_copy

STORE_MODULES = {
    name: f"shardtool.storage.remote.{name}" for name in ("lock", "network", "objects", "store_access", "store_copy")
} | {"remote_folder": "shardtool.storage.remote_folder"}


def __getattr__(name: str) -> Any:
    if name not in STORE_MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return import_module(STORE_MODULES[name])
