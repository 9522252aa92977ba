"""Compare the behaviour of two installations of shardtool, to find regressions after a large change.

    python -m tests.contract OLD_PYTHON NEW_PYTHON [NAME...]

Each Python interpreter has its own shardtool installed. Both run the same jobs: the command lines in `TABLE`, and the
examples in the documentation. The jobs of one paragraph of `TABLE`, or of one document, run in the same folder, which
contains `sample_data` at the start. NAME selects the paragraphs and documents whose names contain NAME.

For each job, the program compares exit code, stdout, stderr, and the content and mode of every file that the job
created, changed or deleted. The folders of both installations have paths of the same length. Paths and times are masked.
For each job with differences, the program prints a unified diff. If there are any, it exits with 1. No job uses the
network.
"""

# ruff: noqa: E501 (a line of the table is a command line)

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.test_readme import ROOT, blocks, read

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTS = ["README.md", "docs/cli.md", "docs/have/dataframe.md"]
_PATIENCE_S = 600
_TEXT = 2**20  # only the hashes of larger files are compared, without a diff of lines
_WIDTH = 400  # longer lines of a diff are truncated
_MASKS = [
    (re.compile(rb" *\b\d[\d.,]* (?:[kMGT]i?B|B|bytes|samples)(?:/s| a second)"), b" SPEED"),
    (re.compile(rb"(?<=plan\.parquet \()[\d.]+ kB"), b"SIZE"),
    (re.compile(rb"\d+% of a stream's time: .*"), b"SHARE"),
    (re.compile(rb"\b\d[\d.,]* (?:us|ms|s|seconds)\b"), b"TIME"),
    (re.compile(rb'("(?:seconds|[a-z_]*_s|[a-z_]*per_second)": *)[\d.e-]+'), rb"\1TIME"),
    (re.compile(rb'((?:time|timestamp)=")[^"]*'), rb"\1TIME"),
]
_CLOCK = re.compile(r"(?:^|/)(?:plan\.parquet|apart-0\.tar)$")  # contain times, so their content is not compared
_PROCESS = re.compile(r"(?<=/counts/)\d+-[0-9a-f]+$")  # a file of a cache, whose name contains a process id
# Prevent requests to stores and metadata servers: nothing listens on port 9 of this machine.
_NOWHERE = {
    "SHARDTOOL_ENDPOINT": "http://127.0.0.1:9",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GOOGLE_SKIP_SIGNATURE": "true",
    "AZURE_SKIP_SIGNATURE": "true",
}

TABLE = r"""
# create sizes
shardtool create sample_data/photos 'a-{000..}.tar' --max-size 500kB --label-from-folder --json
shardtool create sample_data/photos 'b-<00..04>.tfrecord' --equal-count --shuffle --seed 3
shardtool create sample_data/photos 'c-%03d.tar' --shards 6 --shards-multiple-of 3 --quiet
shardtool create sample_data/photos d-0.tar d-1.tar --include '*.jpg' --exclude cat
shardtool create sample_data/photos 'e-{0..}.tar' --max-size 60kB --oversize skip
shardtool create sample_data/photos 'f-{0..}.tar' --max-size 60kB --oversize alone --dry-run
shardtool create sample_data/photos 'g-{0..}.tar' --place hash --max-count 30 --sort-by size --descending
shardtool create sample_data/photos 'g-{0..}.tar' --place hash --max-count 30 --quiet

# create splits and labels
shardtool create sample_data/photos.csv 's/{split}-{000..}.tar' --split train=0.7,val=0.2,test=0.1 --seed 2 --json
shardtool create sample_data/photos.parquet 't/{split}-{000..}.tfrecord' --split 80%,20%
shardtool create sample_data/photos.parquet 't/{split}-{000..}.tfrecord' --split train=80%,val=20% --stratify bi --field cls=multi --classes cls
shardtool create sample_data/photos.jsonl 'u/{split}-{0..}.tar' --split-column bi --meta bi,width --key id
shardtool create sample_data/photos.tsv 'v-{0..}.tar' --where "width > height and bi == 'thing'" --field width=width --field text=multi
shardtool create sample_data/photos.feather 'w-{0..}.tar' --portable --resize 64 --encode png --probe
shardtool verify 's/{split}.json' t u --json

# create manifests
printf 'key,jpg,mask,label\na,cat-0001.jpg,cat-0002.jpg,7\nb,cat-0003.jpg,cat-0004.jpg,x\n' > m.csv
shardtool create m.csv 'm-{0..}.tar' --root sample_data/photos/cat --file jpg=jpg --file mask.jpg=mask --field cls=label
shardtool create m.csv 'n-{0..}.tar' --root nowhere --file jpg=jpg
shardtool create m.csv 'n-{0..}.tar' --root sample_data/photos/rocket --file jpg=jpg --on-error skip
shardtool create m.csv 'n-{0..}.tar' --root sample_data/photos/cat --file jpg=none
ls sample_data/photos/cat/*.jpg | shardtool create - 'o-{0..}.tfrecord' --json
printf 'key,path\na,../x.jpg\na,/etc/hostname\n' > bad.csv; shardtool create bad.csv 'p-{0..}.tar'

# create odd trees
mkdir -p tree/a tree/b.c; echo 1 > tree/a/x.1.txt; echo 2 > tree/a/x.2.txt; echo 3 > 'tree/b.c/u v.txt'; echo 4 > tree/.hidden; echo 5 > tree/README
shardtool create tree 't-{0..}.tar'
shardtool create tree 't-{0..}.tar' --dots last
shardtool create tree 'h-{0..}.tar' --dots first --hidden --json
shardtool create tree 'p-{0..}.tar' --dots last --portable --for dali,wids --export wids --export energon
printf '\377\376' > tree/a/y.txt; ln -s ../../../etc tree/out; printf 'k,animal\na/x.1,cat\n' > j.csv
shardtool create tree 'l-{0..}.tfrecord' --dots last --join j.csv --on k --on-error skip --columns-from txt
tar cf tree.tar --mtime=@0 tree; shardtool create tree.tar/tree 'z-{0..}.tar' --dots last --quiet; tar tf z-0.tar

# append and resume
shardtool create sample_data/photos 'a-{000..}.tar' --include 'cat/*' --max-count 5 --label-from-folder --quiet
shardtool create sample_data/photos 'a-{000..}.tar' --include 'rocket/*' --max-count 5 --append --label-from-folder
shardtool create sample_data/photos 'a-{000..}.tar' --include 'coffee/*' --max-count 5 --append --export timm --json
shardtool create sample_data/photos 'a-{000..}.tar' --include 'coffee/*' --max-count 5 --append --on-duplicate first
rm a.json a-001.tar a-002.index; shardtool create sample_data/photos 'a-{000..}.tar' --include 'cat/*' --max-count 5 --label-from-folder --resume
shardtool create sample_data/photos 'b-{000..}.tar' --max-size 1MB --quiet; rm b.json b-001.tar
shardtool create sample_data/photos 'b-{000..}.tar' --max-size 1MB --resume --json
shardtool create sample_data/photos 'b-{000..}.tar' --max-size 1MB --resume --trust size
shardtool create sample_data/photos 'b-{000..}.tar' --max-size 800kB --overwrite
shardtool create sample_data/photos 'b-{000..}.tar' --exclude cat --max-size 800kB --resume --overwrite --max-removed 50%

# parts
shardtool create sample_data/photos 'p-{000..}.tar' --max-size 500kB --part 1/2 --json
shardtool create sample_data/photos 'p-{000..}.tar' --max-size 600kB --part 2/2
shardtool create sample_data/photos 'p-{000..}.tar' --max-size 500kB --part 2/2 --dry-run --json
shardtool verify 'p-{000..}.tar'
shardtool index 'p-{000..}.tar' --merge
shardtool create sample_data/photos 'p-{000..}.tar' --max-size 500kB --part 2/2
shardtool create sample_data/photos 'q-{000..}.tar' --max-size 500kB --plan-only plan.parquet --json
shardtool create sample_data/photos 'q-{000..}.tar' --max-size 400kB --plan plan.parquet
shardtool create sample_data/photos 'q-{000..}.tar' --max-size 500kB --plan plan.parquet

# reshard
shardtool create sample_data/photos.csv 'a-{000..}.tar' --max-size 1MB --field cls=bi --classes cls --quiet
shardtool reshard a.json 'b-{000..}.tar' --shuffle --seed 4 --memory 1MB --max-count 20 --json
shardtool reshard a.json 'c-{000..}.tfrecord' --sample 20% --select-fields jpg,json
shardtool reshard a-000.tar 'd-{000..}.tar' --drop-fields cls
shardtool reshard 'a-{000..001}.tar' 'e-{000..}.tar' --head 7
shardtool reshard c.json 'f-{000..}.tar' --sort-by width
shardtool reshard a.json c.json 'g-{000..}.tar'
shardtool reshard a.json c.json 'g-{000..}.tar' --on-duplicate first --split train=50%,val=50%
shardtool reshard a.json c.json 'g-{split}-{000..}.tar' --on-duplicate first --split train=50%,val=50% --group-by bi
shardtool reshard a.json 'a-{000..}.tar' --overwrite
shardtool reshard a.json 'a-{000..}.tar' --max-size 500kB --append
shardtool verify b.json --source a.json --json
shardtool verify 'b-{000..}.tar' --sample 40% --seed 1
shardtool reshard b.json 'h-{000..}.tar' --where "multi == 'cat'" --part 1/1 --field npy=width
shardtool reshard b.json 'i-<0..2>.tar' --columns-from json --oversize alone --max-size 30kB
shardtool verify c.json --source a.json

# index and exports
shardtool create sample_data/photos 'a-{00..02}.tar' --label-from-folder --quiet; shardtool create sample_data/photos 'r-{00..01}.tfrecord' --quiet
shardtool index a.json --export dali-webdataset --export energon --export huggingface --export wids --export timm
shardtool index a.json --export tfrecord
shardtool index r.json --export dali-tfrecord --export tfrecord --json
rm a.json a-01.index; shardtool index .
shardtool index 'a-{00..02}.tar'
printf junk > a-00.index; shardtool index 'a-*.tar' --json
shardtool index 'a-*.tar' --overwrite --checksum
mkdir foreign; cp a-0?.tar foreign; shardtool index foreign --export dali-webdataset --output elsewhere
shardtool index foreign --quiet; shardtool verify foreign

# inspect
shardtool create sample_data/photos.csv 'a-{000..}.tar' --max-size 1MB --field cls=bi --classes cls --quiet
shardtool inspect a.json
shardtool inspect 'a-*.tar' --json
shardtool inspect 'a-{000..}.tar' --json
shardtool inspect a-000.tar a-001.tar
shardtool inspect 'a-%03d.tar' --keys
shardtool inspect . --head 3 --where 'width > 400'
shardtool inspect a.json --sample 1004 --sample 0 --json
shardtool inspect a.json --sample nobody
shardtool inspect a.json --sample 1004 --field npy
shardtool inspect a.json --where 'nothing > 1' --keys
shardtool inspect a.json --head 2 --extract look --table rows.csv --html page.html --contact-sheet sheet.png
shardtool inspect a.json --head 2 --extract look --table rows.csv
gzip -kn a-000.tar; rm a.json a-00?.index; shardtool inspect a-000.tar.gz a-001.tar --keys
shardtool inspect a-000.tar.gz a-001.tar --json

# verify damaged shards
shardtool create sample_data/photos 'a-{000..004}.tar' --label-from-folder --export dali-webdataset --quiet; mkdir sound; cp a* sound
shardtool verify a.json --json
printf x | dd of=a-000.tar bs=1 seek=9000 conv=notrunc status=none; shardtool verify a.json
shardtool verify a.json --format junit
shardtool verify a.json --format github
shardtool verify a.json --quick
truncate --size -3000 a-001.tar; rm a-002.index a-003.tar; printf x | dd of=a-004.index bs=1 seek=300 conv=notrunc status=none; shardtool verify .
shardtool verify 'a-*.tar' --json
shardtool inspect a.json --json
shardtool reshard a.json 'b-{0..}.tar'
shardtool copy a.json copied
shardtool verify a.json --repair
shardtool verify a.json --repair --source sample_data/photos; cmp a-000.tar sound/a-000.tar
shardtool verify a.json --decode --for dali,webdataset,wids
rm a.json; shardtool verify . --source sample_data/photos/cat
shardtool create sample_data/photos/cat 'r-{0..0}.tfrecord' --quiet; printf x | dd of=r-0.tfrecord bs=1 seek=4 conv=notrunc status=none; shardtool verify r.json --json

# copy
shardtool create sample_data/photos 'a/a-{000..}.tar' --max-size 1MB --export wids --quiet; shardtool create sample_data/photos/cat 'b/a-{000..}.tar' --quiet
shardtool copy a/a.json c --dry-run --json
shardtool copy a/a.json c --json
shardtool copy a c
shardtool copy b c
shardtool copy b/a.json c --overwrite
shardtool copy a/a-000.tar d
shardtool copy a.json d
shardtool cache status c
shardtool cache verify c --json

# diff
shardtool create sample_data/photos 'a/a-{000..}.tar' --max-size 1MB --quiet; shardtool reshard a/a.json 'b-{000..}.tfrecord' --where "key > 'cat/1'" --quiet
shardtool diff a/a.json b.json --json
shardtool diff a b.json -v
shardtool diff a/a.json sample_data/photos

# doctor
shardtool doctor sample_data/photos --read-only
shardtool doctor README.md

# remove
shardtool create sample_data/photos 'a-{000..}.tar' --max-size 500kB --export dali-webdataset --quiet; printf 'cat/cat-0001\nnobody\n' > keys
shardtool remove a.json --keys-from keys
shardtool remove a.json --where "key < 'b'" --dry-run --json
shardtool remove a.json --where "key < 'b'"
shardtool create sample_data/photos 'a-{000..}.tar' --max-size 500kB --append --on-duplicate first
shardtool remove a-001.tar --where "key > 'c'"

# extract
shardtool create sample_data/photos 'a-{000..}.tar' --max-size 1MB --label-from-folder --columns-from json --quiet
shardtool extract a.json files --json
shardtool extract a.json files
shardtool extract a-001.tar some --keys-from none
shardtool extract a.json some --where "width > 300" --fields jpg,cls
shardtool extract a.json some

# mistakes
shardtool
shardtool nothing
shardtool create
shardtool create sample_data/photos
shardtool create nowhere 'a-{0..}.tar' --json
shardtool create sample_data/photos a
shardtool create sample_data/photos 'a-{0..}.zip'
shardtool create sample_data/photos 'a-{0..}-{0..}.tar'
shardtool create sample_data/photos 'a-{0..}.tar' --max-size many
shardtool create sample_data/photos 'a-{0..}.tar' --max-count 0
shardtool create sample_data/photos 'a-{0..}.tar' --split train=0.5,val=0.6
shardtool create sample_data/photos 'a-{0..}.tar' --split train=50%,val=50%
shardtool create sample_data/photos 'a-{0..}.tar' --no-such-option
shardtool create sample_data/photos 'a-{0..}.tar' --key id --where 'x ='
shardtool create sample_data/photos 'a-{0..}.tar' --resume --overwrite --append
shardtool create sample_data/photos 'a-{0..}.tar' --part 3/2
shardtool create sample_data/photos 'a-{0..}.tar' --resize 0x4
shardtool create sample_data/photos '{split}-{0..}.tar'
shardtool reshard nowhere.json 'a-{0..}.tar'
shardtool verify nowhere.json --json
shardtool inspect sample_data/photos
shardtool index sample_data/photos
shardtool verify sample_data/photos.csv
shardtool copy sample_data there
shardtool cache clear nowhere
"""


@dataclass(frozen=True)
class Side:
    """One of the installations: its Python interpreter, and the folder in which its jobs run."""

    python: Path
    folder: Path

    def prepare(self) -> None:
        """Create the command `shardtool` for the jobs, and check that it starts."""
        (self.folder / "home").mkdir(parents=True)
        (self.folder / "bin").mkdir()
        script = self.folder / "bin/shardtool"
        script.write_text(f"#!{self.python}\nimport sys\nfrom shardtool.cli import main\nsys.exit(main())\n")
        script.chmod(0o755)
        starts = ["sh", "-c", "shardtool --version"]
        if subprocess.run(starts, env=self.environment(), capture_output=True, check=False).returncode:
            sys.exit(f"{self.python}: no shardtool starts; two that do not start would differ in nothing")

    def environment(self) -> dict[str, str]:
        """Return the environment variables of all jobs, which include only `PATH` from this process."""
        path = [self.folder / "bin", self.python.parent, os.environ["PATH"]]
        return {
            **_NOWHERE,
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(self.folder / "home"),
            "COLUMNS": "100",
            "LC_ALL": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def masked(self, said: bytes) -> str:
        """Return output as text, without everything that can differ between two runs of the same installation."""
        said = said.replace(os.fsencode(self.folder), b"PLACE").replace(os.fsencode(self.python.parent), b"BIN")
        for pattern, instead in _MASKS:
            said = pattern.sub(instead, said)
        return said.decode(errors="backslashreplace")

    def seen(self, file: Path) -> list[str]:
        """Describe a file as lines: the mode, and the text, the size and hash, or the target of a link."""
        mode = file.lstat().st_mode
        kind = stat.filemode(mode)
        if stat.S_ISLNK(mode):
            return [f"{kind} to {self.masked(os.fsencode(file.readlink()))}"]
        if not stat.S_ISREG(mode) or _CLOCK.search(file.as_posix()):
            return [kind]
        content = file.read_bytes()
        if len(content) > _TEXT or b"\0" in content:
            return [f"{kind} {len(content)} bytes, {sha256(content).hexdigest()[:16]}"]
        return [kind, *self.masked(content).split("\n")]

    def files(self, place: Path) -> dict[str, list[str]]:
        """Describe all files below a folder, except `sample_data`, by relative path. Empty folders count as files."""
        there = [path for path in place.rglob("*") if path.is_symlink() or not (path.is_dir() and any(path.iterdir()))]
        names = {_PROCESS.sub("PROCESS", path.relative_to(place).as_posix()): path for path in there}
        return {name: self.seen(names[name]) for name in sorted(names) if not name.startswith("sample_data/")}

    def do(self, folder: str, jobs: list[tuple[str, list[str]]]) -> list[list[str]]:
        """Run jobs one after the other in a folder. For each job, return exit code, output and changed files as lines."""
        place = self.folder / folder.replace("/", "-")
        shutil.copytree(ROOT / "sample_data", place / "sample_data")
        told, before = [], self.files(place)
        for _name, command in jobs:
            done = subprocess.run(
                command, cwd=place, env=self.environment(), stdin=subprocess.DEVNULL,
                capture_output=True, timeout=_PATIENCE_S, check=False,
            )  # fmt: skip
            told.append([f"exit code {done.returncode}"])
            told[-1] += [f"stdout | {line}" for line in self.masked(done.stdout).split("\n")]
            told[-1] += [f"stderr | {line}" for line in self.masked(done.stderr).split("\n")]
            after = self.files(place)
            for name in sorted({*before, *after}):
                if before.get(name) != after.get(name):
                    told[-1] += [f"{name} | {line}" for line in after.get(name, ["(removed)"])]
            before = after
        return told


def folders() -> Iterator[tuple[str, list[tuple[str, list[str]]]]]:
    """Yield the name of each folder, and the (name, command) pairs of the jobs that run in this folder."""
    for name, lines in re.findall(r"^# (.+)\n((?:.+\n)+)", TABLE, re.MULTILINE):
        yield name, [(name, ["sh", "-c", line]) for line in lines.splitlines()]
    for document in DOCUMENTS:
        named = [(f"{document}:{one.line}", one.command) for one in blocks(read(document))]
        shell = [(name, command) for name, command in named if command[0] == "sh"]
        # Examples with other tools run without `-W error`. They are skipped, because the tools may not be installed.
        python = [(name, ["python", *command[1:]]) for name, command in named if "error" in command]
        yield document, sorted(shell + python, key=lambda job: int(job[0].rpartition(":")[2]))


def compare(sides: list[Side], chosen: list[str]) -> Iterator[str]:
    """Run the folders whose names contain a word of `chosen`. Yield a diff for each job whose results differ."""
    work = [(name, jobs) for name, jobs in folders() if not chosen or any(one in name for one in chosen)]
    if not work:
        sys.exit(f"no folder of jobs has a name with {' or '.join(chosen)}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [(jobs, [pool.submit(side.do, name, jobs) for side in sides]) for name, jobs in work]
        for jobs, both in running:
            old, new = (side.result() for side in both)
            for (name, command), one, other in zip(jobs, old, new, strict=True):
                difference = unified_diff(one, other, "old", "new", n=1, lineterm="")
                if lines := [line[:_WIDTH] for line in difference]:
                    yield "\n".join([f"== {name}", *(f"   {line}" for line in command[-1].splitlines()), *lines, ""])


def main(words: list[str]) -> int:
    """Compare two installations, print the differences, and return the exit code."""
    if len(words) < 2:
        sys.exit("python -m tests.contract OLD_PYTHON NEW_PYTHON [NAME...]")
    with TemporaryDirectory(prefix="contract-") as scratch:
        sides = [Side(Path(words[at]).absolute(), Path(scratch) / name) for at, name in enumerate(("old", "new"))]
        for side in sides:
            side.prepare()
        differ = 0
        for difference in compare(sides, words[2:]):
            sys.stdout.write(difference + "\n")
            sys.stdout.flush()  # if the run is interrupted, the differences so far are visible
            differ += 1
    sys.stdout.write(f"{differ} jobs differ\n")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
