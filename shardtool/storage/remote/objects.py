"""Stores of objects: S3 and what speaks like it, Google Cloud Storage, Azure; by obstore (decision 017).

A forked child may call `signed` and nothing else of this module: what obstore needs for requests, a fork has lost. No
message of obstore is shown or chained: it may hold secrets.
"""

from __future__ import annotations

import base64
import hmac
import os
import threading
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote, urlencode, urlsplit

from shardtool.errors import InvalidRequest
from shardtool.storage.remote.address import WEB, parse_address, shown
from shardtool.storage.remote.failures import store_failures
from shardtool.storage.remote.retry import Attempts, PassingFailure, apart, retried
from shardtool.storage.remote.stores import endpoint_of_all, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


# Addresses in Azure's store, signed with the key of the account for a whole container.
#
# obstore signs a blob by its encoded name, where Azure wants the plain one: any name with a blank, or a letter beyond
# ASCII, would be refused. A signature of the container holds no name. Source: Microsoft, "Create a service SAS",
# version 2020-12-06 of the string to sign.


_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")
_TOKENS = ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY")
_ACCOUNTS = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
_ENDPOINTS = ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
_VERSION = "2022-11-02"
_SLACK = timedelta(minutes=15)  # by which our clock may be ahead
_SIGNED_FOR = timedelta(hours=1)
_PERMISSIONS = {"GET": "r", "HEAD": "r", "PUT": "cw", "DELETE": "d"}


def signed_with_key(endpoint: str, container: str, key: str, method: str) -> str | None:
    """Return the signed address of a blob; None where the environment has neither an account's key nor a token.

    Args:
        endpoint: The server; empty: as the environment has it, or Azure's own.
        container: The container.
        key: The blob's name.
        method: Of HTTP.

    Raises:
        InvalidRequest: The key is none.
    """
    account, token, secret = _first(_ACCOUNTS), _first(_TOKENS), _first(_KEYS)
    if not account or not (token or secret):
        return None
    base = endpoint or _first(_ENDPOINTS) or f"https://{account}.blob.core.windows.net"
    query = token.lstrip("?") if token else _sas(account, secret, container, _PERMISSIONS[method], base)
    return f"{base.rstrip('/')}/{quote(container)}/{quote(key)}?{query}"


def _sas(account: str, secret: str, container: str, permissions: str, base: str) -> str:
    try:
        raw = base64.b64decode(secret, validate=True)
    except ValueError:
        raise InvalidRequest(_KEYS[0], "no key of an account", expected="one in Base64") from None
    now = datetime.now(timezone.utc)
    start, end = (f"{when:%Y-%m-%dT%H:%M:%SZ}" for when in (now - _SLACK, now + _SIGNED_FOR))
    protocols = "https" if urlsplit(base).scheme == "https" else "https,http"
    resource = f"/blob/{account}/{container}"
    text = "\n".join([permissions, start, end, resource, "", "", protocols, _VERSION, "c", *[""] * 7])
    signature = base64.b64encode(hmac.digest(raw, text.encode(), "sha256")).decode()
    return urlencode({
        "sp": permissions, "st": start, "se": end, "spr": protocols, "sv": _VERSION, "sr": "c", "sig": signature,
    })  # fmt: skip


def _first(names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


# No signature is under way in a process that forks: obstore's RSA (Google) ends a child that finds one half done.
_SIGNING = threading.Lock()
os.register_at_fork(before=_SIGNING.acquire, after_in_parent=_SIGNING.release, after_in_child=_SIGNING.release)
_PAGE = 1000
_ASKING: dict[str, int] = {}  # the process that made the first request


class BucketEntry(NamedTuple):
    """What lies in a bucket.

    Attributes:
        key: The object's key; of a prefix that stands for a folder, without a slash behind.
        size: Bytes; -1 for a folder.
        version: Its ETag, as far as it has one.
        changed_ns: When it was written, by the store's clock.
    """

    key: str
    size: int
    version: str
    changed_ns: int

    @property
    def name(self) -> str:
        """Its plain name."""
        return self.key.rpartition("/")[2]

    @property
    def is_folder(self) -> bool:
        """Whether it is a prefix of other keys."""
        return self.size < 0


def signed(address: str, method: str) -> str:
    """Return where a request goes: an address of the web as it is, one of a store signed. It is secret while it lasts.

    Raises:
        AccessRefused: There are no keys.
        InvalidRequest: obstore is not installed, or the key is none that it takes.
    """
    at = parse_address(address)
    if at.scheme in WEB:
        return address
    if at.scheme == "az" and (url := signed_with_key(endpoint_of_all(), at.host, at.key, method)):
        return url
    store, plain = store_of(at.scheme, at.host)
    if plain is not None:
        return f"{plain}/{quote(at.key)}"
    import obstore

    key = quote(at.key) if at.scheme == "gs" else at.key  # else a name ends at its first #, and another is signed
    with _SIGNING, store_failures(address):
        return str(obstore.sign(store, cast("Any", method), key, _SIGNED_FOR))


def listed(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield what lies directly in a folder of a store, or with `below` all objects at any depth, in the store's order.

    Raises:
        AccessRefused: We may not list it.
        StoreFailed: It fails time and again.
        InvalidRequest: It is an address of the web, which nobody can list.
    """
    at = parse_address(address)
    if at.scheme in WEB:
        raise InvalidRequest(shown(address), "a folder on the web", expected="files: a web server does not list them")
    store, _ = store_of(at.scheme, at.host)
    import obstore

    prefix = at.key.rstrip("/")
    if not below:
        found = _asked(address, lambda: obstore.list_with_delimiter(store, prefix or None), lists=True)
        for folder in found["common_prefixes"]:
            yield BucketEntry(folder.rstrip("/"), -1, "", 0)
        yield from (one for one in map(_one, found["objects"]) if one.key != prefix)  # which stands for the folder
        return
    yield from _below(address, store, prefix)


def _below(address: str, store: Any, prefix: str) -> Iterator[BucketEntry]:
    """Yield all objects below a prefix, page by page; a page that fails is asked for again, from the last key on.

    The key of an empty object may lack a slash, so that the store would go on elsewhere: another one must be the last.
    """
    import obstore

    attempts, last, done = Attempts(shown(address)), "", set[str]()
    while True:
        pages: Any = obstore.list(store, prefix or None, offset=last or None, chunk_size=_PAGE)
        try:
            while page := _page(address, pages):
                for one in page:
                    if one.key not in done:
                        yield one
                    if one.size:
                        last, done = one.key, set()
                    else:
                        done.add(one.key)
                attempts.progress()
        except PassingFailure as error:  # such a list is at its end: asked for more it would say that there is none
            attempts.failed(error)
        else:
            return


def _check_process(address: str) -> None:
    """Refuse what would hang: a request of obstore in a process that was forked after its parent had made one.

    Raises:
        InvalidRequest: This is such a process.
    """
    if _ASKING.setdefault("pid", os.getpid()) != os.getpid():
        raise InvalidRequest(
            shown(address), "asked for in a forked process, where a store cannot be listed or written",
            expected="a process that was started by spawn or forkserver",
            remedy="Open the dataset before the fork, or name its dataset file.",
        )  # fmt: skip


def _page(address: str, pages: Any) -> list[BucketEntry]:
    _check_process(address)
    with store_failures(address, lists=True):
        return [_one(meta) for meta in apart(lambda: next(pages, ()))]


def put(address: str, data: bytes, expected: str | None = None) -> str:
    """Write a small object, whole, and return its version.

    Args:
        address: Where.
        data: Its bytes.
        expected: The version of what it replaces; "" where nothing may be there; None: whatever is there.

    Raises:
        FileExistsError: Something else is there.
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    at = parse_address(address)
    store, _ = store_of(at.scheme, at.host)
    import obstore

    kind = "version" if at.scheme == "gs" else "e_tag"
    mode: Any = "overwrite" if expected is None else {kind: expected} if expected else "create"
    answer = _asked(address, lambda: obstore.put(store, at.key, data, mode=mode, use_multipart=False))
    return answer[kind] or ""


def version_in(address: str, headers: Mapping[str, str]) -> str:
    """Return the version of an object, as `put` knows it, from the headers of an answer; empty: there is none.

    Google's store takes no ETag for a condition of a write.
    """
    return headers.get("x-goog-generation" if address.startswith("gs:") else "ETag", "")


def delete(folder: str, keys: Sequence[str]) -> None:
    """Remove objects of the bucket of `folder`; those that are gone already are no error.

    Raises:
        AccessRefused: We may not.
        StoreFailed: It fails time and again.
    """
    if not keys:
        return
    at = parse_address(folder)
    store, _ = store_of(at.scheme, at.host)
    import obstore

    for first in range(0, len(keys), _PAGE):
        some = list(keys[first : first + _PAGE])
        try:
            _asked(folder, partial(obstore.delete, store, some))
        except FileNotFoundError:
            for key in some:
                with suppress(FileNotFoundError):
                    _asked(folder, partial(obstore.delete, store, key))


def _one(meta: Any) -> BucketEntry:
    return BucketEntry(meta["path"], meta["size"], meta["e_tag"] or "", int(meta["last_modified"].timestamp() * 1e9))


def _asked(address: str, ask: Callable[[], Any], *, lists: bool = False) -> Any:
    """Return what a call of obstore returns; it is made again where that may help."""
    _check_process(address)

    def once() -> Any:
        with store_failures(address, lists=lists):
            return apart(ask)

    return retried(shown(address), once)
