"""Every example in the help runs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import zipfile
from typing import TYPE_CHECKING, Any

import click
import pandas as pd
import pytest

from shardtool import Cache, ShardWriter, create, index, reshard
from shardtool.cli import cli
from shardtool.cli.help import list_examples
from tests import warm
from tests.helpers import ENVIRONMENT, PATIENCE_S, PHOTOS, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_CONTEXT = click.Context(cli)
_ELSEWHERE = ("s3://", "https://")  # other tests cover commands with servers
_DIFFER = {"diff": (3,)}  # the exit code of datasets that differ
_HERE = {"/mnt/backup": "backup", "/data/imagenet": "out", "/fast/disk/cache": "cache", "/mnt/shared": "out"}


def _examples() -> dict[str, list[str]]:
    """Return all examples, by their verb."""
    verbs = cli.list_commands(_CONTEXT)
    commands = [cli, *(cli.get_command(_CONTEXT, verb) for verb in verbs)]
    lines = dict.fromkeys(line for command in commands if command is not None for line in list_examples(command))
    return {verb: [line for line in lines if f"shardtool {verb}" in line] for verb in verbs}


def _folders(here: Path) -> None:
    """Write the folders of files that the examples use."""
    photo = (PHOTOS / "cat" / "cat-0001.jpg").read_bytes()
    files = {}
    for at in range(24):
        kind = ("cat", "dog")[at % 2]
        files[f"{kind}/{at // 2:04}.jpg"] = photo
        files[f"{kind}/{at // 2:04}.json"] = json.dumps({"label": kind, "width": 40 + 20 * at}).encode()
    for folder in ("imgs", "live", "data/train", "data/val"):
        write_tree(here / folder, files)
    pairs = [(folder, ending, at) for folder, ending in (("images", "jpg"), ("masks", "png")) for at in range(9)]
    write_tree(here, {f"{folder}/{at}.{ending}": b"x" for folder, ending, at in pairs})
    with zipfile.ZipFile(here / "photos.zip", "w") as archive:
        for name, data in files.items():
            for part in ("a", "b", "c"):
                archive.writestr(f"{part}/{name}", data)


def _tables(here: Path) -> None:
    keys = [f"{kind}/{at:04}" for kind in ("cat", "dog") for at in range(12)]
    table = pd.DataFrame({"key": keys, "path": [f"imgs/{key}.jpg" for key in keys], "label": [key[:3] for key in keys]})
    table.to_parquet(here / "table.parquet")
    table.to_csv(here / "table.csv", index=False)
    pd.DataFrame({"id": keys, "key": keys, "label": table["label"]}).to_csv(here / "labels.csv", index=False)
    with (here / "list.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["path"], *([f"{key}.{end}"] for key in keys for end in ("jpg", "json"))])
    (here / "urls.csv").write_text("key,url\na,http://127.0.0.1:9/a.jpg\n")


def _datasets(here: Path) -> None:
    """Create the datasets, and the shards of other tools, that the examples use."""
    few: dict[str, Any] = {"workers": 0, "max_count": 10}
    create(here / "imgs", f"{here}/out-{{000000..}}.tar", columns_from=["json"], **few)
    keys = {path.relative_to(here / "imgs").with_suffix("") for path in (here / "imgs").rglob("*.*")}
    write_tree(here / "vectors", {f"{key}.npy": b"vector" for key in keys})
    create(here / "vectors", f"{here}/embeddings-{{000000..}}.tar", workers=0)
    create(here / "list.csv", f"{here}/listed-{{0..}}.tar", root=here / "imgs", workers=0)
    create(here / "imgs", f"{here}/records-{{000000..}}.tfrecord", **few)
    create(here / "data", f"{here}/out/{{split}}-{{000000..}}.tar", split_by="folder", columns_from=["json"], **few)
    for name in ("crawl", "crawl1", "crawl2", "more"):
        write_tree(here / "new" / name, {f"{name}/{at}.txt": b"text" for at in range(5)})
        where = here if name == "more" else here / name
        create(here / "new" / name, f"{where}/{name}-{{0..}}.tar", workers=0)
    for name, pattern in (("old", "old"), ("new", "new"), ("old", "v1/{split}"), ("new", "v2/{split}")):
        fields = {"txt": name.encode(), "cls": b"1", "json": b'{"width": 5}'}
        files = write_tree(here / "versions" / name, {f"{at}.{end}": fields[end] for at in range(9) for end in fields})
        create(
            files, f"{here}/{pattern}-{{0..}}.tar", split="train=0.5,val=0.5" if "split" in pattern else None, workers=0
        )
    reshard([here / "crawl1", here / "crawl2"], f"{here}/all-{{000000..}}.tar", workers=0)
    for number in range(2):
        with ShardWriter(f"{here}/parts/out-{{000000..}}.tar", part=number, parts=2) as writer:
            writer.write({"__key__": f"{number}", "txt": "text"})
    create(here / "imgs", f"{here}/out-{{000000..}}.tar", plan_only=here / "plan.parquet", workers=0, dry_run=True)
    write_tree(here / "many", {f"{at:03}.txt": b"text" for at in range(128)})
    for pattern in ("shards/train-{0000..0127}.tar", "train-{0000..0127}.tar", "downloaded/train-{000000..000127}.tar"):
        create(here / "many", here / pattern, workers=0)
        for made in (here / pattern).parent.glob("train*.*"):
            if made.suffix != ".tar":
                made.unlink()
    index(f"{here}/train-{{0000..0127}}.tar", workers=0)
    Cache(here / "cache", max_bytes="1GB")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all files that the examples use."""
    here = tmp_path_factory.mktemp("examples")
    _folders(here)
    _tables(here)
    _datasets(here)
    return here


def _ready(line: str, made: Path, place: Path) -> str:
    """Copy the folder without the output of an example, and return the command to run in the copy."""
    shutil.copytree(made, place, copy_function=os.link)
    output = re.search(r"'([^' ]*)-[{<%][^' ]*'", line)
    if output and re.search(r"shardtool (create|reshard) ", line) and "--append" not in line:
        for stem in {output[1].replace("{split}", split) for split in ("train", "val")}:
            for path in place.glob(f"{stem}[-.]*"):
                path.unlink()
    line = line.replace("out.json", "listed.json") if "list.csv" in line else line
    (place / "keys.txt").write_text("train/cat/0001\n" if "split" in line else "cat/0001\n")
    for there, here in _HERE.items():
        line = line.replace(there, here)
    return f"{line} --dry-run" if "--url " in line else line


@pytest.mark.slow
@pytest.mark.parametrize("verb", _examples())
def test_the_examples_of_the_help_run(verb: str, made: Path, tmp_path: Path) -> None:
    """In a folder with the named files, every example succeeds."""
    lines = [line for line in _examples()[verb] if not any(start in line for start in _ELSEWHERE)]
    environment = {**ENVIRONMENT, "PATH": warm.put_on_path(tmp_path / "bin")}
    failed = []
    for number, line in enumerate(lines):
        place = tmp_path / str(number)
        ran = subprocess.run(
            ["bash", "-c", _ready(line, made, place)], cwd=place, env=environment, capture_output=True, text=True,
            timeout=PATIENCE_S, pass_fds=warm.command()[1], check=False,
        )  # fmt: skip
        if ran.returncode not in (0, *_DIFFER.get(verb, ())):
            failed.append(f"{line}\n{ran.returncode}: {ran.stdout[-300:]}{ran.stderr[-500:]}")
        shutil.rmtree(place)
    assert not failed, "\n\n".join(failed)
    assert lines
