"""How plans are carried out, and what tells a shard that is made so from any other."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardtool.plan.plan import fingerprint

if TYPE_CHECKING:
    from shardtool.pack.request import Request
    from shardtool.plan.plan import Plan
    from shardtool.request.options import OutputOptions
    from shardtool.transform.steps import Transform
    from shardtool.values import Dots, Oversize, ShardSamples


@dataclass(frozen=True, slots=True)
class Manner:
    """How plans are carried out.

    Attributes:
        request: What was asked for.
        begun: When the run began, before the source was listed: seconds since 1970.
        dots: The dot at which keys end in the names of a tar's members.
        keys: Hashes of the keys that the user's function made, over all splits.
    """

    request: Request
    begun: float
    dots: Dots = "first"
    keys: set[bytes] = field(default_factory=set)

    @property
    def transform(self) -> Transform | None:
        """What is done to each sample; None: nothing."""
        return self.request.transform

    @property
    def options(self) -> OutputOptions:
        """The options of the run."""
        return self.request.options


def shard_fingerprint(  # noqa: PLR0913 - all that decides the bytes
    plan: Plan, shard: int, samples: ShardSamples, *, work: str, oversize: Oversize, dots: Dots
) -> str:
    """Return what tells a planned shard from any other: what goes into it, and what is done to that.

    Args:
        plan: The plan.
        shard: Its number there.
        samples: Its samples.
        work: What tells the transform from any other; empty for none.
        oversize: What becomes of a sample that turns out to fit in no shard.
        dots: Where keys end in the names of a tar's members.
    """
    if work:
        work += f" {plan.limits.room} {plan.limits.max_count} {oversize}"
        work += " last" if dots == "last" else ""  # other keys of the function's may be in the way
        if (columns := plan.columns(shard)) is not None:
            work += " " + _table_hash(columns)
    return fingerprint(plan.format, samples, work)


def _table_hash(table: Any) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return blake2b(sink.getvalue(), digest_size=16).hexdigest()
