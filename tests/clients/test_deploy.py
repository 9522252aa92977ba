"""The files of `deploy/` work, as far as a test without a cluster can check."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import ENVIRONMENT, REPO, read_tree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.clients
_DEPLOY = REPO / "deploy"
_PODS = 4
_SAMPLES, _BYTES = 3000, 20_000


def _job() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((_DEPLOY / "job.yaml").read_text())
    return found


def test_the_job_is_one_of_kubernetes() -> None:
    """The job fits the schema of Kubernetes to the letter, and its pods are told how many there are."""
    job, check = _job(), pytest.importorskip("kubernetes_validate")
    versions = check.validate(job, check.latest_version(), strict=True)
    assert versions
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "JOB_COMPLETIONS", "value": str(job["spec"]["completions"])}]
    job["spec"]["completionMode"] = ["Indexed"]
    with pytest.raises(check.ValidationError):
        check.validate(job, check.latest_version(), strict=True)


def _pod(index: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a pod of the job, with four in all, on a folder instead of its volume."""
    spec = _job()["spec"]["template"]["spec"]
    words = [word.replace("/data/", f"{folder}/") for word in spec["containers"][0]["args"]]
    words += ["--max-size", "1MB", "--workers", "1"]
    told = {"JOB_COMPLETION_INDEX": str(index), "JOB_COMPLETIONS": str(_PODS)}
    return subprocess.Popen(
        [sys.executable, "-m", "shardtool", *words], env={**ENVIRONMENT, **told}, stderr=subprocess.PIPE
    )


def test_pods_make_one_dataset_whatever_ends_them(tmp_path: Path) -> None:
    """A pod that is told to go ends within its grace; started again, as all others, they make what one run makes."""
    (tmp_path / "imgs").mkdir()
    for number in range(_SAMPLES):
        (tmp_path / f"imgs/{number:04}.bin").write_bytes(os.urandom(8) * (_BYTES // 8))
    pod = _pod(1, tmp_path)
    while pod.poll() is None and not any((tmp_path / "shards").glob("*.tar")):
        time.sleep(0.005)
    pod.send_signal(signal.SIGTERM)
    _, err = pod.communicate(timeout=_job()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    assert (pod.returncode, b"interrupted by SIGTERM" in err) == (128 + signal.SIGTERM, True)
    for index in (2, 1, 3, 0):
        pod = _pod(index, tmp_path)
        _, err = pod.communicate(timeout=120)
        assert pod.returncode == 0, err
    whole = [sys.executable, "-m", "shardtool", "create", "imgs", "whole/out-{000000..}.tar", "--max-size", "1MB", "-q"]
    subprocess.run(whole, cwd=tmp_path, env=ENVIRONMENT, check=True)
    assert read_tree(tmp_path / "shards") == read_tree(tmp_path / "whole")


def test_the_image_has_what_it_says() -> None:
    """The Dockerfile installs extras that there are, and its last stage runs as another user than root."""
    text, project = (path.read_text() for path in (_DEPLOY / "Dockerfile", REPO / "pyproject.toml"))
    extras = re.findall(r"\.whl\)\[([a-z,]+)\]", text)
    assert extras
    for name in extras[0].split(","):
        assert re.search(rf"^{name} = \[", project, re.MULTILINE)
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001$", last, re.MULTILINE)
    assert "COPY" not in last  # nothing of the checkout but the wheel
