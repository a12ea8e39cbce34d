"""A few thousand inputs for every reader, the same each time; `make fuzz` does more."""

import pytest

from tests.fuzz import engine, native
from tests.fuzz.native import HARNESSES
from tests.fuzz.targets import TARGETS
from tests.tiers import FULL, every

SEED = "0"


def report(result):
    """Return the output that `make fuzz` would print, and the saved input."""
    return "\n".join(
        f"{path}, python -m tests.fuzz --repeat {result.name} FILE:\n{path.with_suffix('.txt').read_text()}"
        for path in result.failures
    )


@pytest.mark.parametrize("target", every(7, TARGETS), ids=lambda target: target.name)
def test_reader(target, sample, tmp_path):
    work, failures, step = tmp_path / "work", tmp_path / "failures", 1 if FULL else 8
    result = engine.run(target, sample, work, failures, seed=SEED, count=target.quick, step=step)
    assert not result.failures, f"seed {SEED}: {report(result)}"
    assert result.executions == target.quick


@pytest.mark.parametrize("harness", every(20, HARNESSES), ids=lambda harness: harness.name)
def test_harness(harness, sample, tmp_path, tmp_path_factory):
    if reason := native.why_not(tmp_path_factory.getbasetemp()):
        pytest.skip(reason)
    work, failures = tmp_path / "work", tmp_path / "failures"
    result = native.run(harness, sample, work, failures, seed=SEED, count=harness.quick, guided=False)
    assert not result.failures, f"seed {SEED}: {report(result)}"
