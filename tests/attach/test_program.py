"""The bpftrace program has code for each way to read arguments, and bpftrace accepts it."""

import errno
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest

from gpt.attach import driver, kernel, program
from gpt.base.errors import GptError, MissingError, UsageError
from tests.runtime import hooked

MACHINE = program.Machine("host", "boot", 0, {})
TAG = "0123456789abcdef"
SIM = str(hooked.runtime() / "sim" / "libcuda.so.1")


def functions(calls="all"):
    return {function.symbol: function for function in driver.read_functions(calls)}


def text(path=SIM, calls=None, **options):
    has = exports(SIM)
    found = [(path, function) for function in driver.read_functions(calls) if function.symbol in has]
    return program.generate(found, MACHINE, [], ["about"], False, TAG, **options)


def exports(path):
    with open(path, "rb") as file:
        return driver.exports(file.fileno(), str(path))


@pytest.mark.parametrize(
    ("symbol", "fields"),
    [
        ("cuMemAlloc_v2", {"to": "*arg0", "bytes": "arg1"}),
        ("cuMemAlloc", {}),  # the 32-bit version has other arguments
        ("cuMemcpyHtoDAsync_v2", {"to": "arg0", "from": "arg1", "bytes": "arg2", "stream": "arg3"}),
        ("cuMemsetD32_v2", {"to": "arg0", "bytes": "arg2 * 4"}),
        ("cuMemsetD2D16_v2", {"to": "arg0", "bytes": "arg3 * arg4 * 2"}),
        ("cuMemAllocPitch_v2", {"to": "*arg0", "bytes": "*arg1", "rows": "arg3"}),
        ("cuLaunchGridAsync", {"function": "arg0", "grid_x": "arg1 & 0xffffffff", "stream": "arg3"}),
        ("cuLaunchCooperativeKernel", {"function": "arg0", "block_z": "sarg0 & 0xffffffff", "stream": "sarg2"}),
        ("cuLaunchKernelEx", {"function": "arg1", "stream": "*(uint64 *)(arg0 + 32)"}),
        ("cuMemcpy2D_v2", {"bytes": "*(uint64 *)(arg0 + 112) * *(uint64 *)(arg0 + 120)", "stream": None}),
        ("cuMemcpy3DAsync_v2", {"to": "$to", "stream": "arg1"}),
        ("cuModuleGetFunction", {"object": "*arg0"}),
        ("cuKernelGetFunction", {"object": "*arg0", "kernel": "arg1"}),
        ("cuCtxSynchronize", {}),
    ],
)
def test_values_of_a_call_are_those_of_the_table(symbol, fields):
    values = {
        value.field: "*" * ("*" in value.shown) + value.kept for value in program.watch(functions()[symbol]).values
    }
    assert {name: values.get(name) for name in fields} == fields
    assert bool(values) == bool(fields)


def test_each_function_with_arguments_is_watched_and_each_that_waits():
    wanted = functions(None)
    assert {"cuLaunchKernel", "cuMemcpyHtoD_v2", "cuCtxSynchronize", "cuGraphLaunch"} <= wanted.keys()
    assert not {"cuDeviceGetAttribute", "cuMemAlloc", "cuGetErrorString"} & wanted.keys()


def test_all_values_of_a_map_are_of_one_type():
    """bpftrace would reject the program if a tuple didn't have as many words as the map's name says."""
    kept = re.findall(r"@call(\d+)_\w+\[pid, tid, \d+\] = \(nsecs, (.*)\);", text(calls="all"))
    assert len(kept) > 300
    for size, values in kept:
        assert values.count("(uint64)") == int(size)


ODD = ['a "b', "b\\", "%s", "x:y", "{ }", "new\nline", "é", "a b", "`id`", "//", ""]


@pytest.mark.parametrize("odd", ODD)
def test_no_text_of_others_is_in_the_program(odd):
    """The machine's name and the command line are escaped; files with such names are rejected."""
    machine = program.Machine(f"m{odd}", f"b{odd}", 0, {1: f"sh\0{odd}\0".encode()})
    made = program.generate([("/x.so", functions()["cuInit"])], machine, [], [], False, TAG)
    plain = program.generate([("/x.so", functions()["cuInit"])], MACHINE, [], [], False, TAG)
    other = [line for line in made.splitlines() if line not in plain.splitlines()]
    assert len(other) == 1 + (odd != "x:y") or odd == "" or len(other) == 2
    for line in other:
        assert re.fullmatch(r'  printf\("(machine|argv) [\w. -]+\\n"\);', line, re.ASCII), line
    assert bytes.fromhex(made.split(f"argv {TAG} 1 ")[1].split("\\n")[0]) == f"sh\0{odd}\0".encode()
    if odd:
        with pytest.raises(UsageError, match="a program cannot name it"):
            program.generate([(f"/x/{odd}:/y", functions()["cuInit"])], MACHINE, [], [], False, TAG)


@pytest.mark.parametrize(
    "answer", ['cuX"{} cuX other x', "cuX cuX other x how=a;b", "cuX cuX other x to=*0)", "x y z é"]
)
def test_no_function_of_another_gpt_hook_is_in_the_program(answer, tmp_path, monkeypatch):
    (tmp_path / "hook").write_text(f"#!/bin/sh\ncat <<'E'\n{answer}\nE\n")
    (tmp_path / "hook").chmod(0o755)
    monkeypatch.setenv("GPT_HOOK", str(tmp_path / "hook"))
    with pytest.raises(MissingError, match="which is not a function"):
        driver.read_functions("all")


@pytest.mark.parametrize(
    ("data", "fact"), [(b"", "not a shared library"), (b"\x7fELF" + bytes(60), "not a shared"), (b"x" * 99, "not a")]
)
def test_file_not_a_library_is_refused(data, fact, tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(data)
    with pytest.raises(GptError, match=fact):
        exports(tmp_path / "libcuda.so.1")


def test_kernel_functions_are_those_that_the_kernel_has(tmp_path):
    symbols = tmp_path / "kallsyms"
    lines = ["0 t nvidia_ioctl\t[nvidia]", "0 T nvidia_unlocked_ioctl\t[nvidia]", "0 t nvidia_isr\t[other]"]
    symbols.write_text("".join(f"{line}\n" for line in [*lines, "0 d uvm_ioctl\t[nvidia_uvm]", "0 t vfs_read"]))
    assert kernel.find_functions(symbols) == ["nvidia_unlocked_ioctl"]
    symbols.write_text("0 t vfs_read\n")
    with pytest.raises(MissingError, match="not loaded"):
        kernel.find_functions(symbols)


@pytest.mark.full
def test_bpftrace_takes_the_program(tmp_path):
    """The program is parsed and compiled. test_live.py tests whether the kernel accepts it."""
    if not shutil.which("bpftrace") or os.geteuid():
        pytest.skip("bpftrace -d needs bpftrace (Debian: apt-get install bpftrace) and root")
    limits = {"BPFTRACE_MAX_PROBES": "9999", "BPFTRACE_MAX_BPF_PROGS": "9999"}
    line = ["bpftrace", "-d", str(tmp_path / "program.bt")]
    with open(SIM, "rb") as file:
        (tmp_path / "program.bt").write_text(text(f"/proc/self/fd/{file.fileno()}"))
        done = subprocess.run(
            line, env=os.environ | limits, capture_output=True, text=True, timeout=120, pass_fds=[file.fileno()]
        )
    errors = [line for line in done.stderr.splitlines() if "ERROR: " in line and "RLIMIT" not in line]
    assert not errors
    assert done.returncode == 0


def test_only_what_the_process_calls_is_printed():
    """Each probe checks the pid, because another process that maps the same file may be watched at the same time."""
    lines = text(calls="cuMemAlloc", pid=7).splitlines()
    assert [" /pid == 7/ {" in line for line in lines if line.startswith("uprobe:")] == [True] * 2
    assert "pid ==" not in text(calls="cuMemAlloc")
    assert kernel.probes(["f"], TAG, program.of_process(7))[0].startswith("kprobe:f /pid == 7/ { ")


def test_a_thread_is_not_a_process():
    """/proc has a folder for each thread, but doesn't list it."""
    begun, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: begun.set() or over.wait())
    thread.start()
    begun.wait()
    with pytest.raises(GptError, match=f"a thread of process {os.getpid()}: name that"):
        driver.find_driver(thread.native_id)
    over.set()


MAPS = "7f00-7f10 r-xp 0 fe:00 5 "


@pytest.mark.parametrize(
    "path",
    ['/a"b/libcuda.so.1', "/a\r7f20-7f30 r-xp 0 0:0 1 /libcuda.so", "/a\x0b/libcuda.so", "/a\u2028libcuda.so.1/x"],
)
def test_a_line_of_maps_is_one_mapping_whatever_its_path(path, monkeypatch):
    opened = []
    monkeypatch.setattr(driver, "_open_regular", lambda place: opened.append(place))
    monkeypatch.setattr(driver, "_open_same", lambda *_: None)
    more = "7f20-7f30 r-xp 0 0:0 1 /x/libcuda.so.1 (deleted)\n7f20-7f30 r-xp 0 0:0 1 /libcudart.so\n"
    assert not [*driver.iter_files(7, f"{MAPS}{path}\n{more}")]
    odd = path.endswith("/x")
    assert opened == ["/proc/7/map_files/7f00-7f10"] * (not odd) + ["/proc/7/map_files/7f20-7f30"]


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link", "none", "socket"])
def test_only_regular_files_are_opened(kind, tmp_path):
    """Opening a pipe would block, and opening a device may have side effects."""
    path = tmp_path / "libcuda.so.1"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link":
            path.symlink_to("/dev/null")
        case "device":
            path = "/dev/tty"
        case "socket":
            socket.socket(socket.AF_UNIX).bind(str(path))
    with pytest.raises(MissingError, match="not a readable regular file"):
        driver.open_library(str(path))


def test_leased_file_is_not_awaited(tmp_path, monkeypatch):
    """Another user's files once made root wait 45 seconds each."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # says that somebody opens the file
    shutil.copy("/bin/true", tmp_path / "libcuda.so.1")
    with open(tmp_path / "libcuda.so.1", "r+b") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases in this file system: {error}")
        with pytest.raises(MissingError, match="not a readable regular file"):
            driver.open_library(file.name)
    signal.signal(signal.SIGIO, before)


MAPPING = """
import mmap, pathlib, sys
maps = []
for path in sorted(pathlib.Path(sys.argv[1]).glob("*/lib*")) * int(sys.argv[2]):
    with open(path) as file:
        maps.append(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def mapped(tmp_path):
    """Let another process map files with the driver's name, as any user can."""

    def begin(count, times=1):
        for number in range(count):
            (tmp_path / str(number)).mkdir()
            shutil.copy("/bin/true", tmp_path / str(number) / "libcuda.so.1")
        line = [sys.executable, "-c", MAPPING, tmp_path, str(times)]
        process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout.readline()
        return processes.append(process) or process

    processes = []
    yield begin
    for process in processes:
        process.communicate()


def attach(*options, before=""):
    line = ["gpt-attach", *options, "--print"]
    return subprocess.run(["sh", "-c", f'{before} "$@"', "-", *line], capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root opens what others have mapped")
def test_attach_out_of_descriptors_is_reported(mapped):
    """Once, other users' files used up all descriptors, and the driver in use wasn't watched, without a message."""
    pid = mapped(40).pid
    for options in (["--system"], ["-p", str(pid)]):
        done = attach(*options, before="ulimit -n 32;")
        assert (done.returncode, done.stdout) == (4, "")
        assert "Too many open files: raise the limit (ulimit -n), or name one --library\n" in done.stderr


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root opens what others have mapped")
def test_mappings_of_another_user_do_not_exhaust_descriptors(mapped, tmp_path):
    """Root can still watch, even if another user maps many files, or one file at many addresses."""
    mapped(40)
    for path in tmp_path.glob("*/*"):
        os.chown(path, 65534, 65534)
    done = attach("--system", before="ulimit -n 32;")
    assert "(39 more like it)\n" in done.stderr and "Too many" not in done.stderr
    for number in range(1, 40):
        (tmp_path / str(number) / "libcuda.so.1").unlink()
    done = attach("-p", str(mapped(0, times=100).pid), before="ulimit -n 32;")
    assert done.stderr.endswith("/0/libcuda.so.1: has none of these functions\n")  # it's a copy of true(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root opens what others have mapped")
def test_there_is_a_limit_to_what_other_users_can_have_watched(mapped):
    mapped(driver.MAX_DRIVERS + 1)
    done = attach("--system")
    fact = f"more than {driver.MAX_DRIVERS} different files are mapped by this name: name one --library"
    assert (done.returncode, done.stderr) == (1, f"gpt-attach: error: libcuda.so.1: {fact}\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root opens what others have mapped")
def test_a_driver_of_another_user_is_left_out(mapped, tmp_path):
    """Once, a function without a size or without code made bpftrace give up on the whole system."""
    mapped(3)
    for number in range(2):
        os.chown(tmp_path / str(number) / "libcuda.so.1", 65534, 65534)
    (tmp_path / "2" / "libcuda.so.1").chmod(0o757)
    done = attach("--system")
    assert " isn't watched; --library watches it anyway (2 more like it)\n" in done.stderr
    assert str(tmp_path) not in done.stdout


@pytest.mark.parametrize(("error", "fact"), [(errno.EPERM, "root lacks CAP_SYS_ADMIN"), (errno.EACCES, "")])
def test_file_that_root_cannot_open_is_skipped(monkeypatch, error, fact):
    """FUSE file systems have files that root can't read, and any user can map them."""

    def refuse(place):
        raise PermissionError(error, os.strerror(error))

    monkeypatch.setattr(driver, "_open_regular", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(MissingError, match=fact) if fact else nullcontext():
        assert not [*driver.iter_files(7, f"{MAPS}/x/libcuda.so.1\n")]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root gives rights away by setpriv")
def test_root_without_capabilities_gets_an_explanation(mapped):
    """The message used to say that the process hadn't used the driver."""
    pid = mapped(1).pid
    drop = "exec setpriv --bounding-set -sys_admin,-checkpoint_restore --inh-caps -sys_admin,-checkpoint_restore"
    done = attach("-p", str(pid), before=drop)
    assert "root lacks CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE, as in a container\n" in done.stderr
    assert done.returncode == 4
