"""Build click options from declared options, and options objects from typed values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardtool.cli.help import VerbOption
from shardtool.errors import InvalidRequest
from shardtool.interop.exports import EXPORTS
from shardtool.messages import cli_words
from shardtool.request.option_spec import (
    cli_spellings,
    is_list_option,
    join_if_exists_flags,
    option_choices,
    option_specs,
    to_cli_text,
)
from shardtool.request.option_values import parse_whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from shardtool.request.option_spec import OptionSpec


_SHORT_FLAGS = {"overwrite": ["-f"]}  # of flags that stand for values


PATH_TYPE = click.Path(readable=False)  # what is there, or not, is for the verbs to say


def complete_value(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return what a shell completes."""
    from shardtool.cli.completion import complete_option

    return complete_option(ctx, param, incomplete)


class CommaChoice(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """A few texts with commas between them: `webdataset,dali`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return these texts with commas between them."""
        return ",".join(super(CommaChoice, self).convert(one.strip(), param, ctx) for one in value.split(","))


def prefer_typed(kind: type[Any], context: click.Context) -> None:
    """Drop of what a file says that which was typed otherwise: keys of a family one by one, all flags at once."""
    given, known, of_file = context.params, option_specs(kind), context.default_map or {}
    typed = {name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    for name, one in known.items():
        if typed & one.flags.keys():
            given.update(dict.fromkeys(one.flags.keys() - typed))
        if one.expand is None or not given[name]:
            continue
        family = cli_spellings(kind, name)[0][2:]
        members = [other for other in known if known[other].family.split(" ")[0] == family and given[other]]
        if not one.comma_separated:  # of which one is all that there is, but for what it needs
            needed = {other for member in typed & {*members} for other in known[member].requires}
            given.update(dict.fromkeys({name, *members} - typed - needed if typed & {name, *members} else ()))
            continue
        said: dict[str, object] = {}
        for values, here in ((of_file, of_file.keys()), (given, typed)):
            said.update(one.expand(kind, parse_typed_value(kind, name, values)) if name in here else {})
            said.update((other, parse_typed_value(kind, other, values)) for other in members if other in here)
        given.update((other, () if isinstance(given[other], tuple) else None) for other in members)
        given[name] = tuple(cli_words(*each)[1] for each in said.items())


def build_options(kind: type[Any], names: Sequence[str], given: Mapping[str, Any]) -> Any:
    """Return the options that were typed, or refuse them."""
    values = {name: parse_typed_value(kind, name, given) for name in names}
    try:
        return kind(**{name: value for name, value in values.items() if value is not None})
    except InvalidRequest as error:
        if not click.get_current_context().default_map or not error.found.startswith("used with"):
            raise
        remedy = "--no-KEY takes back what the file says."
        raise InvalidRequest(error.where, error.found, expected=error.expected, remedy=remedy) from None


def build_click_options(kind: type[Any], name: str) -> Iterator[VerbOption]:
    """Yield what stands on the command line for an option: one, or several flags."""
    one, default = option_specs(kind)[name], kind.__dataclass_fields__[name].default
    old = [f"--{word}" for word in one.old.split("/") if word]
    names, text = [*cli_spellings(kind, name), *old, name], to_cli_text(one.text)
    used: Any = {"callback": partial(_apply_option, one), "is_eager": one.use is not None}
    if one.flags:
        found = [
            VerbOption([f"--{flag}", *_SHORT_FLAGS.get(flag, ()), flag], is_flag=True, help=to_cli_text(said))
            for flag, said in one.flags.items()
        ]
    elif default is False:
        found = [VerbOption(names, is_flag=True, help=text, **used)]
    elif default is True:
        found = [VerbOption(names, flag_value=False, default=True, help=to_cli_text(one.off))]
    else:
        text = f"{text} Known are {', '.join(EXPORTS)}." if name == "export" else text
        multiple = name == "source" or (
            not one.word and (is_list_option(kind, name) or (one.comma_separated and bool(one.expand)))
        )
        text = text[:-1] + "; repeatable." if multiple else text
        shown = one.shown or (default if default not in (None, ()) else "")
        option = VerbOption(
            names,
            type=_click_type(kind, name),
            multiple=multiple,
            metavar=one.metavar or ("N" if one.range else "SIZE" if one.form == "size" else None),
            help=f"{text} [default: {to_cli_text(str(shown))}]" if shown != "" else text,
            shell_complete=complete_value,
            **used,
        )
        found = [option]
    known = [*option_specs(kind)]
    sections = [option_specs(kind)[other].section for other in known[: known.index(name) + 1]]
    for option in found:
        option.hidden, option.family, option.old = bool(one.family), one.family, tuple(old)
        option.common, option.rare = one.common, one.rare
        option.section = next(filter(None, reversed(sections)))
        yield option


def _click_type(kind: type[Any], name: str) -> Any:
    """Return the type of an option's text."""
    one, texts = option_specs(kind)[name], EXPORTS if name == "export" else option_choices(kind, name)
    if texts:
        return CommaChoice(texts) if one.comma_separated else click.Choice([*texts])
    return PATH_TYPE if one.form == "path" else click.STRING


def _apply_option(one: OptionSpec, _context: click.Context, param: click.Parameter, given: Any) -> Any:
    """Have a value used at once, where that is what its option is for."""
    if one.use is not None and given not in (None, ()):
        try:
            one.use(given)
        except InvalidRequest as error:
            if one.form == "path":  # it says where in the file
                raise
            raise click.BadParameter(f"{error.found}; expected {error.expected}.", param=param) from error
    return given


def parse_typed_value(kind: type[Any], name: str, given: Mapping[str, Any]) -> Any:
    """Return the value of an option for what was typed."""
    one = option_specs(kind)[name]
    if one.flags:
        return join_if_exists_flags([flag for flag in one.flags if given[flag]]) or None
    value = given[name]
    if one.range is not None and value is not None:
        return parse_whole_number(value)
    if one.word:
        return tuple(value.split(",")) if value else ()
    if one.comma_separated:
        parts = [part for text in value for part in text.split(",")]
        return tuple(dict.fromkeys(parts) if option_choices(kind, name) else parts)
    if isinstance(value, tuple) and not is_list_option(kind, name):
        return value[0] if len(value) == 1 else [*value] or None
    return value
