"""On the interpreter, kernels that the checker has proven leave the same memory as the originals."""

import pytest

from tests.sass.woven_runs import run_some


def check_runs(count):
    try:
        counts, wrong = run_some(count)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert not wrong
    assert counts["woven"] and counts["mutated"] and counts["counted"]
    return counts


def test_checked_kernels_compute_the_same_results():
    check_runs(4)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_much_that_is_proven_runs_as_before():
    counts = check_runs(500)
    assert counts["mutated"] > 250
