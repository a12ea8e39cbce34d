"""Random straight-line programs of mixed instructions give the same results on the simulated device as exact
arithmetic.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt.asm.backend import Options
from gpt.asm.host.backend import Host, HostTarget
from tests.asm.host import straight
from tests.asm.host.jobs import answers
from tests.runtime import hooked
from tests.tiers import full

SLICE = 16  # programs a module
CHOICE = st.integers(0, 0xFFFF)
STEP = st.tuples(CHOICE, CHOICE, st.tuples(*[CHOICE] * 5), CHOICE, CHOICE)


def check(programs):
    """Check programs with the seeds of their inputs."""
    jobs = straight.jobs(programs, lambda text: Host(Options()).make(text, "straight", HostTarget()).image)
    for (steps, seed), answer in zip(programs, answers(jobs, hooked.runtime() / "sim"), strict=True):
        assert not isinstance(answer, str), f"seed {seed}: {answer}"
        program, inputs = straight.Program(steps), straight.random_inputs(seed)
        said = program.differs(answer[1], program.compute(inputs))
        assert not said, f"seed {seed}: {said}"


@pytest.mark.full
@pytest.mark.parametrize("part", ["sample", *map(full, range(24))])
def test_seeds(part):
    seeds = range(5) if part == "sample" else range(SLICE * part, SLICE * (part + 1))
    check([(straight.random_steps(seed), seed) for seed in seeds])


@pytest.mark.full
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(STEP, min_size=1, max_size=60), st.integers(0, 1000))
def test_programs_that_are_shrunk(steps, seed):
    check([(steps, seed)])
