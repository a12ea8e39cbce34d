"""Driver functions by name: Python and the hook classify them alike."""

import re
from pathlib import Path

from gpt.trace.apis import LISTED, PREFIXES, find_api

ENTRY = Path(__file__).parents[2] / "runtime/hook/entry"
DECODE = "\n".join(path.read_text() for path in sorted(ENTRY.glob("*.[ch]")))


def test_functions_are_of_the_hooks_types_and_ops():
    listed = re.findall(r'^    \{"(cu\w+)", (?:"(\w+)", "(\w+)"|INSTANTIATES)', DECODE, re.M)
    assert len(listed) > 120
    for name, type_, op in listed:
        assert find_api(name)[:3] == (type_ or "graph", op or "instantiate", name)
    assert {name for names in LISTED.values() for name in names.split()} <= {name for name, _, _ in listed}


def test_beginnings_of_names_are_the_hooks():
    (table,) = re.findall(r"types\[\] = \{(.*?)\n\};", DECODE, re.S)
    assert re.findall(r'\{"(\w*)", "(\w+)"\}', table) == [*PREFIXES]


def test_versions_and_variants_are_not_part_of_a_name():
    assert find_api("cuMemAlloc_v2") == ("memory", "alloc", "cuMemAlloc", "cuMemAlloc_v2")
    assert find_api("cuLaunchKernel_ptsz")[:3] == ("kernel", "launch", "cuLaunchKernel")
    assert find_api("cuMemcpyHtoD_v2_ptds")[:3] == ("memcpy", "HtoD", "cuMemcpyHtoD")
    assert find_api("cuStreamGetCaptureInfo_v3")[:3] == ("stream", "getcaptureinfo", "cuStreamGetCaptureInfo")
    assert find_api("nonsense")[:3] == ("other", "nonsense", "nonsense")
