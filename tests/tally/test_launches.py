"""tests/tally/corpus, compiled by nvcc, gives the right results on the simulated device."""

from __future__ import annotations

import pytest

from gpt.ptx.scan import scan_module
from tests import cuda
from tests.asm.host.jobs import answers
from tests.gpu import corpus
from tests.runtime import hooked
from tests.tally import sources, woven
from tests.tally.launches import LAUNCHES, LEFT, images
from tests.tiers import full

SIMULATED = hooked.runtime() / "sim"
SAMPLE = ["coop"]  # grids that synchronize
SOURCES = sorted({launch.source for launch in LAUNCHES})

pytestmark = pytest.mark.skipif(not cuda.have_cxx(), reason="nvcc needs g++")


def compiled(source, folder):
    """Return the PTX of a source."""
    corpus.compile_source(sources.HERE / "corpus" / f"{source}.cu", folder)
    return (folder / f"{source}.ptx").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize("source", [name if name in SAMPLE else full(name) for name in SOURCES])
def test_results(source, tmp_path):
    ptx = compiled(source, tmp_path)
    found = [one for one in images(source, ptx) if one[0].simulated]
    jobs = [launch.job(text if launch.linked else corpus.make(text), name) for launch, name, text in found]
    for (launch, name, _), answer in zip(found, answers(jobs, SIMULATED), strict=True):
        if launch.fault:
            assert answer == "cuCtxSynchronize: 719", name
        else:
            assert not isinstance(answer, str), f"{name}: {answer}"
            assert not launch.judge(answer), f"{name}: {launch.judge(answer)}"
    rest = {entry.name for entry in scan_module(ptx, source).entries} - {name for _, name, _ in images(source, ptx)}
    assert all(any(part in name for part in LEFT) for name in rest), rest


@pytest.mark.parametrize("source", [full(name) for name in SOURCES])
def test_probes(source, tmp_path):
    """Every kernel has every built-in probe."""
    found = [
        (one, ptx, list(woven.cases(one, name, ptx))) for one, name, ptx in images(source, compiled(source, tmp_path))
    ]
    found = [one for one in found if one[2]]
    jobs = [
        job
        for launch, ptx, cases in found
        for job in woven.jobs(launch, cases, corpus.make(ptx), [corpus.make(case.woven.data) for case in cases])
    ]
    replies = iter(answers(jobs, SIMULATED))
    for _, _, cases in found:
        plain = next(replies)
        for case in cases:
            assert not (wrong := woven.check(case, plain, next(replies))), wrong


def test_every_source_is_launched_or_it_says_why_not():
    assert {path.stem for path in (sources.HERE / "corpus").glob("*.cu")} - LEFT.keys() == set(SOURCES) - LEFT.keys()
