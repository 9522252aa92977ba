"""SIGKILL while URLs are fetched: visible files are complete, and `--resume` fetches only missing URLs."""

from __future__ import annotations

import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.faults.helpers import create, finished, settles, shards, start
from tests.fetch.server import body, web_server
from tests.helpers import members
from tests.stored import skipped, sound

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 4])
def test_kill_and_resume(count: int, tmp_path: Path) -> None:
    """A killed run is finished by the next one: each URL is in a shard or in the list of skipped samples."""
    with web_server() as web:
        urls = [web.url(f"later/{at}" if at % 4 else "status/404") for at in range(120)]
        source = tmp_path / "urls.csv"
        source.write_text("\n".join(["url", *urls, ""]))
        output, options = tmp_path / "out" / "out-{000..}.tar", ["--url", "jpg=url", "--allow-private"]
        options += ["--max-count", "10", "--workers", "2", "--per-host", "2"]
        run = start(source, output, *options)
        assert settles(lambda: not count or len(finished(tmp_path / "out")) >= 2 * count, step_s=0.0005)
        assert not (tmp_path / "out" / "out.json").exists(), "the run was over too soon to be disturbed"
        run.signal(signal.SIGKILL)
        run.end()
        assert run.all_gone(), "a worker outlives its parent"
        there, asked = {*finished(tmp_path / "out")} if count else set(), Counter(web.requests)
        again = create(source, output, *options, "--resume")
        assert (again.code, "Traceback" in again.err) == (0, False)
        done = {f"/later/{at}" for at in range(120) for name in there if name == f"out-{at // 10:03}.tar" and at % 4}
        assert len(done) >= 7 * count
        assert not done & {*(web.requests - asked)}
    found = members(*(tmp_path / "out" / name for name in shards(tmp_path / "out")))
    assert found == [(f"{at:09}.jpg", body(str(at))) for at in range(120) if at % 4]
    assert [row["key"] for row in skipped(tmp_path / "out" / "out.json")] == [f"{at:09}" for at in range(0, 120, 4)]
    sound(tmp_path / "out" / "out.json")
