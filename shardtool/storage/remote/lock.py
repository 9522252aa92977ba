"""A lock in an object store: an object that names its holder and is renewed while it is held.

The lock is created on the condition that it does not exist. Its age is computed from the store's clock only (`Date`
and `Last-Modified` of one answer), so clocks of machines may differ. A lock that was not renewed for `LEASE_S` may
be
taken over, on the condition that it has not changed. A lock whose process on this machine has exited is free at
once.

Each holder of a shared lock creates its own object, then looks for an exclusive holder. An exclusive holder creates
its object, then looks for shared ones. If both come at once, at least one sees the other.
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

from shardtool.errors import AccessRefused, InvalidRequest, OutputExists, ShardError, os_error_text, printable
from shardtool.storage.remote.address import display_address, join_address, parse_address
from shardtool.storage.remote.buckets import delete_objects, list_objects, object_version, put_object
from shardtool.storage.remote.failures import urllib3_errors, write_conflicts
from shardtool.storage.remote.http import content_length, request_object
from shardtool.storage.remote.notices import warn
from shardtool.storage.remote.retry import RequestCancelled, TransientError, with_retries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


LEASE_S = 300  # how long a lock holds that is not renewed


_RENEW_INTERVAL_S = 45


UNLOCKED_VARIABLE = (
    "SHARDTOOL_UNLOCKED"  # an environment variable: stores that ignore conditions are written all the same
)


_END_TIMEOUT_S = 10  # that a renewal which is under way is waited for


_SUFFIX = ".lock"


_MAX_LOCK_BYTES = 4096  # bytes of a lock that are looked at


_MAX_TRIES = 3


_LOCK_REMAINS_ADVICE = (
    "{}: the lock of this run stays there: {}. Remove it (that needs permission to read and delete), or let {:.0f} "
    "seconds pass before the next run."
)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first goes on while the machine sleeps


_held_leases: dict[str, list[Lease]] = {}  # by folder; of this process


_own_tokens: set[str] = set()  # tokens of locks that it holds, or is about to hold


class LockHolder(NamedTuple):
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
    def me(cls) -> LockHolder:
        """Return this process, as a new holder."""
        who = f"{_user_name()}@{socket.gethostname()}, process {os.getpid()}"
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return cls(who, since, token_hex(8), _machine_id(), os.getpid(), _process_start(os.getpid()))

    def encode(self, renewals: int = 0) -> bytes:
        """Return the bytes of its lock: others each time that it is renewed, for stores tell versions by them."""
        return json.dumps({"shardtool lock": 1, **self._asdict(), "renewals": renewals}).encode() + b"\n"

    def has_exited(self) -> bool:
        """Tell whether it is a process of this machine that has ended, or a run of this process that has."""
        if not self.machine or self.machine != _machine_id():
            return False
        return _process_start(self.pid) != self.born or (self.pid == os.getpid() and self.token not in _own_tokens)


def parse_holder(data: bytes) -> LockHolder:
    """Return who holds a lock, as its bytes say; whatever they are."""
    try:
        found = json.loads(data)
        who, since, token, machine = (
            printable(str(found[name])[:200]) for name in ("who", "since", "token", "machine")
        )
        return LockHolder(who, since, token, machine, int(found["pid"]), str(found["born"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return LockHolder("somebody", "an unknown time", "", "", 0, "")


def object_age_s(headers: Mapping[str, str]) -> float | None:
    """Return how old an object is, by the clock of the store that answered; None: it does not say."""
    from email.utils import parsedate_to_datetime

    try:
        now, then = (parsedate_to_datetime(headers[name]).timestamp() for name in ("Date", "Last-Modified"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return now - then


class _ExistingLock(NamedTuple):
    """A lock that is there."""

    holder: LockHolder
    version: str
    age_s: float | None

    @property
    def is_over(self) -> bool:
        """Whether it may be taken over."""
        return self.holder.has_exited() or (self.age_s is not None and self.age_s > LEASE_S)


class Lease:
    """A lock that this process holds: a thread renews it until `end`.

    Args:
        address: Its object.
        holder: This process.
        version: The version of the object.

    Attributes:
        lost: Why it is held no more; None: it is.
    """

    def __init__(self, address: str, holder: LockHolder, version: str) -> None:
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
        if self.lost is None and self._is_overdue():
            self._renew()
        if self.lost is None and self._is_overdue():
            found = "the lock could not be renewed in time"
            self.lost = OutputExists(display_address(self._address), found, remedy="Run the same command again.")
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
        self._thread.join(_END_TIMEOUT_S)
        if self.lost is not None:
            return
        try:
            found = _read_lock(self._address)
            if found is not None and found.holder.token == self._holder.token:
                _remove_lock(self._address)
        except RequestCancelled:  # a signal: the next run on this machine takes it over
            pass
        except (ShardError, OSError) as error:  # the work is done all the same
            why = error.found if isinstance(error, ShardError) else os_error_text(error)
            warn(_LOCK_REMAINS_ADVICE.format(display_address(self._address), why, LEASE_S))

    def _keep(self) -> None:
        with suppress(RequestCancelled):
            while self.lost is None and not self._ended.wait(_RENEW_INTERVAL_S):
                self._renew()

    def _is_overdue(self) -> bool:
        return _now() - self._renewed > LEASE_S - _RENEW_INTERVAL_S

    def _renew(self) -> None:
        with self._renewing:
            self._renewals, begun = self._renewals + 1, _now()
            try:
                self._version = _write_lock(self._address, self._holder, self._version, self._renewals)
                self._renewed = begun
            except FileExistsError:
                found = "another run has taken the lock, which this one did not renew in time"
                self.lost = OutputExists(
                    display_address(self._address), found, remedy="See that only one of them runs."
                )
            except AccessRefused as error:  # nothing is asked after that
                self.lost = error
            except ShardError:
                pass  # the next time may be better; `check` says when it is too late
            except OSError as error:
                found = f"the lock cannot be renewed: {os_error_text(error)}"
                self.lost = OutputExists(display_address(self._address), found, remedy="Run the same command again.")


@contextmanager
def hold_lock(folder: str, base: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of the dataset `base` under a prefix.

    Raises:
        OutputExists: Another run holds it.
        InvalidRequest: The store does not keep conditions, so that two runs could hold it.
        OutputFailed: There is no such bucket.
        AccessRefused: We may not write there.
        StoreFailed: The store fails.
    """
    if os.environ.get(UNLOCKED_VARIABLE, "").lower() in ("1", "true"):
        yield
        return
    alone = join_address(folder, f".{base}{_SUFFIX}")
    holder = LockHolder.me()
    own = f"{alone}.{holder.token}" if shared else alone
    _own_tokens.add(holder.token)
    try:
        with write_conflicts(folder):
            lease = Lease(own, holder, _acquire(own, holder))
    except BaseException:
        _own_tokens.discard(holder.token)
        raise
    try:
        _check_other_locks(folder, base, alone, shared=shared)
        _held_leases.setdefault(folder, []).append(lease)
        try:
            yield
        finally:
            _held_leases[folder].remove(lease)
    except AccessRefused:
        lease.leave()
        raise
    finally:
        lease.end()
        _own_tokens.discard(holder.token)


def check_held(folder: str) -> None:
    """See that this process has lost no lock of a folder.

    Raises:
        OutputExists: It has.
        AccessRefused: The store does not let us in any more.
    """
    for lease in _held_leases.get(folder, ()):
        lease.check()


def _acquire(address: str, holder: LockHolder) -> str:
    """Make or take over a lock; return the version of its object."""
    for _ in range(_MAX_TRIES):
        try:
            version = _write_lock(address, holder, "")
        except FileExistsError:
            found = _read_lock(address)
        else:
            check_conditional_writes(address, holder.encode(1))
            return version
        if found is None:  # it went meanwhile
            continue
        if not found.is_over or not found.version:
            raise _locked_error(address, found)
        with suppress(FileExistsError):
            return _write_lock(address, holder, found.version)
    raise OutputExists(display_address(address), "another run has just taken the lock", remedy="Wait for it to end.")


def check_conditional_writes(address: str, data: bytes, version: str = "") -> None:
    """See that the store does not write an object on a condition that does not hold; where it does, that is removed.

    Args:
        address: An object that is there.
        data: What would be written.
        version: One that it had before; empty: the condition is that nothing is there.

    Raises:
        InvalidRequest: It writes it all the same.
    """
    try:
        put_object(address, data, version)
    except FileExistsError:
        return
    _remove_lock(address)
    did, header = ("replaces one that has changed", "If-Match") if version else ("makes one twice", "If-None-Match")
    found = f"the store writes an object though a condition does not hold: it {did}"
    remedy = f"If no other run writes here at the same time, set {UNLOCKED_VARIABLE}=1: then there is no lock."
    expected = f"a store that keeps conditions ({header}), for two runs must not write one dataset"
    raise InvalidRequest(display_address(address), found, expected=expected, remedy=remedy)


def _check_other_locks(folder: str, base: str, alone: str, *, shared: bool) -> None:
    """Refuse to hold a lock beside one who must be alone; of those who share, what dead ones left is removed."""
    if shared:
        others = [alone]
    else:
        others = [
            join_address(folder, one.name) for one in list_objects(folder) if one.name.startswith(f".{base}{_SUFFIX}.")
        ]
    for other in others:
        found = _read_lock(other)
        if found is not None and not found.is_over:
            raise _locked_error(other, found)
        if found is not None and not shared:
            _remove_lock(other)


def _write_lock(address: str, holder: LockHolder, expected: str, renewals: int = 0) -> str:
    """Write a lock; return its version. What failed may have been done all the same: then it is ours."""
    try:
        return put_object(address, holder.encode(renewals), expected)
    except FileExistsError:
        found = _read_lock(address)
        if found is None or found.holder.token != holder.token:
            raise
        return found.version


def _read_lock(address: str) -> _ExistingLock | None:
    """Return the lock that is there; None: there is none."""

    def once() -> _ExistingLock:
        with closing(request_object(address)) as answer, urllib3_errors(address):
            data = answer.read(_MAX_LOCK_BYTES)
        if len(data) < min(content_length(answer) or 0, _MAX_LOCK_BYTES):
            raise TransientError("the answer ends early", answered=True)
        return _ExistingLock(parse_holder(data), object_version(address, answer.headers), object_age_s(answer.headers))

    with suppress(FileNotFoundError):
        return with_retries(display_address(address), once)
    return None


def _locked_error(address: str, found: _ExistingLock) -> OutputExists:
    what = f"another run is writing this dataset: {found.holder.who}, since {found.holder.since}"
    left = LEASE_S if found.age_s is None else max(1, LEASE_S - int(found.age_s))
    remedy = f"Wait for it to end, or write elsewhere. If it was killed, its lock ends by itself in {left} seconds."
    return OutputExists(display_address(address), what, remedy=remedy)


def _remove_lock(address: str) -> None:
    delete_objects(address, [parse_address(address).key])


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return f"user {os.getuid()}"


def _machine_id() -> str:
    """Return what tells this machine and its processes from all others until it starts again; empty: unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return blake2b(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode(), digest_size=12).hexdigest()
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Return when a process of this machine was born; empty: it is not there, or that is not known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if state in (b"Z", b"X") else fields[18].decode()
