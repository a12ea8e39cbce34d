"""Calls that are wrong or almost wrong return the same status codes as an H200 (driver 580.159)."""

import pytest

from tests.runtime.hooked import PROGRAMS
from tests.runtime.simulated import ask
from tests.tiers import every

SETUP = """
def make(name, *more):
    made = c.c_void_p()
    assert not getattr(cu, name)(c.byref(made), *more), name
    return made
Z, Q, V, N = c.c_size_t, c.c_uint64, c.c_void_p, None
R, room = c.create_string_buffer(256), c.create_string_buffer(1 << 16)
def number(name, *args):
    made = Q()
    assert not getattr(cu, name)(c.byref(made), *args), name
    return made
def u32(*values): return (c.c_uint32 * 22)(*values)
first = make("cuDevicePrimaryCtxRetain", 0)
cu.cuCtxSetCurrent(first)
M, page = 2 << 20, (c.addressof(room) + 4095) & ~4095
ptx = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry k(){ret;}\\n"
def load():
    module = make("cuModuleLoadData", ptx)
    return module, make("cuModuleGetFunction", module, b"k")
module, k = load()
s, e, m = make("cuStreamCreate", 1), make("cuEventCreate", 0), number("cuMemAlloc_v2", Z(256))
def where(kind, device=0): return Q((device & 0xffffffff) << 32 | kind)
def launch(function, stream): return cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, N, N)
def launch_with(kind, *values):
    attribute, config = u32(kind, 0, *values), (c.c_uint64 * 8)()
    words = (c.c_uint32 * 16).from_buffer(config)
    words[0:6] = [1] * 6
    config[4], config[5], words[12] = s.value or 0, c.addressof(attribute), 1
    return cu.cuLaunchKernelEx(config, k, N, N)
"""

RUN = r"""
def play(text):
    for line in text.split("\n"):
        status, _, call = line.strip().partition(" ")
        if not call:
            continue
        got = eval(call if "=" in call or call.startswith("launch") else f"cu.{call}")
        if got != int(status):
            answer(f"{call}: {got}, not {status}")
"""

AREAS = {
    "contexts": """
    1 cuDevicePrimaryCtxSetFlags_v2(0, 0x999)
    1 cuDevicePrimaryCtxSetFlags_v2(0, 3)
    0 cuDevicePrimaryCtxSetFlags_v2(0, 4)
    1 cuCtxCreate_v2(R, 0x999, 0)
    1 cuCtxCreate_v2(R, 3, 0)
    1 cuCtxSetFlags(0x999)
    1 cuCtxSetLimit(0, Z(1 << 40))
    1 cuCtxSetLimit(5, Z(200))
    201 cuCtxDestroy_v2(first)
    0 cuCtxPopCurrent_v2(R)
    201 cuCtxGetStreamPriorityRange(R, R)
    201 cuCtxGetDevice(R)
    0 cuCtxSetCurrent(first)
    """,
    "streams and events": """
    1 cuStreamCreate(R, 2)
    400 cuStreamDestroy_v2(N)
    400 cuStreamDestroy_v2(V(1))
    400 cuStreamDestroy_v2(V(2))
    1 cuEventCreate(R, 64)
    1 cuEventCreate(R, 4)
    1 cuEventRecordWithFlags(e, s, 2)
    1 cuStreamWaitEvent(s, e, 2)
    400 cuEventElapsedTime_v2(R, e, e)
    """,
    "launches": """
    0 launch_with(5, 2)
    1 launch_with(5, 9)
    400 launch_with(7, 0)
    1 launch_with(10, 99)
    400 launch_with(12, 0)
    1 launch_with(14, 200)
    1 launch_with(99, 1)
    400 launch(N, s)
    0 cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, s, R, N)
    1 cuLaunchKernel(k, 1, 1, 1, 1, 1, 1, 0, s, R, (V * 3)(1, c.addressof(room), N))
    1 cuOccupancyMaxActiveBlocksPerMultiprocessor(R, k, 0, Z(0))
    400 cuOccupancyMaxActiveBlocksPerMultiprocessor(R, N, 32, Z(0))
    1 cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(R, k, 32, Z(0), 4)
    1 cuOccupancyAvailableDynamicSMemPerBlock(R, k, 99, 32)
    """,
    "pinned memory": """
    1 cuMemHostRegister_v2(V(64), Z(4096), 0)
    1 cuMemHostRegister_v2(m, Z(64), 0)
    1 cuMemHostRegister_v2(V(page), Z(8192), 64)
    1 cuMemHostRegister_v2(V(page), Z(8192), 4)
    0 cuMemHostRegister_v2(V(page), Z(8192), 0)
    712 cuMemHostRegister_v2(V(page + 4096), Z(8192), 0)
    1 cuMemHostGetDevicePointer_v2(R, V(page), 1)
    1 cuMemHostUnregister(V(page + 4096))
    1 cuMemFreeHost(V(page))
    0 cuMemHostUnregister(V(page))
    713 cuMemHostUnregister(V(page))
    1 cuMemHostUnregister(make("cuMemHostAlloc", Z(64), 0))
    """,
    "managed memory": """
    1 cuMemAdvise_v2(managed, Z(64), 3, where(1, 9))
    1 cuMemAdvise_v2(managed, Z(64), 3, where(0))
    0 cuMemAdvise_v2(managed, Z(64), 3, where(2))
    101 cuMemPrefetchAsync_v2(managed, Z(64), where(1, 9), 0, s)
    1 cuMemPrefetchAsync_v2(managed, Z(64), where(0), 0, s)
    0 cuMemPrefetchAsync_v2(managed, Z(64), where(2), 0, s)
    1 cuStreamAttachMemAsync(s, managed, Z(0), 9)
    1 cuStreamAttachMemAsync(s, managed, Z(64), 4)
    1 cuStreamAttachMemAsync(s, m, Z(0), 1)
    0 cuStreamAttachMemAsync(s, managed, Z(0), 4)
    """,
    "pools": """
    101 cuMemPoolSetAccess(pool, u32(1, 0, 0), Z(1))
    101 cuMemPoolSetAccess(pool, u32(1, 9, 3), Z(1))
    801 cuMemPoolSetAccess(pool, u32(1, 0, 1), Z(1))
    0 cuMemPoolSetAccess(pool, u32(1, 0, 3), Z(1))
    0 cuMemPoolDestroy(pool)
    1 cuMemPoolDestroy(pool)
    """,
    "addresses": """
    1 cuMemAddressReserve(R, Z(M), Z(3), Q(0), Q(0))
    1 cuMemGetAllocationGranularity(R, u32(1, 0, 1, 0), 7)
    1 cuMemCreate(R, Z(M), u32(1, 0, 0, 0), Q(0))
    801 cuMemMap(at, Z(M), Z(M), held, Q(0))
    801 cuMemMap(at, Z(3 * M), Z(0), held, Q(0))
    0 cuMemMap(at, Z(2 * M), Z(0), held, Q(0))
    1 cuMemMap(at, Z(2 * M), Z(0), held, Q(0))
    1 cuMemsetD8_v2(at, 0, Z(4))
    1 cuMemSetAccess(at, Z(M), u32(1, 0, 3), Z(1))
    1 cuMemSetAccess(at, Z(2 * M), u32(1, 9, 3), Z(1))
    1 cuMemSetAccess(at, Z(2 * M), u32(1, 0, 2), Z(1))
    801 cuMemSetAccess(at, Z(2 * M), u32(2, 0, 3), Z(1))
    0 cuMemSetAccess(at, Z(2 * M), u32(1, 0, 3), Z(1))
    0 cuMemsetD8_v2(at, 0, Z(4))
    1 cuMemAddressFree(at, Z(4 * M))
    1 cuMemUnmap(at, Z(M))
    0 cuMemRelease(held)
    1 cuMemRelease(held)
    1 cuMemMap(at.value + 2 * M, Z(2 * M), Z(0), held, Q(0))
    1 cuMemFree_v2(at)
    0 cuMemUnmap(at, Z(3 * M))
    1 cuMemRetainAllocationHandle(R, at)
    1 cuMemsetD8_v2(at, 0, Z(4))
    0 cuMemUnmap(at, Z(2 * M))
    1 cuMemAddressFree(at, Z(M))
    0 cuMemAddressFree(at, Z(4 * M))
    """,
    "graphs": """
    0 cuGraphAddDependencies_v2(g, c.byref(a), c.byref(b), N, Z(1))
    1 cuGraphAddDependencies_v2(g, c.byref(a), c.byref(b), N, Z(1))
    1 cuGraphAddEmptyNode(R, g, (V * 2)(a, a), Z(2))
    1 cuGraphConditionalHandleCreate(R, g, first, 1, 2)
    """,
    "another context": """
    0 cuStreamGetFlags(s, R)
    0 cuStreamQuery(s)
    0 cuStreamSynchronize(s)
    0 cuStreamGetCtx(s, R)
    0 cuMemsetD8Async(m, 0, Z(4), s)
    0 launch(k, s)
    400 launch(other, s)
    400 launch(k, N)
    0 cuEventRecord(e, s)
    400 cuEventRecord(e, own)
    400 cuEventRecord(event, s)
    0 cuStreamWaitEvent(s, event, 0)
    0 cuStreamWaitEvent(own, e, 0)
    0 cuEventSynchronize(e)
    0 cuStreamBeginCapture_v2(s, 2)
    0 cuMemsetD8Async(m, 0, Z(4), s)
    0 cuStreamEndCapture(s, R)
    0 cuStreamDestroy_v2(s)
    """,
}

MORE = {
    "managed memory": 'managed = number("cuMemAllocManaged", Z(1 << 20), 1)',
    "pools": 'pool = make("cuMemPoolCreate", u32(1, 0, 1, 0))',
    "addresses": 'held = number("cuMemCreate", Z(2 * M), u32(1, 0, 1, 0), Q(0))\n'
    'at = number("cuMemAddressReserve", Z(4 * M), Z(0), Q(0), Q(0))',
    "graphs": 'g = make("cuGraphCreate", 0)\na, b = (make("cuGraphAddEmptyNode", g, N, Z(0)) for i in range(2))',
    "another context": 'make("cuCtxCreate_v2", 0, 0)\n_, other = load()\n'
    'own, event = make("cuStreamCreate", 1), make("cuEventCreate", 0)',
}


@pytest.mark.parametrize("area", every(4, AREAS))
def test_wrong_calls(area):
    code = f"{SETUP}\n{MORE.get(area, '')}\n{RUN}\nplay({AREAS[area]!r})"
    assert ask(code, GPT_SIM_RUN="none")[0] == []


def test_calls_that_an_h200_refuses(play):
    play(PROGRAMS / "wrong_calls.c", GPT_SIM_RUN="all")
