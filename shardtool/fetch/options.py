"""Options, progress and errors of downloads: plain values that travel between processes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from shardtool.values import __version__

if TYPE_CHECKING:
    from shardtool.skipped import SkipCode


MAX_BUFFERED_BYTES = 256 * 2**20  # bytes that a worker holds of what is fetched ahead


USER_AGENT = f"shardtool/{__version__}"


ROBOTS_DIRECTIVES = frozenset(
    {"noai", "noimageai", "noindex", "noimageindex", "none"}
)  # of X-Robots-Tag: not for training


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The way in which a worker fetches files.

    Attributes:
        connections: How many are fetched at once.
        per_host: How many of these of one host: of all workers where they are asked for, of one in its task.
        timeout_s: Seconds to connect, and to wait for more bytes.
        max_time_s: Seconds that a file may take in all, with redirects and further tries.
        max_bytes: Bytes of a file at most, as sent and as unpacked.
        retries: Further tries after a failure that may pass.
        allow_private: Whether addresses of this machine and of local networks are asked, too.
        robots: Whether the header X-Robots-Tag is obeyed.
        user_agent: What the requests say of who asks.
        images: Whether a file must begin as an image does.
        memory: Bytes that are held of files that are fetched ahead.
        max_failed: The share of a shard's samples that may fail before the run ends.
        retry_failed: Whether a resumed run makes shards again of which samples failed.
    """

    connections: int = 256
    per_host: int = 16
    timeout_s: float = 10
    max_time_s: float = 60
    max_bytes: int = 100_000_000
    retries: int = 2
    allow_private: bool = False
    robots: bool = True
    user_agent: str = USER_AGENT
    images: bool = False
    memory: int = MAX_BUFFERED_BYTES
    max_failed: Fraction = Fraction(1)
    retry_failed: bool = False

    def identity(self) -> str:
        """Return what of it decides which files are taken."""
        return f"fetch {self.max_bytes} {self.robots} {self.images}"


class FetchProgress(NamedTuple):
    """How far a worker is with the files of a shard.

    Attributes:
        worker: The number of its process.
        samples: Those of the shard.
        share: What share of its files was taken and packed.
        took_s: Seconds since it began.
        left_s: Seconds that the rest will take.
        host: For whose files it will wait the longest; empty: packing takes longer.
        done: How many of the shard's files of that host are there, or failed.
        files: How many there are.
        each_s: Seconds that one takes.
    """

    worker: int
    samples: int
    share: float
    elapsed_s: float
    remaining_s: float
    host: str
    done: int
    files: int
    seconds_per_file: float


class FetchFailed(Exception):
    """A URL that gave no file.

    Attributes:
        code: Why, for programs.
        message: For people; no part of the URL is in it.
        may_pass: Whether another try may give the file.
        wait_s: Seconds that the server asks to wait before that.
    """

    def __init__(self, code: SkipCode, message: str, *, is_temporary: bool = False, wait_s: float = 0) -> None:
        super().__init__(message)
        self.code, self.message, self.is_temporary, self.wait_s = code, message, is_temporary, wait_s
