"""gpt-hook run --max-disk: all processes of a run together stay below the limit, and missing data is reported."""

import os
import re
import subprocess

import pytest

from gpt.stream.reasons import parse
from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build, kept, probe_file
from tests.tiers import first

# Many calls in one or several threads, in this process and in children; `scale` at the end.
BUSY = (
    "#include <pthread.h>\n#include <sys/wait.h>\n"
    + CLIENT
    + r"""
static int calls;

static void *busy(void *context) {
    CUdeviceptr memory;
    OK(D(cuCtxSetCurrent)(context));
    for (int i = 0; i < calls; i++) {
        OK(D(cuMemAlloc_v2)(&memory, (size_t)64));
        OK(D(cuMemFree_v2)(memory));
    }
    return context;
}

int main(int argc, char **argv) {
    void *context;
    int threads = atoi(argv[3]), children = atoi(argv[4]);
    calls = atoi(argv[2]);
    for (int i = 0; i < children; i++)
        if (!fork()) {
            if (i % 2) {
                execl("/proc/self/exe", argv[0], argv[1], argv[2], argv[3], "0", NULL);
                abort();
            }
            break;
        }
    setup(argv[1]);
    pthread_t started[16];
    OK(D(cuCtxGetCurrent)(&context));
    for (int i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, busy, context);
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    for (int i = 0; i < 3; i++)
        run();
    check();
    for (int status; wait(&status) > 0;)
        assert(!status);
    return 0;
}
"""
)


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    return build(tmp_path_factory.mktemp("busy"), BUSY)


def run(folder, *command, options=(), size="1M", env=None):
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()} | (env or {})
    line = hooked.command(
        "run", "-f", "-o", folder / "t.mp", "--max-disk", size, "--device", "sim", *options, "--", *command, quiet=False
    )
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=200)


def written(folder):
    return sum(path.stat().st_size for path in folder.glob("t.mp*"))


# Calls are recorded until seven eighths are used. Eight threads then have chunks of 64 KiB, some of which have only
# just been started.
@pytest.mark.parametrize(
    ("threads", "children", "least"), first((2, 4, 7 << 17), (1, 0, 7 << 17), (8, 0, (7 << 17) - 8 * (64 << 10)))
)
def test_a_run_stays_below_it(tmp_path, busy, threads, children, least):
    (tmp_path / "tmp").mkdir()
    done = run(tmp_path, busy, PTX, 20000, threads, children, env={"TMPDIR": str(tmp_path / "tmp")})
    assert done.returncode == 0, done.stderr
    assert least <= written(tmp_path) <= 1 << 20
    assert done.stderr.count("--max-disk is reached") == 1
    assert re.search(r"--max-disk was reached: \d+ process(es)? went on without being recorded", done.stderr)
    traces = [hooked.Trace(path) for path in tmp_path.glob("t.mp*")]
    assert len(traces) >= 1 + children
    told = 0
    for trace in traces:
        (off, *_) = trace.of("recording") or [None]
        told += len(trace.of("dropped"))
        assert bool(off) == bool(trace.of("dropped"))
        assert trace.of("end"), "the reserve is enough for the ends"
        assert "scale" in trace.functions, "look-ups are recorded as when gpt-hook ctl disables recording"
    assert told
    assert not list((tmp_path / "tmp").glob("*.disk"))
    text = subprocess.run(["gpt-analyze", "summary", tmp_path / "t.mp"], capture_output=True, text=True, check=False)
    assert "--max-disk was reached" in text.stdout + text.stderr


def test_traces_that_cannot_begin_are_counted(tmp_path, busy):
    """Starting a trace takes 24 KiB, so 1 MiB isn't enough for all."""
    done = run(tmp_path, "sh", "-c", f"for i in $(seq 60); do {busy} {PTX} 1 0 0; done")
    traces = [path.stat().st_size for path in tmp_path.glob("t.mp*")]
    assert done.returncode == 0 and len(traces) == 60 and 0 in traces and sum(traces) <= 1 << 20
    said, report = (re.findall(pattern, done.stderr) for pattern in ("(?m)is used up", r"was reached: (\d+) process"))
    assert len(said) == 1, "one process for all"
    assert traces.count(0) < int(report[0]) < 60, "some began, and had no room for calls"


def test_a_run_below_max_disk_reports_nothing(tmp_path, busy):
    done = run(tmp_path, busy, PTX, 100, 2, 2, size="16M")
    assert done.returncode == 0 and "max-disk" not in done.stderr
    assert not hooked.Trace(tmp_path / "t.mp").of("dropped")


LARGE = (
    CLIENT
    + r"""
int main(int argc, char **argv) {
    setup(argv[1]);
    void *params[] = {&items, &added, &count};
    for (int i = 0; i < 40; i++) {
        OK(cuLaunchKernel(function, 1000, 1, 1, 160, 1, 1, 0, NULL, params, NULL));
        OK(D(cuStreamSynchronize)(NULL));
        expect(3);
    }
    check();
    return 0;
}
"""
)
NOISE = """
[map.noise]
level = "thread"
cap = 1
data = {a = "u64", b = "u64"}

[probe.noise]
position = "kernel"
level = "thread"
before = \"\"\".reg .u64 %a, %b; cvt.u64.u32 %a, %tid.x; add.u64 %a, %a, CLOCK;
mul.lo.u64 %a, %a, 0x9E3779B97F4A7C15; shr.u64 %b, %a, 7; xor.b64 %a, %a, %b; mul.lo.u64 %b, %a, 0x9E3779B97F4A7C15;
SAVE [noise] {%a, %b};\"\"\"
"""


@pytest.mark.full
def test_buffers_too(tmp_path):
    """Data that doesn't fit is lost, and its record gives the reason; later launches run without probes."""
    program = build(tmp_path, LARGE)
    done = run(tmp_path, program, PTX, options=("-p", probe_file("noise.toml", NOISE)), size="8M")
    assert done.returncode == 0, done.stderr
    assert written(tmp_path) <= 8 << 20 and done.stderr.count("--max-disk is reached") == 1
    assert (tmp_path / "t.mp.buffers").stat().st_size > 4 << 20
    assert f" 1 process, {written(tmp_path) / (1 << 20):.1f} MiB" in done.stderr
    trace = hooked.Trace(tmp_path / "t.mp")
    lost = [str(parse(r["lost"])) for r in trace.of("buffer") if "lost" in r]
    assert set(lost) == {"--max-disk was reached"}
    who = "1 launch lost what it" if len(lost) == 1 else f"{len(lost)} launches lost what they"
    assert f"warning: {who} saved: --max-disk was reached" in done.stderr
    assert 1 < len(trace.of("probed")) < 40


@pytest.mark.parametrize("size", ["0", "100K", "x", "-1", "1e3", ""])
def test_sizes_that_make_no_sense(tmp_path, size):
    done = run(tmp_path, "true", size=size)
    assert done.returncode == 2 and "--max-disk" in done.stderr


@pytest.mark.parametrize("output", ["-", "|cat", "%%fifo"])
def test_a_stream_has_no_size(tmp_path, output):
    """--max-disk for a stream is refused before gpt-hook waits for a reader."""
    os.mkfifo(tmp_path / "%fifo")
    line = hooked.command("run", "-o", output, "--max-disk", "1M", "--", "true")
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=False, timeout=60)
    assert done.returncode == 2 and "--max-disk: a stream has no size" in done.stderr


def test_without_a_place_to_count(tmp_path, busy):
    done = run(tmp_path, busy, PTX, 20000, 1, 0, env={"TMPDIR": "/nonexistent"})
    assert done.returncode == 0 and "holds for each process alone" in done.stderr
    assert written(tmp_path) <= 1 << 20
