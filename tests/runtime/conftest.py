"""How clients of the simulated device run."""

import pytest

from tests.runtime import simulated
from tests.tiers import full


@pytest.fixture(params=[None, full("thread"), full("address,undefined")])
def play(request, tmp_path, shared):
    """Builds a C client and runs it on the simulated device, both with sanitizers or without: it must end with 0 and
    say nothing. Returns what it printed."""
    folder = simulated.sanitized(request.param, shared) if request.param else None

    def build_and_run(source, *args, **env):
        program = simulated.build(tmp_path / "client", source, *([f"-fsanitize={request.param}"] if folder else []))
        done = simulated.run(program, *args, folder=folder, **env)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return build_and_run
