"""CRC-32C, in hardware, over any buffer, and the fingerprint of content.

`crc32c(data, crc=0)` continues from `crc`. The function is taken from the package's extension
module directly: importing the package itself costs 50 ms (it asks importlib.metadata for its own
version), which is more than packing 5,000 files.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Crc32c = Callable[[bytes | bytearray | memoryview, int], int]

_MODULUS = 2**256
DIGEST_SIZE = 32


def _find_crc32c() -> Crc32c:
    package = PathFinder.find_spec("crc32c")
    places = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("crc32c._crc32c", places) if places else None
    if "crc32c" in sys.modules or spec is None or spec.loader is None:
        import crc32c as slow

        return slow.crc32c  # type: ignore[no-any-return,unused-ignore]
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.crc32c  # type: ignore[no-any-return]


crc32c = _find_crc32c()


def content_digest(keys: Sequence[bytes], counts: Sequence[int], fields: Iterable[tuple[bytes, int, int]]) -> int:
    """Return the fingerprint of samples: the sum, modulo 2^256, of a BLAKE2b hash of each.

    A sum, so that neither the order of samples nor what shard they lie in changes it.

    Args:
        keys: One a sample.
        counts: Fields a sample.
        fields: (name, length, crc32c) of each field, in order.

    Source: docs/format.md, "Content fingerprint".
    """
    total, rows = 0, iter(fields)
    from_bytes = int.from_bytes
    for key, count in zip(keys, counts, strict=True):
        text = key
        for _ in range(count):
            text += b"\0%b\0%d\0%d" % next(rows)
        total += from_bytes(blake2b(text, digest_size=DIGEST_SIZE).digest(), "little")
    return total % _MODULUS


def show_fingerprint(total: int) -> str:
    """Return a fingerprint the way that the dataset file and people write it."""
    return f"b2:{total % _MODULUS:0{2 * DIGEST_SIZE}x}"
