"""Run records in dataset files."""

from __future__ import annotations

from shardtool.request.run_record import RunRecord

_RUN = {"verb": "create", "news": [1], "source": "in", "split": "a", "options": {"dots": "last"}, "tool": "shardtool 1"}


def test_splits_of_one_run() -> None:
    """Records of one run differ only in the split; later appends are ignored."""
    record, sibling = RunRecord(_RUN), RunRecord({**_RUN, "split": "b", "appended": [{"verb": "create"}]})
    assert record.is_sibling_split_of(sibling)
    assert sibling.is_sibling_split_of(record)
    none = {name: value for name, value in _RUN.items() if name != "split"}
    for made in (_RUN, none, {**_RUN, "split": "b", "source": "elsewhere"}):
        assert not record.is_sibling_split_of(RunRecord(made))


def test_missing_parts_have_defaults() -> None:
    """Each property has the recorded value, or is empty by default."""
    record, empty = RunRecord(_RUN), RunRecord({})
    assert (record.verb, record.source, record.split, record.tool, record.dots) == (
        "create",
        "in",
        "a",
        "shardtool 1",
        "last",
    )
    assert (empty.verb, empty.source, empty.split, empty.tool, empty.dots) == ("", "", "", "", "first")
    assert (record.options, empty.options) == ({"dots": "last"}, {})


def test_appends_are_added_at_the_end() -> None:
    """An append is added at the end, without the split of the dataset; unknown names are kept."""
    once = RunRecord(_RUN).with_append(RunRecord({**_RUN, "source": "more"}))
    twice = once.with_append(RunRecord({**_RUN, "split": "b"}))
    assert [*twice.document.items()][:-1] == [*_RUN.items()]
    assert [(run.source, run.split) for run in twice.appended] == [("more", ""), ("in", "b")]
    assert twice.appended[0].document["news"] == [1]
