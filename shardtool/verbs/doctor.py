"""`doctor`: what a place allows, and what is in the way there, looked at step by step, each with its cure.

The library twin of `shardtool doctor`. Each step does what other verbs do, by the functions that they use, so that what
it says holds for them. Where it may, it writes one small file or object, under a name that nothing has; that is removed
whatever happens, and named where it cannot be. What may pass is not waited for as long as they do.
"""

from __future__ import annotations

import os
import time
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import islice
from logging import getLogger
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

from shardtool.errors import AccessRefused, InvalidRequest, OutputFailed, ShardError, StoreFailed, reason
from shardtool.request.calls import by_names
from shardtool.request.options import DoctorOptions
from shardtool.request.results import Check, DoctorResult, Observer
from shardtool.request.settings import given_options
from shardtool.storage.open_file import is_other, open_blob
from shardtool.storage.places import folder_of, is_folder, is_url, is_web, join, list_folder, objects_below, read_small
from shardtool.storage.remote.address import parse_address, shown, web_headers
from shardtool.storage.remote.blob import FirstAnswer, drop, first_answer, get
from shardtool.storage.remote.lock import check_conditional
from shardtool.storage.remote.retry import OF_KEYS, POLICY, SET_CLOCK, RequestStopped, pause, retried, under, writing
from shardtool.storage.remote.stores import credentials_kind, delete, put
from shardtool.storage.shared import take_lock
from shardtool.storage.staging import Folder, KeptFiles
from shardtool.values import counted, given_names, show_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardtool.storage.remote.stores import BucketEntry
    from shardtool.values import Given

Found = TypeVar("Found")

_POLICY = POLICY._replace(tries=2, whole_s=5.0, silent_s=5.0, over_s=10.0)
_MANY = 100  # objects among which one to be read is looked for
_UNSEEN = Check("", "unknown", "")
_EXACT_S, _SKEW_S = 2, 300  # `Date` has whole seconds; stores refuse clocks that are 15 minutes off, some 5
_AGAIN_S = 0.3  # after a signal: what was being written then may appear only now
_WAY = ("server", "proxy", "certificate", "clock", "credentials")
_WRITING = ("write", "conditions", "delete", "rename", "links", "locks")
_NAMES = {
    "store": (*_WAY, "bucket", "list", "read", "write", "conditions", "delete"),
    "web": (*_WAY, "read", "ranges", "conditions"),
    "other": ("list", "read"),
    "folder": ("folder", "space", "write", "rename", "links", "locks", "delete"),
}
_READER, _WRITER = "the role Storage Blob Data Reader", "the role Storage Blob Data Contributor"
_ALLOW = {
    "s3": {"list": "s3:ListBucket", "read": "s3:GetObject", "write": "s3:PutObject", "delete": "s3:DeleteObject"},
    "gs": {"list": "storage.objects.list", "read": "storage.objects.get", "write": "storage.objects.create",
           "delete": "storage.objects.delete"},
    "az": {"list": _READER, "read": _READER, "write": _WRITER, "delete": _WRITER},
}  # fmt: skip


@by_names(DoctorOptions)
def doctor(
    place: Given,
    options: DoctorOptions | None = None,
    *,
    observer: Observer | None = None,  # noqa: ARG001 - as verbs
) -> DoctorResult:
    """Return what a place allows, and what is in the way there.

    Args:
        place: A folder, or an address: a prefix of a store, a file of the web. Of a dataset file that is not on the
            web, its folder is meant.
        options: See `DoctorOptions`.
        observer: Is told nothing: what was found is returned.

    Raises:
        InvalidRequest: It is no place, or a library that reads it is not installed.
    """
    options, begun = given_options(options, DoctorOptions), time.monotonic()
    [path, *more] = given_names("the place", place, "a folder or an address") or [""]
    if more or not path:
        raise InvalidRequest("the place", counted(len(more) + 1, "name") if more else "none", expected="one")
    if path.endswith(".json") and not is_web(path):
        path = folder_of(path) or "."
    kind = "folder" if not is_url(path) else "web" if is_web(path) else "other" if is_other(path) else "store"
    seen = _Seen(path, _NAMES[kind], read_only=options.read_only)
    with under(_POLICY):
        _LOOKS[kind](path, seen)
    return DoctorResult(shown(path), seen.checks(), time.monotonic() - begun)


class _Seen:
    """What was looked at so far.

    Args:
        place: The path or address.
        names: Of all that is to be looked at, in order.
        read_only: Whether nothing is to be written.

    Attributes:
        found: What was found, by name; `_UNSEEN`: nothing yet.
    """

    def __init__(self, place: str, names: tuple[str, ...], *, read_only: bool) -> None:
        self.found, self.read_only, self._place = dict.fromkeys(names, _UNSEEN), read_only, shown(place)
        self._allow = _ALLOW.get(parse_address(place).scheme, {}) if is_url(place) else {}

    def look(self, name: str, ask: Callable[[], Found], say: Callable[[Found], str] = str) -> Found | None:
        """Return what is found, which is noted; None: something is wrong, and that is."""
        try:
            found = ask()
        except (ShardError, OSError) as error:
            self.wrong(name, error)
            return None
        self.found[name] = Check(name, "ok", say(found))
        return found

    def wrong(self, name: str, error: Exception) -> None:
        """Note what is wrong."""
        if not isinstance(error, ShardError):
            self.found[name] = Check(name, "wrong", reason(error) if isinstance(error, OSError) else str(error))
            return
        where = "" if error.where.startswith(self._place) else f"{error.where}: "
        cure = error.remedy
        if name in self._allow and isinstance(error, AccessRefused) and cure not in OF_KEYS.values():
            cure = f"Allow {self._allow[name]} there."
        expected = f"; expected {error.expected}" if error.expected else ""
        self.found[name] = Check(name, "wrong", f"{where}{error.found}{expected}", cure)

    def unknown(self, name: str, why: str) -> None:
        """Note that something cannot be seen."""
        self.found[name] = Check(name, "unknown", why)

    def checks(self) -> tuple[Check, ...]:
        """Return what was found, and of all else, why it was not looked at."""
        first = next((one.name for one in self.found.values() if one.state == "wrong"), "")
        for name in [name for name, one in self.found.items() if one is _UNSEEN]:
            asked = name not in _WRITING or not self.read_only
            self.unknown(name, f"not tried: see {first}" if asked else "not tried: only reading is asked for")
        return (*self.found.values(),)


# The way to a server.


def _way(address: str, seen: _Seen) -> FirstAnswer | None:
    """Look at the way to a server, by a request for an address; return the answer."""
    ask = partial(retried, shown(address), partial(first_answer, address))
    answer = seen.look("server", ask, lambda one: one.server)
    if answer is not None:
        until = answer.trusted_until
        seen.look("proxy", lambda: answer.proxy or "none")
        seen.look("certificate", lambda: f"trusted; ends {until}" if until else "none: http:// is not encrypted")
        try:
            off_s = time.time() - parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
        except (TypeError, ValueError, OverflowError):
            seen.unknown("clock", "the server does not say what time it is")
        else:
            seen.look("clock", partial(_clock, address, off_s))
    return answer


def _clock(address: str, off_s: float) -> str:
    said = f"{abs(off_s):,.0f} s {'ahead of' if off_s > 0 else 'behind'} the server's"
    if abs(off_s) > _SKEW_S:
        raise StoreFailed(shown(address), said, remedy=SET_CLOCK)
    return said if abs(off_s) > _EXACT_S else "the server's, as far as that says it"


# What lies behind it.


def _look_at_store(place: str, seen: _Seen) -> None:
    probe = join(place, _name())
    if seen.look("credentials", partial(credentials_kind, place)) is None or (way := _way(probe, seen)) is None:
        return
    if way.code in OF_KEYS and way.refused is not None:
        seen.wrong("credentials", way.refused)
    elif seen.look("bucket", partial(_bucket, place, way)) is not None:
        _list_and_read(place, seen)
        if not seen.read_only:
            remove = partial(delete, place, [parse_address(probe).key])
            if seen.look("delete", partial(_done, remove)):  # before there is anything that could not be removed
                _and_remove(probe, partial(_write, probe, seen), remove, seen)


def _bucket(place: str, way: FirstAnswer) -> str:
    if isinstance(way.refused, StoreFailed) and not isinstance(way.refused, AccessRefused):
        raise way.refused
    with writing(place):
        if way.code in ("NoSuchBucket", "ContainerNotFound"):
            raise FileNotFoundError
    return parse_address(place).host


def _list_and_read(place: str, seen: _Seen) -> None:
    found = seen.look("list", lambda: [*islice(objects_below(place), _MANY)], _first_of)
    if first := next((one.key for one in found or () if one.size > 0), ""):
        seen.look("read", partial(_done, lambda: open_blob(join(place, first)).read(0, 1)))
    elif found is not None:
        seen.unknown("read", "nothing is there to be read")


def _first_of(found: list[BucketEntry]) -> str:
    return f"allowed; the first is {found[0].key}" if found else "allowed; nothing is there"


def _name() -> str:
    return f".shardtool-doctor.{token_hex(8)}"


def _done(do: Callable[[], object]) -> str:
    do()
    return "allowed"


def _write(probe: str, seen: _Seen) -> None:
    if (version := seen.look("write", partial(put, probe, b"1", ""), lambda _: "allowed")) is not None:
        if seen.found["read"].state == "unknown":
            seen.look("read", partial(_done, partial(read_small, probe)))
        seen.look("conditions", partial(_conditions, probe, version))


def _conditions(probe: str, version: str) -> str:
    check_conditional(probe, b"2")
    put(probe, b"3", version)  # so is a lock renewed, and a dataset file replaced
    check_conditional(probe, b"4", version)
    return "kept (If-None-Match, If-Match)"


def _and_remove(probe: str, write: Callable[[], None], remove: Callable[[], None], seen: _Seen) -> None:
    """Write what is looked at, and remove it, also after a signal; where that cannot be, say where it is."""
    try:
        write()
    except BaseException:
        try:
            remove()
            pause(_AGAIN_S)
            remove()
        except (ShardError, OSError, RequestStopped):
            getLogger("shardtool").warning("%s may still be there: remove it.", shown(probe))
        raise
    seen.look("delete", remove, lambda _: "nothing stays there")
    if seen.found["delete"].state == "wrong":
        seen.found["delete"] = seen.found["delete"]._replace(cure=f"Remove {shown(probe)}, which stays there.")


def _look_at_web(place: str, seen: _Seen) -> None:
    if (way := _way(place, seen)) is None:
        return
    seen.look("credentials", lambda: ", ".join(web_headers(place)) or "none")
    if way.refused is not None:
        seen.wrong("read", way.refused)
    elif (blob := seen.look("read", lambda: open_blob(place), lambda one: f"{one.size:,} bytes")) is not None:
        seen.look("ranges", lambda: blob.read(max(0, blob.size - 1), 1), lambda _: "given")
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
    here = path
    while here and not is_folder(here) and not os.path.lexists(here):
        here = folder_of(here.rstrip("/"))
    here = here or "."
    said = "there" if here == path else f"not there yet; {here} is"
    found = seen.look("folder", partial(list_folder, here), lambda _: said)
    folder, name = Folder(here), _name()
    seen.look("space", folder.free_bytes, lambda free: f"{show_size(free)} free")
    if found is None or seen.read_only:
        return
    kept = KeptFiles(here, folder.full_path(f"{name}.kept"))

    def write() -> None:
        staged = seen.look("write", partial(folder.stage_whole, name, b"1"), lambda _: "allowed")
        if staged is None or seen.look("rename", partial(_done, partial(folder.publish, staged))) is None:
            return
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


_LOOKS = {
    "store": _look_at_store, "web": _look_at_web, "other": _list_and_read, "folder": _look_at_folder,
}  # fmt: skip
