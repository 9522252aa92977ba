"""List, write and delete objects with obstore.

Functions raise `AccessRefused` if the store denies access, and `StoreFailed` if it keeps failing. A forked child must
not call these functions (docs/decisions/017-remote-stores.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.address import display_address, is_web, parse_address
from shardtool.storage.remote.failures import obstore_errors
from shardtool.storage.remote.retry import RetryState, TransientError, in_thread, with_retries
from shardtool.storage.remote.store_access import store_for
from shardtool.storage.remote.store_options import put_arguments

_PAGE_KEYS = 1000
_requesting_process: dict[str, int] = {}


class BucketEntry(NamedTuple):
    """An object, or a folder (a common prefix of keys).

    Attributes:
        size: Size in bytes, or -1 for a folder.
    """

    key: str
    size: int
    version: int
    changed_ns: int

    @property
    def name(self) -> str:
        """The part of the key after the last slash."""
        return self.key.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        """Whether the entry is a folder, not an object."""
        return self.size < 0


def list_objects(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield the entries of a folder or, if `below`, all objects below the folder."""
    parts = parse_address(address)
    if is_web(address):
        expected = "files: web servers cannot be listed"
        raise InvalidRequest(display_address(address), "a folder on the web", expected=expected)
    store, prefix = store_for(address)[0], parts.key.rstrip("/")
    if not below:
        listing = _call_obstore(address, lambda: store.list_with_delimiter(prefix or None), is_listing=True)
        for folder in listing["common_prefixes"]:
            yield BucketEntry(folder.rstrip("/"), -1, 0, 0)
        # skip the object whose key equals the prefix, because it represents the folder itself
        yield from (entry for entry in map(_bucket_entry, listing["objects"]) if entry.key != prefix)
        return
    yield from _list_below(address, store, prefix)


def _list_below(address: str, store: Any, prefix: str) -> Iterator[BucketEntry]:
    """Yield all objects below a prefix. After a failure, continue after the last non-empty object.

    An empty object may represent a folder. obstore removes the slash at the end of its key, so a listing cannot
    continue after this key.
    """
    attempts, last_key, yielded = RetryState(address), "", set[str]()
    while True:
        pages = store.list(prefix or None, offset=last_key or None, chunk_size=_PAGE_KEYS)
        try:
            while page := _read_page(address, pages):
                for entry in page:
                    if entry.key not in yielded:
                        yield entry
                    if entry.size:
                        last_key, yielded = entry.key, set()
                    else:
                        yielded.add(entry.key)
                attempts.record_progress()
        # start a new listing, because after an error obstore's iterator ends as if the listing were complete
        except TransientError as error:
            attempts.wait_or_give_up(error)
        else:
            return


def _check_process(address: str) -> None:
    if _requesting_process.setdefault("pid", os.getpid()) != os.getpid():
        raise InvalidRequest(
            display_address(address), "a store cannot be listed or written in a forked process",
            expected="a process started by spawn or forkserver",
            remedy="Open the dataset before the fork, or use its dataset file.",
        )  # fmt: skip


def _read_page(address: str, pages: Any) -> list[BucketEntry]:
    _check_process(address)
    with obstore_errors(address, is_listing=True):
        return [_bucket_entry(meta) for meta in in_thread(lambda: next(pages, ()))]


def put_object(address: str, data: bytes, expected: str | None = None, *, use_storage_class: bool = False) -> str:
    """Write a small object and return its version.

    Args:
        expected: The version to replace. If "", the object must not exist. If None, replace any version.
        use_storage_class: Whether to use the requested storage class. Locks use the default class, because in other
            classes a store may bill a short-lived object for a month.

    Raises:
        FileExistsError: The object exists, and `expected` is "" or another version.
    """
    parts, store = parse_address(address), store_for(address)[0]
    version_kind = "version" if parts.scheme == "gs" else "e_tag"
    mode = "overwrite" if expected is None else {version_kind: expected} if expected else "create"
    options = put_arguments(address, use_storage_class=use_storage_class)
    result = _call_obstore(address, lambda: store.put(parts.key, data, mode=mode, use_multipart=False, **options))
    return result[version_kind] or ""


def object_version(address: str, headers: Mapping[str, str]) -> str:
    """Return the version of an object from response headers, for `put_object`, or "" if there is none.

    For Google, the version is the generation, because Google does not accept an ETag as the condition of a write.
    """
    return headers.get("x-goog-generation" if address.startswith("gs:") else "ETag", "")


def delete_objects(folder: str, keys: Sequence[str]) -> None:
    """Delete objects in the bucket of `folder`. Ignore missing objects."""
    store = store_for(folder)[0]
    for first in range(0, len(keys), _PAGE_KEYS):
        page = list(keys[first : first + _PAGE_KEYS])
        try:
            _call_obstore(folder, partial(store.delete, page))
        except FileNotFoundError:
            for key in page:
                with suppress(FileNotFoundError):
                    _call_obstore(folder, partial(store.delete, key))


def copy_in_bucket(source: str, destination: str) -> None:
    """Ask a store to copy an object within its bucket."""
    store, keys = store_for(destination)[0], [parse_address(address).key for address in (source, destination)]
    _call_obstore(destination, partial(store.copy, *keys))


def _bucket_entry(meta: Any) -> BucketEntry:
    changed_ns = int(meta["last_modified"].timestamp() * 1e9)
    return BucketEntry(meta["path"], meta["size"], version_number(meta["e_tag"] or ""), changed_ns)


def version_number(etag: str) -> int:
    """Convert an ETag from a listing or a response to a 63-bit number. Return 0 for an empty ETag."""
    tag = etag.removeprefix("W/").strip('"')  # in listings, Azure writes ETags without quotes
    return int.from_bytes(blake2b(tag.encode(), digest_size=8).digest(), "little") >> 1 if tag else 0


def _call_obstore(address: str, call: Callable[[], Any], *, is_listing: bool = False) -> Any:
    _check_process(address)

    def attempt() -> Any:
        with obstore_errors(address, is_listing=is_listing):
            return in_thread(call)

    return with_retries(address, attempt)
