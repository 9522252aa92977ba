"""Choose how to read the samples of a shuffle that exceeds memory.

`gather` reads each sample at its offset: one system call per sample, cheap from memory and fast disks, slow on
disks
that seek and in stores, and impossible in compressed files. `scatter` reads each source file once, in sequence, and
writes every payload to its offset in a spool, which packing reads region by region. Both give the same output.
"""

from __future__ import annotations

import os
import random
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from shardtool.errors import reporting_memory_errors
from shardtool.storage.paths import is_address
from shardtool.storage.staging import Folder, local_folder
from shardtool.units import format_size, format_time, parse_size
from shardtool.verbs.create.read_cost import MAX_PROBES, REMOTE_BYTE_S, REMOTE_REQUEST_S, ReadCost, measure_read_cost
from shardtool.verbs.create.resume import list_unwritten_sizes
from shardtool.verbs.create.scatter_pass import SpanPositions, SpoolLimits, planned_samples, scatter_payloads
from shardtool.write.buffers import MAX_GAP_BYTES
from shardtool.write.source_errors import SourceFailed
from shardtool.write.span_reader import MAX_OPEN_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.plan.plan import Plan
    from shardtool.shard_samples import SpanFile
    from shardtool.values import ReadMethod
    from shardtool.verbs.create.run import Run


def get_spool_location(run: Run) -> tuple[Folder, str] | None:
    """Return the folder and the name of the temporary file: the same for the same output. None: there is none.

    A part has none: it reads its samples where they lie, for it would arrange those of all others, too.
    """
    if run.shuffle is None or run.part is not None:
        return None
    temp, first, there = run.shuffle.temp_dir, run.outputs[0].pattern, run.outputs[0].destination.folder
    folder = there.temporary if temp is None else local_folder(temp)
    whose = os.path.realpath(os.path.join(first.folder, first.base)) if there.hides else there.full_path(first.base)
    return folder, f"{first.base}-{blake2b(os.fsencode(whose), digest_size=6).hexdigest()}.spool"


@reporting_memory_errors("arranging the payloads")
def arrange_payloads(run: Run) -> None:
    """Bring payloads of datasets into a better order before they are packed, where that pays; outputs are locked."""
    temporary, compressed = get_spool_location(run), run.listed.compressed
    if run.shuffle is None or temporary is None or run.entries.known_spans.row_file is not None:
        return
    to_write = sum(sum(list_unwritten_sizes(run, output)) for output in run.outputs)
    if not to_write and not compressed:
        return  # all is there, and is only compared
    plans = [output.plan for output in run.outputs]
    memory, workers = parse_size(run.shuffle.memory), run.pool.max_per_machine
    method = choose_read_strategy(plans, workers=workers, packed=compressed, asked=run.shuffle.method)
    if method.note:
        run.notes.observer.log(method.note)
    if method.name == "scatter":
        folder, name = temporary
        besides = to_write if folder.shares_space(run.outputs[0].destination.folder.path) else 0
        room = SpoolLimits(folder, name, memory, workers, besides)
        plans = scatter_payloads(plans, room, run.pool, run.notes.observer, on_error=run.options.on_error)
        for output, plan in zip(run.outputs, plans, strict=True):
            output.plan = plan


class ReadStrategy(NamedTuple):
    """The way in which the samples of plans are read.

    Attributes:
        name: `order`: they lie as they are wanted; `gather`: each at its place; `scatter`: in two passes.
        note: For people: what was chosen and why; empty where there was no choice.
    """

    name: Literal["order", "gather", "scatter"]
    note: str = ""


def choose_read_strategy(plans: list[Plan], *, workers: int, packed: bool, asked: ReadMethod) -> ReadStrategy:
    """Return how the samples of `plans` should be read.

    Where it is not plain, some samples are read where they lie, and some megabytes in sequence, to learn what costs
    less. That may differ from machine to machine; what is written does not. In a store nothing is measured, for one
    request says little of the next: requests and bytes are weighed, so that the same job is done in the same way.

    Args:
        plans: Of the same samples, in whose order they are wanted.
        workers: How many processes will read.
        packed: Whether files are compressed, so that nothing can be read at its place.
        asked: What the user wants.
    """
    entries = plans[0].entries
    lie = SpanPositions(entries)
    size = sum(int(lie.sizes[planned_samples(plan)].sum()) for plan in plans)
    if packed:
        note = f"two passes over {format_size(size)}: compressed shards can only be read in sequence"
        return ReadStrategy("scatter", note)
    if all(_is_in_order(plan, lie) for plan in plans):
        return ReadStrategy("order")
    if asked != "auto":
        return ReadStrategy(asked)
    return _choose_cheaper(plans, entries.known_spans.files, lie, size, workers)


def _is_in_order(plan: Plan, lie: SpanPositions) -> bool:
    """Tell whether samples lie in the order of a plan, file by file, in whatever order the files are."""
    which = planned_samples(plan)
    which = which[lie.start[which] < lie.NOWHERE]
    file, start = lie.file[which], lie.start[which]
    breaks = (file[1:] != file[:-1]) | (start[1:] < start[:-1])
    return int(np.count_nonzero(breaks)) < max(1, int(np.count_nonzero(np.bincount(file))))


def _choose_cheaper(
    plans: list[Plan], files: Sequence[SpanFile], lie: SpanPositions, size: int, workers: int
) -> ReadStrategy:
    """Return the method that will cost less, by what reading costs here."""
    samples = sum(map(len, plans))
    if samples <= MAX_PROBES or not size:
        return ReadStrategy("gather")
    read = min(size + samples * MAX_GAP_BYTES, sum(file.size for file in files))  # through what is not wanted
    if is_address(files[0].path):
        figure = f"{samples:,} requests, one a sample, are weighed as {format_time(REMOTE_REQUEST_S)} each"
        cost = ReadCost(REMOTE_REQUEST_S + size / samples * REMOTE_BYTE_S, REMOTE_BYTE_S)
        workers = 1  # both ways run in all of them
    else:
        chance = random.Random(0)  # noqa: S311 - seeded: the same places each time
        orders = [order[lie.sizes[order] > 0] for order in map(planned_samples, plans)]
        chosen = [int(order[chance.randrange(len(order))]) for order in orders for _ in range(MAX_PROBES) if len(order)]
        chance.shuffle(chosen)
        places = [(files[int(lie.file[at])], int(lie.start[at])) for at in chosen]
        try:
            cost = measure_read_cost(places, size // samples, opening=len(files) > MAX_OPEN_FILES)
        except (OSError, SourceFailed):
            return ReadStrategy("gather")  # packing will meet that too, and say so
        figure = f"a sample costs {format_time(cost.sample_s)} to read at random here"
    if is_gathering_cheaper(samples, size, read, workers, cost):
        return ReadStrategy("gather", f"shuffled by gathering: {figure}")
    return ReadStrategy("scatter", f"shuffled in two passes over {format_size(size)}: {figure}")


def is_gathering_cheaper(samples: int, size: int, read: int, workers: int, cost: ReadCost) -> bool:
    """Tell whether it takes no longer to read each sample at its place than to read and write all bytes twice.

    Args:
        samples: How many.
        size: Their bytes.
        read: Bytes that a scatter reads of the source, with what lies between samples.
        workers: How many read at the same time, where each waits for its samples.
        cost: What reading costs.
    """
    return samples * cost.sample_s / workers + size * cost.byte_s <= (read + 3 * size) * cost.byte_s
