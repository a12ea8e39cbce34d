"""Live streams: -o -, -o FIFO, -o "|command". The helper follows the traces, whatever happens to other processes."""

import os
import pty
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from gpt.stream import wire
from gpt.trace.kinds import RUNS
from gpt.trace.process import iter_processes
from gpt.trace.used import read_used
from tests.runtime import hooked
from tests.runtime.clients import DAEMON, FORK, LOOP, THREADS, WORK
from tests.runtime.following import launches, live, private_folder, read, segments  # noqa: F401
from tests.runtime.hooked import Trace
from tests.tiers import full

# Launches for each line of input, and reports it.
TOLD = r"""
int main(void) {
    char line[100];
    begin();
    void *f = kernel("foo");
    while (fgets(line, sizeof(line), stdin)) {
        for (int i = 0; i < atoi(line); i++)
            launch(f);
        puts("done"), fflush(stdout);
    }
    return 7;
}
"""

ASKS = "for (int i = 0, version; i < 1000; i++)\n cuDriverGetVersion(&version);\n return NULL"


def calls(records: list[dict]) -> list[dict]:
    """Return the rows of all calls, each after the records that it refers to."""
    apis, found = {}, []
    for record in records:
        if record["kind"] == "api":
            apis[record["id"]] = record
        if record["kind"] == "calls":
            told = {"thread": record["thread"]}
            found += [row | told | {"name": apis[row["api"]]["name"]} for row in hooked.rows(record)]
    return found


def test_stream_equals_file(tmp_path):
    program = hooked.compile_c(tmp_path / "client", THREADS, "-DROUNDS=2", "-DAT_ONCE=4")
    assert hooked.run(tmp_path / "t.mp", program).returncode == 0
    process = live("-", program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, b"")
    trace, records = Trace(tmp_path / "t.mp"), read(out)
    (segment,) = segments(records)
    assert (segment[0]["pid"], segment[0]["argv"]) == (process.pid, [str(program)])
    assert segment[-1]["kind"] == "end"
    found = calls(records)
    assert Counter(call["name"] for call in found) == trace.names
    assert all(call["duration"] for call in found) and len({(c["start"], c["thread"]) for c in found}) == len(found)
    assert launches(records) == trace.launches
    for kind in ("library", "module", "function", "device"):
        assert sum(r["kind"] == kind for r in records) == len(trace.of(kind)), kind


@pytest.mark.parametrize("rounds", [1000, full(5000)])
def test_times_on_the_gpu_and_counts_of_queries(tmp_path, rounds):
    program = hooked.compile_c(tmp_path / "client", WORK.replace("return NULL", ASKS), f"-DROUNDS={rounds}")
    process = live("-", program, options=["--gpu-time"], stdout=subprocess.PIPE)
    records = read(process.communicate()[0])
    assert process.returncode == 0 and len(segments(records)) == 1
    apis, timed, counted = {}, Counter(), Counter()
    for record in records:
        if record["kind"] == "api":
            apis[record["id"]] = record["name"]
        elif record["kind"] in ("gpu_times", "counts"):
            for row in hooked.rows(record):
                if record["kind"] == "counts":
                    counted[apis[row["api"]]] += row["count"]
                else:
                    timed[apis[row["api"]]] += 1
    assert timed == dict.fromkeys(("cuLaunchKernel", "cuMemcpyHtoDAsync", "cuMemsetD8Async"), 4 * rounds)
    assert counted["cuDriverGetVersion"] == 4 * 1000


def test_output_of_the_program_goes_to_standard_error(tmp_path):
    process = live("-", "sh", "-c", "echo $$; exit 3", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate()
    assert (process.returncode, err) == (3, f"{process.pid}\n".encode())
    header, end = read(out)  # nothing used the driver, but there's still a segment
    assert header["tool"] == "gpt-hook" and header["argv"] == ["sh", "-c", "echo $$; exit 3"]
    assert (end["kind"], end["records"]) == ("end", 0)


def test_records_come_while_the_program_runs(tmp_path):
    program = hooked.compile_c(tmp_path / "client", TOLD)
    # The stream goes into one of our stages, which passes records on at once.
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with live("-", program, **pipe) as process:
        records = wire.read_records(process.stdout, "live")
        seen, waits = 0, []
        for count in (1, 3, 700, 20000, *[1] * 40):
            if len(waits) >= 4 and min(waits) < 0.15:  # the machine may be busy: one punctual record is enough
                break
            process.stdin.write(b"%d\n" % count), process.stdin.flush()
            assert process.stderr.readline() == b"done\n"
            start, kinds = time.monotonic(), []
            while not (seen == count and kinds[-1] == "sync"):
                record = next(records)
                kinds.append(record["kind"])
                if record["kind"] == "calls":
                    seen += sum("grid_x" in row for row in hooked.rows(record))
            waits.append(time.monotonic() - start)
            seen = 0
        assert min(waits) < 0.15, waits
        process.stdin.close()
        assert [r["kind"] for r in records][-1] == "end"
    assert process.returncode == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("is_read", [True, False])
def test_a_fifo_of_another_user_gets_nothing(is_read, tmp_path):
    """If another user's FIFO were written to, anybody who guesses the name of a trace in /tmp could read it.

    Without a reader, opening it would wait forever.
    """
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    os.mkfifo(folder / "t.mp")
    os.chown(folder / "t.mp", 65534, 65534)
    reader = os.open(folder / "t.mp", (os.O_RDONLY if is_read else os.O_PATH) | os.O_NONBLOCK)
    line = hooked.command("run", "-f", "-o", folder / "t.mp", "--", "echo", "ran")
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    fact = "is a named pipe of another user, in a folder that others may write to"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"gpt-hook: error: {folder}/t.mp: {fact}\n"
    assert not is_read or os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize("options", [[], ["-f"]])
@pytest.mark.parametrize("target", ["/proc/self/fd/1", "/dev/null", "folder"])
def test_a_link_to_a_device_or_folder_is_not_replaced(tmp_path, target, options):
    """/dev/stdout is a link. With -f and standard output to a file, gpt-hook once removed it from the machine."""
    (tmp_path / "folder").mkdir()
    link = tmp_path / "stdout"
    link.symlink_to(target)
    line = hooked.command("run", *options, "-o", link, "--", "echo", "ran")
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, (tmp_path / "out").read_text()) == (1, "")
    assert done.stderr == f"gpt-hook: error: {link}: not a regular file\n"
    assert os.readlink(link) == target


def test_fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    program = hooked.compile_c(tmp_path / "client", LOOP.replace("launch(f); }", 'launch(f); puts("done"); }'))
    reader = subprocess.Popen(["cat", tmp_path / "fifo"], stdout=subprocess.PIPE)
    process = live(tmp_path / "fifo", program, "1000", stdout=subprocess.PIPE)
    assert process.communicate()[0] == b"done\n" and process.returncode == 0
    out, _ = reader.communicate()
    assert len(segments(read(out))) == 1 and launches(read(out)) == {"foo": 1000}


def test_command(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP.replace("launch(f); }", 'launch(f); puts("done"); }'))
    process = live(f"|cat >{tmp_path}/%p; echo said", program, "1000", stdout=subprocess.PIPE)
    assert process.communicate()[0] == b"done\nsaid\n" and process.returncode == 0
    assert launches(read((tmp_path / "%p").read_bytes())) == {"foo": 1000}


def test_a_stage_reads_it(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP)
    done = subprocess.run(
        f"{hooked.runtime()}/gpt-hook run -o - --device sim -- {program} 100 | gpt-locate --json --used /dev/stdin"
        f" /dev/null; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
    )
    assert "empty: no segment" in done.stderr and "/dev/null" in done.stderr  # it read the trace, and found no library
    assert done.stdout.splitlines()[-1] == "0"


def test_children(tmp_path):
    program = hooked.compile_c(tmp_path / "client", FORK)
    process = live("-", program, "x", stdout=subprocess.PIPE)
    found = segments(read(process.communicate()[0]))
    assert found[0][0]["pid"] == process.pid and launches(found[0]) == {"foo": 2}
    assert len(found) == 4 and all(launches(s) == {"bar": 1} and s[-1]["kind"] == "end" for s in found[1:])
    assert not any("path" in r for s in found for r in s if r["kind"] == "child")


# A parent and three children. Each launches `foo` as often as its number says, whenever it reads a line.
TOGETHER = r"""
int main(void) {
    char line[100];
    int ends[3][2], number = 4;
    begin_trace();
    for (int i = 0; i < 3; i++) {
        pipe(ends[i]);
        if (!fork()) {
            number = i + 1;
            dup2(ends[i][0], 0);
            stdin = fdopen(0, "r");
            for (int j = 0; j <= i; j++)
                close(ends[j][1]);
            break;
        }
    }
    begin();
    void *f = kernel("foo");
    while (fgets(line, sizeof(line), stdin)) {
        for (int i = 0; i < number; i++)
            launch(f);
        for (int i = 0; number == 4 && i < 3; i++)
            write(ends[i][1], line, strlen(line));
    }
    for (int i = 0; number == 4 && i < 3; i++)
        close(ends[i][1]);
    while (wait(NULL) > 0)
        ;
}
"""


def test_processes_that_live_at_once_take_turns(tmp_path):
    program = hooked.compile_c(tmp_path / "client", TOGETHER, "-includesys/wait.h")
    process = live("-", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    found, turns, counts = [], wire.Segments(), Counter()
    records = wire.read_records(process.stdout, "live")
    for rounds in range(1, 4):
        process.stdin.write(b"go\n"), process.stdin.flush()
        # All counts arrive while all processes are alive.
        while sorted(counts.values()) != [n * rounds for n in (1, 2, 3, 4)]:
            found.append(next(records))
            number = turns.add(found[-1])
            if found[-1]["kind"] == "launches":
                counts[number] += sum(row["count"] for row in hooked.rows(found[-1]))
    assert len(turns.open) == 4 and sum(record["kind"] == "resume" for record in found) >= 6
    process.stdin.close()
    found += records
    assert process.wait() == 0
    made = segments(found)
    assert [segment[-1]["kind"] for segment in made] == ["end"] * 4 and made[0][0]["pid"] == process.pid
    assert sorted(launches(segment)["foo"] for segment in made) == [3, 6, 9, 12]
    expected = {segment[0]["pid"]: launches(segment)["foo"] for segment in made}
    # Readers get the same counts, even from two such streams in one file.
    (tmp_path / "live.mp").write_bytes(b"".join(map(wire.pack, found)) * 2)
    processes = list(iter_processes(wire.read_records(open(tmp_path / "live.mp", "rb"), "x"), RUNS))
    assert len(processes) == 8
    for one in processes:
        assert sum(rows["count"].sum() for _, rows in one.launches.take()) == expected[one.pid]
    assert read_used([tmp_path / "live.mp"], allow_incomplete=False).warnings == []


def test_killed_processes_are_interrupted_segments(tmp_path):
    program = hooked.compile_c(tmp_path / "client", FORK)
    process = live("-", program, "x", "y", stdout=subprocess.PIPE)  # its children abort
    (tmp_path / "live.mp").write_bytes(process.communicate()[0])
    found = segments(read((tmp_path / "live.mp").read_bytes()))
    assert [s[-1]["kind"] == "end" for s in found] == [True, False, False, False]
    assert all(launches(s) == {"bar": 1} for s in found[1:])
    used = read_used([tmp_path / "live.mp"], allow_incomplete=False)
    assert set(used.names) == {"foo", "bar"} and len(used.warnings) == 1
    assert not any("path" in r for s in found for r in s if r["kind"] == "child")


def test_kill_loses_nothing(tmp_path):
    program = hooked.compile_c(
        tmp_path / "client", TOLD.replace("puts(", "kill(getpid(), 9), puts("), "-includesignal.h"
    )
    process = live("-", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = process.communicate(b"54321\n")
    assert process.returncode == -signal.SIGKILL
    (segment,) = segments(read(out))
    assert launches(segment) == {"foo": 54321} and segment[-1]["kind"] != "end"
    assert sum(call["name"] == "cuLaunchKernel" for call in calls(segment)) == 54321


def test_a_daemon_is_waited_for(tmp_path):
    source = DAEMON.replace("GO", str(tmp_path / "go"))
    process = live("-", hooked.compile_c(tmp_path / "client", source), stdout=subprocess.PIPE)
    assert process.wait() == 0
    (tmp_path / "go").touch()  # it launches only now, and the stream still gets it
    found = segments(read(process.stdout.read()))
    assert [launches(s) for s in found] == [{}, {"bar": 1}]


def test_reader_exit_is_harmless(tmp_path):
    source = r"""
    int main(void) {
        begin_trace();
        fork();
        begin();
        void *f = kernel("foo");
        for (int i = 0; i < 30000; i++)
            launch(f);
        getchar();
        for (int i = 0; i < 30000; i++)
            launch(f);
        return 5;
    }
    """
    program = hooked.compile_c(tmp_path / "client", source)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = live("-", program, **pipes)
    assert len(process.stdout.read(1000)) == 1000
    process.stdout.close(), process.stdin.close()
    assert (process.wait(), process.stderr.read()) == (5, b"")


def test_killed_reader_is_reported(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP)
    process = live("|kill -9 $$", program, "3", stderr=subprocess.PIPE)
    said = b"gpt-hook: warning: the command of -o was ended by signal 9: the stream ends there\n"
    assert (process.wait(30), process.stderr.read()) == (128 + 9, said)


def test_a_slow_reader_does_not_stop_the_program(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP)
    process = live("-", program, "100000", stdout=subprocess.PIPE)
    assert process.wait(30) == 0  # nothing has been read yet
    assert launches(read(process.stdout.read())) == {"foo": 100000}


def test_records_that_were_read_leave_the_disk(tmp_path, private):
    program = hooked.compile_c(tmp_path / "client", TOLD)
    process = live("|cat >/dev/null", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"600000\n"), process.stdin.flush()
    assert process.stdout.readline() == b"done\n"
    (path,) = private.glob("*/[0-9]*")
    deadline = time.monotonic() + 20
    while path.stat().st_blocks * 512 > 5 << 20:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert path.stat().st_size > 30 << 20
    process.stdin.close()
    assert process.wait() == 7


def test_trace_truncated_meanwhile(tmp_path, private):
    program = hooked.compile_c(tmp_path / "client", TOLD)
    process = live("-", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"100\n"), process.stdin.flush()
    assert process.stderr.readline() == b"done\n"
    records = wire.read_records(process.stdout, "live")
    while next(records)["kind"] != "sync":
        pass
    (path,) = private.glob("*/[0-9]*")
    os.truncate(path, 0)
    process.stdin.write(b"100\n"), process.stdin.close()
    assert all(record["kind"] != "end" for record in records)  # and the folder is removed: see `private`
    assert process.wait() == 7 and b"was truncated; nothing more is recorded" in process.stderr.read()


def test_a_terminal_is_refused(tmp_path):
    ours, theirs = pty.openpty()
    process = live("-", "true", stdout=theirs, stderr=subprocess.PIPE)
    assert process.communicate()[1] == b"gpt-hook: error: -o -: standard output is a terminal\n"
    assert process.returncode == 2
    os.close(ours), os.close(theirs)


def test_full_disk_after_the_stream(tmp_path):
    program = hooked.compile_c(tmp_path / "client", LOOP)
    with open("/dev/full", "wb") as full:
        process = live("-", program, "1000", stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate()
    assert process.returncode == 0
    assert err == b"gpt-hook: error: -: No space left on device; the stream ends\n"


def test_stopped_helper_cleans_up(tmp_path):
    process = live("-", "cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    pipe = f"pipe:[{os.fstat(process.stdout.fileno()).st_ino}]"

    def writes_to_us(folder):
        try:
            return int(folder.name) != os.getpid() and pipe in [os.readlink(file) for file in (folder / "fd").iterdir()]
        except OSError:  # it is gone
            return False

    def is_ready(pid):
        """Return whether gpt-hook has made its folder; after that, it handles the signal."""
        try:
            (caught,) = re.findall(r"^SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.M)
        except OSError:
            return False
        return int(caught, 16) >> (signal.SIGTERM - 1) & 1

    def find():
        found = (int(folder.name) for folder in Path("/proc").glob("[0-9]*") if writes_to_us(folder))
        return [pid for pid in found if pid != process.pid and is_ready(pid)]

    hooked.wait_until(find)
    (helper,) = find()
    os.kill(helper, signal.SIGTERM)
    assert process.stdout.read() == b""
    process.stdin.close()
    assert process.wait() == 0


def find_helper(private):
    """Return the process that holds the lock in the folder, once the program writes its trace there."""
    hooked.wait_until(lambda: [*private.glob("*/[0-9]*")])
    (lock,) = private.glob("*/.helper")

    def holders():
        found = set()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it's gone
                for file in os.listdir(process / "fd"):
                    if (process / "fd" / file).samefile(lock) and "lock:" in (process / "fdinfo" / file).read_text():
                        found.add(int(process.name))
        return found

    hooked.wait_until(lambda: len(holders()) == 1)  # gpt-hook has become the command
    return holders().pop()


@pytest.mark.parametrize("output", ["-", "|cat >/dev/null"])
def test_killed_helper_ends_the_trace(tmp_path, private, output):
    # A child launches at the same time; files that don't belong to the run stay.
    source = r"""
    int main(void) {
        char go;
        begin_trace();
        fork();
        begin();
        void *f = kernel("foo");
        launch(f);
        close(0), open(GO, O_RDONLY), read(0, &go, 1);
        for (int i = 0; i < 200000; i++)
            launch(f);
        while (wait(NULL) > 0)
            ;
        return 7;
    }
    """
    os.mkfifo(tmp_path / "go")
    flags = (f'-DGO="{tmp_path}/go"', "-includefcntl.h", "-includesys/wait.h")
    program = hooked.compile_c(tmp_path / "client", source, *flags)
    process = live(output, program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    hooked.wait_until(lambda: len([*private.glob("*/[0-9]*")]) == 2)
    os.kill(find_helper(private), signal.SIGKILL)
    (folder,) = private.glob("gpt-hook.*")
    (folder / "mine").touch()
    (tmp_path / "go").write_bytes(b"12")
    _, err = process.communicate()
    line = f"gpt-hook: error: {folder}: the helper that passes the stream on was killed; nothing more is recorded\n"
    assert (process.returncode, err.decode()) == (7, line)
    assert os.listdir(folder) == ["mine"]
    (folder / "mine").unlink(), folder.rmdir()


def test_a_short_program_tidies_up_where_the_helper_was_killed(tmp_path, private):
    program = hooked.compile_c(tmp_path / "client", TOLD)
    process = live("-", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"1\n"), process.stdin.flush()
    assert process.stderr.readline() == b"done\n"
    helper = find_helper(private)
    os.kill(helper, signal.SIGKILL)
    hooked.wait_until(lambda: not os.path.exists(f"/proc/{helper}"))  # its lock lasts as long as it does
    process.stdin.close()
    assert process.wait() == 7 and b"was killed; nothing more is recorded" in process.stderr.read()


def test_gpt_hook_tidies_up_where_all_others_were_killed(tmp_path, private):
    program = hooked.compile_c(tmp_path / "client", "#include <signal.h>\n" + TOLD.replace("return 7", "pause()"))
    process = live("|cat >/dev/null", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"1\n"), process.stdin.close()
    assert process.stdout.readline() == b"done\n"
    helper = find_helper(private)
    (trace,) = private.glob("*/[0-9]*")
    os.kill(helper, signal.SIGKILL)
    os.kill(int(trace.name), signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not [*private.glob("gpt-hook.*")]


def test_the_next_stream_tidies_up_where_all_were_killed(tmp_path, private):
    program = hooked.compile_c(tmp_path / "client", "#include <signal.h>\n" + TOLD.replace("return 7", "pause()"))
    process = live("|cat >/dev/null", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdin.write(b"1\n"), process.stdin.close()
    assert process.stdout.readline() == b"done\n"
    (trace,) = private.glob("*/[0-9]*")
    helper = find_helper(private)
    os.kill(helper, signal.SIGSTOP)  # otherwise it would clean up once the others have ended
    for pid in (process.pid, int(trace.name), helper):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    (left,) = private.glob("gpt-hook.*")
    hooked.wait_until(lambda: not os.path.exists(f"/proc/{trace.name}"))
    names = ["AAAAAA", "BBBBBB", "CCCCCC"]  # without a lock, with a link in its place, and a link itself
    kept = [left.with_name(left.name[:-6] + name) for name in names]
    kept[0].mkdir(0o700), kept[1].mkdir(0o700)
    (kept[1] / ".helper").symlink_to(left / ".helper")
    kept[2].symlink_to(tmp_path)
    (tmp_path / ".helper").touch(0o600)
    os.utime(tmp_path / ".helper", (1, 1))
    assert live("|cat >/dev/null", "true").wait() == 0 and left.exists()  # it may be about to be locked
    os.utime(left / ".helper", (1, 1))
    assert live("|cat >/dev/null", "true").wait() == 0
    hooked.wait_until(lambda: sorted(private.glob("gpt-hook.*")) == kept)
    assert (tmp_path / ".helper").exists()
    kept[0].rmdir(), (kept[1] / ".helper").unlink(), kept[1].rmdir(), kept[2].unlink()


@pytest.mark.full
def test_the_helper_is_clean_under_a_sanitizer(tmp_path, monkeypatch):
    folder = tmp_path / "runtime"
    folder.mkdir()
    hooked.build_launcher(folder, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    monkeypatch.setenv("GPT_RUNTIME", str(hooked.runtime()))
    many = 'void *f = kernel("foo"); for (int i = 0; i < 70000; i++) launch(f);'
    program = hooked.compile_c(tmp_path / "client", FORK.replace('launch(kernel("foo"));', many, 1))
    line = [folder / "gpt-hook", "run", "-o", "-", "--device", "sim", "--", program, "x"]
    done = subprocess.run(line, capture_output=True, env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"})
    assert (done.returncode, done.stderr) == (0, b"")
    found = segments(read(done.stdout))
    assert len(found) == 4 and launches(found[0]) == {"foo": 70001}


def test_folder_replacing_the_stream_folder_is_untouched(tmp_path):
    """If TMPDIR has no sticky bit, anybody can put a folder or a link in place of ours. Root once created files
    wherever such a link led.
    """
    program = hooked.compile_c(tmp_path / "client", LOOP)
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    (home := tmp_path / "home").mkdir()
    (home / "notes.txt").write_text("precious")
    swap = f'mv "$GPT_HOOK_FOLDER" "{tmp_path}/moved" && ln -s "{home}" "$GPT_HOOK_FOLDER"'
    swap += f" && '{program}' 5"
    line = [hooked.runtime() / "gpt-hook", "run", "-q", "--device", "sim", "-o", "-", "--", "sh", "-c", swap]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.run(line, env=os.environ | {"TMPDIR": str(shared)}, check=False, **pipes)
    assert (done.returncode, launches(read(done.stdout))) == (0, {})
    fact = "another user has put something else there; nothing more is recorded"
    assert f"gpt-hook: error: {next(shared.glob('gpt-hook.*'))}: {fact}\n" in done.stderr.decode()
    assert [path.name for path in home.iterdir()] == ["notes.txt"]
    assert not list((tmp_path / "moved").iterdir())


def test_stopped_helper_loses_no_records(tmp_path, private):
    """A stopped helper is like a slow reader: the program's data waits on disk meanwhile."""
    program = hooked.compile_c(tmp_path / "client", TOLD)
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = live(f"|cat >'{tmp_path}/t.mp'", program, **pipes, stdout=subprocess.PIPE)
    process.stdin.write(b"1\n"), process.stdin.flush()
    assert process.stdout.readline() == b"done\n"
    os.kill(helper := find_helper(private), signal.SIGSTOP)
    process.stdin.write(b"70000\n"), process.stdin.close()
    assert process.stdout.readline() == b"done\n"
    os.kill(helper, signal.SIGCONT)
    assert (process.wait(), process.stderr.read()) == (7, b"")
    assert launches(read((tmp_path / "t.mp").read_bytes())) == {"foo": 70001}


def test_helper_killed_after_the_program_is_reported(tmp_path, private):
    """Once, no message said that the stream had lost its end, because the program had nothing more to write."""
    program = hooked.compile_c(tmp_path / "client", TOLD)
    process = live("|cat >/dev/null", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"1\n"), process.stdin.flush()
    assert process.stdout.readline() == b"done\n"
    os.kill(helper := find_helper(private), signal.SIGSTOP)
    (trace,) = private.glob("*/[0-9]*")
    process.stdin.close()
    hooked.wait_until(lambda: not os.path.exists(f"/proc/{trace.name}"))
    (folder,) = private.glob("gpt-hook.*")
    os.kill(helper, signal.SIGKILL)
    line = f"gpt-hook: error: {folder}: the helper that passes the stream on was killed; its end is lost\n"
    assert (process.wait(), process.stderr.read().decode()) == (7, line)
    assert not folder.exists()


@pytest.mark.parametrize("launched", [b"", b"1\n"])
def test_folder_removed_meanwhile_is_reported(tmp_path, private, launched):
    """Once, the stream was complete but empty: a segment that ends without a record."""
    program = hooked.compile_c(tmp_path / "client", TOLD)
    process = live("-", program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if launched:
        process.stdin.write(launched), process.stdin.flush()
        assert process.stderr.readline() == b"done\n"
    hooked.wait_until(lambda: [*private.glob("gpt-hook.*/.helper")])
    (folder,) = private.glob("gpt-hook.*")
    shutil.rmtree(folder)
    process.stdin.write(b"30000\n"), process.stdin.flush()
    line = f"gpt-hook: error: {folder}: was removed; nothing more is recorded\n"
    assert {process.stderr.readline().decode() for _ in range(2)} == {line, "done\n"}
    out, err = process.communicate()
    assert (process.returncode, err) == (7, b"")
    (segment,) = segments(read(out))
    assert segment[-1]["kind"] != "end"
