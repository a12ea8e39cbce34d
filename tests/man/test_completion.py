"""Shell completion: the words that each shell offers for an incomplete line."""

import os
import shutil
import subprocess

import pytest

from gpt.stages.analyze import ANALYSES
from man.mkcompletion import MAN, find_pages, parse_page, write_all

LINES = {  # typed text -> words that are offered, and words that aren't
    "gpt-locate --gran": ("--granularity", "--arch"),
    "gpt-locate --granularity ": ("element kernel", "--arch"),
    "gpt-locate --arch sm_8": ("sm_80 sm_89", "sm_90"),
    "gpt-locate --arch sm_80,sm_12": ("sm_80,sm_120 sm_80,sm_121", "sm_80,sm_90"),
    "gpt-extract --type ": ("cubin ptx ltoir", "sm_90"),
    "gpt-extract lib": ("libfoo.so", "names.txt"),
    "gpt-ptx-probe -p block": ("block_sched", "warp_sched"),
    "gpt-sass-probe --explain -p gmem": ("gmem_bytes", "block_sched"),
    "gpt-asm --compress ": ("zstd none", "libfoo.so"),
    "gpt-patch -o ": ("slim", "libfoo.so"),
    "gpt-analyze ": (" ".join(ANALYSES), "libfoo.so"),
    "gpt-analyze block_sched --pl": ("--plot", "--launch"),
    "gpt-analyze summary --format ": ("md csv", "libfoo.so"),
    "gpt-hook ": ("run check", "libfoo.so"),
    "gpt-hook run --device ": ("real sim", "run"),
    "gpt-debloat --mode ": ("fill hole compact", "real"),
    "gpt-debloat -- tru": ("true", "libfoo.so"),
    "gpt-negativa tr": ("trace", "locate"),
}
BASH = """
cd "$1"; shift
source "share/bash-completion/completions/$1"
compopt() { :; } # only completion itself may ask for it
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"_${1//-/_}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    top = tmp_path_factory.mktemp("completion")
    write_all(top / "share")
    (top / "slim").mkdir()
    for name in ("libfoo.so", "names.txt"):
        (top / name).touch()
    return top


def in_bash(folder, line):
    command = ["bash", "-c", BASH, "bash", folder, *line.split(" ")]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.split()


def in_fish(folder, line):
    code = "set -p fish_complete_path $PWD/share/fish/vendor_completions.d; complete -C $argv[1]"
    # The completion checks whether the tool exists.
    environment = {"HOME": str(folder), "PATH": f"{MAN.parent}/bin:{os.defpath}"}
    command = ["fish", "-c", code, line]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    return [found.partition("\t")[0].rstrip("/") for found in done.stdout.splitlines()]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shell", [in_bash, in_fish])
def test_expected_words_are_offered(shell, line, folder):
    if not shutil.which(shell.__name__.removeprefix("in_")):
        pytest.skip(f"no {shell.__name__.removeprefix('in_')} (Debian: apt-get install fish)")
    found = shell(folder, line)
    offered, other = LINES[line]
    assert set(offered.split()) <= set(found)
    assert other not in found


@pytest.mark.parametrize("tool", [page.stem for page in find_pages()])
def test_every_option_is_offered(tool, folder):
    options = [flag for option in parse_page(MAN / "man1" / f"{tool}.1").options for flag in option.flags]
    assert {"--help", "--version"} <= set(options)
    assert sorted(set(in_bash(folder, f"{tool} -"))) == sorted(set(options))
    text = (folder / f"share/zsh/site-functions/_{tool}").read_text()
    assert text.startswith(f"#compdef {tool}\n") and all(flag in text for flag in options)


@pytest.mark.parametrize(("shell", "place"), [("bash", "bash-completion"), ("zsh", "zsh"), ("fish", "fish")])
def test_shells_read_the_files(shell, place, folder):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} (Debian: apt-get install {shell})")
    for path in (folder / "share" / place).rglob("*gpt-*"):
        subprocess.run([shell, "-n", path], check=True)
