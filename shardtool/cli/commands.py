"""The verbs: what was typed goes to the library, and what came of it to the terminal.

The options of each are made for click from those that `request/settings.py` declares.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import closing
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click
from click.core import ParameterSource

from shardtool.cli.help import Option, Verb, brief
from shardtool.cli.output import LOG, in_files, show, show_bytes, show_json, while_read
from shardtool.cli.terminal import Terminal
from shardtool.errors import InvalidRequest, ShardError, printable
from shardtool.interop.indexes import EXPORTS
from shardtool.pattern import DATASET_SUFFIX, is_shard_name
from shardtool.request.options import (
    CopyOptions,
    CreateOptions,
    DiffOptions,
    DoctorOptions,
    ExportOptions,
    ExtractOptions,
    IndexOptions,
    InspectOptions,
    RemoveOptions,
    ReshardOptions,
    VerifyOptions,
)
from shardtool.request.settings import (
    Settings,
    choices,
    described,
    facts,
    is_several,
    like,
    of_flags,
    setting,
    spellings,
    typed_text,
)
from shardtool.request.texts import whole
from shardtool.storage.places import is_url, names_in, use_anonymous, use_endpoint, use_headers, use_store_options
from shardtool.storage.remote.retry import use_retry_for
from shardtool.values import counted, given_names, output_text
from shardtool.wording import typed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from shardtool.dataset.find import StoredDataset
    from shardtool.request.results import IndexResult
    from shardtool.request.settings import Facts, Observer
    from shardtool.verbs.inspect.samples import SampleView

_FOUND, _UNREADABLE = 3, 4  # exit codes
_SIDES = 2  # of `diff`
_SLIP = re.compile(r"[kKMGTPmgtp]?i?[bB]|[0-9]+")  # a unit or a number: rather a part of an option's value than a name
_MANY = 1000  # keys that are printed at a time
_BRIEF = 4096  # bytes of a text of which a line is shown
_PATTERN_LAST = "a shard pattern as the last argument, quoted, such as 'out-{000000..}.tar'"
_PATTERN = re.compile(r"[{<%]")
_MARKS = re.compile(r"[{<%*?[]")  # of patterns and globs: each may mean several shards
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})(\.[^/0-9]*)", re.DOTALL)
_SHORT = {"overwrite": ["-f"]}  # of flags that stand for values
_ACCEPTED = "shardtool.accepted"  # in a context: what is called once a request is known to make sense
_OF_ERRORS = {"as_json": "--json", "verbose": "--verbose"}
VERBS: dict[str, Callable[[], click.Command]] = {}  # what makes each
Function = TypeVar("Function", bound="Callable[..., int | None]")
_PLACE = click.Path(readable=False)  # what is there, or not, is for the verbs to say


def _completed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what a shell completes."""
    from shardtool.cli.completion import completions

    return completions(ctx, param, incomplete)


class Words(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """A few texts with commas between them: `webdataset,dali`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return these texts with commas between them."""
        return ",".join(super(Words, self).convert(one.strip(), param, ctx) for one in value.split(","))


def _use_config(path: str) -> None:
    """Take what a file says for what was not typed."""
    from shardtool.cli.config import read_config

    context = click.get_current_context()
    context.default_map = read_config(path, context)
    if isinstance(context.obj, list):  # what was typed, by which errors are printed
        context.obj += [word for name, word in _OF_ERRORS.items() if context.default_map.get(name)]


@described
class Output(Settings):
    """What is printed, and how."""

    as_json: bool = setting(False, "Print one JSON document on stdout.", section="output", typed="json")
    quiet: bool = setting(False, "Print errors and what was asked for, and nothing else.", typed="quiet/q")
    config: str | None = setting(
        None, "File (TOML) of options and arguments; what is typed beside it wins.", section="jobs", form="path",
        metavar="FILE", use=_use_config,
    )  # fmt: skip
    save_config: str | None = setting(
        None, "File that options and arguments are written to, once they are known to make sense.", form="path",
        metavar="FILE",
    )  # fmt: skip


@described
class Running(Output):
    """What is said while a verb runs, and which servers are asked."""

    progress: Literal["auto", "plain"] = setting(
        "auto",
        "How progress is shown: as a bar where stderr is a terminal, or as a line every ten seconds, for logs.",
        section="output",
    )
    log: Literal["text", "json"] | None = setting(
        None, "Write a line on stderr for each shard, retry, note and the end, in place of progress.",
        metavar="CHOICE", use=LOG.begin,
    )  # fmt: skip
    verbose: bool = setting(False, "Print a line for every shard.", typed="verbose/v")
    endpoint: str | None = setting(
        None, "Server of s3:// (MinIO, Ceph, R2 ...), gs:// or az://.", metavar="URL",
        shown="as the cloud's own tools say", section="machines", use=use_endpoint,
    )  # fmt: skip
    anonymous: bool = setting(False, "Sign no request: a public bucket needs no keys.", use=use_anonymous)
    store_option: tuple[str, ...] = setting(
        (), "What a store is told of objects that are written, such as storage-class=STANDARD_IA, and who pays.",
        metavar="KEY=VALUE", shown="SHARDTOOL_STORE_OPTIONS", use=use_store_options,
    )  # fmt: skip
    header: tuple[str, ...] = setting(
        (), "Header that is sent to servers of the web (https://).", metavar="'NAME: VALUE'",
        shown="SHARDTOOL_HTTP_HEADERS", use=use_headers,
    )  # fmt: skip
    retry_for: str | None = setting(
        None, "Seconds for which a request that fails is made again.", metavar="SECONDS",
        shown="SHARDTOOL_RETRY_FOR, or 300", use=use_retry_for,
    )  # fmt: skip


@described
class DryRunning(Running):
    """What can be asked of a verb that plans before it writes, too."""

    dry_run: bool = setting(
        False, "Print the plan, to the byte; write nothing.", section="output", typed="dry-run/n", common=True
    )


def verb(
    arguments: str | tuple[click.Argument, ...],
    options: type[Any] | None = None,
    running: type[Settings] = Running,
    without: Collection[str] = (),
) -> Callable[[Function], Function]:
    """Make a verb of a function, whose docstring is the help, once that verb is asked for.

    It gets what was typed that is no option; what makes its options, or refuses them; and what says how it runs.

    Args:
        arguments: What is typed beside options: names, as the usage line calls them, or what click is to know of it.
        options: The class of its options.
        running: The class of those that say how it runs.
        without: Options that the command line does not have.
    """
    typed = (
        (click.Argument(["names"], type=_PLACE, nargs=-1, required=True, metavar=arguments, shell_complete=_completed),)
        if isinstance(arguments, str)
        else arguments
    )

    def made(function: Callable[..., int | None]) -> click.Command:
        kinds = [running] if options is None else [options, running]
        known = {kind: [name for name in facts(kind) if name not in without] for kind in kinds}
        params = [one for kind, names in known.items() for name in names for one in _options(kind, name)]
        first = Option(["-h", "first_help"], is_flag=True, is_eager=True, expose_value=False, callback=_show_brief)
        first.hidden = True
        params.append(first)

        def run(**_: Any) -> int | None:
            context = click.get_current_context()
            given = context.params
            if context.default_map:
                for kind in known:
                    _have_typed_win(kind, context)
            words = [given[one.name or ""] for one in typed]
            if any(_SLIP.fullmatch(word) for word in given.get("names", ())):
                from shardtool.cli.help import refuse_loose_value

                refuse_loose_value(given["names"], context)
            asked = [partial(_made, kind, names, given) for kind, names in known.items()]
            if given.get("save_config") is not None:
                from shardtool.cli.config import keep_config

                for make in asked:
                    make()
                context.meta[_ACCEPTED] = keep_config(given["save_config"], context)
            code = function(*words, *asked[:-1], asked[-1]())
            if _ACCEPTED in context.meta:
                context.meta[_ACCEPTED]()
            return code

        return Verb(function.__name__, params=[*typed, *params], callback=run, help=function.__doc__)

    def register(function: Function) -> Function:
        VERBS[function.__name__] = partial(made, function)
        return function

    return register


def _show_brief(context: click.Context, _option: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's
    """Show the help of one screen."""
    if asked and isinstance(context.command, Verb):
        show(brief(context.command, context))
        context.exit()


def _have_typed_win(kind: type[Any], context: click.Context) -> None:
    """Drop of what a file says that which was typed otherwise: keys of a family one by one, all flags at once."""
    given, known, of_file = context.params, facts(kind), context.default_map or {}
    typed = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    for name, one in known.items():
        if typed & one.flags.keys():
            given.update(dict.fromkeys(one.flags.keys() - typed))
        if one.divide is None or not given[name]:
            continue
        family = spellings(kind, name)[0][2:]
        members = [other for other in known if known[other].within_family.split(" ")[0] == family and given[other]]
        if not one.commas:  # of which one is all that there is, but for what it needs
            needed = {other for member in typed & {*members} for other in known[member].needs}
            given.update(dict.fromkeys({name, *members} - typed - needed if typed & {name, *members} else ()))
            continue
        said: dict[str, object] = {}
        for values, here in ((of_file, of_file.keys()), (given, typed)):
            said.update(one.divide(kind, typed_value(kind, name, values)) if name in here else {})
            said.update((other, typed_value(kind, other, values)) for other in members if other in here)
        given.update((other, () if isinstance(given[other], tuple) else None) for other in members)
        given[name] = tuple(typed_words(*each)[1] for each in said.items())


def _made(kind: type[Any], names: Sequence[str], given: Mapping[str, Any]) -> Any:
    """Return the options that were typed, or refuse them."""
    values = {name: typed_value(kind, name, given) for name in names}
    try:
        return kind(**{name: value for name, value in values.items() if value is not None})
    except InvalidRequest as error:
        if not click.get_current_context().default_map or not error.found.startswith("used with"):
            raise
        remedy = "--no-KEY takes back what the file says."
        raise InvalidRequest(error.where, error.found, expected=error.expected, remedy=remedy) from None


def _options(kind: type[Any], name: str) -> Iterator[Option]:
    """Yield what stands on the command line for an option: one, or several flags."""
    one, default = facts(kind)[name], kind.__dataclass_fields__[name].default
    old = [f"--{word}" for word in one.old.split("/") if word]
    names, text = [*spellings(kind, name), *old, name], typed_text(one.text)
    used: Any = {"callback": partial(_use, one), "is_eager": one.use is not None}
    if one.flags:
        found = [
            Option([f"--{flag}", *_SHORT.get(flag, ()), flag], is_flag=True, help=typed_text(said))
            for flag, said in one.flags.items()
        ]
    elif default is False:
        found = [Option(names, is_flag=True, help=text, **used)]
    elif default is True:
        found = [Option(names, flag_value=False, default=True, help=typed_text(one.off))]
    else:
        text = f"{text} Known are {', '.join(EXPORTS)}." if name == "export" else text
        multiple = name == "source" or (not one.word and (is_several(kind, name) or (one.commas and bool(one.divide))))
        text = text[:-1] + "; repeatable." if multiple else text
        shown = one.shown or (default if default not in (None, ()) else "")
        option = Option(
            names,
            type=_type(kind, name),
            multiple=multiple,
            metavar=one.metavar or ("N" if one.within else "SIZE" if one.form == "size" else None),
            help=f"{text} [default: {typed_text(str(shown))}]" if shown != "" else text,
            shell_complete=_completed,
            **used,
        )
        found = [option]
    known = [*facts(kind)]
    sections = [facts(kind)[other].section for other in known[: known.index(name) + 1]]
    for option in found:
        option.hidden, option.family, option.old = bool(one.within_family), one.within_family, tuple(old)
        option.common, option.rare = one.common, one.rare
        option.section = next(filter(None, reversed(sections)))
        yield option


def _type(kind: type[Any], name: str) -> Any:
    """Return the type of an option's text."""
    one, texts = facts(kind)[name], EXPORTS if name == "export" else choices(kind, name)
    if texts:
        return Words(texts) if one.commas else click.Choice([*texts])
    return _PLACE if one.form == "path" else click.STRING


def _use(one: Facts, _context: click.Context, param: click.Parameter, given: Any) -> Any:
    """Have a value used at once, where that is what its option is for."""
    if one.use is not None and given not in (None, ()):
        try:
            one.use(given)
        except InvalidRequest as error:
            if one.form == "path":  # it says where in the file
                raise
            raise click.BadParameter(f"{error.found}; expected {error.expected}.", param=param) from error
    return given


def typed_value(kind: type[Any], name: str, given: Mapping[str, Any]) -> Any:
    """Return the value of an option for what was typed."""
    one = facts(kind)[name]
    if one.flags:
        return of_flags([flag for flag in one.flags if given[flag]]) or None
    value = given[name]
    if one.within is not None and value is not None:
        return whole(value)
    if one.word:
        return tuple(value.split(",")) if value else ()
    if one.commas:
        parts = [part for text in value for part in text.split(",")]
        return tuple(dict.fromkeys(parts) if choices(kind, name) else parts)
    if isinstance(value, tuple) and not is_several(kind, name):
        return value[0] if len(value) == 1 else [*value] or None
    return value


# The verbs: what was typed goes to the library, and what came of it to the terminal.


@verb("SOURCE... OUTPUT", CreateOptions, DryRunning)
def create(names: tuple[str, ...], asked: Callable[[], CreateOptions], how: DryRunning) -> None:
    """Pack SOURCE, a folder or a table of samples, into shards called OUTPUT.

    SOURCE is a folder: files that share a key are one sample, cat/0001.jpg + cat/0001.json are the fields jpg
    and json of the sample cat/0001. Or several folders, a zip, or a tar. Or a table, a row for each sample: CSV, TSV,
    JSON, Parquet, Feather, or - for paths on standard input.

    OUTPUT is a pattern; quote it. Its ending picks the format: .tar (WebDataset) or .tfrecord.

    \b
      out-{000000..}.tar        as many shards as the bound needs (1 GB each, or --max-size)
      out-<000000..000999>.tar  exactly 1,000 shards, filled evenly; with a bound, or with fewer
                                samples, at most 1,000; --shards N makes N under any pattern
      out-%06d.tar              the same as out-{000000..}.tar

    Beside each shard lies its index, out-000000.index (Parquet); out.json lists them all, and is
    written last: where it is, the dataset is complete.

    \b
    Examples:
      shardtool create ./imgs 'out-{000000..}.tar'
      shardtool create ./imgs 'out-{000000..}.tar' --label-from-folder --shuffle --seed 1
      shardtool create ./data 'out/{split}-{000000..}.tar' --split-by folder --label-from-folder
      shardtool create images/ masks/ 'out-{000000..}.tar' --max-size 500MB --dry-run
      shardtool create table.parquet 'out-{000000..}.tar' --path path --field cls=bi --classes cls
      shardtool create table.csv '{split}-{000000..}.tar' --split train=0.9,val=0.1 --stratify bi
      shardtool create photos.zip 'out-{000000..}.tar' --shards 64
      find imgs -name '*.jpg' | shardtool create - 'out-{000000..}.tar'
      shardtool create ./imgs 's/train-<0000..0127>.tar' --include '*.jpg' --equal-count
      shardtool create ./imgs 'out-{000000..}.tar' --resume
      shardtool create ./imgs 'out-{000000..}.tar' --plan plan.parquet --part 3/64
      shardtool create ./imgs 'out-{000000..}.tar' --update
      shardtool create ./live 'out-{000000..}.tar' --place hash --shuffle --resume
      shardtool create ./imgs 'out-{000000..}.tfrecord' --resize 256 --encode jpg
      shardtool create ./imgs 'out-{000000..}.tar' --join labels.csv --on id --field cls=label
      shardtool create ./imgs 'out-{000000..}.tar' --columns-from json --where "width > 256"
      shardtool create ./imgs 'out-{000000..}.tar' --fields jpg,json=meta.json
      shardtool create urls.csv 'out-{000000..}.tar' --url jpg=url --fetch require=image,per-host=4
      shardtool create ./imgs 'out-{000000..}.tar' --for webdataset,dali --export timm
    """
    from shardtool.verbs.create.create import create as run
    from shardtool.verbs.create.create import dry_run

    options = asked()
    source, output = divide_sources((*in_files(names[:-1], table=True), *names[-1:]))
    dry = how.dry_run or options.plan_only is not None
    _write_shards(partial(dry_run if dry else run, source, output, options), how, dry=dry)


@verb("DATASET... OUTPUT", ReshardOptions, DryRunning)
def reshard(names: tuple[str, ...], asked: Callable[[], ReshardOptions], how: DryRunning) -> None:
    """Write the samples of each DATASET into other shards, called OUTPUT.

    Another size, order, format, split or subset: bytes are moved and checked, and decoded only to be changed. A DATASET
    is a dataset file (out.json), a pattern, a glob, a folder, or a shard, made by any tool; where there is no index,
    shards are walked. Several become one.

    OUTPUT is a pattern, as for `create`; quote it. Its ending picks the format: .tar (WebDataset) or .tfrecord.

    \b
    Examples:
      shardtool reshard out.json 'big-{000000..}.tar' --max-size 5GB
      shardtool reshard out.json 'mixed-{000000..}.tar' --shuffle --seed 1
      shardtool reshard out.json 'dogs-{000000..}.tar' --where "label == 'dog'" --fields -json
      shardtool reshard out.json '{split}-{000000..}.tar' --split train=0.9,val=0.1 --stratify label
      shardtool reshard out.json 'even-{000000..}.tar' --per-class 100 --of label
      shardtool reshard out.json 'small-{000000..}.tar' --resize 128 --encode webp
      shardtool reshard out.json 'both-{000000..}.tar' --add embeddings.json
      shardtool reshard crawl1/ crawl2/ 'all-{000000..}.tar' --on-duplicate first
      shardtool reshard 'out/{split}.json' 'all-{000000..}.tar'
      shardtool reshard out.json 'records-{000000..}.tfrecord' --shards 16
      shardtool reshard out.json 'new-{000000..}.tar' --join labels.csv --on key --field cls=label
      shardtool reshard out.json 'large-{000000..}.tar' --columns-from json --sort-by -width
      shardtool reshard out.json 'few-{000000..}.tar' --sample 10%
      shardtool reshard out.json 'scattered-{000000..}.tar' --shuffle --method scatter --memory 2GB
      shardtool reshard more.json 'out-{000000..}.tar' --append
      shardtool reshard crawl/ 'clean-{000000..}.tar' --on-error skip
    """
    from shardtool.verbs.create.create import reshard as run
    from shardtool.verbs.create.create import reshard_dry_run

    datasets, output = divide_datasets((*in_files(names[:-1]), *names[-1:]))
    _write_shards(partial(reshard_dry_run if how.dry_run else run, datasets, output, asked()), how, dry=how.dry_run)


def _write_shards(work: Callable[..., Any], how: Running, *, dry: bool) -> None:
    from shardtool.cli.text import plan_table, written_text

    _carry_out(work, how, plan_table if dry else written_text, always=dry)


def _terminal(how: Running) -> closing[Terminal]:
    accepted = click.get_current_context().meta.get(_ACCEPTED)
    return closing(Terminal(quiet=how.quiet, verbose=how.verbose, progress=how.progress, accepted=accepted))


def _carry_out(work: Callable[..., Any], how: Running, text: Callable[[Any], str], *, always: bool = False) -> Any:
    """Have a verb do its work before the user's eyes, print what came of it, and return it.

    Args:
        work: Gets the observer, and returns what can be printed.
        how: How it runs.
        text: Makes a text of what came of it.
        always: Print it, however quiet: it is what was asked for.
    """
    with _terminal(how) as terminal:
        result = work(observer=terminal)
    _print(how, result.to_json, partial(text, result), always=always)
    return result


def _print(how: Output, document: Callable[[], object], text: Callable[[], str], *, always: bool = False) -> None:
    """Print a result, for programs or for people."""
    if LOG.style and isinstance(found := document(), dict):
        LOG.result = found
    if how.as_json:
        show_json(document())
    elif always or not how.quiet:
        show(text())


# What of the names that were typed is the source, and what the output.


def divide_sources(names: tuple[str, ...]) -> tuple[str | list[str], list[str]]:
    """Return the source, or several, and the output that `SOURCE... OUTPUT` means.

    The output is the last argument, with all names of shards before it, for a shell may have expanded its pattern;
    where the first argument is an archive, which has such a name too, with those that count up to it.

    Raises:
        InvalidRequest: There is only one argument, or the output is before the source.
    """
    at = len(names) - 1
    first, last = names[0], names[at]
    if at > 0 and _is_source(last) and _is_output(first):
        raise _swapped(first, last, "a shard pattern before the source", "SOURCE before OUTPUT")
    if at < 1:
        raise InvalidRequest("OUTPUT", "not given", expected=_PATTERN_LAST)
    is_archive = is_shard_name(os.path.basename(names[0]))
    while at > 1 and is_shard_name(os.path.basename(names[at - 1])):
        if is_archive and not _follows(names[at - 1], names[at]):
            break
        at -= 1
    sources = [*names[:at]]
    return sources[0] if len(sources) == 1 else sources, [*names[at:]]


def _is_source(name: str) -> bool:
    """Tell whether a name can only be that of something to read: an existing file or folder that is no shard."""
    return not is_shard_name(os.path.basename(name)) and os.path.exists(name)


def _is_output(name: str) -> bool:
    """Tell whether a name can only be that of shards to write: a local pattern, or shard, of which no file exists."""
    if is_url(name):
        return False
    head = re.split(_PATTERN, name, maxsplit=1)[0]
    if head == name:
        return is_shard_name(os.path.basename(name)) and not os.path.lexists(name)
    folder, start = os.path.split(head)
    return not any(one.startswith(start) and is_shard_name(one) for one in names_in(folder or "."))


def _swapped(first: str, last: str, found: str, expected: str) -> InvalidRequest:
    """Return the error of two arguments in the wrong order."""
    remedy = f"Swap them: {shlex.quote(last)} {shlex.quote(first)}."
    return InvalidRequest(first, found, expected=expected, remedy=remedy)


def divide_datasets(names: tuple[str, ...]) -> tuple[list[str | list[str]], list[str]]:
    """Return the datasets and the output that `DATASET... OUTPUT` means.

    The output is the last argument where that is a pattern. Otherwise a shell has expanded one: then it is the names
    at the end that differ in their number only, and count up.

    Raises:
        InvalidRequest: It is unclear which is which.
    """
    at = len(names) - 1
    first, last = names[0], names[at]
    if at == 1 and _is_source(last) and _is_output(first):
        raise _swapped(first, last, "a shard pattern before the dataset", "DATASET before OUTPUT")
    if not _PATTERN.search(names[at]):
        while at > 0 and _follows(names[at - 1], names[at]):
            at -= 1
    if at < 1:
        found = "not given" if len(names) == 1 else "cannot be told apart from DATASET"
        raise InvalidRequest("OUTPUT", found, expected=_PATTERN_LAST)
    return _together(names[:at]), [*names[at:]]


def _and_last(names: tuple[str, ...], *missing: str) -> tuple[list[str], str]:
    """Return the names of datasets, and where they go to.

    Raises:
        InvalidRequest: There is only one name.
    """
    *datasets, last = names
    if not datasets:
        raise InvalidRequest(*missing)
    if len(datasets) == 1 and os.path.isfile(last) and last.endswith(DATASET_SUFFIX) and not _MARKS.search(datasets[0]):
        first = datasets[0]
        holds_shards = any(is_shard_name(name) for name in names_in(first)) if os.path.isdir(first) else False
        if not (is_url(first) or os.path.isfile(first) or holds_shards):
            raise _swapped(first, last, f"before the dataset file {last}", f"DATASET before {missing[0]}")
    return datasets, last


def _together(names: Sequence[str]) -> list[str | list[str]]:
    """Return datasets, shards of one folder that follow each other being one: a shell has expanded a pattern."""

    def folder(name: str) -> str | None:
        is_shard = is_shard_name(os.path.basename(name)) and not _MARKS.search(name)
        return os.path.dirname(name) if is_shard else None

    found: list[str | list[str]] = []
    for above, group in groupby(names, folder):
        together = [*group]
        found += together if above is None else [together]
    return found


def _follows(one: str, other: str) -> bool:
    """Tell whether a name is the other's, but for a number that is the next one."""
    first, second = _NUMBERED.fullmatch(one), _NUMBERED.fullmatch(other)
    if first is None or second is None:
        return False
    same = (first[1], first[3]) == (second[1], second[3])
    wide = len(first[2]) == len(second[2]) or not second[2].startswith("0")  # 999 and 1000
    return same and wide and int(first[2]) + 1 == int(second[2])


@described
class _Reporting(Running):
    """How `verify` tells what it found."""

    style: Literal["text", "json", "junit", "github"] = setting(
        "text", "How findings are printed.", section="output", typed="report", old="format", common=True
    )


@verb("DATASET...", VerifyOptions, _Reporting, without=("start_method",))
def verify(names: tuple[str, ...], asked: Callable[[], VerifyOptions], how: _Reporting) -> int:
    """Prove that DATASET is whole, or say what is wrong with it.

    DATASET is a dataset file, a shard pattern, a glob, a folder, or shards; of any tool. Every byte is read and
    compared with what sidecars and dataset file say: any flipped, removed or added byte of a dataset of ours is found.
    Of shards without them, all that can be known: headers, framing, ends, TFRecord checksums, keys. Of several
    datasets, each; and samples that two splits of one have.

    Exit code: 0 nothing is wrong, 3 findings, 4 nothing could be read; of several datasets, the worst.

    \b
    Examples:
      shardtool verify out.json
      shardtool verify out.json --quick
      shardtool verify out.json --source ./imgs
      shardtool verify out.json --repair --source ./imgs
      shardtool verify 'out/{split}.json' --report junit > report.xml
      shardtool verify out.json --sample 10% --seed $(date +%j)
      shardtool verify out/
      shardtool verify 'downloaded/train-{000000..000127}.tar' --decode
      shardtool verify out.json --source list.csv --root ./imgs
      shardtool verify all.json --source crawl1/ --source crawl2/
    """
    from shardtool.cli.text import junit_error, rendered
    from shardtool.verbs.verify.verify import verify as run

    dataset = in_files(names)
    try:
        with _terminal(how) as terminal:
            report = run(dataset[0] if len(dataset) == 1 else dataset, asked(), observer=terminal)
    except ShardError as error:
        if how.style == "junit" and not how.as_json:
            show(junit_error(" ".join(dataset), error))
        raise
    _print(how, report.to_json, partial(rendered, report, how.style), always=how.style != "text" or not report.sound)
    return 0 if report.sound else _FOUND if report.readable else _UNREADABLE


@verb("A B", DiffOptions, without=("start_method",))
def diff(names: tuple[str, ...], asked: Callable[[], DiffOptions], how: Running) -> int:
    """Say what differs between the datasets A and B: samples added, removed, changed, or moved to another split.

    Each is a dataset file, a shard pattern, a folder, an address, or all splits of a dataset ('out/{split}.json');
    their formats and the sizes of their shards may differ. Sidecars say what payloads are: only of shards without one
    are payloads read. A million samples take seconds, and about 500 MB of memory for each side.

    B may be what A was made from: a folder, or a table. Then what differs is what the same `create` would change. Of
    its files, those of the same size are read.

    Ten lines of each kind are printed, and all of them with -v. Exit code: 0 they are the same, 3 they differ. Metadata
    columns count as differences, too, unless --ignore-metadata is used.

    \b
    Examples:
      shardtool diff old.json new.json
      shardtool diff 'v1/{split}.json' 'v2/{split}.json' -v
      shardtool diff out.json s3://bucket/out.json --json
      shardtool diff out.json ./imgs
    """
    from shardtool.cli.text import diff_text
    from shardtool.verbs.diff.diff import diff as run

    if len(names) != _SIDES:
        remedy = "Quote patterns, such as 'out-{000000..}.tar'."
        raise InvalidRequest("diff", counted(len(names), "argument"), expected="two: A and B", remedy=remedy)
    a, b = in_files(names)
    found = _carry_out(partial(run, a, b, asked()), how, partial(diff_text, whole=how.verbose), always=True)
    return 0 if found.same else _FOUND


@verb("DATASET... DEST", CopyOptions)
def copy(names: tuple[str, ...], asked: Callable[[], CopyOptions], how: Running) -> None:
    """Copy DATASET into the folder DEST, each file checked on the way.

    DATASET is a dataset file, or a folder, pattern or glob of datasets that have one; also at s3://, gs://, az:// or
    https://. DEST is a folder, or a prefix at s3://, gs:// or az://. Shards, sidecars, what was left out, indexes of
    other tools that are right, and at last the dataset file; all keep their names.

    What is there with the right bytes is not copied again. So a copy that was killed goes on where it was, and one of a
    dataset that was appended to gets the new shards only. Another dataset of the same name is replaced with --overwrite
    only; then shards that only that one had are removed, and nothing else.

    \b
    Examples:
      shardtool copy out.json /mnt/backup/out
      shardtool copy /data/imagenet /mnt/backup/imagenet
      shardtool copy out.json s3://bucket/train
      shardtool copy https://example.org/train.json /data/train
      shardtool copy out.json /mnt/backup/out --dry-run
    """
    from shardtool.cli.text import copied_text
    from shardtool.verbs.copy import copy as run

    dataset, dest = _and_last(names, "DEST", "not given; the last argument is the folder or prefix to copy into")
    options = asked()
    _carry_out(partial(run, dataset, dest, options), how, copied_text, always=options.dry_run)


@verb("DATASET... DIR", ExtractOptions, without=("start_method",))
def extract(names: tuple[str, ...], asked: Callable[[], ExtractOptions], how: Running) -> None:
    """Write the samples of DATASET to files in the folder DIR.

    The field jpg of the sample cat/0001 becomes the file cat/0001.jpg. DATASET is a dataset file, a pattern, a glob, a
    folder, or shards, of any tool, here or at an address. `create` makes the same samples of DIR, with the options that
    are printed at the end.

    Each payload is compared with its checksum before it is written. Nothing is written outside of DIR, and no file that
    is there is replaced unless --overwrite is given; one that has the right bytes stays. A run that was killed is
    finished by the same command. DIR/.manifest.parquet has the key and the path of each file, DIR/.metadata.parquet the
    metadata of each sample, for --join.

    \b
    Examples:
      shardtool extract out.json ./files
      shardtool extract out.json ./cats --where "key < 'd'" --fields jpg
      shardtool extract 'out/{split}.json' ./files --keys-from keys.txt
      shardtool extract out.json ./files --dry-run
    """
    from shardtool.cli.text import extracted_text
    from shardtool.verbs.extract import extract as run

    dataset, folder = _and_last(names, "DIR", "not given; the last argument is the folder to write the files to")
    options = asked()
    _carry_out(partial(run, in_files(dataset), folder, options), how, extracted_text, always=options.dry_run)


@verb("DATASET...", RemoveOptions, without=("start_method",))
def remove(names: tuple[str, ...], asked: Callable[[], RemoveOptions], how: Running) -> None:
    """Remove samples from DATASET, in place; only the shards that hold them are written again.

    DATASET is the dataset file of a dataset in a folder; of several, such as splits, each is done by itself. The old
    shards stay until all that is new is there; a run that was killed is ended by the same command. Afterwards no file
    of the dataset has a byte of these samples, and `create --resume` does not bring them back: a hash of each key stays
    in NAME.skipped. Copies elsewhere, and in caches, are not touched.

    \b
    Examples:
      shardtool remove out.json --keys-from keys.txt --dry-run
      shardtool remove out.json --keys-from keys.txt
      shardtool remove 'out/{split}.json' --where "label == 'dog'"
    """
    from shardtool.cli.text import removed_text
    from shardtool.verbs.remove import remove as run

    options = asked()
    _carry_out(partial(run, names, options), how, removed_text, always=options.dry_run)


@described
class _Making(IndexOptions):
    """What `index` makes beside sidecars and a dataset file."""

    export: tuple[str, ...] = like(CreateOptions, "export", section="indexes", common=True)
    merge: bool = setting(
        False, "Make one dataset of parts. These are what runs with --part, or writers of a program, have made.",
        common=True, apart=("output", "overwrite", "checksum", "dots"),
    )  # fmt: skip


@verb("DATASET...", _Making, without=("start_method",))
def index(names: tuple[str, ...], asked: Callable[[], _Making], how: Running) -> None:
    """Make the sidecars and the dataset file of shards of any tool, and the indexes of other tools.

    DATASET is a dataset file, a folder, a shard pattern, a glob, or shards. Headers are read, payloads are not, shards
    are never touched. A sidecar that is right stays, with what only it knows; one that is missing is written; one that
    is wrong is replaced with --overwrite only. With --export and a dataset file, only the exports are made, from the
    sidecars.

    \b
      dali-webdataset  out-000000.idx      for fn.readers.webdataset of NVIDIA DALI
      energon          out-000000.tar.idx  and .nv-meta, for Megatron-Energon
      huggingface      out-000000.json     for the Hugging Face Hub (reads the shards)
      timm             _info.json          splits, shards and their samples, for timm
      open-clip        sizes.json          the samples of each shard, for open_clip
      wids             nothing             out.json is what wids wants
      dali-tfrecord    out-000000.idx      for fn.readers.tfrecord of NVIDIA DALI
      tfrecord         out-000000.tfindex  for the tfrecord package

    \b
    Examples:
      shardtool index ./shards
      shardtool index 'train-{0000..0127}.tar' --checksum
      shardtool index out.json --export dali-webdataset
      shardtool index train.json --export timm --export open-clip
      shardtool index records.json --export dali-tfrecord --export tfrecord --output ./indexes
      shardtool index 'parts/out-{000000..}.tar' --merge
    """
    from shardtool.dataset.find import of_glob

    options = asked()
    with _terminal(how) as terminal:
        found = [names] if options.merge else of_glob(names)
        done = [_index(given_names("the dataset", one, ""), options, terminal) for one in found]
    documents = [document for document, _ in done]
    _print(
        how,
        lambda: documents[0] if len(documents) == 1 else {"datasets": documents},
        lambda: "\n".join(line for _, lines in done for line in lines),
    )


def _index(dataset: Sequence[str], options: _Making, terminal: Observer) -> tuple[dict[str, object], list[str]]:
    """Index one dataset, and make what other tools want of it; return what was done, as JSON and as lines."""
    from shardtool.verbs.index.index import check_names, export
    from shardtool.verbs.index.index import index as run

    document: dict[str, object] = {}
    lines, file, forms = list[str](), dataset[0], options.export
    if options.merge or not forms or len(dataset) > 1 or not file.endswith(".json") or options.checksum:
        if options.merge:  # what it imports starts threads, after which workers are not forked, but started afresh
            from shardtool.writer.writer import merge

            result: IndexResult = merge(dataset[0] if len(dataset) == 1 else dataset, observer=terminal)
        else:
            if forms:
                check_names(dataset, forms)
            result = run(dataset, options, observer=terminal)
        document, file = result.to_json(), result.dataset_file
        kept = f" ({result.kept:,} were right already)" if result.kept else ""
        lines.append(
            f"{counted(result.samples, 'sample')} in {counted(result.shards, 'shard')}{kept}\n"
            f"dataset file  {printable(result.dataset_file)}"
        )
    if forms:
        exported = export(file, forms, options.pick(ExportOptions), observer=terminal)
        document = {**document, "export": exported.to_json()} if document else exported.to_json()
        there = f", {exported.kept:,} of them there already" if exported.kept else ""
        lines.append(f"{counted(len(exported.files), 'file')} in {exported.folder}{there}")
    return document, lines


_PICTURES = ("html", "contact_sheet")


@described
class _Looking(InspectOptions):
    """What `inspect` shows in place of a summary."""

    samples: tuple[str, ...] = setting(
        (), "Sample to show: its key, or its number from 0.", section="samples", typed="show", old="sample",
        metavar="KEY|N", common=True,
        apart=("head", "keys", "table", *_PICTURES, "read_speed", "where"),
    )  # fmt: skip
    head: int | None = setting(
        None, "Number of the first samples to show, a line each.", within=(1, 10**15), common=True,
        apart=("keys", "table", *_PICTURES, "read_speed"),
    )  # fmt: skip
    keys: bool = setting(
        False, "Print all keys, one per line.", apart=("table", *_PICTURES, "read_speed", "extract"), common=True
    )
    extract: str | None = setting(
        None, "Folder for the fields of samples, as files KEY.FIELD.", form="path", metavar="DIR", common=True,
        needs={"samples|head|where": "no samples to write"},
    )  # fmt: skip
    field: str | None = setting(
        None, "Field of one sample whose bytes are written to stdout, as they are.", typed="raw", old="field",
        metavar="FIELD", common=True, needs={"samples": "no sample to take it of"}, apart=("extract",),
    )  # fmt: skip
    table: str | None = setting(
        None, "Table to write, with a row for each sample: out.parquet, or out.csv.", section="pages", form="path",
        metavar="FILE", common=True,
        apart=(*_PICTURES, "read_speed", "extract"),
    )  # fmt: skip
    where: str | None = like(
        ExtractOptions, "where", section="samples", needs={"head|keys|extract|table": "nothing to choose for"}
    )
    overwrite: bool = setting(
        False, "Replace files that are there.", section="pages", typed="overwrite/f", common=True,
        needs={"extract|table|html|contact_sheet": "nothing is written"},
    )  # fmt: skip
    html: str | None = setting(
        None, "Page to write: one file, no network.", form="path", metavar="FILE", common=True,
        apart=("read_speed", "extract"),
    )  # fmt: skip
    contact_sheet: str | None = setting(
        None, "Picture (PNG) to write, with thumbnails of samples.", form="path", metavar="FILE", common=True,
        apart=("read_speed", "extract"),
    )  # fmt: skip
    duplicates: bool = setting(
        False, "List samples that hold the same, under whatever keys and in whatever splits.", common=True,
        apart=("samples", "head", "keys", "table", *_PICTURES, "read_speed", "extract"),
    )  # fmt: skip
    read_speed: bool = setting(
        False, "Read for some seconds, as training does, and say how fast it was.", apart=("extract",), common=True
    )
    decode: bool = setting(
        False, "With `read_speed`, decode images and other fields, too.", needs={"read_speed": "nothing is read"}
    )

    @property
    def summary(self) -> bool:
        """Whether nothing else is asked for."""
        shows = ("samples", "head", "keys", "table", *_PICTURES, "read_speed", "extract", "duplicates")
        return not any(map(self.is_given, shows))


@verb("DATASET...", _Looking)
def inspect(names: tuple[str, ...], asked: Callable[[], _Looking], how: Running) -> None:
    """Show what is in a dataset: totals, shards, fields, images, labels, metadata, samples.

    DATASET is a dataset file (out.json), a folder, a shard pattern, a glob, or shards; of shardtool or any other tool:
    .tar, .tfrecord, train-00000-of-01024, and .tar.gz, .tar.bz2, .tar.xz and .tar.zst. What has an index
    (`out-000000.index`) is not read; other shards are.
    Several are shown one after the other; their samples are those of all.

    \b
    Examples:
      shardtool inspect out.json
      shardtool inspect out.json --show cat/0001
      shardtool inspect out.json --show cat/0001 --raw jpg > cat.jpg
      shardtool inspect 'shards/train-{0000..0127}.tar' --head 20
      shardtool inspect out.json --html report.html --contact-sheet sheet.png
      shardtool inspect out.json --table out.parquet
      shardtool inspect out.json --show 17 --extract ./look
      shardtool inspect out.json --where "width < 64" --extract ./small
      shardtool inspect 'out/{split}.json' --keys | grep cat/
      shardtool inspect 'out/{split}.json' --duplicates
      shardtool inspect out.json --read-speed --decode
    """
    from shardtool.cli.text import duplicates_text, read_speed_text, summary_text, width

    options = asked()
    if options.field is not None and (how.as_json or len(options.samples) > 1):
        raise InvalidRequest("--raw", "used with --json" if how.as_json else "several samples", expected="one sample")
    dataset = in_files(names)
    if options.summary:
        from shardtool.verbs.inspect.inspect import inspect as run

        _carry_out(partial(run, dataset, options), how, lambda found: summary_text(found, width()), always=True)
        return
    if options.duplicates:
        from shardtool.verbs.inspect.duplicates import duplicates

        _carry_out(partial(duplicates, dataset), how, partial(duplicates_text, whole=how.verbose), always=True)
        return
    if options.read_speed:
        from shardtool.verbs.inspect.read_speed import read_speed

        speed = read_speed(dataset, decode=options.decode, seed=options.seed)
        _print(how, speed.to_json, partial(read_speed_text, speed), always=True)
        return
    from shardtool.dataset.find import given_datasets, open_dataset
    from shardtool.verbs.inspect.samples import find_sample

    opened = [open_dataset(one) for one in given_datasets(dataset)]
    if options.html is not None or options.contact_sheet is not None:
        _write_pictures(opened, options, how)
    elif options.table is not None:
        _write_table(opened, options.table, options, how)
    elif options.keys:
        _print_keys(opened, options.where, how)
    elif options.field is not None:
        from shardtool.verbs.inspect.samples import field_bytes

        show_bytes(field_bytes(find_sample(opened, options.samples[0]), options.field))
    else:
        _print_samples(opened, options, how)


def _write_pictures(datasets: list[StoredDataset], options: _Looking, how: Running) -> None:
    from shardtool.verbs.inspect.page import write_page
    from shardtool.verbs.inspect.thumbnails import write_contact_sheet

    if options.contact_sheet is not None and len(datasets) > 1:
        raise InvalidRequest("--contact-sheet", f"{len(datasets):,} datasets", expected="one, or a page: --html")
    written = []
    if options.html is not None:
        write_page(datasets, options.html, seed=options.seed, overwrite=options.overwrite)
        written.append(output_text(options.html))
    if options.contact_sheet is not None:
        write_contact_sheet(datasets[0], options.contact_sheet, seed=options.seed, overwrite=options.overwrite)
        written.append(output_text(options.contact_sheet))
    _print(how, lambda: {"files": written}, lambda: "\n".join(map(printable, written)), always=True)


def _write_table(opened: list[StoredDataset], path: str, options: _Looking, how: Running) -> None:
    from shardtool.verbs.inspect.samples import write_table

    rows, file = write_table(opened, path, where=options.where, overwrite=options.overwrite), output_text(path)
    text = f"{counted(rows, 'row')} written to {printable(file)}"
    _print(how, lambda: {"files": [file], "rows": rows}, lambda: text, always=True)


def _print_keys(opened: list[StoredDataset], where: str | None, how: Running) -> None:
    """Print keys as they are read: the first ones of a large dataset at once, until the reader stops."""
    from shardtool.verbs.inspect.samples import keys

    found = keys(opened, where)
    if how.as_json:
        show_json({"keys": list(found)})
    else:
        chunks = iter(lambda: list(islice(found, _MANY)), [])
        for chunk in while_read(chunks):
            show("\n".join(map(printable, chunk)))


def _print_samples(opened: list[StoredDataset], options: _Looking, how: Running) -> None:
    """Print samples, and write their fields where that was asked for, one after the other."""
    from shardtool.cli.text import sample_line, sample_text, width
    from shardtool.verbs.inspect.samples import extract, find_sample, first_samples, view

    brief, folder = not options.samples, options.extract
    wanted = (find_sample(opened, key) for key in options.samples)

    def shown() -> Iterator[tuple[SampleView, tuple[str, ...]]]:
        for one in first_samples(opened, options.head, options.where) if brief else wanted:
            seen = view(one, text_limit=_BRIEF) if brief else view(one)
            yield seen, extract(one, folder, overwrite=options.overwrite) if folder is not None else ()

    def texts() -> Iterator[str]:
        for number, (seen, files) in enumerate(shown()):
            text = sample_line(seen, width()) if brief else ("\n" if number else "") + sample_text(seen, width())
            written = f"\n{counted(len(files), 'file')} written to {printable(folder or '')}"
            yield text if brief or folder is None else text + written

    if how.as_json:
        found = [(seen.to_json(), {"files": [*map(output_text, files)]}) for seen, files in shown()]
        show_json({"samples": [sample if folder is None else sample | files for sample, files in found]})
    else:
        for text in while_read(texts()):
            show(text)


@verb("PLACE", DoctorOptions, without=("retry_for",))
def doctor(names: tuple[str, ...], asked: Callable[[], DoctorOptions], how: Running) -> int:
    """Say what PLACE allows, and what is in the way there, each with its cure.

    PLACE is a prefix of a store (s3://, gs://, az://), a file of the web, or a folder. Of a store: which server is
    asked and by which proxy, certificate, clock, the kind of credentials (never a secret), and whether one may list,
    read, write, write on conditions, and delete. Of the web: size, ranges, conditions. Of a folder: space, renaming,
    hard links and locks.

    One small file or object is written below PLACE under a name that nothing has, and removed, also after Ctrl-C. Who
    may not delete is told before it is written. What fails is tried for five seconds, not for minutes.

    Exit code: 0 all is well, 3 something is wrong.

    \b
    Examples:
      shardtool doctor s3://bucket/train
      shardtool doctor s3://bucket/train --endpoint https://minio.example:9000
      shardtool doctor s3://bucket/public --anonymous --read-only
      shardtool doctor https://example.org/data/out.json
      shardtool doctor /mnt/shared --json
    """
    from shardtool.cli.text import doctor_text, width
    from shardtool.verbs.doctor import doctor as run

    found = _carry_out(partial(run, names, asked()), how, lambda one: doctor_text(one, width()), always=True)
    return 0 if found.well else _FOUND


_ACTION = click.Argument(["action"], type=click.Choice(["status", "clear", "verify"]))


@verb((_ACTION, click.Argument(["folder"], type=_PLACE)), running=Output)
def cache(action: str, folder: str, how: Output) -> int:
    """Look at a cache of shards, check it, or empty it: FOLDER is what `shardtool.Cache` was given.

    \b
      status  what is there, who holds what, how often shards were there
      clear   remove all shards that no process holds
      verify  read all shards, and remove those that are damaged; exit code 3 if there were any

    Programs that use the cache go on meanwhile. Files that are none of the cache's are listed, and left alone.

    \b
    Examples:
      shardtool cache status /fast/disk/cache
      shardtool cache verify /fast/disk/cache --json
    """
    from shardtool.cli.text import change_text, status_text
    from shardtool.verbs.cache.cache import cache_clear, cache_status, cache_verify

    if action == "status":
        status = cache_status(folder)
        _print(how, status.to_json, lambda: status_text(status))
        return 0
    change = cache_verify(folder) if action == "verify" else cache_clear(folder)
    _print(how, change.to_json, lambda: change_text(change))
    return _FOUND if action == "verify" and (change.removed or change.held) else 0


@verb((click.Argument(["shell"], type=click.Choice(["bash", "zsh", "fish"])),), running=Settings)
def completion(shell: str, _how: Settings) -> None:
    """Print what SHELL needs to complete the command line by TAB.

    Verbs, options and their values complete; files, datasets first where one is meant; columns of the tables and
    datasets that stand on the line, and fields of these datasets.

    \b
      bash  put this into ~/.bashrc:  eval "$(shardtool completion bash)"
      zsh   into ~/.zshrc, after compinit:  eval "$(shardtool completion zsh)"
      fish  run once:  shardtool completion fish > ~/.config/fish/completions/shardtool.fish

    \b
    Examples:
      shardtool completion bash
    """
    from shardtool.cli.completion import script

    show(script(shell).rstrip("\n"))


@click.command(context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True})
@click.argument("names", nargs=-1, metavar="[VERB [TOPIC]]", shell_complete=_completed)
@click.pass_context
def help_(context: click.Context, names: tuple[str, ...]) -> None:
    """Show help: of all verbs, of a VERB, or of a TOPIC, a group of its options with what is to be known of it.

    \b
    Examples:
      shardtool help
      shardtool help create
      shardtool help create urls
    """
    from shardtool.cli.help import Verb, about

    above = context.parent
    if len(names) > 2:  # noqa: PLR2004 - a verb, a topic
        raise InvalidRequest("help", counted(len(names), "argument"), expected="one VERB, and one TOPIC of it")
    if above is None or not isinstance(above.command, click.Group) or not names:
        show((above or context).get_help())
        return
    verbs = {name: above.command.get_command(above, name) for name in above.command.list_commands(above)}
    having = [name for name, one in verbs.items() if isinstance(one, Verb) and one.topic_of(names[0])]
    if names[0] not in verbs and having:
        meant = " or ".join(f"`shardtool help {name} {names[0]}`" for name in having[:3])
        raise InvalidRequest(names[0], "no such verb", remedy=f"Did you mean {meant}?")
    command = cast("click.Command", above.command.resolve_command(above, [names[0]])[1])
    with click.Context(command, info_name=names[0], parent=above) as asked:
        show(about(command, asked, *names[1:]) if isinstance(command, Verb) and names[1:] else command.get_help(asked))


VERBS["help"] = lambda: help_
