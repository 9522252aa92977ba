"""Match the rows of a table against a query such as `label == 'dog' and width > 256`, with the meaning of pandas.

Python parses a query but never runs it. Anything outside the small language below is refused before a value is
read,
and pandas evaluates each operation. A query from an untrusted source can select other rows, and nothing else.

Each row is evaluated by itself (there is no `mean()`), so rows are read in blocks. A null equals nothing:
comparisons
with it are false, and `!=` and `not` invert that. (`DataFrame.query` does the same for text and NumPy floats. It
does
not for `Int64`, and it rounds integers with nulls that are read as floats.)

Unlike in pandas, class names stand for their numbers: `cls == 'cat'`, `cls in ('cat', 'dog')`.
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types

from shardtool.entries import arrow, metadata_columns
from shardtool.errors import InvalidRequest, format_list
from shardtool.messages import call_text, option_text
from shardtool.pandas_guard import import_pandas
from shardtool.table.columns import missing_name_error
from shardtool.transform.transform import ORIGINAL_COLUMNS, PROBED_COLUMNS, ReadCondition
from shardtool.units import pluralize

if TYPE_CHECKING:
    from datetime import tzinfo

    from numpy.typing import NDArray


ClassNames = Mapping[str, Sequence[str]]


QueryKind = Literal["a number", "text", "true or false", "a time", "a list", "empty", "of another type"]


_BLOCK_ROWS = 2**16  # rows at a time: what pandas makes of them stays small


_MAX_SHOWN_LETTERS = 80  # characters of a query in a message


_MAX_LISTED_COLUMNS = 50  # columns in a message


_INTEGER_TOO_LONG = "integer string conversion"  # in what Python says of a number of thousands of digits


_MAX_POWER_BASE, _MAX_EXPONENT = 2**64, 64  # the most that a constant may be raised from, and to


_LANGUAGE = (
    "columns, numbers, 'text', lists of these, == != < <= > >= in, and or not & | ~, + - * / // % **, .str.contains() "
    ".startswith() .endswith() .match() .lower() .upper() .strip() .len(), .isin() .between() .isna() .notna() .abs(), "
    ".dt.year and the like"
)


_Data = Any  # see `_Value.data`


_COMPARISONS: Mapping[type[ast.cmpop], Callable[[_Data, _Data], _Data]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


_ARITHMETIC: Mapping[type[ast.operator], Callable[[_Data, _Data], _Data]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip


_BETWEEN: Mapping[str, tuple[type[ast.cmpop], type[ast.cmpop]]] = {
    "both": (ast.GtE, ast.LtE), "neither": (ast.Gt, ast.Lt), "left": (ast.GtE, ast.Lt), "right": (ast.Gt, ast.LtE),
}  # fmt: skip


_CONSTANTS: Mapping[QueryKind, type | tuple[type, ...]] = {"true or false": bool, "a number": (int, float), "text": str}


_ARROW_KINDS: Sequence[tuple[QueryKind, Callable[[pa.DataType], bool], pa.DataType | None]] = (
    # What Arrow's types are in a query, and what each becomes; the first that holds counts.
    ("true or false", types.is_boolean, None),
    ("a number", types.is_uint64, None),
    ("a number", types.is_integer, pa.int64()),  # in an int8, 2 * 100 would wrap round
    ("a number", types.is_floating, None),
    ("a number", types.is_decimal, pa.float64()),
    ("text", lambda kind: str(kind) in ("string", "large_string"), pa.large_string()),
    ("a time", types.is_date, pa.timestamp("ms")),
    ("a time", types.is_timestamp, None),
)


_TIME_FIELDS = frozenset(
    {"year", "quarter", "month", "day", "dayofweek", "weekday", "dayofyear", "hour", "minute", "second"}
)


_NO_NAMES: Mapping[str, QueryKind] = {}


class _TextMethod(NamedTuple):
    """A method of `.str`: what it gives, how many arguments it takes, and which others by name."""

    gives: QueryKind
    least: int
    most: int
    kinds: frozenset[QueryKind] = frozenset({"text"})
    named: Mapping[str, QueryKind] = _NO_NAMES


_TEXT_METHODS: Mapping[str, _TextMethod] = {
    "contains": _TextMethod("true or false", 1, 1, named={"case": "true or false", "regex": "true or false"}),
    "match": _TextMethod("true or false", 1, 1, named={"case": "true or false"}),
    "startswith": _TextMethod("true or false", 1, 1, frozenset({"text", "a list"})),
    "endswith": _TextMethod("true or false", 1, 1, frozenset({"text", "a list"})),
    "lower": _TextMethod("text", 0, 0),
    "upper": _TextMethod("text", 0, 0),
    "strip": _TextMethod("text", 0, 1),
    "len": _TextMethod("a number", 0, 0),
}


_NO_CLASSES: ClassNames = {}


_TOKEN = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?P<name>[^`]*)`|(?P<bad>[@#`])|[&|\s]""")


_OPERATOR_WORDS = {"&": " and ", "|": " or "}


_BAD_TOKENS = {
    "@": ("@ reads a variable of a program, and there is none", "Write the value itself."),
    "#": ("# would start a comment", "Write a name that holds one in `backticks`."),
    "`": ("a backtick without its second", "Write the name as `name`."),
}


_TIME_TEXT = re.compile(  # no `now`, `12:30` or `EST`: the same rows on every day and machine
    r"[0-9]{4}(-[0-9]{2}(-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(Z|[+-][0-9]{2}:?[0-9]{2})?)?)?)?"
)


def match_rows(table: pa.Table, query: str, classes: ClassNames = _NO_CLASSES) -> NDArray[np.int64]:
    """Return the rows of `table` that `query` takes, in order; that there are none is no error.

    Args:
        table: Only the columns that the query names are read.
        query: A comparison, or several with `and`, `or`, `not`; names with blanks stand in backticks.
        classes: Column to the names of the classes whose numbers it holds: a text that it is compared with, by ==, !=
            or in, is one of them.

    Raises:
        InvalidRequest: A query outside of the language, a column or class that does not exist, types that do not
            compare.
    """
    return match_partially(table, query, {}, classes)[0]


def match_partially(
    table: pa.Table, query: str, found: Mapping[str, str], classes: ClassNames = _NO_CLASSES
) -> tuple[NDArray[np.int64], ReadCondition | None]:
    """Return the rows that `query` takes as far as `table` says, and the rest of it; None: that is all of it.

    Of conditions that `and` joins, those belong to the rest that name a column which only reading samples will give.

    Args:
        table: See `match_rows`.
        query: See `match_rows`.
        found: Those columns, and their types; one that `table` has is known already.
        classes: See `match_rows`.

    Raises:
        InvalidRequest: As `match_rows` does, of the whole query.
    """
    where = option_text("where")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # \d in quotes, a pattern with groups, a division by zero
            asked, known = _parse(query, where, classes), {*table.column_names}
            new = [(name, kind) for name, kind in found.items() if name not in known]
            _evaluate(
                metadata_columns.with_measured_columns(table.slice(0, 0), new, []), asked
            )  # refuses it with all columns in the message
            parts = _split_conjunction(asked.tree)
            later = ast.BoolOp(ast.And(), [part for part in parts if not known.issuperset(asked.columns(part))])
            if not later.values:
                return _evaluate(table, asked), None
            rows, parts = np.arange(table.num_rows), [part for part in parts if part not in later.values]
            if parts:
                rows = _evaluate(table, asked._replace(tree=ast.BoolOp(ast.And(), parts)))
            return rows, ReadCondition(_restore_names(ast.unparse(later), asked.names), asked.columns(later))
    except RecursionError:
        raise InvalidRequest(where, f"{_shorten(query)}: nested too deeply") from None


def _split_conjunction(node: ast.expr) -> list[ast.expr]:
    """Return the conditions that `and` joins to a query."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        return [part for one in node.values for part in _split_conjunction(one)]
    return [node]


def _evaluate(table: pa.Table, query: _Query) -> NDArray[np.int64]:
    try:
        _Evaluator(query, table.slice(0, 0)).truth(
            query.tree
        )  # finds what is wrong with a query before a value is read
        parts = [
            first + np.flatnonzero(_Evaluator(query, table.slice(first, _BLOCK_ROWS)).truth(query.tree))
            for first in range(0, table.num_rows, _BLOCK_ROWS)
        ]
    except MemoryError:  # of pyarrow, too
        raise
    except (ArithmeticError, TypeError, ValueError, NotImplementedError, re.error, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidRequest(query.where, f"{query.show(query.tree)} cannot be evaluated: {reason}") from None
    return np.concatenate([np.empty(0, np.int64), *parts])


class _Query(NamedTuple):
    """A query that is Python, if not yet of the language.

    Attributes:
        tree: What it says, with stand-ins for names in backticks.
        names: Stand-in to column.
        where: What a message calls the query.
        classes: Column to the names of the classes whose numbers it holds.
    """

    tree: ast.expr
    names: Mapping[str, str]
    where: str
    classes: ClassNames

    def show(self, node: ast.AST) -> str:
        """Return a part of the query, nearly as it was written."""
        return _shorten(_restore_names(ast.unparse(node), self.names))

    def column(self, node: ast.expr) -> str:
        """Return the column that a part of the query names; empty: it names none."""
        return self.names.get(node.id, node.id) if isinstance(node, ast.Name) else ""

    def columns(self, node: ast.expr) -> tuple[str, ...]:
        """Return the columns that a part of the query names, each once."""
        return (*dict.fromkeys(self.column(one) for one in ast.walk(node) if isinstance(one, ast.Name)),)

    def refusal(self, node: ast.AST, found: str, *, expected: str = "", remedy: str = "") -> InvalidRequest:
        """Return the error that refuses a part of the query."""
        return InvalidRequest(self.where, f"{self.show(node)}: {found}", expected=expected, remedy=remedy)


def _parse(text: str, where: str, classes: ClassNames) -> _Query:
    """Return a query as Python's syntax tree, `&` and `|` read as pandas does: like `and` and `or`."""
    stand_in = "_column"
    while stand_in in text:
        stand_in += "_"
    names: dict[str, str] = {}

    def spell(match: re.Match[str]) -> str:
        if match["bad"]:
            found, remedy = _BAD_TOKENS[match["bad"]]
            raise InvalidRequest(where, f"{found}: {_shorten(text[match.start() :])}", remedy=remedy)
        if match["name"] is not None:
            names[f"{stand_in}{len(names)}_"] = match["name"]
            return f" {stand_in}{len(names) - 1}_ "
        return _OPERATOR_WORDS.get(match[0], " " if match[0].isspace() else match[0])

    spelled = _TOKEN.sub(spell, text).strip()
    if not spelled:
        raise InvalidRequest(where, "an empty query", expected="one such as label == 'dog' and width > 256")
    try:
        tree = ast.parse(spelled, mode="eval").body
        ast.unparse(tree)  # as messages and workers get it: a number in hex may have too many digits for that
    except (SyntaxError, ValueError, MemoryError) as error:
        if (
            not isinstance(error, SyntaxError) or _INTEGER_TOO_LONG in error.msg
        ):  # a NUL, before Python 3.12; signs without end
            problem = "too long a number" if _INTEGER_TOO_LONG in str(error) else str(error) or "nested too deeply"
            raise InvalidRequest(where, f"{_shorten(text)}: {problem}") from None
        at = error.offset - 1 if error.offset else len(spelled)  # 0: the end came too early
        marked = _restore_names(f"{spelled[:at][-_MAX_SHOWN_LETTERS:]} <HERE> {_shorten(spelled[at:])}", names).split()
        problem = f"{error.msg.partition('. Maybe')[0]}: {' '.join(marked)}"
        expected = "a comparison, or several with and, or, not"
        cure = "Equality is ==. Text stands in quotes; names with blanks, or such as class, in `backticks`."
        raise InvalidRequest(where, problem, expected=expected, remedy=cure) from None
    return _Query(tree, names, where, classes)


def _restore_names(text: str, names: Mapping[str, str]) -> str:
    """Return `text` with the columns that stand-ins stand for."""
    for stand_in, name in names.items():
        text = text.replace(stand_in, f"`{name}`")
    return text


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_LETTERS else f"{text[:_MAX_SHOWN_LETTERS]}..."


class _Value(NamedTuple):
    """The value of a part of a query, in some rows.

    Attributes:
        kind: What it can be compared with.
        data: A pandas Series, or for truth a bool array too; a number or text that is the same in every row; the
            values of a list; a column of another type; None where all is null.
        node: The part of the query.
        constant: Whether it is the same in every row.
    """

    kind: QueryKind
    data: _Data
    node: ast.expr
    constant: bool = False

    @property
    def described(self) -> str:
        """`is a number`, or what a column that no query can compare holds."""
        return f"holds {self.data.type}" if self.kind == "of another type" else f"is {self.kind}"


class _Evaluator:
    """Some rows, for which the parts of a query are evaluated."""

    def __init__(self, query: _Query, table: pa.Table) -> None:
        self._query = query
        self._table = table
        self._columns: dict[str, tuple[QueryKind, _Data]] = {}

    def truth(self, node: ast.expr) -> NDArray[np.bool_]:
        """Return for each row whether a part of the query holds; where it is null, it does not."""
        return _to_bools(self._varying_data("true or false", node), missing=False)

    def _value(self, node: ast.expr) -> _Value:
        """Return what a part of the query stands for."""
        match node:
            case ast.Name():
                return self._column(node)
            case ast.Constant() | ast.List() | ast.Tuple():
                return self._constant(node)
            case ast.BoolOp() | ast.Compare() | ast.UnaryOp(op=ast.Not() | ast.Invert()):
                return _Value("true or false", self._logic(node), node)
            case ast.UnaryOp() | ast.BinOp():
                return self._arithmetic(node)
            case ast.Attribute() | ast.Call():
                return self._member(node)
        raise self._outside(node)

    def _value_of_kind(self, kind: QueryKind, node: ast.expr) -> _Value:
        """Return the value of a part that must be of a kind; a column of nulls is of any."""
        value = self._value(node)
        if value.kind == "empty":
            return _Value(kind, _null_column(kind, self._table.num_rows), node)
        if value.kind != kind:
            raise self._query.refusal(node, value.described, expected=kind)
        return value

    def _varying_data(self, kind: QueryKind, node: ast.expr) -> _Data:
        """Return the data of a part that must be of a kind, and differ from row to row."""
        value = self._value_of_kind(kind, node)
        self._check_varies(value)
        return value.data

    def _check_varies(self, value: _Value) -> None:
        if value.constant:
            raise self._query.refusal(value.node, "the same for every row", expected="something of a column")

    def _outside(self, node: ast.expr) -> InvalidRequest:
        """Return the error that refuses what is not in the language."""
        shown = ast.unparse(node)
        if shown in self._table.column_names:
            return self._query.refusal(node, "a name with a dot", remedy=f"Write `{shown}` in backticks.")
        return self._query.refusal(node, "not in the language of queries", expected=_LANGUAGE)

    def _column(self, node: ast.Name) -> _Value:
        name = self._query.column(node)
        if name not in self._columns:
            at = self._table.schema.get_all_field_indices(name)
            if not at:
                raise self._unknown(node, name)
            if len(at) > 1:
                raise self._query.refusal(node, f"{len(at)} columns of this name", expected="one")
            self._columns[name] = _to_pandas(self._table.column(at[0]))
        return _Value(*self._columns[name], node)

    def _unknown(self, node: ast.Name, name: str) -> InvalidRequest:
        """Return the error that refuses a column that does not exist."""
        known = {column.lower(): column for column in self._table.column_names}
        near = [known[one] for one in get_close_matches(name.lower(), known, 3)]
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        expected = f"one of {format_list(self._table.column_names, _MAX_LISTED_COLUMNS)}"
        remedy = f"{meant}Text stands in quotes: '{_shorten(name)}'."
        if name in {*PROBED_COLUMNS, *ORIGINAL_COLUMNS}:
            remedy = f"{call_text('create', probe=True)} makes it a column, which this may name in the same run."
        if name in self._query.classes:
            remedy = f"{call_text('reshard', columns_from=(name,))} makes a column of the field."
        return self._query.refusal(node, "no such column", expected=expected, remedy=remedy)

    def _constant(self, node: ast.Constant | ast.List | ast.Tuple) -> _Value:
        if isinstance(node, ast.Constant):
            for kind, types in _CONSTANTS.items():
                if isinstance(node.value, types):
                    return _Value(kind, node.value, node, constant=True)
            if node.value is None:
                raise self._query.refusal(node, "equal to nothing", remedy="Write column.isna() or column.notna().")
            raise self._outside(node)
        items = [self._value(item) for item in node.elts]
        for item in items:
            if not item.constant or item.kind == "a list":
                raise self._query.refusal(item.node, "in a list", expected="numbers or text")
        return _Value("a list", items, node, constant=True)

    def _logic(self, node: ast.BoolOp | ast.Compare | ast.UnaryOp) -> NDArray[np.bool_]:
        """Return where and, or, not, and comparisons hold; of `1 < x < 5`, both."""
        match node:
            case ast.BoolOp(op=op, values=parts):
                return reduce(operator.and_ if isinstance(op, ast.And) else operator.or_, map(self.truth, parts))
            case ast.UnaryOp(operand=operand):
                return ~self.truth(operand)
        values = [self._value(part) for part in (node.left, *node.comparators)]
        pairs = zip(values, node.ops, values[1:], strict=False)
        return reduce(operator.and_, [self._compare(one, type(op), two, node) for one, op, two in pairs])

    def _compare(self, left: _Value, op: type[ast.cmpop], right: _Value, node: ast.expr) -> NDArray[np.bool_]:
        if op in (ast.In, ast.NotIn) or (right.kind == "a list" and op in (ast.Eq, ast.NotEq)):
            found = self._isin(left, right)
            return found if op in (ast.In, ast.Eq) else ~found
        if op not in _COMPARISONS:
            raise self._query.refusal(node, "no comparison of values", expected="==, !=, <, <=, >, >=, in or not in")
        if left.constant:
            self._check_varies(right)
        if op in (ast.Eq, ast.NotEq):
            left, right = self._class_to_number(left, right), self._class_to_number(right, left)
        one, two = self._alike(left, right)
        return _to_bools(_COMPARISONS[op](one, two), missing=op is ast.NotEq)

    def _isin(self, value: _Value, items: _Value) -> NDArray[np.bool_]:
        pd = import_pandas()
        self._check_varies(value)
        if items.kind != "a list":
            raise self._query.refusal(items.node, items.described, expected="a list such as ['cat', 'dog']")
        pairs = [self._alike(value, self._class_to_number(item, value)) for item in items.data]
        if value.kind == "empty":
            return np.zeros(self._table.num_rows, np.bool_)
        return _to_bools(pd.Series(value.data).isin([constant for _, constant in pairs]), missing=False)

    def _alike(self, left: _Value, right: _Value) -> tuple[_Data, _Data]:
        """Return the data of two values that can be compared: text becomes a time where the other is one."""
        one, two = (
            self._convert_to(value, other) if value.kind in ("empty", "text") else value
            for value, other in ((left, right), (right, left))
        )
        kinds = {one.kind, two.kind}
        if kinds not in ({"a number"}, {"text"}, {"a time"}) and not kinds <= {"a number", "true or false"}:
            named = [f"{self._query.show(value.node)} {value.described}" for value in (left, right)]
            raise InvalidRequest(self._query.where, f"compared: {' and '.join(named)}", expected="values of one kind")
        if kinds == {"a time"} and (_time_zone(one.data) is None) != (_time_zone(two.data) is None):
            raise self._query.refusal(right.node, "only one of two times has a time zone")
        return one.data, two.data

    def _class_to_number(self, text: _Value, labels: _Value) -> _Value:
        """Return a text that is compared with numbers of classes as the number of that class."""
        if not (text.constant and text.kind == "text" and labels.kind == "a number" and not labels.constant):
            return text
        column = self._query.column(labels.node)
        if not (names := self._query.classes.get(column)):
            return text
        if text.data not in names:
            raise missing_name_error("class", self._query.where, text.data, names)
        if not labels.data.dropna().between(0, len(names) - 1).all():
            expected = f"numbers of {len(names):,} classes; or a number to compare it with"
            raise self._query.refusal(labels.node, "numbers that are of no class", expected=expected)
        return _Value("a number", names.index(text.data), text.node, constant=True)

    def _convert_to(self, value: _Value, other: _Value) -> _Value:
        """Return a column of nulls, or the text of a time, as a value of the kind that it is compared with."""
        if value.kind == "empty":
            kind: QueryKind = "a number" if other.kind == "empty" else other.kind
            return _Value(kind, _null_column(kind, self._table.num_rows), value.node)
        if value.constant and other.kind == "a time":
            return _Value("a time", self._time(value, _time_zone(other.data)), value.node)
        return value

    def _time(self, text: _Value, zone: tzinfo | None) -> _Data:
        """Return the time that a text means, in the time zone of a column where it says none."""
        pd = import_pandas()
        try:
            time = pd.Timestamp(text.data) if _TIME_TEXT.fullmatch(text.data) else None
        except ValueError:
            time = None
        if time is None:
            raise self._query.refusal(text.node, "no time", expected="such as '2026-01-31' or '2026-01-31 17:30:00'")
        return time.tz_localize(zone) if zone is not None and time.tz is None else time

    def _arithmetic(self, node: ast.UnaryOp | ast.BinOp) -> _Value:
        if isinstance(node, ast.UnaryOp):
            value = self._value_of_kind("a number", node.operand)
            data = -value.data if isinstance(node.op, ast.USub) else value.data
            return _Value("a number", data, node, value.constant)
        if type(node.op) not in _ARITHMETIC:
            raise self._outside(node)
        left, right = self._value_of_kind("a number", node.left), self._value_of_kind("a number", node.right)
        constant = left.constant and right.constant
        if (
            isinstance(node.op, ast.Pow)
            and constant
            and (abs(left.data) > _MAX_POWER_BASE or abs(right.data) > _MAX_EXPONENT)
        ):
            raise self._query.refusal(node, "too large a power")  # 9**9**9 would take for ever
        return _Value("a number", _ARITHMETIC[type(node.op)](left.data, right.data), node, constant)

    def _member(self, node: ast.Attribute | ast.Call) -> _Value:
        """Return the value of a method, or of a field of a time."""
        match node:
            case ast.Attribute(value=ast.Attribute(value=owner, attr="dt"), attr=name) if name in _TIME_FIELDS:
                field_of = getattr(self._varying_data("a time", owner).dt, name)
                return _Value("a number", field_of.astype("Int64"), node)
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner, attr="str"), attr=name)) if (
                name in _TEXT_METHODS
            ):
                return self._text_method(node, owner, name)
            case ast.Call(func=ast.Attribute(value=owner, attr="abs")):
                self._arguments(node)
                return _Value("a number", self._varying_data("a number", owner).abs(), node)
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                return _Value("true or false", self._test(node, owner, name), node)
        raise self._outside(node)

    def _test(self, node: ast.Call, owner: ast.expr, name: str) -> NDArray[np.bool_]:
        """Return where a method that is true or false holds."""
        match name:
            case "isna" | "isnull" | "notna" | "notnull":
                self._arguments(node)
                missing = self._missing(self._value(owner))
                return missing if name.startswith("is") else ~missing
            case "isin":
                (items,), _ = self._arguments(node, 1, 1)
                return self._isin(self._value(owner), items)
            case "between":
                (low, high), named = self._arguments(node, 2, 2, {"inclusive": "text"})
                if (inclusive := named.get("inclusive", "both")) not in _BETWEEN:
                    expected = f"one of {format_list([*_BETWEEN])}"
                    raise self._query.refusal(node, f"inclusive={inclusive!r}", expected=expected)
                above, below = _BETWEEN[inclusive]
                value = self._value(owner)
                return self._compare(value, above, low, node) & self._compare(value, below, high, node)
        raise self._outside(node)

    def _missing(self, value: _Value) -> NDArray[np.bool_]:
        """Return where a value is null or NaN."""
        self._check_varies(value)
        if value.kind == "empty":
            return np.ones(self._table.num_rows, np.bool_)
        if value.kind == "of another type":
            return np.asarray(value.data.is_null().to_numpy())
        return ~_to_bools(value.data == value.data, missing=False)  # neither null nor NaN is itself

    def _text_method(self, node: ast.Call, owner: ast.expr, name: str) -> _Value:
        method = _TEXT_METHODS[name]
        given, named = self._arguments(node, method.least, method.most, method.named)
        for value in given:
            if not value.constant or value.kind not in method.kinds:
                raise self._query.refusal(value.node, value.described, expected="text in quotes")
        call = getattr(self._varying_data("text", owner).str, name)
        if given and given[0].kind == "a list":
            found = [_to_bools(call(item.data), missing=False) for item in given[0].data]
            return _Value("true or false", reduce(operator.or_, found, np.zeros(self._table.num_rows, np.bool_)), node)
        texts = [f"(?:{one.data})" if name == "match" else one.data for one in given]  # pandas 2.1 anchors `a|b` at a
        data = call(*texts, **named)
        return _Value(method.gives, data.astype("Int64") if method.gives == "a number" else data, node)

    def _arguments(
        self, node: ast.Call, least: int = 0, most: int = 0, kinds: Mapping[str, QueryKind] = _NO_NAMES
    ) -> tuple[list[_Value], dict[str, _Data]]:
        """Return the arguments of a method, and the constants that were given by name."""
        named = {str(one.arg): self._value(one.value) for one in node.keywords if one.arg in kinds}
        if not least <= len(node.args) <= most or len(named) < len(node.keywords):
            by_name = "".join(f", and {name}=" for name in kinds)
            expected = f"{'' if least == most else 'at most '}{pluralize(most, 'argument')}{by_name}"
            raise self._query.refusal(node, "arguments that it does not take", expected=expected)
        for name, value in named.items():
            if value.kind != kinds[name] or not value.constant:
                raise self._query.refusal(value.node, value.described, expected=kinds[name])
        return [self._value(one) for one in node.args], {name: value.data for name, value in named.items()}


def _time_zone(time: _Data) -> tzinfo | None:
    """Return the time zone of a Series of times, or of one; None where there is none."""
    zone: tzinfo | None = (time.dt if hasattr(time, "dt") else time).tz
    return zone


def _to_bools(data: _Data, *, missing: bool) -> NDArray[np.bool_]:
    """Return truth as a bool array, `missing` where it is null."""
    return data if isinstance(data, np.ndarray) else np.asarray(data.to_numpy(dtype=bool, na_value=missing))


def _null_column(kind: QueryKind, count: int) -> _Data:
    """Return a column of a kind that is null in every row."""
    kinds = {"text": pa.large_string(), "a time": pa.timestamp("us"), "true or false": pa.bool_()}
    return _to_pandas(pa.chunked_array([pa.nulls(count, kinds.get(kind, pa.int64()))]))[1]


def _to_pandas(column: pa.ChunkedArray) -> tuple[QueryKind, _Data]:
    """Return what a column holds, and a Series whose dtype depends on the column's type, never on its values."""
    pd = import_pandas()
    column = arrow.to_plain(column)
    if types.is_null(column.type):
        return "empty", None
    dtypes = {pa.bool_(): pd.BooleanDtype(), pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}
    dtypes[pa.large_string()] = pd.ArrowDtype(pa.large_string())
    for kind, holds, becomes in _ARROW_KINDS:
        if holds(column.type):
            column = column if becomes is None else column.cast(becomes)
            return kind, column.to_pandas(types_mapper=dtypes.get)
    return "of another type", column
