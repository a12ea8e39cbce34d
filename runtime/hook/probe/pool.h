// Device memory for buffers: slabs that are ready, a launch's place in one, and their way back.

#ifndef GPT_POOL_H
#define GPT_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "probed.h"

// Buffers begin at multiples of 256.
static inline uint64_t hook_rounded(uint64_t bytes) { return (bytes + 255) / 256 * 256; }

enum { BENCHMARK_EVENTS = 4 };
struct replay;
struct demand;

struct save { // a launch, and where its buffers are
    struct save *next;
    struct replay *replay;   // of a graph: it stands for the launches of all nodes, and has no kernel
    bool repeats;            // of a node in the body of a conditional one: it runs several times, maybe
    bool unpacked;           // of a launch that is captured: it has no buffers
    _Atomic unsigned others; // that have it too, of a node
    struct slab *slab;
    struct probed *probed;
    uint32_t id;                       // in the trace; 0: it has no record, its buffers are of no use
    uint64_t offset;                   // of the first buffer in the slab
    uint64_t bytes;                    // of all
    uint64_t function;                 // what the program passed, to be called if this one cannot run
    void **params, **extra;            // the same
    char *block;                       // its parameters, at their places
    uint64_t prologue;                 // ticks before the launch
    uint64_t needed;                   // bytes, with --memusage
    uint64_t events[BENCHMARK_EVENTS]; // with --benchmark; 0: none
    uint64_t sizes[MOST_MAPS];         // of each map's buffer
    uint8_t steps[MOST_MAPS];          // how much larger logs are than their maps (demand.h)
    struct demand *demand;             // NULL: it has no log that grows
    uint32_t grid[3];                  // blocks
    void *arguments[];                 // pointers to the values behind them, as cuLaunchKernel takes them
};

enum moment { ON_THE_WAY, MEMORY_NEEDED, CONTEXT_ENDS, PROCESS_ENDS };

// What a launch needs.
struct claim {
    uint64_t context, stream;
    uint32_t thread;
    bool dependent; // it may begin before its predecessor has ended: nothing may come between
    bool copied;    // its buffers are a copy, over whatever was there
    uint64_t bytes;
};

// Finds buffers for a launch into a stream, all zero but for a copy. NULL, with a reason, if there are none.
// Whoever has them gives them back by hook_issue, when the launch is in the stream or has failed.
struct slab *hook_claim(const struct claim *claim, uint64_t *offset, const char **reason);
// Waits until an earlier launch that shares the demand is counted: with --complete for that launch, else only
// if something has ended and is not read yet. Returns the most bytes that its buffers may have: half of the
// memory unless later launches can wait for it.
uint64_t hook_wait_for_count(const struct claim *claim, const struct demand *demand);
void hook_wake_claims(void);
uint64_t hook_slab_address(const struct slab *slab);
void hook_make_next(const struct slab *like); // for a later claim, by the one who has places in this one
void hook_issue(struct slab *slab, struct save *save); // NULL: it failed

// Buffers, all zero once the slab is ready, that are not drained where they are: of an executable graph, with
// an event for the end of its last replay. NULL, with a reason, if there are none.
// In the current context; `replaced` are let go right after.
struct slab *hook_hold(uint64_t bytes, uint64_t replaced, const char **reason);
void hook_let_go(struct slab *slab); // once its event has come

// Around a call by which streams come to be captured: meanwhile those of other calls are not drained.
void hook_hold_drains(void);
void hook_let_drain(void);

void hook_drain(uint64_t stream, uint32_t thread); // what is ready, of a stream, or of all (UINT64_MAX)
void hook_drain_all(enum moment moment); // and waits for it, a minute at most; of memory, in this context

// The process ends, perhaps within a call of the driver, by a signal handler: what is still on its way is
// said to be lost.
void hook_lose_rest(bool within_driver);
bool hook_give_slabs_back(void); // of the current context, to the driver; false if none was free

#endif
