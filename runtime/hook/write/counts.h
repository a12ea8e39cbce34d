// How often each kernel was launched, and each query made.

#ifndef GPT_COUNTS_H
#define GPT_COUNTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "reference.h"

struct thread;

// How often a thread launched a function or made a query, and when first: a row of a `launches` or `counts`
// record, in a chunk that stays mapped. Only the thread writes it.
struct count {
    _Atomic uint64_t count, first;
    uint32_t id, pad; // of the function, of the api
};

// Where in a thread's table a key is, modulo its size: also for the stubs, which count most launches.
#define COUNTER_FACTOR 0x9e3779b97f4a7c15u
#define COUNTER_SHIFT 40

struct counter {                // of a thread's table: open addressing
    uint64_t key;               // the function's handle, the address of the query's slot
    struct count *row;          // of the function that had the handle when this was made
    struct reference reference; // to that
};

// The row that a thread counts a key in: the handle of a function that is launched, the address of a query's
// slot. NULL if it has none, or that of an object that is gone.
struct count *hook_find_counter(const struct thread *thread, uint64_t key);
struct count *hook_add_counter(struct thread *thread, uint64_t key, bool query, uint32_t id,
                               struct reference reference); // or NULL
void hook_count(struct count *row, uint64_t now);
uint64_t hook_count_launches(void); // all of them
uint32_t hook_newest_launch(void);  // the function that was launched for the first time last, or 0

#endif
