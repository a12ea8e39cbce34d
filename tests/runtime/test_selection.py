"""Options that leave no kernels or launches: gpt-hook lists the available ones."""

import os
import subprocess

import pytest

from tests.runtime import hooked, probing
from tests.tiers import first

FOO = ".entry foo(){ret;} .visible .entry bar(){ret;} .visible .entry never(){ret;}"
MANY = "".join(f".visible .entry k{i}(){{ret;}}\n" for i in range(9))

# Launches the kernels that its arguments name; `-NAME` is only looked up.
PROGRAM = r"""
#include <signal.h>
static void *module;
static void use(const char *name) {
    void *function;
    OK(cuModuleGetFunction(&function, module, name + (*name == '-')));
    if (*name != '-')
        OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
}
int main(int argc, char **argv) {
    static char text[1 << 14];
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    begin();
    OK(cuModuleLoadData(&module, text));
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "exec"))
            execl("/bin/sh", "sh", "-c", "exit 3", (char *)0);
        else if (!strcmp(argv[i], "kill"))
            raise(SIGKILL);
        else
            use(argv[i]);
    return 3;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("selection")
    path = folder / "program"
    head = ".version 7.0\n.target sm_70\n.address_size 64\n"
    (folder / "few.ptx").write_text(f"{head}.visible {FOO}\n")
    (folder / "many.ptx").write_text(head + MANY)
    hooked.compile_c(path, PROGRAM)
    return path


def said(tmp_path, *command, options=()) -> list[str]:
    """Return the messages of a run with a probe, without the line about the trace."""
    words = ("run", "-fo", tmp_path / "t.mp", "--device", "sim", "-p", "block_sched", *options, "--", *command)
    env = os.environ | {"XDG_CACHE_HOME": probing.kept(), "GPT_SIM_RUN": "all"}
    done = subprocess.run(hooked.command(*words, quiet=False), stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert done.returncode == 3
    return [line.removeprefix("gpt-hook: ") for line in done.stderr.splitlines() if "/t.mp: " not in line]


LEFT_OUT = "it was left out, as --launch-skip, --launch-count or --sample say"


@pytest.mark.parametrize(
    ("options", "kernels", "lines"),
    [
        (("-k", "fo"), "foo", ["1 launch with probes, 0 without"]),
        (
            ("-k", "matmul"),
            "foo bar foo",
            [
                "0 launches with probes, 0 without, 3 left out by -k or --filter",
                "warning: -k matmul matches no kernel; the program looked up: foo, bar",
            ],
        ),
        (
            ("-k", "matmul:foo:x"),  # one of several
            "foo",
            [
                "1 launch with probes, 0 without",
                "warning: -k matmul:x matches no kernel; the program looked up: foo",
            ],
        ),
        (
            ("--filter", "o:r"),
            "foo bar",
            [
                "0 launches with probes, 0 without, 2 left out by -k or --filter",
                "warning: --filter leaves no kernel; it drops: foo, bar",
            ],
        ),
        (
            ("-k", "never"),
            "foo -never",
            [
                "0 launches with probes, 0 without, 1 left out by -k or --filter",
                "warning: no kernel that -k and --filter choose was launched; of these, the program looked up: never",
            ],
        ),
        (
            ("--launch-skip", "2", "--launch-count", "5"),
            "foo foo",
            [
                f"0 launches with probes, 2 without: {LEFT_OUT} (2)",
                "warning: --launch-skip 2 --launch-count 5 leaves out every launch of: foo",
            ],
        ),
        (("--launch-skip", "1"), "foo foo", [f"1 launch with probes, 1 without: {LEFT_OUT} (1)"]),
        (
            ("--launch-count", "0"),
            "foo",
            [
                f"0 launches with probes, 1 without: {LEFT_OUT} (1)",
                "warning: --launch-count 0 leaves out every launch of: foo",
            ],
        ),
        ((), "", ["0 launches with probes, 0 without: no launch was recorded"]),
        (("-k", "foo"), "", ["0 launches with probes, 0 without: no launch was recorded"]),
    ],
)
def test_unmatched_selections_name_the_kernels_looked_up(tmp_path, program, options, kernels, lines):
    assert said(tmp_path, program, program.with_name("few.ptx"), *kernels.split(), options=options) == lines


@pytest.mark.full
def test_a_list_is_short(tmp_path, program):
    names = [f"k{i}" for i in range(9)]
    line = said(tmp_path, program, program.with_name("many.ptx"), *names, options=("-k", "x"))[-1]
    assert line == "warning: -k x matches no kernel; the program looked up: k0, k1, k2, k3, k4 and 4 more"


def test_names_of_all_processes_count(tmp_path, program):
    """An option is fine if it selects a kernel in any process."""
    ptx = program.with_name("few.ptx")
    script = f"{program} {ptx} foo; {program} {ptx} bar; exit 3"
    assert said(tmp_path, "sh", "-c", script, options=("-k", "ba")) == ["1 launch with probes, 0 without"]
    assert said(tmp_path, "sh", "-c", script, options=("-k", "x"))[-1].endswith("looked up: foo, bar")


@pytest.mark.full
def test_a_long_name_is_matched_whole(tmp_path, program):
    name, ptx = "z" * 700 + "end", tmp_path / "long.ptx"
    ptx.write_text(program.with_name("few.ptx").read_text().replace("foo", name))
    assert said(tmp_path, program, ptx, name, options=("-k", "zend")) == ["1 launch with probes, 0 without"]
    assert said(tmp_path, program, ptx, name, options=("-k", "x"))[-1].endswith(f"{'z' * 252}...")


@pytest.mark.parametrize("kernels", first("foo -bar exec foo", "foo foo exec"))
def test_another_program_takes_the_place(tmp_path, program, kernels):
    """Kernel names that would only be written at the end are written before the exec."""
    count = kernels.split("exec")[0].count("foo")
    lines = said(tmp_path, program, program.with_name("few.ptx"), *kernels.split(), options=("--launch-skip", "7"))
    assert lines[0] == f"0 launches with probes, {count} without: {LEFT_OUT} ({count})"
    (line,) = said(tmp_path, program, program.with_name("few.ptx"), *kernels.split(), options=("--memusage",))
    assert line.startswith(f"buffers of {count} launch")


def test_nothing_is_blamed_for_a_process_that_was_killed(tmp_path, program):
    script = f"{program} {program.with_name('few.ptx')} foo foo kill; exit 3"
    lines = said(tmp_path, "sh", "-c", script, options=("--launch-skip", "7"))
    told = "2 in processes whose trace has no end, so nothing is known about them"
    assert lines == ["Killed", f"0 launches with probes, 0 without, {told}"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-k", "zzz"], ["warning: -k zzz matches no kernel; the program looked up: foo, bar"]),
        (["-k", "fo", "-k", "zzz:yyy"], ["warning: -k zzz:yyy matches no kernel; the program looked up: foo, bar"]),
        (["--filter", "o", "--filter", "a"], ["warning: --filter leaves no kernel; it drops: foo, bar"]),
        (["-k", "fo", "-k", "ba"], []),
        (["-q", "-k", "zzz"], []),
    ],
)
@pytest.mark.parametrize("output", first("-", "|cat >/dev/null", "t.mp"))
def test_live_streams_say_it_and_options_add_up(tmp_path, program, output, options, expected):
    """With two -k options, only the last one used to count, and a stream had no message about either."""
    words = ("run", "-o", output, "--device", "sim", "-p", "block_sched", *options, "--")
    env = os.environ | {"XDG_CACHE_HOME": probing.kept(), "GPT_SIM_RUN": "all"}
    line = [*hooked.command(*words, quiet=False), program, program.with_name("few.ptx"), "foo", "bar"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=tmp_path) as process:
        _, err = process.communicate(timeout=120)  # waits until the helper has ended, too
    lines = [line.removeprefix("gpt-hook: ") for line in err.decode().splitlines()]
    assert [line for line in lines if line.startswith("warning")] == expected
    assert process.returncode == 3


@pytest.mark.parametrize("option", ["-k", "--filter"])
@pytest.mark.parametrize("value", ["", ":", "::"])
@pytest.mark.parametrize("before", [[], ["-k", "foo"]])
def test_an_empty_filter_is_wrong_usage(tmp_path, option, value, before):
    """A script's empty variable used to select every kernel."""
    for words in (("run", "-p", "block_sched", *before, option, value, "true"), ("ctl", option, value, "1", "probe")):
        done = subprocess.run(hooked.command(*words), stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
        fact = f"gpt-hook: error: {option}: '{value}' names no part of a kernel's name\n"
        assert (done.returncode, done.stderr) == (2, fact)
