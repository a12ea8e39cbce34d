"""Woven kernels on the simulated device give the plain kernels' results, and counts are right."""

import os
import re
import subprocess
import sys

import pytest

from tests.runtime import hooked


@pytest.mark.full
@pytest.mark.parametrize(("script", "done"), [("weave.py", "96 launches"), ("variables.py", "variables")])
def test_scripts_for_a_gpu_pass_on_the_host(script, done):
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    line = [sys.executable, hooked.ROOT / "tests" / "gpu" / script, "--host"]
    found = subprocess.run(line, env=env, capture_output=True, text=True, timeout=800, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert re.search(rf"^{done} on sm_90, 0 failed", found.stdout, re.M)
