"""gpt-hook attach on a running program with the simulated driver; skipped if the kernel doesn't allow bpftrace."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpt.trace import model
from tests.runtime import hooked

pytestmark = pytest.mark.full

LATE = "late" + "_" * 80
CALLS = "cuMemAlloc,cuMemFree,cuMemcpyHtoD,cuLaunchKernel,cuModuleGetFunction,cuStreamSynchronize,cuLaunchHostFunc"
CLIENT = r"""
#define HEAD ".version 7.0\n.target sm_70\n.address_size 64\n"
#define TEXT HEAD ".visible .entry early(){ret;}\n.visible .entry %s(){ret;}\n"
static void block(void *nothing) { pause(); }
int main(int argc, char **argv) {
    begin();
    char ptx[4096];
    snprintf(ptx, sizeof(ptx), TEXT, argv[1]);
    void *module, *early, *late, *memory;
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&early, module, "early"));
    int (*allocate)(void **, size_t) = dlsym(driver, "cuMemAlloc_v2");
    int (*release)(void *) = dlsym(driver, "cuMemFree_v2");
    int (*copy)(void *, const void *, size_t) = dlsym(driver, "cuMemcpyHtoD_v2");
    puts("ready"), fflush(stdout);
    char word[16];
    if (!fgets(word, sizeof(word), stdin))
        return 1;
    OK(cuModuleGetFunction(&late, module, argv[1]));
    for (int i = 0; i < 100; i++) {
        OK(allocate(&memory, 1000 + i));
        OK(copy(memory, ptx, 64));
        OK(release(memory));
        OK(cuLaunchKernel(early, 3, 2, 1, 32, 4, 2, 16, 0, 0, 0));
        OK(cuLaunchKernel(late, 5, 1, 1, 64, 1, 1, 0, 0, 0, 0));
    }
    int failed = allocate(&memory, 1ul << 60);
    if (!strcmp(word, "hang\n")) {
        int (*host)(void *, void (*)(void *), void *) = dlsym(driver, "cuLaunchHostFunc");
        int (*wait)(void *) = dlsym(driver, "cuStreamSynchronize");
        OK(host(0, block, 0));
        puts("hangs"), fflush(stdout);
        wait(0);
    }
    return failed ? 0 : 2;
}
"""


@cache
def why_not():
    """Return why bpftrace can't run here, or None."""
    if os.geteuid():
        return "not root"
    if not shutil.which("bpftrace"):
        return "no bpftrace (Debian: apt-get install bpftrace)"
    try:
        done = subprocess.run(
            ["bpftrace", "-e", "BEGIN { exit(); }"], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return "bpftrace does not answer"
    if done.returncode:
        return f"the kernel refuses bpftrace: {done.stderr.strip().splitlines()[-1:]}"
    if not os.path.exists("/sys/bus/event_source/devices/uprobe"):
        return "a kernel without uprobes"
    return ""


@contextmanager
def running(folder, driver=None, before=()):
    """Yield the client with this driver folder, once it has loaded the driver."""
    if why_not():
        pytest.skip(why_not())
    program = hooked.compile_c(folder / "client", CLIENT)
    env = os.environ | {"LD_LIBRARY_PATH": "."}  # a colon in the folder's name would split the list
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    place = driver or hooked.runtime() / "sim"
    process = subprocess.Popen([*before, program, LATE], env=env, cwd=place, text=True, **pipes)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close(), process.stdout.close()


@pytest.fixture
def client(tmp_path):
    with running(tmp_path) as process:
        yield process


def attach(folder, process, *options):
    """Start gpt-hook attach; return once it watches."""
    line = ["gpt-hook", "attach", "-o", "trace.mp", "--calls", CALLS, *options]
    line += [] if "--system" in options else ["-p", str(process.pid)]
    watching = subprocess.Popen(line, cwd=folder, stderr=subprocess.PIPE, text=True)
    said = watching.stderr.readline()
    assert said.startswith("gpt-attach: watching"), said + watching.stderr.read()
    return watching


def go(process, word="go"):
    process.stdin.write(f"{word}\n")
    process.stdin.flush()


def check(found, process):
    calls = found.calls("bytes", "function", "grid_x", "block_y", "block_z", "shared")
    calls = calls[calls["process"] == [one.pid for one in found.processes].index(process.pid)]
    by_name = {name: calls[[found.api(row).name == name for row in calls]] for name in CALLS.split(",")}
    assert by_name["cuMemAlloc"]["bytes"].tolist() == [*range(1000, 1100), 1 << 60]
    assert by_name["cuMemAlloc"]["result"].tolist() == [0] * 100 + [2]
    launches = by_name["cuLaunchKernel"]
    assert [found.kernel(row) for row in launches] == ["#1", LATE] * 100 or {found.kernel(row) for row in launches} == {
        "#2",
        LATE,
    }
    assert launches[0][["grid_x", "block_y", "block_z", "shared"]].tolist() == (3, 4, 2, 16)
    assert (launches["duration"] > 0).all()
    return by_name


def test_a_process_is_watched_until_it_ends(client, tmp_path):
    watching = attach(tmp_path, client)
    go(client)
    assert client.wait(timeout=60) == 0
    _, said = watching.communicate(timeout=120)
    assert watching.returncode == 0
    assert "no name for 1 kernel looked up before" in said
    assert "200 launches, 1 process" in said
    found = model.read([tmp_path / "trace.mp"])
    check(found, client)
    assert not [line for line in found.incomplete if "no end" in line]


def test_an_interrupt_ends_it_and_shows_what_hangs(client, tmp_path):
    watching = attach(tmp_path, client)
    go(client, "hang")
    assert client.stdout.readline() == "hangs\n"
    time.sleep(1.5)
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert client.poll() is None
    by_name = check(model.read([tmp_path / "trace.mp"]), client)
    assert by_name["cuStreamSynchronize"]["duration"].tolist() == [0]


def test_time_is_that_of_the_clock(client, tmp_path):
    before = time.monotonic_ns()
    watching = attach(tmp_path, client, "--duration", "3")
    go(client)
    client.wait(timeout=60)
    watching.communicate(timeout=120)
    found = model.read([tmp_path / "trace.mp"])
    (process,) = found.processes
    calls = found.calls("stamp")
    assert before < calls["stamp"].min() < calls["stamp"].max() < time.monotonic_ns()
    assert abs(process.clock.realtime_at(int(calls["stamp"][0])) - time.time_ns()) < 120e9


EVIL = 'a":cuInit { } BEGIN { printf("kernel 1 1 1 1 1 FORGED\\n"); } uretprobe:"\n%s\r'


@pytest.mark.parametrize("gone", [False, True])
def test_driver_is_watched_under_any_path_which_the_program_omits(gone, tmp_path):
    folder = tmp_path / EVIL.replace("/", "")
    folder.mkdir()
    shutil.copy(hooked.runtime() / "sim" / "libcuda.so.1", folder)
    with running(tmp_path, folder) as client:
        if gone:
            shutil.rmtree(folder)
        line = ["gpt-hook", "attach", "-p", str(client.pid), "--print"]
        made = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        assert "FORGED" not in made and '"/proc/' in made
        watching = attach(tmp_path, client)
        go(client)
        assert client.wait(timeout=60) == 0
        watching.communicate(timeout=120)
        check(model.read([tmp_path / "trace.mp"]), client)


def test_a_process_in_a_container_is_watched(tmp_path):
    """The driver is in a file system that only the process sees, and its /proc has other process IDs."""
    (tmp_path / "seen").mkdir()
    script = 'mount -t tmpfs t "$0" && cp "$1" "$0" && cd "$0" && mount -t proc p /proc && shift && exec "$@"'
    library = hooked.runtime() / "sim" / "libcuda.so.1"
    inside = ["sh", "-c", script, str(tmp_path / "seen"), str(library)]
    with running(tmp_path, tmp_path / "seen", ["unshare", "-m", "-p", "-f", *inside]) as parent:
        pid = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        client = SimpleNamespace(pid=pid)
        watching = attach(tmp_path, client)
        go(parent)
        assert parent.wait(timeout=60) == 0
        watching.communicate(timeout=120)
        assert watching.returncode == 0
        check(model.read([tmp_path / "trace.mp"]), client)
