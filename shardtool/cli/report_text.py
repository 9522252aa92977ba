"""Format the report of `verify` as text, JSON, JUnit XML or GitHub annotations."""

from __future__ import annotations

import re
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from shardtool.cli.output import json_text
from shardtool.errors import ShardError, format_list, printable, redact_secrets
from shardtool.storage.remote.address import is_web
from shardtool.units import format_size, pluralize

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from shardtool.verbs.verify.findings import Finding, Report


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
    """Return JUnit XML for a check that stopped with an error."""
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
