"""Read the samples that the HTML page shows. Read only the start of long fields.

Conversations in JSON are shown as messages: LLaVA and ShareGPT (`from`, `value`), OpenAI (`role`, `content`), and
similar formats.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import field
from itertools import groupby, islice
from typing import TYPE_CHECKING, NamedTuple

from shardtool.dataclass import dataclass
from shardtool.dataset.payload import MAX_INSPECTED_IMAGE_BYTES, MAX_TEXT_BYTES, duration_s, feature_numbers, label_name
from shardtool.dataset.shard_file import CompressedFile, ShardFile, open_shard
from shardtool.errors import CorruptShard, printable
from shardtool.fingerprint import crc32c
from shardtool.format.varint import CONTINUATION_BIT
from shardtool.names import IMAGE_ENDINGS
from shardtool.transform.image_decode import BadImage
from shardtool.transform.thumbnail import (
    DISTINCTIVE_SIGNATURE_COUNT,
    HARMLESS_IMAGE_CODES,
    IMAGE_SIGNATURES,
    Thumbnail,
    is_mask_name,
    make_thumbnail,
)
from shardtool.verbs.inspect.overview import MAX_LABEL_BYTES, StoredSample
from shardtool.verbs.inspect.page.boxes import Outline, drawing_size, find_outlines, is_yolo_start
from shardtool.verbs.inspect.page.media import MediaBudget, MediaClip, media_type, trim_audio
from shardtool.verbs.inspect.samples import decode_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardtool.dataset.sidecar_schema import FieldRow
    from shardtool.dataset.stored import StoredDataset
    from shardtool.verbs.inspect.page.choose import ChosenSamples


_LIST_NAMES = ("conversations", "messages", "conversation", "dialog", "dialogue", "turns")
_ROLE_NAMES = ("role", "from", "speaker")
_TEXT_NAMES = ("content", "value", "text")


def find_turns(document: object) -> list[tuple[str, str]]:
    """Return the role and text of each turn, or an empty list if `document` is no conversation."""
    if isinstance(document, dict):
        document = next((document[name] for name in _LIST_NAMES if isinstance(document.get(name), list)), None)
    if not isinstance(document, list) or not document:
        return []
    turns = []
    for turn in document:
        role = next((turn[name] for name in _ROLE_NAMES if name in turn), None) if isinstance(turn, dict) else None
        if not isinstance(role, str) or not any(name in turn for name in (*_TEXT_NAMES, "tool_calls")):
            return []
        calls = turn.get("tool_calls")
        parts = [_text_of(turn[name]) for name in _TEXT_NAMES if name in turn][:1]
        parts += [f"[call {_compact(call)}]" for call in calls] if isinstance(calls, list) else []
        turns.append((role, "\n".join(filter(None, parts))))
    return turns


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(map(_part_text, content))
    return "" if content is None else _compact(content)


def _part_text(part: object) -> str:
    if isinstance(part, dict):
        text = part.get("text")
        return text if isinstance(text, str) else f"[{part.get('type', _compact(part))}]"
    return _text_of(part)


def _compact(value: object) -> str:
    if isinstance(value, dict) and isinstance(function := value.get("function"), dict):
        return f"{function.get('name', '')}({function.get('arguments', '')})"
    return json.dumps(value, ensure_ascii=False, default=str)


_JSON_ENDINGS = frozenset(("json", "jsn", "geojson"))
SPLIT_COLUMN = "split"
_MAX_TEXT_BYTES = 4096
_MAX_IMAGES = 3  # per sample, like `_MAX_FIELDS` and `_MAX_CLIPS`
_MAX_FIELDS = 40
_MAX_CLIPS = 2
_CAPTION_RANKS = {"chat": 2, "text": 1}
_MAX_NAME_CHARS = 120
_NUMBER_LIST = re.compile(r'\[[^\[\]{}"]*\]')
_TURN_BYTES = 20
_HEX_BYTES = 32
MAX_KEY_CHARS = 200


class TextExcerpt(NamedTuple):
    """The start of a field. `kind` is `json`, `text`, `numbers`, `bytes`, or `chat` for a conversation."""

    field: str
    kind: str
    text: str
    cut: bool
    turns: tuple[tuple[str, str], ...] = ()


@dataclass
class ShownSample:
    """A sample on the HTML page or contact sheet.

    Attributes:
        labels: Label texts by field or column, the likeliest first.
        label: The value of the likeliest label, or "".
        reason: Why the sample is unusual, or "".
    """

    chosen: StoredSample
    labels: dict[str, str]
    label: str = ""
    images: list[Thumbnail] = field(default_factory=list)
    clips: list[MediaClip] = field(default_factory=list)
    texts: list[TextExcerpt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outlines: list[Outline] = field(default_factory=list)
    anchor: str = ""
    reason: str = ""
    row: int = -1

    @property
    def key(self) -> str:
        """The shortened key."""
        return shorten_text(self.chosen.key, MAX_KEY_CHARS)

    @property
    def fields(self) -> list[tuple[str, int]]:
        """Name and size in bytes of each field."""
        return [(shorten_text(part["name"], MAX_KEY_CHARS), part["length"]) for part in self.chosen.fields]

    @property
    def overlay(self) -> Thumbnail | None:
        """The first mask with the aspect ratio of the first image, or None."""
        photo = self.images[0] if self.images else None
        if photo is None or photo.colours:
            return None
        width, height = photo.full_size
        for mask in self.images:
            mask_width, mask_height = mask.full_size
            if mask.colours and abs(mask_width * height - mask_height * width) * 50 <= width * mask_height:
                return mask
        return None

    @property
    def caption(self) -> TextExcerpt | None:
        """The longest conversation. If there is none, the longest text, or None."""
        long_texts = [excerpt for excerpt in self.texts if excerpt.kind != "bytes" and len(excerpt.text) > 1]
        return max(
            long_texts or self.texts[:1],
            key=lambda excerpt: (_CAPTION_RANKS.get(excerpt.kind, 0), len(excerpt.text)),
            default=None,
        )

    @property
    def drawing_size(self) -> tuple[int, int]:
        """The size of the SVG drawing that shows the outlines over the first image."""
        return drawing_size(self.images[0].full_size)


class SampleBudget(NamedTuple):
    """Limits for each sample.

    Attributes:
        image: Maximum bytes of all thumbnails, or None for no limit.
        media: Budget for the audio and video of all samples, or None to omit audio and video.
    """

    edge: int
    image: int | None = None
    text: int = 4000
    images: int = _MAX_IMAGES
    outlines: int = 0
    media: MediaBudget | None = None


def show_samples(
    choice: ChosenSamples, budget: SampleBudget, samples: Sequence[StoredSample] | None = None
) -> Iterator[ShownSample]:
    """Read `samples` for display, or `choice.chosen` by default."""
    for shard, group in groupby(choice.chosen if samples is None else samples, key=lambda stored: stored.shard):
        shard_samples = list(group)
        try:
            with open_shard(shard.path) as file:
                for sample in shard_samples:
                    yield _SampleRendering(file, budget, choice).show(sample)
        except CorruptShard as error:
            for sample in shard_samples:
                labels = _column_labels(choice, sample)
                yield ShownSample(sample, labels, _label_text(choice, labels), problems=[error.found])


def shorten_text(text: str, max_chars: int) -> str:
    """Escape control characters, and cut out the middle of a long text."""
    text = printable(text[: 4 * max_chars])
    return text if len(text) <= max_chars else f"{text[: max_chars * 2 // 3]}…{text[-(max_chars // 3) :]}"


def _is_image(name: str, start: bytes) -> bool:
    if name.rpartition(".")[2].lower() in IMAGE_ENDINGS:
        return True
    if start[:4] == b"RIFF" and start[8:12] != b"WEBP":
        return False
    return any(start.startswith(magic) for magic, _ in IMAGE_SIGNATURES[:DISTINCTIVE_SIGNATURE_COUNT])


def _image_rank(name: str) -> int:
    ending = name.rpartition(".")[2].lower()
    return 0 if ending not in IMAGE_ENDINGS else 3 if is_mask_name(name) else 1 if ending[:2] == "jp" else 2


def _column_labels(choice: ChosenSamples, sample: StoredSample) -> dict[str, str]:
    values = {
        name: sample.metadata.get(name) for name, label in choice.summary.labels.items() if label.source == "column"
    }
    if choice.summary.splits:
        values[SPLIT_COLUMN] = sample.metadata.get(SPLIT_COLUMN)
    return {name: shorten_text(str(value), MAX_KEY_CHARS) for name, value in values.items() if value is not None}


class _SampleRendering:
    def __init__(self, file: ShardFile | CompressedFile, budget: SampleBudget, choice: ChosenSamples) -> None:
        self._file, self._budget, self._choice = file, budget, choice
        self._kinds, self._text_budget = choice.overview.kinds, budget.text
        self._values: dict[str, object] = {}
        self._conversations: list[list[tuple[str, str]]] = []

    def show(self, sample: StoredSample) -> ShownSample:
        shown = ShownSample(sample, _column_labels(self._choice, sample))
        if self._budget.media is not None:
            self._budget.media.start_sample()
        for row in sorted(sample.fields[:_MAX_FIELDS], key=lambda row: _image_rank(row["name"])):
            try:
                self._show_field(shown, row)
            except CorruptShard as error:
                shown.problems.append(f"{shorten_text(row['name'], MAX_KEY_CHARS)}: {error.found}")
        shown.images.sort(key=lambda image: bool(image.colours))
        for name, value in sample.metadata.items():
            turns = find_turns(value)
            if turns and turns not in self._conversations:
                self._add_text(shown, self._chat_excerpt(shorten_text(name, MAX_KEY_CHARS), turns))
        if shown.images:
            values = {**self._values, **sample.metadata}
            classes = self._choice.overview.classes
            shown.outlines = find_outlines(values, shown.images[0].full_size, classes, self._budget.outlines)
        self._name_class_lists(shown)
        names = sorted(self._choice.summary.labels, key=self._choice.overview.label_rank)
        shown.labels = {name: shown.labels[name] for name in (*names, *shown.labels) if name in shown.labels}
        shown.label = _label_text(self._choice, shown.labels)
        return shown

    def _name_class_lists(self, shown: ShownSample) -> None:
        for name, class_names in self._choice.overview.classes.items():
            numbers = self._values.get(name)
            if isinstance(numbers, list):
                known = [number for number in numbers if isinstance(number, int) and 0 <= number < len(class_names)]
                text = ", ".join(class_names[number] for number in dict.fromkeys(known))
                shown.labels[name] = shorten_text(text, MAX_KEY_CHARS)

    def _show_field(self, shown: ShownSample, row: FieldRow) -> None:
        name, length = row["name"], row["length"]
        start = bytes(self._file.read(row["offset"], min(length, _MAX_TEXT_BYTES)))
        if _is_image(name, start):
            if len(shown.images) < self._budget.images:
                self._add_image(shown, row)
            return
        if not self._check_payload(shown, row, start):
            return
        if self._budget.media is not None and (kind := media_type(name, start)):
            self._add_clip(shown, row, kind, start)
            return
        label = self._choice.summary.labels.get(name)
        if label is not None and label.source == "field" and length <= MAX_LABEL_BYTES:
            label_value, _ = label_name(start, self._kinds.get(name, "bytes"), self._choice.overview.classes.get(name))
            shown.labels[name] = shorten_text(label_value, MAX_KEY_CHARS)
        is_read_whole = _is_json(name) or is_yolo_start(start.decode("utf-8", "replace"))
        if len(start) < length <= MAX_TEXT_BYTES and is_read_whole:
            start = bytes(self._file.read(row["offset"], length))
        if self._text_budget > 0 or is_read_whole:
            self._add_text(shown, self._excerpt(shown, name, start, length))

    def _add_text(self, shown: ShownSample, text: TextExcerpt) -> None:
        if self._text_budget > 0:
            shown.texts.append(text)
            self._text_budget -= len(text.text.encode())

    def _add_clip(self, shown: ShownSample, row: FieldRow, kind: str, start: bytes) -> None:
        length, budget = row["length"], self._budget.media
        max_bytes = budget.take(kind, length) if budget and len(shown.clips) < _MAX_CLIPS else 0
        data = bytes(self._file.read(row["offset"], max_bytes))
        if max_bytes < length or self._check_payload(shown, row, data):
            seconds = duration_s(max(start, data, key=len), length)
            data = trim_audio(data) if max_bytes < length else data
            shown.clips.append(MediaClip(shorten_text(row["name"], MAX_KEY_CHARS), kind, length, seconds, data))

    def _add_image(self, shown: ShownSample, row: FieldRow) -> None:
        name, length, title = row["name"], row["length"], shorten_text(row["name"], MAX_KEY_CHARS)
        if length > MAX_INSPECTED_IMAGE_BYTES:
            shown.notes.append(f"{title}: {length:,} bytes, too large to show")
            return
        data = bytes(self._file.read(row["offset"], length))
        if not self._check_payload(shown, row, data):
            return
        max_bytes = self._budget.image
        if max_bytes is not None:
            remaining = max_bytes - sum(len(image.data) for image in shown.images)
            max_bytes = remaining if not shown.images and self._budget.images == 1 else remaining * 3 // 4
        try:
            has_photo = any(not image.colours for image in shown.images)
            shown.images.append(make_thumbnail(data, name, self._budget.edge, max_bytes, has_photo=has_photo))
        except BadImage as error:
            messages = shown.notes if error.code in HARMLESS_IMAGE_CODES else shown.problems
            messages.append(f"{title}: {error.message}")

    def _check_payload(self, shown: ShownSample, row: FieldRow, data: bytes) -> bool:
        title = shorten_text(row["name"], MAX_KEY_CHARS)
        if len(data) < min(row["length"], _MAX_TEXT_BYTES):
            shown.problems.append(f"{title}: the shard ends inside this field")
            return False
        if len(data) == row["length"] and row["crc32c"] is not None and crc32c(data) != row["crc32c"]:
            shown.problems.append(f"{title}: checksum differs from the index")
        return True

    def _excerpt(self, shown: ShownSample, name: str, start: bytes, length: int) -> TextExcerpt:
        title = shorten_text(name, MAX_KEY_CHARS)
        numbers = _numbers_at_start(start, self._kinds.get(name, "bytes"))
        if numbers is not None:
            return self._cut_excerpt(title, "numbers", numbers, is_cut=len(start) < length)
        if _is_json(name) and len(start) == length:
            try:
                self._values[name] = document = json.loads(start)
                if turns := find_turns(document):
                    self._conversations.append(turns)
                    return self._chat_excerpt(title, turns)
                pieces = json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(document)
                # Indentation can turn 1 MB of deeply nested JSON into 1 GB.
                pretty = "".join(islice(pieces, 2 * self._budget.text))
                pretty = _NUMBER_LIST.sub(lambda match: " ".join(match[0].split()), pretty)
                return self._cut_excerpt(title, "json", pretty, is_cut=next(pieces, None) is not None)
            except (ValueError, RecursionError) as error:
                shown.problems.append(f"{title}: not valid JSON: {printable(str(error))[:MAX_KEY_CHARS]}")
        if (text := decode_text(start, is_complete=len(start) == length)) is not None:
            self._values[name] = text
            if is_yolo_start(text):
                return self._cut_excerpt(title, "numbers", text, is_cut=len(start) < length)
            return self._cut_excerpt(title, "text", text, is_cut=len(start) < length)
        dump = " ".join(f"{byte:02x}" for byte in start[:_HEX_BYTES])
        return TextExcerpt(title, "bytes", dump, length > _HEX_BYTES)

    def _chat_excerpt(self, title: str, turns: Sequence[tuple[str, str]]) -> TextExcerpt:
        available, kept, is_cut = self._text_budget, [], False
        for role, text in turns:
            if available <= 0:
                is_cut = True
                break
            name, excerpt = printable(role[:MAX_KEY_CHARS]), self._cut_excerpt(title, "text", text, is_cut=False)
            words = excerpt.text[:available]
            is_whole = not excerpt.cut and words == excerpt.text
            kept.append((name, words if is_whole else f"{words}…"))
            available -= len(name) + len(words) + _TURN_BYTES
            is_cut |= not is_whole
        text = "\n".join(f"{name}: {words}" for name, words in kept)
        return TextExcerpt(title, "chat", text, is_cut, tuple(kept))

    def _cut_excerpt(self, field_name: str, kind: str, text: str, *, is_cut: bool) -> TextExcerpt:
        max_bytes = min(self._text_budget, self._budget.text * 3 // 4)
        lines = [printable(line) for line in text[: 2 * max_bytes].expandtabs(4).replace("\r\n", "\n").split("\n")]
        encoded = "\n".join(lines).encode()
        kept = encoded[:max_bytes].decode("utf-8", "ignore")
        return TextExcerpt(field_name, kind, kept, is_cut or len(encoded) > max_bytes or len(text) > 2 * max_bytes)


def _is_json(name: str) -> bool:
    return name.rpartition(".")[2].lower() in _JSON_ENDINGS


def _numbers_at_start(start: bytes, kind: str) -> str | None:
    if kind == "bytes":
        return None
    end = len(start) // 4 * 4
    if kind == "int64":
        last_bytes = (index for index, byte in enumerate(start) if byte < CONTINUATION_BIT)
        end = max((index + 1 for index in last_bytes), default=0)
    try:
        numbers = feature_numbers(start[:end], kind)
    except ValueError:
        return None
    return ", ".join(f"{number:.7g}" if isinstance(number, float) else str(number) for number in numbers)


def dataset_title(dataset: StoredDataset) -> str:
    """Return the dataset's name or, if it has none, the common start of its shard names."""
    if dataset.file and dataset.file.name:
        return shorten_text(dataset.file.name, _MAX_NAME_CHARS)
    names = [shard.file_name for shard in dataset.shards]
    common = common_prefix(names) if len(set(names)) > 1 else names[0].partition(".")[0]
    return shorten_text(common.rstrip("-_.0123456789") or names[0], _MAX_NAME_CHARS)


def common_prefix(names: Sequence[str]) -> str:
    """Return the longest common prefix."""
    return os.path.commonprefix([*names])  # noqa: RUF071 - a prefix of characters is intended


def _label_text(choice: ChosenSamples, labels: dict[str, str]) -> str:
    name = next(filter(choice.overview.is_label, labels), "")
    text = labels.get(name, "")
    return f"{shorten_text(name, 30)} {text}" if text.lstrip("-").isdigit() else text
