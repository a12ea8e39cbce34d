"""gpt-analyze exposed_latency on launches with known times, and with another tool's figures."""

import pytest

from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.trace import forge

MAPS = [forge.probe_map("gmem_bytes", 1, n="u64"), forge.probe_map("block_sched", 2, n="u64")]


def times(launch, prologue, epilogue, **more):
    return records.make("times", launch=launch, prologue=prologue, epilogue=epilogue, **more)


def trace(*told, name="k", maps=(1, 2), **header):
    known = [records.make("function", id=4, name=name), *MAPS, forge.kernel(3, 4, name, *maps)]
    probed = [forge.probed(number, 3, 4, 2, 32) for number in range(len(told))]
    return forge.trace(*known, *probed, *told, **header)


BENCHED = trace(times(0, 900, 0, kernel=300, original=100), times(1, 900, 0, kernel=500, original=300))
PLAIN = trace(times(0, 100, 40), times(1, 300, 60), pid=11)


def test_parts_are_multiples_of_the_kernel_without_probes():
    found = ask("exposed_latency", BENCHED, PLAIN)
    (row,) = found.rows["latency"]
    assert row == {
        "name": "k", "probe": "block_sched+gmem_bytes", "tool": "gpt-hook", "exposed": pytest.approx(650 / 200),
        "prologue": 200, "kernel": 400, "epilogue": 50, "total": 650, "original": 200, "launches": 4,
        "bar": "block_sched+gmem_bytes, gpt-hook", "of_prologue": 1, "of_kernel": 2, "of_epilogue": 0.25,
    }  # fmt: skip
    assert found.verdicts["latency"] == [
        "exposed, as a multiple of the kernel alone: gpt-hook 3.25 (mean of 1)", "4 launches ran with probes",
    ]  # fmt: skip
    (alone,) = ask("exposed_latency", BENCHED).rows["latency"]
    assert (alone["prologue"], alone["total"]) == (900, 1300)


def test_parts_are_medians():
    """The first launch includes loading its code, both before the kernel and in it."""
    took = ((3_500_000, 90_000, 10, 3_300_000), (14, 2, 10, 10), (16, 3, 12, 11))
    told = [times(n, before, after, kernel=on, original=plain) for n, (before, after, on, plain) in enumerate(took)]
    (row,) = ask("exposed_latency", trace(*told)).rows["latency"]
    assert [row[n] for n in ("prologue", "kernel", "epilogue", "total", "original")] == [16, 10, 3, 29, 11]


def test_no_multiples_without_kernel_times():
    found = ask("exposed_latency", PLAIN)
    (row,) = found.rows["latency"]
    assert not {"exposed", "kernel", "total", "original", "of_kernel"} & row.keys()
    assert found.verdicts["latency"][0].startswith("no kernel times without probes: 'gpt-hook run --benchmark'")
    rows = forge.gpu_times([(1000, 700, 2, 4)])
    (row,) = ask("exposed_latency", [*PLAIN[:-1], rows, PLAIN[-1]]).rows["latency"]
    assert (row["kernel"], row["total"]) == (700, 950) and "exposed" not in row


FILE = """\
probe, ncu, original, neutrino, epilogue, kernel, prologue
block_sched+gmem_bytes, 231, 100, 139, 9, 120, 10

tensorop_count, 569, 100, , , ,
"""


def test_comparison_shows_figures_of_other_tools(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "f.csv"
    path.write_text(FILE)
    found = ask("exposed_latency", BENCHED, PLAIN, args=("--beside", path, "--plot", tmp_path / "p.png"))
    ours, *others = found.rows["latency"]
    assert ours["tool"] == "gpt-hook"
    assert others == [
        {"probe": "block_sched+gmem_bytes", "tool": "ncu", "exposed": 2.31, "of_whole": 2.31,
         "bar": "block_sched+gmem_bytes, ncu"},
        {"probe": "block_sched+gmem_bytes", "tool": "neutrino", "exposed": 1.39, "of_prologue": 0.1, "of_kernel": 1.2,
         "of_epilogue": 0.09, "bar": "block_sched+gmem_bytes, neutrino"},
        {"probe": "tensorop_count", "tool": "ncu", "exposed": 5.69, "of_whole": 5.69, "bar": "tensorop_count, ncu"},
    ]  # fmt: skip
    assert found.verdicts["latency"][0].endswith("3.25 (mean of 1), ncu 4.00 (mean of 2), neutrino 1.39 (mean of 1)")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("text", "status", "fact"),
    [
        (None, 4, ": No such file or directory"),
        ("", 3, ": no column 'probe'"),
        ("probe,ncu\na,1\n", 3, ": no column 'original'"),
        ("probe,original,kernel\na,1,1\n", 3, ": no column of a tool"),
        ("probe,original,ncu,ncu\na,1,1,1\n", 3, ": two columns with one name"),
        ("probe,original,ncu\na,1\n", 3, ":2: 2 values, of 3 columns"),
        ("probe,original,ncu\na,0,1\n", 3, ":2: no time in column 'original'"),
        ("probe,original,ncu\na,1,nan\n", 3, ":2: not a time: 'nan'"),
        ("probe,original,ncu\na,1,-1\n", 3, ":2: not a time: '-1'"),
        ("probe,original,ncu\na,1,1e290\n", 3, ":2: not a time: '1e290'"),
        ("\xff\n", 3, ": not comma-separated values: "),
        ("probe,original,ncu\n" + "a,1,1\n" * 1001, 3, ": more than 1,000 rows"),
    ],
)
def test_files_that_are_wrong(tmp_path, text, status, fact):
    if text is not None:
        (tmp_path / "f.csv").write_bytes(text.encode("latin-1"))
    done = run("exposed_latency", "--beside", "f.csv", data=forge.pack(BENCHED), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, b"")
    assert done.stderr.decode().startswith(f"gpt-analyze: error: f.csv{fact}") and done.stderr.count(b"\n") == 1


def test_a_trace_without_probed_launches():
    done = run("exposed_latency", data=forge.pack(forge.trace(forge.launches({1: 2}))))
    assert done.returncode == 1 and b"no launch with probes in the trace: 'gpt-hook run -p'" in done.stderr
