// The state of a trace.

#ifndef GPT_LIVE_H
#define GPT_LIVE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

// It lives in memory that is zero again in a forked child: it has no trace,
// no ids, no state until it begins its own.

#define MAX_MAPPINGS 16384
#define MAX_COUNT_CHUNKS 4096 // of 20,000 rows, most of them

enum state { FRESH, STARTING, ON, OFF };

struct live {
    _Atomic uint32_t pid;   // of the process while its trace is on, else 0
    _Atomic uint32_t state; // enum state
    _Atomic uint32_t pool_lock;
    struct tail *tail;
    char path[4096];
    struct thread *pool;                               // of threads that are gone
    struct count *_Atomic counts[2][MAX_COUNT_CHUNKS]; // of launches, of queries: rows, by chunk
    _Atomic uint32_t count_rows[2];                    // that are given out
    struct {
        unsigned char *_Atomic start;
        _Atomic size_t size;
    } mappings[MAX_MAPPINGS]; // of the file
};
extern struct live *hook_live;

#endif
