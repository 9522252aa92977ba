"""What an earlier writer has left: the shards that another one goes on after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardtool.dataset.sidecar import ShardFact, tally_of
from shardtool.dataset.sidecar_read import Sidecar, read_sidecar
from shardtool.errors import InvalidRequest, OutputExists, ShardError, StoreFailed
from shardtool.fingerprint import crc32c
from shardtool.pattern import sidecar_name
from shardtool.publish.old_dataset import check_old
from shardtool.values import ShardContent, counted
from shardtool.wording import flag
from shardtool.write.buffers import packing_buffer
from shardtool.writer.journal import skipped_rows

if TYPE_CHECKING:
    from shardtool.dataset.dataset_file import DatasetFile
    from shardtool.request.observer import Notes
    from shardtool.writer.journal import Noted
    from shardtool.writer.output import Output
    from shardtool.writer.samples import SampleEncoder


def find_done(output: Output) -> DatasetFile | None:
    """Return the dataset that is there whole; None: there is none.

    Raises:
        CorruptShard: It is damaged.
        InvalidRequest: A writer that was to replace it was killed.
    """
    folder, pattern, existing = output.folder, output.pattern, output.destination.existing
    if pattern.dataset_file not in existing:
        return None
    found = output.journal.read()
    if found is not None and found[0].get("replaces") is True:
        problem = f"a writer that was to replace this dataset ({flag('overwrite')}) did not end"
        raise InvalidRequest(output.destination.dataset_file, problem, remedy=f"Run it again with {flag('overwrite')}.")
    return check_old(folder, pattern, existing, folder.read(pattern.dataset_file))


def take_back(output: Output, encoder: SampleEncoder, notes: Notes) -> Noted | None:
    """Add the shards that an earlier writer has finished to an output; return what is known of the last one.

    They are those that its journal lists, up to the first that is not as it says, to the byte: a note names it.

    Raises:
        InvalidRequest: It was asked for something else.
        OutputExists: There are shards, and nothing says whose they are.
    """
    noted = _noted(output)
    if noted is None:
        return None
    kept: list[Noted] = []
    for number, one in enumerate(noted):
        name = output.pattern.shard(number)
        sidecar = _sound(output, name, one)
        if sidecar is None or not _restored(output, one):
            lost = f"{one.shard} is not what its writer has made: it is written again"
            notes.add(lost if number == len(noted) - 1 else f"{lost}, with all after it")
            break
        data, rows = output.folder.read(sidecar_name(name)), sidecar.rows
        encoder.take_keys(rows.all_keys())
        output.take(sidecar.fact, data, tally_of(sidecar.plain_table()), int(one.digest, 16))
        output.totals.skipped += skipped_rows(one)
        output.totals.rounded.update(one.rounded)
        if output.pattern.format == "tar":
            output.notes.add(_content(sidecar), {})
        kept.append(one)
    if kept:
        encoder.restore(kept[-1].kinds, inline=kept[-1].inline)
    output.journal.start(kept)
    return kept[-1] if kept else None


def _noted(output: Output) -> list[Noted] | None:
    """Return the shards that the journal lists; None: there is no journal, and no shard.

    Raises:
        InvalidRequest: Its writer was asked for something else.
        OutputExists: There are shards, and nothing says whose they are.
    """
    journal = output.journal.read()
    if journal is None:
        if shards := [name for name in output.destination.existing if name.endswith(f".{output.pattern.format}")]:
            found = f"{counted(len(shards), 'shard')}, and no journal of the writer that made them"
            remedy = f"Choose another name, or replace what is there: {flag('overwrite')}."
            raise OutputExists(output.pattern.text, found, expected=output.journal.name, remedy=remedy)
        return None
    asked, noted = journal
    if not output.journal.fits(asked):
        problem = f"a writer that was asked for something else: {_differing(asked)}"
        remedy = f"Give it the same options, or replace what is there with {flag('overwrite')}."
        raise InvalidRequest(output.pattern.text, problem, remedy=remedy)
    return noted


def _sound(output: Output, name: str, noted: Noted) -> Sidecar | None:
    """Return the sidecar of a shard that is there as the journal says; None where it is not."""
    folder, view = output.folder, packing_buffer()
    size = crc = 0
    try:
        for got in folder.blocks(name, view):
            if isinstance(got, int):
                crc, size = crc32c(view[:got], crc), size + got
        found = read_sidecar(folder.read(sidecar_name(name)), name, size)
    except StoreFailed:
        raise
    except (OSError, ShardError):
        return None
    if output.pattern.format == "tar" and found.rows.fingerprint() not in (None, int(noted.digest, 16)):
        return None
    fact: ShardFact = found.fact
    right = (noted.shard, noted.size, noted.crc)
    return found if (fact.name, size, crc) == right and (fact.name, fact.size, fact.crc) == right else None


def _restored(output: Output, noted: Noted) -> bool:
    """Take back what is known of the columns once a shard is there; return whether that can be read."""
    try:
        output.columns.restore(noted.columns)
    except ValueError:
        return False
    return True


def _content(sidecar: Sidecar) -> ShardContent:
    """Return what a sidecar says of its shard's samples, their fields numbered in the order of their names."""
    rows = sidecar.rows
    names, codes = rows.codes_by_name()
    sizes = rows.lengths.astype(np.int64).tobytes()
    return ShardContent(
        keys=b"".join([key + b"\0" for key in rows.all_keys()]),
        counts=rows.counts.astype(np.uint16).tobytes(),
        fields=tuple(names),
        codes=codes,
        sizes=sizes,
        stored=sizes,
    )


def _differing(asked: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in asked.items() if name not in ("version", "replaces"))
