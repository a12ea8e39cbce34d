"""The checker of our English: the sentences that it finds, and that its limits only go down."""

import pytest

from tests.style import english

LEFT = "Returns what is left."


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.md", LEFT, True),
        ("a.md", "Of a kernel, the name.", True),
        ("a.py", 'def f():\n    """Return two names.\n\n    Of a kernel, the mangled one.\n    """\n', True),
        ("a.c", "    // Of this name, nothing is known.\n", True),
        ("a.md", "The way back leads elsewhere.", True),
        ("a.md", "This way, it goes back and reads them again.", False),
        ("a.c", "// It was read in vain.\n", True),
        ("a.md", "What is it for?", False),
        ("a.md", "```\nwhat is left\n```\nThe rest follows.", False),
        ("a.md", "The rest of the file follows.", False),
        ("a.py", 'def f():\n    """Whether it ends."""\n', True),
        ("a.py", 'def f():\n    """Return whether it ends."""\n    those_of = 1\n', False),
        ("a.c", "int that_of; // those of others\n", True),
        ("a.c", "/* A comment\n   that is said */\n", True),
        ("a.c", "int shall;\n", False),
        ("a.c", "// Whether it ends.\n", True),
        ("a.c", "// Return whether it ends.\n", False),
        ("a.c", "int size; // of the image\n", True),
        ("a.c", "// The size\n// of the image\n", False),
        ("a.c", "int threads; // that have started\n", True),
        ("a.md", "They ran in turns.", True),
        ("a.md", "It has kernels and all else.", True),
        ("a.py", "LIMIT = 1  # as CUDA has it\n", True),
        ("a.py", 'def f():\n    """As on hardware, it ends."""\n', True),
        ("a.py", "rows = []  # of launches\n", True),
        ("a.py", "rows = []  # one per launch\n", False),
        ("a.md", "The file is " + "beside the trace.", True),
        ("a.md", "`gpt-analyze exposed_latency --beside FILE` draws them.", False),
        ("a.py", 'fail("it is ' + 'no number")\n', True),
        ("a.md", "There is no kernel in it.", False),
        ("a.c", "// It takes 2 % in the " + "mean.\n", True),
        ("a.png", "what is left", False),
        ("gpt-tool", f"#!/bin/sh\n# {LEFT}\n", True),
        ("a.sh", f"# {LEFT}\n", True),
        ("a.html", f"<script>\n/** {LEFT} */\n</script>\n", True),
    ],
)
def test_patterns_are_found(tmp_path, name, text, found):
    (tmp_path / name).write_text(text)
    assert bool([*english.iter_findings(tmp_path)]) == found


@pytest.mark.parametrize(
    "path",
    ["bin/gpt-debloat", "tests/test_arch.py", "gpt/timeline/page.html", "pyproject.toml", "tests/e2e/105-negativa.sh"],
)
def test_it_counts_in_files_of_all_kinds(tmp_path, monkeypatch, path):
    monkeypatch.setattr(english, "ROOT", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(f"# {LEFT}\n")
    assert sum(english.count().values()) == 1


def test_limits_only_go_down(tmp_path, monkeypatch, capsys):
    counts = {"a": 3, "b": 1}
    monkeypatch.setattr(english, "LIMITS", tmp_path / "limits.toml")
    monkeypatch.setattr(english, "count", lambda: counts)
    assert english.main(["--lower"]) == 0 and english.main([]) == 0
    counts["a"] = 2
    assert english.main([]) == 1 and "a: 2 sentences left, 3 allowed" in capsys.readouterr().err
    assert english.main(["--lower"]) == 0 and english.main([]) == 0
    counts |= {"a": 4, "c": 1}
    assert english.main(["--lower"]) == 0 and english.main([]) == 1
    told = capsys.readouterr().err
    assert "a: 4 sentences that read as translated, 2 allowed" in told and "c: 1 sentences" in told
