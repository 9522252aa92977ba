"""A plan is carried out: tasks to workers, results to the publisher, totals to the dataset file.

What every verb that writes shares. Everything here runs in the parent process; it holds no sample's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardtool.checksum import crc32c, show_fingerprint
from shardtool.dataset import DatasetFile, ShardEntry
from shardtool.errors import Bug, SampleFailed, ShardError, listing
from shardtool.pattern import sidecar_name
from shardtool.plan import fingerprint
from shardtool.sample import counted, output_text, to_bytes, to_text
from shardtool.sidecar import ShardFact, Written, encode, index_of, read_facts, read_field_crcs
from shardtool.storage import identity
from shardtool.write.shard import pack_shard
from shardtool.write.task import Kept, ShardResult, ShardTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardtool.execute.local import LocalPool
    from shardtool.plan import Plan
    from shardtool.publish import Publisher
    from shardtool.sample import OnError, ShardSamples, Skipped
    from shardtool.verbs.observer import Observer

_CLOCK_SLACK_S = 60  # by how much the clocks of a source's and an output's file systems may differ
_SECOND_NS = 10**9


class Packing:
    """A plan being carried out, under the lock.

    Args:
        plan: What to do.
        publisher: Where it goes.
        on_error: Whether a sample that cannot be read ends the run, or is left out.
        begun: When the run began, before the source was listed: seconds since 1970.
        observer: Is told of progress.

    Attributes:
        kept: How many shards an earlier run had finished.
    """

    def __init__(self, plan: Plan, publisher: Publisher, on_error: OnError, begun: float, observer: Observer) -> None:
        self.plan, self.publisher, self.on_error, self.observer = plan, publisher, on_error, observer
        self.stamp = _root_stamp(plan.entries.root)
        self.mtime_ns = (int(begun) - _CLOCK_SLACK_S) * _SECOND_NS + self.stamp  # see `_kept`
        self.entries: dict[int, ShardEntry] = {}
        self.skipped: list[Skipped] = [*plan.entries.left_out, *plan.left_out]
        self.digest = self.kept = self.field_bytes = 0
        self.field_counts = [0] * len(plan.entries.fields)
        self.schema: dict[str, str] = {}
        self._working: dict[int, ShardSamples] = {}
        self._reported: dict[int, tuple[int, int]] = {}

    def pack(self, pool: LocalPool) -> None:
        """Have every shard written, and publish each as it is done."""
        plan, existing = self.plan, self.publisher.existing
        names = [self.publisher.pattern.shard(at) for at in range(plan.shards)]
        resume = self.publisher.if_exists == "resume"
        new = [
            int(size) for name, size in zip(names, plan.sizes, strict=True)
            if not (resume and name in existing and (existing[name].size == size or self.on_error == "skip"))
        ]  # fmt: skip
        self.publisher.check_space(new)
        self.observer.start(len(plan.entries), int(plan.sizes.sum()), plan.shards)
        for _, result in pool.map(pack_shard, self._tasks(), self._progress):
            self._publish(result)
        written = sum(shard.samples for shard in self.entries.values())
        left_out = len(self.skipped) - len(plan.entries.left_out) - len(plan.left_out)
        if written + left_out != len(plan.entries):
            found = f"{written:,} written and {left_out:,} skipped of {len(plan.entries):,} planned samples"
            raise Bug(
                self.publisher.pattern.text, found, remedy="The dataset file was not written. Please report this."
            )
        if not written:
            raise SampleFailed(
                to_text(plan.entries.root), f"none of {left_out:,} samples could be packed",
                remedy="Run it without --on-error skip to see why. No dataset file was written.",
            )  # fmt: skip
        if empty := [shard.name for shard in self.entries.values() if not shard.samples]:
            self.observer.note(f"{counted(len(empty), 'shard')} without a sample, all left out: {listing(empty)}")

    def publish_dataset(self, made: Mapping[str, object]) -> DatasetFile:
        """Publish what was skipped and the dataset file; return what it says.

        Args:
            made: How the dataset was made: goes into the dataset file as it is.
        """
        plan, pattern = self.plan, self.publisher.pattern
        self.skipped.sort(key=lambda one: (to_bytes(one.path), to_bytes(one.key)))
        dataset = DatasetFile(
            name=output_text(pattern.base),
            pattern=output_text(pattern.text),
            format=pattern.format,
            shards=tuple(self.entries[shard] for shard in range(plan.shards)),
            fields={name: count for name, count in zip(plan.entries.fields, self.field_counts, strict=True) if count},
            field_bytes=self.field_bytes,
            skipped=len(self.skipped),
            schema=self.schema,
            classes=plan.entries.classes,
            features=self._features() if plan.format == "tfrecord" else {},
            made=made,
            fingerprint=show_fingerprint(self.digest),
        )
        names = [pattern.shard(shard) for shard in range(plan.shards)]
        self.publisher.finish(names, dataset.encode(), self.skipped)
        return dataset

    def _features(self) -> dict[str, str]:
        """Return what TensorFlow must be told to parse the Examples; what some lack gets a default."""
        entries = self.plan.entries
        total, found = sum(shard.samples for shard in self.entries.values()), {}
        for name, count in zip(entries.fields, self.field_counts, strict=True):
            kind = {"int64": "tf.int64", "float": "tf.float32"}.get(entries.numbers.get(name, ""), "tf.string")
            default = "" if count == total else ', default_value=""' if kind == "tf.string" else ", default_value=-1"
            if count:
                found[name] = f"tf.io.FixedLenFeature([], {kind}{default})"
        return {"__key__": "tf.io.FixedLenFeature([], tf.string)", **found}

    def _tasks(self) -> Iterator[ShardTask]:
        for shard in range(self.plan.shards):
            samples = self._working[shard] = self.plan.samples(shard)
            name = self.publisher.pattern.shard(shard)
            kept = self._kept(shard, name, samples)
            folder = self.publisher.folder
            yield ShardTask(shard, name, self.plan.format, folder, samples, self.on_error, self.mtime_ns, kept)

    def _kept(self, shard: int, name: str, samples: ShardSamples) -> Kept | None:
        """Return what is known of a file that an earlier run has left; None where it must be written."""
        fact = self.publisher.existing.get(name)
        if self.publisher.if_exists != "resume" or fact is None:
            return None
        if fact.size != self.plan.sizes[shard]:  # another plan's, or one that left samples out, and would again
            return Kept() if self.on_error == "skip" and fact.size < self.plan.sizes[shard] else None
        if self.plan.changed_ns(shard) >= fact.mtime_ns or fact.mtime_ns % _SECOND_NS != self.stamp:
            return Kept()
        # A shard's modification time is a while before its run listed the source, and its nanoseconds name the
        # source's root. So nothing below this root that leads to the shard's files has changed since; and the time
        # is ours, not that of a copy of the shard, which would tell nothing of when its source was read.
        index = sidecar_name(name)
        try:
            data = self.publisher.folder.read(index)
            said = read_facts(data, index)
            if said.plan != self._fingerprint(samples) or (said.name, said.size) != (output_text(name), fact.size):
                return Kept()
            crcs = read_field_crcs(data, index)
        except (OSError, ShardError):
            return Kept()
        return Kept(said.crc, crcs) if len(crcs) == 2 * len(samples.codes) else Kept()

    def _fingerprint(self, samples: ShardSamples) -> str:
        return fingerprint(self.plan.format, samples, source_paths=self.plan.entries.source_paths)

    def _publish(self, result: ShardResult) -> None:
        """Publish a shard and its sidecar, and add it to the totals."""
        shard, samples = result.shard, self._working.pop(result.shard)
        name = self.publisher.pattern.shard(shard)
        left_out = tuple(place for place, _ in result.skipped)
        plan = self.plan
        columns = plan.columns(shard)
        written = Written(plan.format, samples, columns, result.field_crcs, left_out, plan.entries.source_paths)
        index = index_of(written)
        shown = output_text(name)
        fact = ShardFact(shown, result.size, result.crc, self._fingerprint(samples))
        data, self.schema = encode(index, fact)
        self.publisher.add(result.staged, data, name)
        keys = index.keys[:-1].split(b"\0") if index.keys else [b""]
        self.entries[shard] = ShardEntry(
            shown, len(index.counts), result.size, result.crc, sidecar_name(shown), len(data), crc32c(data),
            keys[0].decode(), keys[-1].decode(),
        )  # fmt: skip
        self.skipped += [one for _, one in result.skipped]
        self.digest += result.digest
        self.kept += result.staged is None
        self.field_bytes += int(index.sizes.sum())
        for code, count in index.field_counts():
            self.field_counts[code] += count
        done_samples, done_bytes = self._reported.pop(shard, (0, 0))
        more = self.plan.count(shard) - done_samples, int(self.plan.sizes[shard]) - done_bytes
        self.observer.advance(max(0, more[0]), max(0, more[1]), 1)
        state = "kept" if result.staged is None else "written"
        self.observer.log(f"{name}: {state}, {len(index.counts):,} samples, {result.size:,} bytes")

    def _progress(self, shard: int, samples: int, size: int) -> None:
        done = self._reported.get(shard, (0, 0))
        self._reported[shard] = done[0] + samples, done[1] + size
        self.observer.advance(samples, size, 0)


def _root_stamp(root: bytes) -> int:
    """Return nine digits for the folder that a path leads to now, such as could be a time's nanoseconds."""
    return crc32c(identity(root).encode()) % (_SECOND_NS - 1) + 1
