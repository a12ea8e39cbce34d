"""Our liveness, from our own tables, agrees with nvdisasm's in kernels with and without calls, jump tables and
recursion.
"""

import random
import time

import pytest

from tests import cuda
from tests.sass.interp.cases import KERNELS
from tests.sass.liveness import Differences, compare_cubin

FLOW = KERNELS.parents[1] / "flow.cu"


@pytest.mark.parametrize(("source", "calls"), [(FLOW, 0), (KERNELS / "control.cu", 2)], ids=["flow", "control"])
def test_every_difference_has_a_rule(source, calls, tmp_path):
    try:
        nvdisasm, image = str(cuda.tool("nvdisasm")), cuda.nvrtc_compile(source.read_text(), "sm_90")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = tmp_path / "one.cubin"
    path.write_bytes(image)
    found = Differences()
    compare_cubin(nvdisasm, path, found, time.monotonic() + 60, random.Random(1))
    assert not found.unexplained
    assert (found.kernels[True], sum(found.kernels.values())) == (calls, 7 if not calls else 9)
    assert found.equal[False] > found.instructions[False] / 2
    assert not any(way == "less" and not has_calls for way, _, has_calls in found.by_rule)
