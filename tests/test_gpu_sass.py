"""nvdisasm understands the code that tests/gpu/sass_risks.py writes into its kernels. Only a GPU can tell what the code
does.
"""

import re
import sys
from pathlib import Path

import pytest

from tests import cuda

GPU = Path(__file__).parent / "gpu"
sys.path.insert(0, str(GPU))  # the scripts import each other by name

import sass_cases  # noqa: E402
import sass_hazards  # noqa: E402
import sass_limits  # noqa: E402
import sass_report  # noqa: E402
import sass_risks  # noqa: E402
import sass_words  # noqa: E402

EVERY = 101  # weave every 101st case, and the first of each kind


def instructions(text):
    return [" ".join(found.split()) for found in re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text)]


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    if not cuda.have_cxx():
        pytest.skip("nvcc needs g++")
    file = tmp_path_factory.mktemp("sass") / "risks.cubin"
    cuda.nvcc("-arch=sm_90a", "-cubin", "-o", file, GPU / "sass_risks.cu")
    return file.read_bytes(), sass_words.read_kernels(file.read_bytes(), cuda.run("nvdisasm", "-c", file))


def test_words_are_what_nvdisasm_says(tmp_path):
    words = []
    for name, (text, _, _) in sass_words.WORDS.items():
        to = "next" if text.endswith("0x10") else None
        here = 16 * len(words)
        words += sass_words.assemble([sass_words.op(name, to)], here, {"next": here + 16})
    (tmp_path / "words.bin").write_bytes(sass_words.dump_words(words))
    printed = instructions(cuda.run("nvdisasm", "-b", "SM90a", tmp_path / "words.bin"))
    expected = [re.sub(r"0x10$", f"{16 * k + 16:#x}", text) for k, (text, _, _) in enumerate(sass_words.WORDS.values())]
    assert printed == expected


@pytest.mark.full
def test_kernels_have_sites_and_rooms(cubin):
    _, kernels = cubin
    rooms = {name: (len(kernel.sites), len(kernel.rooms)) for name, kernel in kernels.items()}
    constructs = dict.fromkeys(("together", "some", "loop", "nested", "gone", "counts", "calls"), (1, 2))
    assert rooms == constructs | {"lab": (1, 1), "wide": (1, 1), "group": (1, 1), "both": (3, 1)}


@pytest.mark.full
def test_sequences_fit_and_can_be_read(cubin, tmp_path):
    image, kernels = cubin
    cases = [{"kernel": "lab", **case} for case in (*sass_hazards.iter_cases(), *sass_limits.iter_cases())]
    woven = {}
    first = {case["what"]: case for case in reversed(cases)}
    for case in (*first.values(), *cases[::EVERY]):
        woven[case["what"]] = sass_risks.weave_sequence(image, kernels[case["kernel"]], case)
        if case["right"] is None and case["what"] != "count":
            sass_risks.weave_sequence(image, kernels[case["kernel"]], sass_risks.patient(case))
    assert woven.keys() >= {"dead_load", "overwritten", "covered", "latency", "matrix", "group", "uniform", "count"}
    for what, data in [*woven.items()][::8]:  # starting nvdisasm takes half a second
        (tmp_path / "woven.cubin").write_bytes(data)
        assert "BRA" in cuda.run("nvdisasm", "-c", tmp_path / "woven.cubin"), what


@pytest.mark.full
def test_constructs_use_no_register_of_the_kernel(cubin):
    image, kernels = cubin
    for case in sass_risks.iter_constructs(kernels)[::5]:
        kernel = kernels[case["kernel"]]
        names = sass_words.names_at(kernel, kernel.sites[0], sass_risks.REGISTERS)
        code = sass_cases.CONSTRUCTS[case["construct"]](names)
        sass_words.weave(image, kernel, [(0, [*code, names.word])], case["place"], sass_risks.REGISTERS)
        named = {int(n) for n in re.findall(r"\bB(\d+)\b", kernel.text)}
        regions = {sass_words.field_of(x.word, "barrier") for x in code if getattr(x, "name", "") == "BSSY"}
        assert not named & regions, case


def test_rules_are_checked():
    construct = {"launches": [0, 20], "cases": [0, 0, 1], "unsteady": 0}
    wrong = construct | {"launches": [20, 20], "cases": [1, 0, 1]}
    words = {"latency: IADD3 > IMAD": {"4": [[1, 128], [0, 9]], "5": [[0, 128], [0, 9]]}}
    assert sass_report.broken({"BSSY": {"some": construct}, "YIELD": {"some": wrong}}, words) == []
    words["latency: IADD3 > IMAD"]["5"] = [[0, 128], [1, 9]]
    assert sass_report.broken({"BSSY": {"some": wrong}}, words) == ["BSSY in some", "latency: IADD3 > IMAD: 5"]
