// Uses streams and graphs at random in several threads, for pool_attack.py: `pool_attack PTX SEED THREADS
// MOST`.
//
// Each thread has its own array and three streams, one of which is the legacy stream or the thread's default
// stream, and switches between them with events. It launches kernels in several ways, captures, replays and
// destroys graphs, destroys streams that have work, and checks its array now and then. Threads stop when the
// program's input ends, or after MOST launches. The program prints the numbers of launches and replays; the
// GPU must have counted the same number of kernels.

#include "sim.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { BLOCKS = 6, SIZE = 70, WORDS = BLOCKS * SIZE, COUNT = 400, NODES = 3, KEPT = 4, MOST_THREADS = 64 };

static _Atomic bool stop;
static _Atomic unsigned launches, replays;
static void *context, *function;
static unsigned seed, most;

struct attacker {
    unsigned dice, made;
    uint64_t items;
    void *streams[3], *stream, *event, *kept[KEPT];
    bool per_thread; // the third stream is the thread's default stream
    unsigned want[WORDS];
};

#define CALL(name) ((int (*)())dlsym(driver, #name))

static unsigned roll(struct attacker *of, unsigned below) { return (unsigned)rand_r(&of->dice) % below; }

static bool is_default(const struct attacker *of) { return of->stream == of->streams[2]; }

static void expect(struct attacker *of, unsigned times) {
    while (times--)
        for (unsigned i = 0; i < COUNT; i++)
            of->want[i] = 3 * of->want[i] + 5;
}

static void launch_once(struct attacker *of) {
    unsigned added = 5, count = COUNT;
    struct {
        uint64_t items;
        unsigned added, count;
    } packed = {of->items, added, count};
    size_t size = sizeof(packed);
    void *params[] = {&of->items, &added, &count}, *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
    CUlaunchConfig config = {BLOCKS, 1, 1, SIZE, 1, 1, 0, of->stream, NULL, 0};
    switch (roll(of, 4)) {
    case 0:
        OK(CALL(cuLaunchKernel)(function, BLOCKS, 1, 1, SIZE, 1, 1, 0, of->stream, params, NULL));
        break;
    case 1:
        OK(CALL(cuLaunchKernel)(function, BLOCKS, 1, 1, SIZE, 1, 1, 0, of->stream, NULL, extra));
        break;
    case 2:
        OK(CALL(cuLaunchKernelEx)(&config, function, params, NULL));
        break;
    default:
        OK(CALL(cuLaunchCooperativeKernel)(function, BLOCKS, 1, 1, SIZE, 1, 1, 0, of->stream, params));
    }
}

static void launch_some(struct attacker *of) {
    for (unsigned left = 1 + roll(of, 40); left; left--) {
        launch_once(of);
        launches++, of->made++;
        expect(of, 1);
    }
}

static void change_stream(struct attacker *of) {
    void *to = of->streams[roll(of, 3)];
    OK(CALL(cuEventRecord)(of->event, of->stream));
    OK(CALL(cuStreamWaitEvent)(to, of->event, 0));
    of->stream = to;
}

static void replay(struct attacker *of, void *exec) {
    for (unsigned left = 1 + roll(of, 5); left; left--) {
        OK(CALL(cuGraphLaunch)(exec, of->stream));
        replays++, of->made += NODES;
        expect(of, NODES);
    }
}

static void make_graph(struct attacker *of) {
    void *graph, *exec, **place = &of->kept[roll(of, KEPT)];
    if (is_default(of))
        return;
    OK(CALL(cuStreamBeginCapture_v2)(of->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    for (int i = 0; i < NODES; i++)
        launch_once(of);
    OK(CALL(cuStreamEndCapture)(of->stream, &graph));
    OK(CALL(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    OK(CALL(cuGraphDestroy)(graph));
    replay(of, exec);
    if (*place)
        OK(CALL(cuGraphExecDestroy)(*place)); // it may be running
    *place = exec;
}

static void replay_kept(struct attacker *of) {
    void *exec = of->kept[roll(of, KEPT)];
    if (exec)
        replay(of, exec);
}

// The stream still has work; the event is recorded after it.
static void replace_stream(struct attacker *of) {
    void *old = of->stream;
    if (is_default(of))
        return;
    of->stream = of->streams[2];
    OK(CALL(cuEventRecord)(of->event, old));
    OK(CALL(cuStreamWaitEvent)(of->stream, of->event, 0));
    OK(CALL(cuStreamDestroy_v2)(old));
    for (int i = 0; i < 2; i++)
        if (of->streams[i] == old)
            OK(CALL(cuStreamCreate)(&of->streams[i],
                                    1)); // with the legacy stream, captures allow only non-blocking streams
}

static void compare(struct attacker *of) {
    unsigned found[WORDS];
    OK(CALL(cuStreamSynchronize)(of->stream));
    OK(CALL(cuMemcpyDtoHAsync_v2)(found, of->items, sizeof(found), of->stream));
    OK(CALL(cuStreamSynchronize)(of->stream));
    if (memcmp(found, of->want, sizeof(found))) {
        fprintf(stderr, "wrong results\n");
        _exit(5);
    }
}

static void allocate(struct attacker *of) {
    uint64_t memory;
    OK(CALL(cuMemAlloc_v2)(&memory, (size_t)(1 + roll(of, 64)) << 16));
    OK(CALL(cuMemFree_v2)(memory));
}

static void *attack(void *number) {
    static void (*const ways[])(struct attacker *) = {
        launch_some, launch_some, launch_some, launch_some, change_stream,  change_stream,
        make_graph,  replay_kept, replay_kept, compare,     replace_stream, allocate,
    };
    struct attacker of = {.dice = seed * 64 + (unsigned)(uintptr_t)number};
    OK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < WORDS; i++)
        of.want[i] = i;
    OK(CALL(cuMemAlloc_v2)(&of.items, sizeof(of.want)));
    OK(CALL(cuEventCreate)(&of.event, 2));
    for (int i = 0; i < 2; i++)
        OK(CALL(cuStreamCreate)(&of.streams[i], 1));
    of.streams[2] = (void *)(uintptr_t)(1 + roll(&of, 2)); // the legacy or the per-thread default stream
    of.stream = of.streams[0];
    OK(CALL(cuMemcpyHtoDAsync_v2)(of.items, of.want, sizeof(of.want), of.stream));
    while (!stop && of.made < most)
        ways[roll(&of, sizeof(ways) / sizeof(*ways))](&of);
    compare(&of);
    return NULL;
}

int main(int argc, char **argv) {
    static char text[1 << 16];
    pthread_t threads[MOST_THREADS];
    void *module;
    uint64_t total;
    unsigned count = argc == 5 ? (unsigned)atoi(argv[3]) : 0, sum;
    size_t size;
    char line[64];
    FILE *file = count && count <= MOST_THREADS ? fopen(argv[1], "r") : NULL;
    if (!file || !fread(text, 1, sizeof(text) - 1, file))
        return 2;
    seed = (unsigned)atoi(argv[2]), most = (unsigned)atoi(argv[4]);
    begin();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&function, module, "scale"));
    for (uintptr_t i = 0; i < count; i++)
        OK(pthread_create(&threads[i], NULL, attack, (void *)i));
    puts("ready"), fflush(stdout);
    while (fgets(line, sizeof(line), stdin))
        continue;
    stop = true;
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    OK(CALL(cuCtxSynchronize)());
    OK(CALL(cuModuleGetGlobal_v2)(&total, &size, module, "total"));
    OK(CALL(cuMemcpyDtoH_v2)(&sum, total, (size_t)4));
    if (sum != (launches + NODES * replays) * COUNT) {
        fprintf(stderr, "%u launches, %u replays, but %u threads were counted\n", launches, replays, sum);
        return 6;
    }
    printf("%u %u\n", launches, replays);
    return 0;
}
