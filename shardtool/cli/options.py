"""Verbs as click has them: their options are made from those that `request/settings.py` declares."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource

from shardtool.cli.help import Option, Verb, brief
from shardtool.cli.output import LOG, show
from shardtool.errors import InvalidRequest
from shardtool.interop.indexes import EXPORTS
from shardtool.request.settings import (
    Settings,
    choices,
    described,
    facts,
    is_several,
    of_flags,
    setting,
    spellings,
    typed_text,
)
from shardtool.request.texts import whole
from shardtool.storage.places import use_anonymous, use_endpoint, use_headers, use_store_options
from shardtool.storage.remote.retry import use_retry_for
from shardtool.wording import typed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from shardtool.request.settings import Facts

_SHORT = {"overwrite": ["-f"]}  # of flags that stand for values


ACCEPTED = "shardtool.accepted"  # in a context: what is called once a request is known to make sense
_OF_ERRORS = {"as_json": "--json", "verbose": "--verbose"}
VERBS: dict[str, Callable[[], click.Command]] = {}  # what makes each
Function = TypeVar("Function", bound="Callable[..., int | None]")


PLACE = click.Path(readable=False)  # what is there, or not, is for the verbs to say


def completed(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
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
        (click.Argument(["names"], type=PLACE, nargs=-1, required=True, metavar=arguments, shell_complete=completed),)
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
            asked = [partial(_made, kind, names, given) for kind, names in known.items()]
            if given.get("save_config") is not None:
                context.meta[ACCEPTED] = _saved(asked, given["save_config"], context)
            code = function(*words, *asked[:-1], asked[-1]())
            if ACCEPTED in context.meta:
                context.meta[ACCEPTED]()
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


def _saved(asked: Sequence[Callable[[], object]], path: str, context: click.Context) -> Callable[[], None]:
    """Return what writes what was asked for, if it can be, to the file that was named for that."""
    from shardtool.cli.config import keep_config

    for make in asked:
        make()
    return keep_config(path, context)


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
            shell_complete=completed,
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
    return PLACE if one.form == "path" else click.STRING


def _use(one: Facts, _context: click.Context, param: click.Parameter, given: Any) -> Any:
    """Have a value used at once, where that is what its option is for."""
    if one.use is not None and given not in (None, ()):
        try:
            one.use(given)
        except InvalidRequest as error:
            if one.form == "path":  # it says where in the file
                raise
            raise click.BadParameter(f"{error.found}, expected {error.expected}.", param=param) from None
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
