"""A dataset that is verified: its shards, what is known of each, and the findings so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.dataset import find, stored
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, parse_dataset, parse_shard_names
from shardtool.errors import (
    CorruptShard,
    os_error_text,
)
from shardtool.names import to_output_name
from shardtool.pattern import sidecar_name
from shardtool.storage import paths
from shardtool.storage.files import read_small
from shardtool.storage.lookup import plain_sizes
from shardtool.verbs.verify.examine import KEY_HASH_BYTES, ShardExamination
from shardtool.verbs.verify.findings import Finding, Findings, finding_from_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shardtool.dataset.scan import ShardScan
    from shardtool.dataset.sidecar_schema import ShardFacts
    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.values import DatasetLike


AS_LISTED = ", as the dataset file says"


@dataclass(slots=True)
class ShardCheck:
    """One shard with all that is said of it.

    Attributes:
        shard: The shard, with its entry in the dataset file, unless there is none, or it is damaged.
        wanted: Whether a sidecar must be there.
        size: The shard's bytes; None where there is no such file.
        data: The sidecar's bytes; None where it is not there, or cannot be read.
        fact: What the sidecar says of its shard; None where it is damaged.
        examined: What a worker found; None where the shard was not read.
    """

    shard: StoredShard
    wanted: bool
    size: int | None = None
    data: bytes | None = None
    fact: ShardFacts | None = None
    examined: ShardExamination | None = None

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name

    @property
    def sidecar(self) -> str:
        """The name of its sidecar."""
        return sidecar_name(self.shard.file_name)

    @property
    def entry(self) -> ShardEntry | None:
        """What the dataset file says."""
        return self.shard.entry

    @property
    def scan(self) -> ShardScan | None:
        """The content of the shard; None where it could not be opened, or was not read."""
        return None if self.examined is None else self.examined.scan

    @property
    def crcs(self) -> list[int]:
        """The checksums of the shard that the dataset file and the sidecar say, as far as they do."""
        return [one.crc for one in (self.entry, self.fact) if one is not None and one.crc is not None]

    @property
    def sound(self) -> bool:
        """Whether the shard's bytes are proven to be those that were written."""
        scan = self.scan
        return scan is not None and scan.error is None and scan.crc in self.crcs


@dataclass(slots=True)
class VerifiedDataset:
    """A dataset that is verified, and what was found so far.

    Attributes:
        dataset: The dataset, with what its dataset file says; None there where it has none, or it is damaged.
        cases: Its shards.
        findings: What is wrong.
        fields: How many samples have each field, of the shards that were read.
        repaired: What was mended, in words.
        left: What could not be mended, or compared, and why; it is told last.
        seconds: How long all of that took.
    """

    dataset: StoredDataset
    cases: tuple[ShardCheck, ...]
    findings: Findings
    fields: Counter[str] = field(default_factory=Counter)
    repaired: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def file(self) -> DatasetFile | None:
        """What the dataset file says."""
        return self.dataset.file

    @property
    def folder(self) -> str:
        """Where the dataset file lies, or else the shards."""
        return self.dataset.folder

    @property
    def name(self) -> str:
        """The name of the dataset file, or else of the folder."""
        return printable_name(self.dataset.where)

    @property
    def is_all(self) -> bool:
        """Whether all shards that the dataset file lists were given, in any order."""
        return self.file is not None and {one.name for one in self.file.shards} <= {case.name for case in self.cases}

    @property
    def read(self) -> list[tuple[int, ShardExamination]]:
        """The shards that were read: the number of each, and what was found."""
        return [(number, case.examined) for number, case in enumerate(self.cases) if case.examined is not None]

    @property
    def is_partial(self) -> bool:
        """Whether some of the shards that are there were not to be read, and others were."""
        return 0 < len(self.read) < sum(case.size is not None for case in self.cases)

    def hashes(self) -> NDArray[np.void]:
        """Return the hashes of the keys of all samples that were read, an array of two numbers each."""
        import numpy as np

        return np.frombuffer(b"".join(one.hashes for _, one in self.read), np.dtype([("a", "<u8"), ("b", "<u8")]))

    def ends(self) -> list[int]:
        """Return after how many samples each shard that was read ends."""
        return [*accumulate(len(one.hashes) // KEY_HASH_BYTES for _, one in self.read)]


def read_dataset_file(given: DatasetLike) -> tuple[StoredDataset, Findings]:
    """Return a dataset, and what is wrong with its dataset file.

    Raises:
        InvalidRequest: There is no such dataset.
        CorruptShard: The dataset file names what lies elsewhere, or is none.
    """
    found, findings = find.find_dataset(given, lacking=True), Findings()
    path = found.dataset_file
    try:
        if path is not None and parse_shard_names(data := read_small(path)) is None:
            findings.unchecked.append(f"checksums: {printable_name(path)} is an index of wids, which has none")
        elif path is not None:
            return found.with_dataset_file(parse_dataset(data, path)), findings
    except OSError as error:
        findings.add(-1, Finding("dataset-file-damaged", printable_name(path or ""), os_error_text(error)))
    except CorruptShard as error:
        findings.add(-1, finding_from_error("dataset-file-damaged", printable_name(path or ""), error))
    return found.with_dots(stored.recorded_dots(found)), findings


def open_verified(given: DatasetLike) -> VerifiedDataset:
    """Return a dataset that is to be verified; it raises what `read_dataset_file` does."""
    dataset, findings = read_dataset_file(given)
    cases = (
        ShardCheck(shard, dataset.own and (dataset.file is None or shard.entry is not None), size)
        for shard, size in zip(dataset.shards, plain_sizes(dataset.paths), strict=True)
    )
    return VerifiedDataset(dataset, tuple(cases), findings)


def printable_name(path: str) -> str:
    """Return the last part of a path, as it is printed."""
    return to_output_name(paths.base_name(path) or path)
