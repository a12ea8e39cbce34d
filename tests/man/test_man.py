"""The man pages match what they describe: options match --help, and kinds match gpt/stream/records.py. Every example is
run as a reader would type it, and must print the text below it.

In an example, a line that begins with `$ ` is a command, which continues if a line ends with `|` or `\\` or inside
quotes; the lines below it are its output. In the output, `...` stands for anything, and numbers may differ, because
they depend on the compiler. `$ cat FILE` of a missing file creates it, with the lines below as its contents.
"""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import termios
import tomllib
from functools import cache
from pathlib import Path

import pytest

from gpt.formats import elf, fatbin, image, zips
from gpt.ptx.names import MAX_DIRECTIVES
from gpt.stages import analyze
from gpt.stream import records
from gpt.trace import apis, rows
from tests import loaded
from tests.demo.build import build
from tests.tiers import full

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in sorted((ROOT / "man").glob("man?/*")) if not path.is_symlink()}
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
del TOOLS["neutrino"]  # another name for gpt-neutrino
SCRIPTS = ("gpt-debloat", "gpt-negativa", "gpt-trace")  # scripts that run the tools
KERNEL = "_Z12matrixMulGPUPKfS0_Pfi"
ANALYSES = {name: f"gpt-analyze-{name}.1" for name in analyze.ANALYSES}  # each has a page of its own
# Pages whose examples show results of kernels, so kernels are run.
RUN = {"gpt-analyze.1", *ANALYSES.values(), "gpt-hook.1", "gpt-trace.1", "gpt-howto.7", "gpt.7"}
# `make test` runs the examples of these pages and README's recipes. Other pages take seconds each, and tests/analyze,
# tests/patch, tests/e2e and tests/stages test the same commands. If a commit changes a page, CI runs all examples
# (tests/tiers.py).
SHORT = {"gpt-ptx-probe.1", "gpt-stream.5"}
COMMON = {"-h, --help", "--version"}  # every tool has these; no SYNOPSIS lists them

# the roff that our pages use

CHARACTERS = {r"\e": "\\", r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(dq": '"', r"\(ti": "~", r"\(ha": "^", r"\&": ""}


def plain(text):
    """Return text with its escapes replaced by the characters that a reader sees."""
    return re.sub(r"\\(?:\(..|.)", lambda found: CHARACTERS[found[0]], text)


def section(page, title):
    """Return the lines of a section (`.Sh`) or subsection (`.Ss`)."""
    text = PAGES[page].read_text()
    found = re.search(rf'^\.(S[hs]) "?{re.escape(title)}"?\n(.*?)(?=^\.Sh|^\.\1|\Z)', text, re.M | re.S)
    assert found, f"{page} has no {title}"
    return found[2].splitlines()


def flags(line):
    """Return `-o, --output DIR` for `Fl o , Fl Fl output Ar DIR`."""
    line = re.sub(r"Fl Fl ", "--", line)
    line = re.sub(r"Fl ", "-", line)
    line = re.sub(r"\b(?:Ar|Cm) ", "", line)
    line = re.sub(r" Ns Op = Ns (\w+)", r"[=\1]", line)
    return line.replace(" ,", ",").replace(" | ", "|")


# What there is


def test_every_tool_has_a_page_and_every_page_a_tool():
    tools = {path.name for path in (ROOT / "bin").glob("gpt-*")}
    assert tools == {*TOOLS, *SCRIPTS, "gpt-hook"}  # gpt-hook is written in C
    pages = {path.name for path in (ROOT / "man" / "man1").glob("*.1")} - {"neutrino.1"}
    assert {f"{tool}.1" for tool in tools} | {*ANALYSES.values()} == pages
    assert {"gpt-stream.5", "gpt.7"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_page_has_the_name_of_its_file_and_its_folder(page):
    name, _, number = page.rpartition(".")
    assert PAGES[page].parent.name == f"man{number}"
    text = PAGES[page].read_text()
    assert f"\n.Dt {name.upper()} {number}\n" in text
    assert f"\n.Nm {name}\n" in text


@pytest.mark.parametrize("page", PAGES)
def test_references_lead_somewhere(page):
    text = PAGES[page].read_text()
    for name, number in re.findall(r"\bXr (\S+) (\d)", text):
        assert not name.startswith("gpt") or f"{name}.{number}" in PAGES
        assert f"{name}.{number}" != page
    titles = re.findall(r"^\.S[hs] (.*)", text, re.M)
    for title in re.findall(r"^\.Sx (.+?)(?: [.,;:)])*$", text, re.M):
        assert title in titles


@pytest.mark.parametrize("page", PAGES)
def test_see_also_lists_what_the_page_refers_to(page):
    text = PAGES[page].read_text()
    also = re.findall(r"Xr (\S+ \d)", "\n".join(section(page, "SEE ALSO")))
    assert also == sorted(set(also), key=lambda name: (name[-1], name))
    own = set(re.findall(r"\bXr (gpt\S* \d)", text))
    assert own <= set(also)


@pytest.mark.parametrize("page", PAGES)
def test_page_passes_mandoc_and_fits_a_terminal(page):
    if not shutil.which("mandoc"):
        pytest.skip("no mandoc (Debian: apt-get install mandoc)")
    assert mandoc("-T", "lint", "-W", "warning", PAGES[page]) == ""
    shown = re.sub(".\x08", "", mandoc("-T", "utf8", "-O", "width=80", PAGES[page]))  # typed twice: bold
    assert [line for line in shown.splitlines() if len(line.expandtabs()) > 80] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_quotation_is_of_one_thing(page):
    """`.Ql a , b` and `.Ql a , Ql b` would put one pair of quotation marks around both words."""
    if not shutil.which("mandoc"):
        pytest.skip("no mandoc (Debian: apt-get install mandoc)")
    shown = re.sub(".\x08", "", mandoc("-T", "utf8", "-O", "width=1000", PAGES[page]))
    assert not re.findall("\u2018[^\u2019\n]*(?:\u2018[^\u2019\n]*| (?:and|as) [^\u2019\n]*)\u2019", shown)


def mandoc(*args):
    return subprocess.run(["mandoc", *args], capture_output=True, text=True, check=False).stdout


def test_source_tree_names_existing_paths():
    paths = re.findall(r"^\.It Pa (\S+)", "\n".join(section("gpt.7", "SOURCE TREE")), re.M)
    assert len(paths) > 5
    for path in paths:
        assert (ROOT / path).exists(), path


# Options


@cache
def help_of(tool, *command):
    if tool in ("gpt-hook", *SCRIPTS):
        return subprocess.run([ROOT / "bin" / tool, "--help"], capture_output=True, text=True, check=True).stdout
    done = loaded.run([tool, *command, "--help"], env={**os.environ, "COLUMNS": "80", "TERM": "dumb"})
    assert done.returncode == 0
    return done.stdout.decode()


def helps_of(tool):
    """Return a tool's help, or the help of each of its commands."""
    commands = re.findall(r"^  (\w+)", help_of(tool).partition("\nCommands:\n")[2], re.M)
    return [help_of(tool), *(help_of(tool, command) for command in commands)]


def options_of_help(tool):
    """Return each option as the help prints it. Where the help only has a type, such as `<int range>`, the page has a
    name for the value.
    """
    options = "".join(text.partition("\nOptions:\n")[2] for text in helps_of(tool))
    found = re.findall(r"^  (-\S+(?: <[^>]*>| [^ \n]+)*)", options, re.M)
    return {re.sub(r"<([a-z|]+)>$", r"\1", option.replace(" [=", "[=")) for option in found}


def options_of_page(page):
    if ".Sh OPTIONS\n" not in PAGES[page].read_text():
        return set()
    return {flags(line.removeprefix(".It ")) for line in section(page, "OPTIONS") if line.startswith(".It Fl")}


def pages_of(tool):
    """Return the pages that describe a tool's options: its own and, for gpt-analyze, each analysis's."""
    return [page for page in PAGES if page == f"{tool}.1" or (tool == "gpt-analyze" and page in ANALYSES.values())]


def options_of_pages(tool):
    return {option for page in pages_of(tool) for option in options_of_page(page)}


@pytest.mark.parametrize("tool", ["gpt-hook", *TOOLS, *SCRIPTS])
def test_help_fits_80_columns(tool):
    lines = [line for text in helps_of(tool) for line in text.splitlines()]
    assert not [line for line in lines if len(line) > 80]
    assert not [line for line in lines if re.search(r"\w(?:\.\.\.|\u2026)$", line)], "cut"


@pytest.mark.parametrize("tool", [*TOOLS, *SCRIPTS])
def test_options_are_those_of_help(tool):
    page, helped = options_of_pages(tool), options_of_help(tool)
    assert helped >= COMMON
    for option in [o for o in helped if o.endswith(">")]:
        names = re.escape(option.partition(" <")[0])
        helped.remove(option)
        helped.add(next((o for o in page if re.fullmatch(names + " [A-Z]+", o)), option))
    assert page == helped


@pytest.mark.parametrize("name", [name for name, page in ANALYSES.items() if page in PAGES])
def test_page_of_an_analysis_has_its_own_options(name):
    options = help_of("gpt-analyze", name).partition("\nOptions:\n")[2]
    page = {option.partition(" ")[0].rstrip(",") for option in options_of_page(ANALYSES[name])}
    common = {option.partition(" ")[0].rstrip(",") for option in options_of_page("gpt-analyze.1")}
    helped = {option.rstrip(",") for option in re.findall(r"^  (-\S+)", options, re.M)}
    assert page - common == helped - common
    assert page <= helped


@pytest.mark.parametrize("tool", TOOLS)
def test_synopsis_has_every_option(tool):
    text = "\n".join(line for page in pages_of(tool) for line in section(page, "SYNOPSIS"))
    used = {flags(option) for option in re.findall(r"^\.(?:Op )?(Fl .*)", text, re.M)}
    for option in options_of_pages(tool) - COMMON:
        short, _, long = option.rpartition(", ")
        value = long.partition(" ")[2]
        wanted = f"{short} {value}".strip() if short else long
        assert wanted in used, option
        used.discard(wanted)
    assert not used


@pytest.mark.parametrize("tool", TOOLS)
def test_arguments_are_those_of_help(tool):
    helps = helps_of(tool)
    (name,) = {re.findall(r"\[(\w+)\]\.\.\.", text.partition("\n")[0])[0] for text in helps[1:] or helps}
    assert f".Op Ar {name} ..." in section(f"{tool}.1", "SYNOPSIS")


# Kinds and keys


def tables(title):
    """Return the rows of a section's tables, by subsection."""
    found, rows = {}, []
    for line in section("gpt-stream.5", title):
        if line.startswith(".Ss "):
            found[line[4:]] = rows = []
        elif line.startswith(".It ") and " Ta " in line and not line.startswith(".It Sy"):
            rows.append(plain(line))
    return found


@pytest.mark.parametrize(("title", "declared"), [("KINDS", records.KINDS), ("STRUCTURES", records.STRUCTS)])
def test_tables_are_those_of_records(title, declared):
    """gpt-stream(5) repeats the declarations; if this fails, paste the lines of its message into the page."""
    shown = tables(title)
    for name, keys in declared.items():
        rows_ = [f".It {key} Ta {type_} Ta {meaning}" for key, (type_, meaning) in keys.items()]
        lines = "\n".join([f".Ss {name}", *rows_])
        assert shown.get(name) == rows_, f"{title} in gpt-stream(5) must have these lines:\n{lines}"
    assert list(shown) == list(declared), f"{title} in gpt-stream(5) isn't in the order of gpt/stream/record_*.py"


def test_fields_of_rows_are_those_that_readers_know():
    shown = dict(re.findall(r"^\.It (\w+) Ta (\w+) Ta", "\n".join(section("gpt-stream.5", "Rows")), re.M))
    known = rows.CALL | rows.ARGUMENTS | rows.LAUNCHES | rows.COUNTS | rows.GPU_TIMES | rows.GPU_CALLS
    words = " ".join(section("gpt-stream.5", "Rows"))
    assert shown.items() - {("first", "u64")} <= known.items()
    assert all(re.search(rf"\b{name}\b", words) for name in known)


def test_operations_are_those_of_driver_functions():
    shown, prefixes, type_ = set(), [], ""
    for line in section("gpt-stream.5", "TYPES AND OPERATIONS"):
        if found := re.fullmatch(r"\.It (?:(\w+) )?Ta ([\w, ]+) Ta .*", line):
            type_ = found[1] or type_
            shown |= {(type_, op) for op in found[2].split(", ")}
        elif found := re.fullmatch(r"\.It (cu\w+) Ta (\w+)", line):
            prefixes.append((found[1], found[2]))
    assert shown == {*apis.LISTED}
    assert prefixes == [one for one in apis.PREFIXES if one[1] != "other"]


def test_names_reserved_for_users_are_not_used():
    for keys in [records.KINDS, *records.KINDS.values(), *records.STRUCTS.values()]:
        assert not any(name.startswith("x-") for name in keys)


def test_limits_and_version_are_those_of_records():
    text = " ".join(PAGES["gpt-stream.5"].read_text().split())
    assert "version {}.{},".format(*records.VERSION) in text
    assert f"at most {records.MAX_RECORD >> 20} MiB" in text
    assert f"at most {records.MAX_ENTRIES} entries" in text


def test_limits_are_those_of_fatbins():
    text = " ".join(section("gpt-extract.1", "LIMITS"))
    assert f"{fatbin.MAX_UNPACKED >> 20} MiB at most" in text
    assert f"a window of {fatbin.MAX_WINDOW >> 20} MiB" in text
    assert f"{fatbin.MAX_REGIONS} regions" in text
    assert fatbin.MAX_REGIONS == fatbin.MAX_ELEMENTS
    assert f"{elf.MAX_TABLE} ELF sections" in text
    assert f"{MAX_DIRECTIVES} functions and variables" in text
    assert f"together may unpack to {fatbin.MAX_UNPACKED >> 20} MiB and {image.MAX_RATIO} times the size" in text
    assert f"Such a member may have {zips.MAX_MEMBER >> 30} GiB" in text
    assert f"{zips.MAX_RATIO} times its size, or to {zips.FREE >> 30} GiB" in text
    assert f"its directory may have {zips.MAX_DIRECTORY >> 20} MiB" in text
    assert f"the limit is {fatbin.MAX_UNPACKED}" in PAGES["gpt-extract.1"].read_text()


# Examples


def iter_examples(page):
    """Yield each command of a page with the lines below it."""
    text = PAGES[page].read_text()
    for block in re.findall(r"^\.Bd -literal -offset indent\n(.*?)^\.Ed$", text, re.M | re.S):
        yield from iter_commands(plain(block))


def iter_commands(block):
    """Yield the commands of one display, if it begins with a command."""
    if not block.startswith("$ "):
        return
    command, output = "", []
    for line in block.splitlines():
        if command and is_open(command):
            command += "\n" + line
        elif line.startswith("$ "):
            if command:
                yield command, output
            command, output = line[2:], []
        else:
            output.append(line)
    yield command, output


def is_open(command):
    return command.endswith(("|", "\\")) or command.count("'") % 2 == 1


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """Return a folder with libdemo.so, and one with the tools of this tree as executables."""
    folder = tmp_path_factory.mktemp("demo")
    try:
        build(folder / "lib")
    except FileNotFoundError as missing:
        pytest.skip(str(missing))
    (folder / "bin").mkdir()
    scripts = {"python3": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'}
    for tool, entry in TOOLS.items():
        module, _, function = entry.replace("gpt_start", "gpt.executables").partition(":")
        scripts[tool] = f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    scripts["gpt-hook"] = f'#!/bin/sh\nexec "{ROOT}/bin/gpt-hook" "$@"\n'
    scripts |= {name: (ROOT / "bin" / name).read_text() for name in SCRIPTS}
    for name, text in scripts.items():
        path = folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)
    return folder


def run(command, folder, environment):
    """Return a command's output on a terminal of 80 columns, and its status."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
    process = subprocess.Popen(
        ["sh", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    data = b""
    try:
        while block := os.read(ours, 1 << 16):
            data += block
    except OSError:
        pass  # Linux reports a closed other side this way
    os.close(ours)
    text = re.sub(r"\x1b\[[\d;]*m", "", data.decode())  # jq's colours
    return text.replace("\r\n", "\n").splitlines(), process.wait(timeout=60)


NUMBER, UNITS = r"\d+(?:,\d{3})*(?:\.\d+)?", "(?:ns|us|ms|s)"  # on a busy machine, us become ms


def pattern(lines):
    """Return a regular expression for an output. Blanks, numbers, time units and digests may differ; `...` matches
    anything, and any lines if it's alone on a line.
    """
    text = re.sub(r"[ \t]+", " ", "\n".join(line.rstrip() for line in lines))
    text = re.escape(text).replace(r"\ ", " ").replace("\\\n", "\n")
    text = re.sub(rf"\d+(?:,\d{{3}})*(?:\\\.\d+)?({UNITS}\b)?", lambda n: NUMBER + (UNITS if n[1] else ""), text)
    text = re.sub(r"(?:^|\n)\\\.\\\.\\\.(?=\n|$)", lambda _: "(?s:.*)", text)
    return re.compile(text.replace(r"\.\.\.", ".*"))


def first_words(line):
    """Return the name that a row begins with."""
    return re.match(r" *[A-Za-z_, ]*", line)[0].strip()


@pytest.mark.parametrize("page", [page if page in SHORT else full(page) for page in PAGES])
def test_examples_do_what_they_show(page, demo, tmp_path):
    examples = list(iter_examples(page))
    assert examples
    if page in ANALYSES.values():  # gpt-analyze(1) lists most programs
        examples += [example for example in iter_examples("gpt-analyze.1") if example[0].startswith("cat ")]
    if page in pages_of("gpt-analyze"):  # pages list their programs last
        examples.sort(key=lambda example: not example[0].startswith("cat "))
    if any(re.search(r"\bjq\b", command) for command, _ in examples) and not shutil.which("jq"):
        pytest.skip("no jq (Debian: apt-get install jq)")
    shutil.copytree(demo / "lib", tmp_path, dirs_exist_ok=True)
    (tmp_path / "names.txt").write_text(KERNEL + "\n")
    environment = environment_of(demo) | ({"GPT_SIM_RUN": "all"} if page in RUN else {})
    run_examples(examples, tmp_path, environment)


def environment_of(demo):
    """Return the commands' environment: the tools of this tree, and an 80-column terminal without colors."""
    paths = [demo / "bin", os.environ["PATH"]]
    path = os.pathsep.join(map(str, paths))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "TERM": "dumb", "LC_ALL": "C"}


def run_examples(examples, folder, environment, failing=None):
    """Type each command, and compare its output with the page."""
    for command, output in examples:
        created = re.fullmatch(r"cat (\S+)", command)
        if created and not (folder / created[1]).exists():
            (folder / created[1]).write_text("\n".join(output) + "\n")
            continue
        printed, status = run(command, folder, environment)
        assert (status == 0) != (failing is not None and failing in command), (command, printed)
        if "gpt-analyze summary" in command and "..." not in output:  # sorted by time: on a busy machine, rows may swap
            output, printed = sorted(output, key=first_words), sorted(printed, key=first_words)
        shown = re.sub(r"[ \t]+", " ", "\n".join(line.rstrip() for line in printed))
        assert pattern(output).fullmatch(shown), (command, printed)


def test_recipes_of_the_readme_do_what_they_show(demo, tmp_path):
    """The recipes run one after the other in a folder with `make demo`'s output, as the README says."""
    if not shutil.which("jq"):
        pytest.skip("no jq (Debian: apt-get install jq)")
    folder = tmp_path / "build" / "demo"
    shutil.copytree(demo / "lib", folder)
    for name in ("trace.mp", "probed.mp", "again.mp"):
        (folder / name).touch()
    blocks = re.findall(r"(?:^    .*\n|(?<=\n)\n(?=    ))+", (ROOT / "README.md").read_text(), re.M)
    examples = [one for block in blocks for one in iter_commands(re.sub("^    ", "", block.strip("\n"), flags=re.M))]
    assert len(examples) >= 8
    assert any("bytes.mp" in command for command, _ in examples)
    environment = environment_of(demo) | {"GPT_SIM_RUN": "all"}
    run_examples(examples, folder, environment, failing="./main overrun")


def test_examples_are_compared_as_they_are_meant():
    assert pattern(["a 1.5 KiB", "b ..."]).fullmatch("a 12,345.25 KiB\nb anything")
    assert pattern(["a 2us", "...", "z"]).fullmatch("a 1.5ms\nb\nc\nz")
    assert pattern(["a", "..."]).fullmatch("a")
    assert not pattern(["a", "...", "z"]).fullmatch("b\nz")
    assert not pattern(["a 1"]).fullmatch("a b")
    assert not pattern(["a"]).fullmatch("a\nb")
    assert not pattern([]).fullmatch("error")


@pytest.mark.parametrize("page", PAGES)
def test_each_item_of_a_list_has_a_text(page):
    """An item without text is a line by itself, and seems to share the next item's text."""
    lines = PAGES[page].read_text().splitlines()
    depth = []
    for number, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True), 1):
        if line.startswith(".Bl"):
            depth.append("-tag" in line)
        elif line.startswith(".El"):
            depth.pop()
        elif line.startswith(".It") and depth[-1]:
            assert not following.startswith((".It", ".El")), f"{page}:{number}: {line}"
