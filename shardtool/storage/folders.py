"""Where a run's output goes: a folder of a file system, or what lies under a prefix of a store.

Under a prefix there are no temporary names: a shard is one PUT of a worker, visible when it ends, and small files are
held until they are published. Whoever publishes must hold the lock.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import time
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import RawIOBase
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

from shardtool.errors import Bug, CorruptShard, InvalidRequest, OutputFailed, ShardError, StoreFailed, reason
from shardtool.fingerprint import crc32c
from shardtool.storage import places
from shardtool.storage.remote import retry
from shardtool.storage.remote.address import STORES, WEB, is_source, is_url, join, parse_address, refuse_near_url, shown
from shardtool.storage.remote.blob import Blob, Line, connections_to, peer_of, read_whole, stored_crc, stored_md5
from shardtool.storage.remote.lock import check_held, locked
from shardtool.storage.remote.stores import copy_in_bucket, delete, listed, object_headers, put, signed, signed_put
from shardtool.storage.staging import DurableFile, FileFact, Folder, Sink, StagedFile, check_local, written
from shardtool.values import BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from typing_extensions import Buffer
    from urllib3.connection import HTTPConnection

Made = TypeVar("Made")

# A large object is written by one signed PUT whose length is known before: visible when it ends, and whole or not.
#
# Bytes are pushed into the connection as they are made, so that nothing is held, and a process that is killed leaves
# nothing: an answer comes only after all bytes. What is made here takes part in no other request, and works in a forked
# child (decision 017). What failed is made again from its start, for bytes that were pushed are gone.


LARGEST = 5 * 10**9  # bytes of one PUT: S3 takes 5 GiB, Azure 5000 MiB
_TLS_PORT = 443
_GO_ON_S = 1  # that a server has to refuse before the body is sent; some do not know what they are asked
_LINE = 65536
_MOST_REFUSED = 2**18  # bytes of an answer before the body
_STATUS = re.compile(rb"^HTTP/1\.[01] (\d{3})\b")


class Shorter(Exception):
    """Fewer bytes came than were announced: the size has to be found out before."""


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def upload(address: str, size: int, fill: Callable[[Upload], Made]) -> Made:
    """Write an object of a known size, and return what `fill`, which makes its bytes, has returned.

    Args:
        address: Where.
        size: Its bytes, `LARGEST` at most.
        fill: Gets the upload, and writes to it; again from the start where the connection was lost.

    Raises:
        Shorter: `fill` wrote less; nothing is there.
        OutputFailed: There is no such bucket.
        AccessRefused: We may not.
        StoreFailed: It failed time and again.
    """
    attempts = retry.Attempts(shown(address))
    while True:
        begun = False
        try:
            with Upload(address, size) as one:
                begun = True
                made = fill(one)
                one.finish()
                return made
        except retry.PassingFailure as error:
            if begun:
                attempts.later(error.stalled_s)
            attempts.failed(error)


class Upload(AbstractContextManager["Upload"]):
    """An object being written, to be used in a `with` block; one that is left before `finish` is never there."""

    def __init__(self, address: str, size: int) -> None:
        self._address, self._size, self._left = address, size, size
        self._md5, self._crc = hashlib.md5(usedforsecurity=False), 0
        told = {"Content-Type": "application/octet-stream", **object_headers(address)}
        if parse_address(address).scheme == "az":
            told["x-ms-blob-type"] = "BlockBlob"
        self._url, self._headers = signed_put(address, told)
        self._connection, target, headers = _connection(self._url)
        try:
            self._begin(target, headers)
        except BaseException:
            self._connection.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def write(self, data: memoryview | bytes) -> None:
        """Append `data`, all of it.

        Raises:
            PassingFailure: The connection is lost.
            AccessRefused: The store does not take it.
            StoreFailed: It fails.
        """
        size = len(data)
        if size > self._left:
            raise Bug(shown(self._address), f"more than the {self._size:,} bytes that were planned")
        self._md5.update(data)
        self._crc = crc32c(data, self._crc)
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._line.write(rest) :]
        except OSError:
            raise self._stopped() from None
        self._left -= size

    def finish(self) -> None:
        """Wait for the answer, and see that the store has what was sent.

        Raises:
            Shorter: Bytes are missing.
            PassingFailure: The connection is lost, or the store has other bytes.
            AccessRefused: The store does not take it.
            StoreFailed: It fails.
        """
        if self._left:
            raise Shorter
        answer = self._answered()
        _check(self._address, answer)
        self._compare(answer.headers)

    def _begin(self, target: str, headers: Mapping[str, str]) -> None:
        """Send the headers, and give the server time to refuse.

        Raises:
            PassingFailure: There is no connection.
            AccessRefused: The store does not let us.
            StoreFailed: It takes no object here.
        """
        connection = self._connection
        try:
            with retry.answering(self._address, self._url):
                connection.connect()
            connection.putrequest("PUT", target)
            size = {"User-Agent": "shardtool", "Content-Length": str(self._size), "Expect": "100-continue"}
            for name, value in {**headers, **self._headers, **size}.items():
                connection.putheader(name, value)
            connection.endheaders()
        except OSError:
            raise retry.PassingFailure("the connection was lost") from None
        self._line, peer = Line(connection.sock, peer_of(connection)), peer_of(connection)
        if (answer := _refusal(Line(connection.sock, peer, _GO_ON_S))) is not None:
            _check(self._address, answer)
            raise retry.PassingFailure("the store answered before it had the object")

    def _answered(self) -> _Answer:
        """Return what the server answers to the whole."""
        from http.client import HTTPConnection, HTTPException  # here, for it takes 10 ms: most outputs are folders

        from urllib3 import HTTPHeaderDict

        try:
            answer = HTTPConnection.getresponse(self._connection)
            body = answer.read(_LINE)
        except (OSError, ValueError, HTTPException):
            raise retry.PassingFailure("no answer, once all was sent") from None
        return _Answer(answer.status, HTTPHeaderDict(answer.headers.items()), body)

    def _stopped(self) -> Exception:
        """Return why a server takes no more: its answer where there is one."""
        try:
            answer = self._answered()
            _check(self._address, answer)
        except retry.PassingFailure:
            return retry.PassingFailure("the connection was lost")
        except (ShardError, OSError) as error:
            return error
        return retry.PassingFailure("the store answered before it had the object")

    def _compare(self, headers: Mapping[str, str]) -> None:
        """See that the store has what was sent: by its checksum, or where that is another kind, by reading it."""
        if stored_md5(headers) == self._md5.hexdigest():
            return
        with suppress(OSError):  # it is not there, or another already
            if places.file_crc(self._address) == (self._size, self._crc):
                return
        raise retry.PassingFailure("the store has other bytes than were sent")


def _connection(url: str) -> tuple[HTTPConnection, str, Mapping[str, str]]:
    """Return a connection that leads to the server of a signed address, not made yet; what to ask for, and headers."""
    pool: Any = connections_to(url).connection_from_url(url)
    connection: HTTPConnection = pool._new_conn()  # noqa: SLF001 - one of its own, by the rule for all requests
    server, proxy = urlsplit(url), pool.proxy
    if proxy is not None and server.scheme == "http":
        return connection, url, pool.proxy_headers
    if proxy is not None:
        connection.set_tunnel(server.hostname or "", server.port or _TLS_PORT, pool.proxy_headers, proxy.scheme)
    return connection, f"{server.path}?{server.query}" if server.query else server.path, {}


def _refusal(line: Line) -> _Answer | None:
    """Return a server's answer where it refuses before the body; None: it wants it, or says nothing for a while.

    http.client takes `100 Continue` for nothing, and goes on to wait for the answer.
    """
    from http.client import HTTPException, parse_headers

    from urllib3 import HTTPHeaderDict

    line.most = _MOST_REFUSED
    try:
        [status] = map(int, _STATUS.findall(line.readline(_LINE)))
        headers = HTTPHeaderDict(parse_headers(line).items())
        body = line.read(max(0, min(_LINE, int(headers.get("Content-Length", "0"))))) or b""
    except TimeoutError:  # before the first byte: later, `Line` says what is too slow
        return None
    except (OSError, ValueError, HTTPException):
        raise retry.PassingFailure("the connection was lost") from None
    return None if status == HTTPStatus.CONTINUE else _Answer(status, headers, body)


def _check(address: str, answer: _Answer) -> None:
    if answer.status in (HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT):
        raise StoreFailed(shown(address), "redirected", remedy=retry.WRONG_PLACE)
    if answer.status not in (HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT):
        with retry.writing(address):
            raise retry.refusal(address, "PUT", *answer)


# The folder, and what is held or packed for it.


_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A prefix of a store that is written to. A plain value: it may travel to a worker.

    Attributes:
        path: Its address.
    """

    path: str
    hides: ClassVar[bool] = False
    largest: ClassVar[int | None] = LARGEST

    @property
    def temporary(self) -> Folder:
        """The folder for temporary files of those who write here."""
        from tempfile import gettempdir

        return Folder(gettempdir())

    def ready(self) -> None:
        """Do nothing: a prefix needs not be made."""

    def names(self) -> list[str]:
        """Return the names of all that lies directly under the prefix.

        Raises:
            StoreFailed: It cannot be listed.
        """
        return [*self._listed()]

    def facts(self, names: Iterable[str]) -> dict[str, FileFact]:
        """Return the facts of those of `names` that are there; times are whole seconds of the store's clock.

        No time of ours is whole, so that none of these is ever taken for one: a store's clock proves nothing. Of a
        single name nothing is listed, and its time is 0.

        Raises:
            StoreFailed: The store cannot be asked.
        """
        wanted = [*names]
        if len(wanted) > 1:
            there = self._listed()
            return {name: there[name] for name in wanted if name in there}
        with suppress(FileNotFoundError):
            return {name: FileFact(Blob(self.full_path(name)).size, 0) for name in wanted}
        return {}

    def stage(self, name: str) -> StagedObject:
        """Start a file that will be called `name`, whose size is not known: a temporary one, until it is whole.

        Raises:
            OutputFailed: There is no room for temporary files.
        """
        return StagedObject(self, name)

    def stage_whole(self, name: str, data: bytes) -> DurableFile:
        """Hold a small file that will be called `name`."""
        return DurableFile(name, "", data)

    def write(
        self, name: str, fill: Callable[[Sink], Made], size: int | None, _mtime_ns: int, /
    ) -> tuple[Made, DurableFile]:
        """Write a file, which is visible then; return what `fill`, which writes it, has returned, and the file.

        Args:
            name: Its name.
            fill: Writes it; it may be called again.
            size: How many bytes it will have; None: that is not known, and it goes into a temporary file first.
            _mtime_ns: Of no use here: the store says when an object was written.

        Raises:
            OutputFailed: It cannot be written.
            StoreFailed: The store fails time and again, or does not let us.
        """
        where = self.full_path(name)
        if size is not None:
            with suppress(Shorter):
                return upload(where, size, fill), DurableFile(name, "")
        with self.stage(name) as file:
            return fill(file), file.finish()

    def publish(self, *staged: DurableFile) -> None:
        """Write what is held, in this order.

        Raises:
            OutputExists: The lock is lost.
            OutputFailed: It cannot be written.
            StoreFailed: The store fails time and again, or does not let us.
        """
        for one in staged:
            check_held(self.path)
            if one.data is not None:
                with retry.writing(self.full_path(one.name)):
                    _put(self.full_path(one.name), one.data)

    def set_time(self, name: str, mtime_ns: int) -> None:
        """Do nothing: the store says when an object was written."""

    def discard_staged(self, names: Iterable[str]) -> None:
        """Do nothing: there are no temporary names."""

    def staged_names(self) -> list[str]:
        """Return nothing: there are no temporary names."""
        return []

    def remove(self, names: list[str]) -> None:
        """Remove objects; those that are gone already are no error.

        Raises:
            OutputExists: The lock is lost.
            StoreFailed: The store fails time and again, or does not let us.
        """
        if names:
            check_held(self.path)
            delete(self.path, [parse_address(self.full_path(name)).key for name in names])

    def read(self, name: str) -> bytes:
        """Return a whole object, which must be small.

        Raises:
            OSError: It is not there, or changes while it is read.
            StoreFailed: It cannot be read.
        """
        return places.read_small(self.full_path(name))

    read_staged = read  # nothing is hidden here

    def version(self, name: str) -> str:
        """Return what a store calls an object as it is now, its ETag, which no other bytes have; empty: it has none.

        Raises:
            OSError: It is not there.
            StoreFailed: The store cannot be asked.
        """
        return Blob(self.full_path(name)).version

    def md5(self, name: str) -> str | None:
        """Return the MD5 of an object, as far as the store says it."""
        return md5_there(self.full_path(name))

    def full_path(self, name: str) -> str:
        """Return the address of `name`."""
        return join(self.path, name)

    def free_bytes(self) -> int | None:
        """Return how many more bytes fit: any number."""
        return None

    def lock(self, base: str, *, shared: bool = False) -> AbstractContextManager[None]:
        """Hold the lock of the dataset `base` under this prefix.

        Args:
            base: The dataset's name.
            shared: Others may hold it with us, unless they want it alone.

        Raises:
            OutputExists: Another run holds it.
            OutputFailed: There is no such bucket.
            InvalidRequest: The store does not keep conditions.
            StoreFailed: It fails, or does not let us.
        """
        return locked(self.path, base, shared=shared)

    def _listed(self) -> dict[str, FileFact]:
        """Return what lies directly under the prefix."""
        found = {}
        with suppress(FileNotFoundError):
            for one in listed(self.path):
                changed = one.changed_ns // _SECOND_NS * _SECOND_NS
                found[one.name] = FileFact(one.size, changed, "a folder" if one.is_folder else "")
        return found


def md5_there(address: str) -> str | None:
    """Return the MD5 of what lies at an address, as far as its server says it by an ETag.

    Raises:
        AccessRefused: We may not ask.
        StoreFailed: It cannot be asked.
    """
    try:
        return stored_md5({"ETag": places.open_blob(address).version})
    except FileNotFoundError:
        return None


def _put(where: str, data: bytes) -> None:
    """Write a small object, and see that the store has it: by its checksum, or where that is another kind, by reading.

    Raises:
        StoreFailed: The store fails time and again, or does not let us.
    """
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()

    def once() -> None:
        if (
            stored_md5({"ETag": put(where, data, lasting=True)}) != md5
            and read_whole(where, lambda size: size == len(data))[0] != data
        ):
            raise retry.PassingFailure("the store has other bytes than were sent")

    retry.retried(shown(where), once)


class StagedObject(StagedFile):
    """What a shard of an unknown size is packed into: a temporary file without a name, which ends with the process."""

    def __init__(self, folder: RemoteFolder, name: str) -> None:
        from tempfile import TemporaryFile

        self._folder, self._name, self.path = folder, name, ""
        self._where, self._failed = "a temporary file", _no_room
        with written(self._where, _no_room), TemporaryFile() as file:
            self._fd = os.dup(file.fileno())

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def sync(self) -> None:
        """Do nothing: no disk keeps it."""

    def finish(self, _mtime_ns: int | None = None) -> DurableFile:
        """Write the object, which is visible then.

        Raises:
            OutputExists: The lock is lost.
            OutputFailed: It cannot be written.
            StoreFailed: The store fails time and again, or does not let us.
        """
        check_held(self._folder.path)
        upload(self._folder.full_path(self._name), self.size, self._copy)
        self.abandon()
        return DurableFile(self._name, "")

    def _copy(self, to: Sink) -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)
        for block in places.LocalFile(self._fd).blocks(memoryview(bytearray(BLOCK))):
            to.write(block)


def _no_room(what: str, error: OSError) -> OutputFailed:
    from tempfile import gettempdir

    found = f"cannot write {what}: {reason(error)}"
    remedy = "Set TMPDIR to a folder with room for a shard per worker, or for a plan file."
    return OutputFailed(gettempdir(), found, remedy=remedy)


# A folder of either kind.


OutputFolder: TypeAlias = Folder | RemoteFolder  # plain values, which travel to workers


def open_folder(path: str) -> OutputFolder:
    """Return the output folder that a path or an address means.

    Raises:
        InvalidRequest: It is an address that cannot be written to, or a path that looks like a torn one.
    """
    if not is_url(path):
        refuse_near_url(path)
        return Folder(path)
    at = parse_address(path)
    if at.scheme not in STORES:
        expected = "a folder, or an address in a store: s3://, gs://, az://"
        where = "a server of the web" if at.scheme in WEB else "a place that is only read"
        raise InvalidRequest(path, f"{where}, where nothing can be written", expected=expected)
    if any(part in ("", ".", "..") for part in at.key.rstrip("/").split("/") if at.key):
        raise InvalidRequest(path, "a name with an empty part, or . or ..", expected="names without `//` and `/../`")
    object_headers(path)  # which the store can be told
    return RemoteFolder(path)


# A file that a user names, by itself.


class TargetFile(RawIOBase):
    """A file being written, as libraries want one; once it could not be written, nothing more is."""

    def __init__(self, file: StagedFile) -> None:
        self._file, self._failed = file, False

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Append bytes.

        Raises:
            OutputFailed: They cannot be written.
        """
        view = memoryview(data)
        if not self._failed:
            self._failed = True
            self._file.write(view)
            self._failed = False
        return view.nbytes

    def tell(self) -> int:
        """Return how many bytes there are."""
        return self._file.size

    def written(self) -> IO[bytes]:
        """Return what was written, to be read; close it before more is written."""
        return os.fdopen(os.dup(self._file.fileno()), "rb")


@contextmanager
def target_file(path: str) -> Iterator[TargetFile]:
    """Give the file that appears at a path or an address, whole, where the block ends without an error.

    Raises:
        OutputFailed: It cannot be written.
        StoreFailed: The store fails time and again, or does not let us.
    """
    folder = open_folder(places.folder_of(path))
    folder.ready()
    with folder.stage(places.base_name(path)) as file:
        yield TargetFile(file)
        folder.publish(file.finish())


def write_target(path: str, data: bytes) -> None:
    """Make a file appear at a path or an address, whole.

    Raises:
        OutputFailed: It cannot be written.
        StoreFailed: The store fails time and again, or does not let us.
    """
    with target_file(path) as file:
        file.write(data)


def open_mappable(path: str, begins: bytes) -> IO[bytes]:
    """Return a plain file as one of this machine: of an object, a temporary file without a name with its bytes.

    Args:
        path: Where it is.
        begins: How an object must begin, or no more of it is fetched.

    Raises:
        InvalidRequest: It is a path that looks like a torn address.
        OSError: It cannot be opened or read, is no plain file, or does not begin so.
        OutputFailed: There is no room for it.
        ShardError: The machine, a store or a server fails.
    """
    if not is_url(path):
        refuse_near_url(path)
        return os.fdopen(places.open_plain(path)[0], "rb")
    folder, name = RemoteFolder(places.folder_of(path)), places.base_name(path)
    with StagedObject(folder, name) as file, places.open_file(path) as source:
        for block in source.blocks(memoryview(b"")):  # read in order, which servers without ranges can do, too
            if not file.size and block[: len(begins)] != begins[: len(block)]:
                raise OSError(errno.EINVAL, "not what its name says", path)
            file.write(block)
        return TargetFile(file).written()


def check_name(path: str, such_as: str) -> None:
    """Refuse what is no name of a file here or in a store.

    Raises:
        InvalidRequest: It is such.
    """
    if is_url(path) and places.base_name(path):
        open_folder(places.folder_of(path))  # which refuses where nobody can write
    else:
        check_local(path, such_as)


def check_there(folder: OutputFolder, sizes: Mapping[str, int], remedy: str) -> None:
    """See, by a listing, that a store still has what it was given: others may have removed something meanwhile.

    Args:
        folder: A folder; of a file system nothing is looked at.
        sizes: The bytes of each file, by its name.
        remedy: What to do where one is missing.

    Raises:
        OutputFailed: One is not there, or has another size.
    """
    if folder.hides:
        return
    there = folder.facts(sizes)
    for name, size in sizes.items():
        fact = there.get(name)
        if fact is None or fact.size != size:
            found = "not there" if fact is None else f"{fact.size:,} bytes"
            expected = f"{size:,} bytes, which the store has taken"
            raise OutputFailed(folder.full_path(name), found, expected=expected, remedy=remedy)


# Copies that a store makes of its own objects: no byte of them comes through this machine.
#
# Strategy: one request for an object, on the condition that it is the one that was looked at, made again as any other
# is. Where it is refused, or does not pass, the caller reads and writes the object instead. What a store says of a copy
# is a CRC-32C where it has one: Google's always, S3 where it is asked to take it. Sources: "CopyObject" of the S3 API,
# "Copy Blob From URL" and "Put Blob From URL" of Azure's.


_SMALL = 2**28  # bytes of a blob that "Copy Blob From URL" takes at most
_SLOWEST = 10**7  # bytes a second that are copied, while a store is silent
_MORE_S = 30.0  # after a silence, in which it is asked again: no longer, for another way is there
_CRC = re.compile(rb"<ChecksumCRC32C>([A-Za-z0-9+/]{6}==)</ChecksumCRC32C>")


class NotCopied(Exception):
    """A store has not made a copy; as a text, why it will make none of others either, or nothing where it may."""


def is_one_store(source: str, where: str) -> bool:
    """Tell whether one store has two places, and can be asked to copy from the one to the other."""
    if not (is_url(source) and is_url(where)) or is_source(source):
        return False
    one, other = parse_address(source), parse_address(where)
    return one.scheme == other.scheme in STORES and (one.scheme != "gs" or one.host == other.host)


def store_copy(source: str, where: str, size: int, crc: int) -> int | None:
    """Have a store copy an object; return the CRC-32C that it says of the copy, or None where it says none.

    Args:
        source: The object, in the store of `where`.
        where: The copy, which takes the place of what is there.
        size: Bytes that the object should have.
        crc: CRC-32C that it should have: where the store knows another before, nothing is copied.

    Raises:
        NotCopied: It has not.
    """
    least, over_s = retry.least_speed()
    over_s = max(over_s, size / _SLOWEST)
    policy = retry.Policy(whole_s=min(retry.retry_for(), over_s + _MORE_S), least=least, over_s=over_s)
    try:
        with retry.under(policy):
            if parse_address(source).scheme != "gs":
                return retry.retried(shown(where), lambda: _asked_for_copy(source, where, size))
            if stored_crc(source) == crc:
                copy_in_bucket(source, where)
                return stored_crc(where)
    except StoreFailed as error:
        raise NotCopied(error.found) from None
    except OSError:  # it is not there, or another one by now
        pass
    raise NotCopied


def _asked_for_copy(source: str, where: str, size: int) -> int | None:
    blob = Blob(source)
    if blob.size != size:
        raise NotCopied
    url, headers = signed_put(where, _headers(source, where, blob))
    with retry.answering(where, url):
        answer = connections_to(url).request(
            "PUT", url, headers=headers, preload_content=False, redirect=False, retries=False
        )
        with closing(answer):
            body = answer.read(_LINE)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - of HTTP
        raise retry.refusal(where, "PUT", answer.status, answer.headers, body)
    if b"<Error>" in body:  # S3 says that it copies before it has
        raise NotCopied
    found = _CRC.search(body)
    return int.from_bytes(base64.b64decode(found[1]), "big") if found else None


def _headers(source: str, where: str, blob: Blob) -> dict[str, str]:
    at, told = parse_address(source), object_headers(where)
    if at.scheme == "az":
        how = {"x-ms-requires-sync": "true"} if blob.size <= _SMALL else {"x-ms-blob-type": "BlockBlob"}
        return {"x-ms-copy-source": signed(source, "GET"), "x-ms-source-if-match": blob.version, **how, **told}
    if "x-amz-tagging" in told:
        told["x-amz-tagging-directive"] = "REPLACE"  # only here: R2 knows nothing of it
    return {
        "x-amz-copy-source": quote(f"/{at.host}/{at.key}"), "x-amz-copy-source-if-match": blob.version,
        "x-amz-checksum-algorithm": "CRC32C", "x-amz-metadata-directive": "REPLACE",
        "Content-Type": "application/octet-stream", **told,
    }  # fmt: skip


# A file is copied, and checked on the way: what appears has the bytes that its index says, or nothing appears.


class Original(NamedTuple):
    """A file that may be copied.

    Attributes:
        path: Where it is: a path or an address.
        size: Its bytes.
        crc: CRC-32C of the file; None: no index says it.
        name: What its copy is called.
    """

    path: str
    size: int
    crc: int | None
    name: str

    def check(self, size: int, crc: int) -> None:
        """See that bytes of this number and checksum are its own, as far as that is known.

        Raises:
            CorruptShard: They are others.
        """
        if size != self.size or self.crc not in (None, crc):
            found = f"{size:,} bytes with the checksum {crc:08x}"
            expected = f"{self.size:,} bytes" + ("" if self.crc is None else f" with {self.crc:08x}")
            raise CorruptShard(self.path, found, expected=expected)


def checked_copy(
    folder: OutputFolder, original: Original, took: Callable[[int], None] = lambda _: None, *, keep_time: bool = False
) -> DurableFile:
    """Write a copy of a file that has the bytes that its index says; where files are hidden, it is staged.

    The last block is written only where the checksum of all is right: an object of a store appears with its last byte.

    Args:
        folder: Where the copy goes.
        original: What is copied.
        took: Called with the bytes of each block.
        keep_time: Whether the modification time of a local file becomes that of its copy.

    Raises:
        CorruptShard: It has other bytes, also when it is read again.
        OutputFailed: The copy cannot be written.
        OSError: It cannot be read.
        ShardError: A store or a server cannot be asked.
    """
    keeps = keep_time and not is_url(original.path)
    mtime_ns = os.stat(original.path).st_mtime_ns if keeps else time.time_ns()

    def fill(file: Sink) -> None:
        size = crc = 0
        for block in places.blocks_of(original.path):
            size, crc = size + len(block), crc32c(block, crc)
            if size >= original.size:
                original.check(size, crc)
            file.write(block)
            took(len(block))
        original.check(size, crc)

    with suppress(CorruptShard):  # a network file system may return other bytes once
        return folder.write(original.name, fill, original.size, mtime_ns)[1]
    return folder.write(original.name, fill, original.size, mtime_ns)[1]


def copy_inside(
    folder: OutputFolder, original: Original, took: Callable[[int], None] = lambda _: None
) -> DurableFile | None:
    """Have a store copy a file that lies in it, and see that the copy has the bytes that its index says.

    The store says the checksum of the copy; where it does not, the copy is read. One with other bytes, which is there
    until that is known, is removed.

    Args:
        folder: Where the copy goes.
        original: What is copied.
        took: Called with the bytes of what was copied, or of each block that was read.

    Returns:
        The copy; None: there is none, and `checked_copy` may make it.

    Raises:
        NotCopied: The store has made none.
        OutputExists: The lock is lost.
        ShardError: The store cannot be asked.
    """
    where = folder.full_path(original.name)
    if original.crc is None or not is_one_store(original.path, where):
        return None
    check_held(folder.path)
    crc = store_copy(original.path, where, original.size, original.crc)
    if crc == original.crc:
        took(original.size)
    elif crc is None:
        with suppress(OSError):  # it is not there
            crc = places.file_crc(where, took)[1]
    if crc == original.crc:
        return DurableFile(original.name, "")
    folder.remove([original.name])
    return None
