"""List, write and delete objects in S3 and compatible stores, Google Cloud Storage and Azure, with obstore.

A forked child process must not call this: obstore's request threads do not survive a fork
(docs/decisions/017-remote-stores.md). Messages of obstore are not shown or chained, because they may contain
secrets.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.address import (
    display_address,
    is_web,
    parse_address,
)
from shardtool.storage.remote.failures import obstore_errors
from shardtool.storage.remote.retry import RetryState, TransientError, in_thread, with_retries
from shardtool.storage.remote.store_access import store_for
from shardtool.storage.remote.store_options import put_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_PAGE_KEYS = 1000


_requesting_process: dict[str, int] = {}  # the process that made the first request


class BucketEntry(NamedTuple):
    """What lies in a bucket.

    Attributes:
        key: The object's key; of a prefix that stands for a folder, without a slash behind.
        size: Bytes; -1 for a folder.
        version: Its ETag as a number, as `read_file` has it; 0 where it has none.
        changed_ns: When it was written, by the store's clock.
    """

    key: str
    size: int
    version: int
    changed_ns: int

    @property
    def name(self) -> str:
        """Its plain name."""
        return self.key.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        """Whether it is a prefix of other keys."""
        return self.size < 0


def list_objects(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield what lies directly in a folder of a store, or with `below` all objects at any depth, in the store's order.

    Raises:
        AccessRefused: We may not list it.
        StoreFailed: It fails time and again.
        InvalidRequest: It is an address of the web, which nobody can list.
    """
    at = parse_address(address)
    if is_web(address):
        raise InvalidRequest(
            display_address(address), "a folder on the web", expected="files: a web server does not list them"
        )
    store, prefix = store_for(address)[0], at.key.rstrip("/")
    if not below:
        found = _call_obstore(address, lambda: store.list_with_delimiter(prefix or None), lists=True)
        for folder in found["common_prefixes"]:
            yield BucketEntry(folder.rstrip("/"), -1, 0, 0)
        yield from (
            one for one in map(_bucket_entry, found["objects"]) if one.key != prefix
        )  # which stands for the folder
        return
    yield from _list_below(address, store, prefix)


def _list_below(address: str, store: Any, prefix: str) -> Iterator[BucketEntry]:
    """Yield all objects below a prefix, page by page; a page that fails is asked for again, from the last key on.

    The key of an empty object may lack a slash, so that the store would go on elsewhere: another one must be the last.
    """
    attempts, last, done = RetryState(display_address(address)), "", set[str]()
    while True:
        pages = store.list(prefix or None, offset=last or None, chunk_size=_PAGE_KEYS)
        try:
            while page := _read_page(address, pages):
                for one in page:
                    if one.key not in done:
                        yield one
                    if one.size:
                        last, done = one.key, set()
                    else:
                        done.add(one.key)
                attempts.progress()
        except TransientError as error:  # such a list is at its end: asked for more it would say that there is none
            attempts.failed(error)
        else:
            return


def _check_process(address: str) -> None:
    """Refuse what would hang: a request of obstore in a process that was forked after its parent had made one.

    Raises:
        InvalidRequest: This is such a process.
    """
    if _requesting_process.setdefault("pid", os.getpid()) != os.getpid():
        raise InvalidRequest(
            display_address(address), "asked for in a forked process, where a store cannot be listed or written",
            expected="a process that was started by spawn or forkserver",
            remedy="Open the dataset before the fork, or name its dataset file.",
        )  # fmt: skip


def _read_page(address: str, pages: Any) -> list[BucketEntry]:
    _check_process(address)
    with obstore_errors(address, lists=True):
        return [_bucket_entry(meta) for meta in in_thread(lambda: next(pages, ()))]


def put_object(address: str, data: bytes, expected: str | None = None, *, lasting: bool = False) -> str:
    """Write a small object, whole, and return its version.

    Args:
        address: Where.
        data: Its bytes.
        expected: The version of what it replaces; "" where nothing may be there; None: whatever is there.
        lasting: Whether it is of a dataset, and no lock.

    Raises:
        FileExistsError: Something else is there.
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    at, store = parse_address(address), store_for(address)[0]
    kind = "version" if at.scheme == "gs" else "e_tag"
    mode = "overwrite" if expected is None else {kind: expected} if expected else "create"
    told = put_arguments(address, lasting=lasting)
    answer = _call_obstore(address, lambda: store.put(at.key, data, mode=mode, use_multipart=False, **told))
    return answer[kind] or ""


def object_version(address: str, headers: Mapping[str, str]) -> str:
    """Return the version of an object, as `put` knows it, from the headers of an answer; empty: there is none.

    Google's store takes no ETag for a condition of a write.
    """
    return headers.get("x-goog-generation" if address.startswith("gs:") else "ETag", "")


def delete_objects(folder: str, keys: Sequence[str]) -> None:
    """Remove objects of the bucket of `folder`; those that are gone already are no error.

    Raises:
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    store = store_for(folder)[0]
    for first in range(0, len(keys), _PAGE_KEYS):
        some = list(keys[first : first + _PAGE_KEYS])
        try:
            _call_obstore(folder, partial(store.delete, some))
        except FileNotFoundError:
            for key in some:
                with suppress(FileNotFoundError):
                    _call_obstore(folder, partial(store.delete, key))


def copy_in_bucket(address: str, where: str) -> None:
    """Have a store copy an object within its bucket.

    Raises:
        FileNotFoundError: It is not there.
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    store, source, key = store_for(where)[0], parse_address(address).key, parse_address(where).key
    _call_obstore(where, lambda: store.copy(source, key))


def _bucket_entry(meta: Any) -> BucketEntry:
    changed_ns = int(meta["last_modified"].timestamp() * 1e9)
    return BucketEntry(meta["path"], meta["size"], version_number(meta["e_tag"] or ""), changed_ns)


def version_number(etag: str) -> int:
    """Return an ETag as a number of 63 bits, the same from a listing and from an answer; 0 where there is none."""
    tag = etag.removeprefix("W/").strip('"')  # Azure's listing has no quotes
    return int.from_bytes(blake2b(tag.encode(), digest_size=8).digest(), "little") >> 1 if tag else 0


def _call_obstore(address: str, ask: Callable[[], Any], *, lists: bool = False) -> Any:
    """Return what a call of obstore returns; it is made again where that may help."""
    _check_process(address)

    def once() -> Any:
        with obstore_errors(address, lists=lists):
            return in_thread(ask)

    return with_retries(display_address(address), once)
