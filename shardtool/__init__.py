"""shardtool: pack training samples into shards of limited size, and verify that no sample is lost.

Public names are imported on first use, to keep `import shardtool` fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # isort: off
    from shardtool.errors import (
        AccessRefused as AccessRefused,
        CorruptShard as CorruptShard,
        InvalidRequest as InvalidRequest,
        OutputExists as OutputExists,
        OutputFailed as OutputFailed,
        SampleFailed as SampleFailed,
        ShardError as ShardError,
        StoreFailed as StoreFailed,
        UnknownKey as UnknownKey,
        WorkerDied as WorkerDied,
    )
    from shardtool.read.dataset import Dataset as Dataset, open as open  # noqa: A004 - the name of the public function
    from shardtool.read.mix import mix as mix
    from shardtool.read.stream import Stream as Stream
    from shardtool.request.create_options import CreateOptions as CreateOptions, ReshardOptions as ReshardOptions
    from shardtool.request.dataset_options import (
        CopyOptions as CopyOptions,
        DiffOptions as DiffOptions,
        DoctorOptions as DoctorOptions,
        ExportOptions as ExportOptions,
        ExtractOptions as ExtractOptions,
        IndexOptions as IndexOptions,
        InspectOptions as InspectOptions,
        RemoveOptions as RemoveOptions,
        VerifyOptions as VerifyOptions,
    )
    from shardtool.request.observer import Observer as Observer
    from shardtool.request.results import (
        CopyResult as CopyResult,
        Check as Check,
        CreateResult as CreateResult,
        DiffResult as DiffResult,
        DoctorResult as DoctorResult,
        ExportResult as ExportResult,
        ExtractResult as ExtractResult,
        IndexResult as IndexResult,
        RemoveResult as RemoveResult,
        SplitResult as SplitResult,
    )
    from shardtool.storage.remote.store_access import use_anonymous as use_anonymous
    from shardtool.storage.remote.store_access import use_endpoint as use_endpoint
    from shardtool.storage.remote.store_options import use_store_options as use_store_options
    from shardtool.values import __version__ as __version__
    from shardtool.verbs.cache.cache import Cache as Cache
    from shardtool.verbs.cache.status import (
        CacheChange as CacheChange,
        CacheStatus as CacheStatus,
        cache_clear as cache_clear,
        cache_status as cache_status,
        cache_verify as cache_verify,
    )
    from shardtool.verbs.copy.copy import copy as copy
    from shardtool.verbs.create import create as create, reshard as reshard
    from shardtool.verbs.diff.diff import diff as diff
    from shardtool.verbs.doctor import doctor as doctor
    from shardtool.verbs.extract import extract as extract
    from shardtool.verbs.export import export as export
    from shardtool.verbs.index import index as index
    from shardtool.verbs.inspect.duplicates import (
        DuplicateGroups as DuplicateGroups,
        find_duplicates as find_duplicates,
    )
    from shardtool.verbs.inspect.inspect import inspect as inspect
    from shardtool.verbs.inspect.read_speed import ReadSpeed as ReadSpeed, read_speed as read_speed
    from shardtool.verbs.inspect.reports import (
        inspect_contact_sheet as inspect_contact_sheet,
        inspect_html as inspect_html,
        inspect_table as inspect_table,
    )
    from shardtool.verbs.inspect.summary import Summary as Summary
    from shardtool.verbs.remove import remove as remove
    from shardtool.verbs.verify.findings import Finding as Finding, Report as Report
    from shardtool.verbs.verify.verify import repair as repair, verify as verify
    from shardtool.publish.merge_parts import merge as merge
    from shardtool.writer.options import WriterOptions as WriterOptions
    from shardtool.writer.writer import ShardWriter as ShardWriter


_NAMES = {
    "errors": (
        "AccessRefused", "CorruptShard", "InvalidRequest", "OutputExists", "OutputFailed", "SampleFailed",
        "ShardError", "StoreFailed", "UnknownKey", "WorkerDied",
    ),
    "read.dataset": ("Dataset", "open"),
    "read.mix": ("mix",),
    "read.stream": ("Stream",),
    "request.create_options": ("CreateOptions", "ReshardOptions"),
    "request.dataset_options": (
        "CopyOptions", "DiffOptions", "DoctorOptions", "ExportOptions", "ExtractOptions", "IndexOptions",
        "InspectOptions", "RemoveOptions", "VerifyOptions",
    ),
    "request.observer": ("Observer",),
    "request.results": (
        "Check", "CopyResult", "CreateResult", "DiffResult", "DoctorResult", "ExportResult",
        "ExtractResult", "IndexResult", "RemoveResult", "SplitResult",
    ),
    "storage.remote.store_access": ("use_anonymous", "use_endpoint"),
    "storage.remote.store_options": ("use_store_options",),
    "values": ("__version__",),
    "verbs.cache.cache": ("Cache",),
    "verbs.cache.status": ("CacheChange", "CacheStatus", "cache_clear", "cache_status", "cache_verify"),
    "verbs.copy.copy": ("copy",),
    "verbs.create": ("create", "reshard"),
    "verbs.diff.diff": ("diff",),
    "verbs.doctor": ("doctor",),
    "verbs.extract": ("extract",),
    "verbs.export": ("export",),
    "verbs.index": ("index",),
    "verbs.inspect.duplicates": ("DuplicateGroups", "find_duplicates"),
    "verbs.inspect.inspect": ("inspect",),
    "verbs.inspect.read_speed": ("ReadSpeed", "read_speed"),
    "verbs.inspect.reports": ("inspect_contact_sheet", "inspect_html", "inspect_table"),
    "verbs.inspect.summary": ("Summary",),
    "verbs.remove": ("remove",),
    "verbs.verify.findings": ("Finding", "Report"),
    "verbs.verify.verify": ("repair", "verify"),
    "publish.merge_parts": ("merge",),
    "writer.options": ("WriterOptions",),
    "writer.writer": ("ShardWriter",),
}  # fmt: skip
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        hints = {"load": "open", "load_dataset": "open", "Loader": "torch.loader", "loader": "torch.loader",
                 "concat": "open([a, b])", "concatenate": "open([a, b])", "pack": "create", "write": "ShardWriter",
                 "Writer": "ShardWriter", "Reader": "open", "stats": "inspect", "info": "inspect"}  # fmt: skip
        hint = f". Use {__name__}.{hints[name]}" if name in hints else ""
        msg = f"module {__name__!r} has no attribute {name!r}{hint}"
        raise AttributeError(msg)
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
