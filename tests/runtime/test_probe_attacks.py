"""gpt-hook -p: pipelines that fail in odd ways, files that change, limits, and programs that modify what they
inherited. On the simulated device.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build, check_bytes, good, kept, probed, unprobed

pytestmark = pytest.mark.full

STAGES = "gpt-extract --ptx | gpt-ptx-probe -p {} | gpt-asm --arch $GPT_ARCH"
PIPELINE = STAGES.format("gmem_bytes")
RUN = CLIENT + "int main(int argc, char **argv) { setup(argv[1]); run(); check(); return 0; }"


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Return a program that launches its kernel once."""
    return build(tmp_path_factory.mktemp("once"), RUN)


def processes(word: str) -> list[str]:
    """Return the processes that were started with a word in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            dead = "\nState:\tZ" in (folder / "status").read_text()
            if word.encode() in (folder / "environ").read_bytes() and not dead:
                found.append((folder / "cmdline").read_text())
    return found


@pytest.mark.parametrize("at", range(4))
def test_stage_exit_ends_the_pipeline(tmp_path, once, at):
    """If the pipeline went on without the stage, earlier stages would wait for a request, and the program for an
    answer.
    """
    stages = PIPELINE.split(" | ")
    stages.insert(at, "(echo 'out of luck' >&2; exit 3)")
    start = time.monotonic()
    trace = good(tmp_path, once, "--wait", "100", "--jit", " | ".join(stages))
    ((reason, launches),) = unprobed(trace).items()
    assert reason.startswith("the pipeline failed: ") and launches == 1
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("pipeline", [f"[ -p /dev/stderr ] && {{ yes >&2 & {PIPELINE}; }}", f"set -e; {PIPELINE}"])
def test_unusual_pipelines_work(tmp_path, once, pipeline):
    """Standard error is a pipe: output there takes no memory."""
    check_bytes(good(tmp_path, once, "--jit", pipeline), 1)


@pytest.mark.parametrize("pipeline", ["trap '' TERM; sleep 1000", f"setsid sleep 1000 & {PIPELINE}"])
def test_nothing_is_left_of_a_pipeline(tmp_path, once, pipeline):
    good(tmp_path, once, "--wait", "1", "--jit", pipeline)
    hooked.wait_until(lambda: not processes(str(tmp_path)))


@pytest.mark.parametrize("how", ["-p probe.toml", "-pprobe.toml", "--probe=probe.toml", "--probe 'probe.toml'"])
def test_changed_file_in_pipeline(tmp_path, once, how, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pipeline = PIPELINE.replace("-p gmem_bytes", how)
    show = ["gpt-ptx-probe", "-p", "gmem_bytes", "--show"]
    Path("probe.toml").write_bytes(subprocess.run(show, capture_output=True, check=True).stdout)
    check_bytes(good(tmp_path, once, "--jit", pipeline), 1)
    Path("probe.toml").write_text("nothing")
    assert sum(unprobed(good(tmp_path, once, "--jit", pipeline)).values()) == 1


def test_a_fault_of_the_moment_is_not_kept(tmp_path, once):
    """A compiler that's killed, for example because memory ran out, says nothing about the kernel, so the failure isn't
    cached.
    """
    flag, compiler = tmp_path / "flag", tmp_path / "cc"
    real = os.environ.get("CC", "cc")
    compiler.write_text(f'#!/bin/sh\n[ -e {flag} ] && case "$*" in *-o*) kill -9 $$ ;; esac\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path / "cache"), "CC": str(compiler)}
    out = tmp_path / "t.mp"
    for options in ((), ("-p", "gmem_bytes"), ("-p", "gmem_bytes")):  # the first run compiles the program's own kernel
        done = hooked.run(out, once, PTX, options=("-f", *options), env=env)
        assert done.returncode == 0, done.stderr
        if flag.exists():
            assert sum(unprobed(hooked.Trace(out)).values()) == 1
            flag.unlink()
        elif not options:
            flag.touch()
    check_bytes(hooked.Trace(out), 1)


def test_a_program_of_few_descriptors(tmp_path):
    """Most descriptors remain the program's, however many kernels it enumerates."""
    kernels = "".join(f".visible .entry k{i}() {{ ret; }}\n" for i in range(100))
    many = tmp_path / "many.ptx"
    many.write_text(".version 7.0\n.target sm_70\n.address_size 64\n" + kernels)
    source = (
        "#include <fcntl.h>\n#include <sys/resource.h>\n"
        + CLIENT
        + r"""
    int main(int argc, char **argv) {
        void *handles[100];
        int files = 0;
        OK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){64, 64}));
        begin();
        FILE *file = fopen(argv[1], "r");
        assert(file && fread(text, 1, sizeof(text) - 1, file));
        OK(cuModuleLoadData(&module, text));
        OK(D(cuModuleEnumerateFunctions)(handles, 100, module));
        while (open("/dev/null", O_RDONLY) >= 0)
            files++;
        assert(files > 48);
        return 0;
    }
    """
    )
    good(tmp_path, build(tmp_path, source), "--jit", "exec sleep 1000", arguments=(many,))


def test_program_overwrites_its_environment(tmp_path):
    """One process changes its name, like setproctitle(3); another one overwrites its environment."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        size_t count = 0;
        char *path = strdup(argv[1]), *first = environ[0], *end = NULL, **copy;
        for (; environ[count]; count++)
            end = environ[count] + strlen(environ[count]);
        copy = calloc(count + 1, sizeof(*copy));
        for (size_t i = 0; i < count; i++)
            copy[i] = strdup(environ[i]);
        environ = copy;
        memset(first, 'x', end - first);
        unsetenv("GPT_HOOK_BROKER");
        setup(path);
        run(), check();
        return 0;
    }
    """
    )
    program = build(tmp_path, source)
    for cache in (tmp_path, kept()):
        env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(cache)}
        options = ("-f", "-p", "gmem_bytes", "-k", "scale", "--filter", "other")
        done = hooked.run(tmp_path / "t.mp", program, PTX, options=options, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        check_bytes(hooked.Trace(tmp_path / "t.mp"), 1)


def test_signals_of_children_are_ignored(tmp_path, once):
    """The process that starts gpt-hook ignores these signals, and the program inherits that."""
    line = hooked.command("run", "-f", "-o", tmp_path / "t.mp", "--device", "sim", "-p", "gmem_bytes")
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    ignore = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # noqa: E731
    for program in (("grep", "SigIgn", "/proc/self/status"), (once, PTX)):
        done = subprocess.run([*line, *program], env=env, capture_output=True, text=True, preexec_fn=ignore, timeout=99)
        assert (done.returncode, done.stderr) == (0, "")
        assert not done.stdout or int(done.stdout.split()[1], 16) >> (signal.SIGCHLD - 1) & 1
    check_bytes(hooked.Trace(tmp_path / "t.mp"), 1)


def test_a_long_wait(tmp_path, once):
    check_bytes(good(tmp_path, once, "--wait", str(10**18), "--jit", PIPELINE), 1)


@pytest.mark.parametrize("folder", ["/dev/null/folder", "/proc/none", "/dev/null"])
def test_folder_that_keeps_nothing(tmp_path, once, folder, monkeypatch):
    monkeypatch.setenv("GPT_KEEP", folder)
    done, trace = probed(tmp_path, once, "-p", "gmem_bytes")
    assert (done.returncode, trace) == (1, None)
    assert done.stderr.startswith("gpt-hook: error: GPT_KEEP: '") and done.stderr.count("\n") == 1


def test_nothing_is_kept_where_another_user_could_lead_us(tmp_path, once, monkeypatch):
    """In a folder of theirs, other users could replace a subfolder by a link, and root would write to wherever it
    leads.
    """
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    for folder, fact in ((shared / "kept", "/shared': other users may write to it (mode 777)"),
                         (shared, "/shared': other users may write to it (mode 777)"),
                         (tmp_path / "link", "/link': is a symbolic link")):  # fmt: skip
        monkeypatch.setenv("GPT_KEEP", str(folder))
        done, trace = probed(tmp_path, once, "-p", "gmem_bytes")
        assert (done.returncode, trace) == (1, None) and done.stderr.endswith(f"{fact}\n")
    assert not [*shared.iterdir()] and not (tmp_path / "precious").exists()


def test_the_stage_that_reads_the_probes_is_killed(tmp_path):
    """If the stage that reads the probes is killed, gpt-hook says so and doesn't run the program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("gpt-hook", "libgpthook.so", "sim"):
        (folder / tool).symlink_to(hooked.runtime() / tool)
    (folder / "gpt-hook").unlink()
    shutil.copy(hooked.runtime() / "gpt-hook", folder)
    for tool in ("gpt-ptx-probe", "gpt-asm"):
        (folder / tool).write_text("#!/bin/sh\nkill -9 $$\n")
        (folder / tool).chmod(0o755)
    line = [folder / "gpt-hook", "run", "-o", tmp_path / "t.mp", "--device", "sim", "-p", "gmem_bytes", "true"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("gpt-hook: error: -p: gpt-ptx-probe, ")


def test_probe_changed_while_the_program_runs(tmp_path):
    """A changed probe isn't used, because its results would be cached as results of the original probe."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        FILE *file = fopen(argv[2], "a");
        fputs("# another one\n", file), fclose(file);
        setup(argv[1]);
        run(), check();
        return 0;
    }
    """
    )
    probe = tmp_path / "it's.toml"
    show = ["gpt-ptx-probe", "-p", "gmem_bytes", "--show"]
    probe.write_bytes(subprocess.run(show, capture_output=True, check=True).stdout)
    program = build(tmp_path, source)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found = []
    for changed in (probe, "/dev/null"):
        options = ("-f", "-p", probe, "-p", "block_sched")
        done = hooked.run(tmp_path / "t.mp", program, PTX, changed, options=options, env=env)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(unprobed(hooked.Trace(tmp_path / "t.mp")))
    assert found == [{"the pipeline failed: the file of a probe has changed since gpt-hook read it": 1}, {}]


def test_a_folder_or_pipe_as_probe_file(tmp_path, once, monkeypatch):
    """A folder may have the name of a built-in probe. A FIFO, such as a shell's <(COMMAND), can be read only once."""
    monkeypatch.chdir(tmp_path)
    Path("gmem_bytes").mkdir()
    check_bytes(good(tmp_path, once, "-p", "gmem_bytes"), 1)
    (tmp_path / "t.mp").unlink()
    os.mkfifo("fifo")
    done, trace = probed(tmp_path, once, "-p", "fifo")
    assert (done.returncode, trace) == (2, None)
    assert done.stderr.startswith(f"gpt-hook: error: {tmp_path}/fifo: not a regular file")


def test_kernel_looked_up_before_a_context_exists(tmp_path):
    """The device for which the kernel must be built is only known later."""
    source = (
        CLIENT
        + r"""
    int main(int argc, char **argv) {
        void *library, *kernel, *context;
        setup(argv[1]);
        OK(cuCtxSetCurrent(NULL));
        FILE *file = fopen(argv[1], "r");
        assert(fread(text, 1, sizeof(text) - 1, file));
        OK(D(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
        OK(D(cuLibraryGetKernel)(&kernel, library, "scale"));
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        OK(cuCtxSetCurrent(context));
        OK(D(cuLibraryGetModule)(&module, library));
        function = kernel;
        for (int i = 0; i < 600; i++) {
            run();
            OK(D(cuCtxSynchronize)());
            usleep(argc > 2 ? 0 : 50000);
        }
        check();
        return 0;
    }
    """
    )
    program = build(tmp_path, source)
    good(tmp_path, program, "-p", "gmem_bytes", "--launch-count", "1")
    trace = good(tmp_path, program, "-p", "gmem_bytes", arguments=(PTX, "once more"))  # now it's cached
    assert unprobed(trace) == {"it was not looked up by name, or is still being compiled": 1}
    check_bytes(trace, 599)
