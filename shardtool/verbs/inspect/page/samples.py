"""Read a sample for a page: thumbnails, media, the start of texts, numbers, and problems.

Only the fields that are shown are read, and of long ones only the start. Damage becomes a problem of the sample.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataset.payload import (
    MAX_INSPECTED_IMAGE_BYTES,
    MAX_TEXT_BYTES,
    duration_s,
    feature_numbers,
    label_name,
)
from shardtool.dataset.shard_file import CompressedFile, ShardFile, open_shard
from shardtool.errors import CorruptShard, printable
from shardtool.fingerprint import crc32c
from shardtool.format.varint import CONTINUATION_BIT
from shardtool.names import IMAGE_ENDINGS
from shardtool.transform.image_decode import BadImage
from shardtool.verbs.inspect.overview import (
    MAX_LABEL_BYTES,
)
from shardtool.verbs.inspect.page.masks import is_mask_name
from shardtool.verbs.inspect.page.media import MediaBudget, MediaClip, media_type, trim_audio
from shardtool.verbs.inspect.page.thumbnails import (
    EXPECTED_IMAGES,
    IMAGE_SIGNATURES,
    MAGIC_SIGNATURES,
    Thumbnail,
    make_thumbnail,
)
from shardtool.verbs.inspect.sample_view import decode_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.sidecar_schema import FieldRow
    from shardtool.dataset.stored import StoredDataset
    from shardtool.verbs.inspect.overview import StoredSample
    from shardtool.verbs.inspect.page.choose import ChosenSamples

    # The stratum, its random number, shard, place, and what it is.


_JSON_ENDINGS = frozenset(("json", "jsn", "geojson"))


SPLIT_COLUMN = "split"  # the column of a sample's split


_MAX_TEXT_BYTES = 4096  # bytes that are read of a field that is no image


_MAX_IMAGES = 3  # of one sample


_MAX_FIELDS = 40  # of one sample


_MAX_CLIPS = 2  # of one sample


_HEX_BYTES = 32


MAX_KEY_CHARS = 200  # characters of a key or a metadata value


class TextExcerpt(NamedTuple):
    """The start of a field that is no image; `kind` is `json`, `text`, `numbers` or `bytes`."""

    field: str
    kind: str
    text: str
    cut: bool


@dataclass
class ShownSample:
    """A sample as it is shown.

    Attributes:
        chosen: Which one.
        labels: Field or column to the label, the likeliest first.
        images: The first few, masks last.
        players: Its audio and video.
        texts: Its other fields.
        problems: What is wrong with it.
        notes: Why something is not shown that is not wrong.
        anchor: The id that a page gives it.
        why: Why it is odd; empty: it is shown as one of many.
    """

    chosen: StoredSample
    labels: dict[str, str]
    images: list[Thumbnail] = field(default_factory=list)
    players: list[MediaClip] = field(default_factory=list)
    texts: list[TextExcerpt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    anchor: str = ""
    why: str = ""

    @property
    def key(self) -> str:
        """Its key, for people."""
        return shorten_text(self.chosen.key, MAX_KEY_CHARS)

    @property
    def fields(self) -> list[tuple[str, int]]:
        """Name and bytes of each of its fields."""
        return [(shorten_text(part["name"], MAX_KEY_CHARS), part["length"]) for part in self.chosen.fields]

    @property
    def overlay(self) -> Thumbnail | None:
        """The mask of its first image, if that has one."""
        photo = self.images[0] if self.images else None
        if photo is None or photo.colours:
            return None
        wide, tall = photo.full
        masks = (one for one in self.images if one.colours)
        return next(
            (one for one in masks if abs(one.full[0] * tall - one.full[1] * wide) * 50 <= wide * one.full[1]), None
        )

    @property
    def best(self) -> TextExcerpt | None:
        """The caption: its longest text, not a label, which is shown as one."""
        long = [one for one in self.texts if one.kind != "bytes" and len(one.text) > 1]
        return max(long or self.texts[:1], key=lambda one: (one.kind == "text", len(one.text)), default=None)


class SampleBudget(NamedTuple):
    """The limits of one sample.

    Attributes:
        edge: Pixels of a thumbnail's longer side.
        image: Bytes of all its thumbnails; None for any.
        text: Bytes of the texts.
        images: How many thumbnails.
        media: What all samples may have together of audio and video; None: nothing is played.
    """

    edge: int
    image: int | None = None
    text: int = 4000
    images: int = _MAX_IMAGES
    media: MediaBudget | None = None


def show_samples(
    gathered: ChosenSamples, budget: SampleBudget, samples: Sequence[StoredSample] | None = None
) -> Iterator[ShownSample]:
    """Yield what is shown of samples, one after the other; None: of those that were chosen."""
    for shard, chosen in groupby(gathered.chosen if samples is None else samples, key=lambda one: one.shard):
        samples = list(chosen)
        try:
            with open_shard(shard.path) as file:
                for one in samples:
                    yield _SampleRendering(file, budget, gathered).show(one)
        except CorruptShard as error:
            for one in samples:
                yield ShownSample(one, _column_labels(gathered, one), problems=[error.found])


def shorten_text(text: str, most: int) -> str:
    """Return `text` with what could steer a page made visible, the middle of a long one left out."""
    text = printable(text[: 4 * most])
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…{text[-(most // 3) :]}"


def _is_image(name: str, start: bytes) -> bool:
    if name.rpartition(".")[2].lower() in IMAGE_ENDINGS:
        return True
    if start[:4] == b"RIFF" and start[8:12] != b"WEBP":
        return False
    return any(start.startswith(magic) for magic, _ in IMAGE_SIGNATURES[:MAGIC_SIGNATURES])


def _image_rank(name: str) -> int:
    """Return which images are looked at first: photographs, before masks of them."""
    ending = name.rpartition(".")[2].lower()
    return 0 if ending not in IMAGE_ENDINGS else 3 if is_mask_name(name) else 1 if ending[:2] == "jp" else 2


def _column_labels(gathered: ChosenSamples, one: StoredSample) -> dict[str, str]:
    found = {
        name: one.metadata.get(name) for name, label in gathered.summary.labels.items() if label.source == "column"
    }
    if gathered.summary.splits:
        found[SPLIT_COLUMN] = one.metadata.get(SPLIT_COLUMN)
    return {name: shorten_text(str(value), MAX_KEY_CHARS) for name, value in found.items() if value is not None}


class _SampleRendering:
    """The reading of one sample."""

    def __init__(self, file: ShardFile | CompressedFile, budget: SampleBudget, gathered: ChosenSamples) -> None:
        self._file, self._budget, self._gathered = file, budget, gathered
        self._kinds, self._texts_left = gathered.overview.kinds, budget.text

    def show(self, one: StoredSample) -> ShownSample:
        """Return what is shown of a sample."""
        shown = ShownSample(one, _column_labels(self._gathered, one))
        if self._budget.media is not None:
            self._budget.media.next()
        for part in sorted(one.fields[:_MAX_FIELDS], key=lambda part: _image_rank(part["name"])):
            try:
                self._field(shown, part)
            except CorruptShard as error:
                shown.problems.append(f"{shorten_text(part['name'], MAX_KEY_CHARS)}: {error.found}")
        shown.images.sort(key=lambda image: bool(image.colours))
        order = [*self._gathered.summary.labels, SPLIT_COLUMN]
        shown.labels = {name: shown.labels[name] for name in order if name in shown.labels}
        return shown

    def _field(self, shown: ShownSample, part: FieldRow) -> None:
        name, length = part["name"], part["length"]
        start = bytes(self._file.read(part["offset"], min(length, _MAX_TEXT_BYTES)))
        if _is_image(name, start):
            if len(shown.images) < self._budget.images:
                self._image(shown, part)
            return
        if not self._checked(shown, part, start):
            return
        if self._budget.media is not None and (kind := media_type(name, start)):
            self._play(shown, part, kind, start)
            return
        label = self._gathered.summary.labels.get(name)
        if label is not None and label.source == "field" and length <= MAX_LABEL_BYTES:
            called, _ = label_name(start, self._kinds.get(name, "bytes"), self._gathered.overview.classes.get(name))
            shown.labels[name] = shorten_text(called, MAX_KEY_CHARS)
        if len(start) < length and name.rpartition(".")[2].lower() in _JSON_ENDINGS and length <= MAX_TEXT_BYTES:
            start = bytes(self._file.read(part["offset"], length))
        if self._texts_left > 0:
            text = self._text(shown, name, start, length)
            shown.texts.append(text)
            self._texts_left -= len(text.text.encode())

    def _play(self, shown: ShownSample, part: FieldRow, kind: str, start: bytes) -> None:
        length, media = part["length"], self._budget.media
        granted = media.take(kind, length) if media and len(shown.players) < _MAX_CLIPS else 0
        data = bytes(self._file.read(part["offset"], granted))
        if granted < length or self._checked(shown, part, data):
            seconds = duration_s(max(start, data, key=len), length)
            data = trim_audio(data) if granted < length else data
            shown.players.append(MediaClip(shorten_text(part["name"], MAX_KEY_CHARS), kind, length, seconds, data))

    def _image(self, shown: ShownSample, part: FieldRow) -> None:
        name, length, title = part["name"], part["length"], shorten_text(part["name"], MAX_KEY_CHARS)
        if length > MAX_INSPECTED_IMAGE_BYTES:
            shown.notes.append(f"{title}: {length:,} bytes, too large to be shown")
            return
        data = bytes(self._file.read(part["offset"], length))
        if not self._checked(shown, part, data):
            return
        most = self._budget.image
        if most is not None:  # the first picture is what is looked at
            left = most - sum(len(one.data) for one in shown.images)
            most = left if not shown.images and self._budget.images == 1 else left * 3 // 4
        try:
            beside = any(not one.colours for one in shown.images)
            shown.images.append(make_thumbnail(data, name, self._budget.edge, most, beside=beside))
        except BadImage as error:
            where = shown.notes if error.code in EXPECTED_IMAGES else shown.problems
            where.append(f"{title}: {error.message}")

    def _checked(self, shown: ShownSample, part: FieldRow, data: bytes) -> bool:
        """Tell whether a payload, or the start of one, is what the index says."""
        title = shorten_text(part["name"], MAX_KEY_CHARS)
        if len(data) < min(part["length"], _MAX_TEXT_BYTES):
            shown.problems.append(f"{title}: the shard ends in it")
            return False
        if len(data) == part["length"] and part["crc32c"] is not None and crc32c(data) != part["crc32c"]:
            shown.problems.append(f"{title}: another checksum than its index says")
        return True

    def _text(self, shown: ShownSample, name: str, start: bytes, length: int) -> TextExcerpt:
        title = shorten_text(name, MAX_KEY_CHARS)
        numbers = _numbers_at_start(start, self._kinds.get(name, "bytes"))
        if numbers is not None:
            return self._cut(title, "numbers", numbers, is_cut=len(start) < length)
        if name.rpartition(".")[2].lower() in _JSON_ENDINGS and len(start) == length:
            try:
                pieces = json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(start))
                pretty = "".join(islice(pieces, 2 * self._budget.text))  # deep JSON is mostly blanks: 1 MB became 1 GB
                return self._cut(title, "json", pretty, is_cut=next(pieces, None) is not None)
            except (ValueError, RecursionError) as error:
                shown.problems.append(f"{title}: no JSON: {printable(str(error))[:MAX_KEY_CHARS]}")
        if (text := decode_text(start, whole=len(start) == length)) is not None:
            return self._cut(title, "text", text, is_cut=len(start) < length)
        dump = " ".join(f"{byte:02x}" for byte in start[:_HEX_BYTES])
        return TextExcerpt(title, "bytes", dump, length > _HEX_BYTES)

    def _cut(self, field_name: str, kind: str, text: str, *, is_cut: bool) -> TextExcerpt:
        most = min(self._texts_left, self._budget.text * 3 // 4)
        lines = [printable(line) for line in text[: 2 * most].expandtabs(4).replace("\r\n", "\n").split("\n")]
        whole = "\n".join(lines).encode()
        kept = whole[:most].decode("utf-8", "ignore")
        return TextExcerpt(field_name, kind, kept, is_cut or len(whole) > most or len(text) > 2 * most)


def _numbers_at_start(start: bytes, kind: str) -> str | None:
    """Return the numbers at the start of a feature of a TFRecord; None where it holds none."""
    if kind == "bytes":
        return None
    end = len(start) // 4 * 4
    if kind == "int64":
        end = max(
            (at + 1 for at, byte in enumerate(start) if byte < CONTINUATION_BIT), default=0
        )  # where a varint ends
    try:
        numbers = feature_numbers(start[:end], kind)
    except ValueError:
        return None
    return ", ".join(f"{number:.7g}" if isinstance(number, float) else str(number) for number in numbers)


_MAX_NAME_CHARS = 120


def dataset_title(dataset: StoredDataset) -> str:
    """Return the dataset's name, for people: its own, or what its shards' names have in common."""
    if dataset.file and dataset.file.name:
        return shorten_text(dataset.file.name, _MAX_NAME_CHARS)
    names = [shard.file_name for shard in dataset.shards]
    common = common_prefix(names) if len(set(names)) > 1 else names[0].partition(".")[0]
    return shorten_text(common.rstrip("-_.0123456789") or names[0], _MAX_NAME_CHARS)


def common_prefix(names: Sequence[str]) -> str:
    """Return the letters that all names begin with."""
    return os.path.commonprefix([*names])  # noqa: RUF071 - letter by letter is what is wanted


def label_text(one: ShownSample) -> str:
    """Return a sample's label, for people: a bare number with the name of what holds it."""
    for name, text in one.labels.items():
        return f"{shorten_text(name, 30)} {text}" if text.lstrip("-").isdigit() else text
    return ""
