"""Answers as tables and Markdown: what a column's declaration means for those who read it."""

import math

import pytest

from gpt import packed, records
from gpt.screen.answers import COLUMNS, MARKDOWN_SIZE, AnswerReport, AnswerTable


def answer(columns, rows, name="things", top=None, verdict=()):
    """Columns as (name, type, other keys)."""
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


def test_columns_say_whether_they_are_shown_and_what_stands_above_them():
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
    assert table(answer(columns[:3], rows=[row[:3] for row in rows], top=4))[-1] == "and 1 more things"
    floats = [("a", math.inf), ("b", math.nan), ("c", -math.inf)]
    assert table(answer([columns[0], ("x", "f32", {})], floats, top=1))[-1] == "and 2 more things"
    titled = [columns[0], ("count_a", "u64", {"title": "calls A"})]
    assert table(answer(titled, [("a", 1), ("b", 2), ("c", 3)], top=1))[-1] == "and 2 more things: 5 calls A"


def test_rows_of_a_picture_alone_have_no_table():
    made = answer([("kind", "text", {}), ("n", "u64", {})], [("a", 1), ("b", 2)], top=0, verdict=["so it is"])
    told = "things: 2 rows, which only CSV and JSON have"
    assert table(made) == [told, "so it is"]
    assert [line for line in AnswerTable(made).markdown() if line] == [told, "so it is"]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_numbers_for_which_there_is_no_room_are_named(width):
    columns = [("what", "text", {}), *((f"number{n}", "u64", {}) for n in range(100))]
    lines = table(answer(columns, [("x" * 100, *range(100))]), width)
    assert max(map(len, lines)) <= width
    assert "no room for number" in " ".join(lines) and f"and {101 - COLUMNS} more columns" in " ".join(lines)


def test_answers_without_text_rows_or_columns_to_show_are_tables():
    assert table(answer([("n", "u8", {})], [])) == ["n"]
    assert table(answer([("n", "u8", {"shown": "never"})], [(5,)])) == ["n", "5"]
    assert table(answer([("t", "text", {"shown": "under"})], [("a",)])) == ["t", "a"]


def test_markdown_means_what_it_shows_and_is_short():
    evil = "a|b`c\n<b>\x1b[1m" + "漢" * 500
    report = AnswerReport("md")
    for number in range(40):
        columns = [(f"*{evil}", "text", {}), ("n", "u8", {})]
        made = answer(columns, [(evil, 1)] * 50, name=f"{number}_{evil}"[:50], verdict=[evil[:40]])
        assert report.add(made) is None
    text = report.text()
    assert len(text.encode()) <= MARKDOWN_SIZE and text.replace("\n", "").isprintable()
    assert "<b>" not in text.replace("`a\\|b'c\\n<b>", "") and text.endswith("\n*There is more than fits.*\n")


@pytest.mark.parametrize("form", ["md", "csv"])
def test_a_report_loses_no_other_answer_for_one_that_is_malformed(form):
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
