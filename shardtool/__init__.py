"""shardtool: training samples into size-bounded shards, with proof that nothing was lost.

The public names are imported on first use, so that `import shardtool` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool._version import __version__

if TYPE_CHECKING:
    from shardtool.cache.cache import Cache
    from shardtool.check.findings import Finding
    from shardtool.check.look import Report
    from shardtool.errors import (
        AccessRefused,
        CorruptShard,
        InvalidRequest,
        OutputExists,
        OutputFailed,
        SampleFailed,
        ShardError,
        StoreFailed,
        UnknownKey,
        WorkerDied,
    )
    from shardtool.inspection.summary import Summary
    from shardtool.reading.dataset import Dataset
    from shardtool.reading.mix import mix
    from shardtool.reading.open import open  # noqa: A004 - `shardtool.open`
    from shardtool.reading.stream import Stream
    from shardtool.request.observer import Observer
    from shardtool.request.options import (
        CopyOptions,
        CreateOptions,
        ExportOptions,
        IndexOptions,
        InspectOptions,
        VerifyOptions,
    )
    from shardtool.request.reshard_options import ReshardOptions
    from shardtool.request.results import CopyResult, CreateResult, DryRun, ExportResult, IndexResult, SplitResult
    from shardtool.storage.places import use_endpoint
    from shardtool.verbs.copy import copy
    from shardtool.verbs.create import create, dry_run
    from shardtool.verbs.export import export
    from shardtool.verbs.index import index
    from shardtool.verbs.inspect import inspect
    from shardtool.verbs.reshard import reshard, reshard_dry_run
    from shardtool.verbs.verify import verify
    from shardtool.writer.merge import merge
    from shardtool.writer.options import WriterOptions
    from shardtool.writer.writer import ShardWriter


__all__ = [
    "AccessRefused",
    "Cache",
    "CopyOptions",
    "CopyResult",
    "CorruptShard",
    "CreateOptions",
    "CreateResult",
    "Dataset",
    "DryRun",
    "ExportOptions",
    "ExportResult",
    "Finding",
    "IndexOptions",
    "IndexResult",
    "InspectOptions",
    "InvalidRequest",
    "Observer",
    "OutputExists",
    "OutputFailed",
    "Report",
    "ReshardOptions",
    "SampleFailed",
    "ShardError",
    "ShardWriter",
    "SplitResult",
    "StoreFailed",
    "Stream",
    "Summary",
    "UnknownKey",
    "VerifyOptions",
    "WorkerDied",
    "WriterOptions",
    "__version__",
    "copy",
    "create",
    "dry_run",
    "export",
    "index",
    "inspect",
    "merge",
    "mix",
    "open",
    "reshard",
    "reshard_dry_run",
    "use_endpoint",
    "verify",
]

_MODULES = {
    "Cache": "cache.cache",
    "CopyOptions": "request.options",
    "CopyResult": "request.results",
    "CreateOptions": "request.options",
    "CreateResult": "request.results",
    "Dataset": "reading.dataset",
    "DryRun": "request.results",
    "ExportOptions": "request.options",
    "ExportResult": "request.results",
    "Finding": "check.findings",
    "IndexOptions": "request.options",
    "IndexResult": "request.results",
    "InspectOptions": "request.options",
    "Observer": "request.observer",
    "Report": "check.look",
    "ReshardOptions": "request.reshard_options",
    "ShardWriter": "writer.writer",
    "SplitResult": "request.results",
    "Stream": "reading.stream",
    "Summary": "inspection.summary",
    "VerifyOptions": "request.options",
    "WriterOptions": "writer.options",
    "copy": "verbs.copy",
    "create": "verbs.create",
    "dry_run": "verbs.create",
    "export": "verbs.export",
    "index": "verbs.index",
    "inspect": "verbs.inspect",
    "mix": "reading.mix",
    "open": "reading.open",
    "merge": "writer.merge",
    "reshard": "verbs.reshard",
    "reshard_dry_run": "verbs.reshard",
    "use_endpoint": "storage.places",
    "verify": "verbs.verify",
}


def __getattr__(name: str) -> object:
    """Import a public name where it is first used (PEP 562)."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
