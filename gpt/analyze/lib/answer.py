"""The answer of an analysis: rows of typed columns, and a verdict.

gpt-stream(5), answer, has the meaning of each key. The code that displays answers (gpt/screen/answers.py and plots.py,
gpt/stream/jsonl.py) reads only these keys and knows no analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpt.stream import packed, records

Record = dict[str, Any]
Answers = Iterator[Record]
Rows = Iterable[Sequence[Any]]


class Column(NamedTuple):
    """A column of an answer; the meaning of each key is in gpt-stream(5)."""

    name: str
    type: str
    unit: str = ""
    title: str = ""
    shown: str = ""

    def declare(self) -> Record:
        """Return a `column` struct that isn't placed yet."""
        more = {key: getattr(self, key) for key in ("unit", "title", "shown") if getattr(self, key)}
        return {"name": self.name, "type": self.type, "offset": 0, **more}


def plot(form: str, x: str, *y: str, **more: str | int) -> Record:
    """Return a `plot` struct: how to draw the columns `x` and `y`; `more` are its other keys."""
    keys = {"form": form, "x": x, "y": list(y), **more}
    return {key: keys[key] for key in records.STRUCTS["plot"] if key in keys}


def make_answer(
    name: str,
    columns: Sequence[Column],
    rows: Rows,
    verdict: Sequence[str] = (),
    top: int | None = None,
    plots: Sequence[Record] = (),
) -> Record:
    """Return an `answer` made of rows with one value per column, or None for no value.

    Numbers are rounded if the column holds whole numbers, and clipped to its range; only negative numbers in a column
    without a sign are an error. Raises MalformedError for them, and if the answer is too large for a record.
    """
    packer = packed.Packer(column.declare() for column in columns)
    for row in rows:
        packer.add([_fit(column.type, value) for column, value in zip(columns, row, strict=True)])
    return _make(name, packer.keys(), verdict, top, plots)


def make_array_answer(
    name: str,
    columns: Sequence[Column],
    values: Sequence[Any],
    verdict: Sequence[str] = (),
    top: int | None = None,
    plots: Sequence[Record] = (),
    texts: Sequence[str] = (),
) -> Record:
    """Return an `answer` with one array per column. A number fills its column; text is an index into `texts`."""
    import numpy as np

    declared, fields, stride = [], [], 0
    for column in columns:
        declared.append({**column.declare(), "offset": stride})
        type_ = column.type.rstrip("?")
        fields.append("<" + packed.TYPES["u32" if type_ == packed.TEXT else type_])
        stride += np.dtype(fields[-1]).itemsize
    rows = np.empty(len(values[0]), [(column.name, field) for column, field in zip(columns, fields, strict=True)])
    for column, array in zip(columns, values, strict=True):
        form, array = rows[column.name].dtype, np.asarray(array)
        if form.kind == "u" and array.dtype.kind == "f":
            array = np.clip(np.rint(array), 0, min(1 << 63, np.iinfo(form).max))
        elif form.kind == "u" and not np.can_cast(array.dtype, form):  # sums of malformed rows may not fit the type
            array = np.clip(array, 0, np.iinfo(form).max)
        rows[column.name] = array
    keys = {"columns": declared, "stride": stride, "texts": list(texts), "rows": rows.tobytes()}
    return _make(name, keys, verdict, top, plots)


def _make(name: str, keys: Record, verdict: Sequence[str], top: int | None, plots: Sequence[Record]) -> Record:
    return records.make("answer", name=name, **keys, top=top, verdict=list(verdict), plots=list(plots) or None)


def _fit(type_: str, value: Any) -> Any:
    """Convert a number, which may be numpy's, for a column. Sums of malformed rows may not fit, and are clipped."""
    value = value.item() if hasattr(value, "item") else value
    if type_.startswith(packed.NUMBER) and type(value) is int and not -(1 << 63) <= value < 1 << 64:
        return float(value)
    if value is None or type_[0] not in "ui":
        return value
    signed = type_[0] == "i"
    bits = int(type_[1:].rstrip("?")) - signed
    value = min(round(value), (1 << bits) - 1 - type_.endswith("?"))
    return max(value, -1 << bits) if signed else value
