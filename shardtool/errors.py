"""Every error that a user can meet: one base, few children, one line each.

An error says where it happened, what was found, what was expected and what to do, and keeps
these apart so that `--json` can print them as data. `PlainError.__reduce__` makes each of them
survive the way out of a worker process. PyTorch's workers hand on a text alone: `PlainError.put_into_text` is for them.

The children of `ShardError` differ in whose fault it is, which the exit code says to a script: the
request's (`InvalidRequest`), the data's (`CorruptShard`, `SampleFailed`), an earlier or a parallel
run's (`OutputExists`), or the machine's and the network's
(`OutputFailed`, `StoreFailed`, `WorkerDied`, `OutOfMemory`). `Bug` is none
of them: what deals with an error of the data must not take a mistake in the code for one.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESS_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_MACHINE_ERRNOS = PROCESS_ERRNOS | {  # not ESTALE: the file, or object, was replaced while it was read
    errno.EIO, errno.EACCES, errno.EPERM, errno.ENODEV, errno.ENOSPC, errno.EDQUOT, errno.ENOTCONN,
    errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ECONNABORTED, errno.ESHUTDOWN,
}  # fmt: skip
FILE_LIMIT_FIX = "Raise the limit of open files (ulimit -n)."
MEMORY_FIX = "Free memory, or raise its limit (ulimit, cgroup)."
_REPORT_BUG = "This is a mistake in shardtool: please report it, with what -v prints."
_MAX_MESSAGE_CHARS = 500  # characters of another library's message
_LOADER_MEMORY_ERRORS = ("cannot allocate memory", "failed to map segment from shared object")
_ARROW_THREAD_ERROR = "Failed to launch worker thread"  # of pyarrow, in an exception without a kind
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_EMBEDDED_FIELDS = re.compile(r"^shardtool-error: (\{.*\})\n?", re.MULTILINE)
_URL_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s]*@")
_URL_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]+", re.IGNORECASE)


def printable(text: str | bytes) -> str:
    r"""Return `text` with what could steer a terminal, or is no UTF-8, written as `\x1b`."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")

    def escape(match: re.Match[str]) -> str:
        char = match[0]
        if "\udc80" <= char <= "\udcff":  # a byte that was no UTF-8
            char = chr(ord(char) - 0xDC00)
        return f"\\x{ord(char):02x}" if char <= "\xff" else f"\\u{ord(char):04x}"

    return _CONTROL_CHARS.sub(escape, text)


def redact_secrets(text: str) -> str:
    """Return a text in which no URL shows a user, a password or a query: each may let others in."""
    return _URL_QUERY.sub(r"\1?...", _URL_CREDENTIALS.sub(r"\1", text)) if "://" in text else text


class PlainError(Exception):
    """The base of all errors, with what every one says.

    Attributes:
        where: The file, sample or option.
        found: What is there.
        expected: What should be there; empty where that is plain.
        remedy: What to do; empty where there is nothing.
        detail: Lines that go below the message, such as a traceback of the user's own function.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, where: str, found: str = "", *, expected: str = "", remedy: str = "", detail: str = "") -> None:
        super().__init__(where, found)
        if not found and (fields := _EMBEDDED_FIELDS.findall(where)):
            import json

            vars(self).update(json.loads(fields[-1]), detail=_EMBEDDED_FIELDS.sub("", where).rstrip())
            return
        if not found:  # the traceback of one that was not put into its text: it ends with what is wrong
            where, found, detail = where.strip().partition("\n")[0], where.strip().rpartition("\n")[2], where
        self.where = redact_secrets(printable(where))
        self.found = redact_secrets(printable(found))
        self.expected = redact_secrets(printable(expected))
        self.remedy = redact_secrets(printable(remedy))
        self.detail = "\n".join(redact_secrets(printable(line)) for line in detail.splitlines())

    def __str__(self) -> str:
        text = f"{self.where or repr('')}: {self.found}"
        if self.expected:
            text += f"; expected {self.expected}"
        if self.remedy:
            text += f". {self.remedy}"
        return f"{text}\n{self.detail}" if self.detail else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_error, (type(self), vars(self))

    def embed_in_text(self) -> None:
        """Have the error's text say all of it: its class called with this text, or with a longer one, is it again."""
        import json

        self.detail = "\n".join([*filter(None, [self.detail]), f"shardtool-error: {json.dumps(vars(self))}"])

    def to_json(self) -> dict[str, object]:
        """Return the error as data, the way `--json` prints it."""
        names = ("code", "exit_code", "where", "found", "expected", "remedy", *(["detail"] if self.detail else []))
        return {name: getattr(self, name) for name in names}


def _rebuild_error(kind: type[PlainError], fields: dict[str, object]) -> PlainError:
    error = kind.__new__(kind, fields["where"], fields["found"])
    vars(error).update(fields)
    return error


class ShardError(PlainError):
    """An error that a user can understand and act upon."""


class InvalidRequest(ShardError):
    """The request makes no sense: an option, a pattern, or a source that cannot become this output."""

    code = "invalid-request"
    exit_code = 2


class UnknownKey(InvalidRequest, KeyError):
    """No sample of a dataset has such a key."""

    code = "unknown-key"


class CorruptShard(ShardError):
    """A shard, sidecar or dataset file is not what its format says.

    Attributes:
        offset: Where in the file, in bytes; None where that is not known.
        problem: What is there, without the place.
    """

    code = "corrupt-shard"
    exit_code = 4

    def __init__(
        self, where: str, found: str = "", *, offset: int | None = None, expected: str = "", remedy: str = ""
    ) -> None:
        shown = found if offset is None else f"at {offset:,}: {found}"
        self.offset, self.problem = offset, printable(found)
        super().__init__(where, shown, expected=expected, remedy=remedy)


class OutputExists(ShardError):
    """The output is there already, or another run is writing it."""

    code = "output-exists"
    exit_code = 5


class SampleFailed(ShardError):
    """Samples could not be read, or changed while they were packed."""

    code = "sample-failed"
    exit_code = 6


class OutputFailed(ShardError):
    """The output could not be written: a full disk, a missing permission, a device error."""

    code = "output-failed"
    exit_code = 7


class StoreFailed(ShardError):
    """A store or a server cannot be reached, or fails, time and again; or this machine cannot read a file.

    Attributes:
        of_file: Whether it may be one file only that this machine cannot read.
    """

    code = "store-failed"
    exit_code = 7
    of_file = False


class AccessRefused(StoreFailed):
    """A store or a server does not let us in: nothing is asked of it again."""

    code = "access-refused"


class WorkerDied(ShardError):
    """A worker process was killed, or crashed."""

    code = "worker-died"
    exit_code = 7


class OutOfMemory(ShardError):
    """The machine, or a limit of this process, gave no memory for what had to be done."""

    code = "out-of-memory"
    exit_code = 7


class Bug(PlainError):
    """Something that cannot be, or an exception that is no `ShardError`: a mistake in this program.

    No `ShardError`, so that nothing that expects damaged data or a refused request swallows it.
    """

    code = "bug"
    exit_code = 1

    def __init__(self, where: str, found: str = "", *, expected: str = "", remedy: str = "", detail: str = "") -> None:
        super().__init__(where, found, expected=expected, remedy=remedy or _REPORT_BUG, detail=detail)

    @classmethod
    def of(cls, where: str, error: BaseException) -> Bug:
        """Return the report of an exception that nothing expected; its traceback is the detail."""
        import traceback

        found = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(where, found[:_MAX_MESSAGE_CHARS], detail="".join(traceback.format_exception(error)))


class Interrupted(BaseException):
    """A signal asked the run to end (SIGINT, SIGTERM, SIGHUP); no `Exception`, so that nothing swallows it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def os_error_text(error: OSError) -> str:
    """Return what the operating system says of a failure: `no such file or directory`."""
    return (error.strerror or str(error)).lower()


def raise_if_machine_error(error: Exception, where: str, kinds: frozenset[int] = _MACHINE_ERRNOS) -> None:
    """Raise what the machine, and not a file's content, is to blame for: it is never damage, and nothing is left out.

    Whoever reads a file and takes an OSError for what is wrong with that file asks here first.

    Args:
        error: What was raised; of what is no OSError, nothing is said.
        where: The file.
        kinds: The codes that are meant; `PROCESS_ERRNOS`: only what no file can be to blame for.

    Raises:
        StoreFailed: The machine is to blame.
    """
    if isinstance(error, OSError) and error.errno in kinds:
        remedy = FILE_LIMIT_FIX if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        failed = StoreFailed(where, f"cannot be read: {os_error_text(error)}", remedy=remedy)
        failed.of_file = error.errno not in PROCESS_ERRNOS
        raise failed from None


@contextmanager
def raising_machine_errors(where: str) -> Iterator[None]:
    """Do that for what is read inside of the block."""
    try:
        yield
    except OSError as error:
        raise_if_machine_error(error, where)
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception means that there was no memory, whichever library raised it.

    pyarrow's is a MemoryError, NumPy's too; the system's is an OSError; a library that cannot be loaded is an
    ImportError, and a thread that cannot be started a RuntimeError, or an ArrowException.
    """
    if isinstance(error, ImportError):
        return any(text in str(error).lower() for text in _LOADER_MEMORY_ERRORS)
    if isinstance(error, RuntimeError):
        return str(error) == "can't start new thread"
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or _ARROW_THREAD_ERROR in str(error)


@contextmanager
def reporting_memory_errors(what: str) -> Iterator[None]:
    """Say of a failure to get memory inside of the block that `what` took it.

    Raises:
        OutOfMemory: There was no memory.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(what, "not enough memory", remedy=MEMORY_FIX) from None


@contextmanager
def explaining_missing_cwd() -> Iterator[None]:
    """Say of a relative path that leads nowhere because the current folder was removed that it is that.

    Raises:
        InvalidRequest: It was.
    """
    try:
        yield
    except FileNotFoundError:
        try:
            os.getcwd()
        except FileNotFoundError:
            remedy = "Change to a folder that is there, or give absolute paths."
            raise InvalidRequest("the current folder", "no such folder any more", remedy=remedy) from None
        raise


def format_list(items: list[str], most: int = 5, *, total: int | None = None) -> str:
    """Return the first few distinct `items`, each once with its count, and how many more there are of `total`."""
    counts = Counter(items)
    shown = [*counts.items()][:most]
    rest = (len(items) if total is None else total) - sum(count for _, count in shown)
    texts = [item if count == 1 else f"{item} ({count:,} times)" for item, count in shown]
    return ", ".join(texts) + (f" and {rest:,} more" if rest > 0 else "")
