"""Build the report of `verify`, for one dataset or several."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardtool.errors import (
    format_list,
    redact_secrets,
)
from shardtool.messages import flag_text, option_text
from shardtool.names import to_output_name
from shardtool.units import format_size, pluralize
from shardtool.verbs.verify import examine
from shardtool.verbs.verify.findings import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.request.dataset_options import VerifyOptions
    from shardtool.verbs.verify.verified_dataset import VerifiedDataset


def build_report(subject: VerifiedDataset, options: VerifyOptions) -> Report:
    """Return what was found, as users get it."""
    findings, cases, unchecked = subject.findings, subject.cases, [*subject.findings.unchecked]
    odd, undecoded = (sum(getattr(one, name) for _, one in subject.read) for name in ("odd", "undecoded"))
    if odd:
        unchecked.append(f"{pluralize(odd, 'member')} of tar shards that are no part of a sample")
    if undecoded:
        images = f"images over {format_size(examine.MAX_IMAGE_BYTES)}, or over 1 GiB once decoded,"
        limits = f"{images} and JSON over {format_size(examine.MAX_JSON_BYTES)}"
        unchecked.append(f"{pluralize(undecoded, 'payload')} that {flag_text('decode')} leaves out: {limits}")
    size, read = sum(case.size or 0 for case in cases), [case.size or 0 for case in cases if case.scan is not None]
    if subject.is_partial:
        seed, left = options.seed or 0, 100 * (1 - sum(read) / max(1, size))
        what = f"{pluralize(len(cases) - len(read), 'shard')} of {len(cases):,}, {left:.0f}% of the bytes"
        seeds = f"{option_text('sample', options.sample)} {option_text('seed', seed)}; {option_text('seed', seed + 1)} reads others"
        unchecked.append(f"{what}, but for names, sizes and sidecars: {seeds}")
    checked = ["names and numbering", "sidecars"] if options.quick else ["every byte"]
    if subject.is_partial:
        checked = [f"every byte of {len(read):,} of {pluralize(len(cases), 'shard')}"]
    if subject.file is not None:
        checked.append("sizes against the dataset file" if options.quick else "checksums against the dataset file")
    if not options.quick:
        checked += ["framing", "keys across these" if subject.is_partial else "keys across shards"]
    checked += ["images, JSON and labels decoded"] if options.decode else []
    return Report(
        dataset=redact_secrets(to_output_name(subject.dataset.where)),
        findings=tuple(one for _, one in sorted(findings.listed, key=lambda one: one[0])),
        counts={code: count for code, count in sorted(findings.counts.items()) if count},
        checked=(*checked, *findings.checked),
        unchecked=(*unchecked, *subject.left),
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
    """Return the report of all datasets."""
    read = [one.read for one in reports if one.read is not None]
    return Report(
        dataset=format_list([one.dataset for one in reports], 3),
        findings=tuple(finding for one in reports for finding in one.findings),
        counts=dict(sorted(sum((Counter(one.counts) for one in reports), Counter[str]()).items())),
        checked=tuple(dict.fromkeys(text for one in reports for text in one.checked)),
        unchecked=tuple(f"{one.dataset}: {text}" for one in reports for text in one.unchecked),
        shards=sum(one.shards for one in reports),
        samples=sum(one.samples for one in reports),
        size=sum(one.size for one in reports),
        readable=all(one.readable for one in reports),
        repaired=tuple(text for one in reports for text in one.repaired),
        read=(sum(shards for shards, _ in read), sum(size for _, size in read)) if read else None,
        datasets=tuple(reports),
        quick=any(one.quick for one in reports),
        uncompared=tuple(dict.fromkeys(name for one in reports for name in one.uncompared)),
    )
