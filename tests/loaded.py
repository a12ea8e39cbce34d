"""Run our executables in processes that have already imported their modules, because imports take most of a short run.

A server, one per test process, imports the package once. For each run it forks a child, which gets its own arguments,
environment, folder and standard streams, and ends as an executable does. Only gpt's Python code runs here.

Tests call `run`. Everything else that looks for executables on PATH, such as the pipelines of gpt-hook, finds small
programs (programs/forked.c) that ask the server; the environment has its socket. Examples in man pages, tests/e2e, some
contract tests and tests with the fixture `cold` start executables as users do.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import io
import os
import pkgutil
import resource
import select
import selectors
import shutil
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
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from tests import cuda

ROOT = Path(__file__).parents[1]
OTHERS = ("numpy", "numpy.ma", "typer", "rich.console", "rich.text", "gpt")  # modules to load; all of the last one
RARE = {  # modules that take long to import, by a word that needs them: loaded for the first run that has it
    "twins": ("tests.runtime.twins",),
    "dask": ("dask", "distributed"),
    "--plot": ("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
}
runtime: Path | None = None  # the runtime whose pipelines ask the server, for a session of pytest
VARIABLE = "TESTS_SERVER"  # in the environment of an executable: the socket of its server
ENVIRONMENT = dict(os.environ)  # servers start with it
MESSAGE, ANSWER = 1 << 17, 64  # bytes of a request, and of an answer
PATIENCE = 30  # seconds for a process that has connected to send its request
LIMITS = 16  # kinds of resource limits
RIGHTS = ("Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp:")  # lines of /proc/PID/status
SPACES = ("mnt", "net", "pid", "user")
FIXED = LIMITS + 1 + len(SPACES)
TESTS = {"twins": "tests.runtime.twins:main", "python-c": "tests.loaded:run_code"}  # executables that only tests have
NEW = {"twins": "-m tests.runtime.twins", "python-c": "-c"}  # how Python runs them in a new process
SCRIPT = "#!/bin/sh\nPYTHONPATH='{}' exec '{}' {} \"$@\"\n"


@cache
def mains() -> dict[str, str]:
    """Return `module:function` of each executable, in the places where gpt_start looks, and of the tests' own."""
    scripts: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return TESTS | {name: main.replace("gpt_start:", "gpt.executables:") for name, main in scripts.items()}


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
    variables = (f"{name}={value}" for name, value in (os.environ if env is None else env).items())
    told = [*_inherited(), str(cwd or os.getcwd()), str(len(words)), *words, *variables]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(str(listen()))
        socket.send_fds(server, [b"".join(os.fsencode(text) + b"\0" for text in told)], streams)
        pid = int(server.recv(ANSWER))
        if pid <= 0:  # a library has changed this process's limits, which a new process inherits
            input_, output, errors = streams
            done = subprocess.run(
                words, stdin=input_, stdout=output, stderr=errors, timeout=timeout, cwd=cwd, env=env, check=False
            )
            return done.returncode
        if not select.select([server], [], [], timeout)[0]:
            os.killpg(pid, signal.SIGKILL)
            server.recv(ANSWER)
            raise subprocess.TimeoutExpired(words, timeout)
        return int(server.recv(ANSWER))


def _inherited() -> list[str]:
    """Return what a child inherits besides streams and folder: ignored signals, the umask, and `_fixed`."""
    ignored = sum(1 << number for number in range(1, 32) if signal.getsignal(number) == signal.SIG_IGN)
    os.umask(mask := os.umask(0))
    return [str(ignored), str(mask), *_fixed()]


def _fixed() -> list[str]:
    """Return what the server can't change for a child: limits, privileges and namespaces, as forked.c does."""
    limits = ["{}:{}".format(*resource.getrlimit(which)) for which in range(LIMITS)]
    with open("/proc/self/status") as status:
        rights = "".join(line for line in status if line.startswith(RIGHTS))
    return [*limits, rights, *(os.readlink(f"/proc/self/ns/{space}") for space in SPACES)]


@cache
def install() -> Path:
    """Return a folder like a checkout: `bin` has executables that ask the server (programs/forked.c), and
    `gpt/_runtime` is the runtime, which looks for executables in `bin`. It stays for later sessions.
    """
    source, places = ROOT / "tests" / "programs" / "forked.c", (Path(sys.executable).parent, ROOT)
    key = hashlib.sha256(repr((places, sorted(mains()), NEW, SCRIPT, source.read_bytes())).encode()).hexdigest()
    folder = ROOT / "build" / f"forked-{key[:16]}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        (made / "bin" / "real").mkdir(parents=True)
        cuda.c_compiler("-std=gnu11", "-D_GNU_SOURCE", source, "-o", made / "bin" / "forked")
        for name in mains():
            (made / "bin" / name).symlink_to("forked")
            (made / "bin" / "real" / name).symlink_to(places[0] / name)
        for name, options in NEW.items():
            script = made / "bin" / "real" / name
            script.unlink()  # the link
            script.write_text(SCRIPT.format(ROOT, sys.executable, options))
            script.chmod(0o755)
        made.chmod(0o755)
        try:
            made.rename(folder)
        except OSError:  # another worker was first
            shutil.rmtree(made)
    _link(ROOT / "gpt" / "_runtime", folder / "gpt" / "_runtime")
    return folder


def _link(built: Path, folder: Path) -> None:
    """Link the files that make has built into a folder; other workers may do the same."""
    for file in built.rglob("*"):
        link = folder / file.relative_to(built)
        if file.is_file() and "__pycache__" not in file.parts and not (link.exists() and link.samefile(file)):
            link.parent.mkdir(parents=True, exist_ok=True)
            other = link.with_name(f".{link.name}.{os.getpid()}")
            os.link(file, other)
            other.replace(link)
            other.unlink(missing_ok=True)  # replace() leaves it if both are the same file


def cold(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment in which executables start as users start them."""
    variables = os.environ if env is None else env
    return {name: value for name, value in variables.items() if name != VARIABLE}


@cache
def listen() -> Path:
    """Return the socket of this process's server. The first request starts it."""
    folder = Path(tempfile.mkdtemp(prefix="gpt-tests-"))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(folder / "socket"))
    listener.listen(64)
    threading.Thread(target=_start_server, args=(listener, os.getpid(), folder), daemon=True).start()
    return folder / "socket"


def _start_server(listener: socket.socket, parent: int, folder: Path) -> None:
    ends, ours = os.pipe()  # if ours is closed, the server ends
    servers: list[subprocess.Popen[bytes]] = []

    def end() -> None:
        if os.getpid() == parent:  # not in a child that a test forked
            os.close(ours)
            shutil.rmtree(folder, ignore_errors=True)
            for server in servers:
                server.wait()

    atexit.register(end)
    with listener:
        select.select([listener], [], [])
        command = [sys.executable, "-m", "tests.loaded", str(listener.fileno()), str(ends)]
        pipes = [listener.fileno(), ends]
        servers.append(subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, pass_fds=pipes, start_new_session=True))
    os.close(ends)


# The server


@dataclass
class _Run:
    """A forked process, and the connection that asked for it."""

    pid: int
    pidfd: int
    connection: socket.socket


def _serve(listener: socket.socket, ends: int) -> None:
    for name in OTHERS:
        import_module(name)
    for module in pkgutil.walk_packages([str(ROOT / "gpt")], "gpt."):
        import_module(module.name)
    _keep_apart()
    fixed = _fixed()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(ends, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                run: _Run = key.data
                if key.fileobj == ends:
                    return
                if key.fileobj == listener:
                    _accept(listener, selector, fixed)
                elif key.fileobj == run.pidfd:
                    status = os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1])
                    selector.unregister(run.pidfd)
                    os.close(run.pidfd)
                    with suppress(KeyError):
                        selector.unregister(run.connection)
                    with suppress(OSError):
                        run.connection.send(str(status).encode())
                    run.connection.close()
                elif run.connection.fileno() >= 0:  # the other end has ended
                    selector.unregister(run.connection)
                    os.kill(run.pid, signal.SIGKILL)


def _accept(listener: socket.socket, selector: selectors.BaseSelector, fixed: list[str]) -> None:
    connection, _ = listener.accept()
    connection.settimeout(PATIENCE)
    try:
        data, streams, _, _ = socket.recv_fds(connection, MESSAGE, 3)
    except OSError:
        connection.close()
        return
    texts = [os.fsdecode(text) for text in data.split(b"\0")[:-1]]
    try:
        if len(streams) == 3 and texts[2 : 2 + FIXED] == fixed and _is_for_us(told := _Request.read(texts)):
            _load_rare(told.words)
            pid = os.fork()
            if not pid:
                os._exit(_become(told, streams))
            with suppress(OSError):  # the other end may have ended
                connection.send(str(pid).encode())
            run = _Run(pid, os.pidfd_open(pid), connection)
            selector.register(run.pidfd, selectors.EVENT_READ, run)
            selector.register(connection, selectors.EVENT_READ, run)
        else:
            with suppress(OSError), connection:
                connection.send(b"0")
    finally:
        for number in streams:
            os.close(number)


@dataclass
class _Request:
    """A command with its environment. `ignored` has a bit for each ignored signal."""

    ignored: int
    umask: int
    cwd: str
    words: list[str]
    env: dict[str, str]

    @classmethod
    def read(cls, texts: list[str]) -> _Request:
        cwd, count, *rest = texts[2 + FIXED :]
        words, variables = rest[: int(count)], rest[int(count) :]
        env = dict(text.split("=", 1) for text in variables if "=" in text)
        return cls(int(texts[0]), int(texts[1]), cwd, words, env)


def _is_for_us(told: _Request) -> bool:
    """Return whether a fork would do the same as a new process: the variables that Python itself reads must be
    equal.
    """
    differ = told.env.items() ^ os.environ.items()
    return Path(told.words[0]).name in mains() and not any(name.startswith("PYTHON") for name, _ in differ)


def _load_rare(words: list[str]) -> None:
    for word in {word.partition("=")[0].rpartition("/")[2] for word in words} & RARE.keys():
        for name in RARE.pop(word):
            with suppress(ImportError):
                import_module(name)
        _keep_apart()


def _keep_apart() -> None:
    """Keep each child's garbage collector away from the objects that the server loaded: visiting them would copy their
    pages.
    """
    gc.collect()
    gc.freeze()


def _become(told: _Request, streams: list[int]) -> int:
    """Become the executable, and return its status."""
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 256)
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            ignored = told.ignored >> number & 1 or number == signal.SIGPIPE  # which Python ignores
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    os.umask(told.umask)
    os.chdir(told.cwd)
    os.environ.clear()
    os.environ.update(told.env)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))
    sys.stdout, sys.stderr = (io.TextIOWrapper(open(number, "wb", closefd=False)) for number in (1, 2))
    sys.argv = told.words
    module, _, function = mains()[Path(told.words[0]).name].partition(":")
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


def run_code() -> None:
    """Run the code in the first argument, as `python -c` does."""
    code = sys.argv[1]
    sys.argv = ["-c", *sys.argv[2:]]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
