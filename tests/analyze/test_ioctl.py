"""gpt-analyze ioctl on hand-made ioctls."""

import pytest

from gpt.stream import records
from gpt.trace import escapes
from tests.analyze.asked import answers, ask, run
from tests.trace import forge

APIS = ["cuInit", "cuMemAlloc", "cuCtxCreate"]
US, ZERO = 1000, 10**9
CONTROL, ALLOC, FREE = "NV_ESC_RM_CONTROL", "NV_ESC_RM_ALLOC", "NV_ESC_RM_FREE"


def call(name, start, took, thread=1):
    return forge.calls([(ZERO + start * US, took * US, APIS.index(name) + 1, 0)], forge.CALL, thread)


def ioctl(name, start, took, parent=None, command=None, error=None, thread=1):
    at, request = ZERO + start * US, 0xC000462A
    parent = None if parent is None else ZERO + parent * US
    return records.make("ioctl", thread=thread, parent=parent, device="/dev/nvidiactl", request=request, name=name,
                        command=command, start=at, duration=took * US, error=error)  # fmt: skip


def made(*inner, **header):
    return forge.trace(*[forge.api(number, name) for number, name in enumerate(APIS, 1)], *inner, **header)


SEGMENT = [
    call("cuInit", 0, 100), call("cuMemAlloc", 200, 40), call("cuMemAlloc", 300, 10), call("cuMemAlloc", 200, 7, 2),
    ioctl(CONTROL, 10, 30, 0, 0x20800102), ioctl(CONTROL, 50, 10, 0, 0x20800102), ioctl(CONTROL, 70, 5, 0, 0xA06C0101),
    ioctl(ALLOC, 80, 5, 0, 0xCBC0), ioctl(FREE, 210, 20, 200), ioctl(FREE, 201, 1, 200, thread=2),
    ioctl(FREE, 500, 2), ioctl("0xfe", 85, 1, 0, error=25), ioctl(CONTROL, 87, 1, 0, 0x12345678),
]  # fmt: skip


def test_ioctls_by_name_and_command():
    found = answers("ioctl", made(*SEGMENT))
    rows = [(r["name"], r.get("command"), r["calls"], r["failed"], r["total"] // US) for r in found.rows["ioctls"]]
    assert rows == [
        (CONTROL, None, 4, 0, 46),
        (CONTROL, "NV2080_GPU_GET_INFO_V2", 2, 0, 40),
        (CONTROL, "NVA06C_GPFIFO_SCHEDULE", 1, 0, 5),
        (CONTROL, "0x12345678", 1, 0, 1),
        (FREE, None, 3, 0, 23),
        (ALLOC, None, 1, 0, 5),
        (ALLOC, "HOPPER_COMPUTE_A", 1, 0, 5),
        ("0xfe", None, 1, 1, 1),
    ]
    assert found.rows["ioctls"][0]["slowest"] == 30 * US and found.rows["ioctls"][0]["share"] == 100 * 46 / 75
    assert found.verdicts["ioctls"] == [
        "49.7 % of the time of the CUDA calls that made them, 3 in all", "1 are part of no recorded CUDA call",
    ]  # fmt: skip


def test_the_calls_that_make_them():
    found = answers("ioctl", made(*SEGMENT))
    rows = [
        (r["function"], r.get("name"), r.get("made_by"), r["calls"], r["total"] // US) for r in found.rows["callers"]
    ]
    assert rows == [
        ("cuInit", None, 1, 6, 52), ("cuInit", CONTROL, 1, 4, 46), ("cuInit", ALLOC, 1, 1, 5),
        ("cuInit", "0xfe", 1, 1, 1),
        ("cuMemAlloc", None, 2, 2, 21), ("cuMemAlloc", FREE, 2, 2, 21),
        ("(no call)", None, None, 1, 2), ("(no call)", FREE, None, 1, 2),
    ]  # fmt: skip
    assert [r.get("of_call") for r in found.rows["callers"]][::4] == [52.0, 100 * 21 / 47]
    (row,) = found.rows["scheduling"]
    assert (row["ioctl"], row["function"], row["time"], row["took"]) == (
        "NVA06C_GPFIFO_SCHEDULE", "cuInit", ZERO + 70 * US, 5 * US,
    )  # fmt: skip


def test_two_processes_and_what_is_chosen():
    two = ask("ioctl", made(*SEGMENT), made(*SEGMENT, pid=11), args=("--pid", 11, "--tid", 2))
    assert [(row["function"], row["calls"]) for row in two.rows["callers"]] == [("cuMemAlloc", 1)] * 2
    late = ask("ioctl", made(*SEGMENT), args=("--time", "1.0004,"))
    assert [(row["function"], row["calls"]) for row in late.rows["callers"]] == [("(no call)", 1)] * 2


def test_a_trace_without_ioctls():
    done = run("ioctl", data=forge.pack(made(*SEGMENT[:2])))
    assert done.returncode == 1 and b"no ioctl in the trace: 'gpt-hook run --ioctl' records those" in done.stderr


@pytest.mark.full
def test_arbitrary_ioctls_cause_no_traceback(tmp_path):
    most = (1 << 64) - 1
    wild = [records.make("ioctl", thread=most, parent=most, device="", request=most, name="", command=most, start=start,
                         duration=most, error=5) for start in (0, 1, most)]  # fmt: skip
    long = [ioctl("x" * 4096, 1, 0, 5)]
    done = run("ioctl", "--format", "md", "--plot", tmp_path / "i.png", data=forge.pack(made(*wild, *long, end=False)))
    assert (done.returncode, done.stderr) == (0, b"") and len(done.stdout) <= 8000


def test_names_of_commands_are_of_their_class():
    for class_, (prefix, names) in escapes.COMMANDS.items():
        assert int(prefix.removeprefix("NV"), 16) == class_ and list(names) == sorted(names)
        assert escapes.name_command(CONTROL, class_ << 16 | next(iter(names))).startswith(prefix)
    assert escapes.name_command("NV_ESC_IOCTL_XFER_CMD", 0x2A) == "0x2a"
