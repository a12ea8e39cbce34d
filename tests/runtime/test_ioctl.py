"""--ioctl: calls to /dev/nvidia*, here files that replace the devices in a separate namespace."""

import errno
import os
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import Trace

# A driver that makes requests to its kernel module. FIONBIO works on any file; NVIDIA's requests work on none of these.
DRIVER = r"""
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
static int file = -1;
int cuInit(unsigned flags) {
    int uvm = open("/dev/nvidia-uvm", O_RDWR), full = open("/dev/full", O_RDWR), on = 0;
    unsigned control[8] = {1, 2, 0x20800102};
    file = open("/dev/nvidiactl", O_RDWR);
    assert(uvm >= 0 && file >= 0 && full >= 0);
    errno = 7;
    assert(!ioctl(file, FIONBIO, &on) && errno == 7);
    assert(ioctl(file, _IOWR('F', 0x2a, control), control) == -1 && errno == ENOTTY);
    assert(ioctl(file, _IOC(_IOC_READ | _IOC_WRITE, 'F', 0xfe, 16), control) == -1);
    assert(ioctl(uvm, 0x30000001, control) == -1 && ioctl(uvm, 37, control) == -1);
    assert(ioctl(full, FIONBIO, &on) == 0 && ioctl(-1, FIONBIO, &on) == -1 && errno == EBADF);
    return 0;
}
int cuDriverGetVersion(int *version) { return 0; }
int cuCtxSynchronize(void) {
    int on = 0;
    return ioctl(file, FIONBIO, &on);
}
int cuAskOften(int *on) {
    for (int i = 0; i < 1000; i++) // more than the first chunks hold
        assert(!ioctl(file, FIONBIO, on));
    return 0;
}
int cuAsk(int *on) { return ioctl(file, FIONBIO, on); }
"""

CLIENT = r"""
#include <dlfcn.h>
#include <assert.h>
#include <stdio.h>
#include <sys/ioctl.h>
#define GET(name) ((int (*)())dlsym(driver, #name))
int main(void) {
    int on = 0, pipes[2];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    assert(GET(cuInit)(0) == 0 && GET(cuDriverGetVersion)(&on) == 0);
    assert(GET(cuCtxSynchronize)() == 0);
    assert(ioctl(0, FIONREAD, &on) == 0);
    return 0;
}
"""


def devices(tmp_path, *command, options=()):
    """Run a command under gpt-hook where /dev has files for NVIDIA's devices."""
    script = 'mount -t tmpfs none /dev && : >/dev/nvidiactl && : >/dev/nvidia-uvm && : >/dev/full && exec "$@"'
    line = ["unshare", "-rm", "sh", "-c", script, "sh", *hooked.command("run", "-o", tmp_path / "t.mp", *options)]
    if subprocess.run(["unshare", "-rm", "sh", "-c", "mount -t tmpfs none /dev"], capture_output=True).returncode:
        pytest.skip("no namespaces of our own")
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    return subprocess.run([*line, *command], input="text", capture_output=True, text=True, env=env, timeout=60)


@pytest.fixture
def client(tmp_path):
    hooked.compile_c(
        tmp_path / "libcuda.so.1", DRIVER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wno-unused-parameter",
        prelude=False,
    )  # fmt: skip
    return hooked.compile_c(tmp_path / "client", CLIENT, prelude=False)


def test_escapes_are_children_of_driver_calls(tmp_path, client):
    done = devices(tmp_path, client, options=["--ioctl"])
    assert (done.returncode, done.stderr) == (0, "")
    trace = Trace(tmp_path / "t.mp")
    found = trace.of("ioctl")
    assert [(r["name"], r["device"], r.get("error")) for r in found] == [
        ("0x5421", "/dev/nvidiactl", None),
        ("NV_ESC_RM_CONTROL", "/dev/nvidiactl", errno.ENOTTY),
        ("0xfe", "/dev/nvidiactl", errno.ENOTTY),
        ("UVM_INITIALIZE", "/dev/nvidia-uvm", errno.ENOTTY),
        ("UVM_REGISTER_GPU", "/dev/nvidia-uvm", errno.ENOTTY),
        ("0x5421", "/dev/nvidiactl", None),
    ]
    parents = {call["start"]: call for call in trace.calls}
    assert [parents[r["parent"]]["name"] for r in found] == ["cuInit"] * 5 + ["cuCtxSynchronize"]
    for record in found:
        parent = parents[record["parent"]]
        assert record["thread"] == parent["thread"]
        assert parent["start"] <= record["start"]
        assert record["start"] + record["duration"] <= parent["start"] + parent["duration"]
    assert found[1]["request"] & 0xFFFF == 0x462A and "command" not in found[1]  # the request failed


def test_call_with_many_ioctls_is_their_parent(tmp_path, client):
    source = CLIENT.replace("return 0;", "return GET(cuAskOften)(&on);")
    client = hooked.compile_c(tmp_path / "often", source, prelude=False)
    assert devices(tmp_path, client, options=["--ioctl"]).returncode == 0
    trace = Trace(tmp_path / "t.mp")
    (call,) = (call for call in trace.calls if call["name"] == "cuAskOften")
    assert [r.get("parent") for r in trace.of("ioctl")].count(call["start"]) == 1000


def test_no_ioctl_records_without_the_option(tmp_path, client):
    assert devices(tmp_path, client).returncode == 0
    assert not Trace(tmp_path / "t.mp").of("ioctl")


@pytest.mark.parametrize(
    ("options", "recorded"), [((), False), (("--ioctl",), True), (("--ioctl", "--calls", "all,-query"), False)]
)
def test_queries_are_recorded_for_they_ask_the_kernel_too(tmp_path, options, recorded):
    source = "int main(void) { begin(); int version; return cuDriverGetVersion(&version); }"
    names = hooked.traced(tmp_path, source, options=options).names
    assert names["cuInit"] == 1 and names["cuDriverGetVersion"] == recorded


def test_other_devices_and_terminals_are_ignored(tmp_path):
    source = r"""
    #include <sys/ioctl.h>
    #include <sys/wait.h>
    #include <pty.h>
    int main(void) {
        begin();
        int ours, theirs, bytes = 9;
        struct winsize size = {7, 8, 0, 0};
        assert(!openpty(&ours, &theirs, 0, 0, 0) && !ioctl(ours, TIOCSWINSZ, &size));
        size.ws_row = 0;
        assert(!ioctl(theirs, TIOCGWINSZ, &size) && size.ws_row == 7 && !ioctl(theirs, FIONREAD, &bytes) && !bytes);
        assert(!ioctl(ours, FIOCLEX));
        if (!vfork())
            _exit(ioctl(ours, FIONCLEX));
        int status;
        assert(wait(&status) > 0 && !status);
    }
    """
    trace = hooked.traced(tmp_path, source, "-lutil", options=["--ioctl"])
    assert not trace.of("ioctl")
