"""`doctor`: check, step by step, what a folder, store or server allows, and how to fix what fails.

Each step uses the functions of the other verbs, so that the result holds for them. If it may write, it writes one
small file
or object under an unused name, and removes it whatever happens, or names it if it cannot be removed. Temporary
failures
are retried for less time than in other verbs.
"""

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
from shardtool.request.dataset_options import DoctorOptions
from shardtool.request.results import Check, DoctorResult
from shardtool.request.verb_call import accepts_options
from shardtool.shard_names import is_shard_name
from shardtool.storage import files, lookup, paths
from shardtool.storage.backup import BackupLinks
from shardtool.storage.folders import open_folder
from shardtool.storage.locks import take_lock
from shardtool.storage.remote import address, retry
from shardtool.storage.remote.address import STORES, display_address, parse_address
from shardtool.storage.remote.buckets import BucketEntry, delete_objects, put_object
from shardtool.storage.remote.failures import CLOCK_ADVICE, CREDENTIAL_ERRORS, write_conflicts
from shardtool.storage.remote.http import FirstResponse, discard_response, first_response, request_object
from shardtool.storage.remote.lock import check_conditional_writes
from shardtool.storage.remote.network import web_headers
from shardtool.storage.remote.objects import open_remote
from shardtool.storage.remote.retry import RequestCancelled, TransientError, with_retries
from shardtool.storage.remote.signing import sign_url
from shardtool.storage.remote.store_access import credentials_kind
from shardtool.storage.staging import Folder
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.request.observer import Observer
    from shardtool.values import DatasetLike


ResultT = TypeVar("ResultT")


_RETRY_POLICY = retry.DEFAULT_POLICY._replace(tries=2, max_total_s=5.0, first_answer_s=5.0, speed_window_s=10.0)


_MAX_LISTED_OBJECTS = 100  # objects among which one to be read is looked for


_NOT_CHECKED = Check("", "unknown", "")


_EXACT_S, _SKEW_S = 2, 300  # `Date` has whole seconds; stores refuse clocks that are 15 minutes off, some 5


_SECOND_REMOVAL_S = 0.3  # after a signal: what was being written then may appear only now


_READER, _WRITER = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"


_PERMISSIONS = {
    "s3": {"list": "s3:ListBucket", "read": "s3:GetObject", "write": "s3:PutObject", "delete": "s3:DeleteObject"},
    "gs": {"list": "storage.objects.list", "read": "storage.objects.get", "write": "storage.objects.create",
           "delete": "storage.objects.delete"},
    "az": {"list": _READER, "read": _READER, "write": _WRITER, "delete": _WRITER},
}  # fmt: skip


@accepts_options(DoctorOptions)
def doctor(place: DatasetLike, options: DoctorOptions, observer: Observer) -> DoctorResult:  # noqa: ARG001
    """Return what a place allows, and what is in the way there.

    Args:
        place: A folder, or an address: a prefix of a store, a file of the web. Of a dataset file, or of shards, that
            are not on the web, their folder is meant.
        options: See `DoctorOptions`.
        observer: Is told nothing: what was found is returned.

    Raises:
        InvalidRequest: It is no place, or a library that reads it is not installed.
    """
    begun = time.monotonic()
    [path, *more] = list_names("the place", place, "a folder or an address") or [""]
    if more or not path:
        raise InvalidRequest("the place", pluralize(len(more) + 1, "name") if more else "none", expected="one")
    if path == "-" or path.startswith("pipe:"):
        found = "standard input" if path == "-" else "a command"
        raise InvalidRequest(path, found, expected="a folder or an address")
    kind = "folder" if not address.is_url(path) else "web" if address.is_web(path) else parse_address(path).scheme
    if kind != "web" and (path.endswith(".json") or is_shard_name(paths.base_name(path))):
        path = paths.folder_of(path)
    look, names = _LOCATION_CHECKS.get(kind, (_list_and_read, ("list", "read")))
    seen = _Steps(path or ".", names, options)
    with retry.with_policy(_RETRY_POLICY), suppress(_StepFailed):
        look(path or ".", seen)
    return DoctorResult(seen.place, seen.checks(), time.monotonic() - begun)


class _StepFailed(Exception):
    """Something is wrong without which nothing else can be seen."""


class _Steps:
    """What was looked at so far.

    Args:
        place: The path or address.
        names: Of all that is to be looked at, in order: what needs writing begins with `write`.
        options: See `DoctorOptions`.

    Attributes:
        place: What is shown of it.
        writes: Whether it may be written to.
    """

    def __init__(self, place: str, names: tuple[str, ...], options: DoctorOptions) -> None:
        self.place, self.writes = display_address(place), not options.read_only
        some = names if self.writes else takewhile(lambda name: name != "write", names)
        self._found, self._stop = dict.fromkeys(some, _NOT_CHECKED), ""
        self._allow = _PERMISSIONS.get(parse_address(place).scheme, {}) if address.is_url(place) else {}

    def need(self, name: str, ask: Callable[[], ResultT], say: Callable[[ResultT], str] = str) -> ResultT:
        """Return what is found, which is noted.

        Raises:
            _Stopped: Something is wrong, and that is noted.
        """
        try:
            found = ask()
        except (ShardError, OSError, TransientError) as error:
            self._found[name], self._stop = self._wrong(name, error), name
            raise _StepFailed from None
        self._found[name] = Check(name, "ok", say(found))
        return found

    def look(self, name: str, ask: Callable[[], object], say: Callable[[Any], str] = str) -> None:
        """Note what is found; nothing else needs it."""
        with suppress(_StepFailed):
            self.need(name, ask, say)

    def unknown(self, name: str, why: str) -> None:
        """Note why something cannot be seen."""
        self._found[name] = Check(name, "unknown", why)

    def is_open(self, name: str) -> bool:
        """Tell whether something is still to be seen."""
        return self._found[name].state == "unknown"

    def checks(self) -> tuple[Check, ...]:
        """Return what was found, and of all else, why it was not looked at."""
        why = f"not tried: see {self._stop}"
        return tuple(Check(name, "unknown", why) if one is _NOT_CHECKED else one for name, one in self._found.items())

    def _wrong(self, name: str, error: ShardError | OSError | TransientError) -> Check:
        if not isinstance(error, ShardError):
            return Check(name, "wrong", os_error_text(error) if isinstance(error, OSError) else error.found)
        where = "" if error.where.startswith(self.place) or self.place.startswith(error.where) else f"{error.where}: "
        expected, cure = f"; expected {error.expected}" if error.expected else "", error.remedy
        if name in self._allow and isinstance(error, AccessRefused) and cure not in CREDENTIAL_ERRORS.values():
            cure = f"Allow {self._allow[name]} there."
        return Check(name, "wrong", f"{where}{error.found}{expected}", cure)


def _check_connection(address: str, seen: _Steps) -> FirstResponse:
    """Look at the way to a server, by a request for an address; return the answer."""
    ask = partial(with_retries, display_address(address), partial(first_response, address))
    answer = seen.need("server", ask, lambda one: one.server)
    until = answer.certificate_expiry
    seen.look("proxy", lambda: answer.proxy or "none")
    seen.look("certificate", lambda: f"trusted; ends {until}" if until else "none: http:// is not encrypted")
    seen.look("clock", partial(_check_clock, address, answer.headers))
    return answer


def _check_clock(address: str, headers: Mapping[str, str]) -> str:
    try:
        date = parsedate_to_datetime(headers["Date"]).timestamp()
        off_s = time.time() - date - float(headers.get("Age", 0))  # of an answer that a cache keeps
    except (KeyError, TypeError, ValueError, OverflowError):
        return "the server says no time"
    said = f"{abs(off_s):,.0f} s {'ahead of' if off_s > 0 else 'behind'} the server's"
    if abs(off_s) > _SKEW_S:
        raise StoreFailed(display_address(address), said, remedy=CLOCK_ADVICE)
    return said if abs(off_s) > _EXACT_S else "the server's, as far as that says it"


def _check_store(place: str, seen: _Steps) -> None:
    open_folder(place)  # which refuses what is no prefix
    probe = paths.join(place, _probe_name())
    seen.need("credentials", lambda: sign_url(probe, "GET") and credentials_kind(place))
    way = _check_connection(probe, seen)
    if way.code in CREDENTIAL_ERRORS:
        seen.need("credentials", partial(_raise_if, way.refused))
    seen.need("bucket", partial(_check_bucket, place, way))
    _list_and_read(place, seen)
    if seen.writes:
        remove = partial(delete_objects, place, [parse_address(probe).key])
        seen.need("delete", partial(_run_step, remove))  # before there is anything that could not be removed
        _write_then_remove(probe, partial(_check_write, probe, seen), remove, seen)


def _raise_if(error: Exception | None) -> None:
    if error is not None:
        raise error


def _check_bucket(place: str, way: FirstResponse) -> str:
    if not isinstance(way.refused, AccessRefused | FileNotFoundError):
        _raise_if(way.refused)
    with write_conflicts(place):
        if way.code in ("NoSuchBucket", "ContainerNotFound"):
            raise FileNotFoundError
    return parse_address(place).host


def _list_and_read(place: str, seen: _Steps) -> None:
    try:
        found = seen.need("list", lambda: [*islice(lookup.iter_objects(place), _MAX_LISTED_OBJECTS)], _smallest_object)
    except _StepFailed:
        seen.unknown("read", "not tried: see list")
        return
    if first := next((one.key for one in found if one.size > 0), ""):
        seen.look("read", partial(_run_step, lambda: open_remote(paths.join(place, first)).read(0, 1)))
    else:
        seen.unknown("read", "nothing is there to be read")


def _smallest_object(found: list[BucketEntry]) -> str:
    return f"allowed; the first is {found[0].key}" if found else "allowed; nothing is there"


def _probe_name() -> str:
    return f".shardtool-doctor.{token_hex(8)}"


def _run_step(do: Callable[[], object]) -> str:
    do()
    return "allowed"


def _check_write(probe: str, seen: _Steps) -> None:
    version = seen.need("write", partial(put_object, probe, b"1", ""), lambda _: "allowed")
    if seen.is_open("read"):
        seen.look("read", partial(_run_step, partial(files.read_small, probe)))
    seen.look("conditions", partial(_check_conditions, probe, version))


def _check_conditions(probe: str, version: str) -> str:
    check_conditional_writes(probe, b"2")
    put_object(probe, b"3", version)  # so is a lock renewed, and a dataset file replaced
    check_conditional_writes(probe, b"4", version)
    return "kept (If-None-Match, If-Match)"


def _write_then_remove(probe: str, write: Callable[[], None], remove: Callable[[], None], seen: _Steps) -> None:
    """Write what is looked at, and remove it, also after a signal; where that cannot be, say where it is."""
    try:
        with suppress(_StepFailed):
            write()
    except BaseException:
        try:
            remove()
            retry.pause(_SECOND_REMOVAL_S)
            remove()
        except (ShardError, OSError, RequestCancelled):
            getLogger("shardtool").warning("%s may still be there: remove it.", display_address(probe))
        raise
    seen.look("delete", partial(_remove_probe, probe, remove))


def _remove_probe(probe: str, remove: Callable[[], None]) -> str:
    try:
        remove()
    except ShardError as error:
        remedy = f"Remove {display_address(probe)}, which stays there."
        raise OutputFailed(display_address(probe), error.found, remedy=remedy) from None
    return "nothing stays there"


def _check_web(place: str, seen: _Steps) -> None:
    way = _check_connection(place, seen)
    seen.look("credentials", lambda: ", ".join(web_headers(place)) or "none")
    seen.need("read", partial(_raise_if, way.refused))
    blob = seen.need("read", partial(open_remote, place), lambda one: f"{one.size:,} bytes")
    seen.look("ranges", partial(blob.read, max(0, blob.size - 1), 1), lambda _: "given")
    seen.look("conditions", partial(_has_conditional_get, place, blob.version))


def _has_conditional_get(place: str, version: str) -> str:
    if not version:
        return "no ETag: sizes and checksums must tell what changes while it is read"
    try:
        discard_response(request_object(place, {"Range": "bytes=0-0", "If-Match": '"shardtool-doctor"'}))
    except FileExistsError:
        return "kept (If-Match)"
    return "If-Match is ignored: the ETag of each answer is compared"


def _check_folder(path: str, seen: _Steps) -> None:
    open_folder(path)  # which refuses what is meant for an address
    here, above = path, paths.folder_of(path.rstrip("/"))
    while here and not os.path.lexists(here):
        here = paths.folder_of(here.rstrip("/"))
    folder, name = Folder(here or "."), _probe_name()
    said = "there" if here == path else f"not there yet; {folder.path} is"
    if here not in (path, above):  # a new folder, or one that is misspelled
        said = f"not there yet, nor is {above}; they would be made in {folder.path}"
    seen.need("folder", partial(lookup.list_folder, folder.path), lambda _: said)
    seen.look("space", folder.free_bytes, lambda free: f"{format_size(free)} free")
    if not seen.writes:
        return
    kept = BackupLinks(folder.path, folder.full_path(f"{name}.kept"))

    def write() -> None:
        staged = seen.need("write", partial(folder.stage_bytes, name, b"1"), lambda _: "allowed")
        seen.need("rename", partial(_run_step, partial(folder.publish, staged)))
        seen.look("links", partial(_run_step, partial(kept.keep, [name])))
        seen.look("locks", partial(_check_locks, folder.full_path(name)))

    def remove() -> None:
        kept.discard()
        folder.discard_staged([name])
        folder.remove([one for one in folder.names() if one == name])

    _write_then_remove(folder.full_path(name), write, remove, seen)


def _check_locks(path: str) -> str:
    held = [lock for lock in (take_lock(path), take_lock(path)) if lock is not None]
    for lock in held:
        lock.close()
    if len(held) > 1:
        raise OutputFailed(path, "two can hold one at once", remedy="See that only one run writes here at a time.")
    return "kept (flock)"


_CONNECTION_STEPS = ("server", "proxy", "certificate", "clock", "credentials")


_STORE_STEPS = _check_store, (*_CONNECTION_STEPS, "bucket", "list", "read", "write", "conditions", "delete")


_LOCATION_CHECKS = {  # by kind of place or scheme of a store: what looks at it, and what that sees, in order
    **dict.fromkeys(STORES, _STORE_STEPS),
    "web": (_check_web, (*_CONNECTION_STEPS, "read", "ranges", "conditions")),
    "folder": (_check_folder, ("folder", "space", "write", "rename", "links", "locks", "delete")),
}
