"""Classify the functions of the CUDA driver by name, for traces that record only names.

gpt-hook has the same table (runtime/hook/entry/table.h), and a test makes sure that they're equal. A function in the
table has a type and an op. For other functions, both follow from how the name begins.
"""

from __future__ import annotations

import re

from gpt.trace.process import Api

SUFFIXES = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")  # version, then stream variant
LISTED = {
    ("memory", "alloc"): "cuMemAlloc cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocHost cuMemAllocManaged "
    "cuMemAllocPitch cuMemHostAlloc cuMemCreate",
    ("memory", "free"): "cuMemFree cuMemFreeAsync cuMemFreeHost cuMemRelease",
    ("memory", "reserve"): "cuMemAddressReserve",
    ("memory", "unreserve"): "cuMemAddressFree",
    ("memory", "map"): "cuMemMap",
    ("memory", "unmap"): "cuMemUnmap",
    ("memory", "register"): "cuMemHostRegister",
    ("memory", "unregister"): "cuMemHostUnregister",
    ("memory", "prefetch"): "cuMemPrefetchAsync",
    ("memcpy", "any"): "cuMemcpy cuMemcpyAsync cuMemcpyWithAttributesAsync",
    ("memcpy", "HtoD"): "cuMemcpyHtoD cuMemcpyHtoDAsync",
    ("memcpy", "DtoH"): "cuMemcpyDtoH cuMemcpyDtoHAsync",
    ("memcpy", "DtoD"): "cuMemcpyDtoD cuMemcpyDtoDAsync",
    ("memcpy", "peer"): "cuMemcpyPeer cuMemcpyPeerAsync cuMemcpy3DPeer cuMemcpy3DPeerAsync",
    ("memcpy", "2D"): "cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy2DAsync",
    ("memcpy", "3D"): "cuMemcpy3D cuMemcpy3DAsync",
    ("memset", "set"): "cuMemsetD8 cuMemsetD16 cuMemsetD32 cuMemsetD8Async cuMemsetD16Async cuMemsetD32Async "
    "cuMemsetD2D8 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8Async cuMemsetD2D16Async cuMemsetD2D32Async",
    ("kernel", "launch"): "cuLaunchKernel cuLaunchCooperativeKernel cuLaunchKernelEx cuLaunch cuLaunchGrid "
    "cuLaunchGridAsync",
    ("stream", "host"): "cuLaunchHostFunc",
    ("graph", "launch"): "cuGraphLaunch",
    ("graph", "instantiate"): "cuGraphInstantiate cuGraphInstantiateWithFlags cuGraphInstantiateWithParams",
    ("graph", "destroy"): "cuGraphExecDestroy cuGraphDestroy",
    ("graph", "update"): "cuGraphExecUpdate",
    ("sync", "stream"): "cuStreamSynchronize",
    ("sync", "event"): "cuEventSynchronize",
    ("sync", "context"): "cuCtxSynchronize",
    ("stream", "create"): "cuStreamCreate cuStreamCreateWithPriority cuGreenCtxStreamCreate",
    ("stream", "wait"): "cuStreamWaitEvent",
    ("stream", "capture"): "cuStreamBeginCapture cuStreamBeginCaptureToGraph cuStreamBeginRecaptureToGraph",
    ("stream", "captured"): "cuStreamEndCapture",
    ("event", "record"): "cuEventRecord cuEventRecordWithFlags",
    ("module", "load"): "cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary cuLibraryLoadData "
    "cuLibraryLoadFromFile",
    ("module", "unload"): "cuModuleUnload cuLibraryUnload",
    ("module", "get"): "cuLibraryGetModule",
    ("module", "function"): "cuModuleGetFunction cuLibraryGetKernel cuKernelGetFunction",
    ("module", "enumerate"): "cuModuleEnumerateFunctions cuLibraryEnumerateKernels",
    ("module", "variable"): "cuModuleGetGlobal cuLibraryGetGlobal cuLibraryGetManaged cuLibraryGetUnifiedFunction "
    "cuModuleGetTexRef cuModuleGetSurfRef",
    ("context", "retain"): "cuDevicePrimaryCtxRetain",
    ("context", "set"): "cuCtxSetCurrent",
    ("context", "push"): "cuCtxPushCurrent",
    ("context", "pop"): "cuCtxPopCurrent",
    ("other", "occupancy"): "cuOccupancyMaxActiveBlocksPerMultiprocessor "
    "cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyAvailableDynamicSMemPerBlock "
    "cuOccupancyMaxPotentialClusterSize cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSize "
    "cuOccupancyMaxPotentialBlockSizeWithFlags",
    ("other", "lookup"): "cuGetProcAddress",
}
PREFIXES = (  # for functions that aren't listed; the first match counts
    ("cuCtx", "context"), ("cuGreenCtx", "context"), ("cuDevicePrimaryCtx", "context"), ("cuDevice", "device"),
    ("cuMemcpy", "memcpy"), ("cuMemset", "memset"), ("cuMem", "memory"), ("cuStream", "stream"), ("cuEvent", "event"),
    ("cuGraph", "graph"), ("cuModule", "module"), ("cuLibrary", "module"), ("cuKernel", "module"), ("cuFunc", "module"),
    ("cuLink", "module"), ("cuLaunch", "kernel"), ("cu", "other"), ("", "other"),
)  # fmt: skip
_FOUND = {name: what for what, names in LISTED.items() for name in names.split()}


def find_api(symbol: str) -> Api:
    """Return the function that a driver symbol stands for."""
    name = SUFFIXES.sub("", symbol, count=1)
    if name in _FOUND:
        return Api(*_FOUND[name], name, symbol)
    prefix, type_ = next((prefix, type_) for prefix, type_ in PREFIXES if name.startswith(prefix))
    return Api(type_, name[len(prefix) :].lower(), name, symbol)
