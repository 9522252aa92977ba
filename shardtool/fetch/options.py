"""How files are fetched: one value, which travels to workers. It imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass

from shardtool._version import __version__

MEMORY = 256 * 2**20  # bytes that a worker holds of what is fetched ahead
USER_AGENT = f"shardtool/{__version__}"
DIRECTIVES = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})  # of X-Robots-Tag: not for training


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
    memory: int = MEMORY

    def identity(self) -> str:
        """Return what of it decides which files are taken."""
        return f"fetch {self.max_bytes} {self.robots} {self.images}"
