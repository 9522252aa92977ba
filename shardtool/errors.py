"""All errors that users can see.

Every error has four parts, which `--json` prints: location, what was found, what was expected, and what to do.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

PROCESS_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
# ESTALE is not listed, because it means that the file was replaced.
_MACHINE_ERRNOS = PROCESS_ERRNOS | {
    errno.EIO, errno.EACCES, errno.EPERM, errno.ENODEV, errno.ENOSPC, errno.EDQUOT, errno.ENOTCONN,
    errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ECONNABORTED, errno.ESHUTDOWN,
}  # fmt: skip
FILE_LIMIT_FIX = "Raise the limit of open files (ulimit -n)."
MEMORY_FIX = "Free memory, or raise the memory limit (ulimit, cgroup)."
_REPORT_BUG = "This is a bug in shardtool. Please report it with the output of -v."
_MAX_MESSAGE_CHARS = 500
_LOADER_MEMORY_ERRORS = ("cannot allocate memory", "failed to map segment from shared object")
_ARROW_INTRODUCTION = re.compile(r"^.*\[errno \d+\] ", re.DOTALL)
_ARROW_THREAD_ERROR = "Failed to launch worker thread"
_CONTROL_CHARS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_EMBEDDED_FIELDS = re.compile(r"^shardtool-error: (\{.*\})\n?", re.MULTILINE)
_URL_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s]*@")
_URL_QUERY = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]+", re.IGNORECASE)


def printable(text: str | bytes) -> str:
    r"""Return `text` with control characters and invalid UTF-8 escaped, for example as `\x1b`."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")

    def escape(match: re.Match[str]) -> str:
        char = match[0]
        if "\udc80" <= char <= "\udcff":
            char = chr(ord(char) - 0xDC00)
        return f"\\x{ord(char):02x}" if char <= "\xff" else f"\\u{ord(char):04x}"

    return _CONTROL_CHARS.sub(escape, text)


def redact_secrets(text: str) -> str:
    """Remove user names, passwords and queries from the URLs in a string."""
    return _URL_QUERY.sub(r"\1?...", _URL_CREDENTIALS.sub(r"\1", text)) if "://" in text else text


class PlainError(Exception):
    """The base class of all errors.

    Attributes:
        where: The file, sample or option with the error.
        detail: Lines to print below the message, such as a traceback.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, where: str, found: str = "", *, expected: str = "", remedy: str = "", detail: str = "") -> None:
        if not found and (fields := _EMBEDDED_FIELDS.findall(where)):
            import json

            vars(self).update(json.loads(fields[-1]), detail=_EMBEDDED_FIELDS.sub("", where).rstrip())
            return
        # For errors in `DataLoader` workers, PyTorch passes only a traceback, as `where`. Its last line is the message.
        if not found:
            where, found, detail = where.strip().partition("\n")[0], where.strip().rpartition("\n")[2], where
        self.where = redact_secrets(printable(where))
        self.found = redact_secrets(printable(found))
        self.expected = redact_secrets(printable(expected))
        self.remedy = redact_secrets(printable(remedy))
        self.detail = "\n".join(redact_secrets(printable(line)) for line in detail.splitlines())
        # `repr` shows these arguments, so they must not contain secrets.
        super().__init__(self.where, self.found)

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
        """Append the attributes to the message as JSON. The constructor restores the error from this JSON.

        A worker of a PyTorch `DataLoader` sends only the text of an error to the main process.
        """
        import json

        self.detail = "\n".join([*filter(None, [self.detail]), f"shardtool-error: {json.dumps(vars(self))}"])

    def to_json(self) -> dict[str, object]:
        """Return the error as the dict that `--json` prints."""
        names = ("code", "exit_code", "where", "found", "expected", "remedy", *(["detail"] if self.detail else []))
        return {name: getattr(self, name) for name in names}


def _rebuild_error(kind: type[PlainError], fields: dict[str, object]) -> PlainError:
    error = kind.__new__(kind, fields["where"], fields["found"])
    vars(error).update(fields)
    return error


class ShardError(PlainError):
    """An error that users can understand and fix."""


class InvalidRequest(ShardError):
    """An option or pattern is invalid, or a source does not fit the output."""

    code = "invalid-request"
    exit_code = 2


class UnknownKey(InvalidRequest, KeyError):
    """The dataset has no sample with this key."""

    code = "unknown-key"


class CorruptShard(ShardError):
    """A shard, sidecar or dataset file is damaged.

    Attributes:
        offset: Offset in the file in bytes, or None if unknown.
    """

    code = "corrupt-shard"
    exit_code = 4

    def __init__(
        self, where: str, found: str = "", *, offset: int | None = None, expected: str = "", remedy: str = ""
    ) -> None:
        shown = found if offset is None else f"at {offset:,}: {found}"
        self.offset, self.problem = offset, redact_secrets(printable(found))
        super().__init__(where, shown, expected=expected, remedy=remedy)


class OutputExists(ShardError):
    """The output exists, or another run is writing it."""

    code = "output-exists"
    exit_code = 5


class SampleFailed(ShardError):
    """Samples could not be read, or changed while they were packed."""

    code = "sample-failed"
    exit_code = 6


class OutputFailed(ShardError):
    """The output could not be written, for example because the disk is full."""

    code = "output-failed"
    exit_code = 7


class StoreFailed(ShardError):
    """A store or server cannot be reached or keeps failing, or this machine cannot read a file.

    Attributes:
        affects_one_file: Whether other files may be readable.
        is_process_limit: Whether this process has too many open files or too little memory.
    """

    code = "store-failed"
    exit_code = 7
    affects_one_file = False
    is_process_limit = False


class AccessRefused(StoreFailed):
    """A store or server denies access."""

    code = "access-refused"


class WorkerDied(ShardError):
    """A worker process was killed or crashed."""

    code = "worker-died"
    exit_code = 7


class OutOfMemory(ShardError):
    """More memory is needed than the machine or a memory limit provides."""

    code = "out-of-memory"
    exit_code = 7


class Bug(PlainError):
    """An unexpected exception, reported as a bug. Handlers of `ShardError` must not catch this class."""

    code = "bug"
    exit_code = 1

    def __init__(self, where: str, found: str = "", *, expected: str = "", remedy: str = "", detail: str = "") -> None:
        super().__init__(where, found, expected=expected, remedy=remedy or _REPORT_BUG, detail=detail)

    @classmethod
    def from_exception(cls, where: str, error: BaseException) -> Bug:
        """Create a bug report from an exception, with its traceback."""
        import traceback

        found = " ".join(f"{type(error).__name__}: {error}".split())
        return cls(where, found[:_MAX_MESSAGE_CHARS], detail="".join(traceback.format_exception(error)))


class Interrupted(BaseException):
    """The process received SIGINT, SIGTERM or SIGHUP."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def os_error_text(error: OSError) -> str:
    """Return the operating system's message in lower case, without the text that Arrow adds before it."""
    return _ARROW_INTRODUCTION.sub("", error.strerror or str(error)).lower()


def raise_if_machine_error(error: Exception, where: str, kinds: frozenset[int] = _MACHINE_ERRNOS) -> None:
    """Raise `StoreFailed` if an OSError was caused by the machine and not by the file.

    Call this function before reporting an OSError as damage or skipping a sample. Pass `PROCESS_ERRNOS` to check only
    errors that a file can never cause.
    """
    if isinstance(error, OSError) and error.errno in kinds:
        remedy = FILE_LIMIT_FIX if error.errno in (errno.EMFILE, errno.ENFILE) else ""
        failed = StoreFailed(where, f"cannot be read: {os_error_text(error)}", remedy=remedy)
        failed.is_process_limit = error.errno in PROCESS_ERRNOS
        failed.affects_one_file = not failed.is_process_limit
        raise failed from None


@contextmanager
def raising_machine_errors(where: str) -> Iterator[None]:
    """Call `raise_if_machine_error` for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise_if_machine_error(error, where)
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that memory ran out. Python and pyarrow raise different exceptions."""
    if isinstance(error, ImportError):
        return any(text in str(error).lower() for text in _LOADER_MEMORY_ERRORS)
    if isinstance(error, RuntimeError):
        return str(error) == "can't start new thread"
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or _ARROW_THREAD_ERROR in str(error)


@contextmanager
def reporting_memory_errors(what: str) -> Iterator[None]:
    """Raise `OutOfMemory` if memory runs out in the block. The message names the current step, `what`."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(what, "not enough memory", remedy=MEMORY_FIX) from None


@contextmanager
def explaining_missing_cwd() -> Iterator[None]:
    """Convert a FileNotFoundError in the block to `InvalidRequest` if the current folder was deleted."""
    try:
        yield
    except FileNotFoundError:
        try:
            os.getcwd()
        except FileNotFoundError:
            remedy = "Change to an existing folder, or use absolute paths."
            raise InvalidRequest("the current folder", "was deleted", remedy=remedy) from None
        raise


def format_list(items: list[str], max_shown: int = 5, *, total: int | None = None) -> str:
    """Join the first `max_shown` distinct items with commas, for example `a, b (3 times) and 5 more`.

    If `items` is incomplete, `total` is the number of all items.
    """
    counts = Counter(items)
    shown = [*counts.items()][:max_shown]
    rest = (len(items) if total is None else total) - sum(count for _, count in shown)
    texts = [item if count == 1 else f"{item} ({count:,} times)" for item, count in shown]
    return ", ".join(texts) + (f" and {rest:,} more" if rest > 0 else "")
