// Run by test_calls_that_an_h200_refuses in tests/runtime/test_sim_answers.py. Each number is what an H200
// answered (driver 580.159.04).

#include "sim.h"
#include <sys/mman.h>

static const char ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n.global .align 4 .u32 g[4];\n"
                          ".visible .entry none(){ret;}\n"
                          ".visible .entry two(.param .u64 p, .param .u32 q){ret;}\n"
                          ".visible .entry most().maxntid 64,1,1 {ret;}\n";

static CUdeviceptr a, b; // each has 4096 bytes
static void *context, *stream, *event;
static void *none, *two, *most;
static char host[8192];

static void copies(void) {
    IS(1, D(cuMemcpy)(a + 4092, b, 8UL));
    IS(1, D(cuMemcpy)(b, a + 4092, 8UL));
    IS(1, D(cuMemcpyAsync)(a + 4092, b, 8UL, stream));
    IS(1, D(cuMemcpy)((CUdeviceptr)host, a, 4097UL));
    IS(1, D(cuMemcpy)(a, (CUdeviceptr)host, 4097UL));
    OK(D(cuMemcpy)(a, (CUdeviceptr)host, 4096UL));

    CUDA_MEMCPY2D flat = {.srcMemoryType = 2,
                          .srcDevice = a,
                          .dstMemoryType = 2,
                          .dstDevice = b,
                          .dstPitch = 64,
                          .WidthInBytes = 16,
                          .Height = 2};
    for (int i = 0; i < 4096; i++)
        host[i] = (char)i;
    OK(D(cuMemcpyHtoD_v2)(a, host, 4096UL));
    OK(D(cuMemcpy2D_v2)(&flat)); // without a pitch, rows follow each other
    OK(D(cuMemcpyDtoH_v2)(host, b, 128UL));
    assert(host[0] == 0 && host[64] == 16 && host[65] == 17);
    flat.srcPitch = 32;
    OK(D(cuMemcpy2D_v2)(&flat));
    flat.srcXInBytes = 16;
    OK(D(cuMemcpy2D_v2)(&flat));
    flat.srcXInBytes = 17; // beyond the end of a row
    IS(1, D(cuMemcpy2D_v2)(&flat));
    flat.Height = 1;
    IS(1, D(cuMemcpy2D_v2)(&flat));
    flat.srcXInBytes = 0, flat.dstXInBytes = 49;
    IS(1, D(cuMemcpy2DUnaligned_v2)(&flat));
    flat.dstXInBytes = 0, flat.dstPitch = 3;
    IS(1, D(cuMemcpy2D_v2)(&flat));
    flat.Height = 0;
    OK(D(cuMemcpy2D_v2)(&flat));
    flat.Height = 1, flat.dstPitch = 64, flat.srcMemoryType = 9;
    IS(1, D(cuMemcpy2D_v2)(&flat));

    CUDA_MEMCPY3D deep = {.srcMemoryType = 2,
                          .srcDevice = a,
                          .srcPitch = 16,
                          .srcHeight = 4,
                          .dstMemoryType = 2,
                          .dstDevice = b,
                          .dstPitch = 16,
                          .dstHeight = 4,
                          .WidthInBytes = 16,
                          .Height = 4,
                          .Depth = 2};
    OK(D(cuMemcpy3D_v2)(&deep));
    deep.srcY = 1;
    IS(1, D(cuMemcpy3D_v2)(&deep));
    deep.srcY = 0, deep.srcHeight = 3;
    IS(1, D(cuMemcpy3D_v2)(&deep));
    deep.srcHeight = 4, deep.dstHeight = 3;
    IS(1, D(cuMemcpy3D_v2)(&deep));
    deep.dstHeight = 0, deep.srcHeight = 0, deep.srcPitch = 0;
    OK(D(cuMemcpy3D_v2)(&deep));
    deep.srcZ = 63; // in planes of 64 bytes
    IS(1, D(cuMemcpy3D_v2)(&deep));
}

static void memory(void) {
    void *pinned = host;
    OK(D(cuMemHostAlloc)(&pinned, 0UL, 0));
    assert(!pinned);
    OK(D(cuMemAllocHost_v2)(&pinned, 4096UL));
    IS(1, D(cuMemHostRegister_v2)(pinned, 4096UL, 0));
    void *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    IS(1, D(cuMemHostRegister_v2)(constant, 4096UL, 0));
    int attributes[] = {2};
    IS(1, D(cuPointerGetAttributes)(0, attributes, NULL, a));
    void *found;
    IS(1, D(cuPointerGetAttribute)(&found, 4, a)); // the host's address of device memory
    void *values[] = {&found};
    attributes[0] = 4;
    OK(D(cuPointerGetAttributes)(1, attributes, values, a));
    assert(!found);
    CUdeviceptr managed, reserved;
    OK(D(cuMemAllocManaged)(&managed, 4096UL, 1));
    IS(1, D(cuStreamAttachMemAsync)(NULL, managed, 0UL, 4));
    CUmemAllocationProp props = {.type = 1, .location = {.type = 1}};
    uint64_t handle, size = 4 << 20;
    OK(D(cuMemCreate)(&handle, size, &props, 0UL));
    OK(D(cuMemAddressReserve)(&reserved, 2 * size, 0UL, 0UL, 0UL));
    IS(801, D(cuMemMap)(reserved, size / 2, 0UL, handle, 0UL)); // a part of it
    IS(1, D(cuMemMap)(reserved + 4096, size, 0UL, handle, 0UL));
    OK(D(cuMemMap)(reserved, size, 0UL, handle, 0UL));
    CUmemPoolProps pool = {.allocType = 1, .location = {.type = 1}};
    pool.reserved[0] = 1;
    IS(1, D(cuMemPoolCreate)(&found, &pool));
}

static int launch_with(void *function, void **params, void **extra) {
    return D(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, params, extra);
}

static int launch_as(uint32_t id, const void *value, size_t size) {
    CUlaunchAttribute attribute = {.id = id};
    memcpy(&attribute.value, value, size);
    CUlaunchConfig config = {1, 1, 1, 1, 1, 1, 0, stream, &attribute, 1};
    return D(cuLaunchKernelEx)(&config, none, NULL, NULL);
}

static void launches(void) {
    size_t size;
    void *buffer[] = {(void *)1, host, (void *)2, &size, NULL}, *only_size[] = {(void *)2, &size, NULL};
    void *unknown[] = {(void *)9, &size, NULL}, *nothing[] = {NULL}, *params[] = {host, host};
    const size_t sizes[] = {12, 16, 100};
    for (int i = 0; i < 3; i++) {
        size = sizes[i];
        IS(i ? 701 : 0, launch_with(two, NULL, buffer));
    }
    IS(701, launch_with(none, NULL, buffer));
    IS(1, launch_with(none, NULL, only_size));
    IS(1, launch_with(none, NULL, unknown));
    OK(launch_with(two, params, nothing));
    int policy = 77;
    IS(1, launch_as(3, &policy, sizeof(policy)));
    struct {
        void *start;
        size_t size;
        float share;
    } window = {NULL, 16, 2}, large = {NULL, 1 << 30, 1};
    IS(1, launch_as(1, &window, sizeof(window)));
    IS(1, launch_as(1, &large, sizeof(large)));
    char value[64] = {99};
    IS(1, D(cuStreamSetAttribute)(stream, 3, value));
    enum { WIDTH = 11, POLICY = 15 };
    IS(1, D(cuFuncSetAttribute)(none, WIDTH, -1));
    IS(1, D(cuFuncSetAttribute)(none, POLICY, 7));
    OK(D(cuFuncSetAttribute)(none, WIDTH, 2));
    IS(912, launch_with(none, NULL, NULL));
    OK(D(cuFuncSetAttribute)(none, WIDTH, 0));
    OK(launch_with(none, NULL, NULL));
    CUlaunchConfig config = {0};
    int count;
    IS(1, D(cuOccupancyMaxPotentialClusterSize)(&count, none, &config));
    IS(1, D(cuOccupancyMaxActiveClusters)(&count, none, &config));
    IS(1, D(cuOccupancyMaxPotentialBlockSize)(&count, &count, none, NULL, 0UL, -5));
    OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&count, most, 65, 0UL));
    assert(count); // though .maxntid is 64
}

static void kernels(void *module) {
    void *library, *kernel, *found;
    size_t size;
    int value;
    OK(D(cuLibraryLoadData)(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(D(cuLibraryGetKernel)(&kernel, library, "none"));
    OK(launch_with(kernel, NULL, NULL)); // a kernel can be launched, but it isn't a function
    OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&value, kernel, 32, 0UL));
    IS(400, D(cuFuncGetAttribute)(&value, 0, kernel));
    IS(400, D(cuFuncSetAttribute)(kernel, 8, 100));
    IS(400, D(cuFuncSetCacheConfig)(kernel, 1));
    IS(400, D(cuFuncGetName)(&found, kernel));
    IS(400, D(cuFuncGetParamInfo)(kernel, 0UL, &size, &size));
    IS(400, D(cuFuncIsLoaded)(&value, kernel));
    IS(400, D(cuFuncLoad)(kernel));
    IS(1, D(cuLibraryGetGlobal)(NULL, NULL, library, "g"));
    IS(1, D(cuModuleGetGlobal_v2)(NULL, NULL, module, "g"));
    OK(D(cuLibraryGetModule)(&found, library));
    IS(800, D(cuModuleUnload)(found));
    int option = 77;
    void *values[1] = {NULL};
    IS(1, D(cuModuleLoadDataEx)(&found, ptx, 1, &option, values));
    IS(1, D(cuModuleLoadDataEx)(&found, ptx, 1, NULL, NULL));
    IS(1, D(cuGetProcAddress_v2)("cuInit", &found, 12000, 8UL, &value));
    char id[13];
    IS(1, D(cuDeviceGetPCIBusId)(id, 12, 0));
    OK(D(cuDeviceGetPCIBusId)(id, 13, 0));
}

static void captures(void) {
    void *graph, *found, *node;
    IS(401, D(cuEventRecordWithFlags)(event, stream, 1)); // a node of a graph that isn't captured
    IS(401, D(cuStreamEndCapture)(stream, NULL));
    OK(D(cuGraphCreate)(&graph, 0));
    OK(D(cuStreamBeginCaptureToGraph)(stream, graph, NULL, NULL, 0UL, 0));
    OK(launch_with(none, NULL, NULL));
    IS(401, D(cuGraphDestroy)(graph));
    IS(1, D(cuStreamUpdateCaptureDependencies)(stream, NULL, 0UL, 7));
    OK(D(cuStreamEndCapture)(stream, &found));
    assert(found == graph);
    OK(D(cuGraphDestroy)(graph));
    // the graph that a capture makes, and its nodes, can be had before it ends
    unsigned long long id;
    void **nodes;
    size_t count;
    int status;
    OK(D(cuStreamBeginCapture_v2)(stream, 2));
    OK(launch_with(none, NULL, NULL));
    OK(D(cuStreamGetCaptureInfo_v2)(stream, &status, &id, &graph, &nodes, &count));
    node = nodes[0];
    assert(D(cuGraphDestroy)(graph) == 401 && D(cuGraphDestroyNode)(node) == 401);
    OK(launch_with(none, NULL, NULL));
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuGraphDestroyNode)(node));
    // two streams may capture into the body of a conditional node
    void *other;
    OK(D(cuStreamCreate)(&other, 1));
    OK(D(cuGraphCreate)(&graph, 0));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional.type = CU_GRAPH_COND_TYPE_IF, params.conditional.size = 1;
    OK(D(cuGraphConditionalHandleCreate)(&params.conditional.handle, graph, context, 0, 0));
    OK(D(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0UL, &params));
    void *body = params.conditional.phGraph_out[0];
    OK(D(cuStreamBeginCaptureToGraph)(stream, body, NULL, NULL, 0UL, 2));
    OK(D(cuStreamBeginCaptureToGraph)(other, body, NULL, NULL, 0UL, 2));
    OK(D(cuStreamEndCapture)(other, &found));
    assert(D(cuGraphDestroy)(graph) == 401 && D(cuGraphDestroyNode)(node) == 401);
    OK(D(cuStreamEndCapture)(stream, &found));
    OK(D(cuGraphDestroy)(graph));
}

static void graphs(void) {
    void *graph, *node, *exec;
    OK(D(cuGraphCreate)(&graph, 0));
    CUDA_MEMSET_NODE_PARAMS_v2 set = {.dst = a, .elementSize = 4, .width = 4};
    IS(1, D(cuGraphAddMemsetNode)(&node, graph, NULL, 0UL, &set, context));
    CUDA_MEMCPY3D copy = {
        .srcMemoryType = 1, .srcHost = host, .dstMemoryType = 2, .dstDevice = a, .WidthInBytes = 16};
    IS(1, D(cuGraphAddMemcpyNode)(&node, graph, NULL, 0UL, &copy, context)); // it has no rows
    IS(1, D(cuGraphAddEventRecordNode)(&node, graph, NULL, 0UL, NULL));
    IS(1, D(cuGraphAddEventWaitNode)(&node, graph, NULL, 0UL, NULL));
    CUgraphNodeParams params = {.type = 5};
    OK(D(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0UL, &params));
    params.reserved0[0] = 1;
    IS(1, D(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0UL, &params));
    params = (CUgraphNodeParams){.type = 99};
    IS(1, D(cuGraphAddNode_v2)(&node, graph, NULL, NULL, 0UL, &params));
    uint64_t condition;
    IS(201, D(cuGraphConditionalHandleCreate)(&condition, graph, NULL, 0, 0));
    CUDA_GRAPH_INSTANTIATE_PARAMS for_device = {.flags = 4}; // it has an empty node
    IS(1, D(cuGraphInstantiateWithParams)(&exec, graph, &for_device));
    CUDA_KERNEL_NODE_PARAMS kernel = {none, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL, NULL};
    char value[64] = {0};
    OK(D(cuGraphAddKernelNode_v2)(&node, graph, NULL, 0UL, &kernel));
    IS(1, D(cuGraphKernelNodeSetAttribute)(node, 99, value));
    IS(1, D(cuGraphLaunch)(NULL, stream));
    IS(1, D(cuGraphUpload)(NULL, stream));
}

static void values(void) {
    struct {
        uint32_t operation;
        CUdeviceptr address;
        uint64_t value, flags, alias, more;
    } writes[256] = {0};
    for (int i = 0; i < 256; i++)
        writes[i].operation = 2, writes[i].address = a;
    OK(D(cuStreamBatchMemOp_v2)(stream, 255, writes, 0));
    IS(1, D(cuStreamBatchMemOp_v2)(stream, 256, writes, 0));
    size_t limit;
    OK(D(cuCtxSetLimit)(1, 0UL));
    OK(D(cuCtxGetLimit)(&limit, 1));
    assert(limit == 512 << 10);
    OK(D(cuCtxSetLimit)(2, 0UL));
    OK(D(cuCtxGetLimit)(&limit, 2));
    assert(limit == 4 << 20);
}

int main(void) {
    find_driver();
    OK(cuInit(0));
    OK(D(cuMemFree_v2)(0UL)); // without a context
    IS(1, D(cuCtxPushCurrent_v2)(NULL));
    IS(1, D(cuCtxDestroy_v2)(NULL));
    OK(D(cuCtxCreate_v2)(&context, 0, 0));
    OK(D(cuMemAlloc_v2)(&a, 4096UL));
    OK(D(cuMemAlloc_v2)(&b, 4096UL));
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuEventCreate)(&event, 0));
    void *module;
    OK(cuModuleLoadData(&module, ptx));
    OK(cuModuleGetFunction(&none, module, "none"));
    OK(cuModuleGetFunction(&two, module, "two"));
    OK(cuModuleGetFunction(&most, module, "most"));
    copies();
    memory();
    launches();
    kernels(module);
    captures();
    graphs();
    values();
    OK(D(cuStreamSynchronize)(stream));
    return 0;
}
