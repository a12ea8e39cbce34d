"""The command line of gpt-hook."""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpt import __version__
from tests.asm import fake
from tests.runtime import hooked
from tests.runtime.hooked import Trace


def gpt_hook(*args, **more):
    return subprocess.run(hooked.command(*args), capture_output=True, text=True, timeout=60, check=False, **more)


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ((), 2, "arguments: none; see gpt-hook --help"),
        (("walk",), 2, "walk: no such command; see gpt-hook --help"),
        (("true", "x"), 2, "true: not a gpt-hook command; to run a program: gpt-hook run -- true"),
        (("/bin/true",), 2, "/bin/true: not a gpt-hook command; to run a program: gpt-hook run -- /bin/true"),
        (("--", "true"), 2, "--: no gpt-hook command before it; to run a program: gpt-hook run -- true"),
        (("-p", "x", "run", "--", "true"), 2, "-p: options follow 'run': 'gpt-hook run -p ...'; see gpt-hook --help"),
        (("-o", "x", "true"), 2, "-o: options follow 'run': 'gpt-hook run -o ...'; see gpt-hook --help"),
        (("--all", "ctl", "1"), 2, "--all: options follow 'ctl': 'gpt-hook ctl --all ...'; see gpt-hook --help"),
        (("run", "--", "--disabled", "true"), 127, "--disabled: command not found: options go before '--'"),
        (("run",), 2, "run: no command; see gpt-hook --help"),
        (("run", "--fast", "true"), 2, "--fast: no such option; see gpt-hook --help"),
        (("run", "-o"), 2, "-o: needs a value"),
        (("run", "-o", "", "true"), 2, "-o: not a file name"),
        (("run", "-o", "a/", "true"), 2, "-o: a folder; name a file in it: a/%p.mp"),
        (("run", "-o", "%x", "true"), 2, "%x: only %p, %h, %r and %% are known in a file name"),
        (("run", "--device", "tpu", "true"), 2, "--device: 'tpu' is neither real nor sim"),
        (("run", "--calls", "", "true"), 2, "--calls: names nothing; 'none' records no calls"),
        *(
            (
                ("run", "--calls", calls, "true"),
                2,
                f"--calls: '{word}' is not a glob of functions (cu...) or a type (there are all, none, query, context, "
                "device, event, graph, kernel, memcpy, memory, memset, module, other, stream, sync)",
            )
            for calls, word in (("kernels", "kernels"), ("all,-quer", "quer"), ("cuMem*,sync, graph", " graph"))
        ),
        (("run", "no-such-command"), 127, "no-such-command: command not found"),
        (("run", "./no-such-command"), 127, "./no-such-command: No such file or directory"),
        (("run", "-o", "no/such/t.mp", "true"), 1, "{}/no/such/: No such file or directory"),
        (("run", "-o", "/dev/null", "true"), 1, "/dev/null: not a regular file"),
    ],
)
def test_errors(tmp_path, args, status, message):
    done = gpt_hook(*args, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == f"gpt-hook: error: {message.format(tmp_path)}\n"


def test_a_file_of_this_folder(tmp_path):
    shutil.copy("/bin/true", tmp_path / "app-of-mine")
    done = gpt_hook("app-of-mine", cwd=tmp_path)
    said = "app-of-mine: not a gpt-hook command; to run a program: gpt-hook run -- ./app-of-mine"
    assert (done.returncode, done.stderr) == (2, f"gpt-hook: error: {said}\n")


def test_the_synopsis_can_be_followed(tmp_path):
    """All of gpt-hook's options come before `--`, and `--` comes before the command."""
    synopsis = gpt_hook("--help").stdout.partition("       gpt-hook ctl")[0]
    assert synopsis.split()[-4:] == ["[--]", "COMMAND", "[ARG", "...]"]
    done = gpt_hook("run", "-o", tmp_path / "t.mp", "--disabled", "--", "true")
    assert done.returncode == 0


def test_help_and_version():
    assert gpt_hook("--help").stdout.startswith("usage: gpt-hook run [OPTION ...] [--] COMMAND [ARG ...]\n")
    for command in ("run", "functions", "check"):
        assert gpt_hook(command, "--help").stdout == gpt_hook("-h").stdout
    assert gpt_hook("--version").stdout == f"gpt-hook {__version__}\n"


def test_check_says_what_is_here():
    lines = dict(line.split(maxsplit=1) for line in gpt_hook("check").stdout.splitlines())
    assert lines["runtime"] == str(hooked.runtime() / "libgpthook.so") and lines["driver"]
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    done = gpt_hook("check", env=env)
    assert done.returncode == 0 and "CUDA 13.0" in done.stdout and "0: GPT simulated device, sm_90" in done.stdout


@pytest.mark.parametrize("word", ["check", "functions"])
def test_failing_writes_are_reported(word):
    with open("/dev/full", "wb") as full:
        done = subprocess.run(hooked.command(word), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "gpt-hook: error: standard output: No space left on device\n"


def test_check_finds_the_ptxas_of_gpt_asm(tmp_path):
    def found(**environment):
        return re.findall(r"^ptxas +(.*)$", gpt_hook("check", env=os.environ | environment).stdout, re.M)

    tool = fake.ptxas(tmp_path / "given", "exit 1", release="12.3.4")
    assert found(GPT_PTXAS=str(tool)) == [f"{tool} (ptxas 12.3.4)"]
    assert found(GPT_PTXAS="/absent") == ["none: /absent: GPT_PTXAS: no such executable"]
    which = subprocess.run([hooked.ROOT / "bin" / "gpt-asm", "--which"], capture_output=True, text=True, check=True)
    assert found() == which.stdout.splitlines()


def test_an_existing_file_is_refused(tmp_path):
    program = hooked.compile_c(tmp_path / "client", 'int main(void) { begin(); launch(kernel("foo")); }')
    path = tmp_path / "t.mp"
    path.write_text("precious")
    done = hooked.run(path, program)
    assert done.returncode == 1 and done.stderr == f"gpt-hook: error: {path}: exists; -f overwrites it\n"
    assert path.read_text() == "precious"
    (tmp_path / "t.mp.1234").write_text("not ours")
    assert hooked.run(path, program, options=["-f"]).returncode == 0
    (header,) = Trace(path).of("header")
    child, copy, dated = (tmp_path / f"t.mp.{name}" for name in (f"{header['pid']}.2", "1", "2026.11.30"))
    for file in (child, copy, dated):
        file.write_bytes(path.read_bytes())
    assert hooked.run(path, program, options=["-f"]).returncode == 0
    # What other processes of an earlier run wrote is removed with it, and nothing else: a trace whose name has
    # another number is the user's copy.
    assert Trace(path).functions == ["foo"] and not child.exists() and copy.exists() and dated.exists()
    assert (tmp_path / "t.mp.1234").read_text() == "not ours"


def test_it_becomes_the_command(tmp_path):
    line = hooked.command("run", "-o", tmp_path / "t.mp", "sh", "-c", "echo $$; cat; exit 3")
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate("text")
    assert (process.returncode, out) == (3, f"{process.pid}\ntext")


def test_options_end_with_the_command(tmp_path):
    done = hooked.run(tmp_path / "t.mp", "echo", "-f", "--calls")
    assert done.stdout == "-f --calls\n"


def test_preloaded_libraries_of_the_user_stay(tmp_path):
    env = os.environ | {"LD_PRELOAD": "libm.so.6"}
    done = hooked.run(tmp_path / "t.mp", "sh", "-c", "echo $LD_PRELOAD", env=env)
    assert done.stdout == f"{hooked.runtime()}/libgpthook.so:libm.so.6\n"


def test_relative_output_survives_chdir(tmp_path):
    program = hooked.compile_c(tmp_path / "client", 'int main(void) { begin(); launch(kernel("foo")); }')
    line = hooked.command("run", "-o", "t.mp", "--device", "sim", "sh", "-c", f"cd / && {program}")
    subprocess.run(line, cwd=tmp_path, check=True)
    assert Trace(tmp_path / "t.mp").functions == ["foo"]


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("cuLaunchKernl", " (there is cuLaunchKernel, cuLaunchKernelEx, cuLaunchGrid)"),
        ("memcpy,-cuMemAlloc_v2", " (there is cuMemAlloc, cuMemAllocHost)"),
        ("cuXyzzy", "; 'gpt-hook functions' lists them"),
    ],
)
def test_calls_of_a_function_that_there_is_not(tmp_path, word, near):
    done = hooked.run(tmp_path / "t.mp", "touch", tmp_path / "ran", options=("--calls", word))
    name = word.split(",")[-1].strip("-")
    assert (done.returncode, done.stderr) == (2, f"gpt-hook: error: --calls: no function '{name}'{near}\n")
    assert not list(tmp_path.iterdir())


def test_calls_of_named_functions(tmp_path):
    source = 'int main(void) { begin(); launch(kernel("foo")); }'
    trace = hooked.traced(tmp_path, source, options=("--calls", "cuLaunchKernel,cuOfTomorrow*"))
    assert trace.names == {"cuLaunchKernel": 1}


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl-gcc (Debian: apt-get install musl-tools)")
def test_programs_of_musl(tmp_path):
    source = """
    #include <dlfcn.h>
    #include <signal.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>
    int main(void) {
        void *self = dlopen(0, RTLD_NOW);
        signal(SIGBUS, SIG_IGN);
        if (!dlsym(self, "puts") || dlclose(self)) return 1;
        pid_t child = vfork();
        if (!child) _exit(0);
        puts("runs");
        fflush(stdout);
        quick_exit(3);
    }
    """
    (tmp_path / "musl.c").write_text(source)
    subprocess.run(["musl-gcc", tmp_path / "musl.c", "-o", tmp_path / "musl"], check=True)
    done = hooked.run(tmp_path / "t.mp", tmp_path / "musl")
    fact = "a program linked to musl: it cannot be watched"
    assert (done.returncode, done.stderr) == (4, f"gpt-hook: error: {tmp_path}/musl: {fact}\n")
    done = hooked.run(tmp_path / "t.mp", "sh", "-c", f"{tmp_path}/musl; exit $?")
    assert (done.returncode, done.stdout, done.stderr) == (3, "runs\n", "")
    said = Trace(tmp_path / "t.mp").of("diag")
    assert [d["text"] for d in said] == ["not linked to glibc: this program is not watched"]


def test_programs_with_a_sanitizer_of_gcc(tmp_path):
    (tmp_path / "x.c").write_text("int main(void) { return 0; }")
    line = ["gcc", "-fsanitize=address", tmp_path / "x.c", "-o", tmp_path / "x"]
    if subprocess.run(line, capture_output=True).returncode:
        pytest.skip("no gcc with its sanitizer")
    source = 'int main(void) { begin(); launch(kernel("foo")); char *x = calloc(8, 1); return x[8 * argc]; }'
    program = hooked.compile_c(
        tmp_path / "client", source.replace("void", "int argc, char **argv"), "-fsanitize=address"
    )
    env = os.environ | {"ASAN_OPTIONS": "detect_leaks=0:exitcode=77"}
    done = hooked.run(tmp_path / "t.mp", program, env=env)
    assert done.returncode == 77 and "heap-buffer-overflow" in done.stderr
    assert Trace(tmp_path / "t.mp").names["cuLaunchKernel"] == 1


def test_memory_limit_too_small(tmp_path):
    # Limits from the size that the program needs by itself up to a sufficient size.
    script = "for i in $(seq 6 24); do (ulimit -v ${i}000; exec true) && echo $i; done"
    done = hooked.run(tmp_path / "t.mp", "sh", "-c", script)
    fact = "gpt-hook: error: memory: Cannot allocate memory; this process is not watched"
    assert done.stdout and fact in done.stderr.splitlines()


def test_a_stack_of_64_kib(tmp_path):
    source = 'int main(int argc, char **argv) { begin(); return launch(kernel("foo")), puts("ran") < 0; }'
    program = hooked.compile_c(tmp_path / "client", source)

    def run(kib, *options, **env):
        line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", *options, "--", program)
        limited = ["prlimit", f"--stack={kib << 10}", *line]
        return subprocess.run(limited, capture_output=True, text=True, check=False, env=os.environ | env)

    deep = tmp_path / "slim" / "d" / "/".join(map(str, range(25)))
    deep.mkdir(parents=True)
    shutil.copy(hooked.runtime() / "libgptreplace.so", deep)
    done = run(64, "--stacks", "all", "--replace", tmp_path / "slim")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")
    assert Trace(tmp_path / "t.mp").names["cuLaunchKernel"] == 1
    done = run(48, "-f", "-p", "gmem_bytes", XDG_CACHE_HOME=str(tmp_path))  # this starts Python, which crashes
    said = "gpt-hook: error: -p: Python needs a larger stack than 48 KiB (ulimit -s)\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_programs_that_cannot_be_watched(tmp_path):
    (tmp_path / "static.c").write_text("int main(void) { return 0; }")
    built = subprocess.run(["cc", "-static", tmp_path / "static.c", "-o", tmp_path / "static"], capture_output=True)
    if not built.returncode:
        done = hooked.run(tmp_path / "t.mp", tmp_path / "static")
        fact = "a statically linked program: it cannot be watched"
        assert (done.returncode, done.stderr) == (4, f"gpt-hook: error: {tmp_path}/static: {fact}\n")
    head = bytearray((hooked.runtime() / "gpt-hook").read_bytes())
    head[4] = 1  # ELFCLASS32
    (tmp_path / "small").write_bytes(head)
    (tmp_path / "small").chmod(0o755)
    assert "a 32-bit program" in hooked.run(tmp_path / "t.mp", tmp_path / "small").stderr
    (tmp_path / "script").write_text(f"#!{tmp_path}/small\n")
    (tmp_path / "script").chmod(0o755)
    assert hooked.run(tmp_path / "t.mp", tmp_path / "script").returncode == 4
    if os.geteuid() == 0:
        (tmp_path / "suid").write_bytes((hooked.runtime() / "gpt-hook").read_bytes())
        os.chown(tmp_path / "suid", 65534, 65534)
        (tmp_path / "suid").chmod(0o4755)
        assert "a setuid program" in hooked.run(tmp_path / "t.mp", tmp_path / "suid").stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes programs of another user")
def test_a_setuid_program_that_cannot_be_read_and_a_setuid_script(tmp_path):
    """sudo is often executable without being readable. The kernel ignores the bit on a script."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # where others may look
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("gpt-hook", "libgpthook.so"):
            shutil.copy(hooked.runtime() / file, folder)
        line = [folder / "gpt-hook", "run", "-qo", "/var/tmp/none.mp"]
        more = {"user": 65534, "group": 65534, "extra_groups": [], "capture_output": True, "text": True, "timeout": 60}
        program = shutil.copy("/bin/true", folder / "suid")
        os.chmod(program, 0o4111)
        done = subprocess.run([*line, program], **more)
        fact = "a setuid program: it cannot be watched"
        assert (done.returncode, done.stderr) == (4, f"gpt-hook: error: {program}: {fact}\n")
        (folder / "script").write_text("#!/bin/sh\nexit 3\n")
        (folder / "script").chmod(0o6755)
        done = subprocess.run([*line, folder / "script"], **more)
        assert (done.returncode, done.stderr) == (3, "")


def test_a_name_that_is_too_long(tmp_path):
    path = tmp_path / ("a" * 256)
    done = hooked.run(path, "true")
    assert (done.returncode, done.stderr) == (1, f"gpt-hook: error: {path}: File name too long\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives capabilities")
def test_a_program_with_capabilities(tmp_path):
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # where others may look
        folder = Path(name)
        folder.chmod(0o755)
        for file in ("gpt-hook", "libgpthook.so"):
            shutil.copy(hooked.runtime() / file, folder)
        program = shutil.copy("/bin/true", folder / "able")
        line = [folder / "gpt-hook", "run", "-qo", "/var/tmp/none.mp", program]
        more = {"user": 65534, "group": 65534, "extra_groups": [], "capture_output": True, "text": True, "timeout": 60}
        done = subprocess.run(line, **more)
        assert (done.returncode, done.stderr) == (0, "")
        os.setxattr(program, "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))
        done = subprocess.run(line, **more)
        fact = "a program with capabilities: it cannot be watched"
        assert (done.returncode, done.stderr) == (4, f"gpt-hook: error: {program}: {fact}\n")


def test_runtime_is_found_by_its_variable(tmp_path):
    env = os.environ | {"GPT_RUNTIME": str(tmp_path)}
    line = [str(hooked.runtime() / "gpt-hook"), "run", "true"]
    done = subprocess.run(line, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 4
    assert (
        done.stderr == f"gpt-hook: error: {tmp_path}/libgpthook.so: not found: run 'make runtime', or set GPT_RUNTIME\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_where_proc_is_not_mounted(tmp_path):
    hidden = f"mount -t tmpfs none /proc && exec {hooked.runtime()}/gpt-hook run -o {tmp_path}/t.mp true"
    done = subprocess.run(["unshare", "-m", "sh", "-c", hidden], capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip("this container forbids mounts")
    said = "gpt-hook: error: libgpthook.so: can't be searched for: /proc isn't mounted; set GPT_RUNTIME\n"
    assert (done.returncode, done.stderr) == (4, said)


def test_force_deletes_nothing_of_another_user(tmp_path):
    if os.geteuid():
        pytest.skip("only root makes files of other users")
    program = hooked.compile_c(tmp_path / "program", "int main(void) { begin(); return 0; }")
    path = tmp_path / "t.mp"
    assert hooked.run(path, program).returncode == 0
    (header,) = Trace(path).of("header")
    theirs, ours = f"t.mp.{header['pid']}", f"t.mp.{header['pid']}.2"
    for name in (theirs, ours, "t.mp.buffers", "t.mp.note"):
        shutil.copy(path, tmp_path / name)
    os.chown(tmp_path / theirs, 2002, 2002)
    os.chown(tmp_path / "t.mp.buffers", 2002, 2002)
    (tmp_path / "victim").write_text("precious")
    path.unlink()
    path.symlink_to("victim")
    assert hooked.run(path, program, options=["-f"]).returncode == 0
    assert sorted(path.name for path in tmp_path.glob("t.mp*")) == ["t.mp", theirs, "t.mp.buffers", "t.mp.note"]
    assert not path.is_symlink() and path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_path_with_a_blank(tmp_path):
    """LD_PRELOAD would be split at the blank. Programs that the command starts are watched too."""
    shutil.copytree(hooked.runtime(), tmp_path / "a  b")
    call = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"
    line = [tmp_path / "a  b" / "gpt-hook", "run", "-q", "-o", tmp_path / "t.mp", "--device", "sim", "--"]
    line += ["sh", "-c", f'{sys.executable} -c "{call}"; {sys.executable} -c "{call}"']
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("t.mp")]) == 2


def test_a_run_inside_a_run_says_which_trace_lacks_the_command(tmp_path):
    inner = hooked.command("run", "-qo", tmp_path / "inner.mp", "--device", "sim", "--", sys.executable, "-c",
                           "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)")  # fmt: skip
    done = gpt_hook("run", "-qo", tmp_path / "outer\n.mp", "--device", "sim", "--", *inner)
    warning = f"gpt-hook: warning: {tmp_path}/outer\\x0a.mp won't have this command: another gpt-hook run records it\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", warning)
    assert [path.name for path in tmp_path.iterdir()] == ["inner.mp"]
