"""What `verify` found, as text for people, and as JSON, JUnit XML and GitHub annotations for programs."""

from __future__ import annotations

import re
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from shardtool.cli.output import json_text
from shardtool.errors import ShardError, printable, without_secrets
from shardtool.storage.places import is_url, is_web
from shardtool.values import counted, show_size
from shardtool.verbs.verify.findings import KINDS

if TYPE_CHECKING:
    from shardtool.verbs.verify.findings import Finding, Report


_NO_XML = re.compile("[\ufffe\uffff]")


def rendered(report: Report, style: str) -> str:
    """Return a report as `text`, `json`, `junit` or `github`."""
    return {"text": _text, "json": _json, "junit": _junit, "github": _github}[style](report)


def _json(report: Report) -> str:
    return json_text(report.to_json())


def _text(report: Report) -> str:
    if not report.datasets:
        return _text_of_one(report)
    several = replace(report, dataset=counted(len(report.datasets), "dataset"), checked=())
    return "\n".join([*map(_text_of_one, report.datasets), "", *_total(several)])


def _text_of_one(report: Report) -> str:
    lines = [str(one) for one in report.findings]
    hidden = sum(report.counts.values()) - len(report.findings)
    if hidden > 0:
        lines.append(f"... and {hidden:,} more like these")
    if report.counts:
        lines.append("")
        for code, count in report.counts.items():
            lines.append(f"{count:>7,}  {code}: {KINDS[code].meaning}. {_cure(code, printable(report.dataset))}")
        lines.append("")
    return "\n".join(lines + _looked(report))


def _looked(report: Report) -> list[str]:
    """Return what was mended, what was looked at and what was not, and whether it is sound."""
    lines = [f"repaired: {printable(one)}" for one in report.repaired]
    lines += [f"not checked: {printable(one)}" for one in report.unchecked]
    return lines + _total(report)


def _cure(code: str, dataset: str) -> str:
    """Return what to do about a kind of findings: the commands in it are about this dataset."""
    cure = KINDS[code].remedy.replace(" DATASET ", f" {quote(dataset)} ")
    if is_url(dataset) and "shardtool verify --repair" in cure:  # which mends folders only
        if is_web(dataset):
            return "Mend it where it was written: its own command with --resume, or `shardtool verify --repair` there."
        return (
            f"Run its own command again with --resume, or `shardtool copy SOUND {quote(dataset.rpartition('/')[0])}`."
        )
    return cure.replace("`shardtool verify --repair", f"`shardtool verify {quote(dataset)} --repair")


def _total(report: Report) -> list[str]:
    """Return how much was looked at, and whether it is sound."""
    size = report.size if report.read is None else report.read[1]
    rate = f", {show_size(size / max(report.seconds, 1e-9))}/s"
    held = f"{counted(report.samples, 'sample')} in " if report.samples else ""
    if report.samples and report.read is not None:
        held = f"{counted(report.samples, 'sample')} in {report.read[0]:,} of "
    looked = (
        f"{printable(report.dataset)}: {held}{counted(report.shards, 'shard')}, {show_size(report.size)}, "
        f"{report.seconds:.1f} s{rate if report.samples else ''}"
    )
    looked += f"; checked: {', '.join(report.checked)}" if report.checked else ""
    return [looked, "sound" if report.sound else f"not sound: {counted(sum(report.counts.values()), 'finding')}"]


def _junit(report: Report) -> str:
    """Return a test suite with a failed case for each finding, or one that passed; of several datasets, a suite each.

    Source: the JUnit XML that CI systems read, as in testmoapp/junitxml.
    """
    lines = ['<?xml version="1.0" encoding="UTF-8"?>']
    if not report.datasets:
        return "\n".join(lines + _suite(report, "shardtool verify"))
    suites = [_suite(one, f"shardtool verify {one.dataset}") for one in report.datasets]
    tests, failures = sum(max(1, len(one.findings)) for one in report.datasets), len(report.findings)
    lines.append(
        f'<testsuites name="shardtool verify" tests="{tests}" failures="{failures}" errors="0" '
        f'time="{report.seconds:.3f}">'
    )
    return "\n".join([*lines, *(line for suite in suites for line in suite), "</testsuites>"])


def _suite(report: Report, name: str) -> list[str]:
    """Return the test suite of a dataset."""
    from xml.sax.saxutils import escape  # brings an HTTP client along

    failures = len(report.findings)
    counts = f'tests="{max(1, failures)}" failures="{failures}" errors="0" skipped="0"'
    lines = [f'<testsuite name={_attribute(name)} {counts} time="{report.seconds:.3f}">']
    if not failures:
        lines.append(f'  <testcase classname="shardtool" name={_attribute(report.dataset)}/>')
    for one in report.findings:
        lines.append(f"  <testcase classname={_attribute(one.file)} name={_attribute(f'{one.code} {one.place}')}>")
        body = escape(_NO_XML.sub("?", f"{one}\n{one.remedy}"))
        lines.append(f"    <failure type={_attribute(one.code)} message={_attribute(one.message)}>{body}</failure>")
        lines.append("  </testcase>")
    looked = "\n".join(_looked(report))
    return [*lines, f"  <system-out>{escape(_NO_XML.sub('?', looked))}</system-out>", "</testsuite>"]


def junit_error(dataset: str, error: ShardError) -> str:
    """Return a test suite with a case that ended with an error: what wants a report finds one, whatever happened."""
    from xml.sax.saxutils import escape

    message, body = _attribute(error.found), escape(_NO_XML.sub("?", printable(str(error))))
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            '<testsuite name="shardtool verify" tests="1" failures="0" errors="1" skipped="0">',
            f'  <testcase classname="shardtool" name={_attribute(dataset)}>',
            f"    <error type={_attribute(error.code)} message={message}>{body}</error>",
            "  </testcase>",
            "</testsuite>",
        ]
    )


def _attribute(text: str) -> str:
    from xml.sax.saxutils import quoteattr

    return quoteattr(_NO_XML.sub("?", without_secrets(printable(text))))


def _github(report: Report) -> str:
    """Return an annotation for each finding.

    Source: GitHub Actions, "Workflow commands": what has a meaning in them is percent-encoded.
    """
    lines = [_annotation(one) for one in report.findings]
    lines.append(_text(report).splitlines()[-1])
    return "\n".join(lines)


def _annotation(one: Finding) -> str:
    title, file = (_property(text) for text in (one.code, one.file))
    message = printable(f"{one.place}: {one.message}. {one.remedy}").replace("%", "%25")
    return f"::error file={file},title={title}::{message}"


def _property(text: str) -> str:
    return printable(text).replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
