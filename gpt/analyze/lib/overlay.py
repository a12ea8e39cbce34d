"""Split pieces of time at the edges of other intervals, for any number of both.

A *piece* is an interval of a thread's time, for instance part of a GPU's idle time. A *layer* says what the threads did
at any time. Its rows, such as the calls of each thread or its innermost ranges, don't overlap within a thread.
`overlay` cuts each piece at the edges of these rows, and records for each part which row it's in.

Pieces and rows are read side by side, once, and neither are kept in memory. If a piece extends beyond the rows that
have been read, it's cut there, and the rest is handled once more rows arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.sequence import Groups
from gpt.trace.rows import take
from gpt.trace.spill import Array, iter_windows, join, sort
from gpt.trace.unrecorded import Unrecorded

Whole = npt.NDArray[np.int64]
Places = npt.NDArray[np.intp]

NOTHING = -1  # a part that isn't in any row of the layer
# A piece can consist of several rows with the same `number`; the first of them has `first` set. `call` is only passed
# on. `what` and `since` describe the row of the layer that the piece is in, and when that row began. In a `first`
# piece, `before` and `before_since` do the same for the last row that began before the piece, if it extends to the
# piece or ended at most NEAR before it.
PIECE = [("begin", "<i8"), ("end", "<i8"), ("thread", "<u8"), ("number", "<i8"), ("call", "<i8"), ("first", "?"),
         ("what", "<i8"), ("since", "<i8"), ("before", "<i8"), ("before_since", "<i8"), ("note", "<f8"),
         ("range", "<i8")]  # fmt: skip
LAYER = [("begin", "<i8"), ("end", "<i8"), ("thread", "<u8"), ("what", "<i8"), ("note", "<f8")]
NEAR = 20_000  # largest expected difference between a clock of the GPU and one of the host, in ns


class Split(NamedTuple):
    """The result of `split`: the parts of pieces inside and outside of rows. `inside` and `outside`
    have the index of each part's piece, `rows` the index of its row.
    """

    inside: Places
    rows: Places
    inside_begin: Whole
    inside_end: Whole
    outside: Places
    outside_begin: Whole
    outside_end: Whole


def split(begins: Whole, ends: Whole, layer_begins: Whole, layer_ends: Whole) -> Split:
    """Split pieces, which may be in any order, at the edges of rows, which are sorted and don't overlap."""
    low = np.searchsorted(layer_ends, begins, "right")
    count = np.maximum(np.searchsorted(layer_begins, ends, "left") - low, 0)
    first = np.cumsum(count) - count
    piece = np.repeat(np.arange(len(begins)), count)
    rows = np.arange(len(piece)) - np.repeat(first, count) + np.repeat(low, count)
    begin, end = np.maximum(begins[piece], layer_begins[rows]), np.minimum(ends[piece], layer_ends[rows])
    starts, stops = np.empty(len(begins) + len(piece), np.int64), np.empty(len(begins) + len(piece), np.int64)
    at, edge = np.arange(len(piece)) + piece, np.arange(len(begins)) + first
    starts[edge], stops[edge + count] = begins, ends
    stops[at], starts[at + 1] = begin, end
    owner = np.repeat(np.arange(len(begins)), count + 1)
    good, left = end > begin, stops > starts
    return Split(piece[good], rows[good], begin[good], end[good], owner[left], starts[left], stops[left])


def cut_out(pieces: Array, unrecorded: Unrecorded) -> Array:
    """Remove the times that weren't recorded from pieces. The first part that remains of a piece is its `first`."""
    if not len(unrecorded) or not len(pieces):
        return pieces
    parts = split(pieces["begin"], pieces["end"], unrecorded.begins, unrecorded.ends)
    found = take(pieces, parts.outside)
    found["begin"], found["end"] = parts.outside_begin, parts.outside_end
    found["first"] &= np.append(True, np.diff(parts.outside) != 0)[: len(found)]
    return sort(found, "begin")


def iter_alone(layer: Iterator[Array]) -> Iterator[Array]:
    """Remove the rows of a layer that overlap earlier rows of their thread: calls within other calls."""
    groups, reached = Groups(), dict[int, int]()
    for rows in layer:
        alone = np.ones(len(rows), bool)
        for thread, mine in groups.iter(rows["thread"]):
            begin, end = rows["begin"][mine], rows["end"][mine]
            before = reached.get(thread, int(begin[0]))
            reach = np.maximum.accumulate(np.append(before, end))
            alone[mine] = begin >= reach[:-1]
            reached[thread] = int(reach[-1])
        yield rows if alone.all() else rows[alone]


def overlay(pieces: Iterator[Array], layer: Iterator[Array], field: str) -> Iterator[Array]:
    """Cut pieces at the edges of a layer's rows. The `field` of each part is set to the row's value; outside of rows it
    stays as it is.

    If the field is `what`, `since` is set to the begin of that row, and `before`, `before_since` and `note` are filled
    in as well. Pieces and rows must be sorted by begin, and a chunk of them must contain all with the same begin. The
    result is sorted in the same way.
    """
    rest, open_ = np.zeros(0, PIECE), np.zeros(0, LAYER)
    places, groups = Groups(), Groups()
    for own, rows in iter_windows((pieces, PIECE, "begin"), (layer, LAYER, "begin")):
        # The layer has been read completely up to this time.
        bound = 1 + max(int(part["begin"][-1]) for part in (own, rows) if len(part))
        rows = join([open_, rows]) if len(open_) else rows
        own = join([rest, own]) if len(rest) else own.copy()
        ends = own["end"]
        rest = own[ends > bound]
        rest["begin"], rest["first"] = bound, False
        own["end"] = np.minimum(ends, bound)
        mine = dict(groups.iter(rows["thread"]))
        if len(own):
            yield _lay(own, rows, mine, places, field)
        open_ = rows[np.sort([at[-1] for at in mine.values()])] if mine else rows[:0]
    if len(rest):
        yield _lay(rest, open_, dict(groups.iter(open_["thread"])), places, field)


def _lay(pieces: Array, rows: Array, known: dict[int, Places], places: Groups, field: str) -> Array:
    """Cut pieces at the edges of rows, all of which must have been read."""
    found = []
    for thread, at in places.iter(pieces["thread"]):
        own = take(pieces, at)
        if thread not in known:
            found.append(own)
            continue
        layer = take(rows, known[thread])
        parts = split(own["begin"], own["end"], layer["begin"], layer["end"])
        if field == "what":
            _note_before(own, layer)
        of, count = np.concatenate((parts.inside, parts.outside)), len(parts.inside)
        both = take(own, of)
        both["begin"] = np.concatenate((parts.inside_begin, parts.outside_begin))
        both["end"] = np.concatenate((parts.inside_end, parts.outside_end))
        both["first"] &= both["begin"] == own["begin"][of]
        both[field][:count] = layer["what"][parts.rows]
        if field == "what":
            both["since"][:count] = layer["begin"][parts.rows]
        found.append(both)
    return sort(join(found), "begin")


def _note_before(pieces: Array, layer: Array) -> None:
    """For each `first` piece, store the row that covers its beginning or ended right before it, and that row's note."""
    at = np.searchsorted(layer["begin"], pieces["begin"], "left") - 1
    good = pieces["first"] & (at >= 0)
    good[good] = layer["end"][at[good]] + NEAR >= pieces["begin"][good]
    at = at[good]
    pieces["before"][good], pieces["before_since"][good] = layer["what"][at], layer["begin"][at]
    pieces["note"][good] = layer["note"][at]
