"""Make a blind test of our English: paragraphs of ours, shuffled with others that native writers published.

    python -m tests.style.blind [--seed N] [--count N] PATH

It writes the paragraphs to PATH, without their sources, and the sources to PATH.key. Give only the first file to a
reader who knows neither project, ask which paragraphs read well, which read poorly and which are in between, and count
the answers with the key: 'ours' should do no worse than 'other'.

The other paragraphs come from installed manual pages and from Python's own library.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import subprocess
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
MANUALS = ("bash", "dpkg", "gawk", "gcov", "gdb", "jq", "ld", "make", "objdump", "perf-record", "perf-report", "strace")
SHORTEST = {"manual": 18, "document": 15, "docstring": 12, "comment": 15}  # in words
MODULES = (".", "asyncio", "importlib", "multiprocessing")  # folders of Python's library
OURS = {"manual": 6, "document": 3, "docstring": 8, "comment": 3}  # shares of a sample
OTHERS = {"manual": 8, "docstring": 8, "comment": 4}
COMMENT = {
    ".py": re.compile(r"(?:^[ \t]*#.*\n){2,}", re.MULTILINE),
    ".c": re.compile(r"(?:^[ \t]*//.*\n){2,}", re.MULTILINE),
}

Paragraph = tuple[str, str]  # its source, and its text


def split(text: str) -> list[str]:
    """Return the paragraphs of a text."""
    return [part.strip("\n") for part in re.split(r"\n\s*\n", text) if part.strip()]


def in_manuals(commands: Iterable[tuple[str, list[str]]]) -> Iterator[Paragraph]:
    """Yield the paragraphs of manual pages, each given by a name and a command that prints it."""
    for name, command in commands:
        done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "MANWIDTH": "100"})
        yield from ((name, part) for part in split(re.sub(".\x08", "", done.stdout)))


def in_documents(paths: Iterable[Path]) -> Iterator[Paragraph]:
    """Yield the paragraphs of Markdown files, without tables, code and headings."""
    for path in paths:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        yield from ((path.name, part) for part in split(text) if not part.startswith(("|", "#", "    ")))


def in_docstrings(paths: Iterable[Path]) -> Iterator[Paragraph]:
    """Yield the paragraphs of the docstrings in Python files."""
    for path in paths:
        try:
            with tokenize.open(path) as file:
                tree = ast.parse(file.read())
        except (SyntaxError, UnicodeDecodeError):  # Python's library has files with deliberate mistakes
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from ((path.name, part) for part in split(ast.get_docstring(node) or ""))


def in_comments(paths: Iterable[Path]) -> Iterator[Paragraph]:
    """Yield the comments of at least two lines in Python and C files."""
    for path in paths:
        pattern = COMMENT[".py" if path.suffix == ".py" else ".c"]
        yield from ((path.name, found[0].strip("\n")) for found in pattern.finditer(path.read_text(errors="replace")))


def read_ours() -> dict[str, list[Paragraph]]:
    """Return all our paragraphs, by kind."""
    pages = sorted((ROOT / "man").glob("man*/*"))
    code = [path for name in ("*.c", "*.h") for path in sorted((ROOT / "runtime").rglob(name))]
    return {
        "manual": list(
            in_manuals((path.name, ["mandoc", "-T", "utf8", "-O", "width=100", str(path)]) for path in pages)
        ),
        "document": list(
            in_documents([ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))])
        ),
        "docstring": list(in_docstrings(sorted((ROOT / "gpt").rglob("*.py")) + sorted((ROOT / "tests").rglob("*.py")))),
        "comment": list(in_comments(code)),
    }


def read_others() -> dict[str, list[Paragraph]]:
    """Return the paragraphs of other projects, by kind. A manual page that isn't installed adds nothing."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [path for folder in MODULES for path in sorted((library / folder).glob("*.py"))]
    return {
        "manual": list(in_manuals((name, ["man", "-P", "cat", name]) for name in MANUALS)),
        "docstring": list(in_docstrings(files)),
        "comment": list(in_comments(files)),
    }


def draw(
    pool: dict[str, list[Paragraph]], shares: dict[str, int], count: int, chance: random.Random
) -> list[Paragraph]:
    """Draw paragraphs of each kind in proportion to its share, leaving out very short ones."""
    drawn = []
    for kind, share in shares.items():
        long = [paragraph for paragraph in pool[kind] if len(paragraph[1].split()) > SHORTEST[kind]]
        drawn += chance.sample(long, min(len(long), round(count * share / sum(shares.values()))))
    return drawn


def write(path: Path, ours: Sequence[Paragraph], others: Sequence[Paragraph], chance: random.Random) -> None:
    """Write the numbered paragraphs in random order, and the key."""
    every = [("ours", *found) for found in ours] + [("other", *found) for found in others]
    chance.shuffle(every)
    path.write_text("".join(f"[{number}]\n{text}\n\n" for number, (_, _, text) in enumerate(every, 1)))
    lines = (f"{number} {whose} {source}\n" for number, (whose, source, _) in enumerate(every, 1))
    path.with_name(path.name + ".key").write_text("".join(lines))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", metavar="PATH", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="draw other paragraphs (default: 0)")
    parser.add_argument("--count", type=int, default=50, help="paragraphs of ours, and of others (default: 50)")
    given = parser.parse_args(argv)
    chance = random.Random(given.seed)
    ours = draw(read_ours(), OURS, given.count, chance)
    others = draw(read_others(), OTHERS, given.count, chance)
    write(given.path, ours, others, chance)
    print(f"{given.path}: {len(ours)} paragraphs of ours, {len(others)} of others; the key is in {given.path}.key")


if __name__ == "__main__":
    main()
