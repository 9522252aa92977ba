"""Find the rows of a table that match a query such as `label == 'dog' and width > 256`.

The query language is a subset of pandas queries. Python parses a query, but never runs it, so an untrusted query can
only select the wrong rows. A comparison with null is false, except that `!=` is true. `not` inverts this result, too.

Unlike in pandas, class names can be compared with class numbers (`cls == 'cat'`), and lists have `.len()` and
`.contains()`.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardtool.entries import metadata_columns
from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import call_text, option_text
from shardtool.select.query_values import (
    TIME_FIELDS,
    Numbers,
    QueryKind,
    calculate,
    calculate_pair,
    column_values,
    compare,
    is_in,
    is_zoned,
    missing_rows,
    null_values,
    parse_time,
    rows_with_element,
    time_field,
    value_lengths,
)
from shardtool.table.columns import missing_name_error
from shardtool.transform.transform import ORIGINAL_COLUMNS, PROBED_COLUMNS, ReadCondition
from shardtool.units import pluralize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shardtool.select.query_values import Bools


ClassNames = Mapping[str, Sequence[str]]
_BLOCK_ROWS = 2**16
_COMPUTED_COLUMNS = frozenset(("key", "shard", "size", "fields", "path", "folder"))
_MAX_SHOWN_LETTERS = 80
_MAX_LISTED_COLUMNS = 50
_INTEGER_TOO_LONG = "integer string conversion"
_MAX_POWER_BASE, _MAX_EXPONENT = 2**64, 64
_LANGUAGE = (
    "columns, numbers, 'text', lists of these, == != < <= > >= in, and or not & | ~, + - * / // % **, .str.contains() "
    ".startswith() .endswith() .match() .lower() .upper() .strip() .len(), .isin() .between() .isna() .notna() .abs(), "
    ".len() and .contains() of lists and text, .dt.year and the like"
)


_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


_BETWEEN: Mapping[str, tuple[type[ast.cmpop], type[ast.cmpop]]] = {
    "both": (ast.GtE, ast.LtE), "neither": (ast.Gt, ast.Lt), "left": (ast.GtE, ast.Lt), "right": (ast.Gt, ast.LtE),
}  # fmt: skip


_CONSTANTS: Mapping[QueryKind, type | tuple[type, ...]] = {"true or false": bool, "a number": (int, float), "text": str}
_NO_NAMES: Mapping[str, QueryKind] = {}


class _TextMethod(NamedTuple):
    call: Callable[..., pa.Array]
    min_arguments: int = 0
    max_arguments: int = 0
    kinds: frozenset[QueryKind] = frozenset({"text"})
    named: Mapping[str, QueryKind] = _NO_NAMES


def _contains(texts: pa.Array, pattern: str, *, case: bool = True, regex: bool = True) -> pa.Array:
    return (pc.match_substring_regex if regex else pc.match_substring)(texts, pattern, ignore_case=not case)


_TEXT_METHODS: Mapping[str, _TextMethod] = {
    "contains": _TextMethod(_contains, 1, 1, named={"case": "true or false", "regex": "true or false"}),
    "match": _TextMethod(
        lambda texts, pattern, **named: _contains(texts, f"^(?:{pattern})", **named), 1, 1,
        named={"case": "true or false"},
    ),
    "startswith": _TextMethod(pc.starts_with, 1, 1, frozenset({"text", "a list"})),
    "endswith": _TextMethod(pc.ends_with, 1, 1, frozenset({"text", "a list"})),
    "lower": _TextMethod(pc.utf8_lower),
    "upper": _TextMethod(pc.utf8_upper),
    "strip": _TextMethod(
        lambda texts, *characters: (pc.utf8_trim if characters else pc.utf8_trim_whitespace)(texts, *characters), 0, 1
    ),
    "len": _TextMethod(pc.utf8_length),
}  # fmt: skip


_TEXT_CALL = re.compile(r"(.+)(\.(?:startswith|endswith|match|lower|upper|strip)\(.*\))")
_LISTS_HINT = "Lists have .len() and .contains()."
_NO_CLASSES: ClassNames = {}
_TOKEN = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?P<name>[^`]*)`|(?P<bad>[@#`])|[&|\s]""")
_OPERATOR_WORDS = {"&": " and ", "|": " or "}
_BAD_TOKENS = {
    "@": ("@ would read a Python variable", "Write the value itself."),
    "#": ("# would start a comment", "Put a name that contains # in `backticks`."),
    "`": ("an unmatched backtick", "Write the name as `name`."),
}


def match_rows(table: pa.Table, query: str, classes: ClassNames = _NO_CLASSES) -> NDArray[np.int64]:
    """Return the indexes of the rows that match `query`, in ascending order.

    Args:
        query: Comparisons, combined with `and`, `or` and `not`. Column names with blanks are in backticks.
        classes: Class names by column, for columns of class numbers.
    """
    return match_partially(table, query, {}, classes)[0]


def match_partially(
    table: pa.Table, query: str, later_columns: Mapping[str, str], classes: ClassNames
) -> tuple[NDArray[np.int64], ReadCondition | None]:
    """Split a query at `and`, and evaluate only the conditions whose columns are all in `table`.

    Return the matching rows, and the remaining conditions (None if there are none). `later_columns` contains the names
    and types of columns that are measured while reading samples, such as image sizes. Columns in `table` take
    precedence.
    """
    where = option_text("where")
    try:
        with warnings.catch_warnings():
            # Python warns about text such as `\d` in quotes, and NumPy about division by zero.
            warnings.simplefilter("ignore")
            parsed = _parse(query, where, classes)
            table_columns = {*table.column_names}
            measured = [(name, kind) for name, kind in later_columns.items() if name not in table_columns]
            # First evaluate on an empty table with all columns, so errors can list them.
            _evaluate(metadata_columns.with_measured_columns(table.slice(0, 0), measured, []), parsed)
            conditions = _split_conjunction(parsed.tree)
            later = [condition for condition in conditions if not table_columns.issuperset(parsed.columns(condition))]
            if not later:
                return _evaluate(table, parsed), None
            rows = np.arange(table.num_rows)
            if now := [condition for condition in conditions if condition not in later]:
                rows = _evaluate(table, parsed._replace(tree=ast.BoolOp(ast.And(), now)))
            remaining = ast.BoolOp(ast.And(), later)
            return rows, ReadCondition(_restore_names(ast.unparse(remaining), parsed.names), parsed.columns(remaining))
    except RecursionError:
        raise InvalidRequest(where, f"{_shorten(query)}: nested too deeply") from None


def _split_conjunction(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [condition for operand in node.values for condition in _split_conjunction(operand)]
    return [node]


def _evaluate(table: pa.Table, query: _Query) -> NDArray[np.int64]:
    try:
        _Evaluator(query, table.slice(0, 0)).condition(query.tree)  # raises errors even without rows
        block_rows = [
            start + np.flatnonzero(_Evaluator(query, table.slice(start, _BLOCK_ROWS)).condition(query.tree))
            for start in range(0, table.num_rows, _BLOCK_ROWS)
        ]
    except MemoryError:  # pyarrow's MemoryError is also an ArrowException
        raise
    except (ArithmeticError, TypeError, ValueError, NotImplementedError, re.error, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(query.where, f"{query.show(query.tree)} cannot be evaluated: {reason}") from None
    return np.concatenate([np.empty(0, np.int64), *block_rows])


class _Query(NamedTuple):
    tree: ast.expr
    names: Mapping[str, str]
    where: str
    classes: ClassNames

    def show(self, node: ast.AST) -> str:
        return _shorten(_restore_names(ast.unparse(node), self.names))

    def column(self, node: ast.expr) -> str:
        return self.names.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def columns(self, node: ast.expr) -> tuple[str, ...]:
        return (*dict.fromkeys(self.column(part) for part in ast.walk(node) if isinstance(part, ast.Name)),)

    def error(self, node: ast.AST, problem: str, *, expected: str = "", remedy: str = "") -> InvalidRequest:
        return InvalidRequest(self.where, f"{self.show(node)}: {problem}", expected=expected, remedy=remedy)


def _parse(text: str, where: str, classes: ClassNames) -> _Query:
    stand_in = "_column"  # starts the identifiers of names in backticks
    while stand_in in text:
        stand_in += "_"
    names: dict[str, str] = {}

    def replace_token(match: re.Match[str]) -> str:
        if match["bad"]:
            problem, remedy = _BAD_TOKENS[match["bad"]]
            raise InvalidRequest(where, f"{problem}: {_shorten(text[match.start() :])}", remedy=remedy)
        if match["name"] is not None:
            identifier = f"{stand_in}{len(names)}_"
            names[identifier] = match["name"]
            return f" {identifier} "
        return _OPERATOR_WORDS.get(match[0], " " if match[0].isspace() else match[0])

    python_text = _TOKEN.sub(replace_token, text).strip()
    if not python_text:
        raise InvalidRequest(where, "an empty query", expected="a query such as label == 'dog' and width > 256")
    try:
        tree = ast.parse(python_text, mode="eval").body
        ast.unparse(tree)  # fails for long integers
    except (SyntaxError, ValueError, MemoryError) as error:
        # Before Python 3.12, a NUL byte raises ValueError. Too many `-` or `+` in a row raise MemoryError.
        if not isinstance(error, SyntaxError) or _INTEGER_TOO_LONG in error.msg:
            problem = str(error) or "nested too deeply"
            problem = "a number that is too long" if _INTEGER_TOO_LONG in problem else problem
            raise InvalidRequest(where, f"{_shorten(text)}: {problem}") from None
        offset = error.offset - 1 if error.offset else len(python_text)
        marked = f"{python_text[:offset][-_MAX_SHOWN_LETTERS:]} <HERE> {_shorten(python_text[offset:])}"
        problem = f"{error.msg.partition('. Maybe')[0]}: {' '.join(_restore_names(marked, names).split())}"
        expected = "a comparison, or several with and, or, not"
        remedy = "Equality is ==. Put text in quotes, and names with blanks or keywords such as class in `backticks`."
        raise InvalidRequest(where, problem, expected=expected, remedy=remedy) from None
    return _Query(tree, names, where, classes)


def _restore_names(text: str, names: Mapping[str, str]) -> str:
    for stand_in, name in names.items():
        text = text.replace(stand_in, f"`{name}`")
    return text


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LETTERS else f"{text[:_MAX_SHOWN_LETTERS]}..."


class _Value(NamedTuple):
    kind: QueryKind
    data: Any
    node: ast.expr
    constant: bool = False
    verb: str = "is"

    @property
    def described(self) -> str:
        return f"holds {self.data.type}" if self.kind in ("lists", "of another type") else f"{self.verb} {self.kind}"


def _condition_value(rows: Bools, node: ast.expr) -> _Value:
    return _Value("true or false", Numbers(rows, np.ones(len(rows), np.bool_)), node)


class _Evaluator:
    def __init__(self, query: _Query, table: pa.Table) -> None:
        self._query = query
        self._table = table
        self._columns: dict[str, tuple[QueryKind, Any]] = {}

    def condition(self, node: ast.expr) -> Bools:
        numbers: Numbers = self._column_of_kind(node, "true or false").data
        return numbers.to_bools(missing=False)

    def _value(self, node: ast.expr) -> _Value:
        match node:
            case ast.Name():
                return self._column(node)
            case ast.Constant() | ast.List() | ast.Tuple():
                return self._constant(node)
            case ast.BoolOp() | ast.Compare() | ast.UnaryOp(op=ast.Not() | ast.Invert()):
                return _condition_value(self._logic(node), node)
            case ast.UnaryOp() | ast.BinOp():
                return self._arithmetic(node)
            case ast.Attribute() | ast.Call():
                return self._member(node)
        raise self._unsupported_error(node)

    def _value_of_kind(self, node: ast.expr, *kinds: QueryKind) -> _Value:
        value = self._value(node)
        if value.kind == "empty":
            return _Value(kinds[0], null_values(kinds[0], self._table.num_rows), node)
        if value.kind not in kinds:
            raise self._kind_error(value, " or ".join(kinds))
        return value

    def _column_of_kind(self, node: ast.expr, *kinds: QueryKind) -> _Value:
        return self._check_varies(self._value_of_kind(node, *kinds))

    def _check_varies(self, value: _Value) -> _Value:
        if value.constant:
            raise self._query.error(value.node, "contains no column", expected="an expression with a column")
        return value

    def _kind_error(self, value: _Value, expected: str) -> InvalidRequest:
        remedy = _LISTS_HINT if value.kind == "lists" else ""
        expected = "a condition, such as width > 256" if expected == "true or false" else expected
        return self._query.error(value.node, value.described, expected=expected, remedy=remedy)

    def _unsupported_error(self, node: ast.expr) -> InvalidRequest:
        shown = ast.unparse(node)
        if shown in self._table.column_names:
            return self._query.error(node, "a name with a dot", remedy=f"Write `{shown}` in backticks.")
        field, _, value = shown.partition(".")
        if isinstance(node, ast.Attribute) and field not in self._table.column_names and value.isidentifier():
            remedy = f"For values of a JSON field, add {option_text('columns_from', field)}, and write {value}."
            return self._query.error(node, "not supported in queries", expected="columns", remedy=remedy)
        if match := _TEXT_CALL.fullmatch(self._query.show(node)):
            return self._query.error(node, "not supported in queries", remedy=f"Write {match[1]}.str{match[2]}.")
        return self._query.error(node, "not supported in queries", expected=_LANGUAGE)

    def _column(self, node: ast.Name) -> _Value:
        name = self._query.column(node)
        if name not in self._columns:
            if not (indices := self._table.schema.get_all_field_indices(name)):
                raise self._unknown_column_error(node, name)
            if len(indices) > 1:
                raise self._query.error(node, f"{len(indices)} columns of this name", expected="one")
            self._columns[name] = column_values(self._table.column(indices[0]))
        return _Value(*self._columns[name], node)

    def _unknown_column_error(self, node: ast.Name, name: str) -> InvalidRequest:
        by_lower = {column.lower(): column for column in self._table.column_names}
        matches = [by_lower[match] for match in get_close_matches(name.lower(), by_lower, 3)]
        expected = f"one of {format_list(self._table.column_names, _MAX_LISTED_COLUMNS)}"
        remedy = f"Did you mean {' or '.join(matches)}?" if matches else f"Put text in quotes: '{_shorten(name)}'."
        if _COMPUTED_COLUMNS.issuperset(self._table.column_names):
            remedy += f" For values of JSON fields, use {option_text('columns_from', 'json')} of `create` or `reshard`."
        if name in {*PROBED_COLUMNS, *ORIGINAL_COLUMNS}:
            remedy = f"{call_text('create', probe=True)} adds this column; the same run can use it in a query."
        if name in self._query.classes:
            remedy = f"{call_text('reshard', columns_from=(name,))} turns the field into a column."
        return self._query.error(node, "no such column", expected=expected, remedy=remedy)

    def _constant(self, node: ast.Constant | ast.List | ast.Tuple) -> _Value:
        if isinstance(node, ast.Constant):
            for kind, types in _CONSTANTS.items():
                if isinstance(node.value, types):
                    return _Value(kind, node.value, node, constant=True)
            if node.value is None:
                raise self._query.error(node, "not equal to any value", remedy="Write column.isna() or column.notna().")
            raise self._unsupported_error(node)
        items = [self._value(item) for item in node.elts]
        for item in items:
            if not item.constant or item.kind == "a list":
                raise self._query.error(item.node, "not allowed in a list", expected="numbers or text")
        return _Value("a list", items, node, constant=True)

    def _logic(self, node: ast.BoolOp | ast.Compare | ast.UnaryOp) -> Bools:
        match node:
            case ast.BoolOp(op=op, values=operands):
                return reduce(operator.and_ if isinstance(op, ast.And) else operator.or_, map(self.condition, operands))
            case ast.UnaryOp(operand=operand):
                return ~self.condition(operand)
        values = [self._value(operand) for operand in (node.left, *node.comparators)]
        pairs = zip(values, node.ops, values[1:], strict=False)
        return reduce(operator.and_, [self._compare(left, type(op), right, node) for left, op, right in pairs])

    def _compare(self, left: _Value, op: type[ast.cmpop], right: _Value, node: ast.expr) -> Bools:
        if op in (ast.In, ast.NotIn) or (right.kind == "a list" and op in (ast.Eq, ast.NotEq)):
            is_in = self._is_in(left, right)
            return is_in if op in (ast.In, ast.Eq) else ~is_in
        if op not in _COMPARISONS:
            raise self._query.error(node, "unsupported comparison", expected="==, !=, <, <=, >, >=, in or not in")
        if left.constant:
            self._check_varies(right)
        if "empty" in (left.kind, right.kind):
            return np.full(self._table.num_rows, op is ast.NotEq)
        if op in (ast.Eq, ast.NotEq):
            left, right = self._class_to_number(left, right), self._class_to_number(right, left)
        return compare(_COMPARISONS[op], *self._comparable(left, right))

    def _is_in(self, value: _Value, items: _Value) -> Bools:
        if items.kind != "a list":
            contains = f"Write {self._query.show(items.node)}.contains({self._query.show(value.node)})."
            remedy = contains if items.kind == "lists" else ""
            expected = "a list such as ['cat', 'dog']"
            raise self._query.error(items.node, items.described, expected=expected, remedy=remedy)
        self._check_varies(value)
        if value.kind == "empty":
            return self._any(())
        pairs = [self._comparable(value, self._class_to_number(item, value)) for item in items.data]
        if value.kind == "a time":
            return self._any(compare(operator.eq, *pair) for pair in pairs)
        return is_in(value.data, [constant for _, constant in pairs])

    def _any(self, conditions: Iterable[Bools]) -> Bools:
        return reduce(operator.or_, conditions, np.zeros(self._table.num_rows, np.bool_))

    def _comparable(self, left: _Value, right: _Value) -> tuple[Any, Any]:
        first, second = self._text_to_time(left, right), self._text_to_time(right, left)
        kinds = {first.kind, second.kind}
        if kinds not in ({"a number"}, {"text"}, {"a time"}) and not kinds <= {"a number", "true or false"}:
            named = [f"{self._query.show(value.node)} {value.described}" for value in (left, right)]
            problem = f"different types: {' and '.join(named)}"
            remedy = _LISTS_HINT if "lists" in kinds else ""
            raise InvalidRequest(self._query.where, problem, expected="values of the same kind", remedy=remedy)
        if kinds == {"a time"} and is_zoned(first.data) != is_zoned(second.data):
            raise self._query.error(right.node, "only one of the two times has a time zone")
        return first.data, second.data

    def _class_to_number(self, text: _Value, labels: _Value) -> _Value:
        if not (text.constant and text.kind == "text" and labels.kind == "a number" and not labels.constant):
            return text
        column, classes = self._query.column(labels.node), self._query.classes
        names = classes.get(column) or classes.get(f"{column}.json")  # lists of labels are in a JSON field
        if not names:
            return text
        if text.data not in names:
            raise missing_name_error("class", self._query.where, text.data, names)
        numbers = labels.data.values[labels.data.valid]
        if not ((numbers >= 0) & (numbers < len(names))).all():
            expected = f"class numbers from 0 to {len(names) - 1:,}, or a comparison with a number"
            raise self._query.error(labels.node, "contains numbers without a class", expected=expected)
        return _Value("a number", names.index(text.data), text.node, constant=True)

    def _text_to_time(self, text: _Value, times: _Value) -> _Value:
        if not (text.constant and text.kind == "text" and times.kind == "a time"):
            return text
        if (time := parse_time(text.data, times.data.type.tz)) is None:
            raise self._query.error(text.node, "not a time", expected="such as '2026-01-31' or '2026-01-31 17:30:00'")
        return _Value("a time", time, text.node, constant=True)

    def _arithmetic(self, node: ast.UnaryOp | ast.BinOp) -> _Value:
        if isinstance(node, ast.UnaryOp):
            value = self._value_of_kind(node.operand, "a number")
            data = calculate(operator.neg, value.data) if isinstance(node.op, ast.USub) else value.data
            return _Value("a number", data, node, value.constant)
        if type(node.op) not in _ARITHMETIC:
            raise self._unsupported_error(node)
        left, right = self._value_of_kind(node.left, "a number"), self._value_of_kind(node.right, "a number")
        constant = left.constant and right.constant
        is_power = constant and isinstance(node.op, ast.Pow)
        if is_power and (abs(left.data) > _MAX_POWER_BASE or abs(right.data) > _MAX_EXPONENT):
            raise self._query.error(node, "power too large")  # 9**9**9 would never finish
        return _Value("a number", calculate_pair(_ARITHMETIC[type(node.op)], left.data, right.data), node, constant)

    def _member(self, node: ast.Attribute | ast.Call) -> _Value:
        match node:
            case ast.Attribute(value=ast.Attribute(value=owner, attr="dt"), attr=name) if name in TIME_FIELDS:
                return _Value("a number", time_field(name, self._column_of_kind(owner, "a time").data), node)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner, attr="str"), attr=name)) if (
                name in _TEXT_METHODS
            ):
                return self._text_method(node, owner, name)
            case ast.Call(func=ast.Attribute(value=owner, attr="len")):
                self._arguments(node)
                lengths = value_lengths(self._column_of_kind(owner, "text", "lists").data)
                return _Value("a number", lengths, node)
            case ast.Call(func=ast.Attribute(value=owner, attr="abs")):
                self._arguments(node)
                return _Value("a number", calculate(abs, self._column_of_kind(owner, "a number").data), node)
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                return _condition_value(self._condition_method(node, owner, name), node)
        raise self._unsupported_error(node)

    def _condition_method(self, node: ast.Call, owner: ast.expr, name: str) -> Bools:
        match name:
            case "isna" | "isnull" | "notna" | "notnull":
                self._arguments(node)
                value = self._check_varies(self._value(owner))
                is_empty = value.kind == "empty"
                missing = np.ones(self._table.num_rows, np.bool_) if is_empty else missing_rows(value.data)
                return missing if name.startswith("is") else ~missing
            case "contains":
                (item,), _ = self._arguments(node, 1, 1)
                kinds: tuple[QueryKind, QueryKind] = ("text", "lists") if item.kind == "text" else ("lists", "text")
                return self._contains(self._column_of_kind(owner, *kinds), item)
            case "isin":
                (items,), _ = self._arguments(node, 1, 1)
                return self._is_in(self._value(owner), items)
            case "between":
                (low, high), named = self._arguments(node, 2, 2, {"inclusive": "text"})
                if (inclusive := named.get("inclusive", "both")) not in _BETWEEN:
                    expected = f"one of {format_list([*_BETWEEN])}"
                    raise self._query.error(node, f"inclusive={inclusive!r}", expected=expected)
                low_operator, high_operator = _BETWEEN[inclusive]
                value = self._value(owner)
                return self._compare(value, low_operator, low, node) & self._compare(value, high_operator, high, node)
        raise self._unsupported_error(node)

    def _contains(self, value: _Value, item: _Value) -> Bools:
        if not item.constant or item.kind == "a list":
            raise self._query.error(item.node, item.described, expected="a value such as 'cat' or 3")
        if value.kind == "text":
            texts, part = self._comparable(value, item)
            return Numbers.from_arrow(pc.match_substring(texts, part)).to_bools(missing=False)
        elements = _Value(*column_values(pc.list_flatten(value.data)), value.node, verb="contains")
        if elements.kind == "empty":
            return self._any(())
        pair = self._comparable(elements, self._class_to_number(item, elements))
        return rows_with_element(value.data, compare(operator.eq, *pair))

    def _text_method(self, node: ast.Call, owner: ast.expr, name: str) -> _Value:
        method = _TEXT_METHODS[name]
        arguments, named = self._arguments(node, method.min_arguments, method.max_arguments, method.named)
        for value in arguments:
            if not value.constant or value.kind not in method.kinds:
                raise self._kind_error(value, "text in quotes")
        texts = self._column_of_kind(owner, "text").data
        if arguments and arguments[0].kind == "a list":
            matches = [Numbers.from_arrow(method.call(texts, item.data)) for item in arguments[0].data]
            return _condition_value(self._any(match.to_bools(missing=False) for match in matches), node)
        return _Value(*column_values(method.call(texts, *(value.data for value in arguments), **named)), node)

    def _arguments(
        self, node: ast.Call, min_count: int = 0, max_count: int = 0, kinds: Mapping[str, QueryKind] = _NO_NAMES
    ) -> tuple[list[_Value], dict[str, Any]]:
        named = {str(argument.arg): self._value(argument.value) for argument in node.keywords if argument.arg in kinds}
        if not min_count <= len(node.args) <= max_count or len(named) < len(node.keywords):
            by_name = "".join(f", and {name}=" for name in kinds)
            expected = f"{'' if min_count == max_count else 'at most '}{pluralize(max_count, 'argument')}{by_name}"
            raise self._query.error(node, "wrong arguments", expected=expected)
        for name, value in named.items():
            if value.kind != kinds[name] or not value.constant:
                raise self._kind_error(value, kinds[name])
        return [self._value(argument) for argument in node.args], {name: value.data for name, value in named.items()}
