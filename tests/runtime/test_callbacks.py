"""gpt-hook -p with a probe that has a callback: it runs on each launch, and the program is unaffected."""

import os
import signal
import stat
import subprocess
import threading
import time

import pytest

from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build, kept, saved

PROBE = """
callback = "{callback}"

[map.blocks]
level = "block"
cap = 1
data = {{time = "u64"}}

[probe.blocks]
position = "kernel"
level = "block"
before = "SAVE [blocks] {{TIME}};"
"""
PROGRAM = (
    "#include <fcntl.h>\n#include <sys/wait.h>\n"
    + CLIENT
    + r"""
static void forge(void) { // another trace, which names another callback
    static char path[4096], bytes[1 << 22];
    snprintf(path, sizeof(path), "%s/%d", getenv("GPT_HOOK_FOLDER"), getpid());
    ssize_t size = pread(open(path, O_RDONLY), bytes, sizeof(bytes), 0);
    char *at = memmem(bytes, size, "/hook.sh", 8);
    assert(at);
    memcpy(at, "/evil.sh", 8);
    strcat(path, "9");
    assert(write(open(path, O_RDWR | O_CREAT, 0600), bytes, size) == size);
}
int main(int argc, char **argv) {
    int status = 0;
    const char *how = argv[2];
    if (!strcmp(how, "forks") && fork()) {
        wait(&status);
        puts("parent");
    }
    setup(argv[1]);
    run(), run();
    check();
    puts("done"), fflush(stdout);
    if (!strcmp(how, "forges"))
        usleep(300000), forge();
    if (strcmp(how, "waits") && strcmp(how, "dies"))
        return atoi(how);
    OK(D(cuCtxSynchronize)());
    usleep(500000);
    if (!strcmp(how, "dies"))
        kill(getpid(), SIGKILL);
    pause();
}
"""
)
HOOK = "#!/bin/sh\necho callback\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("program"), "#include <signal.h>\n" + PROGRAM)


def probe(folder, text=HOOK, callback="hook.sh"):
    (folder / "hook.sh").write_text(text)
    (folder / "hook.sh").chmod(0o700)
    (folder / "mine.toml").write_text(PROBE.format(callback=callback))
    return folder / "mine.toml"


def command(folder, program, how, *options, output="t.mp"):
    line = hooked.command("run", "-o", output, "--device", "sim", "-p", folder / "mine.toml", *options)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept(), "TMPDIR": str(folder)}
    return [*line, "--", str(program), str(PTX), how], {"cwd": folder, "env": env}


def run(folder, program, how="0", *options, **more):
    line, keys = command(folder, program, how, *options, **more)
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False, **keys)
    hooked.wait_until(lambda: not [*folder.glob("gpt-hook.*"), *folder.glob("gpt-dump.*")])
    return done


def launches(folder):
    return len(saved(folder / "t.mp", "blocks"))


@pytest.mark.full
def test_a_callback_runs_on_each_launch(tmp_path, program):
    probe(tmp_path)
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["callback", "callback", "done"]
    assert launches(tmp_path) == 2 and stat.S_IMODE((tmp_path / "t.mp").stat().st_mode) == 0o600
    assert not (tmp_path / "t.mp.buffers").exists()
    again = run(tmp_path, program)
    assert again.returncode == 1 and "exists; -f overwrites it" in again.stderr
    assert run(tmp_path, program, "0", "-f").returncode == 0


@pytest.mark.full
@pytest.mark.parametrize("how", ["0", "7"])
def test_the_status_is_the_programs(tmp_path, program, how):
    probe(tmp_path, "#!/bin/sh\nexit 5\n")
    done = run(tmp_path, program, how)
    assert done.returncode == int(how)
    path = (tmp_path / "hook.sh").resolve()
    assert done.stderr.splitlines() == [
        f"gpt-dump: warning: {path}: ended with status 5",
        f"gpt-dump: warning: {path}: failed on 2 launches",
    ]
    assert launches(tmp_path) == 2


@pytest.mark.full
def test_a_folder_of_any_name(tmp_path, program):
    folder = tmp_path / 'it\'s "a"\\b\n\x01 folder'
    folder.mkdir()
    probe(folder)
    done = run(folder, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\ncallback\ncallback\n", "")


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        ("absent.py", "absent.py: no such callback next to its probe file"),
        pytest.param("/nonexistent/x", "/nonexistent/x: ", marks=pytest.mark.full),
        pytest.param("mine.toml", "mine.toml: no such callback next to its probe file", marks=pytest.mark.full),
    ],
)
def test_missing_callback_is_reported_before_the_run(tmp_path, program, callback, said):
    probe(tmp_path, callback=callback)
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"gpt-hook: error: {said}")
    assert not (tmp_path / "t.mp").exists()


@pytest.mark.full
def test_the_name_of_an_analysis_is_not_run(tmp_path, program):
    probe(tmp_path, callback="gmem_bytes")
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert hooked.Trace(tmp_path / "t.mp").of("header")[0]["via"] == []


@pytest.mark.full
def test_wherever_the_stream_goes(tmp_path, program):
    probe(tmp_path)
    line, keys = command(tmp_path, program, "0", output="-")
    with open(tmp_path / "t.mp", "wb") as file:
        done = subprocess.run(line, stdout=file, stderr=subprocess.PIPE, text=True, timeout=120, check=True, **keys)
    assert sorted(done.stderr.split()) == ["callback", "callback", "done"] and launches(tmp_path) == 2
    done = run(tmp_path, program, output="|cat >t.mp; exit 9")
    assert (done.returncode, done.stdout) == (9, "done\n") and launches(tmp_path) == 2
    assert done.stderr.split() == ["callback", "callback"]
    os.mkfifo(tmp_path / "fifo")
    found = []
    reader = threading.Thread(target=lambda: found.append((tmp_path / "fifo").read_bytes()))
    reader.start()
    done = run(tmp_path, program, output="fifo")
    reader.join()
    (tmp_path / "t.mp").write_bytes(found[0])
    assert done.returncode == 0 and launches(tmp_path) == 2


@pytest.mark.full
def test_a_child_has_its_launches_too(tmp_path, program):
    probe(tmp_path)
    done = run(tmp_path, program, "forks")
    assert done.returncode == 0
    assert sorted(done.stdout.split()) == ["callback"] * 4 + ["done", "done", "parent"]


@pytest.mark.full
def test_program_forges_callback_in_its_trace(tmp_path, program):
    probe(tmp_path)
    (tmp_path / "evil.sh").write_text("#!/bin/sh\necho evil\n")
    (tmp_path / "evil.sh").chmod(0o700)
    done = run(tmp_path, program, "forges")
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["callback", "callback", "done"])
    assert done.stderr == f"gpt-dump: warning: {tmp_path}/evil.sh: not a callback of this run; it is not run\n"


@pytest.mark.full
def test_program_killed(tmp_path, program):
    probe(tmp_path)
    done = run(tmp_path, program, "dies")
    assert done.returncode == -signal.SIGKILL
    assert sorted(done.stdout.split()) == ["callback", "callback", "done"] and launches(tmp_path) == 2


@pytest.mark.full
def test_keys_that_interrupt(tmp_path, program):
    """The first key ends the program while callbacks continue, and the second key ends them."""
    probe(tmp_path, f"#!/bin/sh\necho $$ >>'{tmp_path}/pids'\nsleep 100\n")
    line, keys = command(tmp_path, program, "waits")
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, **keys) as process:
        hooked.wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == -signal.SIGINT
    hooked.wait_until(lambda: not [*tmp_path.glob("gpt-hook.*"), *tmp_path.glob("gpt-dump.*")])
    for pid in (tmp_path / "pids").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
    assert launches(tmp_path) == 2


@pytest.mark.full
def test_hanging_callback_does_not_delay_the_program(tmp_path, program):
    probe(tmp_path, "#!/bin/sh\nsleep 100\n")
    line, keys = command(tmp_path, program, "0")
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, process_group=0, **keys) as process:
        assert process.stdout.readline() == "done\n"
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 0
    assert launches(tmp_path) == 2


@pytest.mark.full
def test_callback_kills_its_process(tmp_path, program):
    """A message reports that gpt-dump was killed, and the folder with the launches is still removed."""
    probe(tmp_path, "#!/bin/sh\nkill -9 $PPID\n")
    done = run(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == ("gpt-hook: warning: gpt-dump was ended by signal 9: callbacks and the trace end there\n")
