"""Our liveness, from our own tables, agrees with nvdisasm's in kernels with and without calls, jump tables and
recursion.
"""

import io
import random
import time

import msgpack
import pytest

from tests import cuda
from tests.sass.interp.cases import KERNELS
from tests.sass.liveness import Differences, compare_cubin
from tests.sass.torch_check import iter_cubins

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


def test_closed_libraries_are_left_out(tmp_path, capsys):
    """These programs read any library's cubins, so they refuse closed ones, as the stages do."""
    try:
        sources = [f'extern "C" __global__ void {name}() {{}}' for name in ("cublas_x", "x")]
        images = [cuda.nvrtc_compile(source, "sm_90") for source in sources]
    except FileNotFoundError as error:
        pytest.skip(str(error))
    records = [
        {"kind": "library", "path": "one.so"},
        {"kind": "library", "path": "libcublas.so"},
        *({"kind": "element", "library": "one.so", "data": image} for image in images),
        *({"kind": "element", "library": "libcublas.so", "data": image} for image in images),
    ]
    stream = io.BytesIO(b"".join(map(msgpack.packb, records)))
    assert list(iter_cubins(stream)) == [images[1]]
    assert "3 cubins left out" in capsys.readouterr().err
    for name, image in (("one", images[0]), ("libcublas", images[1])):
        path = tmp_path / f"{name}.cubin"
        path.write_bytes(image)
        found = Differences()
        compare_cubin("nvdisasm", path, found, time.monotonic(), random.Random(1))
        assert not found.kernels and "left out" in capsys.readouterr().err
