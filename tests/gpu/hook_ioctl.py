"""Test --ioctl with the real driver: requests have names, and parents if a driver call made them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpt.stream import wire
from gpt.trace.escapes import name_command
from tests.runtime import hooked

SOURCE = """
int main(void) {
    begin();
    uint64_t memory;
    int (*allocate)(uint64_t *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    OK(allocate(&memory, (size_t)64 << 20));
}
"""


def main() -> None:
    """Print how often each request was made; exit with 1 if an expected one is missing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = hooked.compile_c(folder / "client", SOURCE)
        done = hooked.run(folder / "t.mp", program, options=("--ioctl",), device="real")
        if done.returncode:
            sys.exit(done.stderr)
        with open(folder / "t.mp", "rb") as file:
            records = list(wire.read_records(file, "t.mp"))
        subprocess.run(["gpt-analyze", "ioctl", folder / "t.mp"], check=True)
        subprocess.run(
            ["cp", folder / "t.mp", Path(os.environ.get("GPT_GPU_OUT", name)) / "hook_ioctl.mp"], check=False
        )
    calls = [r for r in records if r["kind"] == "ioctl"]
    names = Counter(r["name"] for r in calls)
    for escape, count in names.most_common():
        print(f"{count:6} {escape}")
    parents = sum("parent" in r for r in calls)
    unnamed = sum(count for escape, count in names.items() if escape.startswith("0x"))
    commands = Counter(name_command(r["name"], r["command"]) for r in calls if "command" in r)
    odd = {name: count for name, count in commands.items() if name.startswith("0x")}
    print(f"{len(odd)} of {len(commands)} commands and classes without a name: {', '.join(sorted(odd))}")
    print(f"{len(calls)} calls, {parents} within a driver call, {unnamed} without a name")
    expected = {"NV_ESC_RM_CONTROL", "NV_ESC_RM_ALLOC", "UVM_INITIALIZE"}
    if not expected <= names.keys() or parents < 0.9 * len(calls) or unnamed > 0.1 * len(calls):
        sys.exit("hook_ioctl: wrong")


if __name__ == "__main__":
    main()
