"""Lock a dataset in an object store. A lock is an object that names the process that holds the lock.

The holder renews the lock regularly. Another process can take over the lock if the holder has not renewed it for
`LEASE_S` seconds by the store's clock. On the holder's machine, a process can take over the lock as soon as the holder
has exited. Locks are created and taken over with conditional writes (docs/decisions/019-writing-to-stores.md).

A process creates its lock before it checks for conflicting locks. Of two conflicting processes, at least one therefore
finds the other's lock.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from secrets import token_hex
from typing import NamedTuple

from shardtool.errors import AccessRefused, InvalidRequest, OutputExists, ShardError, os_error_text, printable
from shardtool.storage.remote.address import display_address, join_address, parse_address
from shardtool.storage.remote.buckets import delete_objects, list_objects, object_version, put_object
from shardtool.storage.remote.failures import urllib3_errors, write_errors
from shardtool.storage.remote.http import content_length, request_object
from shardtool.storage.remote.notices import warn
from shardtool.storage.remote.retry import RequestCancelled, TransientError, with_retries

LEASE_S = 300
_RENEW_INTERVAL_S = 45
# This variable disables all locks, for stores without conditional writes.
UNLOCKED_VARIABLE = "SHARDTOOL_UNLOCKED"
_END_TIMEOUT_S = 10
_SUFFIX = ".lock"
_MAX_LOCK_BYTES = 4096
_MAX_TRIES = 3
_LOCK_REMAINS_ADVICE = (
    "{}: cannot delete the lock of this run: {}. Delete the object (this requires permission to read and delete), or "
    "wait {:.0f} seconds before the next run."
)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # BOOTTIME also counts while the machine sleeps
_held_leases: dict[str, list[Lease]] = {}
_own_tokens: set[str] = set()


class LockHolder(NamedTuple):
    """The process that holds a lock.

    Attributes:
        machine: Identifies a machine until its next boot, or "" if unknown.
        born: Start time of the process, from the kernel.
    """

    who: str
    since: str
    token: str
    machine: str
    pid: int
    born: str

    @classmethod
    def for_this_process(cls) -> LockHolder:
        """Return a new holder for this process."""
        who = f"{_user_name()}@{socket.gethostname()}, process {os.getpid()}"
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        return cls(who, since, token_hex(8), _machine_id(), os.getpid(), _process_start(os.getpid()))

    def encode(self, renewals: int = 0) -> bytes:
        """Return the content of the lock.

        `renewals` must increase, because a store may give the same version to equal content.
        """
        return json.dumps({"shardtool lock": 1, **self._asdict(), "renewals": renewals}).encode() + b"\n"

    def has_exited(self) -> bool:
        """Return whether the holder was a process on this machine that has exited or released the lock."""
        if not self.machine or self.machine != _machine_id():
            return False
        return _process_start(self.pid) != self.born or (self.pid == os.getpid() and self.token not in _own_tokens)


def parse_holder(data: bytes) -> LockHolder:
    """Return the holder that a lock names, or an unknown holder if the content is invalid."""
    try:
        fields = json.loads(data)
        text_names = ("who", "since", "token", "machine")
        who, since, token, machine = (printable(str(fields[name])[:200]) for name in text_names)
        return LockHolder(who, since, token, machine, int(fields["pid"]), str(fields["born"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return LockHolder("an unknown process", "an unknown time", "", "", 0, "")


def object_age_s(headers: Mapping[str, str]) -> float | None:
    """Return the age of an object in seconds by the store's clock, or None if unknown."""
    from email.utils import parsedate_to_datetime

    try:
        now, modified = (parsedate_to_datetime(headers[name]).timestamp() for name in ("Date", "Last-Modified"))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return now - modified


class _ExistingLock(NamedTuple):
    holder: LockHolder
    version: str
    age_s: float | None

    @property
    def is_free(self) -> bool:
        return self.holder.has_exited() or (self.age_s is not None and self.age_s > LEASE_S)


class Lease:
    """A lock that a thread renews until `release`. After the lock is lost, `lost` is the error that `check` raises."""

    def __init__(self, address: str, holder: LockHolder, version: str) -> None:
        self._address, self._holder, self._version = address, holder, version
        self.lost: ShardError | None = None
        self._renewals, self._renewed_s, self._renewal_lock = 0, _now(), threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_periodically, name="shardtool-lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise `lost` if the lock was lost, for example while the process was suspended."""
        if self.lost is None and self._is_overdue():
            self._renew()
        if self.lost is None and self._is_overdue():
            found = "the lock could not be renewed in time"
            self.lost = OutputExists(display_address(self._address), found, remedy="Run the same command again.")
        if self.lost is not None:
            raise self.lost

    def abandon(self) -> None:
        """Stop renewing the lock. Call this if the store denies access."""
        self._ended.set()

    def release(self) -> None:
        """Delete the lock."""
        # a forked child must not delete the lock of its parent
        if self._ended.is_set() or self._holder.pid != os.getpid():
            return
        self._ended.set()
        self._thread.join(_END_TIMEOUT_S)
        if self.lost is not None:
            return
        try:
            lock = _read_lock(self._address)
            if lock is not None and lock.holder.token == self._holder.token:
                _remove_lock(self._address)
        except RequestCancelled:
            pass
        except (ShardError, OSError) as error:  # only warn, because the output is complete
            reason = error.found if isinstance(error, ShardError) else os_error_text(error)
            warn(_LOCK_REMAINS_ADVICE.format(display_address(self._address), reason, LEASE_S))

    def _renew_periodically(self) -> None:
        with suppress(RequestCancelled):
            while self.lost is None and not self._ended.wait(_RENEW_INTERVAL_S):
                self._renew()

    def _is_overdue(self) -> bool:
        return _now() - self._renewed_s > LEASE_S - _RENEW_INTERVAL_S

    def _renew(self) -> None:
        with self._renewal_lock:
            self._renewals, start_s = self._renewals + 1, _now()
            try:
                self._version = _write_lock(self._address, self._holder, self._version, self._renewals)
                self._renewed_s = start_s
            except FileExistsError:
                found = "another run has taken over the lock, because this run did not renew it in time"
                remedy = "Make sure that only one run writes this dataset."
                self.lost = OutputExists(display_address(self._address), found, remedy=remedy)
            except AccessRefused as error:
                self.lost = error
            except ShardError:
                pass
            except OSError as error:
                found = f"the lock cannot be renewed: {os_error_text(error)}"
                self.lost = OutputExists(display_address(self._address), found, remedy="Run the same command again.")


@contextmanager
def hold_lock(folder: str, base: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of the dataset `base` during the `with` block. Several runs can hold `shared` locks together."""
    if os.environ.get(UNLOCKED_VARIABLE, "").lower() in ("1", "true"):
        yield
        return
    exclusive = join_address(folder, f".{base}{_SUFFIX}")
    holder = LockHolder.for_this_process()
    address = f"{exclusive}.{holder.token}" if shared else exclusive
    _own_tokens.add(holder.token)
    try:
        with write_errors(folder):
            lease = Lease(address, holder, _create_or_take_over(address, holder))
    except BaseException:
        _own_tokens.discard(holder.token)
        raise
    try:
        _check_other_locks(folder, base, exclusive, shared=shared)
        _held_leases.setdefault(folder, []).append(lease)
        try:
            yield
        finally:
            _held_leases[folder].remove(lease)
    except AccessRefused:
        lease.abandon()
        raise
    finally:
        lease.release()
        _own_tokens.discard(holder.token)


def check_held(folder: str) -> None:
    """Raise `OutputExists` or `AccessRefused` if this process has lost its lock in a folder."""
    for lease in _held_leases.get(folder, ()):
        lease.check()


def _create_or_take_over(address: str, holder: LockHolder) -> str:
    """Create a lock or take over a free one, and return its version."""
    for _ in range(_MAX_TRIES):
        try:
            version = _write_lock(address, holder, "")
        except FileExistsError:
            existing = _read_lock(address)
        else:
            check_conditional_writes(address, holder.encode(1))
            return version
        if existing is None:  # the lock was just released
            continue
        if not existing.is_free or not existing.version:
            raise _locked_error(address, existing)
        with suppress(FileExistsError):
            return _write_lock(address, holder, existing.version)
    raise OutputExists(display_address(address), "another run has just taken the lock", remedy="Wait for it to finish.")


def check_conditional_writes(address: str, data: bytes, version: str = "") -> None:
    """Raise `InvalidRequest` if the store ignores the condition of a conditional write.

    The object must exist, and `version` must be "" or an old version, so a correct store refuses the write.
    """
    try:
        put_object(address, data, version)
    except FileExistsError:
        return
    _remove_lock(address)
    replaced, header = ("a changed object", "If-Match") if version else ("an existing object", "If-None-Match")
    found = f"the store ignores conditional writes: it replaced {replaced}"
    remedy = f"If no other run writes here at the same time, set {UNLOCKED_VARIABLE}=1 to disable the lock."
    expected = f"a store that supports {header}, which keeps two runs from writing one dataset"
    raise InvalidRequest(display_address(address), found, expected=expected, remedy=remedy)


def _check_other_locks(folder: str, base: str, exclusive: str, *, shared: bool) -> None:
    addresses = [exclusive]
    if not shared:
        names = [entry.name for entry in list_objects(folder)]
        addresses = [join_address(folder, name) for name in names if name.startswith(f".{base}{_SUFFIX}.")]
    for address in addresses:
        lock = _read_lock(address)
        if lock is not None and not lock.is_free:
            raise _locked_error(address, lock)
        if lock is not None and not shared:
            _remove_lock(address)


def _write_lock(address: str, holder: LockHolder, expected: str, renewals: int = 0) -> str:
    try:
        return put_object(address, holder.encode(renewals), expected)
    except FileExistsError:
        existing = _read_lock(address)
        if existing is None or existing.holder.token != holder.token:
            raise
        return existing.version


def _read_lock(address: str) -> _ExistingLock | None:
    def request() -> _ExistingLock:
        with closing(request_object(address)) as response, urllib3_errors(address):
            data = response.read(_MAX_LOCK_BYTES)
        if len(data) < min(content_length(response) or 0, _MAX_LOCK_BYTES):
            raise TransientError("the response was cut off", has_response=True)
        version, age_s = object_version(address, response.headers), object_age_s(response.headers)
        return _ExistingLock(parse_holder(data), version, age_s)

    with suppress(FileNotFoundError):
        return with_retries(address, request)
    return None


def _locked_error(address: str, lock: _ExistingLock) -> OutputExists:
    found = f"another run is writing this dataset: {lock.holder.who}, since {lock.holder.since}"
    remaining_s = LEASE_S if lock.age_s is None else max(1, LEASE_S - int(lock.age_s))
    wait = f"If it was killed, its lock expires in {remaining_s} seconds."
    remedy = f"Wait for it to finish, or choose another output. {wait}"
    return OutputExists(display_address(address), found, remedy=remedy)


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
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return blake2b(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode(), digest_size=12).hexdigest()
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, *fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if state in (b"Z", b"X") else fields[18].decode()  # starttime in proc(5)
