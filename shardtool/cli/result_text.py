"""Format results of verbs (except the summary of `inspect`) as text, and reports of `verify` for CI systems."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import replace
from itertools import islice, starmap
from shlex import join, quote
from typing import TYPE_CHECKING

from shardtool.cli.output import (
    display_width,
    format_speed,
    format_table,
    join_lines,
    json_text,
    pad,
    samples_in_shards,
    terminal_width,
)
from shardtool.errors import ShardError, format_list, printable, redact_secrets
from shardtool.messages import cli_words
from shardtool.storage.remote.address import is_web
from shardtool.units import already_exist_text, format_size, pluralize

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from shardtool.request.results import (
        CopyResult,
        CreateResult,
        DiffResult,
        DoctorResult,
        ExtractResult,
        RemoveResult,
        ResumeChanges,
    )
    from shardtool.verbs.cache.status import CacheChange, CacheStatus
    from shardtool.verbs.inspect.duplicates import DuplicateGroups
    from shardtool.verbs.verify.findings import Finding, Report


_MAX_PLAN_ROWS = 40
_MAX_COLUMNS = 8
_MAX_LISTED = 10


def create_text(result: CreateResult, unwritten: str = "nothing") -> str:
    """Format the result of `create` or `reshard`, or the plan of a dry run."""
    if result.dry_run:
        return _plan_text(result, unwritten)
    if result.appended and not result.appended.shards:
        return join_lines(
            f"nothing new: {result.dataset_file} is unchanged, {samples_in_shards(result.samples, result.shards)}"
        )
    new = result.appended or result
    kept = f" ({result.kept:,} already finished)" if result.kept else ""
    of_part = f" of part {result.part}" if result.part else ""
    written = f"{samples_in_shards(new.samples, new.shards)}{of_part}{' appended' if result.appended else ''}{kept}"
    waits = ", after all parts have finished" if result.part and not result.merged else ""
    skipped = f"{result.skipped:,} skipped, listed in {result.dataset_file.removesuffix('.json')}.skipped{waits}"
    splits = [
        f"  {name}: {samples_in_shards(split.samples, split.shards)}, {format_size(split.size)}, {split.dataset_file}"
        for name, split in result.splits.items()
    ]
    lines = [
        f"{written}, {format_size(new.size)}, {format_speed(new.size, result.seconds)}",
        skipped if result.skipped else "",
        f"{pluralize(result.dropped, 'sample')} dropped by --map" if result.dropped else "",
        _removed_before_text(result.changes) if result.changes else "",
        f"now {samples_in_shards(result.samples, result.shards)}, {format_size(result.size)}"
        if result.appended
        else "",
        *splits,
        f"dataset file  {result.dataset_file}{waits}",
        f"fingerprint   {result.fingerprint}{of_part}",
        *_join_lines(result),
    ]
    if urls := list(filter(None, [result.urls, *(split.urls for split in result.splits.values())])):
        lines.append("to read it with webdataset:")
        lines += [f"  wds.WebDataset({json.dumps(url, ensure_ascii=False)}, shardshuffle=False)" for url in urls]
    if result.features:
        features = [f"    {json.dumps(name)}: {kind}," for name, kind in result.features.items()]
        lines += ["to read it with TensorFlow:", "  features = {", *features, "  }"]
        lines += ["  dataset.map(lambda record: tf.io.parse_single_example(record, features))"]
    return join_lines(*lines)


def _removed_before_text(changes: ResumeChanges) -> str:
    parts = ((changes.samples_removed, "sample"), (changes.shards_removed, "shard"))
    removed = [pluralize(count, what) for count, what in parts if count]
    return f"removed {' and '.join(removed)} of the earlier run" if removed else ""


def _plan_text(plan: CreateResult, unwritten: str) -> str:
    rows = [
        tuple(map(printable, (shard.name, f"{shard.samples:,}", f"{shard.size:,}", shard.first_key, shard.last_key)))
        for shard in plan.planned
    ]
    if len(rows) > _MAX_PLAN_ROWS:
        gap = (f"... {len(rows) - _MAX_PLAN_ROWS:,} more ...", "", "", "", "")
        rows = [*rows[: _MAX_PLAN_ROWS // 2], gap, *rows[-_MAX_PLAN_ROWS // 2 :]]
    size = f"{format_size(plan.size)} ({plan.size:,} bytes)"
    total = f"{samples_in_shards(plan.samples, plan.shards)}, {size}; {unwritten} was written"
    if plan.skipped:
        total += f"; {plan.skipped:,} skipped"
    if plan.changes is not None:
        total += f"\n--resume {plan.changes}"
    table = format_table(("shard", "samples", "bytes", "first key", "last key"), rows, "lrrll")
    return "\n".join([*table, total, *_join_lines(plan)])


def _join_lines(result: CreateResult) -> list[str]:
    if (joined := result.joined) is None:
        return []
    names = format_list([*map(printable, joined.columns)], _MAX_COLUMNS)
    columns = f"{pluralize(len(joined.columns), 'column')} in the sidecars ({names})"
    fields = ", ".join(map(printable, starmap("{}={}".format, joined.fields.items())))
    in_shards = f"as fields in the shards: {fields}" if fields else "none in the shards"
    others = [name for name in joined.columns if name not in joined.fields.values()]
    them = printable(others[0]) if len(others) == 1 else "the other columns" if fields else "them"
    advice = f"              to write {them} to the shards, too: {printable(joined.advice)}"
    return [f"joined        {printable(joined.table)}: {columns}, {in_shards}", *([advice] if others else [])]


def extract_text(result: ExtractResult) -> str:
    """Format the result of `extract`."""
    what = f"{pluralize(result.samples, 'sample')}, {pluralize(result.files, 'file')}, {format_size(result.size)}"
    if result.dry_run:
        return f"{what}; nothing was written"
    kept = f"; {result.kept:,} already existed" if result.kept else ""
    words = [word for option in result.create.items() for word in cli_words(*option)]
    create = join(["shardtool", "create", result.folder, "out-{000000..}.tar", *words])
    return join_lines(
        f"{what}, {format_speed(result.size, result.seconds)}{kept}",
        f"manifest  {result.manifest}",
        f"metadata  {result.metadata}" if result.metadata else "",
        f"pack      {create}",
    )


def remove_text(result: RemoveResult) -> str:
    """Format the result of `remove`."""
    lines = []
    for dataset in result.datasets:
        shards = (
            f"{len(dataset.rewritten):,} of {pluralize(dataset.shards, 'shard')} rewritten, {format_size(dataset.size)}"
        )
        verb = "to remove" if result.dry_run else "removed"
        lines.append(f"{pluralize(dataset.removed, 'sample')} {verb}, {dataset.samples:,} remaining; {shards}")
        lines.append(f"dataset file  {dataset.dataset_file}")
    return join_lines(*lines or ["0 samples removed"], "nothing was written" if result.dry_run else "")


def copy_text(result: CopyResult) -> str:
    """Format the result of `copy`."""
    size, several = sum(dataset.copied_size for dataset in result.datasets), len(result.datasets) > 1
    speed = "" if result.dry_run else f", {format_speed(size, result.seconds)}"
    copied, removed = ("to copy", "to remove") if result.dry_run else ("copied", "removed")
    lines = []
    for dataset in result.datasets:
        line = f"nothing to copy: {already_exist_text(dataset.kept, 'shard')}"
        if dataset.copied:
            kept = f"; {dataset.kept:,} of {dataset.shards:,} already existed" if dataset.kept else ""
            size_text = f"{format_size(dataset.copied_size)}{'' if several else speed}"
            line = f"{pluralize(dataset.copied, 'shard')} {copied}, {size_text}{kept}"
        line += f"; {dataset.removed:,} {removed}" if dataset.removed else ""
        line += f"; {pluralize(dataset.indexes, 'file')} of other tools" if dataset.indexes else ""
        lines += [line, f"dataset file  {dataset.dataset_file}"]
    return join_lines(*lines, f"total {format_size(size)}{speed}" if several else "")


def doctor_text(result: DoctorResult) -> str:
    """Format the result of `doctor` for the width of the terminal."""
    wrong = sum(check.state == "wrong" for check in result.checks)
    lines = [
        f"{printable(result.place)}: {f'{wrong:,} of {len(result.checks):,} checks failed' if wrong else 'no problems'}"
    ]
    for check in result.checks:
        head = f"  {check.name:<13}{check.state:<9}"
        for text in filter(None, (check.found, check.cure)):
            indent = " " * len(head)
            wrapped = textwrap.wrap(printable(text), terminal_width(), initial_indent=head, subsequent_indent=indent)
            lines, head = lines + wrapped, f"{'':<24}-> "
    return "\n".join(lines)


def cache_status_text(status: CacheStatus) -> str:
    """Format the result of `cache status`."""
    counts, rate = status.counts, status.counts.hit_rate
    in_use = [shard for shard in status.shards if shard.held]
    reserved = f"; {format_size(status.taken)} reserved for writing" if status.taken else ""
    uncached = f", {counts.passed:,} read without the cache" if counts.passed else ""
    found = f"{counts.hits:,} found, {counts.copies:,} copied{uncached}; {counts.evicted:,} evicted"
    return join_lines(
        f"{pluralize(len(status.shards), 'shard')}, {format_size(status.size)}; {len(in_use):,} in use{reserved}",
        f"hit rate  {rate:.1%}: {found}" if rate is not None else "",
        f"used by  {_process_text(status.readers)}" if status.readers else "",
        f"written by  {_process_text(status.writers)}" if status.writers else "",
        *(f"in use    {shard.path}{' by ' + _process_text(shard.pids) if shard.pids else ''}" for shard in in_use),
        *map("foreign   {}".format, status.foreign),
    )


def cache_change_text(change: CacheChange) -> str:
    """Format the result of `cache clear` or `cache verify`."""
    return join_lines(
        f"{len(change.removed):,} of {pluralize(change.looked_at, 'shard')} removed, {format_size(change.size)}",
        *(f"removed   {path}: {why}" for path, why in change.removed.items() if why),
        *(f"in use    {path}{why and ': ' + why}" for path, why in change.held.items()),
        *map("foreign   {}".format, change.foreign),
    )


def _process_text(pids: tuple[int, ...]) -> str:
    return f"process {', '.join(map(str, pids))}"


def duplicates_text(duplicates: DuplicateGroups, *, whole: bool) -> str:
    """List the first duplicate groups, or all if `whole` is true."""
    lines = []
    for group in islice(duplicates.groups, None if whole else _MAX_LISTED):
        splits = len({sample.split for sample in group} - {""}) > 1
        several_datasets = len({sample.dataset for sample in group}) > 1
        names = [
            f"{sample.split or sample.dataset}: {sample.key}" if several_datasets else sample.key for sample in group
        ]
        differing = format_list(list(dict.fromkeys(name for sample in group for name in sample.differs)))
        marks = ["in several splits"] * splits + [f"different {differing}"] * bool(differing)
        lines.append("  ".join([" = ".join(map(printable, names)), *map(printable, marks)]))
    if len(duplicates.groups) > _MAX_LISTED and not whole:
        lines.append(f"... and {len(duplicates.groups) - _MAX_LISTED:,} more groups; use -v to print all")
    head = f"{printable(duplicates.dataset)}: {pluralize(duplicates.samples, 'sample')}"
    if not duplicates.groups:
        fields = ", ".join(map(printable, duplicates.fields))
        same = f", no duplicates ({fields} compared)" if duplicates.samples else ""
        return f"{head}{same}"
    fields = format_list([*map(printable, duplicates.fields)])
    groups = f"{pluralize(len(duplicates.groups), 'group')} with the same {fields}"
    notes = [f"{duplicates.leaks:,} in several splits"] * bool(duplicates.leaks)
    notes += [f"{duplicates.unlike:,} with different labels or fields"] * bool(duplicates.unlike)
    total = f"{head}, {duplicates.surplus:,} redundant ({format_size(duplicates.size)}): {', '.join([groups, *notes])}"
    return "\n".join([*lines, "", total])


def diff_text(result: DiffResult, *, whole: bool) -> str:
    """List the first differences of each kind, or all if `whole` is true."""
    from shardtool.request.results import METADATA_FIELD

    counts = [pluralize(count, "sample") for count in result.samples]
    sides = [printable(result.a), printable(result.b)]
    width = max(map(display_width, sides))
    lines = [f"{pad(name, width)}  {count}" for name, count in zip(sides, counts, strict=True)]
    content = len(result.changed) - result.metadata_only
    is_listed = content or any(column.change == "changed" for column in result.metadata.values())
    changed = (f"~ {printable(sample.key)}  {', '.join(map(printable, sample.fields))}" for sample in result.changed)
    moved = (
        f"> {printable(sample.key)}  {printable(sample.before)} -> {printable(sample.now)}" for sample in result.moved
    )
    kinds = {
        "added": (result.added, (f"+ {printable(key)}" for key in result.added)),
        "removed": (result.removed, (f"- {printable(key)}" for key in result.removed)),
        "changed": (result.changed if is_listed else (), changed),
        "moved": (result.moved, moved),
    }
    for items, texts in kinds.values():
        if items:
            lines += ["", *(f"  {text}" for text in islice(texts, None if whole else _MAX_LISTED))]
        if len(items) > _MAX_LISTED and not whole:
            lines.append(f"  ... and {len(items) - _MAX_LISTED:,} more; use -v to print all")
    counts_of = {name: content if name == "changed" else len(items) for name, (items, _) in kinds.items()}
    totals = [f"{count:,} {name}" for name, count in counts_of.items() if count]
    totals += ["different classes"] * bool(result.classes)
    fields = ", ".join(
        f"{printable(name)} {count:,}" for name, count in result.fields.items() if name != METADATA_FIELD
    )
    columns = [
        f"column {printable(name)} {column.change} ({pluralize(column.samples, 'sample')})"
        for name, column in result.metadata.items()
    ]
    lines += [f"\nclass numbers of {printable(name)} have different names" for name in result.classes]
    total = ", ".join(totals) or ("content equal" if columns else "equal")
    if result.uncompared:
        total += f"; not compared: {printable(format_list([*result.uncompared]))}"
    total += f" ({fields})" if fields else ""
    total += f"; metadata: {format_list(columns)}" if columns else ""
    return "\n".join([*lines, "", f"{total}, {result.seconds:.1f} s"])


_INVALID_XML = re.compile("[\ufffe\uffff]")


def render_report(report: Report, style: str) -> str:
    """Return a report in the style `text`, `json`, `junit` or `github`."""
    if style == "json":
        return json_text(report.to_json())
    return {"text": _report_text, "junit": _junit_text, "github": _github_text}[style](report)


def _report_text(report: Report) -> str:
    if not report.datasets:
        return _dataset_report_text(report)
    several = replace(report, dataset=pluralize(len(report.datasets), "dataset"), checked=())
    return "\n".join([*map(_dataset_report_text, report.datasets), "", *_total_lines(several)])


def _dataset_report_text(report: Report) -> str:
    from shardtool.verbs.verify.findings import FINDING_KINDS

    lines = [str(finding) for finding in report.findings]
    hidden = sum(report.counts.values()) - len(report.findings)
    if hidden > 0:
        lines.append(f"... and {hidden:,} more like these")
    if report.counts:
        lines.append("")
        for code, count in report.counts.items():
            lines.append(
                f"{count:>7,}  {code}: {FINDING_KINDS[code].meaning}. {_fix_text(code, printable(report.dataset))}"
            )
        lines.append("")
    return "\n".join(lines + _checked_lines(report))


def _checked_lines(report: Report) -> list[str]:
    lists = {"repaired": report.repaired, "not checked": report.unchecked}
    return [f"{label}: {printable(text)}" for label, texts in lists.items() for text in texts] + _total_lines(report)


def _fix_text(code: str, dataset: str) -> str:
    from shardtool.verbs.verify.findings import FINDING_KINDS

    remedy = FINDING_KINDS[code].remedy.replace(" DATASET ", f" {quote(dataset)} ")
    if is_web(dataset) and "shardtool verify --repair" in remedy:
        return "Repair it at its origin: rerun the original command with --resume, or run `shardtool verify --repair`."
    return remedy.replace("`shardtool verify --repair", f"`shardtool verify {quote(dataset)} --repair")


def _total_lines(report: Report) -> list[str]:
    size = report.size if report.read is None else report.read[1]
    rate = f", {format_size(size / max(report.seconds, 1e-9))}/s"
    samples = f"{pluralize(report.samples, 'sample')} in " if report.samples else ""
    if report.samples and report.read is not None:
        samples = f"{pluralize(report.samples, 'sample')} in {report.read[0]:,} of "
    total = (
        f"{printable(report.dataset)}: {samples}{pluralize(report.shards, 'shard')}, {format_size(report.size)}, "
        f"{report.seconds:.1f} s{rate if report.samples else ''}"
    )
    total += f"; checked: {', '.join(report.checked)}" if report.checked else ""
    verdict = "valid" if report.sound else f"not valid: {pluralize(sum(report.counts.values()), 'finding')}"
    if report.sound and report.uncompared:
        fields = printable(format_list([*report.uncompared]))
        verdict += f"; not compared with the source: {fields}"
    return [total, verdict]


def _junit_text(report: Report) -> str:
    if not report.datasets:
        return _xml_text(_junit_suite(report, "shardtool verify"))
    suites = [_junit_suite(part, f"shardtool verify {part.dataset}") for part in report.datasets]
    tests, time = sum(max(1, len(part.findings)) for part in report.datasets), f"{report.seconds:.3f}"
    counts = {"tests": tests, "failures": len(report.findings), "errors": 0, "time": time}
    return _xml_text(_xml_element("testsuites", "", *suites, name="shardtool verify", **counts))


def _junit_suite(report: Report, name: str) -> Element:
    cases = [_xml_element("testcase", classname="shardtool", name=report.dataset)] if not report.findings else []
    for finding in report.findings:
        failure = _xml_element("failure", f"{finding}\n{finding.remedy}", type=finding.code, message=finding.message)
        cases.append(
            _xml_element("testcase", "", failure, classname=finding.file, name=f"{finding.code} {finding.place}")
        )
    counts = {"tests": len(cases), "failures": len(report.findings), "errors": 0, "skipped": 0}
    output = _xml_element("system-out", "\n".join(_checked_lines(report)))
    return _xml_element("testsuite", "", *cases, output, name=name, **counts, time=f"{report.seconds:.3f}")


def junit_error_text(dataset: str, error: ShardError) -> str:
    """Return JUnit XML for a `verify` run that stopped with an error."""
    ended = _xml_element("error", printable(str(error)), type=error.code, message=error.found)
    case = _xml_element("testcase", "", ended, classname="shardtool", name=dataset)
    return _xml_text(
        _xml_element("testsuite", "", case, name="shardtool verify", tests=1, failures=0, errors=1, skipped=0)
    )


def _xml_element(tag: str, text: str = "", /, *children: Element, **attributes: object) -> Element:
    from xml.etree.ElementTree import Element

    shown = {name: redact_secrets(printable(str(value))) for name, value in attributes.items()}
    element = Element(tag, {name: _INVALID_XML.sub("?", value) for name, value in shown.items()})
    element.text = _INVALID_XML.sub("?", text)
    element.extend(children)
    return element


def _xml_text(root: Element) -> str:
    from xml.etree.ElementTree import indent, tostring

    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, "unicode")}'


def _github_text(report: Report) -> str:
    return "\n".join([*map(_github_annotation, report.findings), _report_text(report).splitlines()[-1]])


def _github_annotation(finding: Finding) -> str:
    texts = (finding.file, finding.code, f"{finding.place}: {finding.message}. {finding.remedy}")
    file, title, message = (printable(text).replace("%", "%25") for text in texts)
    file, title = (text.replace(":", "%3A").replace(",", "%2C") for text in (file, title))
    return f"::error file={file},title={title}::{message}"
