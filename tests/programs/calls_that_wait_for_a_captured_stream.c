// Run by test_calls_that_wait_for_a_captured_stream in tests/runtime/test_sim_graphs.py.

#include "sim.h"

static void *s;
static void *context;
static void *ends(void *status) {
    void *graph;
    OK(D(cuCtxSetCurrent)(context));
    *(int *)status = D(cuStreamEndCapture)(s, &graph);
    return NULL;
}
#define INVALID(status, call)                                                                                \
    do {                                                                                                     \
        void *graph;                                                                                         \
        OK(D(cuStreamBeginCapture_v2)(s, 2));                                                                \
        IS(status, call);                                                                                    \
        IS(901, D(cuStreamEndCapture)(s, &graph));                                                           \
    } while (0)
int main(void) {
    begin();
    void *e, *recorded, *graph;
    int state, status;
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuStreamCreate)(&s, 0)); // blocking: the legacy stream waits for it
    OK(D(cuEventCreate)(&e, 0));
    OK(D(cuEventCreate)(&recorded, 0));
    OK(D(cuEventRecord)(recorded, NULL));
    INVALID(906, D(cuStreamSynchronize)(NULL));
    INVALID(906, D(cuStreamWaitEvent)(NULL, recorded, 0));
    INVALID(900, D(cuCtxSynchronize)());
    OK(D(cuStreamBeginCapture_v2)(s, 0));
    OK(D(cuEventRecord)(e, s));
    float ms;
    IS(907, D(cuEventElapsedTime_v2)(&ms, recorded, e));
    OK(D(cuStreamEndCapture)(s, &graph)); // it went on
    // another thread can only end it
    OK(D(cuStreamBeginCapture_v2)(s, 0));
    pthread_t thread;
    assert(!pthread_create(&thread, NULL, ends, &status) && !pthread_join(thread, NULL));
    assert(status == 908);
    OK(D(cuStreamIsCapturing)(s, &state));
    assert(!state);
    IS(401, D(cuStreamEndCapture)(s, &graph));
    return 0;
}
