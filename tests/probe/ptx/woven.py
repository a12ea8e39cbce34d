"""Short kernels and probes that are woven, assembled and examined."""

from __future__ import annotations

import re
import subprocess

from gpt.probe.ptx.weave import MARK, unweave, weave
from gpt.probe.read.load import parse_toml
from tests import cuda

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


REGISTERS = ".reg .pred %p<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<9>;"


SAVES = """
[map.m]
level = "{level}"
cap = {cap}
data = {{a = "u64", b = "u32"}}
[probe.access]
position = "{position}"
level = "{level}"
{when} = "SAVE [m] {{{{ADDR, {value}}}}};"
"""


def kernel(body, head=HEAD, params=".param .u64 p"):
    return f"{head}.visible .entry k({params})\n{{\n{REGISTERS}\n{body}\n}}\n".encode()


def probe(text):
    return parse_toml(text, "probe.toml")


def simple(position, snippet, when="before", more=""):
    return probe(
        f'[map.m]\ndata = {{a = "u32"}}\n[probe.x]\nposition = "{position}"\n{more}\n'
        f'{when} = """.reg .u32 %a;\n{snippet}\nSAVE [m] {{%a}};"""\n'
    )


def assembled(data, tmp_path, arch="sm_90"):
    (tmp_path / "k.ptx").write_bytes(data)
    command = [cuda.tool("ptxas"), f"-arch={arch}", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + data.decode()


def lines(woven):
    """Return the inserted instructions, with registers unchanged."""
    found = [line.partition(MARK)[0].strip() for line in woven.data.decode().splitlines() if MARK in line]
    return [line for line in found if not line.startswith(".")]


def half_written(found):
    """Return registers whose first write is guarded: ptxas keeps such a register live from the entry on."""
    written, half = set(), []
    for line in found:
        if line == "{":  # names may be declared again
            written = {name for name in written if name.startswith("%gpt_f_")}
        result = re.match(r"(@\S+ )?([a-z][\w.:]+) (\{[^}]*\}|%[\w|%]+)", line)
        if result:
            names = re.findall(r"%\w+", result[3])
            half += [line for name in names if result[1] and name not in written]
            written.update(names)
    return half


def check(data, *files, tmp_path, **options):
    woven = weave(data, "k", files, **options)
    assert unweave(woven.data) == data
    assembled(woven.data, tmp_path)
    return woven
