"""Programs that send requests to stages through gpt-hook's supervisor, for tests/runtime/test_broker*.py."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

from tests import cuda
from tests.runtime import hooked

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
KERNEL = ".visible .entry {}(.param .u64 to) {{ .reg .b64 %d; ld.param.u64 %d, [to]; st.global.u32 [%d], {}; ret; }}\n"
SCRIPT = """
import os, signal, sys, threading, time
from ctypes import *
from tests.runtime.driving import *

def run(name, value):
    ok(launch(function(load(sys.argv[1]), name), 1, 1, memory))
    assert memory.read() == [value]

def begin_all():
    global memory
    begin()
    memory = Memory(1)
"""
# Asks for a kernel for each name on standard input, and writes the notes or faults about it.
ASKING = """
#include "common/broker.h"
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    static char text[1 << 20], name[64];
    struct gpt_outcome found;
    fread(text, 1, sizeof(text), fopen(argv[argc - 1], "r"));
    while (fgets(name, sizeof(name), stdin)) {
        name[strcspn(name, "\\n")] = 0;
        gpt_ask(&(struct gpt_asked){.type = "ptx", .image = text, .size = strlen(text), .kernel = name}, &found);
        printf("%s%s\\n", found.note, found.fault);
        fflush(stdout);
        gpt_empty(&found.made);
    }
}
"""
# Like the compiler, but each compilation waits until a file `go` exists.
SLOW = """#!/bin/sh
case "$*" in *--version*) ;; *) echo $$ >{0}/begun; while [ ! -e {0}/go ]; do sleep 0.02; done ;; esac
exec {1} "$@"
"""


class Run:
    """Programs under gpt-hook, with their own cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ptx = folder / "code.ptx"
        names = [*"abcdef", *(f"many{n}" for n in range(8))]
        text = HEAD + "".join(KERNEL.format(name, n) for n, name in enumerate(names))
        self.ptx.write_text(text + "\0")
        self.image = folder / "code.fatbin"  # scripts load this; PTX in a fatbin isn't checked as a whole
        self.image.write_bytes(cuda.fatbin([("sm_70", "ptx", text.encode())], "none"))
        self.env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": str(folder / "cache")}
        self.env["LD_LIBRARY_PATH"] = str(hooked.runtime() / "sim")
        slow = folder / "slow"
        slow.write_text(SLOW.format(folder, os.environ.get("CC", "cc")))
        slow.chmod(0o755)

    def start(
        self,
        script: str,
        *args: object,
        hook: object = "",
        options: tuple[str, ...] = (),
        program: object = "",
        **env: str,
    ):
        first = [program] if program else [sys.executable, "-c", SCRIPT + dedent(script)]
        line = [*map(str, first), str(self.ptx if program else self.image), *map(str, args)]
        if hook is not None:
            more = options or ("-o", str(self.folder / "t.mp"))
            line = [*hooked.command("run", "-f", *more, "--device", "sim", "--"), *line]
            line[0] = str(hook or line[0])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, env=self.env | env, cwd=hooked.ROOT, text=True, **pipes)

    def __call__(self, script: str, *args: object, **more) -> tuple[int, str, str]:
        process = self.start(script, *args, **more)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def alive(self, name: str = "") -> list[int]:
        """Return the processes of these programs, or those with a word in their command line."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = str(self.folder / "cache").encode() in (folder / "environ").read_bytes()
                dead = re.search(r"^State:\s*[ZX]", (folder / "status").read_text(), re.M)
                words = (folder / "comm").read_bytes() + (folder / "cmdline").read_bytes()
                if ours and not dead and name.encode() in words:
                    found.append(int(folder.name))
        return found

    def compiler(self) -> int:
        """Return the slow compiler, once it runs."""
        begun = self.folder / "begun"
        hooked.wait_until(lambda: begun.exists() and begun.read_text().endswith("\n"))
        return int(begun.read_text())

    def kill(self, name: str) -> None:
        """Kill the broker, or one of its stages, once the compiler runs."""
        self.compiler()
        found = [pid for pid in self.alive(name) if b"sh\0-c" not in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(found) == 1
        os.kill(found[0], signal.SIGKILL)
