"""Count the sentences that read as if they had been translated, and let their number only go down.

    python -m tests.style.english [--lower] [PATH ...]

With paths, it lists what it finds there, and exits with 1 if it finds anything. Without, it counts by folder and
compares with limits.toml. More than the limit is an error; so is fewer, until you run it with --lower, which lowers the
limit.

A pattern is a symptom. Rewrite the sentence as you'd say it to a colleague; swapping the word helps nobody.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

import toml

ROOT = Path(__file__).parents[2]
COMMAND = "python -m tests.style.english"
LIMITS = Path(__file__).with_name("limits.toml")
KINDS = {"", ".py", ".c", ".h", ".S", ".md", ".1", ".5", ".7", ".toml", ".html", ".sh"}  # "": a program in bin/
CODE = {".py", ".c", ".h", ".S"}
SKIPPED = {"_runtime", "figures", "__pycache__"}  # built, or measured
FOLDERS = (
    "README.md", "CHANGELOG.md", "pyproject.toml", "bin", "docs", "man", "probes", "gpt/*/", "gpt/*.py", "runtime/*/",
    "tests/*/", "tests/*.py",
)  # fmt: skip
PATTERNS = {
    "that of, those of": r"\b(?:that|those) of\b",
    "those that, the one who": r"\b(?:those|ones|one) (?:that|who|which|whose)\b",
    "'what is' as a noun": r"\b[Ww]hat (?:is|was|are|were|has|had|comes|came|goes|went|could|may)\b(?![^.?!\n]*\?)",
    "so many, so much": r"\b[Ss]o (?:many|much|few)\b(?! that)",
    "'of' at the beginning": (
        r"(?:^(?:\s*(?:#|//|\*))?\s*|[.:;] |\"|')"
        r"Of (?:an?|the|each|what|which|how|such|this|that|these|those|several|two|all)\b"
    ),
    "is said, is told": r"\b(?:is|are|was|be) (?:said|told)\b",
    "whoever, whereof, by whom": r"\b(?:[Ww]hoever|[Ww]hosoever|(?:[Ww]here|[Tt]here|[Hh]ere)of|(?:by|with|of) whom)\b",
    "the same as a noun": r"\b[Tt]he same, (?:of|and|but|with|for|as)\b",
    "a docstring that begins with a question": r"\"\"\"(?:Whether|How|Which|What|Where|Those|Of|Who|Why)\b",
    "a comment that begins with whether": r"^\s*// ?Whether\b",
    "nor with a verb": r"\b[Nn]or (?:is|are|do|does|has|have|can)\b",
    "stands there": r"\bstands? (?:there|below|above|beside|in|on|at)\b",
    "for what, for whom": r"\bfor (?:what|whom|who)\b",
    "gets them too": r"\b(?:gets?|got) (?:it|them|its|their) (?:too|as well|if)\b",
    "is none": r"\b(?:is|are|was|were) none\b",
    "is of": r"\b(?:is|are) of (?:a|an|the|that|this|one|another|its)\b",
    "comes of it": r"\b(?:comes?|came|become|becomes|became) of\b",
    "all else, in turns, at one time": r"\b(?:all else|not all that|(?:in|by) turns|at one time|(?:its|their) like)\b",
    "as something has it": r"(?:# |// |, )as \w+ (?:has|have|had) (?:it|them)\b",
    "a docstring that begins with 'as'": r"\"\"\"As\b",
    "the way back, ways meet": r"\b(?:(?:[Tt]he|[Oo]n (?:its|their)) way back|ways meet)\b",
    "in vain, anew, tells of": r"\b(?:in vain|anew|afresh|(?:tells?|speaks?) of|lives? on)\b",
    "all the same, likewise, shall": r"\b(?:all the same|[Ll]ikewise|shall|put aside|by way of|as far as)\b",
    "beside": (
        r"(?:^|\s)[Bb]eside (?:its?|the|an?|their|them|others?|ours|one|each|that|this|which|those|every|another|of)\b"
    ),
    "is no, for isn't a": (
        r"(?<!here )(?<!t's )\b(?:is|are|was|were) no (?:\.|place|number|fault|kernel|code|library|wheel|trace|record|"
        r"error|stage|module|time|lack|failure|argument|Python|part|word|problem)"
    ),
    "archaic words": (
        r"\b(?:[Tt]hereb[y]|[Ww]herei[n]|[Hh]ithert[o]|[Tt]hereafte[r]|in the mea[n]|by wh[o])\b"
        r"|\b(?:a|each|any|every) further [a-z]"
    ),
}
COMPILED = {name: re.compile(pattern, re.MULTILINE) for name, pattern in PATTERNS.items()}
# A comment behind code whose noun is missing: `rows = []  # of launches`
CLIPPED = re.compile(r"^\s*[^\s#/].*(?:\s#|//) (?:of|whose|whether|that)\b")
C_PROSE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)


def iter_prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of text for people in a file, with their numbers."""
    text = path.read_text(errors="replace")
    if path.suffix == ".py":
        yield from _in_python(text)
    elif path.suffix in {".c", ".h", ".S"}:
        for match in C_PROSE.finditer(text):
            yield from enumerate(match[0].split("\n"), text.count("\n", 0, match.start()) + 1)
    else:
        fenced = False
        for number, line in enumerate(text.split("\n"), 1):
            fenced ^= line.startswith("```")
            if not fenced and not line.startswith(("    ", ".Dl", ".Bd")):
                yield number, line


def _in_python(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield from enumerate(token.string.split("\n"), token.start[0])


def iter_files(root: Path) -> Iterator[Path]:
    """Yield the files below a folder that have text for people, or the one file that's named."""
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if path.suffix in KINDS and path.is_file() and not SKIPPED & {*path.parts}:
            yield path


def iter_findings(root: Path) -> Iterator[str]:
    """Yield a line for each pattern that a line of text has."""
    for path in iter_files(root):
        for number, line in iter_prose(path):
            for name, pattern in COMPILED.items():
                if pattern.search(line):
                    yield f"{path}:{number}: {name}: {line.strip()[:140]}"
        if path.suffix in CODE:
            for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
                if CLIPPED.match(line):
                    yield f"{path}:{number}: a comment without its subject: {line.strip()[:140]}"


def count() -> dict[str, int]:
    """Return the number of findings in each folder."""
    counts = {}
    for glob in FOLDERS:
        for path in sorted(ROOT.glob(glob)):
            if not SKIPPED & {*path.parts} and (found := sum(1 for _ in iter_findings(path))):
                counts[str(path.relative_to(ROOT))] = found
    return counts


def check(counts: dict[str, int], limits: dict[str, int]) -> Iterator[str]:
    """Yield what's wrong with the counts."""
    for name in sorted({*counts, *limits}):
        found, limit = counts.get(name, 0), limits.get(name, 0)
        if found > limit:
            yield f"{name}: {found} sentences that read as translated, {limit} allowed; '{COMMAND} {name}' lists them"
        elif found < limit:
            yield f"{name}: {found} sentences left, {limit} allowed; '{COMMAND} --lower' keeps it so"


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a program. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="english", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--lower", action="store_true", help="rewrite the limits; none goes up")
    parser.add_argument("paths", nargs="*", type=Path)
    options = parser.parse_args(argv)
    if options.paths:
        found = [line for path in options.paths for line in iter_findings(path)]
        print("".join(f"{line}\n" for line in found), end="")
        return 1 if found else 0
    counts, limits = count(), dict(toml.loads(LIMITS.read_text())) if LIMITS.exists() else {}
    if options.lower:
        counts = {name: min(found, limits.get(name, 0 if limits else found)) for name, found in counts.items()}
        LIMITS.write_text(toml.dumps(counts))
        return 0
    wrong = [*check(counts, limits)]
    print("".join(f"english: error: {line}\n" for line in wrong), end="", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
