// Run by test_streams_wait_for_each_other in tests/runtime/test_sim_streams.py.

#include "gates.h"

static int order[8], steps;
static void step(void *number) { order[__atomic_fetch_add(&steps, 1, __ATOMIC_SEQ_CST)] = (int)(long)number; }
int main(void) {
    begin();
    void *blocking, *free_one, *legacy = (void *)1, *own = (void *)2, *event;
    int status;
    OK(D(cuStreamCreate)(&blocking, 0));
    OK(D(cuStreamCreate)(&free_one, CU_STREAM_NON_BLOCKING));
    OK(D(cuEventCreate)(&event, 0));

    close_stream(blocking, 0); // only the legacy stream waits for it
    OK(D(cuLaunchHostFunc)(legacy, step, (void *)2));
    OK(D(cuLaunchHostFunc)(own, step, (void *)3)); // waits for the legacy stream
    OK(D(cuLaunchHostFunc)(free_one, step, (void *)1));
    OK(D(cuStreamSynchronize)(free_one));
    assert(steps == 1 && order[0] == 1);
    IS(600, D(cuStreamQuery)(legacy));
    IS(600, D(cuStreamQuery)(own));
    open_stream(0);
    OK(D(cuStreamSynchronize)(own));
    assert(steps == 3 && order[1] == 2 && order[2] == 3);

    close_stream(legacy, 0);
    OK(D(cuLaunchHostFunc)(blocking, step, (void *)2));
    OK(D(cuLaunchHostFunc)(free_one, step, (void *)1));
    OK(D(cuStreamSynchronize)(free_one));
    assert(steps == 4);
    open_stream(0);
    OK(D(cuCtxSynchronize)());
    assert(steps == 5);

    // A wait for an event refers to the event's last recording at that time.
    close_stream(free_one, 0);
    OK(D(cuEventRecord)(event, free_one));
    OK(D(cuStreamWaitEvent)(own, event, 0));
    OK(D(cuLaunchHostFunc)(own, step, (void *)2));
    OK(D(cuEventRecord)(event, blocking));
    OK(D(cuEventQuery)(event));
    OK(D(cuEventDestroy_v2)(event));
    IS(600, D(cuStreamQuery)(own));
    assert(steps == 5);
    open_stream(0);
    OK(D(cuStreamSynchronize)(own));
    assert(steps == 6);
    // Synchronizing the legacy stream also synchronizes the streams that it would wait for.
    close_stream(blocking, 0);
    IS(600, D(cuStreamQuery)(legacy));
    open_stream(0);
    OK(D(cuStreamSynchronize)(legacy));
    OK(D(cuStreamQuery)(blocking));
    void *graph;
    OK(D(cuStreamBeginCapture_v2)(blocking, 2));
    IS(906, D(cuStreamIsCapturing)(legacy, &status)); // a query does no harm
    IS(906, D(cuStreamGetCaptureInfo_v2)(NULL, &status, NULL, NULL, NULL, NULL));
    OK(D(cuStreamIsCapturing)(free_one, &status));
    assert(status == 0);
    OK(D(cuStreamIsCapturing)(blocking, &status));
    assert(status == 1);
    IS(906, D(cuLaunchHostFunc)(legacy, step, (void *)2)); // it would wait for captured work
    IS(901, D(cuStreamEndCapture)(blocking, &graph));
}
