// Run by test_capture in tests/runtime/test_sim_graphs.py.

#include "calls_in_graphs.h"

static void *other_thread(void *stream) {
    uint64_t memory;
    void *context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    IS((int)(long)getenv("x") ? 900 : 0, D(cuMemAlloc_v2)(&memory, (size_t)1));
    return 0;
}
int main(void) {
    begin();
    void *a, *b, *event, *back, *graph, *exec;
    uint64_t memory, id;
    int status;
    OK(D(cuStreamCreate)(&a, CU_STREAM_NON_BLOCKING));
    OK(D(cuStreamCreate)(&b, CU_STREAM_NON_BLOCKING));
    OK(D(cuEventCreate)(&event, 0));
    OK(D(cuEventCreate)(&back, 0));
    IS(900, D(cuStreamBeginCapture_v2)((void *)0, 0)); // the legacy stream

    // Two streams
    OK(D(cuStreamBeginCapture_v2)(a, 2));
    OK(D(cuStreamIsCapturing)(a, &status));
    assert(status == 1);
    OK(D(cuLaunchHostFunc)(a, call, 1l));
    OK(D(cuEventRecord)(event, a));
    OK(D(cuStreamWaitEvent)(b, event, 0));
    OK(D(cuStreamIsCapturing)(b, &status));
    assert(status == 1);
    OK(D(cuLaunchHostFunc)(b, call, 2l));
    OK(D(cuEventRecord)(back, b));
    OK(D(cuStreamWaitEvent)(a, back, 0));
    OK(D(cuLaunchHostFunc)(a, call, 3l));
    IS(903, D(cuStreamEndCapture)(b, &graph) ? 903 : 0);
    IS(901, D(cuStreamEndCapture)(a, &graph)); // the call above invalidated the capture
    assert(!graph && !called);

    for (int joined = 0; joined < 2; joined++) {
        OK(D(cuStreamBeginCapture_v2)(a, 2));
        OK(D(cuLaunchHostFunc)(a, call, 1l));
        OK(D(cuEventRecord)(event, a));
        OK(D(cuStreamWaitEvent)(b, event, 0));
        OK(D(cuLaunchHostFunc)(b, call, 2l));
        OK(D(cuEventRecord)(back, b));
        if (joined)
            OK(D(cuStreamWaitEvent)(a, back, 0));
        OK(D(cuLaunchHostFunc)(a, call, 3l));
        IS(joined ? 0 : 904, D(cuStreamEndCapture)(a, &graph));
        OK(D(cuStreamIsCapturing)(b, &status));
        assert(status == 0);
    }
    OK(D(cuGraphInstantiateWithFlags)(&exec, graph, 0ull));
    OK(D(cuGraphLaunch)(exec, a));
    OK(D(cuStreamSynchronize)(a));
    expect("1 2 3 ");
    IS(1, D(cuEventQuery)(event)); // the event was recorded in a capture that has ended

    // What a thread may not do meanwhile
    OK(D(cuStreamBeginCapture_v2)(a, 0));
    int mode = 2;
    OK(D(cuThreadExchangeStreamCaptureMode)(&mode));
    OK(D(cuMemAlloc_v2)(&memory, (size_t)1));
    assert(mode == 0);
    OK(D(cuThreadExchangeStreamCaptureMode)(&mode));
    IS(900, D(cuMemAlloc_v2)(&memory, (size_t)1));
    OK(D(cuStreamGetCaptureInfo)(a, &status, &id));
    assert(status == 2);
    IS(901, D(cuLaunchHostFunc)(a, call, 1l));
    IS(901, D(cuStreamEndCapture)(a, &graph));
    OK(D(cuStreamBeginCapture_v2)(a, 0));
    IS(900, D(cuStreamSynchronize)(a));
    IS(901, D(cuStreamEndCapture)(a, &graph));
    for (int i = 0; i < 2; i++) { // in another thread
        pthread_t thread;
        OK(D(cuStreamBeginCapture_v2)(a, i));
        i ? unsetenv("x") : setenv("x", "", 1);
        pthread_create(&thread, 0, other_thread, a);
        pthread_join(thread, 0);
        IS(i ? 0 : 901, D(cuStreamEndCapture)(a, &graph));
    }
    OK(D(cuStreamBeginCapture_v2)(a, 2));
    OK(D(cuStreamDestroy_v2)(a)); // takes the capture along
    OK(D(cuMemAlloc_v2)(&memory, (size_t)1));
}
