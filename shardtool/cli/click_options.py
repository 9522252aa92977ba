"""Build click options from option declarations. Build options objects from command-line values."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from shardtool.cli.help import VerbOption
from shardtool.errors import InvalidRequest
from shardtool.messages import cli_words
from shardtool.request.option_spec import (
    OptionSpec,
    cli_spellings,
    is_list_option,
    option_choices,
    option_specs,
    option_texts,
    to_cli_text,
)
from shardtool.request.option_values import parse_whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from click.shell_completion import CompletionItem


PATH_TYPE = click.Path(readable=False)  # the verbs check whether files exist


def complete_value(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return shell completions for a value."""
    from shardtool.cli.completion import complete_option

    return complete_option(ctx, param, incomplete)


class CommaChoice(click.Choice):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """The type of a parameter that accepts several choices, separated by commas."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Check each choice, and return the choices joined with commas."""
        return ",".join(super(CommaChoice, self).convert(choice.strip(), param, ctx) for choice in value.split(","))


def drop_overridden(options_type: type[Any], context: click.Context) -> None:
    """Drop job-file values that the command line overrides.

    In options with several keys, such as `fetch`, drop only the overridden keys.
    """
    params, specs = context.params, option_specs(options_type)
    file_values = context.default_map or {}
    typed = {name for name in params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    for name, spec in specs.items():
        if spec.group and any(specs[other].group == spec.group for other in typed & specs.keys()) and name not in typed:
            params[name] = None
        if spec.expand is None or not params[name]:
            continue
        parent = cli_spellings(options_type, name)[0][2:]
        members = [other for other in specs if specs[other].parent.split(" ")[0] == parent and params[other]]
        if not spec.comma_separated:  # a value on the command line replaces the value of the job file
            required = {
                other.name
                for member in typed & {*members}
                for need in specs[member].needs()
                for other in need.conditions
            }
            params.update(dict.fromkeys({name, *members} - typed - required if typed & {name, *members} else ()))
            continue
        merged: dict[str, object] = {}
        for values, names in ((file_values, file_values.keys()), (params, typed)):
            if name in names:
                merged.update(spec.expand(options_type, parse_cli_value(options_type, name, values)))
            merged.update((other, parse_cli_value(options_type, other, values)) for other in members if other in names)
        params.update((other, () if isinstance(params[other], tuple) else None) for other in members)
        params[name] = tuple(cli_words(*item)[1] for item in merged.items())


def build_options(options_type: type[Any], names: Sequence[str], cli_values: Mapping[str, Any]) -> Any:
    """Create an options object of the class `options_type` from command-line values."""
    values = {name: parse_cli_value(options_type, name, cli_values) for name in names}
    try:
        return options_type(**{name: value for name, value in values.items() if value is not None})
    except InvalidRequest as error:
        if not click.get_current_context().default_map or not error.found.startswith("used with"):
            raise
        remedy = "Use --no-KEY to ignore an option from the job file."
        raise InvalidRequest(error.where, error.found, expected=error.expected, remedy=remedy) from None


def build_click_option(options_type: type[Any], name: str) -> VerbOption:
    """Return the click option for the option `name` of the class `options_type`."""
    specs, default = option_specs(options_type), options_type.__dataclass_fields__[name].default
    spec = specs[name]
    former_names = [f"--{spec.former_name}"] if spec.former_name else []
    names = [*cli_spellings(options_type, name), *former_names, name]
    text = to_cli_text(option_texts(options_type)[name])
    callbacks: Any = {"callback": partial(_apply_option, spec), "is_eager": spec.apply is not None}
    if default is False:
        option = VerbOption(names, is_flag=True, help=text, **callbacks)
    elif default is True:
        option = VerbOption(names, flag_value=False, default=True, help=to_cli_text(spec.off))
    else:
        choices = option_choices(options_type, name)
        text = f"{text} One of: {', '.join(choices)}." if choices and spec.metavar else text
        is_list = is_list_option(options_type, name) or (spec.comma_separated and spec.expand is not None)
        multiple = spec.repeatable or (is_list and not spec.single_value_list)
        text = f"{text} Repeatable." if multiple else text
        shown_default = spec.default_text or ("" if default in (None, ()) else _cli_texts(spec).get(default, default))
        option = VerbOption(
            names,
            type=_click_type(options_type, name),
            multiple=multiple,
            metavar=spec.metavar or ("N" if spec.range else "SIZE" if spec.form == "size" else None),
            help=f"{text} [default: {to_cli_text(str(shown_default))}]" if shown_default != "" else text,
            shell_complete=complete_value,
            **callbacks,
        )
    option.hidden, option.parent, option.former_names = bool(spec.parent), spec.parent, tuple(former_names)
    option.common, option.rare = spec.common, spec.rare
    sections = [specs[other].section for other in islice(specs, [*specs].index(name) + 1)]
    option.section = next(filter(None, reversed(sections)))
    return option


def _click_type(options_type: type[Any], name: str) -> Any:
    spec, cli_texts = option_specs(options_type)[name], _cli_texts(option_specs(options_type)[name])
    choices = [cli_texts.get(choice, choice) for choice in option_choices(options_type, name)]
    if choices:
        return CommaChoice(choices) if spec.comma_separated else click.Choice(choices)
    return PATH_TYPE if spec.form == "path" else click.STRING


def _cli_texts(spec: OptionSpec) -> dict[Any, str]:
    return {value: text for text, value in spec.cli_choices.items()}


def _apply_option(spec: OptionSpec, _context: click.Context, param: click.Parameter, value: Any) -> Any:
    if spec.apply is not None and value not in (None, ()):
        try:
            spec.apply(value)
        except InvalidRequest as error:
            if spec.form == "path":  # keep `error.where`, which names the job file and the key
                raise
            raise click.BadParameter(f"{error.found}; expected {error.expected}.", param=param) from error
    return value


def parse_cli_value(options_type: type[Any], name: str, cli_values: Mapping[str, Any]) -> Any:
    """Convert a value from the command line to the type that the options class expects."""
    spec, value = option_specs(options_type)[name], cli_values[name]
    if isinstance(value, str) and value in spec.cli_choices:
        return spec.cli_choices[value]
    if spec.range is not None and value is not None:
        return parse_whole_number(value)
    if spec.single_value_list:
        return tuple(value.split(",")) if value else ()
    if spec.comma_separated:
        parts = [part for text in value for part in text.split(",")]
        return tuple(dict.fromkeys(parts) if option_choices(options_type, name) else parts)
    if isinstance(value, tuple) and not is_list_option(options_type, name):
        return value[0] if len(value) == 1 else [*value] or None
    return value
