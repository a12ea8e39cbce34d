// A program whose trace has every kind of record that a summary needs: launches and copies by several
// threads, calls that are only counted, calls that fail, a captured graph, and a child process that does the
// same.

#include <pthread.h>
#include <sys/wait.h>

#define D(name) ((int (*)())dlsym(driver, #name))
#define TEXT                                                                                                 \
    ".version 7.0\n.target sm_70\n.address_size 64\n"                                                        \
    ".visible .entry one(){ret;}\n.visible .entry two(){ret;}\n"

typedef unsigned long long pointer;
static void *context, *one, *two;

static void start(void *function, void *stream) {
    OK(cuLaunchKernel(function, 4, 1, 1, 32, 1, 1, 0, stream, 0, 0));
}

static void *work(void *bytes) {
    pointer memory;
    void *stream;
    char *host = calloc(1, 1 << 16);
    size_t size = (size_t)bytes;
    OK(cuCtxSetCurrent(context));
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuMemAlloc_v2)(&memory, (size_t)1 << 16));
    for (int i = 0; i < 300; i++) {
        OK(D(cuMemcpyHtoDAsync_v2)(memory, host, size + i, stream));
        start(i % 3 ? one : two, stream);
        D(cuStreamQuery)(stream); // returns 0 or CUDA_ERROR_NOT_READY, neither of which is a failure
    }
    OK(D(cuMemcpyDtoH_v2)(host, memory, size));
    assert(cuLaunchKernel(one, 0, 1, 1, 1, 1, 1, 0, stream, 0, 0)); // no blocks: it fails
    OK(D(cuStreamSynchronize)(stream));
    return NULL;
}

static void replay(void) {
    pointer memory;
    void *stream, *graph, *exec;
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuMemAlloc_v2)(&memory, (size_t)4096));
    OK(D(cuStreamBeginCapture_v2)(stream, 0));
    start(one, stream), start(one, stream), start(two, stream);
    OK(D(cuMemsetD32Async)(memory, 1, (size_t)25, stream));
    OK(D(cuMemcpyDtoDAsync_v2)(memory + 2048, memory, (size_t)300, stream));
    OK(D(cuStreamEndCapture)(stream, &graph));
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    for (int i = 0; i < 5; i++)
        OK(D(cuGraphLaunch)(exec, stream));
    OK(D(cuCtxSynchronize)());
}

int main(int argc, char **argv) {
    pthread_t threads[3];
    begin_trace();
    pid_t child = argc > 1 ? fork() : 0;
    begin();
    void *module;
    OK(cuModuleLoadData(&module, TEXT));
    OK(cuModuleGetFunction(&one, module, "one"));
    OK(cuModuleGetFunction(&two, module, "two"));
    OK(D(cuCtxGetCurrent)(&context));
    for (size_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, (void *)(100 * (i + 1)));
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    replay();
    usleep(150000); // so that the `clock` record at the end gives the rate of time stamps
    OK(D(cuCtxSynchronize)());
    if (argc > 1 && !child)
        exit(7); // so that the two processes end differently
    if (child)
        waitpid(child, NULL, 0);
    return 0;
}
