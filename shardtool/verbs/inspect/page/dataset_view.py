"""A dataset as the page shows it: the values that the templates read."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING
from urllib.parse import quote

from shardtool.names import to_output_name
from shardtool.storage.lookup import stat_file
from shardtool.storage.paths import base_name
from shardtool.units import pluralize
from shardtool.verbs.inspect.page.choose import ChosenSamples
from shardtool.verbs.inspect.page.samples import (
    common_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.dataset.stored import StoredDataset
    from shardtool.verbs.inspect.page.samples import ShownSample
    from shardtool.verbs.inspect.page.thumbnails import Thumbnail
    from shardtool.verbs.inspect.summary import FieldSummary, LabelSummary

    # A label, how many values it has, and the rows of a table of these.


MAX_LABEL_SETS = 6  # of labels


_MAX_FIELDS = 60


_MAX_LISTED_SHARDS = 9  # shards without a dataset file that are named one by one: a glob may mean others, too


_MAX_EXAMPLE_FIELDS = 4  # that the program names which reads the dataset


_MAX_ANCHOR_CHARS = 120  # characters


DATASET_LABEL = "dataset"  # the label that says which of several datasets a sample is of


def all_samples(views: Sequence[DatasetView]) -> list[ShownSample]:
    """Return the samples of a page, the odd ones last."""
    return [one for view in views for one in view.shown] + [one for view in views for one in view.strange]


def set_anchors(views: Sequence[DatasetView]) -> None:
    """Give each sample an id that tells its key, so that a link to it stays right as far as keys do."""
    seen: Counter[str] = Counter()
    for one in all_samples(views):
        name = "s-" + quote(one.chosen.key, safe="/", errors="replace")[:_MAX_ANCHOR_CHARS]
        name += f"~{one.why.partition(':')[0].replace(' ', '-')}" if one.why and name in seen else ""
        seen[name] += 1
        one.anchor = f"{name}~{seen[name]}" if seen[name] > 1 else name
    if len(views) > 1:
        for view in views:
            for one in view.shown + view.strange:
                one.labels.setdefault(DATASET_LABEL, view.name)


@dataclass(frozen=True)
class DatasetView(ChosenSamples):
    """A dataset as the page shows it.

    Attributes:
        name: What it is called.
        shown: Its samples.
        strange: Those that stand out.
        number: Which of several datasets it is, from 1; 0: it is the only one.
    """

    name: str
    shown: list[ShownSample]
    strange: list[ShownSample]
    number: int

    @property
    def dataset(self) -> StoredDataset:
        """The dataset."""
        return self.overview.dataset

    @property
    def file(self) -> DatasetFile | None:
        """What its dataset file says."""
        return self.dataset.file

    def id(self, name: str) -> str:
        """Return the id of a part of the page that is about it."""
        return f"{name}-{self.number}" if self.number else name

    @property
    def state(self) -> tuple[str, str]:
        """How whole it is: `good`, `warn` or `bad`, and a few words."""
        summary = self.summary
        if missing := sum(one.code == "missing-shard" for one in summary.problems):
            return "bad", f"{pluralize(missing, 'shard')} missing"
        if summary.problems:
            return "bad", pluralize(len(summary.problems), "problem")
        return ("good", "complete") if summary.complete else ("warn", "no dataset file: completeness unknown")

    @property
    def pattern(self) -> str:
        """The names of its shards."""
        shards = self.dataset.shards
        return self.file.pattern if self.file else " to ".join(dict.fromkeys((shards[0].name, shards[-1].name)))

    @cached_property
    def written(self) -> str:
        """When its dataset file, or else its last shard, was written, as the file system has it; empty: not known."""
        try:
            time = stat_file(self.dataset.dataset_file or self.dataset.shards[-1].path).st_mtime
            return f"{datetime.fromtimestamp(time, timezone.utc):%Y-%m-%d %H:%M} UTC"
        except (OSError, ValueError, OverflowError):  # it is not there, or in a store; or no date
            return ""

    @property
    def program(self) -> str:
        """A few lines of Python that read it."""
        shards = [shard.name for shard in self.dataset.shards]
        start, end = (common_prefix([one[::step] for one in shards]).rstrip("0123456789") for step in (1, -1))
        given: str | list[str] = to_output_name(base_name(self.dataset.dataset_file or ""))
        given = given or (f"{start}*{end[::-1]}" if start and shards[_MAX_LISTED_SHARDS:] else shards)
        shown = "".join(f"    sample[{json.dumps(name)}]\n" for name, _ in self.fields[:_MAX_EXAMPLE_FIELDS])
        return (
            f"import shardtool\n\ndataset = shardtool.open({json.dumps(given)})\n"
            f"stream = dataset.stream(shuffle=True, seed=0)\nfor sample in stream.decode():\n{shown}"
        )

    @cached_property
    def fields(self) -> list[tuple[str, FieldSummary]]:
        """Its fields, those of most samples first."""
        found = sorted(self.summary.fields.items(), key=lambda one: (-one[1].samples, -one[1].size.total, one[0]))
        return found[:_MAX_FIELDS]

    @property
    def labels(self) -> list[tuple[str, LabelSummary, list[tuple[str, int]]]]:
        """What may be labels, with their values and how many samples have each."""
        labels = [*self.summary.labels.items()][:MAX_LABEL_SETS]
        return [(name, one, [(value.name, value.samples) for value in one.values]) for name, one in labels]

    @cached_property
    def firsts(self) -> dict[tuple[str, str], str]:
        """Label and value to the id of the first sample that is shown of it."""
        return {both: one.anchor for one in reversed(self.shown) for both in one.labels.items()}

    @property
    def _pictures(self) -> list[Thumbnail]:
        return [one.images[0] for one in self.shown if one.images]

    @property
    def tallies(self) -> list[list[tuple[str, int]]]:
        """The formats of its pictures, and their modes, with how many there are of each."""
        counts = [Counter(map(attrgetter(name), self._pictures)) for name in ("kind", "mode")]
        return [sorted(one.items(), key=lambda both: (-both[1], both[0]))[:6] for one in counts]

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """Width and height of its pictures."""
        return [one.full for one in self._pictures]

    @property
    def dots(self) -> list[tuple[int, int, int, float]]:
        """Width and height of its pictures, how many have both, and the radius of a dot for these."""
        return [
            (
                *size,
                count,
                min(9.0, 2.6 * math.sqrt(count) if count < _MAX_AREA_IMAGES else 3.6 + math.log2(count) * 0.6),
            )
            for size, count in sorted(Counter(self.pixels).items())
        ]

    @cached_property
    def shards(self) -> list[tuple[int, str, int | None, int | None]]:
        """Number, name, bytes and samples of each shard; what is missing or unknown is None."""
        found = []
        for shard in self.dataset.shards:
            entry, size = shard.entry, shard.size()
            samples = self.overview.counts.get(shard.number) if entry is None else entry.samples
            held = size if size is None or entry is None else entry.size
            found.append((shard.number, shard.file_name, held, samples))
        return found


_MAX_AREA_IMAGES = 4  # images of a size, up to which a dot has the area of their number
