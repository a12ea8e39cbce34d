"""Requests through gpt-hook's supervisor don't affect the program, and leave nothing behind."""

import os
import re
import subprocess
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.runtime import hooked, simulated
from tests.runtime.brokered import HEAD, Run
from tests.tiers import first, full


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path)
    yield made
    hooked.wait_until(lambda: not made.alive())


def test_one_pipeline_answers_and_the_program_notices_nothing(run):
    """The program ignores SIGCHLD, waits for any child, and has threads and a child that closes everything and outlives
    it.
    """
    script = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if not os.fork():
        os.closerange(3, 2000)
        os.setsid()
        sys.stdin.read()
        begin_all()
        run("f", 5)
        open(sys.argv[2], "w").close()
        os._exit(0)
    begin_all()
    run("a", 0)
    before = os.listdir("/proc/self/fd"), dict(os.environ)
    threads = [threading.Thread(target=run_one, args=(n,)) for n, name in enumerate("bcd")]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(values) == [1, 2, 3]
    assert (os.listdir("/proc/self/fd"), dict(os.environ)) == before
    assert "GPT_HOOK_BROKER" in os.environ
    print(os.waitpid(-1, os.WNOHANG), flush=True)
    """
    one = """
    values = []
    def run_one(n):
        ok(cu.cuCtxSetCurrent(context))
        mine = Memory(1)
        ok(launch(function(load(sys.argv[1]), "bcd"[n]), 1, 1, mine))
        values.extend(mine.read())
    """
    script = dedent(one) + dedent(script).replace(
        'run("a", 0)\n', 'run("a", 0)\ncontext = c_void_p()\nok(cu.cuCtxGetCurrent(byref(context)))\n'
    )
    done = run.folder / "done"
    process = run.start(script, done)
    assert process.stdout.readline() == "(0, 0)\n", process.stderr.read()
    assert process.wait() == 0
    most = min(8, len(os.sched_getaffinity(0)))
    assert 1 <= len(run.alive("gpt-asm\0--arch")) <= most  # one for the first kernel, and more while that one was busy
    (broker,) = run.alive("gpt-broker")
    held = {os.readlink(file) for file in Path(f"/proc/{broker}/fd").iterdir()}
    assert all(
        re.match(r"/dev/null$|socket:|anon_inode:|pipe:|/memfd:gpt|.*/gpt-broker\.\w+\.\w+$", file) for file in held
    ), held
    pipes = {os.readlink(f"/proc/{os.getpid()}/fd/{pipe.fileno()}") for pipe in (process.stdin, process.stderr)}
    assert not held & pipes and os.readlink(f"/proc/{broker}/cwd") == "/"
    time.sleep(0.5)  # by now it has scanned for remaining processes
    assert not done.exists()
    process.stdin.close()
    hooked.wait_until(done.exists)
    assert process.stderr.read() == ""


def test_the_second_kernel_waits_for_no_start(run):
    script = """
    begin_all()
    for n, name in enumerate("abc"):
        run(name, n)
        print(flush=True)
        sys.stdin.readline()
    """
    process = run.start(script)
    found = set()
    for _ in range(3):
        process.stdout.readline()
        found |= set(run.alive("gpt-"))
        process.stdin.write("\n"), process.stdin.flush()
    assert process.wait() == 0, process.stderr.read()
    assert len([pid for pid in found if pid != process.pid]) == 6  # the broker, two stages and three shells


@pytest.mark.parametrize("hook", first("", None), ids=["asked", "alone"])
def test_faults_reach_the_user(run, hook):
    run.image = run.ptx
    run.ptx.write_text(HEAD + ".visible .entry bad()\n{\n    .reg .b32 %r<2>;\n    frob.b32 %r1, 5;\n    ret;\n}\n\0")
    script = """
    begin_all()
    print(cu.cuModuleLoadData(byref(c_void_p()), Path(sys.argv[1]).read_bytes()))
    """
    fact = "libcuda.so.1: error: kernel 'bad': line 7: not supported: 'frob.b32 %r1, 5;'\n"
    assert run(script, hook=hook) == (0, "218\n", fact)
    status, out, err = run(script, hook=hook, CC="/nowhere/cc")
    assert (status, out) == (0, "221\n") and err.count("\n") == 1
    assert "error: kernel 'bad': " in err and "/nowhere/cc: no C compiler" in err


SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.full
@pytest.mark.parametrize("flags", [(), full(SANITIZERS)])
@pytest.mark.parametrize("late", [True, full(False)], ids=["late", "idle"])
def test_late_or_idle_pipeline_is_ended(run, tmp_path, late, flags):
    """A live stream is written at the same time. It ends with the last process that has it open."""
    times = ("-DGPT_PATIENCE=1", "-DGPT_LEISURE=600") if late else ("-DGPT_PATIENCE=600", "-DGPT_LEISURE=1")
    script = """
    begin_all()
    print(launch(function(load(sys.argv[1]), "a"), 1, 1, memory), file=sys.stderr, flush=True)
    sys.stdin.read()
    """
    env = {"GPT_RUNTIME": str(hooked.runtime()), "ASAN_OPTIONS": "detect_leaks=0"}
    if late:  # on a busy machine, even finding the module's declarations takes a second, so have them cached
        env["CC"] = str(run.folder / "slow")
        assert run("begin_all()\nload(sys.argv[1])", CC=env["CC"]) == (0, "", "")
    process = run.start(script, hook=hooked.build_launcher(tmp_path, *times, *flags), options=("-o", "-"), **env)
    reader = threading.Thread(target=process.stdout.buffer.read)
    reader.start()
    if late:
        assert "didn't answer in time" in process.stderr.readline()
    assert process.stderr.readline() == ("221\n" if late else "0\n")
    hooked.wait_until(lambda: not run.alive("--arch"))
    assert len(run.alive("gpt-broker")) == 1
    process.stdin.close()
    reader.join()
    assert process.wait() == 0 and process.stderr.read() == ""


@pytest.mark.full
@pytest.mark.parametrize("count", [12, full(200)])
def test_many_processes_ask_at_once(run, tmp_path, count):
    program = simulated.build(
        tmp_path / "client",
        """
        int main(int argc, char **argv) {
            char *text = NULL, name[16];
            size_t room = 0;
            void *module, *function;
            uint64_t memory;
            int value = -1, number = 6 + atoi(argv[2]) % 8;
            assert(getdelim(&text, &room, 0, fopen(argv[1], "r")) > 0);
            begin();
            sprintf(name, "many%d", number - 6);
            OK(cuModuleLoadData(&module, text));
            OK(cuModuleGetFunction(&function, module, name));
            OK(D(cuMemAlloc_v2)(&memory, (size_t)4));
            OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, (void *[]){&memory}, 0));
            OK(D(cuMemcpyDtoH_v2)(&value, memory, (size_t)4));
            return value != number;
        }
        """,
    )
    loop = 'for n in $(seq "$2"); do "$0" "$1" $n & all="$all $!"; done; for n in $all; do wait $n || exit; done'
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "--", "bash", "-c", loop, program, run.ptx)
    done = subprocess.run([*line, str(count)], env=run.env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
