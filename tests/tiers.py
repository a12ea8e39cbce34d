"""Choose what `make test` leaves out.

Test tiers. `make test-full` adds downloads over 20 MB, corpora, long runs, and the rest of each matrix. `make soak`
adds stress of the hook.

All of `make test-full` takes several times as long as everything else in CI. So CI runs `make test-part`: a different
eighth for each commit, and the tests of the files that the commit changed. A test whose rounds take minutes should be
parametrized over parts, because the node id decides about the eighth.
"""

from __future__ import annotations

import os
import subprocess
import zlib
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FULL = bool(os.environ.get("TEST_FULL"))  # set by `make test-full`
PART = os.environ.get("TEST_PART")  # set by `make test-part`: the number of the commit
PARTS = 8
ROOT = Path(__file__).parents[1]
DERIVED = ("gpt/sass/derive/", "gpt/sass/tables/", "gpt/sass/arch.py")
DERIVES = "tests/sass/test_derive.py::test_the_table_is_what_is_derived[sm_90]"
FORKED = (  # slow tests that neither kill nor watch our executables, so that a server may fork these (loaded.py)
    "runtime/test_first_calls.py",
    "runtime/test_probe*.py",
    "runtime/test_wrong_arguments.py",
)


def full(*values: Any, id: str | None = None) -> Any:
    """Return a case of `parametrize` that only `make test-full` runs. Mark whole tests with `@pytest.mark.full`."""
    return pytest.param(*values, id=id, marks=pytest.mark.full)


def first(*cases: Any) -> list[Any]:
    """Return the cases of `parametrize`; `make test` runs only the first."""
    return every(len(cases), cases)


def every(step: int, cases: Collection[Any]) -> list[Any]:
    """Return the cases of `parametrize`; `make test` runs only each `step`-th, starting with the first."""
    left = (full(*case) if isinstance(case, tuple) else full(case) for case in cases)
    return [mark if number % step else case for number, (case, mark) in enumerate(zip(cases, left, strict=True))]


def soak(*values: Any, id: str | None = None) -> Any:
    """Return a case of `parametrize` that only `make soak` runs. Mark whole tests with `@pytest.mark.soak`."""
    return pytest.param(*values, id=id, marks=pytest.mark.soak)


def examples(count: int) -> int:
    """Return the number of examples for hypothesis: all of them in `make test-full`, which runs these tests again."""
    return count if FULL else max(3, count // 10)


def share(cases: Sequence[Any], parts: int = 4) -> Sequence[Any]:
    """Return the cases that a long test of `make test-full` runs: all, or each `parts`-th in `make test-part`.

    It's a different selection each time that the test runs.
    """
    return cases[int(PART) // PARTS % parts :: parts] if PART else cases


def is_in_part(item: pytest.Item) -> bool:
    """Return whether `make test-part` runs a test of `make test-full` for this commit.

    The commit's number chooses an eighth, and its changes choose more tests. A part of a long test only runs in its
    eighth, because all parts together may take an hour.
    """
    turn = zlib.crc32(item.nodeid.encode()) % PARTS == int(PART or 0) % PARTS
    has_parts = "part" in getattr(getattr(item, "callspec", None), "params", ())
    return turn or (not has_parts and item.nodeid.startswith(_touched()))


@cache
def _touched() -> tuple[str, ...]:
    """Return the test files that the last commit changed, or that mirror its changes in gpt/, and a test's id.

    Tests mirror the tree: gpt/probe/verify.py has tests/probe/test_verify.py. For a commit in several folders, running
    all tests of those folders would take longer than the rest of CI, so the other tests run once within eight commits.
    A commit that may change a table of instructions derives sm_90's table again.
    """
    git = ["git", "-C", ROOT, "diff", "--name-only", "HEAD~1", "HEAD"]
    changed = subprocess.run(git, capture_output=True, text=True, check=False).stdout.splitlines()
    own = [path for path in changed if path.startswith("tests/")]
    mirrored = [Path("tests", *Path(path).parts[1:]) for path in changed if path.startswith("gpt/")]
    pages = ["tests/man/"] if any(path.startswith("man/") for path in changed) else []
    derived = [DERIVES] if any(path.startswith(DERIVED) for path in changed) else []
    return (*own, *pages, *derived, *(str(path.with_name(f"test_{path.name}")) for path in mirrored))
