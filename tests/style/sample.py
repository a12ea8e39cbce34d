"""Print random paragraphs of our prose, with their places, for a reviewer to judge.

    python -m tests.style.sample [--seed N] [--count N]

A sample has manual pages, documents, docstrings, comments and messages in fixed shares. Rewrite what a native engineer
wouldn't write, search for the same construction elsewhere, and draw again with another seed.
"""

from __future__ import annotations

import argparse
import io
import random
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.style import blind

SHARES = {"manual": 30, "document": 10, "docstring": 25, "comment": 20, "message": 15}
C_COMMENT = re.compile(r"(?:^[ \t]*//.*\n)+|//.*\n", re.MULTILINE)
C_MESSAGE = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*')


def in_c(paths: Iterable[Path], pattern: re.Pattern[str]) -> Iterator[blind.Paragraph]:
    """Yield what a pattern finds in C files."""
    for path in paths:
        text = path.read_text(errors="replace")
        for found in pattern.finditer(text):
            yield f"{path.relative_to(blind.ROOT)}:{text.count(chr(10), 0, found.start()) + 1}", found[0].rstrip()


def in_python(paths: Iterable[Path], kind: int) -> Iterator[blind.Paragraph]:
    """Yield the comments or one-line strings of Python files; comments on adjacent lines are one paragraph."""
    for path in paths:
        text, last, first = "", -1, 0
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type != kind or token.string.endswith('"""'):
                continue
            if token.start[0] != last + 1:
                yield f"{path.relative_to(blind.ROOT)}:{first}", text
                text, first = "", token.start[0]
            text, last = f"{text}\n{token.string}".lstrip(), token.end[0]
        yield f"{path.relative_to(blind.ROOT)}:{first}", text


def read_all() -> dict[str, list[blind.Paragraph]]:
    """Return all our paragraphs for a review, by kind."""
    python = sorted((blind.ROOT / "gpt").rglob("*.py"))
    code = [path for suffix in ("c", "h") for path in sorted((blind.ROOT / "runtime").rglob(f"*.{suffix}"))]
    messages = [*in_c(code, C_MESSAGE), *in_python(python, tokenize.STRING)]
    return {
        **blind.read_ours(),
        "docstring": list(blind.in_docstrings(python)),
        "comment": [*in_c(code, C_COMMENT), *in_python(python, tokenize.COMMENT)],
        "message": [message for message in messages if len(re.findall(r"\b[a-z]{2,} ", message[1])) >= 5],
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="draw other paragraphs (default: 0)")
    parser.add_argument("--count", type=int, default=100, help="paragraphs (default: 100)")
    given = parser.parse_args(argv)
    chance, pools = random.Random(given.seed), read_all()
    for kind, share in SHARES.items():
        pool = [found for found in pools[kind] if len(found[1].split()) >= 6]
        for source, text in chance.sample(pool, min(len(pool), round(given.count * share / 100))):
            print(f"[{source}]\n{text}\n")


if __name__ == "__main__":
    main()
