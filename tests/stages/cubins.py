"""A cubin with two kernels, and streams that hold cubins."""

import pytest

from gpt.stream import records, wire
from tests import cuda

SOURCE = """
extern "C" __global__ void copy(float4 *x, const float4 *y) { x[threadIdx.x] = y[threadIdx.x]; }
extern "C" __global__ void sums(int *x, int *y) {
    __shared__ int part;
    if (threadIdx.x == 0) part = 0;
    __syncthreads();
    atomicAdd(&part, x[threadIdx.x]);
    __syncthreads();
    atomicAdd(y, part);
}
"""


def compiled(arch="sm_90", source=SOURCE):
    try:
        return cuda.nvrtc_compile(source, arch)
    except FileNotFoundError as error:
        pytest.skip(str(error))


def element(image, library="libfoo.so", arch="sm_90", **more):
    names = [{"name": "copy"}, {"name": "sums"}]
    sizes = {"region": 0, "index": 3, "offset": 0, "header_size": 0, "payload_size": len(image), "size": len(image)}
    keys = {"library": library, "type": "cubin", "arch": arch, **sizes, "codec": "none", "flags": 0, "kernels": names}
    return records.make("element", **keys | {"functions": [], "variables": 0, "data": image} | more)


def segment(*found):
    ends = wire.header("test", []), records.make("end", records=0, status=0)
    return b"".join(map(wire.pack, (ends[0], *found, ends[1])))
