"""Imitate what bpftrace prints for a program of gpt-hook attach, in both formats."""

from __future__ import annotations

import json

TAG = "0123456789abcdef"
BOOT = "0b5e2d4c-1f2a-4e0e-9a0c-3f1c2f7d9c11"
KEYS = "0 cuMemAlloc_v2 to* bytes", "1 cuCtxSynchronize ", "2 cuLaunchKernel function", "3 cuModuleGetFunction object*"
FUNCTIONS = f"functions {', '.join(KEYS)}"
ARGV = b"python3\0my app.py\0".hex()
BEGIN = ["begin 5000000000 1795445621.439691", f"machine gpu-7 {BOOT} 0", f"argv 7 {ARGV}", FUNCTIONS]
END = ["end 9000000000"]


def call(symbol, start, duration=1000, result=0, pid=7, tid=7, kind="call", **fields):
    words = "".join(f" {name}={value:x}" for name, value in fields.items())
    return f"{kind} {pid} {tid} {start} {duration} {result} {symbol}{words}"


def launch(function, start, **more):
    dims = {
        "grid_x": 3,
        "grid_y": 2,
        "grid_z": 1,
        "block_x": 32,
        "block_y": 1,
        "block_z": 1,
        "shared": 16,
        "stream": 0x55,
    }
    return call("cuLaunchKernel", start, **{"function": function, **dims, **more})


def name(text, start, pid=7, tid=7):
    parts = [text[at : at + 63] for at in range(0, len(text) + 63, 63)]
    return [f"name {pid} {tid} {start} {part} {piece}" for part, piece in enumerate(parts)]


def tagged(line):
    """Return a line with the tag, where the program prints it. A line of bpftrace's own has none."""
    kind, _, rest = line.partition(" ")
    if kind == "begin":
        return f"{line} {TAG}"
    if kind.startswith("@call"):
        return line.replace("[", f"_{TAG}[", 1)
    if kind in ("Lost", "Attaching") or not kind.islower():
        return line
    return f"{kind} {TAG} {rest}" + f" {TAG}" * (kind == "name")


def as_text(lines):
    return "Attaching 9 probes...\n" + "".join(f"{tagged(line)}\n" for line in lines)


def as_json(lines):
    """Return the same lines as `bpftrace -f json` prints them: it has its own forms for lines of maps and for lost
    events.
    """
    found = [{"type": "attached_probes", "data": {"probes": 9}}]
    for line in map(tagged, lines):
        if line.startswith("Lost "):
            found.append({"type": "lost_events", "data": {"events": int(line.split()[1])}})
        elif line.startswith("@"):
            map_, _, rest = line.partition("[")
            key, _, values = rest.partition("]: ")
            entry = {key.replace(", ", ","): [int(word) for word in values.strip("()").split(", ")]}
            found.append({"type": "map", "data": {map_: entry}})
        else:
            found.append({"type": "printf", "data": f"{line}\n"})
    return "".join(f"{json.dumps(one)}\n" for one in found)
