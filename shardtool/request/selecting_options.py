"""Options of `create` and `reshard` that select samples, fields and metadata, and transform images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, get_args

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.request.option_spec import (
    Function,
    Pairs,
    Texts,
    alias,
    option,
    options_class,
)
from shardtool.request.option_values import DelimitedFormat, format_pair, parse_pixels, split_commas
from shardtool.request.output_options import COUNT_RANGE, TRANSFORM_OPTIONS, OutputOptions
from shardtool.values import (
    HashName,
    ImageFormat,
    ResizeMode,
)

if TYPE_CHECKING:
    from shardtool.fetch.options import FetchOptions
    from shardtool.transform.transform import Transform


_REQUIRES_IMAGE_CHANGE = {"resize|encode|probe|exif": "no image option to apply it to"}


def _expand_sort_by(_kind: type, value: str) -> dict[str, object]:
    """Return the column and the direction of `-COLUMN`."""
    return {"sort_by": value[1:], "descending": True} if str(value).startswith("-") else {"sort_by": value}


def _expand_fields(_kind: type, value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return {"rename_fields": tuple(format_pair("fields", *pair) for pair in value.items())}
    texts = ["=".join(map(str.strip, text.split("=", 1))) for text in split_commas("fields", value)]
    renamed = [text for text in texts if "=" in text]
    kept = [text for text in texts if "=" not in text and not text.startswith("-")]
    kept += [text.partition("=")[0] for text in renamed if kept]
    dropped = [text[1:] for text in texts if text.startswith("-") and text not in renamed]
    options = {"select_fields": kept, "drop_fields": dropped, "rename_fields": renamed}
    return {name: tuple(dict.fromkeys(fields)) for name, fields in options.items() if fields}


@options_class
class SelectingOptions(OutputOptions):
    """Options of `create` and `reshard` that select samples and fields and convert between metadata and fields.

    For folders and datasets, they are applied in this order: `columns_from`, then `select_fields`, `drop_fields` and
    `rename_fields`, then `join`, `where`, `values`, `sample`, `sort_by` and `head`. For a manifest, only `where`,
    `values`, `classes`, `classes_from`, `sample`, `head` and, last, `drop_duplicates` apply.
    """

    columns_from: Texts = option(
        (), "Field whose values become metadata: top-level JSON values, a number, or a text.",
        section="fields", metavar="FIELD", of="folder",
    )  # fmt: skip
    fields: str | Texts | Mapping[str, str] = option(
        (), "Fields to keep (jpg,cls), exclude (-json), or rename (JPEG=jpg). If you list fields to keep, renamed "
        "fields are kept too.", metavar="FIELDS", comma_separated=True, of="folder", recorded=False, common=True,
        expand=_expand_fields,
    )  # fmt: skip
    select_fields: Texts = option((), "Fields to keep.", metavar="FIELDS", word=True, of="folder", family="fields {}")
    drop_fields: Texts = option((), "Fields to exclude.", metavar="FIELDS", word=True, of="folder", family="fields -{}")
    rename_fields: Pairs = option(
        (), "New name for a field: JPEG=jpg,jpeg=jpg.", typed="rename-field", form="pairs", metavar="OLD=NEW",
        example="jpeg=jpg", comma_separated=True, of="folder", family="fields {}",
    )  # fmt: skip
    join: object = option(
        None, "Table whose columns become metadata: CSV, Parquet, COCO JSON and others.", form="path",
        metavar="TABLE", of="folder", recorded=False,
    )  # fmt: skip
    on: str | None = option(
        None, "Column of the `join` table with keys or file paths.", metavar="COLUMN", example="key",
        shown="key; file_name for COCO JSON", of="folder", requires={"join": "no table"},
    )  # fmt: skip
    delimiter: str | None = option(
        None, "Separator in a text table or manifest: ';', '|' or tab. With '|', quotation marks are plain text.",
        form="delimiter", metavar="CHAR", example="|",
        shown="comma; tab for .tsv",
    )  # fmt: skip
    no_header: bool = option(False, "Treat the first row of a text table as values; name its columns 1, 2, ...")
    values: Pairs = option(
        (), "Create a field from a metadata column.", typed="field", form="pairs",
        metavar="FIELD=COLUMN", common=True,
    )  # fmt: skip
    field: Pairs | None = alias("values")
    classes: Texts = option((), "Field from `values` whose labels become class numbers.", metavar="FIELD")
    classes_from: object = option(
        None, "Class names in order: a dataset file, a JSON list, or text with a name per line.", form="path",
        metavar="FILE", recorded=False,
        requires={"label_from_folder|classes|values": "no labels to number"},
    )  # fmt: skip
    sort_by: str | None = option(
        None, "Sort samples by this column; -COLUMN sorts in descending order. Samples without a value come last.",
        section="shards", metavar="COLUMN", of="folder",
        conflicts=("shuffle", "place, which sorts samples by key"),
        expand=_expand_sort_by,
    )  # fmt: skip
    descending: bool = option(
        False, "Sort in descending order of `sort_by`.", of="folder",
        family="sort-by -COLUMN", requires={"sort_by": "no column to sort by"},
    )  # fmt: skip
    sample: str | float | None = option(
        None, "Use only this share of the samples, chosen by a hash of the key: 0.01 or 1%.", section="choosing",
        form="sample", metavar="SHARE",
    )  # fmt: skip
    head: int | None = option(None, "Use only the first N samples.", range=COUNT_RANGE, common=True)
    drop_duplicates: bool = option(
        False, "Skip samples with the same content as a sample with an earlier key. Images, audio, video and arrays "
        "are compared; if a sample has none, its texts are compared.", section="choosing", conflicts=(
            "append, which does not read existing samples",
            "part, which reads only its own samples", "urls, whose files are not downloaded yet",
            "stat, which reads no files",
        ),
    )  # fmt: skip
    resize: str | int | tuple[int, int] | None = option(
        None, "Resize images to this many pixels; see `resize_mode`.", section="images", form="pixels",
        metavar="N|WxH", common=True,
    )  # fmt: skip
    resize_mode: ResizeMode = option(
        "shorter",
        "Resize the shorter side, the longer side, or both (exact, crop or pad). crop fills the size and cuts "
        "off the rest; pad fits the image inside and adds borders.",
    )  # fmt: skip
    only_larger: bool = option(False, "Never enlarge images.", requires={"resize": "nothing is resized"})
    encode: ImageFormat | None = option(None, "Convert images to this format.")
    quality: int | None = option(
        None, "Quality for jpg and webp.", range=(1, 100), shown="90",
        requires={"resize|encode": "no image is written"},
        conflicts=("encode=png, which is lossless",),
    )  # fmt: skip
    images: Texts = option(
        (),
        "Treat this field as an image.",
        typed="image",
        metavar="FIELD",
        shown="by its extension",
        requires=_REQUIRES_IMAGE_CHANGE,
    )
    image: Texts | None = alias("images")
    masks: Texts = option(
        (), "Treat this field as a segmentation mask: resize with nearest neighbour.", typed="mask", metavar="FIELD",
        requires=_REQUIRES_IMAGE_CHANGE,
    )  # fmt: skip
    mask: Texts | None = alias("masks")
    probe: bool = option(False, "Store the width, height and mode of images in the sidecars.")
    exif: bool = option(False, "Store the EXIF data of images in the sidecars, as JSON.")
    hash: HashName | tuple[HashName, ...] | list[HashName] = option(
        (), "Store checksums of each original file in the sidecars: " + ", ".join(get_args(HashName)) + ".",
        metavar="NAMES", comma_separated=True,
    )  # fmt: skip
    map: Function | None = option(
        None, "Call this function with each sample, a dict. It returns one sample, several samples, or None.",
        form="function",
        metavar="MODULE:FUNCTION", conflicts=("update, which compares keys, but a function creates its own",),
    )  # fmt: skip

    @property
    def text_form(self) -> DelimitedFormat:
        """Format of text tables, as given by options."""
        return DelimitedFormat(self.delimiter or "", not self.no_header)

    def check_joined_form(self) -> None:
        """Refuse `delimiter` and `no_header` without a table.

        Raises:
            InvalidRequest: There is no table.
        """
        if given := self.first_given("" if self.join is not None else "delimiter|no_header"):
            raise InvalidRequest(
                option_text(given), "no table", expected=f"a manifest, or {option_text('join', 'TABLE')}"
            )

    @property
    def found(self) -> dict[str, str]:
        """Names and Arrow types of metadata columns from `probe`, `exif` and `hash`."""
        from shardtool.transform.transform import EXIF_COLUMN, ORIGINAL_COLUMNS, PROBED_COLUMNS

        before = ORIGINAL_COLUMNS if any(name in (self.where or "") for name in ORIGINAL_COLUMNS) else {}
        probed = {**PROBED_COLUMNS, **before} if self.probe else {}
        return {**probed, **({EXIF_COLUMN: "string"} if self.exif else {}), **dict.fromkeys(self.hash, "string")}

    def make_transform(self) -> Transform | None:
        """Return the transform of samples; None if there is nothing to do."""
        fetch = self.make_fetch_options()
        if fetch is None and not any(getattr(self, name) for name in TRANSFORM_OPTIONS):
            return None
        from shardtool.transform.transform import Transform

        function, found = self.map if isinstance(self.map, str) else "", tuple(self.found.items())
        if self.resize is None and self.encode is None and not self.probe and not self.exif:
            return Transform(None, function, fetch, found)
        from shardtool.transform.image import ImageOptions

        size = None if self.resize is None else parse_pixels("resize", self.resize)
        images = self.pick(ImageOptions, resize=size, fields=tuple(self.images), masks=tuple(self.masks))
        return Transform(images, function, fetch, found)

    def make_fetch_options(self) -> FetchOptions | None:
        """Return the download options; None without URLs."""
        return None
