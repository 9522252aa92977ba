"use strict";
// The rows of the table: columns, filters and sorting. This file does not change the page.

const collator = new Intl.Collator("en", { numeric: true });

// A column. Its values are numbers, texts, lists of texts, or null; `NaN` and infinity are texts in a column of numbers.
class Column {
  constructor({ name, kind, label, values, names, codes, lengths }) {
    Object.assign(this, { name, kind, codes, lengths, label: Boolean(label), values: names || values });
  }

  value(row) {
    if (!this.codes) return this.values[row];
    return this.codes[row] < 0 ? null : this.values[this.codes[row]];
  }

  text(row) {
    const value = this.value(row);
    if (value === null) return "";
    if (this.kind !== "list") return String(value);
    if (!value.length) return this.lengths[row] === 1 ? "1 item" : `${this.lengths[row]} items`;
    return value.join(", ") + (this.lengths[row] > value.length ? `, … (${this.lengths[row]} items)` : "");
  }

  number(row) {
    const value = this.kind === "list" ? this.lengths[row] : this.value(row);
    return typeof value === "number" ? value : null;
  }

  // Returns a function that returns whether the value in a row passes the test. Repeated values are tested once.
  matcher(test) {
    if (!this.codes) return (row) => test(this.values[row]);
    const results = this.values.map(test), resultOfNull = test(null);
    return (row) => (this.codes[row] < 0 ? resultOfNull : results[this.codes[row]]);
  }

  contains(words) {
    this.lowerCase ??= this.values.map((value) => (value === null ? "" : String(value).toLowerCase()));
    if (!this.codes) return (row) => this.lowerCase[row].includes(words);
    const results = this.lowerCase.map((text) => text.includes(words));
    return (row) => this.codes[row] >= 0 && results[this.codes[row]];
  }

  // Returns the distinct texts, or items of lists, and the number of rows with each; undefined if there are too many.
  counts(max) {
    const counts = new Map(), length = (this.codes || this.values).length;
    for (let row = 0; row < length && counts.size <= max; row++) {
      const value = this.value(row), items = this.kind === "list" ? new Set(value) : value === null ? [] : [value];
      for (const item of items) counts.set(String(item), (counts.get(String(item)) || 0) + 1);
    }
    return counts.size > max ? undefined : new Map([...counts].sort(([one], [other]) => collator.compare(one, other)));
  }

  // Returns the position of each row's value in the sorted values; NaN without a value.
  ranks(count) {
    if (this.sorted) return this.sorted;
    const rows = Array.from({ length: count }, (_, row) => row);
    if (this.kind !== "text") {
      this.sorted = Float64Array.from(rows, (row) => this.number(row) ?? NaN);
      return this.sorted;
    }
    const texts = [...new Set(this.values)].filter((text) => text !== null).sort(collator.compare);
    const positions = new Map(texts.map((text, position) => [text, position]));
    this.sorted = Float64Array.from(rows, (row) => positions.get(this.value(row)) ?? NaN);
    return this.sorted;
  }
}

const sortRows = (rows, ranks, isDescending) => {
  const sign = isDescending ? -1 : 1;
  return rows.sort((one, other) => {
    const first = ranks[one], second = ranks[other];
    if (first === second || (Number.isNaN(first) && Number.isNaN(second))) return one - other;
    return Number.isNaN(first) ? 1 : Number.isNaN(second) ? -1 : sign * (first - second);  // rows without a value are last
  });
};

const OPERATORS = {
  text: ["contains", "is", "is not", "from", "up to", "is empty", "is not empty"],
  number: ["at least", "at most", "is", "is not", "is empty", "is not empty"],
  list: ["has", "lacks", "contains", "length at least", "length at most", "is empty", "is not empty"],
};

// Returns a function that tests a row, null if the filter is incomplete, or undefined if `wanted` is not a number.
const makeFilter = (column, operator, wanted) => {
  const isEmpty = (value) => value === null || value.length === 0;
  if (operator === "is empty") return column.matcher(isEmpty);
  if (operator === "is not empty") return column.matcher((value) => !isEmpty(value));
  if (wanted === "") return null;
  if (operator === "contains") return column.contains(wanted.toLowerCase());
  if (operator === "has") return column.matcher((value) => value !== null && value.includes(wanted));
  if (operator === "lacks") return column.matcher((value) => value === null || !value.includes(wanted));
  if (operator === "is") return column.matcher((value) => value !== null && (String(value) === wanted || (column.kind === "number" && value === Number(wanted))));
  if (operator === "is not") { const matches = makeFilter(column, "is", wanted); return (row) => !matches(row); }
  if (operator === "from") return column.matcher((value) => value !== null && collator.compare(value, wanted) >= 0);
  if (operator === "up to") return column.matcher((value) => value !== null && collator.compare(value, wanted) <= 0);
  const bound = Number(wanted), sign = operator.endsWith("least") ? 1 : -1;
  if (Number.isNaN(bound)) return undefined;
  return (row) => { const number = column.number(row); return number !== null && sign * (number - bound) >= 0; };
};

// Returns the lines of a file for `--keys-from`, and the number of keys that such a file cannot contain.
const keyLines = (keys) => {
  const lines = keys.filter((key) => key && !/[\n\r\0]/.test(key));
  return { text: lines.map((key) => key + "\n").join(""), excluded: keys.length - lines.length };
};
