"""Read addresses such as `sftp://HOST/PATH` through fsspec.

The file systems of fsspec report file versions in different ways, so changes are detected only by size and checksum.
Hugging Face datasets (`hf://`) are listed through fsspec but read over HTTP, because fsspec would read 5 MB more than
requested and would not detect replaced files.
"""

from __future__ import annotations

import functools
import os
import re
from contextlib import contextmanager
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
from shardtool.storage.remote.store_options import options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardtool.storage.remote.requests import Result


_CONNECTION_ERRORS = {"ConnectionError", "TimeoutError", "TransportError", "Timeout", "ClientConnectionError"}


def list_fsspec(address: str, *, below: bool = False) -> Iterator[BucketEntry]:
    """Yield the entries of a folder or, if `below`, all files below the folder."""
    address = parse_address(address).text()
    path = parse_address(address).plain_text()
    if is_huggingface(address):
        _split_huggingface(address)

    def list_files(file_system: Any) -> tuple[str, Any]:
        root = str(file_system._strip_protocol(path)).strip("/")  # noqa: SLF001 - listed names start with `root`
        options = {"detail": True, **({"refresh": True} if is_huggingface(path) else {})}
        return root, file_system.find(path, **options).values() if below else file_system.ls(path, **options)

    try:
        root, entries = call_fsspec(address, list_files)
    except FileNotFoundError:
        return
    key = parse_address(address).key.rstrip("/")
    for entry in sorted(entries, key=lambda entry: str(entry["name"])):
        name = str(entry["name"]).strip("/")[len(root) :].strip("/")
        size = -1 if entry["type"] == "directory" else int(entry["size"] or 0)
        if name:
            yield BucketEntry(f"{key}/{name}" if key else name, size, _listed_version(address, entry), 0)


def _listed_version(address: str, listed: Mapping[str, Any]) -> int:
    if not is_huggingface(address) or listed["type"] != "file":
        return 0
    return version_number(str(listed["lfs"].sha256 if listed.get("lfs") else listed.get("blob_id", "")))


_HUGGINGFACE_PATH = re.compile(r"([^/@]+/[^/@]+)(?:@(refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)


def _split_huggingface(address: str) -> re.Match[str]:
    if not (match := _HUGGINGFACE_PATH.fullmatch(parse_address(address).key)):
        expected = "hf://datasets/ORG/NAME/PATH"
        raise InvalidRequest(display_address(address), "not a dataset repository", expected=expected)
    return match


def huggingface_request(address: str) -> tuple[str, dict[str, str]]:
    """Return the HTTP URL of a file in a dataset repository, and headers with the user's token.

    `HfFileSystem` of huggingface_hub defines the syntax of `hf://` addresses.
    """
    match = _split_huggingface(address)
    with _fsspec_errors(address):
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.errors import OfflineModeIsEnabled
        from huggingface_hub.utils import get_token_to_send

        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled
        file_system = _cached_file_system(address)
        options = {"revision": unquote(match[2] or "main"), "endpoint": file_system.endpoint}
        url = hf_hub_url(match[1], match[3] or "", repo_type="dataset", **options)
        token = get_token_to_send(file_system.token)
    return url, {"Authorization": f"Bearer {token}"} if token else {}


def call_fsspec(address: str, call: Callable[[Any], Result]) -> Result:
    """Call a function with fsspec's file system for an address, and retry temporary failures."""

    def attempt() -> Result:
        with _fsspec_errors(address):
            return call(_cached_file_system(address))

    return retry.with_retries(address, attempt)


def _cached_file_system(address: str) -> Any:
    parts = parse_address(address)
    return _file_system(parts.scheme, parts.host, parts.marker, os.getpid())


@functools.lru_cache(maxsize=16)
def _file_system(scheme: str, host: str, marker: str, _pid: int) -> Any:
    """Return fsspec's file system for a server.

    Each process has its own file systems, because some do not work after a fork.
    """
    from fsspec.core import url_to_fs

    options = options_of(marker, f"{scheme}://{host}") or {}
    return url_to_fs(f"{scheme}://{host}/", skip_instance_cache=True, **options)[0]


@contextmanager
def _fsspec_errors(address: str) -> Iterator[None]:
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
        hint = f"{known_implementations.get(scheme, {}).get('err', 'See the documentation of fsspec')}."
        remedy = INSTALL_COMMANDS.get(scheme, hint)
        if scheme in SCHEME_ALIASES:
            remedy = f"Use {SCHEME_ALIASES[scheme]}://, which needs no other library."
        raise StoreFailed(where, f"the library for {scheme}:// is not installed", remedy=remedy) from None
    except Exception as error:  # noqa: BLE001 - each file system raises its own exceptions
        status = _error_status(error)
        if status in failures.DENIED_STATUSES:
            raise failures.private_error(address) from None
        if status in failures.BUSY_STATUSES:
            raise failures.busy_error(status, _error_response(error).headers) from None
        kinds = [kind.__name__ for kind in type(error).__mro__]
        is_offline = "OfflineModeIsEnabled" in kinds
        if _CONNECTION_ERRORS.intersection(kinds) and not is_offline:
            raise retry.TransientError("the server cannot be reached") from None
        remedy = "Unset HF_HUB_OFFLINE." if is_offline else ""
        raise StoreFailed(where, f"fsspec failed ({kinds[0]})", remedy=remedy) from None


def _missing_error(address: str, error: FileNotFoundError) -> Exception:
    _file_system.cache_clear()  # connect again next time, because the user may add a token or create the repository
    if _error_status(error) in failures.DENIED_STATUSES:
        return failures.private_error(address)
    headers = getattr(_error_response(error), "headers", {})
    if problem := failures.HUGGINGFACE_MISSING.get(headers.get("X-Error-Code", "")):
        return StoreFailed(display_address(address), problem, remedy="Check its name.")
    return FileNotFoundError(2, "no such file", display_address(address))


def _error_response(error: BaseException) -> Any:
    responses = (getattr(response, "response", None) for response in (error, error.__cause__))
    return next((response for response in responses if response is not None), None)


def _error_status(error: BaseException) -> int | None:
    return getattr(_error_response(error), "status_code", None)
