// Which kernel with probes runs in place of the program's.

#ifndef GPT_CHOICE_H
#define GPT_CHOICE_H

#include "cuda_abi.h"
#include "probed.h"

struct choice {
    struct probed *first, *probed; // of the handle; what runs, NULL: the program's
    struct bound *bound;
    uint64_t handle;    // what is launched
    const char *reason; // why none runs
};

// What is to run is held until it is let go.
struct choice hook_choose(const struct launch *launch, uint64_t context);
void hook_let_choice_go(const struct choice *choice);

#define REFUSED "the driver refused the launch with probes"

// The driver did, and has launched the program's.
void hook_see_refusal(struct probed *probed, const struct launch *launch, CUresult status);

// Whether it may run in a context, with blocks of so many threads; NULL, or why not.
const char *hook_find_obstacle(const struct probed *probed, const struct bound *bound, uint64_t threads);

// The most registers of a thread with which a multiprocessor holds so many blocks of so many threads.
unsigned hook_most_registers(uint64_t threads, uint64_t blocks);
// Has the kernel assembled once more, with no more registers than these. What is asked for is not waited for.
void hook_want_fewer(struct probed *first, unsigned registers);

#endif
