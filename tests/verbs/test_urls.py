"""Laws of `create` over a manifest of URLs: each row ends in one place, with a reason; no secret is kept."""

from __future__ import annotations

import csv
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from shardtool import CreateOptions, CreateResult, InvalidRequest, Observer, SampleFailed, create
from shardtool.write.transform_packer import fetchers
from tests.fetch.server import BOMB, WebServer, body, web_server
from tests.helpers import PHOTOS, existing, members, read_tree, shards, typed, write_tree
from tests.stored import skipped, sound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")

SECRETS = ("hunter2", "s1gn4ture")


@pytest.fixture
def web() -> Iterator[WebServer]:
    """Give a web server; end what fetches in this process."""
    with web_server() as server:
        yield server
    while fetchers:
        fetchers.popitem()[1].close()


def _manifest(folder: Path, urls: Sequence[str]) -> Path:
    """Write a table of URLs, with a caption for each."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "urls.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("url", "caption"), *((url, f"caption {at}") for at, url in enumerate(urls))])
    return folder / "urls.csv"


def _create(source: object, folder: Path, observer: Observer | None = None, **options: Any) -> CreateResult:
    ending = options.pop("ending", "tar")
    changes = {
        "url": {"jpg": "url"},
        "allow_private": True,
        "workers": 0,
        "retries": 0,
        "max_failed": "100%",
        **options,
    }
    return create(source, f"{folder}/out-{{000..}}.{ending}", CreateOptions(**changes), observer=observer)


def _mixed(web: WebServer) -> list[tuple[str, str]]:
    """Return URLs of all kinds, and the code of each; empty: it gives a file."""
    kinds = [
        ("ok/a", ""), ("status/404", "http-404"), ("ok/b?token=s1gn4ture", ""), ("status/410", "http-410"),
        ("cut/a", "cut-short"), ("endless/a", "too-large"), ("bomb/a", "too-large"), ("loop/0", "bad-redirect"),
        ("robots/noai", "robots-header"), ("to/%2Fok%2Fc", ""), ("gzip/d", ""), ("drop/a", "no-connection"),
        ("stall/a", "timeout"), ("text/a", "not-an-image"), ("garbage/a", "bad-response"),
    ]  # fmt: skip
    result = [(web.url(path), code) for path, code in kinds]
    result += [("", "bad-url"), ("ftp://u:hunter2@127.0.0.1/a?sig=s1gn4ture", "bad-url")]
    result.append((web.url("ok/e").replace("://", "://user:hunter2@"), ""))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["tar", "tfrecord"])
def test_each_row_ends_in_one_place(web: WebServer, tmp_path: Path, ending: str) -> None:
    """Each URL is in a shard or, with its reason, in the list; keys are the rows' numbers, in the table's order."""
    rows = _mixed(web)
    source = _manifest(tmp_path / "in", [url for url, _ in rows])
    result = _create(
        source, tmp_path / "out", ending=ending, require="image", max_file_size=BOMB // 50, timeout=3, max_count=4
    )
    keys = [f"{at:09}" for at in range(len(rows))]
    packed = [name.removesuffix(".jpg") for name, _ in members(*shards(tmp_path / "out")) if name.endswith(".jpg")]
    left_out = {row["key"]: row["code"] for row in skipped(tmp_path / "out" / "out.json")}
    assert packed == [key for key, (_, code) in zip(keys, rows, strict=True) if not code]
    assert left_out == {key: code for key, (_, code) in zip(keys, rows, strict=True) if code}
    assert (result.samples, result.skipped) == (len(packed), len(left_out))
    sound(tmp_path / "out" / "out.json")


def test_files_and_columns(web: WebServer, tmp_path: Path) -> None:
    """A sample has its file, and its other columns as JSON and in the sidecar, with the URL."""
    source = _manifest(tmp_path / "in", [web.url(f"ok/{at}") for at in range(3)])
    _create(source, tmp_path / "out", field={"txt": "caption"}, meta="all")
    result = dict(members(*shards(tmp_path / "out")))
    assert result["000000001.jpg"] == body("1")
    assert result["000000001.txt"] == b"caption 1"
    table = pq.read_table(tmp_path / "out" / "out-000.index")
    assert table["url"].to_pylist() == [web.url(f"ok/{at}") for at in range(3)]
    assert table["caption"].to_pylist() == [f"caption {at}" for at in range(3)]


def test_no_secret_is_kept_or_shown(web: WebServer, tmp_path: Path) -> None:
    """No output, message or line on the terminal has a password or a signature of a URL; the server gets both."""
    urls = [
        web.url(f"{kind}/{at}?sig=s1gn4ture&id={at}").replace("://", "://user:hunter2@")
        for at, kind in enumerate(["ok", "ok", "status", "drop"])
    ]
    source = _manifest(tmp_path / "in", urls)
    options = ["--url", "jpg=url", "--meta", "url,caption", "--field", "txt=url", "--allow-private", "--retries", "0"]
    ran = [
        typed("create", source, tmp_path / "out" / "o-{0..}.tar", *options, *more)
        for more in (["--dry-run"], ["--max-failed", "0"], ["--resume", "-v", "--portable"], ["--overwrite", "--json"])
    ]
    ran.append(typed("verify", tmp_path / "out" / "o.json", "--source", source, "--json"))
    ran.append(typed("inspect", tmp_path / "out" / "o.json"))
    assert [item.code for item in ran] == [0, 6, 0, 0, 0, 0]
    seen = [item.out + item.err for item in ran] + [
        data.decode("latin-1") for data in read_tree(tmp_path / "out").values()
    ]
    seen += [str(row) for path in (tmp_path / "out").glob("*.index") for row in pq.read_table(path).to_pylist()]
    assert [text for text in seen if any(secret in text for secret in SECRETS)] == []
    assert any("id=1" in text for text in seen)
    assert web.requests["/ok/0?sig=s1gn4ture&id=0"]
    assert web.last_headers["Authorization"].startswith("Basic ")


def test_resume_fetches_nothing_twice(web: WebServer, tmp_path: Path) -> None:
    """Finished shards and their skipped samples are kept; `retry_failed` fetches shards with skipped samples."""
    urls = [web.url(f"ok/{at}" if at % 5 else f"busy/1/{at}") for at in range(20)]
    source = _manifest(tmp_path / "in", [*urls, *(web.url(f"ok/x{at}") for at in range(4))])
    first = _create(source, tmp_path / "out", max_count=4)
    before, options = read_tree(tmp_path / "out"), Counter(web.requests)
    assert (first.samples, first.skipped) == (20, 4)
    again = _create(source, tmp_path / "out", max_count=4, resume=True)
    assert again.kept == 6
    assert read_tree(tmp_path / "out") == before
    (tmp_path / "out" / "out.json").unlink()
    (tmp_path / "out" / "out.skipped").unlink()
    (tmp_path / "out" / "out-002.index").unlink()
    assert _create(source, tmp_path / "out", max_count=4, resume=True).kept == 5
    assert set((web.requests - options).elements()) == {f"/{'ok' if at % 5 else 'busy/1'}/{at}" for at in range(8, 12)}
    assert len(skipped(tmp_path / "out" / "out.json")) == 3
    last = _create(source, tmp_path / "out", max_count=4, resume=True, retry_failed=True)
    assert (last.samples, last.skipped, last.kept) == (24, 0, 3)
    sound(tmp_path / "out" / "out.json")


def test_a_new_signature_is_the_same_file(web: WebServer, tmp_path: Path) -> None:
    """A manifest with new signatures continues with the existing shards."""
    for name, kept in (("one", 0), ("two", 3)):
        urls = [web.url(f"ok/{at}?Signature={name}") for at in range(6)]
        if_exists = "resume" if kept else "error"
        done = _create(_manifest(tmp_path / "in", urls), tmp_path / "out", max_count=2, **existing(if_exists))
        assert done.kept == kept
    other = _manifest(tmp_path / "in", [web.url(f"ok/{at}?id=other") for at in range(6)])
    assert _create(other, tmp_path / "out", max_count=2, resume=True).kept == 0


def test_too_many_failures_end_the_run(web: WebServer, tmp_path: Path) -> None:
    """The run ends at a share of failures, with its finished shards; `--resume` continues."""
    urls = [web.url(f"ok/{at}" if at < 150 else f"status/{404}") for at in range(300)]
    source = _manifest(tmp_path / "in", urls)
    with pytest.raises(SampleFailed, match="100 of 100 samples failed") as caught:
        _create(source, tmp_path / "out", max_count=100, max_failed="90%")
    assert "max_failed" in caught.value.remedy
    with pytest.raises(SampleFailed, match="not a public address") as caught:
        _create(source, tmp_path / "private", max_failed="90%", allow_private=False)
    assert caught.value.remedy.endswith("Add allow_private=True to allow private addresses.")
    assert [path.name for path in shards(tmp_path / "out")] == ["out-000.tar", "out-001.tar"]
    assert not (tmp_path / "out" / "out.json").exists()
    done = _create(source, tmp_path / "out", max_count=100, resume=True)
    assert (done.kept, done.samples, done.skipped) == (2, 150, 150)
    with pytest.raises(SampleFailed, match="1 of 2 samples failed"):
        _create(_manifest(tmp_path / "in", [urls[0], urls[-1]]), tmp_path / "strict", max_failed=0)


def test_a_web_that_is_not_there(web: WebServer, tmp_path: Path) -> None:
    """Private addresses are refused by default; where no sample is left, there is no dataset."""
    source = _manifest(tmp_path / "in", [web.url("ok/a")] * 3)
    with pytest.raises(SampleFailed, match="none of 3 samples could be packed: refused-address 3") as caught:
        _create(source, tmp_path / "out", allow_private=False)
    assert caught.value.remedy.startswith("Add allow_private=True")
    assert not web.requests
    assert not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize("if_exists", ["error", "resume", "overwrite"])
def test_no_file_remains_if_all_urls_fail(web: WebServer, tmp_path: Path, if_exists: str) -> None:
    """If all URLs fail, the run reports the number for each reason, and recommends no missing option.

    No shard or list remains that a later run would consider finished: the same command then creates the dataset.
    """
    deleted = _manifest(tmp_path / "in", [web.url("status/404"), web.url("cut/a"), web.url("status/404")])
    for _ in range(2):
        with pytest.raises(SampleFailed, match="3 samples could be packed: http-404 2, cut-short 1") as caught:
            _create(deleted, tmp_path / "out", max_count=1, **existing(if_exists))
        assert "on_error" not in caught.value.remedy
        assert not any((tmp_path / "out").iterdir())
    there = _manifest(tmp_path / "in", [web.url(f"ok/{at}") for at in range(3)])
    assert _create(there, tmp_path / "out", max_count=1, **existing(if_exists)).samples == 3


def test_a_dry_run_sends_no_request(web: WebServer, tmp_path: Path) -> None:
    """A dry run says that sizes are unknown, sends no request, and plans 10,000 samples per shard by default."""
    source = _manifest(tmp_path / "in", [web.url("ok/a")] * 10_001)
    options = CreateOptions(url={"jpg": "url"})
    plan = create(source, f"{tmp_path}/out-{{0..}}.tar", options, dry_run=True)
    assert [shard.samples for shard in plan.planned] == [10_000, 1]
    assert any("10,001 URLs not fetched" in note for note in plan.notes)
    assert not web.requests


def test_the_bound_is_kept(web: WebServer, tmp_path: Path) -> None:
    """A shard is never larger than its bound, though the plan could only guess; no sample is lost for it."""
    source = _manifest(tmp_path / "in", [web.url(f"sized/{size * 1000}") for size in range(1, 40)])
    _create(source, tmp_path / "out", max_size=100_000, meta="none")
    sizes = [path.stat().st_size for path in shards(tmp_path / "out")]
    assert max(sizes) <= 100_000
    assert sorted(len(data) for _, data in members(*shards(tmp_path / "out"))) == [size * 1000 for size in range(1, 40)]
    sound(tmp_path / "out" / "out.json")


def test_images_are_changed(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded images can be changed; files that are not images are skipped."""
    photo = (PHOTOS / "cat" / "cat-0001.jpg").read_bytes()
    monkeypatch.setattr("tests.fetch.server.body", lambda name: photo if name == "good" else b"\xff\xd8\xff odd")
    source = _manifest(tmp_path / "in", [web.url("ok/good"), web.url("ok/bad")])
    _create(source, tmp_path / "out", resize=32, encode="png", probe=True)
    assert [name for name, _ in members(*shards(tmp_path / "out"))] == ["000000000.json", "000000000.png"]
    assert [row["code"] for row in skipped(tmp_path / "out" / "out.json")] == ["bad-image"]
    assert pq.read_table(tmp_path / "out" / "out-000.index")["mode"].to_pylist() == ["RGB"]


def test_files_here_and_in_the_web(web: WebServer, tmp_path: Path) -> None:
    """A sample may have local files next to URLs, and several of each."""
    write_tree(tmp_path / "in", {"a.png": b"mask a", "b.png": b"mask b"})
    rows = [("k1", "a.png", web.url("ok/1"), web.url("ok/x")), ("k2", "b.png", web.url("ok/2"), web.url("status/404"))]
    with (tmp_path / "in" / "urls.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("key", "mask", "url", "other"), *rows])
    _create(tmp_path / "in" / "urls.csv", tmp_path / "out", file={"png": "mask"}, url=("jpg=url", "webp=other"))
    assert members(*shards(tmp_path / "out")) == [("k1.jpg", body("1")), ("k1.png", b"mask a"), ("k1.webp", body("x"))]
    (row,) = skipped(tmp_path / "out" / "out.json")
    assert (row["key"], row["path"], row["code"]) == ("k2", web.url("status/404"), "http-404")


def test_the_source_is_compared_but_for_the_web(web: WebServer, tmp_path: Path) -> None:
    """`verify --source` compares keys and columns, sends no request, and says that downloads are not compared."""
    source = _manifest(tmp_path / "in", [web.url("ok/a"), web.url("status/404")])
    _create(source, tmp_path / "out")
    options = Counter(web.requests)
    ran = typed("verify", tmp_path / "out" / "out.json", "--source", source, "--json")
    assert (ran.code, web.requests) == (0, options)
    assert "1 file of URLs" in ran.out
    shard = tmp_path / "out" / "out-000.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    mended = typed("verify", tmp_path / "out" / "out.json", "--source", source, "--repair")
    assert mended.code != 0
    assert "--resume" in mended.out + mended.err
    assert web.requests == options


def test_progress_says_how_well_it_goes(web: WebServer, tmp_path: Path) -> None:
    """An observer hears of each sample, and of each that failed."""

    class Seen(Observer):
        def __init__(self) -> None:
            self.total = self.failures = self.samples = 0

        def start(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002
            self.total = samples
            assert size == 0, "no sizes are known"

        def failed(self, samples: int) -> None:
            self.failures += samples

        def advance(self, samples: int, size: int, shards: int) -> None:  # noqa: ARG002
            self.samples += samples

    seen = Seen()
    source = _manifest(tmp_path / "in", [web.url(f"later/{at}" if at % 3 else "status/404") for at in range(40)])
    _create(source, tmp_path / "out", seen, connections=2, max_count=15)
    assert (seen.total, seen.samples, seen.failures) == (40, 40, 14)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": ()}, "no URLs to fetch"),
        ({"url": {"jpg": "nothing"}}, "no column 'nothing'"),
        ({"url": {"jpg": "url"}, "file": {"jpg": "url"}}, "jpg"),
        ({"url": ("url",)}, "such as jpg=url"),
        ({"part": "1/2", "max_size": 1000}, "samples of known size"),
        ({"plan_only": "p.parquet"}, "one of them"),
        ({"user_agent": "a\nb"}, "one line of ASCII"),
        ({"retry_failed": True}, "nothing to resume"),
        ({"max_file_size": "big"}, "invalid size"),
        ({"max_failed": "2"}, "a share from 0 to 1"),
        ({"timeout": 0}, "a whole number from 1"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """Invalid options are refused before any request."""
    source = _manifest(tmp_path / "in", ["http://127.0.0.1:1/a"])
    with pytest.raises(InvalidRequest, match=message):
        _create(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_folder_has_no_urls(tmp_path: Path) -> None:
    """Options for URLs require a table; for a table of URLs, the error names the option to use."""
    write_tree(tmp_path / "in", {"a.jpg": b"a"})
    with pytest.raises(InvalidRequest, match="the source is a folder"):
        create(tmp_path / "in", f"{tmp_path}/out-{{0..}}.tar", CreateOptions(url=("jpg=url",), connections=3))
    with pytest.raises(InvalidRequest, match=r"connections: no URLs to fetch; expected url=.jpg=url., too"):
        CreateOptions(connections=3)
    source = _manifest(tmp_path / "table", ["http://127.0.0.1:1/a"])
    with pytest.raises(InvalidRequest, match="urls") as caught:
        create(source, f"{tmp_path}/out-{{0..}}.tar", CreateOptions(path="url"))
    assert "Fetch them" in caught.value.remedy


def test_parts_fetch_their_own(web: WebServer, tmp_path: Path) -> None:
    """Runs side by side fetch a part of the shards each; together they make the dataset of one run."""
    urls = [web.url(f"ok/{at}" if at % 4 else "status/404") for at in range(30)]
    source = _manifest(tmp_path / "in", urls)
    _create(source, tmp_path / "one", max_count=4)
    for part in ("2/3", "1/3", "3/3"):
        _create(source, tmp_path / "out", max_count=4, part=part, shards_multiple_of=2)
    assert members(*shards(tmp_path / "out")) == members(*shards(tmp_path / "one"))
    assert skipped(tmp_path / "out" / "out.json") == skipped(tmp_path / "one" / "out.json")
    assert web.requests["/ok/1"] == 2
    sound(tmp_path / "out" / "out.json")


def double(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sample under two keys."""
    return [{**sample, "__key__": f"{sample['__key__']}-{at}"} for at in "ab"]


def test_a_part_does_not_write_more_shards_than_planned(web: WebServer, tmp_path: Path) -> None:
    """A function that adds samples cannot fill more shards than the part has; the remedy works."""
    source = _manifest(tmp_path / "in", [web.url(f"ok/{at}") for at in range(8)])
    with pytest.raises(InvalidRequest, match="3 shards or more after transforming; expected 2 as planned") as caught:
        _create(source, tmp_path / "out", part="1/2", max_count=4, map=double)
    assert caught.value.remedy == "Use shards, not max_count, and add resume=True."
    for part in ("1/2", "2/2"):
        _create(source, tmp_path / "out", part=part, shards=2, resume=True, map=double)
    assert len(members(*shards(tmp_path / "out"))) == 2 * 2 * 8
    sound(tmp_path / "out" / "out.json")


def test_missing_aiohttp_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without aiohttp, the message says what to install."""
    monkeypatch.setattr("shardtool.request.create_options.find_spec", lambda _name: None)
    with pytest.raises(InvalidRequest, match="aiohttp") as caught:
        _create(_manifest(tmp_path / "in", ["http://127.0.0.1:1/a"]), tmp_path / "out")
    assert "shardtool[urls]" in caught.value.remedy


def test_what_is_recorded(web: WebServer, tmp_path: Path) -> None:
    """The dataset file has the options that decide which files are taken, and none of how they were fetched."""
    source = _manifest(tmp_path / "in", [web.url("ok/a")])
    _create(source, tmp_path / "out", require="image", timeout=3, user_agent="me/1", robots="ignore", connections=2)
    made = json.loads((tmp_path / "out" / "out.json").read_text())["shardtool"]["made"]
    assert made["options"] == {"urls": ["jpg=url"], "require": "image", "robots": "ignore"}
    assert web.last_headers["User-Agent"] == "me/1"
