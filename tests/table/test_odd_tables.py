from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardtool import InvalidRequest, SampleFailed
from shardtool.select.join import join_table
from shardtool.select.value_fields import set_value_fields
from shardtool.source.manifest.source import ManifestSource
from tests.made import list_manifest, manifest_options
from tests.select.test_join import _entries as joinable
from tests.table.odd_tables import ENDINGS, odd_file, odd_table

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"meta": "none", "key": "key"},
    {"fields": (("f", "v"),), "classes": ("f",)},
    {"fields": (("f", "path"),), "meta": ("path",)},
    {"bytes": (("f", "v"),)},
    {"file": (("f", "v"),), "allow_outside": True},
)


class _Sink:
    """A file that discards bytes."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: memoryview) -> None:
        self.size += len(data)


def _use(source: Any, options: dict[str, Any]) -> None:
    """Read what a plan and sidecars need from a manifest. Only one-line errors of shardtool may be raised."""
    try:
        manifest = ManifestSource(source, manifest_options(**options))
        entries = list_manifest(manifest).entries
        for texts in entries.values.inline.values():
            texts.span(0, len(entries))
        manifest.write_payloads(_Sink())
    except (InvalidRequest, SampleFailed) as error:
        assert "\n" not in str(error)  # noqa: PT017 - it may be read, too
    except MemoryError:  # a damaged Arrow file may claim more memory than exists
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that odd tables name."""
    folder = tmp_path_factory.mktemp("odd")
    for name in "abc":
        (folder / f"{name}.txt").write_text(name)
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32), ending=st.sampled_from(ENDINGS), options=st.sampled_from(OPTIONS))
def test_any_file_is_a_manifest_or_refused(seed: int, ending: str, options: dict[str, Any], folder: Path) -> None:
    """Any bytes as a manifest are packed, or refused with a one-line error."""
    path = folder / f"odd{ending}"
    path.write_bytes(odd_file(Random(seed), ending))  # noqa: S311
    _use(str(path), options)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), options=st.sampled_from(OPTIONS))
def test_any_table_in_memory_is_a_manifest_or_refused(seed: int, options: dict[str, Any]) -> None:
    """A table with any types and names is packed, or refused with a one-line error."""
    _use(odd_table(Random(seed)), options)  # noqa: S311


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), ending=st.sampled_from(ENDINGS))
def test_any_file_is_joined_or_refused(seed: int, ending: str, folder: Path) -> None:
    """Any bytes as a `--join` table are joined, or refused with a one-line error."""
    path = folder / f"join{ending}"
    path.write_bytes(odd_file(Random(seed), ending))  # noqa: S311
    entries = joinable({"a.txt": {}, "b.txt": {}}, pa.table({"v": ["x", "y"]}))
    try:
        joined = join_table(entries, str(path), "path")
        set_value_fields(joined.entries, (("f", "v"),), ())
    except InvalidRequest as error:
        assert "\n" not in str(error)  # noqa: PT017 - it may be read, too
    except MemoryError:  # as above
        pass
