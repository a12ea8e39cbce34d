"""Talk to the supervisor byte by byte, as an honest or a hostile process.

Tests' scripts run under gpt-hook and use this, also in sandboxes, so it imports none of our code.
"""

from __future__ import annotations

import array
import ctypes
import os
import socket
import struct
from collections.abc import Callable

USER, MOUNT, NETWORK = 0x10000000, 0x20000, 0x40000000
HOST, PROBE, REGISTER = range(3)
QUESTION, REPLY = struct.Struct("<I16s65s3x"), struct.Struct("<i32s1024s")
REFUSED = 253
MODULE = b"\x83\xa4kind\xa6module\xa2id\x01\xa4data\xc4\x01x"  # {"kind": "module", "id": 1, "data": b"x"}

libc = ctypes.CDLL(None, use_errno=True)
folder = os.environ.get("GPT_HOOK_BROKER", "")


def connect(path: str = "") -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.settimeout(20)
    if path:
        client.connect(path)
    else:  # the name may be too long for a socket address
        place = os.open(folder, os.O_PATH)
        client.connect(f"/proc/self/fd/{place}/socket")
        os.close(place)
    return client


def file(content: bytes) -> int:
    made = os.memfd_create("request")
    os.write(made, content)
    return made


def send(client: socket.socket, which: int, digest: str = "", text: str = "", arch: str = "host", files=None) -> None:
    message = QUESTION.pack(which, arch.encode(), digest.encode()) + (text.encode() + b"\0" if text else b"")
    if files is None:
        files = [] if text else [file(MODULE)]
    more = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    client.sendmsg([message], more)


def receive(client: socket.socket) -> tuple[int, str]:
    """Return the status and the fault, or (-1, "") if the supervisor only closed the connection."""
    try:
        data, rights, *_ = client.recvmsg(4096, 64)
    except ConnectionResetError:
        data, rights = b"", []
    for *_, held in rights:
        os.close(struct.unpack("i", held[:4])[0])
    if len(data) != REPLY.size:
        return -1, ""
    status, *texts = REPLY.unpack(data)
    code, fault = (text.rstrip(b"\0").decode() for text in texts)
    return status, f"{code}: {fault}" if code else fault


def ask(which: int, *words: str, **more) -> tuple[int, str]:
    with connect(more.pop("path", "")) as client:
        send(client, which, *words, **more)
        return receive(client)


def unshare(flags: int) -> None:
    assert libc.unshare(flags) == 0, os.strerror(ctypes.get_errno())


def jail(flags: int) -> None:
    """Enter namespaces, and an empty root directory."""
    empty = f"/tmp/gpt-jail.{os.getpid()}"
    os.mkdir(empty)
    unshare(flags)
    os.chroot(empty)
    os.chdir("/")


def child(work: Callable[[], object]) -> None:
    """Print the result of some work in a child, and remove its jail."""
    print(end="", flush=True)
    pid = os.fork()
    if not pid:
        try:
            print(work(), flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if os.path.isdir(f"/tmp/gpt-jail.{pid}"):
        os.rmdir(f"/tmp/gpt-jail.{pid}")
