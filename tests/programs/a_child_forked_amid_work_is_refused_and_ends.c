// Run by test_a_child_forked_amid_work_is_refused_and_ends in tests/runtime/test_sim_streams.py.

#include "gates.h"

#include <sys/wait.h>
static void *stream, *event, *f;
static void refused(void) {
    uint64_t memory;
    IS(3, cuInit(0));
    IS(3, D(cuEventQuery)(event));
    IS(3, D(cuStreamSynchronize)(stream));
    IS(3, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0));
    IS(3, D(cuMemAlloc_v2)(&memory, (size_t)4));
    IS(3, D(cuCtxSynchronize)());
}
static void *allocate(void *count) { // holds the driver's lock most of the time
    void *context;
    uint64_t memory;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    while (*(atomic_int *)count) {
        OK(D(cuMemAlloc_v2)(&memory, (size_t)4));
        OK(D(cuMemFreeAsync)(memory, (void *)0));
    }
    return 0;
}
static void fork_there(void *child) {
    if ((*(int *)child = fork()))
        return;
    refused(); // then the child ends, because the driver's thread returns
}
int main(void) {
    begin();
    f = kernel("foo");
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuEventCreate)(&event, 0));
    close_stream(stream, 0);
    OK(D(cuEventRecord)(event, stream));
    atomic_int count = 1;
    int child = fork(), status;
    if (!child) {
        refused();
        exit(5);
    }
    IS(600, D(cuEventQuery)(event));
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    open_stream(0);
    OK(D(cuStreamSynchronize)(stream));
    OK(D(cuLaunchHostFunc)(stream, fork_there, &child));
    OK(D(cuStreamSynchronize)(stream));
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pthread_t thread;
    pthread_create(&thread, 0, allocate, &count);
    for (int i = 0; i < 50; i++) {
        if (!(child = fork())) {
            refused();
            exit(6);
        }
        assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 6);
    }
    child = vfork();
    if (!child)
        execl("/bin/true", "true", (char *)0);
    assert(waitpid(child, &status, 0) == child && !status);
    count = 0;
    pthread_join(thread, 0);
    OK(D(cuLaunchHostFunc)(stream, gate, (void *)2)); // still pending when the process ends
}
