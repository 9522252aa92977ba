"""`inspect --html`: one self-contained HTML file that shows a dataset."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from shardtool.dataset.stored import StoredDataset
from shardtool.storage.target_file import write_target
from shardtool.verbs.inspect.page.choose import choose_samples
from shardtool.verbs.inspect.page.dataset_view import DatasetView, set_anchors
from shardtool.verbs.inspect.page.media import MediaBudget
from shardtool.verbs.inspect.page.rendering import render_page
from shardtool.verbs.inspect.page.samples import (
    SampleBudget,
    dataset_title,
    show_samples,
)
from shardtool.verbs.inspect.sample_files import check_report_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardtool.verbs.inspect.page.samples import ShownSample

    # A label, how many values it has, and the rows of a table of these.


_MAX_SAMPLES = 2000  # of all datasets


_DEFAULT_SAMPLES = 200


_IMAGE_BYTES = 3_000_000  # of all thumbnails: a third more in base64, and the page stays below 5 MB


_TEXT_BYTES = 600_000


_MEDIA_BYTES = 6_000_000  # of all audio and video, where there is any


_MAX_MIN_EDGE_PIXELS = (384, 96)  # pixels of a thumbnail, at most and at least


_PIXELS_PER_BYTE = 8.0  # pixels a byte, about, of a photograph as WebP


_MAX_SAMPLES_WITHOUT_UNUSUAL = 20  # samples, of which none needs to be called odd


def write_page(
    datasets: StoredDataset | Sequence[StoredDataset], path: str, *, seed: int = 0, overwrite: bool = False
) -> None:
    """Write a page that shows a dataset, or several side by side.

    It shows 200 samples in all, or one of each label where these are more, at most 2,000. Each dataset has as many,
    spread over labels, or over shards where there are none.

    Args:
        datasets: What to show. It may be damaged: the page says so.
        path: The HTML file.
        seed: Decides which samples these are.
        overwrite: Replace a file that is there already.

    Raises:
        InvalidRequest: `path` is no name for a new file.
        OutputExists: There is a file already.
        OutputFailed: The file cannot be written.
    """
    given = [datasets] if isinstance(datasets, StoredDataset) else [*datasets]
    for dataset in given:
        check_report_path(dataset, path, overwrite=overwrite, ending=".html")
    most, usual = (-(-count // len(given)) for count in (_MAX_SAMPLES, _DEFAULT_SAMPLES))
    gathered = [choose_samples(dataset, most, seed, usual=usual) for dataset in given]
    odd = [
        one.odd.found(one.overview.dataset.shards) if one.summary.samples > _MAX_SAMPLES_WITHOUT_UNUSUAL else []
        for one in gathered
    ]
    budget = _sample_budget(sum(map(len, odd)) + sum(len(one.chosen) for one in gathered))
    views = []
    for number, (name, each, found) in enumerate(zip(_unique_names(given), gathered, odd, strict=True), 1):
        strange = [*show_samples(each, budget, [sample for _, sample in found])]
        for one, (why, _) in zip(strange, found, strict=True):
            one.why = why
        shown = [*show_samples(each, budget)]
        if each.summary.samples > _MAX_SAMPLES_WITHOUT_UNUSUAL and not any(
            one.why.startswith("widest") for one in strange
        ):
            strange += _extreme_shapes(shown)
        at = number if len(given) > 1 else 0
        views.append(DatasetView(**vars(each), name=name, shown=shown, strange=strange, number=at))
    set_anchors(views)
    write_target(path, render_page(views).encode())


def _sample_budget(samples: int) -> SampleBudget:
    image = _IMAGE_BYTES // max(samples, 1)
    edge = int(min(max((image * _PIXELS_PER_BYTE) ** 0.5, _MAX_MIN_EDGE_PIXELS[1]), _MAX_MIN_EDGE_PIXELS[0]))
    texts = min(max(_TEXT_BYTES // max(samples, 1), 240), 6000)
    return SampleBudget(edge, image, texts, media=MediaBudget(_MEDIA_BYTES, samples))


def _unique_names(datasets: Sequence[StoredDataset]) -> list[str]:
    """Return what datasets are called: the same name gets a number."""
    names, seen = [dataset_title(one) for one in datasets], Counter[str]()
    for at, name in enumerate(names):
        seen[name] += 1
        names[at] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def _extreme_shapes(shown: Sequence[ShownSample]) -> list[ShownSample]:
    """Return, of the images that are shown, the widest and the tallest: for want of columns that know all shapes."""
    found = {one.images[0].full[0] / one.images[0].full[1]: one for one in reversed(shown) if one.images}
    if len(found) <= 1:
        return []
    ends = (("widest", found[max(found)]), ("tallest", found[min(found)]))
    return [
        replace(one, why=f"{why} shown: {one.images[0].full[0]:,} by {one.images[0].full[1]:,}") for why, one in ends
    ]
