"""Write an HTML page, a contact sheet or a table for `inspect`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shardtool.dataset.expand import expand_datasets
from shardtool.dataset.find import open_dataset
from shardtool.errors import InvalidRequest, explaining_missing_cwd
from shardtool.messages import choose_text
from shardtool.storage.remote.store_options import with_options

if TYPE_CHECKING:
    from shardtool.dataset.stored import StoredDataset
    from shardtool.storage.remote.store_options import StorageOptions
    from shardtool.values import DatasetLike


@explaining_missing_cwd()
def inspect_html(
    dataset: DatasetLike,
    output: str | os.PathLike[str],
    *,
    seed: int = 0,
    overwrite: bool = False,
    storage_options: StorageOptions | None = None,
) -> None:
    """Write an offline web page about one or several datasets.

    Args:
        dataset: Datasets, in any form that `verify` accepts.
        output: The file name, ending in `.html`.
        seed: Seed for choosing samples.

    Raises:
        InvalidRequest: A dataset does not exist, or the output name is not valid.
        OutputExists: The output exists.
    """
    from shardtool.verbs.inspect.page.page import write_page

    write_page(_open_all(dataset, storage_options), os.fspath(output), seed=seed, overwrite=overwrite)


@explaining_missing_cwd()
def inspect_contact_sheet(
    dataset: DatasetLike,
    output: str | os.PathLike[str],
    *,
    seed: int = 0,
    overwrite: bool = False,
    storage_options: StorageOptions | None = None,
) -> None:
    """Write a PNG with thumbnails of samples of one dataset. For the parameters, see `inspect_html`."""
    from shardtool.verbs.inspect.contact_sheet import write_contact_sheet

    datasets = _open_all(dataset, storage_options)
    if len(datasets) > 1:
        where = choose_text("inspect_contact_sheet", "--contact-sheet")
        expected = f"one dataset, or {choose_text('`inspect_html`', '--html')} for several"
        raise InvalidRequest(where, f"{len(datasets):,} datasets", expected=expected)
    write_contact_sheet(datasets[0], os.fspath(output), seed=seed, overwrite=overwrite)


@explaining_missing_cwd()
def inspect_table(
    dataset: DatasetLike,
    output: str | os.PathLike[str],
    *,
    where: str | None = None,
    overwrite: bool = False,
    storage_options: StorageOptions | None = None,
) -> int:
    """Write a table with the key, location and metadata of each sample. Return the number of rows.

    Args:
        dataset: Datasets, in any form that `verify` accepts.
        output: The file name, ending in `.parquet` or `.csv`. In CSV, nested values are JSON.
        where: Query that selects samples.

    Raises:
        InvalidRequest: A dataset does not exist, or the query or output name is not valid.
        OutputExists: The output exists.
    """
    from shardtool.verbs.inspect.table import write_table

    return write_table(_open_all(dataset, storage_options), os.fspath(output), where=where, overwrite=overwrite)


def _open_all(dataset: DatasetLike, storage_options: StorageOptions | None) -> list[StoredDataset]:
    return [open_dataset(path) for path in expand_datasets(with_options(dataset, storage_options))]
