"""What a report shows of samples: which ones, thumbnails, what a browser plays, the start of texts, numbers.

Only the fields that are shown are read, and of long ones only the start. Nothing that a sample holds can end a report:
what cannot be read or decoded becomes a problem of that sample.
"""

from __future__ import annotations

import base64
import json
import os
import re
import warnings
from bisect import bisect
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import pyarrow.types as pt

from shardtool.dataset.payload import IMAGE_LIMIT, TEXT_LIMIT, content_of, label_of, numbers_in, seconds_of
from shardtool.dataset.shard_file import PackedFile, ShardFile, open_shard
from shardtool.dataset.shard_index import FieldRow, ShardIndex, ends_of
from shardtool.errors import CorruptShard, printable
from shardtool.fingerprint import crc32c
from shardtool.format.tfrecord import MORE
from shardtool.request.options import InspectOptions
from shardtool.request.settings import Observer
from shardtool.storage.folders import write_target
from shardtool.transform.image import BadImage, ImageOptions, blamed, change
from shardtool.values import IMAGE_ENDINGS, counted, show_size
from shardtool.verbs.inspect.inspect import (
    MOST_SAMPLES,
    SHORT,
    Overview,
    Summary,
    draw,
    found_samples,
    is_plain,
    summarize,
)
from shardtool.verbs.inspect.samples import check_report, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from PIL.Image import Image as Picture
    from PIL.ImageFont import FreeTypeFont, ImageFont

    from shardtool.dataset.find import StoredDataset, StoredShard
    from shardtool.verbs.inspect.inspect import FoundSample, Payloads

    # The stratum, its random number, shard, place, and what it is.
    _Candidate = tuple[str, float, int, int, FoundSample]

    Font = FreeTypeFont | ImageFont


# The odd ones: those samples of a dataset that people want to see first, as its indexes know them.
#
# The smallest and the largest, the widest and the tallest image (where columns have width and height), and samples
# whose largest field is that of another one, by length and checksum. Eight bytes a sample are held, of four million
# samples.


_MOST_GROUPS = 3  # of duplicates that are shown, two samples each


class OddSamples:
    """What is odd in the shards that were added.

    Attributes:
        repeated: How many samples have the largest field of one before them; known once `found` has run.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._ends: dict[str, tuple[float, int, int, str]] = {}
        self._held = 0
        self._prints: list[tuple[int, NDArray[np.uint64]]] = []

    def add(self, number: int, part: ShardIndex, fields: Mapping[str, Payloads]) -> None:
        """Take the samples of a shard, and the payloads of its fields."""
        sizes = np.diff(ends_of(part.lengths)[part.firsts])
        for why, value, sign in (("smallest", sizes, -1.0), ("largest", sizes, 1.0)):
            self._keep(why, sign * value, number, lambda row: show_size(int(sizes[row])))
        wide, tall = (_whole_numbers(part, name) for name in ("width", "height"))
        shapes = np.log(np.where((wide > 0) & (tall > 0), wide / np.maximum(tall, 1), np.nan))
        for why, sign in (("widest", 1.0), ("tallest", -1.0)):
            self._keep(why, sign * shapes, number, lambda row: f"{wide[row]:,.0f} by {tall[row]:,.0f}")
        longest, prints = np.full(len(part), SHORT, np.uint64), np.zeros(len(part), np.uint64)
        for one in fields.values():
            longer = one.lengths > longest[one.rows]
            longest[one.rows[longer]] = one.lengths[longer]
            prints[one.rows[longer]] = 0 if one.crcs is None else one.groups()[longer]
        self._held += len(prints)
        if self._held <= MOST_SAMPLES:
            self._prints.append((number, prints))

    def _keep(self, why: str, values: NDArray[np.float64], number: int, said: Callable[[int], str]) -> None:
        if np.isnan(values).all():
            return
        row = int(np.nanargmax(values))
        if why not in self._ends or values[row] > self._ends[why][0]:
            self._ends[why] = float(values[row]), number, row, said(row)

    def found(self, shards: Sequence[StoredShard]) -> list[tuple[str, FoundSample]]:
        """Return why each is odd, and the odd ones; of those that are alike none is odd."""
        places = []
        for pair in (("smallest", "largest"), ("widest", "tallest")):
            ends = [(why, *self._ends[why]) for why in pair if why in self._ends]
            if ends and ends[0][1] != -ends[1][1]:
                places += [(f"{why}: {said}", number, row) for why, _, number, row, said in ends]
        odd = []
        for why, number, row in [*places, *self._twins()]:
            with suppress(CorruptShard):
                shard = shards[number]
                odd += [(why, one) for one in found_samples(shard, shard.index(metadata=True), np.array([row]))]
        return odd

    def _twins(self) -> list[tuple[str, int, int]]:
        """Return two samples of each of the largest groups of those that are alike."""
        prints = np.concatenate([one for _, one in self._prints] or [np.zeros(0, np.uint64)])
        ends = ends_of([len(one) for _, one in self._prints])
        known = np.flatnonzero(prints)
        order = known[np.argsort(prints[known], kind="stable")]
        starts = np.flatnonzero(np.diff(prints[order], prepend=np.uint64(0)))
        counts = np.diff(np.append(starts, len(order)))
        self.repeated = int((counts - 1).sum())
        found = []
        for at in np.lexsort((order[starts], -counts)).tolist()[:_MOST_GROUPS]:
            if counts[at] > 1:
                for place in order[starts[at] : starts[at] + 2].tolist():
                    shard = int(np.searchsorted(ends, place, "right")) - 1
                    found.append((f"{counts[at]:,} alike", self._prints[shard][0], place - int(ends[shard])))
        return found


def _whole_numbers(part: ShardIndex, name: str) -> NDArray[np.float64]:
    """Return a column of whole numbers; NaN where there is none."""
    if name in part.metadata.column_names and pt.is_integer(part.metadata.field(name).type):
        return np.asarray(part.metadata.column(name).to_numpy(zero_copy_only=False), np.float64)
    return np.full(len(part), np.nan)


# Which samples are shown: the first of all by (place among those of its label, a random number).
#
# So rare labels are shown, too; without labels the choice goes by shard in the same way. The choice is made while the
# indexes are read, one at a time, and holds no more samples than are shown.


_ORDER = itemgetter(0, 1, 2, 3)
_MOST_VALUES = 2000  # of a label: as many as a page has samples


@dataclass(frozen=True)
class ChosenSamples:
    """The samples that are shown of a dataset, and its overview.

    Attributes:
        overview: What its indexes say.
        summary: The same as `inspect` has it.
        spread: The label that the chosen samples are spread over; empty: the shards.
        chosen: The samples, in the order of the dataset.
        odd: Those that stand out, whether they were chosen or not.
    """

    overview: Overview
    summary: Summary
    spread: str
    chosen: list[FoundSample]
    odd: OddSamples

    @property
    def total(self) -> str:
        """The number of samples, for people."""
        least = "at least " if self.overview.partial and self.overview.dataset.file is None else ""
        return f"{least}{self.summary.samples:,}"


def gather(dataset: StoredDataset, samples: int, seed: int, *, usual: int | None = None) -> ChosenSamples:
    """Read the indexes of a dataset, and choose samples to show.

    Args:
        dataset: The dataset.
        samples: How many there are at most.
        seed: Decides which.
        usual: How many there are, unless the strata are more; None: as many as `samples`.
    """
    overview = Overview(dataset, InspectOptions(seed=seed), Observer())
    spread: set[str] = set()
    pool: list[_Candidate] = []
    odd = OddSamples()
    for shard, part, fields in overview.read():
        if len(part):
            odd.add(shard.number, part, fields)
            name, codes, strata = _strata(shard, part, fields, overview.label_names())
            spread.add(name)
            pool = _first(pool + _candidates(shard, part, codes, strata, (seed, samples, pool)), samples)
    overview.look(images=False)
    summary = summarize(overview, _MOST_VALUES)
    if usual is not None and spread != {""}:
        usual = max(usual, len({one[0] for one in pool}))
    chosen = sorted((one[-1] for one in pool[:usual]), key=lambda one: (one.shard.number, one.number))
    return ChosenSamples(overview, summary, spread.pop() if len(spread) == 1 else "", chosen, odd)


def _strata(
    shard: StoredShard, part: ShardIndex, fields: Mapping[str, Payloads], labels: Sequence[str]
) -> tuple[str, NDArray[np.int64], list[str]]:
    """Return what the choice is spread over, a code for each sample, and what the codes (-1 is the last) stand for."""
    for name in labels:
        if name in fields and fields[name].crcs is not None:
            codes = np.full(len(part), -1, np.int64)
            groups, codes[fields[name].rows] = np.unique(fields[name].groups(), return_inverse=True)
            return name, codes, [*map(str, groups.tolist()), ""]
        if name in part.schema.names and is_plain(part.schema.field(name).type):
            values = part.table.column(name).combine_chunks()
            values = values if pt.is_dictionary(values.type) else values.dictionary_encode()
            codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            return name, codes, [*map(str, values.dictionary.to_pylist()), ""]
    return "", np.zeros(len(part), np.int64), [f"shard {shard.number}"]


def _candidates(
    shard: StoredShard,
    part: ShardIndex,
    codes: NDArray[np.int64],
    strata: list[str],
    drawn: tuple[int, int, list[_Candidate]],
) -> list[_Candidate]:
    """Return those samples of a shard that can be among the first; `drawn`: seed, how many, and the first so far."""
    seed, most, pool = drawn
    priority = draw(seed, shard.number, len(codes))
    order = np.lexsort((priority, codes))
    starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
    rank = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    best = order[np.lexsort((priority[order], rank))][:most]
    if 0 < most <= len(pool):  # then most of them come behind those that are there, and need not be looked at
        before = {
            stratum: [one[1] for one in same] for stratum, same in groupby(sorted(pool, key=_ORDER), itemgetter(0))
        }
        last = len(before[pool[-1][0]]) - 1, pool[-1][1]
        places = (bisect(before.get(strata[codes[row]], ()), priority[row]) for row in best.tolist())
        best = best[[(place, priority[row]) <= last for place, row in zip(places, best.tolist(), strict=True)]]
    return [
        (strata[codes[one.number]], float(priority[one.number]), shard.number, one.number, one)
        for one in found_samples(shard, part, best)
    ]


def _first(pool: list[_Candidate], most: int) -> list[_Candidate]:
    """Return the first of the pool by place in the stratum, then by number.

    What is let go cannot come back: more candidates only push it further down.
    """
    strata = groupby(sorted(pool, key=_ORDER), key=itemgetter(0))
    ranked = [(rank, one) for _, same in strata for rank, one in enumerate(same)]
    ranked.sort(key=lambda both: (both[0], both[1][1], both[1][0]))
    return [one for _, one in ranked[:most]]


# Thumbnails, and masks in colours. Whatever the bytes are, this is bounded: an image by its pixels before they are
# decoded, a thumbnail by its bytes, and what plays by what a page may hold of it.


KINDS = (
    (b"\xff\xd8\xff", "JPEG"), (b"\x89PNG\r\n\x1a\n", "PNG"), (b"GIF8", "GIF"), (b"RIFF", "WebP"),
    (b"II*\0", "TIFF"), (b"MM\0*", "TIFF"), (b"BM", "BMP"), (b"P", "PNM"),
)  # fmt: skip
SNIFFED = 5  # of KINDS are known by their content alone, whatever the field is called
_OF_FRAMES = ("animated-image", "image-depth")  # sound, but `change` refuses them: a first frame is shown
SHOULD_SHOW = frozenset((*_OF_FRAMES, "image-too-large"))
_MOST_PIXELS = 100_000_000
_QUALITY = 75
_EDGE_LEAST = 40
_TRIES = 6


class Thumbnail(NamedTuple):
    """An image made small.

    Attributes:
        data: WebP.
        size: Width and height of `data`.
        full: Width and height of the image.
        mode: Pillow's name of what a pixel of the image is.
        kind: The image's format.
        field: Where it comes from.
        colours: Of a mask, the values of its pixels and how they are coloured, as `#rrggbb`; else empty.
    """

    data: bytes
    size: tuple[int, int]
    full: tuple[int, int]
    mode: str
    kind: str
    field: str
    colours: tuple[tuple[int, str], ...] = ()

    @property
    def url(self) -> str:
        """The picture as a URL that holds it."""
        return "data:image/webp;base64," + base64.b64encode(self.data).decode()


def thumbnail(data: bytes, name: str, edge: int, most: int | None = None, *, beside: bool = False) -> Thumbnail:
    """Return an image made small, upright; a mask in colours.

    Args:
        data: The image.
        name: The field's name.
        edge: Pixels that no side of it exceeds.
        most: Bytes that it may take, as far as a thumbnail of a few pixels allows; None for any.
        beside: Whether the sample has a photograph, too: then an image of few values is a mask of it.

    Raises:
        BadImage: It is damaged, or is none.
    """
    _, fact = change(data, name, ImageOptions(probe=True, max_pixels=_MOST_PIXELS))
    kind = next((kind for magic, kind in KINDS if data.startswith(magic)), "image")
    may_be_mask = kind in _OF_MASKS and fact.mode in _MASK_MODES
    for _ in range(_TRIES):
        mask = _mask(data, name, edge, beside=beside) if may_be_mask else None
        may_be_mask = mask is not None
        small, size, colours = mask or (*_small(data, name, edge), ())
        if most is None or len(small) <= most or edge <= _EDGE_LEAST:
            break
        edge = max(_EDGE_LEAST, int(edge * min(0.85, (most / len(small)) ** 0.5)))
    return Thumbnail(small, size, (fact.width, fact.height), fact.mode, kind, name, colours)


def _small(data: bytes, name: str, edge: int) -> tuple[bytes, tuple[int, int]]:
    smaller = ImageOptions(resize=(edge, edge), resize_mode="longer", only_larger=True, max_pixels=_MOST_PIXELS)
    options = replace(smaller, encode="webp", quality=_QUALITY, fields=(name,))
    try:
        small, fact = change(data, name, options)
    except BadImage as error:
        if error.code not in _OF_FRAMES:
            raise
        return _first_frame(data, edge)
    return bytes(small), (fact.width, fact.height)


def _first_frame(data: bytes, edge: int) -> tuple[bytes, tuple[int, int]]:
    """Return the first picture of an animation or of a deep image, as well as eight bits can show it.

    Raises:
        BadImage: It is damaged.
    """
    from PIL import Image

    with warnings.catch_warnings(), blamed(data):
        warnings.simplefilter("ignore")
        image: Image.Image = Image.open(BytesIO(data), formats=("PNG", "WEBP", "GIF", "TIFF", "PPM"))
        image.load()
        if image.mode[0] in ("F", "I"):  # Pillow's own conversion clips them
            image = image.convert("F")
            low, high = cast("tuple[float, float]", image.getextrema())
            scale = 255 / ((high - low) or 1)
            image = image.point(lambda value: cast("float", value) * scale - low * scale).convert("L")
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
        image.thumbnail((edge, edge))
        return _encoded(image, "WEBP", quality=_QUALITY), image.size


def _encoded(image: Picture, form: str, **options: object) -> bytes:
    """Return the file of a picture."""
    out = BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


# Masks: images whose pixels are the numbers of classes. As grey they are all but black.


_OF_MASKS = ("PNG", "TIFF", "BMP", "PNM", "GIF")  # lossless
_OF_MASKS_IN_PILLOW = ("PNG", "TIFF", "BMP", "PPM", "GIF")
_MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
_MOST_CLASSES = 64  # in one mask: a photograph has more values
_SMALL = 64  # a picture in which all grey is darker is none
_VOID, _VOID_COLOUR = 255, (190, 190, 190)  # by convention what belongs to no class
_GREY = 40  # between the channels of a colour
_CALLED_MASK = re.compile(
    r"mask|seg|annot|label|trimap|panoptic|instance|parsing|(^|[._/-])gt([._/-]|$)", re.IGNORECASE
)
_MASK_COLOURS = (
    (230, 25, 75), (60, 180, 75), (67, 99, 216), (255, 225, 25), (245, 130, 49), (145, 30, 180), (66, 212, 244),
    (240, 50, 230), (191, 239, 69), (250, 190, 212), (70, 153, 144), (220, 190, 255), (154, 99, 36), (255, 250, 200),
    (128, 0, 0), (170, 255, 195), (128, 128, 0), (255, 216, 177), (0, 0, 160),
)  # fmt: skip


def is_called_mask(field: str) -> bool:
    """Tell whether a field is called as masks are: `mask.png`, `seg.png`, `labelIds.png`."""
    return bool(_CALLED_MASK.search(field.rpartition(".")[0] or field))


def _mask(
    data: bytes, name: str, edge: int, *, beside: bool
) -> tuple[bytes, tuple[int, int], tuple[tuple[int, str], ...]] | None:
    """Return a mask in colours, 0 transparent, its size, and the colours of its values; None where it is none."""
    from PIL import Image

    options = ImageOptions((edge, edge), "longer", only_larger=True, masks=(name,), max_pixels=_MOST_PIXELS)
    try:
        small, _ = change(data, name, options)
        with blamed(data):
            image = Image.open(BytesIO(small), formats=_OF_MASKS_IN_PILLOW)
            image.load()
    except BadImage:
        return None
    values, places = np.unique(np.asarray(image), return_inverse=True)
    colours = _colours_of(image, [int(value) for value in values[: _MOST_CLASSES + 1]])
    if not colours or not (beside or is_called_mask(name) or _is_dark(image.mode, [*colours])):
        return None
    table = np.array([(*colour, 255 if value else 0) for value, colour in colours.items()], np.uint8)
    coloured = Image.fromarray(table[places.reshape(image.height, image.width)])
    named = tuple((value, "#{:02x}{:02x}{:02x}".format(*colour)) for value, colour in colours.items())
    return _encoded(coloured, "WEBP", lossless=True), image.size, named


def _is_dark(mode: str, values: Sequence[int]) -> bool:
    """Tell whether nothing would be seen of grey values."""
    classes = [value for value in values if value not in (0, _VOID)]
    return mode not in ("1", "P") and bool(classes) and max(classes) < _SMALL


def _colours_of(image: Picture, values: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Return the colours of a mask's values: those of its palette, if that has any; none of too many values."""
    if len(values) > _MOST_CLASSES:
        return {}
    palette = (image.getpalette() or []) if image.mode == "P" else []
    own = {value: cast("tuple[int, int, int]", (*palette[3 * value : 3 * value + 3], 0, 0, 0)[:3]) for value in values}
    if any(max(colour) - min(colour) > _GREY for colour in own.values()):
        return own
    found = {value: _MASK_COLOURS[(value - 1) % len(_MASK_COLOURS)] for value in values}
    return found | ({_VOID: _VOID_COLOUR} if _VOID in found and {*values} - {0, _VOID} else {})


# Audio and video, in the page itself. What a file claims to be is not asked: its first bytes decide what a browser is
# told, and no such type can run anything.


_FRAME = 4  # bytes: where audio of 8 or 16 bits may be cut
_PIECE = 64_000  # bytes of audio at least, where not all of it fits
_MOST_PLAYED = 1_500_000  # bytes of one field
_AUDIO = (
    (b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"), (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"), (b"\xff", "audio/mpeg"),
)  # fmt: skip
_KNOWN_AUDIO = 3  # by their content alone, whatever the field is called


class Player(NamedTuple):
    """Audio or video.

    Attributes:
        field: Where it comes from.
        type: Its MIME type.
        length: Bytes of the field.
        seconds: How long it is; None where its header does not say.
        data: What is played: all of it, the start, or nothing.
    """

    field: str
    type: str
    length: int
    seconds: float | None
    data: bytes

    @property
    def element(self) -> str:
        """The HTML element that plays it: `audio` or `video`."""
        return self.type.partition("/")[0]

    @property
    def url(self) -> str:
        """It as a URL that holds it."""
        return f"data:{self.type};base64," + base64.b64encode(self.data).decode()

    @property
    def said(self) -> str:
        """What it is, for people."""
        long = "" if self.seconds is None else f", {self.seconds:,.1f} s"
        cut = f", the first {len(self.data) / max(self.length, 1):.0%}" if self.data else ", not in this page"
        return f"{self.element}{long}{cut if len(self.data) < self.length else ''}"


def played_as(name: str, start: bytes) -> str:
    """Return the MIME type of audio and video that browsers play, by its first bytes; empty: it is neither."""
    content = content_of(name)
    if start[:4] == b"RIFF" and start[8:12] == b"WAVE":
        return "audio/wav"
    if start[:4] == b"\x1a\x45\xdf\xa3" and b"webm" in start[:80]:
        return "audio/webm" if content == "audio" else "video/webm"
    if start[4:8] == b"ftyp" and content in ("audio", "video"):
        return f"{content}/mp4"
    known = _AUDIO if content == "audio" else _AUDIO[:_KNOWN_AUDIO]
    return next((kind for magic, kind in known if start.startswith(magic)), "")


class MediaRoom:
    """The bytes of audio and video that a page may hold, shared out so that what plays comes from all over."""

    def __init__(self, total: int, samples: int) -> None:
        self._left = float(min(_PIECE, total))
        self._each = (total - self._left) / max(samples, 1)

    def next(self) -> None:
        """Go on to the next sample, which brings its part."""
        self._left += self._each

    def take(self, kind: str, length: int) -> int:
        """Return how many bytes of a field there is room for: all, as many as make sense to hear, or none."""
        room = min(int(self._left), _MOST_PLAYED)
        cut = room // _FRAME * _FRAME
        start = cut if cut >= _PIECE and not kind.endswith("/mp4") else 0
        taken = length if length <= room else start
        self._left -= taken
        return taken


def cut_to(data: bytes) -> bytes:
    """Return the start of audio such that it plays to its end: of a WAV, with a header that says how much there is."""
    at = data.find(b"data", 12, len(data) - 4) if data[:4] == b"RIFF" else -1
    return data if at < 0 else data[: at + 4] + (len(data) - at - 8).to_bytes(4, "little") + data[at + 8 :]


# A sample as it is shown.


_JSON_ENDINGS = frozenset(("json", "jsn", "geojson"))
SPLIT = "split"  # the column of a sample's split
_START = 4096  # bytes that are read of a field that is no image
_MOST_IMAGES = 3  # of one sample
_MOST_FIELDS = 40  # of one sample
_MOST_PLAYERS = 2  # of one sample
_HEX_BYTES = 32
_SHORT = 200  # characters of a key or a metadata value


class Text(NamedTuple):
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

    chosen: FoundSample
    labels: dict[str, str]
    images: list[Thumbnail] = field(default_factory=list)
    players: list[Player] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    anchor: str = ""
    why: str = ""

    @property
    def key(self) -> str:
        """Its key, for people."""
        return shorten(self.chosen.key, _SHORT)

    @property
    def fields(self) -> list[tuple[str, int]]:
        """Name and bytes of each of its fields."""
        return [(shorten(part["name"], _SHORT), part["length"]) for part in self.chosen.fields]

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
    def best(self) -> Text | None:
        """The caption: its longest text, not a label, which is shown as one."""
        long = [one for one in self.texts if one.kind != "bytes" and len(one.text) > 1]
        return max(long or self.texts[:1], key=lambda one: (one.kind == "text", len(one.text)), default=None)


class Budget(NamedTuple):
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
    images: int = _MOST_IMAGES
    media: MediaRoom | None = None


def show_samples(
    gathered: ChosenSamples, budget: Budget, samples: Sequence[FoundSample] | None = None
) -> Iterator[ShownSample]:
    """Yield what is shown of samples, one after the other; None: of those that were chosen."""
    for shard, chosen in groupby(gathered.chosen if samples is None else samples, key=lambda one: one.shard):
        samples = list(chosen)
        try:
            with open_shard(shard.path) as file:
                for one in samples:
                    yield _SampleReading(file, budget, gathered).show(one)
        except CorruptShard as error:
            for one in samples:
                yield ShownSample(one, _column_labels(gathered, one), problems=[error.found])


def shorten(text: str, most: int) -> str:
    """Return `text` with what could steer a page made visible, the middle of a long one left out."""
    text = printable(text[: 4 * most])
    return text if len(text) <= most else f"{text[: most * 2 // 3]}…{text[-(most // 3) :]}"


def _is_image(name: str, start: bytes) -> bool:
    if name.rpartition(".")[2].lower() in IMAGE_ENDINGS:
        return True
    if start[:4] == b"RIFF" and start[8:12] != b"WEBP":
        return False
    return any(start.startswith(magic) for magic, _ in KINDS[:SNIFFED])


def _image_rank(name: str) -> int:
    """Return which images are looked at first: photographs, before masks of them."""
    ending = name.rpartition(".")[2].lower()
    return 0 if ending not in IMAGE_ENDINGS else 3 if is_called_mask(name) else 1 if ending[:2] == "jp" else 2


def _column_labels(gathered: ChosenSamples, one: FoundSample) -> dict[str, str]:
    found = {
        name: one.metadata.get(name) for name, label in gathered.summary.labels.items() if label.source == "column"
    }
    if gathered.summary.splits:
        found[SPLIT] = one.metadata.get(SPLIT)
    return {name: shorten(str(value), _SHORT) for name, value in found.items() if value is not None}


class _SampleReading:
    """The reading of one sample."""

    def __init__(self, file: ShardFile | PackedFile, budget: Budget, gathered: ChosenSamples) -> None:
        self._file, self._budget, self._gathered = file, budget, gathered
        self._kinds, self._texts_left = gathered.overview.kinds, budget.text

    def show(self, one: FoundSample) -> ShownSample:
        """Return what is shown of a sample."""
        shown = ShownSample(one, _column_labels(self._gathered, one))
        if self._budget.media is not None:
            self._budget.media.next()
        for part in sorted(one.fields[:_MOST_FIELDS], key=lambda part: _image_rank(part["name"])):
            try:
                self._field(shown, part)
            except CorruptShard as error:
                shown.problems.append(f"{shorten(part['name'], _SHORT)}: {error.found}")
        shown.images.sort(key=lambda image: bool(image.colours))
        order = [*self._gathered.summary.labels, SPLIT]
        shown.labels = {name: shown.labels[name] for name in order if name in shown.labels}
        return shown

    def _field(self, shown: ShownSample, part: FieldRow) -> None:
        name, length = part["name"], part["length"]
        start = bytes(self._file.read(part["offset"], min(length, _START)))
        if _is_image(name, start):
            if len(shown.images) < self._budget.images:
                self._image(shown, part)
            return
        if not self._checked(shown, part, start):
            return
        if self._budget.media is not None and (kind := played_as(name, start)):
            self._play(shown, part, kind, start)
            return
        label = self._gathered.summary.labels.get(name)
        if label is not None and label.source == "field" and length <= SHORT:
            called, _ = label_of(start, self._kinds.get(name, "bytes"), self._gathered.overview.classes.get(name))
            shown.labels[name] = shorten(called, _SHORT)
        if len(start) < length and name.rpartition(".")[2].lower() in _JSON_ENDINGS and length <= TEXT_LIMIT:
            start = bytes(self._file.read(part["offset"], length))
        if self._texts_left > 0:
            text = self._text(shown, name, start, length)
            shown.texts.append(text)
            self._texts_left -= len(text.text.encode())

    def _play(self, shown: ShownSample, part: FieldRow, kind: str, start: bytes) -> None:
        length, media = part["length"], self._budget.media
        granted = media.take(kind, length) if media and len(shown.players) < _MOST_PLAYERS else 0
        data = bytes(self._file.read(part["offset"], granted))
        if granted < length or self._checked(shown, part, data):
            seconds = seconds_of(max(start, data, key=len), length)
            data = cut_to(data) if granted < length else data
            shown.players.append(Player(shorten(part["name"], _SHORT), kind, length, seconds, data))

    def _image(self, shown: ShownSample, part: FieldRow) -> None:
        name, length, title = part["name"], part["length"], shorten(part["name"], _SHORT)
        if length > IMAGE_LIMIT:
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
            shown.images.append(thumbnail(data, name, self._budget.edge, most, beside=beside))
        except BadImage as error:
            where = shown.notes if error.code in SHOULD_SHOW else shown.problems
            where.append(f"{title}: {error.message}")

    def _checked(self, shown: ShownSample, part: FieldRow, data: bytes) -> bool:
        """Tell whether a payload, or the start of one, is what the index says."""
        title = shorten(part["name"], _SHORT)
        if len(data) < min(part["length"], _START):
            shown.problems.append(f"{title}: the shard ends in it")
            return False
        if len(data) == part["length"] and part["crc32c"] is not None and crc32c(data) != part["crc32c"]:
            shown.problems.append(f"{title}: another checksum than its index says")
        return True

    def _text(self, shown: ShownSample, name: str, start: bytes, length: int) -> Text:
        title = shorten(name, _SHORT)
        numbers = _numbers(start, self._kinds.get(name, "bytes"))
        if numbers is not None:
            return self._cut(title, "numbers", numbers, is_cut=len(start) < length)
        if name.rpartition(".")[2].lower() in _JSON_ENDINGS and len(start) == length:
            try:
                pieces = json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(start))
                pretty = "".join(islice(pieces, 2 * self._budget.text))  # deep JSON is mostly blanks: 1 MB became 1 GB
                return self._cut(title, "json", pretty, is_cut=next(pieces, None) is not None)
            except (ValueError, RecursionError) as error:
                shown.problems.append(f"{title}: no JSON: {printable(str(error))[:_SHORT]}")
        if (text := text_of(start, whole=len(start) == length)) is not None:
            return self._cut(title, "text", text, is_cut=len(start) < length)
        dump = " ".join(f"{byte:02x}" for byte in start[:_HEX_BYTES])
        return Text(title, "bytes", dump, length > _HEX_BYTES)

    def _cut(self, field_name: str, kind: str, text: str, *, is_cut: bool) -> Text:
        most = min(self._texts_left, self._budget.text * 3 // 4)
        lines = [printable(line) for line in text[: 2 * most].expandtabs(4).replace("\r\n", "\n").split("\n")]
        whole = "\n".join(lines).encode()
        kept = whole[:most].decode("utf-8", "ignore")
        return Text(field_name, kind, kept, is_cut or len(whole) > most or len(text) > 2 * most)


def _numbers(start: bytes, kind: str) -> str | None:
    """Return the numbers at the start of a feature of a TFRecord; None where it holds none."""
    if kind == "bytes":
        return None
    end = len(start) // 4 * 4
    if kind == "int64":
        end = max((at + 1 for at, byte in enumerate(start) if byte < MORE), default=0)  # where a varint ends
    try:
        numbers = numbers_in(start[:end], kind)
    except ValueError:
        return None
    return ", ".join(f"{number:.7g}" if isinstance(number, float) else str(number) for number in numbers)


# What the page and the contact sheet call a dataset, and a sample's label.


_LONGEST = 120


def dataset_name(dataset: StoredDataset) -> str:
    """Return the dataset's name, for people: its own, or what its shards' names have in common."""
    if dataset.file and dataset.file.name:
        return shorten(dataset.file.name, _LONGEST)
    names = [shard.file_name for shard in dataset.shards]
    common = common_start(names) if len(set(names)) > 1 else names[0].partition(".")[0]
    return shorten(common.rstrip("-_.0123456789") or names[0], _LONGEST)


def common_start(names: Sequence[str]) -> str:
    """Return the letters that all names begin with."""
    return os.path.commonprefix([*names])  # noqa: RUF071 - letter by letter is what is wanted


def label_text(one: ShownSample) -> str:
    """Return a sample's label, for people: a bare number with the name of what holds it."""
    for name, text in one.labels.items():
        return f"{shorten(name, 30)} {text}" if text.lstrip("-").isdigit() else text
    return ""


# The contact sheet: thumbnails of samples in one PNG, each with its key and its label below.


_EDGE = 160
_MARGIN, _GAP, _PAD = 24, 14, 8
_LINE = 17
_SIZES = {"title": 22, "text": 13, "small": 12}
_COLOURS = {
    "paper": "#f7f7f5", "card": "#ffffff", "line": "#d5d8dc", "empty": "#eceef1", "ink": "#1c2026", "soft": "#565e6a",
    "bad": "#a8201a",
}  # fmt: skip
_SAMPLES, _COLUMNS = 100, 10
_FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "Arial.ttf")
_NO_GLYPH = "\U0010fffd"  # a private character: what a font draws for what it lacks


def write_contact_sheet(dataset: StoredDataset, path: str, *, seed: int = 0, overwrite: bool = False) -> None:
    """Write a picture of a dataset's samples, in the order of the dataset: a hundred, ten in a row.

    They are spread over labels, or over shards where there are none.

    Args:
        dataset: What to show.
        path: The PNG.
        seed: Decides which samples these are.
        overwrite: Replace a file that is there already.

    Raises:
        InvalidRequest: `path` is no name for a new file.
        OutputExists: There is a file already.
        OutputFailed: The file cannot be written.
    """
    check_report(dataset, path, overwrite=overwrite, ending=".png")
    gathered = gather(dataset, _SAMPLES, seed)
    shown = list(show_samples(gathered, Budget(_EDGE, None, 400, 1)))
    sheet = _Sheet(min(_COLUMNS, max(len(shown), 3)), len(shown))
    sheet.title(dataset_name(dataset), _said(gathered))
    for number, one in enumerate(shown):
        sheet.tile(number, one, label_text(one))
    write_target(path, sheet.png())


def _said(gathered: ChosenSamples) -> str:
    said = f"{len(gathered.chosen):,} of {gathered.total} samples"
    if labels := [*gathered.summary.labels.items()]:
        said += f", {counted(labels[0][1].distinct, 'label')} in {shorten(labels[0][0], 40)}"
    return f"{said}, {counted(len(gathered.overview.dataset.shards), 'shard')}"


class _Sheet:
    """The picture being drawn."""

    def __init__(self, columns: int, tiles: int) -> None:
        from PIL import Image, ImageDraw

        self._columns = columns
        self._wide, self._tall = _EDGE + 2 * _PAD, _EDGE + 2 * _PAD + 2 * _LINE + 4
        rows = -(-tiles // columns)
        self._top = _MARGIN + 58
        width = 2 * _MARGIN + columns * (self._wide + _GAP) - _GAP
        height = self._top + rows * (self._tall + _GAP) - (_GAP if rows else 0) + _MARGIN
        self._image = Image.new("RGB", (width, height), _COLOURS["paper"])
        self._draw = ImageDraw.Draw(self._image)
        self._fonts = {name: _fonts(size) for name, size in _SIZES.items()}

    def title(self, name: str, said: str) -> None:
        """Draw what stands above the tiles."""
        width = self._image.width - 2 * _MARGIN
        self._text((_MARGIN, _MARGIN - 4), name, "title", "ink", width)
        self._text((_MARGIN, _MARGIN + 27), said, "text", "soft", width)

    def tile(self, number: int, one: ShownSample, label: str) -> None:
        """Draw a sample."""
        left = _MARGIN + number % self._columns * (self._wide + _GAP)
        top = self._top + number // self._columns * (self._tall + _GAP)
        edge = _COLOURS["bad" if one.problems else "line"]
        self._draw.rectangle(
            (left, top, left + self._wide - 1, top + self._tall - 1), _COLOURS["card"], edge, 2 if one.problems else 1
        )
        place = (left + _PAD, top + _PAD)
        self._draw.rectangle((*place, place[0] + _EDGE - 1, place[1] + _EDGE - 1), _COLOURS["empty"])
        if one.images:
            self._picture(one, place)
        else:
            self._words(one, place)
        below = place[1] + _EDGE + 5
        self._text((place[0], below), shorten(one.chosen.key, 60), "text", "ink", _EDGE)
        second = one.problems[0] if one.problems else label
        self._text((place[0], below + _LINE), second, "small", "bad" if one.problems else "soft", _EDGE)

    def _picture(self, one: ShownSample, place: tuple[int, int]) -> None:
        from PIL import Image

        small = one.images[0]
        picture: Image.Image = Image.open(BytesIO(small.data), formats=("WEBP",))
        at = (place[0] + (_EDGE - small.size[0]) // 2, place[1] + (_EDGE - small.size[1]) // 2)
        self._image.paste(picture, at, picture if picture.mode == "RGBA" else None)

    def _words(self, one: ShownSample, place: tuple[int, int]) -> None:
        """Draw the start of a sample's text where it has no picture."""
        if one.problems:
            self._text((place[0] + 10, place[1] + _EDGE // 2 - 8), "cannot be shown", "text", "bad", _EDGE - 20)
            return
        if one.best is None:
            return
        words, line, down = one.best.text.split(), "", place[1] + 6
        for word in [*words, ""]:
            longer = f"{line} {word}".strip()
            if line and (not word or self._draw.textlength(longer, _font(self._fonts["small"], longer)) > _EDGE - 14):
                self._text((place[0] + 7, down), line, "small", "soft", _EDGE - 14)
                line, down = word, down + _LINE
                if down > place[1] + _EDGE - _LINE:
                    return
            else:
                line = longer

    def _text(self, place: tuple[int, int], text: str, kind: str, colour: str, most: int) -> None:
        """Draw a line of text, the middle left out where it is too long: names tell apart by their ends."""
        font = _font(self._fonts[kind], text)
        if self._draw.textlength(text, font) > most:
            places = range(1, len(text) + 1)
            fits = bisect(places, float(most), key=lambda kept: self._draw.textlength(_cut(text, kept), font))
            text = _cut(text, fits)
        self._draw.text(place, text, _COLOURS[colour], font)

    def png(self) -> bytes:
        """Return the picture."""
        return _encoded(self._image, "PNG", optimize=False)


def _cut(text: str, kept: int) -> str:
    """Return `kept` letters of `text`, most of them from its start."""
    tail = kept * 2 // 5
    return f"{text[: kept - tail]}…{text[len(text) - tail :]}"


def _fonts(size: int) -> list[Font]:
    """Return Pillow's own font, and those of the system that know more letters."""
    from PIL import ImageFont

    found: list[Font] = [ImageFont.load_default(size)]
    for name in _FONTS:
        with suppress(OSError):
            found.append(ImageFont.truetype(name, size))
    return found


def _font(fonts: Sequence[Font], text: str) -> Font:
    """Return the first font that has all letters of `text`; the last one where none has."""
    if text.isascii():
        return fonts[0]
    return next((font for font in fonts if all(_has(font, char) for char in set(text) if char != " ")), fonts[-1])


def _has(font: Font, char: str) -> bool:
    return bytes(font.getmask(char)) != bytes(font.getmask(_NO_GLYPH))
