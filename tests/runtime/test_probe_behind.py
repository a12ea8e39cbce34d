"""gpt-hook -p: a writer that can't keep up with the probes packs without zstd, and says so."""

import os
import re
import shutil
import subprocess

import pytest

from tests.analyze.asked import run as analyze
from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build, by_warp, kept, saved

pytestmark = pytest.mark.full

LAUNCHES = 40
SOURCE = (
    CLIENT
    + r"""
int main(int argc, char **argv) {
    setup(argv[1]);
    for (int i = 0; i < LAUNCHES; i++)
        run();
    check();
    return 0;
}
""".replace("LAUNCHES", str(LAUNCHES))
)


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow") / "runtime"
    shutil.copytree(hooked.runtime(), folder)
    hooked.build_hook(folder / "libgpthook.so", hooked.ROOT / "tests/runtime/slow_packing.c", "-Wl,--wrap=hook_pack")
    return folder


def test_slow_writer(tmp_path, slow, monkeypatch):
    """The first buffers are packed with zstd. All contents are right; the report and an analysis state the bytes packed
    without it.
    """
    monkeypatch.setattr(hooked, "runtime", lambda: slow)
    out, program = tmp_path / "t.mp", build(tmp_path, SOURCE)
    options = ("-o", out, "--device", "sim", "-f", "-p", by_warp(), "--max-memory", "8K")
    line = hooked.command("run", *options, "--", program, PTX, quiet=False)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, env=env)
    assert done.returncode == 0, done.stderr
    trace = hooked.Trace(out)
    quick = [record for record in trace.of("buffer") if record.get("quick")]
    assert 0 < len(quick) < len(trace.of("probed"))
    assert {record.get("codec") for record in quick} <= {"columns", None}
    assert len({one.slots.tobytes() for one in saved(out, "gmem_bytes").values()}) == 1
    assert re.search(r"warning: [\d.]+ \w+ of buffers were packed without zstd, as writing them", done.stderr)
    assert "of buffers were packed without zstd" in analyze("maps", out).stdout.decode()
