"""Options of `create` and `reshard` that select samples, fields and metadata, and transform images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardtool.errors import InvalidRequest
from shardtool.messages import option_text
from shardtool.request.option_spec import Function, Given, Needs, Pairs, Texts, option, options_class
from shardtool.request.option_values import DelimitedFormat, format_pair, parse_pixels, split_commas
from shardtool.request.output_options import COUNT_RANGE, TRANSFORM_OPTIONS, OutputOptions
from shardtool.values import HashName, ImageFormat, ResizeMode

if TYPE_CHECKING:
    from shardtool.fetch.options import FetchOptions
    from shardtool.transform.transform import Transform


def _needs_image_option() -> tuple[Needs, ...]:
    kind = SelectingOptions
    options = (Given(kind.resize), Given(kind.encode), Given(kind.probe), Given(kind.exif))
    return (Needs("no option changes or probes images", *options),)


def _expand_sort_by(_kind: type, value: str) -> dict[str, object]:
    return {"sort_by": value[1:], "descending": True} if str(value).startswith("-") else {"sort_by": value}


def _expand_fields(_kind: type, value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return {"rename_fields": tuple(format_pair("fields", *pair) for pair in value.items())}
    texts = ["=".join(map(str.strip, text.split("=", 1))) for text in split_commas("fields", value)]
    renamed = [text for text in texts if "=" in text]
    kept = [text for text in texts if "=" not in text and not text.startswith("-")]
    kept += [text.partition("=")[2] for text in renamed if kept]
    dropped = [text[1:] for text in texts if text.startswith("-") and text not in renamed]
    options = {"select_fields": kept, "drop_fields": dropped, "rename_fields": renamed}
    return {name: tuple(dict.fromkeys(fields)) for name, fields in options.items() if fields}


@options_class
class SelectingOptions(OutputOptions):
    """Options of `create` and `reshard` that select and transform samples, fields and metadata.

    For folders and datasets, the options are applied in this order: `columns_from`, then `select_fields`, `drop_fields`
    and `rename_fields`, then `join`, `keys_from`, `where`, `field`, `sample`, `sort_by`, `head` and `rename_keys`. For
    datasets, however, `rename_keys` is applied before `sort_by`.

    For a manifest, only these options select samples and fields: `where`, `keys_from`, `sample`, `head`, `field`,
    `classes`, `classes_from` and `rename_keys`. For every source, `drop_duplicates` is applied after these
    options, before `split` and `shuffle`.

    Attributes:
        keys_from: Use only samples whose keys are in this file (- for stdin). The file has one key per line, or is a
            table with the column key.
        columns_from: Use the values of this field as metadata columns. The field contains a JSON object, a number or a
            text.
        fields: Fields to keep (jpg,cls), exclude (-json), or rename (NEW=OLD: jpg=JPEG). If you list fields to keep,
            renamed fields are kept too.
        select_fields: Fields to keep.
        drop_fields: Fields to exclude.
        rename_fields: New names for fields (NEW=OLD): jpg=JPEG,txt=caption.
        rename_keys: Rename keys with a sed pattern ('s/^/2024-/'), or to the values of a column. The sidecar column
            old_key keeps the previous keys.
        join: Table whose columns become metadata: CSV, Parquet, COCO JSON and others.
        on: Column with keys or file paths in the `join` table.
        collect: If several rows have one key, collect these columns (a,b), or all, into lists. The other columns must
            have one value per key. Lists keep the order of rows.
        delimiter: Separator in a text table or manifest: ';', '|' or tab. With '|', quotation marks are plain text.
        no_header: Treat the first row of a text table as data. Columns are named 1, 2, ...
        field: Create a field from a metadata column.
        classes: Convert the labels of this `field` to class numbers.
        classes_from: Read class names, in order, from a dataset file, a JSON list, or a text file. A text file has one
            name per line.
        sort_by: Sort samples by this column; -COLUMN sorts in descending order. Samples without a value come last.
        descending: Sort by `sort_by` in descending order.
        sample: Use only this share of the samples, chosen by a hash of the key: 0.01 or 1%.
        head: Use only the first N samples.
        drop_duplicates: Among samples with equal content, use only the sample whose key sorts first. Images, audio,
            video and arrays are compared. If a sample has none of these, its texts are compared.
        resize: Resize images to this many pixels; see `resize_mode`.
        resize_mode: Resize the shorter side, the longer side, or both (exact, crop or pad). exact may distort the
            image, crop cuts off edges, and pad adds borders.
        only_larger: Never enlarge images.
        encode: Convert images to this format.
        quality: Quality for jpg and webp.
        image: Treat this field as an image.
        mask: Treat this field as a segmentation mask: resize with nearest neighbour.
        probe: Store the width, height and mode of images in the sidecars.
        exif: Store the EXIF data of images in the sidecars, as JSON.
        hash: Store checksums of one original file per sample in the sidecars. Downloads are preferred, then images,
            audio and video.
        map: Call this function with each sample, a dict. The function returns one sample, several samples, or None.
    """

    keys_from: object = option(None, section="choosing", form="path", metavar="FILE", recorded=False)
    columns_from: Texts = option((), section="fields", metavar="FIELD", only_for="folder")
    fields: str | Texts | Mapping[str, str] = option(
        (),
        metavar="FIELDS",
        comma_separated=True,
        only_for="folder",
        recorded=False,
        common=True,
        expand=_expand_fields,
    )
    select_fields: Texts = option((), metavar="FIELDS", single_value_list=True, only_for="folder", parent="fields {}")
    drop_fields: Texts = option((), metavar="FIELDS", single_value_list=True, only_for="folder", parent="fields -{}")
    rename_fields: Pairs = option(
        (),
        cli_names="rename-field",
        form="pairs",
        metavar="NEW=OLD",
        example="jpg=jpeg",
        comma_separated=True,
        only_for="folder",
        parent="fields {}",
    )
    rename_keys: str | None = option(None, form="rename", metavar="PATTERN")
    join: object = option(None, form="path", metavar="TABLE", only_for="folder", recorded=False)
    on: str | None = option(
        None,
        metavar="COLUMN",
        example="key",
        default_text="key; file_name for COCO JSON",
        only_for="folder",
        requires=(Needs("no table", Given(join)),),
    )
    collect: Texts = option((), metavar="COLUMNS", comma_separated=True)
    delimiter: str | None = option(
        None, form="delimiter", metavar="CHAR", example="|", default_text="comma; tab for .tsv"
    )
    no_header: bool = option(False, rare=True)
    field: Pairs = option((), form="pairs", metavar="FIELD=COLUMN", common=True)
    classes: Texts = option((), metavar="FIELD")
    classes_from: object = option(
        None,
        form="path",
        metavar="FILE",
        recorded=False,
        requires=(Needs("no field is converted to class numbers", Given(classes), Given(field)),),
    )
    sort_by: str | None = option(
        None,
        section="shards",
        metavar="COLUMN",
        only_for="folder",
        conflicts=(Given(OutputOptions.shuffle), Given(OutputOptions.place, "which sorts samples by key")),
        expand=_expand_sort_by,
    )
    descending: bool = option(
        False, only_for="folder", parent="sort-by -COLUMN", requires=(Needs("no column to sort by", Given(sort_by)),)
    )
    sample: str | float | None = option(None, section="choosing", form="sample", metavar="SHARE")
    head: int | None = option(None, range=COUNT_RANGE, common=True)
    drop_duplicates: bool = option(
        False,
        section="choosing",
        conflicts=(
            Given(OutputOptions.append, "which does not read existing samples"),
            Given(OutputOptions.part, "which reads only its own samples"),
        ),
    )
    resize: str | int | tuple[int, int] | None = option(
        None, section="images", form="pixels", metavar="N|WxH", common=True
    )
    resize_mode: ResizeMode = option("shorter")
    only_larger: bool = option(False, requires=(Needs("nothing is resized", Given(resize)),))
    encode: ImageFormat | None = option(None)
    quality: int | None = option(
        None,
        range=(1, 100),
        default_text="90",
        requires=(Needs("no image is written", Given(resize), Given(encode)),),
        conflicts=(Given(encode, "which is lossless").as_value("png"),),
    )
    image: Texts = option((), metavar="FIELD", default_text="by its extension", requires=_needs_image_option)
    mask: Texts = option((), metavar="FIELD", requires=_needs_image_option)
    probe: bool = option(False)
    exif: bool = option(False)
    hash: HashName | tuple[HashName, ...] | list[HashName] = option((), metavar="NAMES", comma_separated=True)
    map: Function | None = option(
        None,
        form="function",
        metavar="MODULE:FUNCTION",
        conflicts=(Given(OutputOptions.update, "which compares keys, but a function creates its own"),),
    )

    @property
    def delimited_format(self) -> DelimitedFormat:
        """Format of text tables."""
        return DelimitedFormat(self.delimiter or "", not self.no_header)

    def check_table_options(self) -> None:
        """Raise InvalidRequest if an option for a table is given without a table."""
        if table_option := self.first_given(*(() if self.join is not None else ("delimiter", "no_header", "collect"))):
            raise InvalidRequest(
                option_text(table_option), "no table", expected=f"a manifest, or {option_text('join', 'TABLE')}"
            )

    @property
    def file_columns(self) -> dict[str, str]:
        """Names and Arrow types of the metadata columns that `probe`, `exif` and `hash` add."""
        from shardtool.transform.transform import EXIF_COLUMN, ORIGINAL_COLUMNS, PROBED_COLUMNS

        before = ORIGINAL_COLUMNS if any(name in (self.where or "") for name in ORIGINAL_COLUMNS) else {}
        probed = {**PROBED_COLUMNS, **before} if self.probe else {}
        return {**probed, **({EXIF_COLUMN: "string"} if self.exif else {}), **dict.fromkeys(self.hash, "string")}

    def make_transform(self) -> Transform | None:
        """Return the `Transform` that downloads files and changes samples, or None if there is nothing to do."""
        fetch = self.make_fetch_options()
        if fetch is None and not any(getattr(self, name) for name in TRANSFORM_OPTIONS):
            return None
        from shardtool.transform.transform import Transform

        function = self.map if isinstance(self.map, str) else ""
        columns = tuple(self.file_columns.items())
        if self.resize is None and self.encode is None and not self.probe and not self.exif:
            return Transform(None, function, fetch, columns)
        from shardtool.transform.image import ImageOptions

        size = None if self.resize is None else parse_pixels("resize", self.resize)
        images = self.pick(ImageOptions, resize=size, fields=tuple(self.image), masks=tuple(self.mask))
        return Transform(images, function, fetch, columns)

    def make_fetch_options(self) -> FetchOptions | None:
        """Return the download options, or None."""
        return None
