"""Addresses of other schemes, such as `hf://` and `sftp://`: listed and read through fsspec, if it is installed.

These locations are read-only. fsspec file systems disagree about versions, so changes are detected by size and
checksum only.

Datasets of Hugging Face are listed through fsspec, but their files are read over HTTP: fsspec's own file system
reads
5 MB ahead of each range, lists folders to get sizes, and does not notice that a file was replaced.
"""

from __future__ import annotations

import functools
import os
import re
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from shardtool.errors import InvalidRequest, StoreFailed
from shardtool.storage.remote import failures, retry
from shardtool.storage.remote.address import (
    INSTALL_COMMANDS,
    SCHEME_ALIASES,
    display_address,
    is_huggingface,
    parse_address,
)
from shardtool.storage.remote.buckets import BucketEntry, version_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardtool.storage.remote.requests import Result


_DENIED_STATUSES = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


# What clients of HTTP, and Python, call it where no answer came: httpx, requests, aiohttp.
_CONNECTION_ERRORS = {"ConnectionError", "TimeoutError", "TransportError", "Timeout", "ClientConnectionError"}


def list_fsspec(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield what lies directly in a folder, or with `below` all at any depth; as `stores.listed` does.

    Raises:
        AccessRefused: We may not list it.
        InvalidRequest: It names no repository.
        StoreFailed: It fails, or there is no such repository, or revision of it.
    """
    address = parse_address(address).text()
    if is_huggingface(address):
        _split_huggingface(address)

    def ask(files: Any) -> tuple[str, Any]:
        root = str(files._strip_protocol(address)).strip("/")  # noqa: SLF001 - fsspec's own way to say what it lists
        detail = {"detail": True, **({"refresh": True} if is_huggingface(address) else {})}
        return root, files.find(address, **detail).values() if below else files.ls(address, **detail)

    try:
        root, found = call_fsspec(address, ask)
    except FileNotFoundError:
        return
    key = parse_address(address).key.rstrip("/")
    for one in sorted(found, key=lambda one: str(one["name"])):
        name = str(one["name"]).strip("/")[len(root) :].strip("/")
        size = -1 if one["type"] == "directory" else int(one["size"] or 0)
        if name:
            yield BucketEntry(f"{key}/{name}" if key else name, size, _listed_version(address, one), 0)


def _listed_version(address: str, listed: Mapping[str, Any]) -> int:
    """Return the version of a file in a listing: of a repository, the ETag of its answers; else 0."""
    if not is_huggingface(address) or listed["type"] != "file":
        return 0
    return version_number(str(listed["lfs"].sha256 if listed.get("lfs") else listed.get("blob_id", "")))


_HUGGINGFACE_PATH = re.compile(r"([^/@]+/[^/@]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)


def _split_huggingface(address: str) -> re.Match[str]:
    if not (found := _HUGGINGFACE_PATH.fullmatch(parse_address(address).key)):
        raise InvalidRequest(
            display_address(address), "no repository", expected="hf://datasets/ORG/NAME, and what is in it"
        )
    return found


def huggingface_request(address: str) -> tuple[str, dict[str, str]]:
    """Return the address of the web of a file in a dataset's repository, and the headers that say who we are.

    Source: the grammar of `hf://` in huggingface_hub's `HfFileSystem`.

    Raises:
        InvalidRequest: It names no repository.
        StoreFailed: huggingface_hub is not installed, or told to stay offline.
    """
    found = _split_huggingface(address)
    with _fsspec_errors(address):
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.errors import OfflineModeIsEnabled
        from huggingface_hub.utils import get_token_to_send

        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled
        files, revision = _cached_file_system(address), unquote(found[2] or "main")
        url = hf_hub_url(found[1], found[3] or "", repo_type="dataset", revision=revision, endpoint=files.endpoint)
        token = get_token_to_send(files.token)
    return url, {"Authorization": f"Bearer {token}"} if token else {}


def call_fsspec(address: str, ask: Callable[[Any], Result]) -> Result:
    """Return what a call of fsspec's object returns; it is made again where that may help."""

    def once() -> Result:
        with _fsspec_errors(address):
            return ask(_cached_file_system(address))

    return retry.with_retries(display_address(address), once)


def cat_file(address: str, span: Mapping[str, int], files: Any) -> Any:
    return files.cat_file(address, **span)


def _cached_file_system(address: str) -> Any:
    at = parse_address(address)
    return _file_system(at.scheme, at.host, os.getpid())


@functools.lru_cache(maxsize=16)
def _file_system(scheme: str, host: str, _pid: int) -> Any:
    """Return fsspec's object, made anew in each process: those that ask asynchronously do not survive a fork."""
    from fsspec.core import url_to_fs

    return url_to_fs(f"{scheme}://{host}/", skip_instance_cache=True)[0]


@contextmanager
def _fsspec_errors(address: str) -> Iterator[None]:
    """Turn what fsspec and its many file systems say, which may hold secrets, into our errors."""
    where = display_address(address)
    try:
        yield
    except MemoryError:
        raise
    except FileNotFoundError as error:
        raise _missing_error(address, error) from None
    except PermissionError:
        raise failures.private_error(address) from None
    except ImportError:
        from fsspec.registry import known_implementations

        scheme = parse_address(address).scheme
        wanted = f"{known_implementations.get(scheme, {}).get('err', 'See what fsspec wants for it')}."
        remedy = INSTALL_COMMANDS.get(scheme, wanted)
        if scheme in SCHEME_ALIASES:
            remedy = f"Write {SCHEME_ALIASES[scheme]}:// instead, which needs no other library."
        raise StoreFailed(where, f"what reads {scheme}:// is not installed", remedy=remedy) from None
    except Exception as error:  # noqa: BLE001 - each of fsspec's file systems has errors of its own
        status = _error_status(error)
        if status in _DENIED_STATUSES:
            raise failures.private_error(address) from None
        if status in failures.BUSY_STATUSES:
            raise failures.busy_error(status, _error_response(error).headers) from None
        kinds = [kind.__name__ for kind in type(error).__mro__]
        is_offline = "OfflineModeIsEnabled" in kinds
        if _CONNECTION_ERRORS.intersection(kinds) and not is_offline:
            raise retry.TransientError("the server cannot be reached") from None
        remedy = "Unset HF_HUB_OFFLINE." if is_offline else ""
        raise StoreFailed(where, f"fsspec fails ({kinds[0]})", remedy=remedy) from None


def _missing_error(address: str, error: FileNotFoundError) -> Exception:
    """Return what is meant by what is not there: Hugging Face says that of what is private, too."""
    _file_system.cache_clear()  # it remembers that, and a token may be given, or the repository made, meanwhile
    if _error_status(error) in _DENIED_STATUSES:
        return failures.private_error(address)
    if found := failures.HUGGINGFACE_MISSING.get(
        getattr(_error_response(error), "headers", {}).get("X-Error-Code", "")
    ):
        return StoreFailed(display_address(address), found, remedy="Check its name.")
    return FileNotFoundError(2, "no such file", display_address(address))


def _error_response(error: BaseException) -> Any:
    """Return the answer of a server that an error, or what caused it, is about; None: it is about none."""
    answers = (getattr(one, "response", None) for one in (error, error.__cause__))
    return next((one for one in answers if one is not None), None)


def _error_status(error: BaseException) -> int | None:
    return getattr(_error_response(error), "status_code", None)
