"""Choose what `make test` leaves out.

To `make test-full`: downloads over 20 MB, corpora, long runs, the rest of a matrix. To `make soak`: stress of the hook.

All of `make test-full` takes about an hour on two cores, an eighth 7 minutes. So CI runs
`make test-part`: an eighth of it, another one for each commit, and the tests of what the commit changed.
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


def full(*values: Any, id: str | None = None) -> Any:
    """Return a case of `parametrize` that only `make test-full` runs; whole tests have `@pytest.mark.full`."""
    return pytest.param(*values, id=id, marks=pytest.mark.full)


def first(*cases: Any) -> list[Any]:
    """Return the cases of `parametrize`; `make test` runs only the first."""
    return every(len(cases), cases)


def every(step: int, cases: Collection[Any]) -> list[Any]:
    """Return the cases of `parametrize`; `make test` runs each `step`-th, from the first on."""
    left = (full(*case) if isinstance(case, tuple) else full(case) for case in cases)
    return [mark if number % step else case for number, (case, mark) in enumerate(zip(cases, left, strict=True))]


def soak(*values: Any, id: str | None = None) -> Any:
    """Return a case of `parametrize` that only `make soak` runs; whole tests have `@pytest.mark.soak`."""
    return pytest.param(*values, id=id, marks=pytest.mark.soak)


def examples(count: int) -> int:
    """Return how many examples hypothesis tries: all of them in `make test-full`, which runs its tests again."""
    return count if FULL else max(3, count // 10)


def share(cases: Sequence[Any], parts: int = 4) -> Sequence[Any]:
    """Return what a long test of `make test-full` runs: all cases, or in `make test-part` each `parts`-th.

    Others each time that the test has its turn.
    """
    return cases[int(PART) // PARTS % parts :: parts] if PART else cases


def is_in_part(item: pytest.Item) -> bool:
    """Return whether `make test-part` runs a test of `make test-full`."""
    path = str(item.path.relative_to(ROOT))
    turn = zlib.crc32(item.nodeid.encode()) % PARTS == int(PART or 0) % PARTS
    return turn or any(path.startswith(start) for start in _touched())


@cache
def _touched() -> list[str]:
    """Return the test files that the last commit changed, and the ones that mirror its changes in gpt/.

    Tests mirror the tree: gpt/probe/verify.py has tests/probe/test_verify.py. All tests of the folder took longer than
    the rest of CI for a commit in several folders; they take their turn within eight commits.
    """
    git = ["git", "-C", ROOT, "diff", "--name-only", "HEAD~1", "HEAD"]
    changed = subprocess.run(git, capture_output=True, text=True, check=False).stdout.splitlines()
    own = [path for path in changed if path.startswith("tests/")]
    mirrored = [Path("tests", *Path(path).parts[1:]) for path in changed if path.startswith("gpt/")]
    pages = ["tests/man/"] if any(path.startswith("man/") for path in changed) else []
    return own + pages + [str(path.with_name(f"test_{path.name}")) for path in mirrored]
