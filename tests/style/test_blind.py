"""The blind test: its paragraphs come from both sides, without their sources."""

import shutil

from tests.style import blind, sample


def test_key_names_the_source_of_each_paragraph(tmp_path, capsys, monkeypatch):
    """A part of the tree has paragraphs of each kind, and a few manual pages and modules of Python are enough."""
    for name in ("README.md", "CHANGELOG.md"):
        (copy := tmp_path / "tree" / name).parent.mkdir(exist_ok=True)
        shutil.copy(blind.ROOT / name, copy)
    for name in ("docs", "man/man5", "gpt/base", "tests/style", "runtime/common"):
        shutil.copytree(blind.ROOT / name, tmp_path / "tree" / name)
    monkeypatch.setattr(blind, "ROOT", tmp_path / "tree")
    monkeypatch.setattr(blind, "MANUALS", blind.MANUALS[:2])
    monkeypatch.setattr(blind, "MODULES", ("asyncio",))
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


def test_sample_finds_comments_and_messages_with_their_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(blind, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text('x = 1  # one\ny = 2\n# two\n# lines\nz = "text"\n')
    (tmp_path / "a.c").write_text('int x; // one\n// two\n// lines\nf("text");\n')
    found = [*sample.in_python([tmp_path / "a.py"], sample.tokenize.COMMENT)]
    assert [one for one in found if one[1]] == [("a.py:1", "# one"), ("a.py:3", "# two\n# lines")]
    assert [*sample.in_python([tmp_path / "a.py"], sample.tokenize.STRING)][-1] == ("a.py:5", '"text"')
    assert [*sample.in_c([tmp_path / "a.c"], sample.C_COMMENT)] == [("a.c:1", "// one"), ("a.c:2", "// two\n// lines")]
    assert [*sample.in_c([tmp_path / "a.c"], sample.C_MESSAGE)] == [("a.c:4", '"text"')]


def test_sample_is_the_same_for_the_same_seed(capsys, monkeypatch):
    pool = {
        kind: [(f"{kind}:{n}", f"{kind} paragraph number {n} of {kind}s here") for n in range(40)]
        for kind in sample.SHARES
    }
    monkeypatch.setattr(sample, "read_all", lambda: pool)
    outputs = []
    for seed in ("1", "1", "2"):
        sample.main(["--seed", seed, "--count", "20"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1] != outputs[2]
    assert outputs[0].count("\n\n") == 20 and outputs[0].count("[manual:") == 6
