"""The first call of each function, for each way to get the driver's functions and each mode, returns the same as
without the hook.
"""

import os
import subprocess

import pytest

from tests.runtime import hooked, probing
from tests.runtime.hooked import SHARED, Trace
from tests.tiers import every, full

SOURCE = hooked.ROOT / "tests" / "runtime" / "first_calls.c"
DRIVER = hooked.runtime() / "sim" / "libcuda.so.1"
PROBE = ("-p", "gmem_bytes")
MODES = {
    "plain": (),
    "calls none": ("--calls", "none"),
    "gpu time": ("--gpu-time",),
    "stacks": ("--stacks", "all"),
    "probe": PROBE,
    "benchmark": (*PROBE, "--benchmark"),
    "memusage": (*PROBE, "--memusage"),
    "sampled": (*PROBE, "--launch-skip", "1", "--gpu-time", "--stacks", "all"),
    "control": ("--control",),
}
WAYS = ("LINKED", "HANDLE", "NEXT", "DEFAULT", "ADDRESS", "COPIES", "plugin", "deep plugin")

# The plugin's own dependencies come with it: none of them is in the program's scope.
LOADER = r"""
int main(int argc, char **argv) {
    void *handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL FLAGS);
    if (!handle) puts(dlerror());
    return ((int (*)(const char *))dlsym(handle, "play"))(argv[2]);
}
"""


def build(folder, way, *flags):
    """Return the command that runs the client in this way."""
    include = (f"-I{hooked.ROOT}/runtime", "-w", *flags)
    source = SOURCE.read_text()
    if way.endswith("plugin"):
        library = folder / "libplugin.so"
        hooked.compile_c(library, source, "-DWAY=LINKED", "-DPLUGIN", *include, *SHARED, DRIVER, prelude=False)
        deep = "-DFLAGS=|RTLD_DEEPBIND" if way.startswith("deep") else "-DFLAGS="
        return [hooked.compile_c(folder / "loader", LOADER, deep), library, probing.PTX]
    linked = (DRIVER,) if way in ("LINKED", "NEXT", "DEFAULT") else ()
    more = ("-Wl,--no-as-needed",) if linked else ()
    return [
        hooked.compile_c(folder / "client", source, f"-DWAY={way}", *include, *more, *linked, prelude=False),
        probing.PTX,
    ]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the command of a way, built once."""
    made = {}

    def get(way, first):
        if (way, first) not in made:
            flags = ["-DFIRST_LAUNCH"] if first == "launch" else []
            made[way, first] = build(tmp_path_factory.mktemp("first"), way, *flags)
        return made[way, first]

    return get


def told(text, mode):
    """Return the parts of the output that must be equal. Others may differ if kernels run twice, as with
    --benchmark.
    """
    return [line for line in text.splitlines() if mode != "benchmark" or line.startswith("cu")]


@pytest.mark.parametrize("mode", every(2, MODES))
@pytest.mark.parametrize(
    ("way", "first"),
    [("plugin", "copy"), *(full(way, first) for way in WAYS for first in ("launch", "copy"))],
)
def test_first_calls(tmp_path, built, way, mode, first):
    line = built(way, first)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": probing.kept()}
    bare_env = env | {"LD_LIBRARY_PATH": str(DRIVER.parent)}
    bare = subprocess.run(line, env=bare_env, capture_output=True, text=True, timeout=300, check=False)
    assert bare.returncode == 0 and "not there" not in bare.stdout, bare
    done = hooked.run(tmp_path / "t.mp", *line, options=("-f", *MODES[mode]), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert told(done.stdout, mode) == told(bare.stdout, mode)
    trace = Trace(tmp_path / "t.mp")
    assert trace.launches == {"scale": 3}  # without the captured launch
    if mode in ("probe", "benchmark"):
        left = probing.unprobed(trace)
        assert len(trace.of("probed")) + sum(left.values()) == 4 and len(left) <= (mode == "benchmark"), left
