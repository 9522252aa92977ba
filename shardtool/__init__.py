"""shardtool: training samples into size-bounded shards, with proof that nothing was lost.

The public names are imported on first use, so that `import shardtool` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool._version import __version__

if TYPE_CHECKING:
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
    from shardtool.read.dataset import (
        Dataset,
        mix,
        open,  # noqa: A004 - `shardtool.open`
    )
    from shardtool.read.stream import Stream
    from shardtool.request.options import (
        CopyOptions,
        CreateOptions,
        ExportOptions,
        IndexOptions,
        InspectOptions,
        ReshardOptions,
        VerifyOptions,
    )
    from shardtool.request.results import (
        CopyResult,
        CreateResult,
        DryRun,
        ExportResult,
        IndexResult,
        Observer,
        SplitResult,
    )
    from shardtool.storage.places import use_endpoint
    from shardtool.verbs.cache.cache import Cache
    from shardtool.verbs.copy import copy
    from shardtool.verbs.create.create import create, dry_run, reshard, reshard_dry_run
    from shardtool.verbs.index.index import export, index
    from shardtool.verbs.inspect.inspect import Summary, inspect
    from shardtool.verbs.verify.findings import Finding, Report
    from shardtool.verbs.verify.verify import verify
    from shardtool.writer.merge import merge
    from shardtool.writer.output import WriterOptions
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
    "Cache": "verbs.cache.cache",
    "CopyOptions": "request.options",
    "CopyResult": "request.results",
    "CreateOptions": "request.options",
    "CreateResult": "request.results",
    "Dataset": "read.dataset",
    "DryRun": "request.results",
    "ExportOptions": "request.options",
    "ExportResult": "request.results",
    "Finding": "verbs.verify.findings",
    "IndexOptions": "request.options",
    "IndexResult": "request.results",
    "InspectOptions": "request.options",
    "Observer": "request.results",
    "Report": "verbs.verify.findings",
    "ReshardOptions": "request.options",
    "ShardWriter": "writer.writer",
    "SplitResult": "request.results",
    "Stream": "read.stream",
    "Summary": "verbs.inspect.inspect",
    "VerifyOptions": "request.options",
    "WriterOptions": "writer.output",
    "copy": "verbs.copy",
    "create": "verbs.create.create",
    "dry_run": "verbs.create.create",
    "export": "verbs.index.index",
    "index": "verbs.index.index",
    "inspect": "verbs.inspect.inspect",
    "mix": "read.dataset",
    "open": "read.dataset",
    "merge": "writer.merge",
    "reshard": "verbs.create.create",
    "reshard_dry_run": "verbs.create.create",
    "use_endpoint": "storage.places",
    "verify": "verbs.verify.verify",
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
