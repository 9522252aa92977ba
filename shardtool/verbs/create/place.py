"""Payloads of datasets are brought into a better order before they are packed, where that pays."""

from __future__ import annotations

import os
from hashlib import blake2b
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest, memory_for
from shardtool.request.options import ReshardOptions
from shardtool.storage.staging import local_folder
from shardtool.values import parse_size
from shardtool.wording import option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.execute.pool import Pool
    from shardtool.plan.plan import Plan
    from shardtool.request.results import Notes
    from shardtool.source.base import Listing
    from shardtool.storage.staging import Folder
    from shardtool.verbs.create.plans import Plans
    from shardtool.verbs.create.request import OutputDataset, Request
    from shardtool.verbs.create.samples import Samples


_UNPACKED = "payloads in a table or a compressed archive, which are unpacked into one file first"


def check_memory(request: Request) -> None:
    """Refuse a run that may hold less than its buffers take.

    Raises:
        InvalidRequest: It is one.
    """
    if isinstance(request.options, ReshardOptions):
        from shardtool.verbs.create import shuffle

        shuffle.check_memory(parse_size(request.options.memory))


def check_method(request: Request, listed: Listing) -> None:
    """Refuse to gather samples of compressed shards, or to pack what only one pass can read in parts.

    Raises:
        InvalidRequest: That was asked for.
    """
    spans = listed.entries.spans
    if request.part is not None and spans is not None and (listed.compressed or not spans.files):
        found = "compressed shards, which can only be read in sequence" if listed.compressed else _UNPACKED
        expected, remedy = "payloads that each part can read at their places", "Write it in one run."
        raise InvalidRequest(option("part", request.options.part), found, expected=expected, remedy=remedy)
    if isinstance(request.options, ReshardOptions):
        from shardtool.verbs.create import shuffle

        shuffle.check_method(request.options.method, packed=listed.compressed)


def temporary_file(request: Request, targets: Sequence[OutputDataset]) -> tuple[Folder, str] | None:
    """Return the folder and the name of the temporary file: the same for the same output. None: there is none.

    A part has none: it reads its samples where they lie, for it would arrange those of all others, too.
    """
    options = request.options
    if not isinstance(options, ReshardOptions) or request.part is not None:
        return None
    first = targets[0].pattern
    output = targets[0].output.folder
    folder = output.temporary if options.temp_dir is None else local_folder(os.fspath(options.temp_dir))
    whose = os.path.realpath(os.path.join(first.folder, first.base)) if output.hides else output.full_path(first.base)
    return folder, f"{first.base}-{blake2b(os.fsencode(whose), digest_size=6).hexdigest()}.spool"


@memory_for("arranging the payloads")
def arrange_payloads(request: Request, samples: Samples, planned: Plans, pool: Pool, notes: Notes) -> Sequence[Plan]:
    """Return the plans for payloads that lie where they can be read better; the output is locked."""
    options, plans, compressed = request.options, [*planned.each], samples.listed.compressed
    temporary = temporary_file(request, samples.targets)
    if not isinstance(options, ReshardOptions) or temporary is None:
        return plans
    from shardtool.verbs.create.resume import new_sizes
    from shardtool.verbs.create.shuffle import SpoolRoom, choose_method, scatter

    both = zip(plans, samples.targets, strict=True)
    to_write = sum(sum(new_sizes(plan, target.output, request)) for plan, target in both)
    if not to_write and not compressed:
        return plans  # all is there, and is only compared
    memory, workers = parse_size(options.memory), pool.most_together
    method = choose_method(plans, memory=memory, workers=workers, packed=compressed, asked=options.method)
    if method.note:
        notes.add(method.note)
    if method.name != "scatter":
        return plans
    folder, name = temporary
    besides = to_write if folder.shares_space(samples.targets[0].output.folder.path) else 0
    room = SpoolRoom(folder, name, memory, workers, besides)
    return scatter(plans, room, pool, notes.observer, on_error=options.on_error)
