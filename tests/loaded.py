"""Run our executables in processes that have already imported their modules, because imports take most of a short run.

A server, one per test process, imports the package once. For each run it forks a child, which gets its own arguments,
environment, folder and standard streams, and ends as an executable does. Only gpt's Python code runs here. Examples in
man pages, tests/e2e and some contract tests start executables as users do.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
OTHERS = ("numpy", "numpy.ma", "typer", "rich.console", "rich.text", "gpt")  # modules to load; all of the last one
RARE = {  # modules that take long to import, by an argument that needs them: loaded for the first run that has it
    "--plot": ("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
}
MESSAGE = 1 << 17  # bytes of a request
LOCK = threading.Lock()


@cache
def mains() -> dict[str, str]:
    """Return `module:function` of each executable, in the places where gpt_start looks."""
    scripts: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    found = {name: main.replace("gpt_start:", "gpt.executables:") for name, main in scripts.items()}
    return found


def run(
    command: Sequence[Any],
    data: bytes = b"",
    timeout: float = 60,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: IO[bytes] | int | None = None,
    stdout: IO[bytes] | int | None = None,
    text: bool = False,
    check: bool = False,
    **more: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a command like `subprocess.run` with `input` and `capture_output`. Standard input is a pipe.

    `stdin` and `stdout` may be files or descriptors; then `data`, or the returned output, is empty. With options in
    `more`, and if the environment has other variables that Python itself reads, `subprocess.run` runs the command.
    """
    if more or (env and any(key.startswith("PYTHON") for key, _ in env.items() ^ os.environ.items())):
        more |= {"input": data} if stdin is None else {"stdin": stdin}
        more |= {"stdout": subprocess.PIPE if stdout is None else stdout, "stderr": subprocess.PIPE}
        words = [*map(str, command)]
        return subprocess.run(words, cwd=cwd, env=env, timeout=timeout, text=text, check=check, **more)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, ExitStack() as stack:
        if stdin is None:
            stdin = stack.enter_context(_fed(data))
        streams = _number(stdin), _number(out if stdout is None else stdout), err.fileno()
        status = start(command, streams, timeout, cwd, env)
        stack.close()
        out.seek(0)
        err.seek(0)
        found = [file.read().decode() if text else file.read() for file in (out, err)]
    done: subprocess.CompletedProcess[Any] = subprocess.CompletedProcess(command, status, *found)
    if check:
        done.check_returncode()
    return done


def _number(file: IO[bytes] | int) -> int:
    return file if isinstance(file, int) else file.fileno()


@contextmanager
def _fed(data: bytes) -> Iterator[int]:
    """Yield a pipe that a thread fills."""
    theirs, ours = os.pipe()
    feeder = threading.Thread(target=_feed, args=(ours, data))
    feeder.start()
    try:
        yield theirs
    finally:
        os.close(theirs)
        feeder.join()


def _feed(pipe: int, data: bytes) -> None:
    with suppress(BrokenPipeError):  # the process may end without reading everything
        while data:
            data = data[os.write(pipe, data) :]
    os.close(pipe)


def start(
    command: Sequence[Any],
    streams: tuple[int, int, int],
    timeout: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> int:
    """Run a command on these descriptors; return its status, as Popen does."""
    words = [str(word) for word in command]
    told = {"words": words, "cwd": str(cwd or os.getcwd()), "env": dict(os.environ if env is None else env)}
    with LOCK:
        server = _server()
        socket.send_fds(server, [json.dumps(told).encode()], streams)
        pid = int(server.recv(MESSAGE))
        late = not select.select([server], [], [], timeout)[0]
        if late:
            os.killpg(pid, signal.SIGKILL)
        status = int(server.recv(MESSAGE))
    if late:
        raise subprocess.TimeoutExpired(words, timeout)
    return status


@cache
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "tests.loaded", str(theirs.fileno())]
    process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()])
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)  # before that
    return ours


# The server


def _serve(requests: socket.socket) -> None:
    for name in OTHERS:
        import_module(name)
    for module in pkgutil.walk_packages([str(ROOT / "gpt")], "gpt."):
        import_module(module.name)
    _keep_apart()
    while True:
        data, streams, _, _ = socket.recv_fds(requests, MESSAGE, 3)
        if not data:
            return
        told = json.loads(data)
        _load_rare(told["words"])
        pid = os.fork()
        if not pid:
            requests.close()
            os._exit(_become(told, streams))
        for number in streams:
            os.close(number)
        requests.send(str(pid).encode())
        requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _load_rare(words: list[str]) -> None:
    for word in {word.partition("=")[0] for word in words} & RARE.keys():
        for name in RARE.pop(word):
            with suppress(ImportError):
                import_module(name)
        _keep_apart()


def _keep_apart() -> None:
    """Stop the garbage collector of each child from walking through, and so copying, what the server loaded."""
    gc.collect()
    gc.freeze()


def _become(told: dict[str, Any], streams: list[int]) -> int:
    """Become the executable, and return its status."""
    os.setsid()
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["env"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))
    sys.stdout, sys.stderr = (io.TextIOWrapper(open(number, "wb", closefd=False)) for number in (1, 2))
    sys.argv = told["words"]
    module, _, function = mains()[sys.argv[0]].partition(":")
    try:
        status = getattr(import_module(module), function)()
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else 0 if status is None else 1


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
