"""The help: a screen of what most runs need (`-h`), all of it (`--help`), and a topic with what is to be known of it.

All three are made of a verb's docstring and of what its options declare (`request/settings.py`). A topic is a section
of options; what is said of it here is said once, and of a verb only as far as it has the options that are named.
"""

from __future__ import annotations

import re
import shutil
import sys
from inspect import cleandoc
from typing import Any, NamedTuple

import click

from shardtool.cli.suggest import meant_option
from shardtool.errors import printable
from shardtool.wording import FAMILIES

_WIDEST = 100
_COLUMN = 26  # of names, at most; longer ones have a line of their own
_EXAMPLES = 6  # on the first screen
_OPTION = re.compile(r"--[a-z][a-z-]*")


class Topic(NamedTuple):
    """A section of the help.

    Attributes:
        title: What stands above it.
        prose: What is to be known of it, where a sentence ends a line.
    """

    title: str
    prose: str = ""


TOPICS = {
    "shards": Topic("Shards: size, number, order", """
        OUTPUT is a pattern of names; quote it.
        out-{000000..}.tar and out-%06d.tar make as many shards as the bound needs: 1 GB each, or --max-size.
        out-<000000..000999>.tar makes exactly 1,000, filled evenly; with a bound, or with fewer samples, at most 1,000.
        Its ending picks the format: .tar (WebDataset) or .tfrecord.
        The plan is exact before a byte is written: --dry-run prints it.
    """),
    "choosing": Topic("Choosing and dividing samples", """
        --where takes the samples of which a query is true: over columns of metadata, and of files over key, path,
        folder and size, of datasets over key, shard, size and fields.
        Metadata are columns of a table, of sidecars, of --join and of --columns-from.
        With --split and --split-by, each split becomes a dataset, and its name takes the place of {split} in OUTPUT:
        '{split}-{000000..}.tar'.
        Without --stratify, the hash of its key (or of its group) says the split of a sample, which so stays there when
        others come and go.
    """),
    "folders": Topic("Folders and archives", """
        Files that share a key are one sample: cat/0001.jpg and cat/0001.json are the fields jpg and json of the sample
        cat/0001.
        Several folders make samples together: images/a.jpg and masks/a.png.
        Where endings are alike, fields are called by their folders, too: images.png and masks.png.
        A zip or tar of files is read in place; photos.zip/train is a folder in it.
    """),
    "tables": Topic("Tables", """
        A table, or manifest, has a row for each sample: CSV, TSV, JSON lines, Parquet, Feather; - reads paths from
        standard input.
        --path and --file name files, --bytes has their bytes, --url their addresses on the web.
        All other columns go into the field json and into the sidecars, for --where, --split-by and others to use.
    """),
    "fields": Topic("Fields and metadata", """
        A field is a part of a sample, such as jpg, cls or json; metadata are columns about samples, in the sidecars.
        All is done in one order: --columns-from, --fields, --join, --where, --field, --sort-by, --split, --shuffle.
        Classes have numbers from 0 in the order of their names, which the dataset file holds; --classes-from takes
        numbers that there are already.
    """),
    "images": Topic("Changing samples", """
        Images are known by their endings, or named by --image and --mask.
        Those that need no change pass byte for byte.
        --map calls a function of yours with each sample, after that: a dict of its fields, and __key__.
        Sizes are estimates then; no shard is larger than asked all the same.
    """),
    "urls": Topic("Files from the web", """
        With --url, workers fetch the files whose addresses a column of a table has; pip install 'shardtool[urls]'.
        A link that is dead is no error: the sample is left out and listed in NAME.skipped, and the run stops where more
        fail than --fetch max-failed says.
    """),
    "files": Topic("Files", """
        A sample becomes a file for each of its fields, KEY.FIELD, below the folder that is named last.
        One that is there with the right bytes stays, one with others only goes with --overwrite.
    """),
    "checks": Topic("What is checked", """
        Every byte is read, unless --quick or --sample says otherwise.
        Of shards without sidecars, that shows headers, framing, ends, TFRecord checksums and keys that are wrong.
    """),
    "source": Topic("The source, and repair", """
        With --source, the dataset is compared with what it was made from: what is missing, extra or different.
        --repair makes anew what can be made without guessing, and verifies that.
    """),
    "samples": Topic("Samples", """
        Of several datasets, samples are those of all of them, in order.
    """),
    "pages": Topic("Pages, tables, speed", """
        Nothing that is there is replaced without --overwrite.
        Counts and sizes are exact; of images and labels that no sidecar has, --looks samples are opened.
    """),
    "indexes": Topic("Indexes", """
        Headers of shards are read, and with --checksum payloads, too; shards are never touched.
    """),
    "copying": Topic("Copying", """
        What is there with the right bytes is not copied again.
    """),
    "machines": Topic("Workers, machines, servers", """
        What is written does not depend on how many --workers write it.
        --part 3/64 writes the third of 64 parts, on any machine; the last part to end makes the dataset file.
        Where listing takes long, --plan-only plan.parquet lists once; then all parts go by --plan plan.parquet.
        s3://, gs:// and az:// are places as any other: pip install 'shardtool[remote]'.
    """),
    "rerun": Topic("Running again, and what fails", """
        Without these options, output that is there is an error, and nothing is touched.
        --resume finishes a run that was killed, and takes over what changed in the source; --append adds new shards;
        --overwrite replaces the dataset once the new one is complete.
        The dataset file, such as out.json, is written last: where it is, the dataset is complete.
    """),
    "jobs": Topic("Jobs as files", """
        --save-config job.toml writes what was typed, and runs it; --config job.toml does it again.
        A key is an option as it is typed, or an argument: source = "photos", max-size = "1GB", shuffle = true.
        A list is what is repeated, a table is pairs and keys; relative paths count from the file's folder.
    """),
    "output": Topic("What is printed", """
        Results go to stdout, as one document with --json; notes, progress and errors go to stderr.
        Exit codes: 0 done, 2 a request that makes no sense, 3 findings, 4 damaged input, 5 output that is there,
        6 samples that failed, 7 the machine failed.
    """),
}  # fmt: skip


class Option(click.Option):
    """An option, and what the help is to know of it: see `Facts`."""

    section = "output"
    common = False
    rare = False
    family = ""  # in which it is typed
    old: tuple[str, ...] = ()  # what it was called

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return what the help says of it, without what it was called."""
        names, self.opts = self.opts, [one for one in self.opts if one not in self.old]
        record, self.opts = super().get_help_record(ctx), names
        return record

    def key_record(self) -> tuple[str, str]:
        """Return what the help of a family says of it, as one of the family's keys."""
        key = FAMILIES[self.name or ""].split()[-1]
        value = "|".join(self.type.choices) if isinstance(self.type, click.Choice) else self.metavar or ""
        return key.format(value), self.help or ""


class Shown(click.UsageError):
    """A verb was asked for nothing: its help is shown in place of an error."""

    def show(self, file: Any = None) -> None:
        """Print the help."""
        (file or sys.stderr).write(f"{self.message}\n")


class Verb(click.Command):
    """A command whose help is a screen, and more where it is asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read what was typed; an option that is none is refused with what may be meant."""
        if not args and not ctx.resilient_parsing:
            raise Shown(brief(self, ctx), ctx)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            arguments = [word.strip(".") for one in self.collect_usage_pieces(ctx) for word in one.split()]
            meant = meant_option(error.option_name, [*self.shown(), *arguments], _others(ctx))
            message = f"No such option {printable(error.option_name)}. {meant}".rstrip()
            raise click.UsageError(message, ctx) from None

    def get_help(self, ctx: click.Context) -> str:
        """Return all of the help."""
        return full(self, ctx)

    def options(self, *, rare: bool = False) -> list[Option]:
        """Return the options that are shown, those of most runs first; and those that only their topic shows."""
        found = [one for one in self.params if isinstance(one, Option) and not one.hidden and (rare or not one.rare)]
        return sorted(found, key=lambda one: not one.common)

    def shown(self) -> list[str]:
        """Return what its options are called."""
        return [word for one in self.options(rare=True) for word in one.opts if word not in one.old]

    def topics(self) -> dict[str, Topic]:
        """Return the topics of which it has options."""
        named = {one.section for one in self.options(rare=True)}
        return {name: topic for name, topic in TOPICS.items() if name in named}


def _others(ctx: click.Context) -> dict[str, list[str]]:
    """Return the options of all verbs but the context's."""
    group = ctx.parent.command if ctx.parent else None
    if not isinstance(group, click.Group):
        return {}
    verbs = {name: group.get_command(ctx, name) for name in group.list_commands(ctx) if name != ctx.command.name}
    return {name: verb.shown() for name, verb in verbs.items() if isinstance(verb, Verb)}


def width() -> int:
    """Return how wide the help is: as the terminal, up to 100 columns."""
    return min(_WIDEST, max(50, shutil.get_terminal_size((_WIDEST, 24)).columns))


def overview(group: click.Group, ctx: click.Context, verbs: dict[str, str]) -> str:
    """Return the help of all verbs.

    Args:
        group: What has them.
        ctx: Its context.
        verbs: What each does.
    """
    page = _page(group, ctx)
    with page.section("Verbs"):
        page.write_dl([*verbs.items()])
    with page.section("Examples"):
        page.write("".join(f"  {line}\n" for line in _examples(group)))
    page.write_paragraph()
    page.write_text(cleandoc(group.help or "").rpartition("\n\n")[2])
    return page.getvalue().rstrip("\n")


def brief(verb: Verb, ctx: click.Context) -> str:
    """Return the help of one screen."""
    page = _page(verb, ctx)
    with page.section("Examples"):
        page.write("".join(f"  {line}\n" for line in _examples(verb)[:_EXAMPLES]))
    records = [one.get_help_record(ctx) for one in verb.options() if one.common]
    rows = [(record[0], _first_sentence(record[1])) for record in records if record]
    if rows:
        with page.section("Common options"):
            page.write_dl(rows, col_max=_COLUMN)
    page.write_paragraph()
    topics = f", or shardtool help {verb.name} TOPIC ({', '.join(verb.topics())})" if len(verb.topics()) > 1 else ""
    page.write_text(f"More: shardtool {verb.name} --help{topics}.")
    return page.getvalue().rstrip("\n")


def full(verb: Verb, ctx: click.Context) -> str:
    """Return all of the help but what only topics say."""
    page = _page(verb, ctx, all_of_it=True)
    for name, topic in verb.topics().items():
        records = [one.get_help_record(ctx) for one in verb.options() if one.section == name]
        if rows := [record for record in records if record]:
            rows += [("-h, --help", "Show the options of most runs, or all.")] if name == "output" else []
            with page.section(topic.title):
                page.write_dl(rows, col_max=_COLUMN)
    if topics := verb.topics():
        page.write_paragraph()
        page.write_text(f"More: shardtool help {verb.name} TOPIC, which is one of: {', '.join(topics)}.")
    return page.getvalue().rstrip("\n")


def about(verb: Verb, ctx: click.Context, name: str) -> str:
    """Return what is to be known of a topic.

    Raises:
        UsageError: The verb has no such topic.
    """
    topics = verb.topics()
    if name not in topics:
        message = f"`shardtool {verb.name}` has no topic {name!r}, but: {', '.join(topics)}."
        raise click.UsageError(message, ctx)
    page = click.HelpFormatter(width=width())
    page.write_text(f"shardtool {verb.name}: {topics[name].title}")
    page.write_paragraph()
    with page.indentation():
        page.write_text(" ".join(said(verb, name)))
    here = [one for one in verb.options(rare=True) if one.section == name]
    with page.section("Options"):
        page.write_dl([record for one in here if (record := one.get_help_record(ctx))], col_max=_COLUMN)
    for family, keys in keys_of(verb, name).items():
        with page.section(f"Keys of --{family}"):
            page.write_dl([one.key_record() for one in keys], col_max=_COLUMN)
    words = {word for one in here for word in one.opts if word.startswith("--")}
    if shown := [line for line in _examples(verb) if words & {*line.split()}]:
        with page.section("Examples"):
            page.write("".join(f"  {line}\n" for line in shown))
    return page.getvalue().rstrip("\n")


def said(verb: Verb, name: str) -> list[str]:
    """Return what is said of a topic, as far as a verb has the options that are named there."""
    known = {word for one in verb.params for word in one.opts}
    sentences = [" ".join(one.split()) for one in re.split(r"(?<=\.)\n", TOPICS[name].prose)]
    return [one for one in sentences if one and known.issuperset(_OPTION.findall(one))]


def keys_of(verb: Verb, name: str) -> dict[str, list[Option]]:
    """Return the keys of each option of a topic that takes `key=value`."""
    found: dict[str, list[Option]] = {}
    for one in verb.params:
        if isinstance(one, Option) and one.section == name and one.family and " " not in one.family:
            found.setdefault(one.family, []).append(one)
    return found


def _page(command: click.Command, ctx: click.Context, *, all_of_it: bool = False) -> click.HelpFormatter:
    """Return a page with the usage, and what is said of the verb: a sentence, or all of it."""
    page, text = click.HelpFormatter(width=width()), cleandoc(command.help or "")
    page.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(ctx)))
    page.write_paragraph()
    with page.indentation():
        page.write_text(text if all_of_it else text.split("\n\n")[0])
    return page


def _examples(command: click.Command) -> list[str]:
    text = cleandoc(command.help or "").partition("Examples:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in text.splitlines()]


def _first_sentence(text: str) -> str:
    text, bracket, default = text.replace("; repeatable.", ".").partition(" [default: ")
    return text.partition(". ")[0].removesuffix(".") + "." + (bracket + default if len(default) < _COLUMN else "")
