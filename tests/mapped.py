"""Functions that tests give to `--map`."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

KEY = "__key__"
NOTED = "SHARDTOOL_TEST_NOTED"  # the variable that names the file to which `noted` appends

Sample = dict[str, Any]


def payload(name: str, size: int) -> bytes:
    """Return `size` bytes that tell whose they are."""
    mark = f"{name}|".encode()
    return (mark * (size // len(mark) + 1))[:size]


def told(sample: Sample) -> Sample | list[Sample] | None:
    """Make what the field `txt` says: a number is a sample of as many bytes, a list several, and null drops it."""
    key, asked = sample[KEY], json.loads(sample["txt"])
    if asked is None:
        return None
    if isinstance(asked, int):
        return {KEY: key, "bin": payload(key, asked)}
    return [{KEY: key, "bin": payload(f"{key}-{at}", size)} for at, size in enumerate(asked)]


def evaluated(sample: Sample) -> Any:
    """Return what the field `py` means as a Python expression; `sample` and `key` are known to it."""
    import numpy as np

    names = {"np": np, "sample": sample, "key": sample[KEY], "os": os, "time": time}
    return eval(sample["py"], names)  # noqa: S307 - the tests wrote it


def noted(sample: Sample) -> Sample:
    """Return the sample as it is, and leave a line with its key in a file."""
    with Path(os.environ[NOTED]).open("a", encoding="utf-8") as file:
        file.write(f"{sample[KEY]}\n")
    return sample


def slow(sample: Sample) -> list[Sample]:
    """Take a while, and make two samples of one: the second is as long as the number that the key ends with says."""
    time.sleep(0.02)
    size = 100 * int(sample[KEY][-3:])
    return [sample, {KEY: f"{sample[KEY]}-more", "bin": payload(sample[KEY], size)}]


def stubborn(sample: Sample) -> Sample:
    """Never end, whatever comes."""
    while True:
        with suppress(BaseException):
            time.sleep(sample is not None)


def hungry(_sample: Sample) -> None:
    """Want more memory than any machine has."""
    bytearray(2**62)


def failing(_sample: Sample) -> None:
    """Take no sample."""
    raise ValueError("none is good")


def doubled(sample: Sample) -> list[Sample]:
    """Make two samples of one."""
    return [{**sample, KEY: f"{sample[KEY]}/{at}"} for at in range(2)]
