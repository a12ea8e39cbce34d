"""Find the words that a table doesn't explain. Words are handled as arrays, not objects: millions of words a second."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from gpt.sass.tables import NEVER, UNKNOWN, Count, Table


@dataclass
class Explained:
    """Counts of words by opcode: all words, those not in the table, and those with modifiers that
    aren't in the table.
    """

    words: int = 0
    opcodes: Counter[int] = field(default_factory=Counter)
    unknown: Counter[int] = field(default_factory=Counter)
    inexact: Counter[int] = field(default_factory=Counter)


def explain(table: Table, words: npt.NDArray[np.uint64], into: Explained) -> None:
    """Add words, which are rows of two numbers, as from `gpt.sass.words.words_array`."""
    if not len(words):
        return
    into.words += len(words)
    numbers = (words[:, 0] & np.uint64(0xFFF)).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    for number, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        into.opcodes[number] += len(rows)
        entry = table.opcodes.get(number)
        if entry is None:
            into.unknown[number] += len(rows)
            continue
        counts = {count for operand in entry.operands for count in (operand.writes, operand.reads)}
        bad = np.full(len(rows), any(one.low is None and one.writes != NEVER for one in entry.operands))
        for count in counts:
            if UNKNOWN in count.numbers:
                bad |= np.array(count.numbers)[_values(words[rows], count)] == UNKNOWN
        if bad.any():
            into.inexact[number] += int(bad.sum())


def _values(words: npt.NDArray[np.uint64], count: Count) -> npt.NDArray[np.int64]:
    """Return the value of an opcode's selectors in each word."""
    values = np.zeros(len(words), np.int64)
    for index, bit in enumerate(count.selectors):
        values |= (words[:, bit // 64] >> np.uint64(bit % 64) & np.uint64(1)).astype(np.int64) << index
    return values
