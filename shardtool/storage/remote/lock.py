"""A lock in a store: an object that names who holds it, made only where there is none, and renewed while it is held.

The store's own clock alone says how old it is (`Date` and `Last-Modified` of one answer), so that clocks of machines
may differ. One that was not renewed for `LEASE_S` is taken over, on the condition that it is still the same: of two
that try, one gets it. A holder on this machine that is dead holds nothing: nobody need wait for it.

Those who share a lock have an object each; each of them looks for one who holds it alone after it has made its own, as
that one looks for theirs, so that of two that come at once at least one sees the other.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

from shardtool.errors import AccessRefused, InvalidRequest, OutputExists, ShardError, printable, reason
from shardtool.storage.remote.address import join, parse_address, shown
from shardtool.storage.remote.blob import get, length_of
from shardtool.storage.remote.retry import PassingFailure, RequestStopped, answering, retried, warn, writing
from shardtool.storage.remote.stores import delete, listed, put, version_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LEASE_S = 300  # how long a lock holds that is not renewed
_RENEW_S = 45
UNLOCKED = "SHARDTOOL_UNLOCKED"  # an environment variable: stores that ignore conditions are written all the same
_END_S = 10  # that a renewal which is under way is waited for
_SUFFIX = ".lock"
_MOST = 4096  # bytes of a lock that are looked at
_TRIES = 3
_STAYS = (
    "{}: the lock of this run stays there: {}. Remove it (that needs permission to read and delete), or let {:.0f} "
    "seconds pass before the next run."
)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first goes on while the machine sleeps

_held: dict[str, list[Lease]] = {}  # by folder; of this process
_mine: set[str] = set()  # tokens of locks that it holds, or is about to hold


class Holder(NamedTuple):
    """Who holds a lock.

    Attributes:
        who: User, machine and process, for messages.
        since: When the run began, by its machine's clock; for messages.
        token: What no other holder has.
        machine: What tells this machine, since its start, from all others; empty where that is not known.
        pid: The process.
        born: When the process was born, in the kernel's own count.
    """

    who: str
    since: str
    token: str
    machine: str
    pid: int
    born: str

    @classmethod
    def me(cls) -> Holder:
        """Return this process, as a new holder."""
        who = f"{_user()}@{socket.gethostname()}, process {os.getpid()}"
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return cls(who, since, token_hex(8), _machine(), os.getpid(), _born(os.getpid()))

    def encode(self, renewals: int = 0) -> bytes:
        """Return the bytes of its lock: others each time that it is renewed, for stores tell versions by them."""
        return json.dumps({"shardtool lock": 1, **self._asdict(), "renewals": renewals}).encode() + b"\n"

    def is_dead(self) -> bool:
        """Tell whether it is a process of this machine that has ended, or a run of this process that has."""
        if not self.machine or self.machine != _machine():
            return False
        return _born(self.pid) != self.born or (self.pid == os.getpid() and self.token not in _mine)


def parse_holder(data: bytes) -> Holder:
    """Return who holds a lock, as its bytes say; whatever they are."""
    try:
        found = json.loads(data)
        who, since, token, machine = (
            printable(str(found[name])[:200]) for name in ("who", "since", "token", "machine")
        )
        return Holder(who, since, token, machine, int(found["pid"]), str(found["born"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return Holder("somebody", "an unknown time", "", "", 0, "")


def age_s(headers: Mapping[str, str]) -> float | None:
    """Return how old an object is, by the clock of the store that answered; None: it does not say."""
    from email.utils import parsedate_to_datetime

    try:
        now, then = (parsedate_to_datetime(headers[name]).timestamp() for name in ("Date", "Last-Modified"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return now - then


class _Found(NamedTuple):
    """A lock that is there."""

    holder: Holder
    version: str
    age_s: float | None

    @property
    def is_over(self) -> bool:
        """Whether it may be taken over."""
        return self.holder.is_dead() or (self.age_s is not None and self.age_s > LEASE_S)


class Lease:
    """A lock that this process holds: a thread renews it until `end`.

    Args:
        address: Its object.
        holder: This process.
        version: The version of the object.

    Attributes:
        lost: Why it is held no more; None: it is.
    """

    def __init__(self, address: str, holder: Holder, version: str) -> None:
        self._address, self._holder, self._version = address, holder, version
        self.lost: ShardError | None = None
        self._renewals, self._renewed, self._renewing = 0, _now(), threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="shardtool-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """See that it is still held: a process that was stopped for a while may have lost it, and not know that yet.

        Raises:
            OutputExists: It is not.
            AccessRefused: The store does not let us in any more.
        """
        if self.lost is None and self._is_late():
            self._renew()
        if self.lost is None and self._is_late():
            found = "the lock could not be renewed in time"
            self.lost = OutputExists(shown(self._address), found, remedy="Run the same command again.")
        if self.lost is not None:
            raise self.lost

    def leave(self) -> None:
        """Renew it no more, and leave it to its end: the store does not let us in, and nothing is asked again."""
        self._ended.set()

    def end(self) -> None:
        """Give it back."""
        if self._ended.is_set() or self._holder.pid != os.getpid():  # in a fork, it is the parent's
            return
        self._ended.set()
        self._thread.join(_END_S)
        if self.lost is not None:
            return
        try:
            found = _read(self._address)
            if found is not None and found.holder.token == self._holder.token:
                _remove(self._address)
        except RequestStopped:  # a signal: the next run on this machine takes it over
            pass
        except (ShardError, OSError) as error:  # the work is done all the same
            why = error.found if isinstance(error, ShardError) else reason(error)
            warn(_STAYS.format(shown(self._address), why, LEASE_S))

    def _keep(self) -> None:
        with suppress(RequestStopped):
            while self.lost is None and not self._ended.wait(_RENEW_S):
                self._renew()

    def _is_late(self) -> bool:
        return _now() - self._renewed > LEASE_S - _RENEW_S

    def _renew(self) -> None:
        with self._renewing:
            self._renewals, begun = self._renewals + 1, _now()
            try:
                self._version = _put(self._address, self._holder, self._version, self._renewals)
                self._renewed = begun
            except FileExistsError:
                found = "another run has taken the lock, which this one did not renew in time"
                self.lost = OutputExists(shown(self._address), found, remedy="See that only one of them runs.")
            except AccessRefused as error:  # nothing is asked after that
                self.lost = error
            except ShardError:
                pass  # the next time may be better; `check` says when it is too late
            except OSError as error:
                found = f"the lock cannot be renewed: {reason(error)}"
                self.lost = OutputExists(shown(self._address), found, remedy="Run the same command again.")


@contextmanager
def locked(folder: str, base: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of the dataset `base` under a prefix.

    Raises:
        OutputExists: Another run holds it.
        InvalidRequest: The store does not keep conditions, so that two runs could hold it.
        OutputFailed: There is no such bucket.
        AccessRefused: We may not write there.
        StoreFailed: The store fails.
    """
    if os.environ.get(UNLOCKED, "").lower() in ("1", "true"):
        yield
        return
    alone = join(folder, f".{base}{_SUFFIX}")
    holder = Holder.me()
    own = f"{alone}.{holder.token}" if shared else alone
    _mine.add(holder.token)
    try:
        with writing(folder):
            lease = Lease(own, holder, _taken(own, holder))
    except BaseException:
        _mine.discard(holder.token)
        raise
    try:
        _check_others(folder, base, alone, shared=shared)
        _held.setdefault(folder, []).append(lease)
        try:
            yield
        finally:
            _held[folder].remove(lease)
    except AccessRefused:
        lease.leave()
        raise
    finally:
        lease.end()
        _mine.discard(holder.token)


def check_held(folder: str) -> None:
    """See that this process has lost no lock of a folder.

    Raises:
        OutputExists: It has.
        AccessRefused: The store does not let us in any more.
    """
    for lease in _held.get(folder, ()):
        lease.check()


def _taken(address: str, holder: Holder) -> str:
    """Make or take over a lock; return the version of its object."""
    for _ in range(_TRIES):
        try:
            version = _put(address, holder, "")
        except FileExistsError:
            found = _read(address)
        else:
            check_conditional(address, holder.encode(1))
            return version
        if found is None:  # it went meanwhile
            continue
        if not found.is_over or not found.version:
            raise _refused(address, found)
        with suppress(FileExistsError):
            return _put(address, holder, found.version)
    raise OutputExists(shown(address), "another run has just taken the lock", remedy="Wait for it to end.")


def check_conditional(address: str, data: bytes, version: str = "") -> None:
    """See that the store does not write an object on a condition that does not hold; where it does, that is removed.

    Args:
        address: An object that is there.
        data: What would be written.
        version: One that it had before; empty: the condition is that nothing is there.

    Raises:
        InvalidRequest: It writes it all the same.
    """
    try:
        put(address, data, version)
    except FileExistsError:
        return
    _remove(address)
    did, header = ("replaces one that has changed", "If-Match") if version else ("makes one twice", "If-None-Match")
    found = f"the store writes an object though a condition does not hold: it {did}"
    remedy = f"If no other run writes here at the same time, set {UNLOCKED}=1: then there is no lock."
    expected = f"a store that keeps conditions ({header}), for two runs must not write one dataset"
    raise InvalidRequest(shown(address), found, expected=expected, remedy=remedy)


def _check_others(folder: str, base: str, alone: str, *, shared: bool) -> None:
    """Refuse to hold a lock beside one who must be alone; of those who share, what dead ones left is removed."""
    if shared:
        others = [alone]
    else:
        others = [join(folder, one.name) for one in listed(folder) if one.name.startswith(f".{base}{_SUFFIX}.")]
    for other in others:
        found = _read(other)
        if found is not None and not found.is_over:
            raise _refused(other, found)
        if found is not None and not shared:
            _remove(other)


def _put(address: str, holder: Holder, expected: str, renewals: int = 0) -> str:
    """Write a lock; return its version. What failed may have been done all the same: then it is ours."""
    try:
        return put(address, holder.encode(renewals), expected)
    except FileExistsError:
        found = _read(address)
        if found is None or found.holder.token != holder.token:
            raise
        return found.version


def _read(address: str) -> _Found | None:
    """Return the lock that is there; None: there is none."""

    def once() -> _Found:
        with closing(get(address)) as answer, answering(address):
            data = answer.read(_MOST)
        if len(data) < min(length_of(answer) or 0, _MOST):
            raise PassingFailure("the answer ends early", answered=True)
        return _Found(parse_holder(data), version_in(address, answer.headers), age_s(answer.headers))

    with suppress(FileNotFoundError):
        return retried(shown(address), once)
    return None


def _refused(address: str, found: _Found) -> OutputExists:
    what = f"another run is writing this dataset: {found.holder.who}, since {found.holder.since}"
    left = LEASE_S if found.age_s is None else max(1, LEASE_S - int(found.age_s))
    remedy = f"Wait for it to end, or write elsewhere. If it was killed, its lock ends by itself in {left} seconds."
    return OutputExists(shown(address), what, remedy=remedy)


def _remove(address: str) -> None:
    delete(address, [parse_address(address).key])


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return f"user {os.getuid()}"


def _machine() -> str:
    """Return what tells this machine and its processes from all others until it starts again; empty: unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return blake2b(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode(), digest_size=12).hexdigest()
    except OSError:
        return ""


def _born(pid: int) -> str:
    """Return when a process of this machine was born; empty: it is not there, or that is not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if state in (b"Z", b"X") else fields[18].decode()
