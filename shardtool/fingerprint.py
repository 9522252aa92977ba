"""Compute CRC-32C checksums in hardware, and the content fingerprint.

To compute a checksum in pieces, pass the checksum of the preceding bytes: `crc32c(data, crc)`. Importing the whole
package `crc32c` takes 50 ms, so only its extension module is loaded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_MODULUS = 2**256
_FINGERPRINT = re.compile(r"b2:([0-9a-f]{64})")
DIGEST_SIZE = 32
PAYLOAD_DIGEST_SIZE = 16  # payloads with equal BLAKE2b digests of this size are treated as equal


def _load_crc32c() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    paths = package.submodule_search_locations if package else None
    spec = PathFinder.find_spec("crc32c._crc32c", paths) if paths else None
    if "crc32c" in sys.modules or spec is None or spec.loader is None:
        import crc32c as slow

        return slow.crc32c  # type: ignore[no-any-return,unused-ignore]
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.crc32c  # type: ignore[no-any-return]


crc32c = _load_crc32c()


def content_digest(
    keys: Sequence[bytes], counts: Sequence[int], names: Sequence[bytes], *, codes: bytes, lengths: bytes, crcs: bytes
) -> int:
    """Return the fingerprint of samples: the sum of their BLAKE2b hashes modulo 2^256.

    The hash of a sample covers:

    1. the key and the field names, each followed by NUL
    2. the lengths of the fields
    3. the checksums of the fields

    Fields must be sorted by the bytes of their names. `counts` has the number of fields of each sample. `codes` (uint16
    indices into `names`), `lengths` (uint64) and `crcs` (uint32) are little-endian, with one number per field.

    Source: docs/format.md, "Content fingerprint".
    """
    total = end = 0
    from_bytes, new_hash = int.from_bytes, blake2b(digest_size=DIGEST_SIZE).copy
    names_of: dict[bytes, bytes] = {}
    for key, count in zip(keys, counts, strict=True):
        row, end = end, end + count
        code = codes[2 * row : 2 * end]
        if (field_names := names_of.get(code)) is None:
            field_names = b"\0%b\0" % b"\0".join(names[code[at] + 256 * code[at + 1]] for at in range(0, 2 * count, 2))
            names_of[code] = field_names
        sample_hash = new_hash()
        sample_hash.update(key + field_names + lengths[8 * row : 8 * end] + crcs[4 * row : 4 * end])
        total += from_bytes(sample_hash.digest(), "little")
    return total % _MODULUS


def sum_fingerprints(texts: Iterable[str]) -> int | None:
    """Return the sum of the fingerprints of datasets, or None if one is unknown."""
    matches = [_FINGERPRINT.fullmatch(text) for text in texts]
    numbers = [int(match[1], 16) for match in matches if match]
    return sum(numbers) % _MODULUS if len(numbers) == len(matches) else None


def format_fingerprint(total: int | None) -> str:
    """Return a fingerprint as written in the dataset file, or "" if unknown."""
    return "" if total is None else f"b2:{total % _MODULUS:0{2 * DIGEST_SIZE}x}"
