"""Answers as tables and Markdown: how a column's declaration affects them."""

import csv
import math
import re

import pytest
from markdown_it import MarkdownIt

from gpt.screen.answers import COLUMNS, MARKDOWN_SIZE, AnswerReport, AnswerTable
from gpt.screen.units import human
from gpt.stream import packed, records


def answer(columns, rows, name="things", top=None, verdict=()):
    """Return columns from (name, type, other keys)."""
    packer = packed.Packer({"name": n, "type": type_, "offset": 0, **more} for n, type_, more in columns)
    for row in rows:
        packer.add(row)
    return records.make("answer", name=name, **packer.keys(), top=top, verdict=list(verdict))


def table(made, width=80):
    return [line.plain for line in AnswerTable(made).lines(width)]


def test_units_say_how_numbers_are_shown():
    columns = [("what", "text", {})]
    columns += [(unit or "count", "f64?", {"unit": unit}) for unit in ("ns", "bytes", "%", "id", "furlong")]
    columns += [("count", "u64?", {})]
    made = answer(columns, [("a", 1500.0, 2048.0, 12.34, 7.0, 0.5, 12345), ("b", math.inf, *[None] * 5)])
    assert [line.split() for line in table(made)] == [
        ["what", "ns", "bytes", "%", "id", "furlong", "count"],
        ["a", "1.50us", "2", "KiB", "12.3", "%", "7.0", "0.5", "12,345"],
        ["b", "inf", *["-"] * 5],
    ]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"), (939, "939 B"), (1009, "1,009 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1500, "1.46 KiB"),
        (1010 << 20, "1,010 MiB"), (1023 << 10, "1,023 KiB"), ((1 << 20) - 1, "1 MiB"), (-1009, "-1,009 B"),
    ],
)  # fmt: skip
def test_sizes_change_to_the_next_unit_at_1024(size, shown):
    assert human(size) == shown


def test_columns_have_visibility_and_header():
    columns = [
        ("kind", "text", {"title": "kind, name"}), ("name", "text?", {"shown": "under"}),
        ("hidden", "u8", {"shown": "never"}), ("zero", "u8?", {"shown": "any"}), ("some", "u8?", {"shown": "any"}),
    ]  # fmt: skip
    made = answer(columns, [("memory", None, 1, 0, 3), ("memory", "alloc", 1, None, None)], verdict=["so it is"])
    assert table(made) == ["kind, name  some", "memory         3", "  alloc        -", "so it is"]
    assert list(AnswerTable(made).markdown())[2:] == ["| **memory** | 3 |", "| `alloc` | - |", "", "so it is"]


def test_rows_that_are_not_shown_are_counted_without_sums():
    columns = [("kind", "text", {}), ("name", "text?", {"shown": "under"}), ("time", "u8", {"unit": "ns"})]
    columns += [("calls", "u64?", {})]
    rows = [("a", None, 1, 5), ("a", "x", 1, 5), ("b", None, 1, 30), ("b", "y", 1, 10), ("b", "z", 1, None)]
    assert table(answer([*columns], rows, top=2))[-1] == "and 3 more things: 10 calls"
    assert table(answer(columns[:3], rows=[row[:3] for row in rows], top=4))[-1] == "and 1 more row"
    floats = [("a", math.inf), ("b", math.nan), ("c", -math.inf)]
    assert table(answer([columns[0], ("x", "f32", {})], floats, top=1))[-1] == "and 2 more things"
    titled = [columns[0], ("count_a", "u64", {"title": "calls A"})]
    assert table(answer(titled, [("a", 1), ("b", 2), ("c", 3)], top=1))[-1] == "and 2 more things: 5 calls A"
    pair = [*titled, ("count_b", "u64?", {"title": "calls B"}), ("other", "u64", {})]
    both = [("a", 1, 9, 7), ("b", 2, 4, 7), ("c", 3, None, 7)]
    assert table(answer(pair, both, top=1))[-1] == "and 2 more things: 5 calls A, 4 calls B"


def test_rows_of_a_picture_alone_have_no_table():
    made = answer([("kind", "text", {}), ("n", "u64", {})], [("a", 1), ("b", 2)], top=0, verdict=["so it is"])
    told = "things: 2 rows, only in CSV and JSON"
    assert table(made) == [told, "so it is"]
    assert [line for line in AnswerTable(made).markdown() if line] == [told, "so it is"]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_columns_without_room_are_named(width):
    columns = [("what", "text", {}), *((f"number{n}", "u64", {}) for n in range(100))]
    lines = table(answer(columns, [("x" * 100, *range(100))]), width)
    assert max(map(len, lines)) <= width
    assert "no room for number" in " ".join(lines) and f"and {101 - COLUMNS} more columns" in " ".join(lines)


def test_answers_without_text_rows_or_columns_to_show_are_tables():
    assert table(answer([("n", "u8", {})], [])) == ["things: no rows"]
    assert table(answer([("n", "u8", {})], [], verdict=["so it is"])) == ["so it is"]  # no titles without rows
    assert table(answer([("n", "u8", {"shown": "never"})], [(5,)])) == ["n", "5"]
    assert table(answer([("t", "text", {"shown": "under"})], [("a",)])) == ["t", "a"]


def test_markdown_means_what_it_shows_and_is_short():
    evil = "a|b`c\n<b>\x1b[1m" + "漢" * 120
    report = AnswerReport("md")
    for number in range(40):
        columns = [(f"*{evil}", "text", {}), ("n", "u8", {})]
        made = answer(columns, [(evil, 1)] * 12, name=f"{number}_{evil}"[:50], verdict=[evil[:40]])
        assert report.add(made) is None
    text = report.text()
    assert len(text.encode()) <= MARKDOWN_SIZE and text.replace("\n", "").isprintable()
    assert "<b>" not in text.replace("`a\\|b'c\\n<b>", "") and text.endswith("\n*There is more than fits.*\n")


FORMULAS = [
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    " =1",
    '"=1',
    "'=1",
    "\t=1",
    "\r=1",
    "\n=1",
    "\u200b=1",
    "\uff1d1",
    "\uff20x",
    "a;=1",
]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_text_in_csv_is_a_formula(text):
    report = AnswerReport("csv")
    columns = [(text, "text", {}), ("n", "i64", {}), ("x", "f64", {})]
    assert report.add(answer(columns, [(text, -5, -0.5)]) | {"incomplete": [text]}) is None
    names, row, _, what, line = csv.reader(report.text().splitlines())
    assert names[1:] == ["n", "x"] and row[1:] == ["-5", "-0.5"] and what == ["incomplete"]
    for cell in (names[0], row[0], *line):
        assert all(part.lstrip(' "')[0] not in "=+-@\t\r\n\u200b\uff1d\uff20" for part in cell.split(";"))


@pytest.mark.parametrize("text", ["_Z3onePf", "operator-(int)", "a = b", "'quoted'", "2;3", "-".join("ab"), "#1", ""])
def test_other_texts_in_csv_stay_as_they_are(text):
    report = AnswerReport("csv")
    assert report.add(answer([("name", "text", {}), ("n", "u8", {})], [(text, 1)])) is None
    assert list(csv.reader(report.text().splitlines()))[1] == [text, "1"]


@pytest.mark.parametrize("name", [r"a\|<img src=x>", r"\\|<b>x", "|`<i>`|", r"x\\\|<!--", "](http://a)[", "<script>"])
def test_no_name_leaves_its_cell_in_markdown(name):
    report = AnswerReport("md")
    columns = [("name", "text", {}), ("under", "text?", {"shown": "under"}), ("n", "u8", {})]
    assert report.add(answer(columns, [(name, None, 1), ("x", name, 1)], name=name, verdict=[name])) is None
    github = re.compile(r"(?:\\[!-/:-@\[-`{-~]|[^|\n])+")  # a cell, as cmark-gfm parses it
    for line in report.text().splitlines():
        if line.startswith("| "):
            assert len(github.findall(line.strip("| "))) == 2, line
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(report.text())
    tags = set(re.findall(r"<[a-z0-9/!]+", html))
    assert tags <= {
        f"<{end}{tag}"
        for tag in ("h2", "table", "thead", "tbody", "tr", "th", "td", "code", "strong", "p")
        for end in ("", "/")
    }


def test_markdown_is_cut_between_lines():
    report = AnswerReport("md")
    for number in range(300):
        columns = [("name", "text", {}), ("n", "u8", {})]
        assert (
            report.add(answer(columns, [(f"{'x' * (number % 7)}<img src=x>{'y' * 60}", 1)], name=f"a{number}")) is None
        )
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(report.text())
    assert len(report.text()) <= MARKDOWN_SIZE and "<img" not in html and "There is more than fits" in html


@pytest.mark.parametrize("form", ["md", "csv"])
def test_malformed_answer_does_not_drop_others(form):
    report, bad = AnswerReport(form), answer([("t", "text", {})], [("x",)] * 3, name="bad")
    assert report.add(answer([("t", "text", {})], [("y",)], name="good")) is None
    assert report.add(bad | {"rows": bad["rows"][:8] + b"\7\0\0\0"}) == "answer: column 't' has text 7 of 1"
    assert "y" in report.text() and "x" not in report.text()


def test_numbers_below_zero_have_units_too():
    columns = [(unit, "i64", {"unit": unit}) for unit in ("ns", "bytes")]
    assert [line.split() for line in table(answer(columns, [(-3_140_000, -2048)]))][1] == ["-3.14ms", "-2", "KiB"]


def test_a_report_has_the_last_answer_of_each_name_and_names_what_is_wrong():
    report = AnswerReport("csv")
    for value in (1, 2):
        assert report.add(answer([("n", "u8", {})], [(value,)])) is None
    assert report.add({"kind": "library"}) is None
    assert report.add({"kind": "answer", "name": "x"}) == "answer without columns"
    assert report.text() == "n\n2\n"


WIDE = [("kernel", "text", {}), ("pid", "u64", {"unit": "id"}), ("thread", "u64", {"unit": "id"}),
        *((f"number{n}", "u64", {}) for n in range(6)), ("longest gap", "u64", {"unit": "ns"})]  # fmt: skip


def test_columns_that_are_equal_in_all_rows_fold_where_others_would_be_left_out():
    rows = [("a", 77, 78, 1, 2, 3, 4, 5, at, 7000 * at) for at in range(3)]
    folded, head, *lines = table(answer(WIDE, rows))  # ids are folded first: then the others fit
    assert folded == "all rows: pid 77, thread 78" and len(lines) == 3
    assert head.split() == ["kernel", *(f"number{n}" for n in range(6)), "longest", "gap"]
    folded, _, *lines = table(answer(WIDE, rows), 60)
    assert folded == "all rows: pid 77, thread 78, number0 1, number1 2, number2" and len(lines) == 4
    assert lines[0].split() == ["kernel", "number5", "longest", "gap"]
    wide = table(answer(WIDE, rows), 120)
    assert wide[0].split()[:3] == ["kernel", "pid", "thread"] and "all rows" not in wide[0]


def test_columns_without_values_fold_without_a_word():
    columns = [("kernel", "text", {}), *((f"number{n}", "u64?", {}) for n in range(12))]
    rows = [(name, None, *([None] * 10), 5 + at) for at, name in enumerate("ab")]
    assert table(answer(columns, rows)) == ["kernel  number11", "a              5", "b              6"]


def test_ids_fold_where_a_text_would_be_cut():
    columns = [("gap", "text", {}), *WIDE[1:6], ("call", "text", {})]
    rows = [("from launch to launch", 12345, 12345, at, at, at, "cuStreamSynchronize, mostly") for at in (1, 2)]
    folded, head, first, _ = table(answer(columns, rows), 78)
    assert folded == "all rows: pid 12345, thread 12345" and head.split()[:2] == ["gap", "call"]
    assert "from launch to launch" in first and "cuStreamSynchronize, mostly" in first


def test_titles_take_two_lines_if_all_columns_fit_then():
    columns = [("kernel", "text", {}), *((f"resident warps {n}", "u64", {}) for n in range(6))]
    top, bottom, row, _ = table(answer(columns, [("a", *range(6)), ("b", *range(1, 7))]))
    assert top.split() == ["resident"] * 5 and bottom.split()[:4] == ["kernel", "resident", "warps", "0"]
    assert row.split() == ["a", *map(str, range(6))]


def test_single_row_is_printed_vertically_if_columns_do_not_fit():
    columns = [("kernel", "text", {}), *((f"quantity {n}", "u64", {"unit": "ns"}) for n in range(9))]
    *_, line = table(answer(columns, [("a", *range(1000, 1009))]), 60)
    assert line.endswith("quantity 8 1.01us") and "no room" not in line
