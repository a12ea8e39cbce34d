"""Programs that gpt-hook ctl reaches, and the orders that they take."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.runtime import hooked

# A program that launches as often as each line of its input says, and answers.
SERVER = r"""
int main(void) {
    char line[64];
    void *function;
    begin();
    function = kernel("foo");
    while (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin))
        for (int i = atoi(line); i > 0; i--)
            launch(function);
}
"""


class Server:
    """A program of this kind, under gpt-hook."""

    def __init__(
        self, out: Path, program: Path, *options: str, arguments: tuple[object, ...] = (), **environment: str
    ) -> None:
        line = hooked.command("run", "-f", "-o", out, "--device", "sim", *options, "--", program, *map(str, arguments))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(line, text=True, env=os.environ | environment, **pipes)
        self.pid = self.process.pid
        self.out = out
        assert self.process.stdout.readline() == "ready\n"

    def launch(self, count: int) -> None:
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "ready\n"

    def end(self) -> hooked.Trace:
        _, errors = self.process.communicate(timeout=60)
        assert (self.process.returncode, errors) == (0, "")
        return hooked.Trace(self.out)


def ctl(*words: object, **more) -> subprocess.CompletedProcess[str]:
    line = hooked.command("ctl", *map(str, words))
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False, **more)


def order(*words: object) -> None:
    done = ctl(*words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def status(pid: int) -> dict:
    done = ctl("--json", pid, "status")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def periods(trace: hooked.Trace) -> list[tuple[int, int | None]]:
    """When a trace that began with nothing recorded was recorded."""
    found = [(r["on"], r["at"]) for r in trace.of("recording")]
    found.sort(key=lambda change: change[1])
    assert [on for on, _ in found] == [bool(i % 2) for i in range(len(found))]
    times = [at for _, at in found[1:]]
    return list(zip(times[::2], [*times[1::2], *[None] * (len(times) % 2)], strict=True))
