"""The programs of examples/ and the code of docs/training.md work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from doctest import ELLIPSIS, OutputChecker
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.test_readme import blocks, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.servers.processes import Server

pytestmark = pytest.mark.clients
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
_ACCURACY = re.compile(r"accuracy (\d\.\d+).*, chance 0\.12")
_ABOVE_CHANCE = 0.3
_TRAINERS = ("accelerate", "dali", "keras", "lightning", "pytorch")
_LOSS = re.compile(r"epoch \d+ step (\d+) loss (\d+\.\d+)")
_NEEDS = {"train_keras.py": "tensorflow", "train_dali.py": "nvidia.dali", "train_webdataset.py": "webdataset"}


def _run(command: Sequence[object], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program as a user does, with shardtool on the path, in a few threads."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _torchrun(processes: int, script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        processes,
        EXAMPLES / script,
    ]
    done = _run(launch, folder, **variables)
    if "terminate called without an active exception" in done.stderr:  # gloo's threads may outlive their group
        done = _run(launch, folder, **variables)
    return done


def _alone(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program as torchrun starts the one process of a run, without the seconds that torchrun takes."""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return _run([sys.executable, EXAMPLES / script], folder, **variables)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `sample_data` and the shards of make_shards.py."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(ROOT / "sample_data", folder / "sample_data")
    done = _run([sys.executable, EXAMPLES / "make_shards.py"], folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("script", ["train_torch.py", "train_webdataset.py", "train_keras.py", "train_dali.py"])
def test_training_is_better_than_chance(script: str, place: Path) -> None:
    """Each program trains a network from the shards, and prints an accuracy above chance."""
    if script in _NEEDS and not find_spec(_NEEDS[script].partition(".")[0]):
        pytest.skip(f"{_NEEDS[script]} is not installed")
    done = _run([sys.executable, EXAMPLES / script], place)
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr  # in modules that exit with the interpreter
    found = [float(accuracy) for accuracy in _ACCURACY.findall(done.stdout)]
    assert len(found) == (2 if script == "train_keras.py" else 1)
    assert min(found) > _ABOVE_CHANCE


def test_without_dali_the_program_names_the_package(place: Path) -> None:
    """Without DALI, its program prints what to install, and exits."""
    hidden = "import runpy, sys; sys.modules['nvidia.dali'] = None; runpy.run_path(sys.argv[1])"
    done = _run([sys.executable, "-c", hidden, EXAMPLES / "train_dali.py"], place)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("DALI is not installed: `pip install")
    assert done.stderr.count("\n") == 1


def test_a_language_model_learns_from_packed_documents(tmp_path: Path) -> None:
    """Its loss falls far below that of letter frequencies, and nearly all of the blocks are tokens."""
    done = _run([sys.executable, EXAMPLES / "train_text.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    epochs = re.findall(r"epoch \d: \d+ steps, loss (\d\.\d+), (\d+\.\d)% of the last batch are tokens", done.stdout)
    assert len(epochs) == 3
    assert float(epochs[-1][0]) < 0.4
    assert min(float(share) for _, share in epochs) > 90


def test_two_processes_train_together(place: Path) -> None:
    """Under torchrun two processes divide the epochs, and count every sample of `val` once between them."""
    done = _torchrun(2, "distributed.py", place)
    assert done.returncode == 0, done.stderr
    (accuracy,) = _ACCURACY.findall(done.stdout)
    assert float(accuracy) > _ABOVE_CHANCE
    assert "of 21 samples" in done.stdout


def test_a_killed_run_continues_with_other_ranks(place: Path, tmp_path: Path) -> None:
    """A run with two ranks, killed during an epoch, finishes with one rank and the same result."""
    (tmp_path / "photos").symlink_to(place / "photos")
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "photos").symlink_to(place / "photos")
    whole = _alone("resume.py", tmp_path / "whole")
    killed = _torchrun(2, "resume.py", tmp_path, KILL_AFTER="10")
    resumed = _alone("resume.py", tmp_path)
    codes = [whole.returncode, killed.returncode, resumed.returncode]
    assert codes == [0, 1, 0], whole.stderr + killed.stderr + resumed.stderr
    losses = _losses(whole.stdout)
    before, after = _losses(killed.stdout), _losses(resumed.stdout)
    assert [*losses] == [*range(1, 21)]
    assert [*before] == [*range(1, 11)]
    assert [*after] in ([*range(11, 21)], [*range(10, 21)])  # the other rank may die before it has saved step 10
    for part in (before, after):
        assert [*part.values()] == pytest.approx([losses[step] for step in part], abs=1e-4)


def _losses(printed: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in _LOSS.findall(printed)}


@pytest.mark.parametrize("document", ["docs/training.md", *(f"docs/have/{name}.md" for name in _TRAINERS)])
def test_the_code_of_a_document_runs(document: str, tmp_path: Path) -> None:
    """Whoever types the code of a document, in order, sees what it shows, with every library at hand."""
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    ran = 0
    for block in blocks(read(document)):
        done = _run(block.command, tmp_path)
        where = f"{document}:{block.line}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, where
        assert block.printed is None or OutputChecker().check_output(block.printed, done.stdout, ELLIPSIS), where
        ran += 1
    assert ran > 1


def test_the_page_of_buckets_runs(moto: Server, tmp_path: Path) -> None:
    """Whoever types the code of docs/have/bucket.md, with a bucket of another name, sees what it shows."""
    shutil.copytree(ROOT / "sample_data", tmp_path / "sample_data")
    text = read("docs/have/bucket.md").replace("s3://my-bucket", moto.new_prefix())
    environment = {**moto.environment, "SHARDTOOL_ENDPOINT": moto.environment["AWS_ENDPOINT_URL"]}
    ran = [*blocks(text.replace("```sh store", "```sh").replace("```python store", "```python"))]
    assert len(ran) == 3
    for block in ran:
        done = _run(block.command, tmp_path, **environment)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert block.printed is None or OutputChecker().check_output(block.printed, done.stdout, ELLIPSIS), done.stdout


def test_the_notebook_trains(place: Path) -> None:
    """All cells of the tour run in order, and its network learns."""
    (place / "examples").mkdir()
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text())["cells"]
    program = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    done = _run([sys.executable, "-c", program], place / "examples")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.removeprefix("loss ")) < 1
