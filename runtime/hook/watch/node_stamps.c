// Stamps between the nodes of a graph: kernels of one thread that store the GPU's timer in host memory. On an
// H200, a stamp adds 1.0 us to each node, and always the same, while an event adds 2.8 us, give or take some
// tenths that differ from node to node (docs/measured.md).

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "node_times.h"
#include "watch.h"

static const char code[] = ".version 6.0\n"
                           ".target sm_50\n"
                           ".address_size 64\n"
                           ".visible .entry gpt_stamp(.param .u64 to)\n"
                           "{\n"
                           ".reg .u64 %to, %now;\n"
                           "ld.param.u64 %to, [to];\n"
                           "mov.u64 %now, %globaltimer;\n"
                           "st.volatile.global.u64 [%to], %now;\n"
                           "ret;\n"
                           "}\n";

enum { PAGE = 4096, MAPPED = 2 }; // MAPPED: CU_MEMHOSTREGISTER_DEVICEMAP

static struct {
    CUresult (*load)(void **, const void *), (*get_function)(void **, void *, const char *);
    CUresult (*share)(void *, size_t, unsigned), (*find)(CUdeviceptr *, void *, unsigned);
    CUresult (*add_kernel)(void **, void *, void *const *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
} cu;

static bool find_all(void) {
#define FIND(member, name) (cu.member = (__typeof__(cu.member))(uintptr_t)hook_driver_function(name))
    return FIND(load, "cuModuleLoadData") && FIND(get_function, "cuModuleGetFunction") &&
           FIND(share, "cuMemHostRegister_v2") && FIND(find, "cuMemHostGetDevicePointer_v2") &&
           FIND(add_kernel, "cuGraphAddKernelNode_v2");
#undef FIND
}

// Memory for the stamps of one graph at a time, in the pages after this struct's own. It's ours, so that it
// can be read while another thread destroys the context. It isn't unmapped before the context ends, because
// the driver would have to wait for the GPU.
struct hook_stamps {
    struct hook_stamps *next; // in `unused`
    struct reference of_context;
    void *function;     // the kernel, in this context
    CUdeviceptr of_gpu; // the GPU's address of `at`
    uint32_t room;
    uint64_t at[] __attribute__((aligned(PAGE)));
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // never held while calling the driver
static struct hook_stamps *unused;

void *hook_map_nodes(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found != MAP_FAILED)
        return found;
    hook_miss_graph();
    return NULL;
}

static size_t size_of(uint32_t room) {
    return sizeof(struct hook_stamps) + (room * sizeof(uint64_t) + PAGE - 1) / PAGE * PAGE;
}

static bool is_same(struct reference one, struct reference other) {
    return one.current == other.current && one.generation == other.generation;
}

static struct hook_stamps *find_unused(struct reference context, uint32_t count) {
    struct hook_stamps *found = NULL, *dead = NULL;
    pthread_mutex_lock(&mutex);
    for (struct hook_stamps **at = &unused, *one; (one = *at);) {
        bool alive = hook_is_alive(one->of_context);
        bool fits = alive && !found && is_same(one->of_context, context) && one->room >= count;
        if (alive && !fits) {
            at = &one->next;
            continue;
        }
        *at = one->next;
        one->next = fits ? NULL : dead;
        *(fits ? &found : &dead) = one;
    }
    pthread_mutex_unlock(&mutex);
    for (struct hook_stamps *one; (one = dead);) {
        dead = one->next;
        munmap(one, size_of(one->room));
    }
    return found;
}

struct hook_stamps *hook_take_stamps(struct reference context, uint32_t count) {
    static _Atomic int known;
    void *module, *function;
    CUdeviceptr of_gpu;
    size_t size = size_of(count);
    struct hook_stamps *found = find_unused(context, count);
    if (found || !hook_find_once(&known, find_all) || !(found = hook_map_nodes(size)))
        return found;
    if (cu.load(&module, code) != CUDA_SUCCESS ||
        cu.get_function(&function, module, "gpt_stamp") != CUDA_SUCCESS ||
        cu.share(found->at, size - sizeof(*found), MAPPED) != CUDA_SUCCESS) {
        munmap(found, size);
        return NULL;
    }
    if (cu.find(&of_gpu, found->at, 0) != CUDA_SUCCESS)
        return NULL; // the driver has the pages
    *found =
        (struct hook_stamps){.of_context = context, .function = function, .of_gpu = of_gpu, .room = count};
    return found;
}

void hook_give_stamps(struct hook_stamps *stamps) {
    pthread_mutex_lock(&mutex);
    stamps->next = unused;
    unused = stamps;
    pthread_mutex_unlock(&mutex);
}

CUresult hook_add_stamp(void **node, void *graph, void *const *after, const struct hook_stamps *stamps,
                        uint32_t place) {
    CUdeviceptr at = stamps->of_gpu + place * sizeof(uint64_t);
    void *arguments[] = {&at};
    CUDA_KERNEL_NODE_PARAMS kernel = {.func = stamps->function,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = arguments};
    return cu.add_kernel(node, graph, after, after && *after, &kernel);
}

uint64_t hook_between_stamps(const struct hook_stamps *stamps, uint32_t begin, uint32_t end) {
    uint64_t one = stamps->at[begin], other = stamps->at[end];
    return other > one ? hook_stamps_of((float)((double)(other - one) / 1e6)) : 0;
}
