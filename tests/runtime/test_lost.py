"""Programs in a run that start without the hook: nothing is recorded, and gpt-hook says so."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests import cuda
from tests.runtime import hooked
from tests.runtime.clients import LOOP

NOT_WRITTEN = "not written: "
BEFORE = "; put 'gpt-hook run' right before that program"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a program that uses the driver, a static program, and a library to preload."""
    folder = tmp_path_factory.mktemp("lost")
    hooked.compile_c(folder / "app", LOOP)
    (folder / "plain.c").write_text("int main(void) { return 5; }\n")
    cuda.c_compiler("-static", folder / "plain.c", "-o", folder / "static")
    cuda.c_compiler("-shared", "-fPIC", "-x", "c", os.devnull, "-o", folder / "other.so")
    return folder


def said(tmp_path, *command, output=None, **more):
    """Return a run's status and gpt-hook's lines, without the names of gpt-hook and the trace. Check that no note file
    is left.
    """
    notes = tmp_path / "notes"
    notes.mkdir(exist_ok=True)
    words = ("run", "-fo", output or tmp_path / "t.mp", "--device", "sim", "--", *command)
    env = os.environ | {"TMPDIR": str(notes)}
    line = hooked.command(*words, quiet=False)
    done = subprocess.run(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env, **more)
    assert [name for name in os.listdir(notes) if name.startswith("gpt-hook")] == []
    lines = [line for line in done.stderr.splitlines() if line.startswith("gpt-hook: ")]
    return done.returncode, [line.removeprefix("gpt-hook: ").replace(f"{tmp_path}/t.mp: ", "") for line in lines]


@pytest.mark.parametrize(
    ("script", "by", "how"),
    [
        ("exec env LD_PRELOAD={f}/other.so {f}/app 3", "env", "with another LD_PRELOAD"),
        ("env LD_PRELOAD={f}/other.so {f}/app 3; exit 0", "env", "with another LD_PRELOAD"),
        ("exec env -i {f}/app 3", "env", "without LD_PRELOAD"),
        ("exec env LD_PRELOAD= {f}/app 3", "env", "without LD_PRELOAD"),
        ("unset LD_PRELOAD; {f}/app 3", "sh", "without LD_PRELOAD"),
        ("unset LD_PRELOAD; {f}/app 3; true", "sh", "without LD_PRELOAD"),
        ("sh -c 'sh -c \"unset LD_PRELOAD; {f}/app 3; true\"; true'; true", "sh", "without LD_PRELOAD"),
        ("exec env -u GPT_HOOK_OUTPUT {f}/app 3", "env", "without the variables of gpt-hook"),
    ],
)
def test_an_environment_without_the_hook(tmp_path, folder, script, by, how):
    _, lines = said(tmp_path, "sh", "-c", script.format(f=folder))
    what = f"nothing was recorded from {folder}/app, which {by} started {how}{BEFORE}"
    assert lines == [f"warning: {NOT_WRITTEN}{what}"] and not (tmp_path / "t.mp").exists()


@pytest.mark.parametrize("function", ["execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle", "fexecve"])
def test_every_function_that_replaces_the_program(tmp_path, folder, function):
    """Each function starts the program as usual, with its arguments and environment."""
    arguments = {
        "execve": '"/bin/sh", words, environment', "execv": '"/bin/sh", words', "execvp": '"sh", words',
        "execvpe": '"sh", words, environment', "fexecve": 'open("/bin/sh", O_RDONLY), words, environment',
        "execl": '"/bin/sh", "sh", "-c", words[2], (char *)0', "execlp": '"sh", "sh", "-c", words[2], (char *)0',
        "execle": '"/bin/sh", "sh", "-c", words[2], (char *)0, environment',
    }[function]  # fmt: skip
    source = """
    #include <fcntl.h>
    int main(void) {
        char *words[] = {"sh", "-c", "exit $STATUS", 0}, *environment[] = {"STATUS=7", 0};
        unsetenv("LD_PRELOAD");
        setenv("STATUS", "7", 1);
        %s(%s);
        return 1;
    }
    """
    program = hooked.compile_c(tmp_path / "program", source % (function, arguments))
    status, (line,) = said(tmp_path, program)
    assert status == 7
    assert re.search(r"nothing was recorded from \S+, which program started without LD_PRELOAD;", line)


@pytest.mark.parametrize("program", ["sh -c 'exit 3'", "env -i sh -c 'exit 3'"])
def test_program_found_without_path(tmp_path, program):
    """env clears PATH first, and libc then searches default folders."""
    status, lines = said(tmp_path, "sh", "-c", f"exec env -i {program}")
    what = f"nothing was recorded from {program.split()[0]}, which env started without LD_PRELOAD{BEFORE}"
    assert (status, lines) == (3, [f"warning: {NOT_WRITTEN}{what}"])


@pytest.mark.parametrize("call", ['system("exit 7")', 'pclose(popen("exit 7", "r"))'])
@pytest.mark.parametrize("drops", [False, True])
def test_shells_that_libc_starts(tmp_path, call, drops):
    source = """
    int main(void) {
        %s
        assert(system(NULL));
        return WEXITSTATUS(%s);
    }
    """
    drop = 'unsetenv("LD_PRELOAD");' if drops else ""
    program = hooked.compile_c(tmp_path / "program", "#include <sys/wait.h>\n" + source % (drop, call))
    status, (line,) = said(tmp_path, program)
    assert status == 7
    assert ("nothing was recorded from /bin/sh, which program started without LD_PRELOAD;" in line) == drops


@pytest.mark.parametrize("function", ["posix_spawn", "posix_spawnp"])
def test_spawned_programs(tmp_path, folder, function):
    source = """
    #include <spawn.h>
    #include <sys/wait.h>
    int main(void) {
        pid_t child;
        int status;
        char *words[] = {"sh", "-c", "exit $STATUS", 0}, *environment[] = {"STATUS=7", 0};
        OK(%s(&child, "/bin/sh", 0, 0, words, environment));
        wait(&status);
        assert(%s(&child, "/no/such", 0, 0, words, environment) == ENOENT);
        return WEXITSTATUS(status);
    }
    """
    program = hooked.compile_c(tmp_path / "program", source % (function, function))
    status, (line,) = said(tmp_path, program)
    assert status == 7 and "nothing was recorded from /bin/sh, which program started without LD_PRELOAD;" in line


def test_programs_that_no_library_enters(tmp_path, folder):
    fact = f"warning: {NOT_WRITTEN}nothing was recorded from {folder}/static, which sh started: a statically linked"
    for script, status in ((f"exec {folder}/static", 5), (f"{folder}/static; exit 3", 3)):
        assert said(tmp_path, "sh", "-c", script) == (status, [f"{fact} program cannot be watched"])
    # If a program starts such a helper and uses the driver itself, that isn't worth a message.
    status, (line,) = said(tmp_path, "sh", "-c", f"{folder}/static; {folder}/app 3; exit 4")
    assert status == 4 and " 3 launches, " in line


def test_a_program_of_musl_has_a_trace_without_calls(tmp_path, folder):
    if not shutil.which("musl-gcc"):
        pytest.skip("no musl-gcc")
    subprocess.run(["musl-gcc", folder / "plain.c", "-o", tmp_path / "musl"], check=True)
    status, lines = said(tmp_path, "sh", "-c", f"{tmp_path}/musl; exit 3")
    assert status == 3 and lines[0].startswith("0 calls, 0 launches, 1 process")
    assert lines[1].endswith(f"from {tmp_path}/musl, which sh started: a program linked to musl cannot be watched")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_setuid_program(tmp_path, folder):
    program = tmp_path / "setuid"
    shutil.copy("/bin/true", program)
    os.chown(program, 2001, 2001)
    program.chmod(0o4755)
    _, lines = said(tmp_path, "sh", "-c", f"{program}; true")
    what = f"from {program}, which sh started: a setuid program ignores LD_PRELOAD; put 'gpt-hook run' after it"
    assert lines == [f"warning: {NOT_WRITTEN}nothing was recorded {what}"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="root becomes another user by setpriv")
@pytest.mark.parametrize("folders", ["shared", "closed"])
def test_program_started_by_another_user(tmp_path, folder, folders):
    """Another user's note isn't trusted, and none can be left in root's folder, so a message is printed at once."""
    copied = Path(tempfile.mkdtemp(dir="/var/tmp"))  # where other users have access
    try:
        copied.chmod(0o755)
        (notes := copied / "notes").mkdir()
        notes.chmod(0o1777 if folders == "shared" else 0o755)
        for file in ("gpt-hook", "libgpthook.so"):
            shutil.copy(hooked.runtime() / file, copied)
        shutil.copy("/bin/true", copied)
        script = (
            f"setpriv --reuid 2001 --regid 2001 --clear-groups sh -c 'env -i {copied}/true; env -i {copied}/true'; true"
        )
        line = [copied / "gpt-hook", "run", "-fo", copied / "t.mp", "--", "sh", "-c", script]
        env = os.environ | {"TMPDIR": str(notes)}
        done = subprocess.run(line, stderr=subprocess.PIPE, text=True, env=env, timeout=60, check=True)
        assert not os.listdir(notes)
    finally:
        shutil.rmtree(copied)
    fact = f"gpt-hook: warning: nothing was recorded from {copied}/true, which env started without LD_PRELOAD{BEFORE}"
    assert done.stderr.splitlines()[:-1] == [fact] * (1 if folders == "shared" else 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has another effective user")
@pytest.mark.parametrize("call", ["os.setresuid(2001, 0, 0)", "os.setresgid(2001, 0, 0)"])
def test_rights_that_a_program_is_started_with(tmp_path, folder, call):
    """The dynamic linker ignores LD_PRELOAD for such a program, as for a setuid one. Once, gpt-hook ran it without a
    message.
    """
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--", "true")
    code = f"import os, sys; {call}; os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *line], stderr=subprocess.PIPE, text=True, check=False)
    who = "user" if "uid" in call else "group"
    assert done.returncode == 4
    assert f"a program that is started with the rights of another {who}: it cannot be watched\n" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_setuid_program_without_privileges(tmp_path, folder):
    program = tmp_path / "setuid"
    shutil.copy("/bin/true", program)
    os.chown(program, 2001, 2001)
    program.chmod(0o4755)
    line = ["setpriv", "--no-new-privs", *hooked.command("run", "-o", tmp_path / "t.mp", "--", program)]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_part_of_the_run_is_recorded(tmp_path, folder):
    status, lines = said(tmp_path, "sh", "-c", f"{folder}/app 3; env -i {folder}/app 4; exit 9")
    assert status == 9 and " 3 launches, " in lines[0]
    assert lines[1:] == [
        f"warning: nothing was recorded from {folder}/app, which env started without LD_PRELOAD{BEFORE}"
    ]


@pytest.mark.parametrize("output", ["-", "|cat"])
def test_streams(tmp_path, folder, output):
    nothing = f"warning: {output}: nothing was recorded: no process that gpt-hook watched used the CUDA driver"
    assert said(tmp_path, "sh", "-c", "true", output=output)[1] == [nothing]
    lost = f"warning: nothing was recorded from {folder}/app, which env started without LD_PRELOAD{BEFORE}"
    assert said(tmp_path, "env", "-i", folder / "app", "3", output=output)[1] == [lost, nothing]
    assert said(tmp_path, folder / "app", "3", output=output)[1] == []


def test_names_are_safe(tmp_path, folder):
    """Anybody can choose a program's name, so it isn't printed to the terminal unescaped."""
    program = tmp_path / "a\x1b[2J\nb"
    shutil.copy("/bin/true", program)
    _, (line,) = said(tmp_path, "env", "-i", program)
    assert f"{tmp_path}/a\\x1b[2J\\x0ab, which env started" in line


def test_planted_note_is_ignored(tmp_path, folder):
    """Everybody may write to the folder with the notes."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    script = f'ln -s {victim} "$GPT_HOOK_NOTES.3"; env -i {folder}/app 3; rm "$GPT_HOOK_NOTES.3"; true'
    _, (line,) = said(tmp_path, "sh", "-c", script)
    assert "no process that gpt-hook watched" in line and victim.read_text() == "mine"
