"""Programs with CUDA graphs, whose kernels get probes."""

from __future__ import annotations

from collections import Counter

from gpt.stream.reasons import parse
from tests.runtime.probing import CLIENT, COUNT, PTX, buffers, build, good, unprobed

# A scenario is a function of the client; `launched` checks the results of this many kernels.
GRAPHS = (
    CLIENT
    + r"""
static void *streams[2];

static void launched(int kernels) {
    for (int i = 0; i < kernels; i++)
        expect(3);
}
static void put(void *stream) {
    void *params[] = {&items, &added, &count};
    OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
}
static void *captured(int kernels) {
    void *graph;
    OK(D(cuStreamBeginCapture_v2)(streams[0], 0));
    for (int i = 0; i < kernels; i++)
        put(streams[0]);
    OK(D(cuStreamEndCapture)(streams[0], &graph));
    return graph;
}
static void *instantiated(void *graph) {
    void *exec;
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    return exec;
}
static void replay(void *exec, int times) {
    for (int i = 0; i < times; i++)
        OK(D(cuGraphLaunch)(exec, streams[0]));
    OK(D(cuStreamSynchronize)(streams[0]));
}
static CUDA_KERNEL_NODE_PARAMS params_of(void **values) {
    values[0] = &items, values[1] = &added, values[2] = &count;
    return (CUDA_KERNEL_NODE_PARAMS){function, 6, 1, 1, 70, 1, 1, 0, values, NULL, NULL, NULL};
}
static void *add(void *graph, void *after) {
    void *node, *values[3];
    CUDA_KERNEL_NODE_PARAMS params = params_of(values);
    OK(D(cuGraphAddKernelNode_v2)(&node, graph, after ? &after : NULL, (size_t)(after != NULL), &params));
    return node;
}
static void check_node(void *node, unsigned by) { // it is as the program made it
    CUDA_KERNEL_NODE_PARAMS params;
    OK(D(cuGraphKernelNodeGetParams_v2)(node, &params));
    assert(params.func == function && params.gridDimX == 6 && params.blockDimX == 70);
    assert(*(CUdeviceptr *)params.kernelParams[0] == items && *(unsigned *)params.kernelParams[1] == by);
    assert(*(unsigned *)params.kernelParams[2] == count);
}
"""
)
MAIN = r"""
int main(int argc, char **argv) {
    setup(argv[1]);
    for (int i = 0; i < 2; i++)
        OK(D(cuStreamCreate)(&streams[i], 1));
    for (unsigned i = 0; i < sizeof(scenarios) / sizeof(*scenarios); i++)
        if (!strcmp(scenarios[i].name, argv[2]))
            scenarios[i].run();
    check();
    return 0;
}
"""

# Two streams with executable graphs of three kernels, which are made and destroyed; it prints how often it launched
# them.
STRESS = (
    "#include <poll.h>\n"
    + GRAPHS
    + r"""
static volatile int stop, failures;
static void *context;
static _Atomic int replays;
static void *work(void *number) { // two streams, an executable graph each, and a third graph that comes and goes
    long self = (long)number;
    unsigned one = 1, none = 0, count = 400;
    CUdeviceptr mine;
    unsigned found[420];
    void *stream, *graph, *exec, *params[] = {&mine, &none, &count};
    OK(cuCtxSetCurrent(context));
    OK(D(cuMemAlloc_v2)(&mine, (size_t)sizeof(found)));
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuMemsetD32Async)(mine, 1, (size_t)420, stream));
    OK(D(cuStreamSynchronize)(stream)); // a wait for the context would end another thread's capture
    while (!stop) {
        OK(D(cuStreamBeginCapture_v2)(stream, 2));
        for (int i = 0; i < 3; i++)
            OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
        OK(D(cuStreamEndCapture)(stream, &graph));
        OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
        OK(D(cuGraphDestroy)(graph));
        int times = self ? 20 : 1;
        for (int i = 0; i < times; i++)
            OK(D(cuGraphLaunch)(exec, stream));
        replays += times;
        if (self)
            OK(D(cuStreamSynchronize)(stream));
        OK(D(cuGraphExecDestroy)(exec)); // the first thread's, while it runs
    }
    OK(D(cuStreamSynchronize)(stream));
    OK(D(cuMemcpyDtoH_v2)(found, mine, sizeof(found)));
    for (int i = 1; i < 400; i++)
        failures += found[i] != found[0];
    failures += found[419] != 1;
    return NULL;
}
int main(int argc, char **argv) {
    pthread_t threads[3];
    setup(argv[1]);
    OK(D(cuCtxSynchronize)());
    OK(D(cuCtxGetCurrent)(&context));
    puts("ready"), fflush(stdout);
    for (long i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (struct pollfd file = {0, POLLIN, 0}; !poll(&file, 1, 100);) // until its input ends
        OK(D(cuModuleGetFunction)(&(void *){NULL}, module, "other"));
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    printf("%d", replays);
    return failures != 0;
}
"""
)

CAPTURED = ("captured", "joined", "legacy")  # the stream that it launches into, next to captures
# One thread launches, and starts a capture a moment later. Another one keeps waiting for an idle stream, after which
# the buffers of launches are collected.
CAPTURES = (
    GRAPHS
    + r"""
static volatile int over;
static void *context;
static void *wait_on(void *stream) {
    OK(cuCtxSetCurrent(context));
    while (!over)
        OK(D(cuStreamSynchronize)(stream));
    return NULL;
}
int main(int argc, char **argv) {
    void *graph, *event, *idle, *launched_into, *joined = NULL;
    pthread_t thread;
    unsigned moment = (unsigned)atoi(argv[4]), blocking = strcmp(argv[2], "legacy") ? 1 : 0;
    setup(argv[1]);
    OK(D(cuCtxSynchronize)());
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuEventCreate)(&event, 2));
    OK(D(cuStreamCreate)(&streams[0], blocking));
    OK(D(cuStreamCreate)(&streams[1], 1));
    OK(D(cuStreamCreate)(&idle, 1));
    if (!strcmp(argv[2], "joined"))
        joined = streams[1];
    launched_into = blocking ? joined ? joined : streams[0] : NULL;
    pthread_create(&thread, NULL, wait_on, idle);
    for (int i = 0; i < atoi(argv[3]); i++) {
        put(launched_into), launched(1);
        usleep((unsigned)rand() % moment);
        OK(D(cuStreamBeginCapture_v2)(streams[0], 1 + i % 2)); // thread-local, then relaxed
        if (joined) {
            OK(D(cuEventRecord)(event, streams[0]));
            OK(D(cuStreamWaitEvent)(joined, event, 0));
            put(joined);
            OK(D(cuEventRecord)(event, joined));
            OK(D(cuStreamWaitEvent)(streams[0], event, 0));
        }
        put(streams[0]);
        usleep(3 * moment);
        OK(D(cuStreamEndCapture)(streams[0], &graph));
        OK(D(cuGraphDestroy)(graph));
    }
    over = 1;
    pthread_join(thread, NULL);
    OK(D(cuStreamSynchronize)(launched_into));
    check();
    return 0;
}
"""
)


def compile_scenarios(folder, scenarios, helpers=""):
    """Return the program; its second argument names the scenario to run."""
    functions = "".join(f"static void run_{name}(void) {{ {body} }}\n" for name, (body, *_) in scenarios.items())
    rows = ", ".join(f'{{"{name}", run_{name}}}' for name in scenarios)
    table = f"static const struct {{ const char *name; void (*run)(void); }} scenarios[] = {{{rows}}};\n"
    before = f'#define PTX_FILE "{PTX}"\n' + GRAPHS + helpers
    return build(folder, before + functions + table + MAIN)


def check_scenario(folder, program, name, launches, reasons, idle=()):
    """Run a scenario with probes: `launches` launches must have probes and complete data, and the others the given
    reasons.

    `idle` is the number of launches of nodes that didn't run.
    """
    trace = good(folder, program, "-p", "gmem_bytes", arguments=(PTX, name))
    replayed = trace.of("probed")
    assert len(replayed) == len(trace.of("buffer"))
    assert launches in (None, len(replayed))
    found = buffers(trace, "gmem_bytes")
    assert sorted(found) == sorted(record["id"] for record in replayed)
    lazy = Counter(record["node"] for record in replayed if not found[record["id"]]["slots"]["read"].any())
    assert sorted(lazy.values()) == sorted(idle)
    for record in replayed:
        units = found[record["id"]]
        if record.get("node") in lazy:
            assert record["repeats"] == 1
            continue
        assert len(units) == record["grid"][0]
        assert units["slots"]["read"].sum() == units["slots"]["written"].sum() == 8 * COUNT
    if reasons is not None:
        assert unprobed(trace) == reasons


def check_captures(trace, turns):
    """Return the faults in a trace of CAPTURES."""
    lost = Counter(str(parse(record["lost"])) for record in trace.of("buffer") if "lost" in record)
    counts = len(trace.of("probed")), len(trace.of("buffer"))
    wrong = [f"{counts} launches with probes and buffers, not {turns}"] * (counts != (turns, turns))
    return wrong + [f"{count}: {reason}" for reason, count in [*lost.items(), *unprobed(trace).items()]]
