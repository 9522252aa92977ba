"""Arguments of `create SOURCE... OUTPUT`."""

from __future__ import annotations

import pytest

from shardtool.cli.arguments import split_sources


@pytest.mark.parametrize(
    ("arguments", "sources", "output"),
    [
        ("imgs out-{000..}.tar", "imgs", ["out-{000..}.tar"]),
        ("images masks out-{000..}.tar", ["images", "masks"], ["out-{000..}.tar"]),
        ("imgs a.tar b.tar c.tar", "imgs", ["a.tar", "b.tar", "c.tar"]),
        ("images masks o-0.tar o-1.tar", ["images", "masks"], ["o-0.tar", "o-1.tar"]),
        ("a.tar o-0.tar o-1.tar", "a.tar", ["o-0.tar", "o-1.tar"]),
        ("a.tar b.tar out.tar", ["a.tar", "b.tar"], ["out.tar"]),
        ("- out.tfrecord", "-", ["out.tfrecord"]),
        ("images masks", "images", ["masks"]),
    ],
)
def test_the_last_argument_is_the_output(arguments: str, sources: object, output: list[str]) -> None:
    """The last argument and the shard names before it are the output; archives among the sources are not."""
    assert split_sources(tuple(arguments.split())) == (sources, output)
