"""`doctor`: what a place allows, and what is in the way there, looked at step by step, each with its cure.

The library twin of `shardtool doctor`. Each step does what other verbs do, by the functions that they use, so that what
it says holds for them. Where it may, it writes one small file or object, under a name that nothing has; that is removed
whatever happens, and named where it cannot be. What may pass is not waited for as long as they do.
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

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, ShardError, StoreFailed, reason
from shardtool.pattern import is_shard_name
from shardtool.request.options import DoctorOptions
from shardtool.request.results import Check, DoctorResult
from shardtool.request.settings import by_names
from shardtool.storage import places
from shardtool.storage.folders import open_folder
from shardtool.storage.places import open_blob
from shardtool.storage.remote import retry
from shardtool.storage.remote.address import STORES, parse_address, shown, web_headers
from shardtool.storage.remote.blob import FirstAnswer, drop, first_answer, get
from shardtool.storage.remote.lock import check_conditional
from shardtool.storage.remote.retry import OF_KEYS, SET_CLOCK, PassingFailure, RequestStopped, retried, writing
from shardtool.storage.remote.stores import BucketEntry, credentials_kind, delete, put, signed
from shardtool.storage.shared import take_lock
from shardtool.storage.staging import Folder, KeptFiles
from shardtool.values import Given, counted, given_names, show_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardtool.request.settings import Observer


Found = TypeVar("Found")

_POLICY = retry.POLICY._replace(tries=2, whole_s=5.0, silent_s=5.0, over_s=10.0)
_MANY = 100  # objects among which one to be read is looked for
_UNSEEN = Check("", "unknown", "")
_EXACT_S, _SKEW_S = 2, 300  # `Date` has whole seconds; stores refuse clocks that are 15 minutes off, some 5
_AGAIN_S = 0.3  # after a signal: what was being written then may appear only now
_READER, _WRITER = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"
_ALLOW = {
    "s3": {"list": "s3:ListBucket", "read": "s3:GetObject", "write": "s3:PutObject", "delete": "s3:DeleteObject"},
    "gs": {"list": "storage.objects.list", "read": "storage.objects.get", "write": "storage.objects.create",
           "delete": "storage.objects.delete"},
    "az": {"list": _READER, "read": _READER, "write": _WRITER, "delete": _WRITER},
}  # fmt: skip


@by_names(DoctorOptions)
def doctor(place: Given, options: DoctorOptions, observer: Observer) -> DoctorResult:  # noqa: ARG001
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
    [path, *more] = given_names("the place", place, "a folder or an address") or [""]
    if more or not path:
        raise InvalidRequest("the place", counted(len(more) + 1, "name") if more else "none", expected="one")
    if path == "-" or path.startswith("pipe:"):
        found = "standard input" if path == "-" else "a command"
        raise InvalidRequest(path, found, expected="a folder or an address")
    kind = "folder" if not places.is_url(path) else "web" if places.is_web(path) else parse_address(path).scheme
    if kind != "web" and (path.endswith(".json") or is_shard_name(places.base_name(path))):
        path = places.folder_of(path)
    look, names = _LOOKS.get(kind, (_list_and_read, ("list", "read")))
    seen = _Seen(path or ".", names, options)
    with retry.under(_POLICY), suppress(_Stopped):
        look(path or ".", seen)
    return DoctorResult(seen.place, seen.checks(), time.monotonic() - begun)


class _Stopped(Exception):
    """Something is wrong without which nothing else can be seen."""


class _Seen:
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
        self.place, self.writes = shown(place), not options.read_only
        some = names if self.writes else takewhile(lambda name: name != "write", names)
        self._found, self._stop = dict.fromkeys(some, _UNSEEN), ""
        self._allow = _ALLOW.get(parse_address(place).scheme, {}) if places.is_url(place) else {}

    def need(self, name: str, ask: Callable[[], Found], say: Callable[[Found], str] = str) -> Found:
        """Return what is found, which is noted.

        Raises:
            _Stopped: Something is wrong, and that is noted.
        """
        try:
            found = ask()
        except (ShardError, OSError, PassingFailure) as error:
            self._found[name], self._stop = self._wrong(name, error), name
            raise _Stopped from None
        self._found[name] = Check(name, "ok", say(found))
        return found

    def look(self, name: str, ask: Callable[[], object], say: Callable[[Any], str] = str) -> None:
        """Note what is found; nothing else needs it."""
        with suppress(_Stopped):
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
        return tuple(Check(name, "unknown", why) if one is _UNSEEN else one for name, one in self._found.items())

    def _wrong(self, name: str, error: ShardError | OSError | PassingFailure) -> Check:
        if not isinstance(error, ShardError):
            return Check(name, "wrong", reason(error) if isinstance(error, OSError) else error.found)
        where = "" if error.where.startswith(self.place) or self.place.startswith(error.where) else f"{error.where}: "
        expected, cure = f"; expected {error.expected}" if error.expected else "", error.remedy
        if name in self._allow and isinstance(error, AccessRefused) and cure not in OF_KEYS.values():
            cure = f"Allow {self._allow[name]} there."
        return Check(name, "wrong", f"{where}{error.found}{expected}", cure)


# The way to a server.


def _way(address: str, seen: _Seen) -> FirstAnswer:
    """Look at the way to a server, by a request for an address; return the answer."""
    ask = partial(retried, shown(address), partial(first_answer, address))
    answer = seen.need("server", ask, lambda one: one.server)
    until = answer.trusted_until
    seen.look("proxy", lambda: answer.proxy or "none")
    seen.look("certificate", lambda: f"trusted; ends {until}" if until else "none: http:// is not encrypted")
    seen.look("clock", partial(_clock, address, answer.headers))
    return answer


def _clock(address: str, headers: Mapping[str, str]) -> str:
    try:
        date = parsedate_to_datetime(headers["Date"]).timestamp()
        off_s = time.time() - date - float(headers.get("Age", 0))  # of an answer that a cache keeps
    except (KeyError, TypeError, ValueError, OverflowError):
        return "the server says no time"
    said = f"{abs(off_s):,.0f} s {'ahead of' if off_s > 0 else 'behind'} the server's"
    if abs(off_s) > _SKEW_S:
        raise StoreFailed(shown(address), said, remedy=SET_CLOCK)
    return said if abs(off_s) > _EXACT_S else "the server's, as far as that says it"


# What lies behind it.


def _look_at_store(place: str, seen: _Seen) -> None:
    open_folder(place)  # which refuses what is no prefix
    probe = places.join(place, _name())
    seen.need("credentials", lambda: signed(probe, "GET") and credentials_kind(place))
    way = _way(probe, seen)
    if way.code in OF_KEYS:
        seen.need("credentials", partial(_raise, way.refused))
    seen.need("bucket", partial(_bucket, place, way))
    _list_and_read(place, seen)
    if seen.writes:
        remove = partial(delete, place, [parse_address(probe).key])
        seen.need("delete", partial(_done, remove))  # before there is anything that could not be removed
        _and_remove(probe, partial(_write, probe, seen), remove, seen)


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _bucket(place: str, way: FirstAnswer) -> str:
    if not isinstance(way.refused, AccessRefused | FileNotFoundError):
        _raise(way.refused)
    with writing(place):
        if way.code in ("NoSuchBucket", "ContainerNotFound"):
            raise FileNotFoundError
    return parse_address(place).host


def _list_and_read(place: str, seen: _Seen) -> None:
    try:
        found = seen.need("list", lambda: [*islice(places.objects_below(place), _MANY)], _first_of)
    except _Stopped:
        seen.unknown("read", "not tried: see list")
        return
    if first := next((one.key for one in found if one.size > 0), ""):
        seen.look("read", partial(_done, lambda: open_blob(places.join(place, first)).read(0, 1)))
    else:
        seen.unknown("read", "nothing is there to be read")


def _first_of(found: list[BucketEntry]) -> str:
    return f"allowed; the first is {found[0].key}" if found else "allowed; nothing is there"


def _name() -> str:
    return f".shardtool-doctor.{token_hex(8)}"


def _done(do: Callable[[], object]) -> str:
    do()
    return "allowed"


def _write(probe: str, seen: _Seen) -> None:
    version = seen.need("write", partial(put, probe, b"1", ""), lambda _: "allowed")
    if seen.is_open("read"):
        seen.look("read", partial(_done, partial(places.read_small, probe)))
    seen.look("conditions", partial(_conditions, probe, version))


def _conditions(probe: str, version: str) -> str:
    check_conditional(probe, b"2")
    put(probe, b"3", version)  # so is a lock renewed, and a dataset file replaced
    check_conditional(probe, b"4", version)
    return "kept (If-None-Match, If-Match)"


def _and_remove(probe: str, write: Callable[[], None], remove: Callable[[], None], seen: _Seen) -> None:
    """Write what is looked at, and remove it, also after a signal; where that cannot be, say where it is."""
    try:
        with suppress(_Stopped):
            write()
    except BaseException:
        try:
            remove()
            retry.pause(_AGAIN_S)
            remove()
        except (ShardError, OSError, RequestStopped):
            getLogger("shardtool").warning("%s may still be there: remove it.", shown(probe))
        raise
    seen.look("delete", partial(_removed, probe, remove))


def _removed(probe: str, remove: Callable[[], None]) -> str:
    try:
        remove()
    except ShardError as error:
        remedy = f"Remove {shown(probe)}, which stays there."
        raise OutputFailed(shown(probe), error.found, remedy=remedy) from None
    return "nothing stays there"


def _look_at_web(place: str, seen: _Seen) -> None:
    way = _way(place, seen)
    seen.look("credentials", lambda: ", ".join(web_headers(place)) or "none")
    seen.need("read", partial(_raise, way.refused))
    blob = seen.need("read", partial(open_blob, place), lambda one: f"{one.size:,} bytes")
    seen.look("ranges", partial(blob.read, max(0, blob.size - 1), 1), lambda _: "given")
    seen.look("conditions", partial(_is_matched, place, blob.version))


def _is_matched(place: str, version: str) -> str:
    if not version:
        return "no ETag: sizes and checksums must tell what changes while it is read"
    try:
        drop(get(place, {"Range": "bytes=0-0", "If-Match": '"shardtool-doctor"'}))
    except FileExistsError:
        return "kept (If-Match)"
    return "If-Match is ignored: the ETag of each answer is compared"


def _look_at_folder(path: str, seen: _Seen) -> None:
    open_folder(path)  # which refuses what is meant for an address
    here, above = path, places.folder_of(path.rstrip("/"))
    while here and not os.path.lexists(here):
        here = places.folder_of(here.rstrip("/"))
    folder, name = Folder(here or "."), _name()
    said = "there" if here == path else f"not there yet; {folder.path} is"
    if here not in (path, above):  # a new folder, or one that is misspelled
        said = f"not there yet, nor is {above}; they would be made in {folder.path}"
    seen.need("folder", partial(places.list_folder, folder.path), lambda _: said)
    seen.look("space", folder.free_bytes, lambda free: f"{show_size(free)} free")
    if not seen.writes:
        return
    kept = KeptFiles(folder.path, folder.full_path(f"{name}.kept"))

    def write() -> None:
        staged = seen.need("write", partial(folder.stage_whole, name, b"1"), lambda _: "allowed")
        seen.need("rename", partial(_done, partial(folder.publish, staged)))
        seen.look("links", partial(_done, partial(kept.keep, [name])))
        seen.look("locks", partial(_locks, folder.full_path(name)))

    def remove() -> None:
        kept.discard()
        folder.discard_staged([name])
        folder.remove([one for one in folder.names() if one == name])

    _and_remove(folder.full_path(name), write, remove, seen)


def _locks(path: str) -> str:
    held = [lock for lock in (take_lock(path), take_lock(path)) if lock is not None]
    for lock in held:
        lock.close()
    if len(held) > 1:
        raise OutputFailed(path, "two can hold one at once", remedy="See that only one run writes here at a time.")
    return "kept (flock)"


_WAY = ("server", "proxy", "certificate", "clock", "credentials")
_STORE = _look_at_store, (*_WAY, "bucket", "list", "read", "write", "conditions", "delete")
_LOOKS = {  # by kind of place or scheme of a store: what looks at it, and what that sees, in order
    **dict.fromkeys(STORES, _STORE),
    "web": (_look_at_web, (*_WAY, "read", "ranges", "conditions")),
    "folder": (_look_at_folder, ("folder", "space", "write", "rename", "links", "locks", "delete")),
}
