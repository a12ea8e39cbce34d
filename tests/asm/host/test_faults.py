"""For faulty kernels and calls, the simulated device reports the same errors as an H200, or is stricter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.asm.host import faults
from tests.runtime import hooked
from tests.tiers import full

MEASURED = json.loads(Path(faults.__file__).with_name("h200.json").read_text())["faults"]
# Faults that hardware doesn't detect, or that never end (a call of 0).
STRICTER = {
    "4 bytes behind": "0 700 700",
    "misaligned local": "0 716 716",  # on the H200, the driver's compiler removes the access
    "shared 4 behind": "0 700 700",
    "shared below": "0 700 700",  # 715 on the H200, where the address wraps around
    "constant far": "0 700 700",
    "call of 0": "0 715 715",
    "shuffle without itself": "0 715 715",
    "use after free": "0 700 700",
}
REFUSED = ["too many threads", "empty grid", "too much shared memory"]  # launches that the driver refuses
UNDEFINED = ["atomic on local", "shuffle from the exited"]  # undefined in PTX
QUICK = ["wild", "misaligned shared", "trap"]


@pytest.mark.parametrize("case", [case if case in QUICK else full(case) for case in faults.CASES])
def test_faults_are_explained(case, tmp_path):
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    env |= {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, faults.__file__, case], env=env, capture_output=True, text=True, timeout=120, check=True
    )
    answer = done.stdout.strip()
    if case in UNDEFINED:
        assert answer.startswith("0 0 0 = ")
    else:
        assert answer == STRICTER.get(case, MEASURED[case])
    assert ("kernel 'k'" in done.stderr) == (answer.startswith("0 7") or case in REFUSED)
