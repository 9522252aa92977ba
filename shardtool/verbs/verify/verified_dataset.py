"""A dataset with the results of its checks so far, and its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from itertools import accumulate
from typing import TYPE_CHECKING

from shardtool.dataclass import dataclass
from shardtool.dataset import find, stored
from shardtool.dataset.dataset_file import DatasetFile, ShardEntry, is_dataset_content, parse_dataset
from shardtool.errors import CorruptShard, format_list, os_error_text, redact_secrets
from shardtool.messages import flag_text, option_text
from shardtool.names import to_output_name
from shardtool.pattern import sidecar_name
from shardtool.storage import paths
from shardtool.storage.files import plain_sizes, read_small
from shardtool.units import format_size, pluralize
from shardtool.verbs.verify import examine
from shardtool.verbs.verify.examine import KEY_HASH_BYTES, ShardExamination
from shardtool.verbs.verify.findings import Finding, Findings, Report, finding_from_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from shardtool.dataset.sidecar_schema import ShardFacts
    from shardtool.dataset.stored import StoredDataset, StoredShard
    from shardtool.request.dataset_options import VerifyOptions
    from shardtool.values import DatasetLike


AS_LISTED = ", as in the dataset file"


@dataclass(slots=True)
class ShardCheck:
    """One shard, and the results of its checks so far.

    Attributes:
        size: The size in bytes, or None if the file does not exist.
        facts: The sidecar's description of the shard, or None if missing or damaged.
        examined: The worker's result, or None if the shard was not read.
    """

    shard: StoredShard
    sidecar_required: bool
    size: int | None = None
    facts: ShardFacts | None = None
    examined: ShardExamination | None = None

    @property
    def name(self) -> str:
        return self.shard.name

    @property
    def sidecar(self) -> str:
        return sidecar_name(self.shard.file_name)

    @property
    def entry(self) -> ShardEntry | None:
        return self.shard.entry

    @property
    def is_readable(self) -> bool:
        """Whether the shard was read, at least up to its first damage."""
        return self.examined is not None and self.examined.error is None

    @property
    def crcs(self) -> list[int]:
        """The checksums in the dataset file and the sidecar."""
        return [record.crc for record in (self.entry, self.facts) if record is not None and record.crc is not None]

    @property
    def is_verified(self) -> bool:
        """Whether the shard was read without errors and has one of the `crcs`."""
        examined = self.examined
        return examined is not None and examined.damage is None and examined.crc in self.crcs


@dataclass(slots=True)
class VerifiedDataset:
    """A dataset, and the results of its checks so far.

    Attributes:
        dataset: Its `file` is None if the dataset file is missing or damaged.
        contents: Whether to compute the ids of the samples' content.
        fields: Number of samples with each field, in the shards that were read.
        unresolved: Failed repairs and comparisons, with reasons.
    """

    dataset: StoredDataset
    cases: tuple[ShardCheck, ...]
    findings: Findings
    contents: bool = False
    fields: Counter[str] = field(default_factory=Counter)
    repaired: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def file(self) -> DatasetFile | None:
        return self.dataset.file

    @property
    def folder(self) -> str:
        """The folder of the dataset file or, if there is none, of the shards."""
        return self.dataset.folder

    @property
    def name(self) -> str:
        """The name of the dataset file or, if there is none, of the folder."""
        return printable_name(self.dataset.where)

    @property
    def has_all_shards(self) -> bool:
        """Whether the user passed all shards that the dataset file lists."""
        given = {case.name for case in self.cases}
        return self.file is not None and all(shard.name in given for shard in self.file.shards)

    @property
    def examined(self) -> list[tuple[int, ShardExamination]]:
        """Pairs of a shard number and a `ShardExamination`, for shards that were read."""
        return [(number, case.examined) for number, case in enumerate(self.cases) if case.examined is not None]

    @property
    def is_partial(self) -> bool:
        """Whether only some of the existing shards were read."""
        return 0 < len(self.examined) < sum(case.size is not None for case in self.cases)

    def labels(self) -> frozenset[str]:
        """Return the fields that contain labels, numbers or lists. Content comparisons ignore these fields."""
        from shardtool.dataset.duplicates import recorded_labels

        return recorded_labels(self.file)

    def hashes(self) -> NDArray[np.void]:
        """Return the key hash of each sample that was read, as two uint64."""
        import numpy as np

        hashes = b"".join(shard.hashes for _, shard in self.examined)
        return np.frombuffer(hashes, np.dtype([("a", "<u8"), ("b", "<u8")]))

    def ends(self) -> list[int]:
        """Return the cumulative number of samples up to the end of each shard that was read."""
        return [*accumulate(len(shard.hashes) // KEY_HASH_BYTES for _, shard in self.examined)]


def read_dataset_file(given: DatasetLike) -> tuple[StoredDataset, Findings]:
    """Return a dataset, and the problems of its dataset file as findings."""
    dataset, findings = find.find_dataset(given, allow_missing=True), Findings()
    path = dataset.dataset_file
    try:
        if path is not None and not is_dataset_content(data := read_small(path)):
            findings.unchecked.append(f"checksums: {printable_name(path)} is a wids index, which has no checksums")
        elif path is not None:
            return dataset.with_dataset_file(parse_dataset(data, path)), findings
    except OSError as error:
        findings.add(-1, [Finding("dataset-file-damaged", printable_name(path or ""), os_error_text(error))])
    except CorruptShard as error:
        findings.add(-1, [finding_from_error("dataset-file-damaged", printable_name(path or ""), error)])
    return dataset.with_dots(stored.recorded_dots(dataset)), findings


def open_verified(given: DatasetLike, *, contents: bool) -> VerifiedDataset:
    """Open a dataset, and get the sizes of its shards."""
    dataset, findings = read_dataset_file(given)
    cases = (
        ShardCheck(shard, dataset.has_own_file and (dataset.file is None or shard.entry is not None), size)
        for shard, size in zip(dataset.shards, plain_sizes(dataset.paths), strict=True)
    )
    return VerifiedDataset(dataset, tuple(cases), findings, contents)


def printable_name(path: str) -> str:
    """Return the last component of a path as printable text."""
    return to_output_name(paths.base_name(path) or path)


def build_report(subject: VerifiedDataset, options: VerifyOptions) -> Report:
    """Return the report of one dataset."""
    findings, cases, unchecked = subject.findings, subject.cases, [*subject.findings.unchecked]
    unrecognised, undecoded = (
        sum(getattr(shard, name) for _, shard in subject.examined) for name in ("unrecognised", "undecoded")
    )
    if unrecognised:
        unchecked.append(f"{pluralize(unrecognised, 'member')} of tar shards that do not belong to a sample")
    if undecoded:
        images = f"images up to {format_size(examine.MAX_IMAGE_BYTES)} (1 GiB once decoded)"
        limits = f"it decodes {images} and JSON up to {format_size(examine.MAX_JSON_BYTES)}"
        unchecked.append(f"{pluralize(undecoded, 'payload')} too large for {flag_text('decode')}: {limits}")
    size, read = sum(case.size or 0 for case in cases), [case.size or 0 for case in cases if case.is_readable]
    if subject.is_partial:
        seed = options.seed or 0
        percent = 100 * (1 - sum(read) / max(1, size))
        unread = f"the bytes of {len(cases) - len(read):,} of {pluralize(len(cases), 'shard')} ({percent:.0f}%)"
        seeds = f"{option_text('sample', options.sample)} {option_text('seed', seed)} does not select them"
        unchecked.append(f"{unread}: {seeds}; {option_text('seed', seed + 1)} selects others")
    checked = ["names and numbering", "sidecars"] if options.quick else ["every byte"]
    if subject.is_partial:
        checked = [f"every byte of {len(read):,} of {pluralize(len(cases), 'shard')}"]
    if subject.file is not None:
        checked.append("sizes against the dataset file" if options.quick else "checksums against the dataset file")
    if not options.quick:
        checked += ["record structure", "duplicate keys in these shards" if subject.is_partial else "duplicate keys"]
    checked += ["images, JSON and labels decoded"] if options.decode else []
    return Report(
        dataset=redact_secrets(to_output_name(subject.dataset.where)),
        findings=tuple(finding for _, finding in sorted(findings.listed, key=lambda pair: pair[0])),
        counts={code: count for code, count in sorted(findings.counts.items()) if count},
        checked=(*checked, *findings.checked),
        unchecked=(*unchecked, *subject.unresolved),
        shards=len(cases),
        samples=(subject.ends() or [0])[-1],
        size=size,
        readable=subject.file is not None or options.quick or bool(read),
        repaired=subject.repaired,
        seconds=subject.seconds,
        read=None if options.sample is None else (len(read), sum(read)),
        quick=options.quick,
        uncompared=tuple(dict.fromkeys(findings.uncompared)),
    )


def combine_reports(reports: Sequence[Report]) -> Report:
    """Combine the reports of several datasets."""
    read = [report.read for report in reports if report.read is not None]
    return Report(
        dataset=format_list([report.dataset for report in reports], 3),
        findings=tuple(finding for report in reports for finding in report.findings),
        counts=dict(sorted(sum((Counter(report.counts) for report in reports), Counter[str]()).items())),
        checked=tuple(dict.fromkeys(text for report in reports for text in report.checked)),
        unchecked=tuple(f"{report.dataset}: {text}" for report in reports for text in report.unchecked),
        shards=sum(report.shards for report in reports),
        samples=sum(report.samples for report in reports),
        size=sum(report.size for report in reports),
        readable=all(report.readable for report in reports),
        repaired=tuple(text for report in reports for text in report.repaired),
        read=(sum(shards for shards, _ in read), sum(size for _, size in read)) if read else None,
        datasets=tuple(reports),
        quick=any(report.quick for report in reports),
        uncompared=tuple(dict.fromkeys(name for report in reports for name in report.uncompared)),
    )
