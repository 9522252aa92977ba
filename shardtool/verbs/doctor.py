"""`doctor`: check, step by step, which operations a folder, store or server allows, and suggest fixes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice, takewhile
from logging import getLogger
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, ShardError, StoreFailed, os_error_text
from shardtool.names import list_names
from shardtool.pattern import is_shard_name
from shardtool.request.dataset_options import DoctorOptions
from shardtool.request.results import Check, DoctorResult
from shardtool.request.verb_call import accepts_options
from shardtool.storage import files, paths, remote
from shardtool.storage.folders import open_folder
from shardtool.storage.locks import take_lock
from shardtool.storage.remote import address, retry
from shardtool.storage.remote.address import STORES, display_address, parse_address
from shardtool.storage.remote.buckets import BucketEntry, delete_objects, put_object
from shardtool.storage.remote.failures import ADVICE_BY_CODE, CLOCK_ADVICE, write_errors
from shardtool.storage.remote.http import FirstResponse, discard_response, first_response, request_object, sign_url
from shardtool.storage.remote.lock import check_conditional_writes
from shardtool.storage.remote.network import web_headers
from shardtool.storage.remote.objects import open_remote
from shardtool.storage.remote.retry import RequestCancelled, TransientError, with_retries
from shardtool.storage.remote.store_access import credentials_kind
from shardtool.storage.staging import Folder
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.request.observer import Observer
    from shardtool.values import DatasetLike


ResultT = TypeVar("ResultT")
_RETRY_POLICY = retry.DEFAULT_POLICY._replace(tries=2, max_total_s=5.0, first_response_s=5.0, speed_window_s=10.0)
_MAX_LISTED_OBJECTS = 100  # search this many objects for one that is not empty
_NOT_CHECKED = Check("", "unknown", "")
_EXACT_S = 2  # ignore smaller clock differences, because the header `Date` contains whole seconds
_SKEW_S = 300  # some stores reject requests if the clocks differ by more than 5 minutes
# A store may complete an interrupted write after the probe was deleted, so wait and delete the probe again.
_SECOND_REMOVAL_S = 0.3
_READER, _WRITER = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"

_PERMISSIONS = {
    "s3": {"list": "s3:ListBucket", "read": "s3:GetObject", "write": "s3:PutObject", "delete": "s3:DeleteObject"},
    "gs": {"list": "storage.objects.list", "read": "storage.objects.get", "write": "storage.objects.create",
           "delete": "storage.objects.delete"},
    "az": {"list": _READER, "read": _READER, "write": _WRITER, "delete": _WRITER},
}  # fmt: skip


@accepts_options(DoctorOptions)
def doctor(place: DatasetLike, options: DoctorOptions, observer: Observer) -> DoctorResult:  # noqa: ARG001
    """Check which operations a location allows.

    Args:
        place: A folder, a prefix in a store, or a file on the web. For a dataset file or shard in a folder or store,
            its folder is checked.

    Raises:
        InvalidRequest: `place` is not a location, or a required library is not installed.
    """
    started = time.monotonic()
    [path, *others] = list_names("the location", place, "a folder or an address") or [""]
    if others or not path:
        raise InvalidRequest("the location", pluralize(len(others) + 1, "name") if others else "none", expected="one")
    if path == "-" or path.startswith("pipe:"):
        raise InvalidRequest(path, "standard input" if path == "-" else "a command", expected="a folder or an address")
    kind = "folder" if not address.is_url(path) else "web" if address.is_web(path) else parse_address(path).scheme
    if kind != "web" and (path.endswith(".json") or is_shard_name(paths.base_name(path))):
        path = paths.folder_of(path)
    check, names = _LOCATION_CHECKS.get(kind, (_list_and_read, ("list", "read")))
    steps = _Steps(path or ".", names, options)
    with retry.with_policy(_RETRY_POLICY), suppress(_StepFailed):
        check(path or ".", steps)
    return DoctorResult(steps.place, steps.checks(), time.monotonic() - started)


class _StepFailed(Exception):
    """A failed step that later steps depend on."""


class _Steps:
    def __init__(self, place: str, names: tuple[str, ...], options: DoctorOptions) -> None:
        self.place, self.writes = display_address(place), not options.read_only
        selected = names if self.writes else takewhile(lambda name: name != "write", names)
        self._checks, self._failed_step = dict.fromkeys(selected, _NOT_CHECKED), ""
        self._permissions = _PERMISSIONS.get(parse_address(place).scheme, {}) if address.is_url(place) else {}

    def require(self, name: str, step: Callable[[], ResultT], describe: Callable[[ResultT], str] = str) -> ResultT:
        """Run a step, record the outcome, and return the result. If the step fails, raise `_StepFailed`."""
        try:
            result = step()
        except (ShardError, OSError, TransientError) as error:
            self._checks[name], self._failed_step = self._failed_check(name, error), name
            raise _StepFailed from None
        self._checks[name] = Check(name, "ok", describe(result))
        return result

    def check(self, name: str, step: Callable[[], object], describe: Callable[[Any], str] = str) -> None:
        with suppress(_StepFailed):
            self.require(name, step, describe)

    def skip(self, name: str, why: str) -> None:
        self._checks[name] = Check(name, "unknown", why)

    def is_open(self, name: str) -> bool:
        return self._checks[name].state == "unknown"

    def has_failed(self, name: str) -> bool:
        return self._checks[name].state == "wrong"

    def checks(self) -> tuple[Check, ...]:
        why = f"not checked: {self._failed_step} failed"
        skipped = {name: Check(name, "unknown", why) for name, check in self._checks.items() if check is _NOT_CHECKED}
        return tuple((self._checks | skipped).values())

    def _failed_check(self, name: str, error: ShardError | OSError | TransientError) -> Check:
        if not isinstance(error, ShardError):
            return Check(name, "wrong", os_error_text(error) if isinstance(error, OSError) else error.found)
        where = "" if error.where.startswith(self.place) or self.place.startswith(error.where) else f"{error.where}: "
        expected = f"; expected {error.expected}" if error.expected else ""
        fix = error.remedy
        if name in self._permissions and isinstance(error, AccessRefused) and fix not in ADVICE_BY_CODE.values():
            fix = f"Allow {self._permissions[name]} there."
        return Check(name, "wrong", f"{where}{error.found}{expected}", fix)


def _check_connection(address: str, steps: _Steps) -> FirstResponse:
    request = partial(with_retries, display_address(address), partial(first_response, address))
    response = steps.require("server", request, lambda first: first.server)
    expiry = response.certificate_expiry
    steps.check("proxy", lambda: response.proxy or "none")
    steps.check("certificate", lambda: f"trusted; expires {expiry}" if expiry else "none: http:// is not encrypted")
    steps.check("clock", partial(_check_clock, address, response.headers))
    return response


def _check_clock(address: str, headers: Mapping[str, str]) -> str:
    try:
        date = parsedate_to_datetime(headers["Date"]).timestamp()
        off_s = time.time() - date - float(headers.get("Age", 0))  # a proxy cached the response `Age` seconds ago
    except (KeyError, TypeError, ValueError, OverflowError):
        return "the server sends no time"
    difference = f"this machine's clock is {abs(off_s):,.0f} s {'ahead of' if off_s > 0 else 'behind'} the server's"
    if abs(off_s) > _SKEW_S:
        raise StoreFailed(display_address(address), difference, remedy=CLOCK_ADVICE)
    return difference if abs(off_s) > _EXACT_S else "matches the server's clock"


def _check_store(place: str, steps: _Steps) -> None:
    open_folder(place)  # check that `place` is a valid prefix
    probe = paths.join(place, _probe_name())
    steps.require("credentials", lambda: sign_url(probe, "GET") and credentials_kind(place))
    response = _check_connection(probe, steps)
    if response.code in ADVICE_BY_CODE:
        steps.require("credentials", partial(_raise_if, response.error))
    steps.require("bucket", partial(_check_bucket, place, response))
    _list_and_read(place, steps)
    if steps.writes:
        remove = partial(delete_objects, place, [parse_address(probe).key])
        # Test deletion before writing the probe, because without permission to delete, the probe would remain.
        steps.require("delete", partial(_run_step, remove))
        _write_then_remove(probe, partial(_check_write, probe, steps), remove, steps)


def _raise_if(error: Exception | None) -> None:
    if error is not None:
        raise error


def _check_bucket(place: str, response: FirstResponse) -> str:
    if not isinstance(response.error, AccessRefused | FileNotFoundError):
        _raise_if(response.error)
    with write_errors(place):
        if response.code in ("NoSuchBucket", "ContainerNotFound"):
            raise FileNotFoundError
    return parse_address(place).host


def _list_and_read(place: str, steps: _Steps) -> None:
    try:
        objects = steps.require("list", partial(_first_objects, place), _describe_objects)
    except _StepFailed:
        steps.skip("read", "not checked: list failed")
        return
    if first := next((entry.key for entry in objects if entry.size > 0), ""):
        steps.check("read", partial(_run_step, lambda: open_remote(paths.join(place, first)).read(0, 1)))
    else:
        steps.skip("read", f"no non-empty object among the first {_MAX_LISTED_OBJECTS}")


def _first_objects(place: str) -> list[BucketEntry]:
    return [*islice(remote.objects.iter_objects(place), _MAX_LISTED_OBJECTS)]


def _describe_objects(objects: list[BucketEntry]) -> str:
    return f"allowed; the first is {objects[0].key}" if objects else "allowed; empty"


def _probe_name() -> str:
    return f".shardtool-doctor.{token_hex(8)}"


def _run_step(action: Callable[[], object]) -> str:
    action()
    return "allowed"


def _check_write(probe: str, steps: _Steps) -> None:
    version = steps.require("write", partial(put_object, probe, b"1", ""), lambda _: "allowed")
    if steps.is_open("read"):
        steps.check("read", partial(_run_step, partial(files.read_small, probe)))
    steps.check("conditions", partial(_check_conditions, probe, version))


def _check_conditions(probe: str, version: str) -> str:
    check_conditional_writes(probe, b"2")
    put_object(probe, b"3", version)  # `create` uses such conditional writes to replace locks and dataset files
    check_conditional_writes(probe, b"4", version)
    return "supported (If-None-Match, If-Match)"


def _write_then_remove(probe: str, write: Callable[[], None], remove: Callable[[], None], steps: _Steps) -> None:
    try:
        with suppress(_StepFailed):
            write()
    except BaseException:
        try:
            remove()
            retry.pause(_SECOND_REMOVAL_S)
            remove()
        except (ShardError, OSError, RequestCancelled):
            getLogger("shardtool").warning("%s may still exist: delete it.", display_address(probe))
        raise
    steps.check("delete", partial(_remove_probe, probe, remove))


def _remove_probe(probe: str, remove: Callable[[], None]) -> str:
    try:
        remove()
    except ShardError as error:
        remedy = f"Delete {display_address(probe)}, which still exists."
        raise OutputFailed(display_address(probe), error.found, remedy=remedy) from None
    return "allowed"


def _check_web(place: str, steps: _Steps) -> None:
    response = _check_connection(place, steps)
    steps.check("credentials", lambda: ", ".join(web_headers(place)) or "none")
    steps.require("read", partial(_raise_if, response.error))
    blob = steps.require("read", partial(open_remote, place), lambda opened: f"{opened.size:,} bytes")
    steps.check("ranges", partial(blob.read, max(0, blob.size - 1), 1), lambda _: "supported")
    steps.check("conditions", partial(_has_conditional_get, place, blob.version))


def _has_conditional_get(place: str, version: str) -> str:
    if not version:
        return "no ETag: changes during a read are detected only by sizes and checksums"
    try:
        discard_response(request_object(place, {"Range": "bytes=0-0", "If-Match": '"shardtool-doctor"'}))
    except FileExistsError:
        return "supported (If-Match)"
    return "If-Match is ignored: the ETag of each response is compared"


def _check_folder(path: str, steps: _Steps) -> None:
    open_folder(path)  # check that `path` is not a mistyped address
    existing, parent = path, paths.folder_of(path.rstrip("/"))
    while existing and not os.path.lexists(existing):
        existing = paths.folder_of(existing.rstrip("/"))
    folder, name = Folder(existing or "."), _probe_name()
    description = "exists" if existing == path else f"does not exist yet, but {folder.path} exists"
    if existing not in (path, parent):  # show the parent because the path may be misspelled
        description = f"does not exist yet, nor does {parent}; both would be created in {folder.path}"
    steps.require("folder", partial(files.list_folder, folder.path), lambda _: description)
    steps.check("space", folder.free_bytes, lambda free_bytes: f"{format_size(free_bytes)} free")
    if not steps.writes:
        return

    def write() -> None:
        staged = steps.require("write", partial(folder.stage_bytes, name, b"1"), lambda _: "allowed")
        steps.require("rename", partial(_run_step, partial(folder.publish, staged)))
        steps.check("locks", partial(_check_locks, folder.full_path(name)))

    def remove() -> None:
        folder.discard_staged([name])
        folder.remove([file_name for file_name in folder.names() if file_name == name])

    _write_then_remove(folder.full_path(name), write, remove, steps)
    if steps.has_failed("write") and not steps.has_failed("delete"):
        steps.skip("delete", "not checked: write failed")


def _check_locks(path: str) -> str:
    held = [lock for lock in (take_lock(path), take_lock(path)) if lock is not None]
    for lock in held:
        lock.close()
    if len(held) > 1:
        remedy = "Make sure that only one run writes here at a time."
        raise OutputFailed(path, "two processes can hold the same lock", remedy=remedy)
    return "supported (flock)"


_CONNECTION_STEPS = ("server", "proxy", "certificate", "clock", "credentials")
_STORE_STEPS = _check_store, (*_CONNECTION_STEPS, "bucket", "list", "read", "write", "conditions", "delete")

_LOCATION_CHECKS = {
    **dict.fromkeys(STORES, _STORE_STEPS),
    "web": (_check_web, (*_CONNECTION_STEPS, "read", "ranges", "conditions")),
    "folder": (_check_folder, ("folder", "space", "write", "rename", "locks", "delete")),
}
