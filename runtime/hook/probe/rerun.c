// --rerun: how much memory the buffers of kernels needed in an earlier run, whose trace is read when the
// first kernel with a log gets its probes.

#include <pthread.h>

#include "common/needs.c"
#include "hook/write/write.h"
#include "probe.h"

static struct gpt_needs needs;

static void read_needs(void) {
    const char *fault = gpt_read_needs(hook_settings.rerun, &needs);
    if (fault)
        hook_say(hook_settings.rerun, fault, "logs have the sizes that their probes set");
}

uint64_t hook_needed_before(const char *kernel) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!hook_settings.rerun || !*hook_settings.rerun)
        return 0;
    pthread_once(&once, read_needs);
    return gpt_find_need(&needs, kernel);
}
