"""gpt-hook -p: programs in Python with threads, and with processes of each start method. On the simulated device."""

import os
import re
import sys
from textwrap import dedent

import pytest

from tests.gpu import accounts
from tests.runtime import hooked
from tests.runtime.probing import BLOCKS, COUNT, PTX, THREADS, kept

pytestmark = pytest.mark.full

SCRIPT = f"""
import concurrent.futures, multiprocessing, sys
from tests.runtime.driving import *

def work(times, fresh=True):
    "Launches `scale` so often, each time on what the last one left; how often."
    if fresh:
        begin()
    scale = function(load(sys.argv[1]), "scale")
    items = Memory(420, 7)
    want = [7] * 420
    for i in range(times):
        ok(launch(scale, {BLOCKS}, {THREADS}, items, c_uint32(i), c_uint32({COUNT})))
        want = [(3 * w + i) % 2**32 if at < {COUNT} else w for at, w in enumerate(want)]
    ok(synchronize())
    assert items.read() == want
    return times

def in_thread(context, times):
    ok(cu.cuCtxSetCurrent(context))
    return work(times, False)

def current():
    context = c_void_p()
    ok(cu.cuCtxGetCurrent(byref(context)))
    return context

if __name__ == "__main__":
    print("launches", sum({{body}}))
"""
POOL = """concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("{}")).map(work, range(5))"""
BODIES = {
    "threads": """(begin(), concurrent.futures.ThreadPoolExecutor(4))[1].map(in_thread, [current()] * 8, range(8))""",
    **{how: POOL.format(how) for how in ("spawn", "fork", "forkserver")},
}


def run(folder, body):
    (folder / "program.py").write_text(dedent(SCRIPT).replace("{body}", body))
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept(), "PYTHONPATH": str(hooked.ROOT)}
    line = (sys.executable, folder / "program.py", PTX)
    done = hooked.run(folder / "t.mp", *line, options=("-p", "gmem_bytes"), env=env)
    assert done.returncode == 0, done.stderr
    return sum(map(int, re.findall(r"launches (\d+)", done.stdout)))


@pytest.mark.parametrize("how", BODIES)
def test_launches_of_all_threads_and_processes_are_accounted_for(tmp_path, how):
    launches = run(tmp_path, BODIES[how])
    found = accounts.account_all(tmp_path)
    assert found.launched == launches == found.probed.total() > 0
    assert not found.wrong and not found.lost
    assert found.total("scale", "read") == found.total("scale", "written") == 8 * COUNT * launches
