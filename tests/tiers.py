"""What `make test` leaves out.

To `make test-full`: downloads over 20 MB, corpora, long runs, the rest of a matrix. To `make soak`: stress of the hook.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import pytest

FULL = bool(os.environ.get("TEST_FULL"))  # set by `make test-full`


def full(*values: Any, id: str | None = None) -> Any:
    """A case of `parametrize` that is run by `make test-full` only; whole tests have `@pytest.mark.full`."""
    return pytest.param(*values, id=id, marks=pytest.mark.full)


def first(*cases: Any) -> list[Any]:
    """Cases of `parametrize` of which `make test` runs the first only."""
    return every(len(cases), cases)


def every(step: int, cases: Collection[Any]) -> list[Any]:
    """Cases of `parametrize` of which `make test` runs each `step`-th, from the first on."""
    left = (full(*case) if isinstance(case, tuple) else full(case) for case in cases)
    return [mark if number % step else case for number, (case, mark) in enumerate(zip(cases, left, strict=True))]


def soak(*values: Any, id: str | None = None) -> Any:
    """A case of `parametrize` that is run by `make soak` only; whole tests have `@pytest.mark.soak`."""
    return pytest.param(*values, id=id, marks=pytest.mark.soak)


def examples(count: int) -> int:
    """How many examples hypothesis tries: all of them in `make test-full`, which runs its tests again."""
    return count if FULL else max(5, count // 5)
