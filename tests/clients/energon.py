"""Read datasets with energon. Its import takes seconds, so one process imports it, and forks for each dataset."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.tied import tied

_CODE = """
import json, os, sys
from megatron.energon import Cooker, TaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless

@stateless
def cook(sample):
    fields = {name: value.hex() for name, value in sample.items() if not name.startswith("__")}
    return {"key": sample["__key__"], "fields": fields}

class Encoder(TaskEncoder):
    decoder = None
    cookers = [Cooker(cook)]

def read(folder, part):
    workers = WorkerConfig(rank=0, world_size=1, num_workers=0)
    encoder = Encoder()
    dataset = get_val_dataset(folder, split_part=part, worker_config=workers, batch_size=None, task_encoder=encoder)
    return list(get_loader(dataset))

answers = os.dup(1)
for line in sys.stdin:
    folder, part, found, said = json.loads(line)
    if os.fork() == 0:
        texts = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0), os.dup2(texts, 1), os.dup2(texts, 2)
        with open(found, "w") as file:
            json.dump(read(folder, part), file)
        os._exit(0)
    os.write(answers, b"%d\\n" % os.wait()[1])
"""


@cache
def _reader() -> subprocess.Popen[str]:
    """Return the process that has imported energon. It exits when its stdin is closed or this process exits."""
    command = tied(sys.executable, "-c", _CODE)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)


def read_with_energon(folder: Path, part: str) -> list[tuple[str, dict[str, bytes]]]:
    """Return key and fields of each sample that energon reads from the split `part` of a folder, in order."""
    pytest.importorskip("megatron.energon")
    reader = _reader()
    assert reader.stdin is not None
    assert reader.stdout is not None
    with TemporaryDirectory() as answers:
        found, said = Path(answers, "found"), Path(answers, "said")
        reader.stdin.write(json.dumps([str(folder), part, str(found), str(said)]) + "\n")
        reader.stdin.flush()
        if int(reader.stdout.readline()) != 0:
            raise RuntimeError(said.read_text(encoding="utf-8")[-2000:])
        samples = json.loads(found.read_bytes())
    return [(one["key"], {name: bytes.fromhex(text) for name, text in one["fields"].items()}) for one in samples]
