"""The blind test: its paragraphs come from both sides, without their sources."""

from tests.style import blind


def test_key_names_the_source_of_each_paragraph(tmp_path, capsys):
    path = tmp_path / "test"
    blind.main([str(path), "--count", "20", "--seed", "7"])
    texts = path.read_text()
    keys = [line.split() for line in (tmp_path / "test.key").read_text().splitlines()]
    assert [number for number, *_ in keys] == [str(number) for number in range(1, len(keys) + 1)]
    assert texts.count("\n[") + 1 >= len(keys)
    assert {whose for _, whose, _ in keys} == {"ours", "other"}
    assert sum(whose == "ours" for _, whose, _ in keys) in range(19, 22)
    assert "of ours" in capsys.readouterr().out


def test_paragraphs_are_those_of_docstrings_and_comments(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('"""One.\n\nTwo.\n"""\n# Three,\n# and more.\nx = 1  # four\n')
    assert list(blind.in_docstrings([path])) == [("a.py", "One."), ("a.py", "Two.")]
    assert list(blind.in_comments([path])) == [("a.py", "# Three,\n# and more.")]
