"""Give results in straight code registers of their own. ptxas uses few registers, so it soon reuses each of them."""

from __future__ import annotations

from gpt.sass.tables import Field, Table
from gpt.sass.words import PT, guard_of, with_bits

_OWN = {"R": range(32, 64), "UR": range(16), "P": range(5)}  # what a result may get, if the snippet doesn't use it yet


class Renamer:
    """Renames registers in words. `fields` are the registers that each word names."""

    def __init__(self, words: list[int], table: Table) -> None:
        self.words = list(words)
        self._table = table
        self.fields = [list(table.fields(word)) for word in words]
        self._used = {(field.operand.file, field.number) for some in self.fields for field in some}
        if any(file == "PR" for file, _ in self._used):  # P2R and R2P name predicates in a mask, which can't be renamed
            self._used |= {("P", number) for number in _OWN["P"]}

    def rename(self, index: int, field: Field, end: int, *, needed: bool = False) -> bool:
        """Give the result that a word writes in a field another register, and return whether that's possible. Words up
        to `end` run one after the other; no other word reads the result, unless it's `needed` there.
        """
        file, word = field.operand.file, self.words[index]
        own = next((number for number in _OWN[file] if (file, number) not in self._used), None)
        if own is None or not self._is_written(index, field) or not guard_of(word).always:
            return False
        uses = self._find_uses(index, field, end, needed=needed)
        if uses is None:
            return False
        self._used.add((file, own))
        for at, low in [(index, field.low), *uses]:
            self.words[at] = with_bits(self.words[at], low, field.none.bit_length(), own ^ field.turn)
            self.fields[at] = list(self._table.fields(self.words[at]))
        return True

    def _is_written(self, index: int, field: Field) -> bool:
        """Return whether a field names a single register that the word writes and doesn't read."""
        word, operand = self.words[index], field.operand
        single = field.width == 1 and field.number != field.none
        return single and operand.writes.of(word) > 0 and operand.reads.of(word) <= 0

    def _find_uses(self, index: int, written: Field, end: int, *, needed: bool) -> list[tuple[int, int]] | None:
        """Return where a result is read, each as a word and a bit. Return None if it can't have another register: a
        word names it as part of a pair, or changes it in some lanes only, or it's needed at the end.
        """
        found, file, number = [], written.operand.file, written.number
        for at in range(index + 1, end):
            some = [
                field
                for field in self.fields[at]
                if field.operand.file == file and field.number != field.none
                if field.number <= number < field.number + max(1, field.width)
            ]
            if any(field.width != 1 for field in some):
                return None
            writes = [field for field in some if field.operand.writes.of(self.words[at]) > 0]
            found += [(at, field.low) for field in some if field not in writes]
            if writes:
                again = self.words[at] >> 12 & 15 == PT and all(self._is_written(at, field) for field in writes)
                return found if again else None
        return None if needed else found
