// A pipeline that the supervisor keeps running, and which answers one request after another.

#ifndef GPT_WORKER_H
#define GPT_WORKER_H

#include "broker.h"

struct worker {
    pid_t pid;           // its shell, which leads a group; 0: it has ended
    int in, out, errors; // -1: closed
    char messages[4096]; // the end of what it wrote to standard error
    size_t messages_size;
    bool begun, busy; // there is one; it has a request
    char arch[GPT_ARCH_BYTES];
    const char *probe;              // its pipeline that weaves probes, the same as its clients'
    struct gpt_bytes input, output; // data to write to it, and data read from it
    size_t sent, seen;              // bytes sent so far; bytes already searched for records
    uint64_t syncs, asked;          // `sync` records sent so far; its answer ends with this one
    uint64_t until;                 // CLOCK_MONOTONIC, ms: end the worker then
    uint64_t beat, pause;           // CLOCK_MONOTONIC, ms: send another `sync` then; ms to the next one
};

enum worker_state { WORKER_WAITS, WORKER_DONE, WORKER_SPENT, WORKER_BROKEN };

bool worker_start(struct worker *worker, char **words); // false with errno set

// Give a request to the worker: a file with one module record, and possibly a second file with the image.
// Returns false if the first file contains anything else or names a file, or with errno set if memory runs
// out.
bool worker_give(struct worker *worker, const int files[GPT_FILES]);

void worker_send(struct worker *worker); // writes more of the request when the pipe has room
void worker_beat(struct worker *worker); // another mark
void worker_hear(struct worker *worker); // reads what it has written to standard error

// Read what the worker has written. DONE means that `output` is the complete answer. So does SPENT, but the
// worker accepts no further requests.
enum worker_state worker_receive(struct worker *worker);

void worker_rest(struct worker *worker); // after an answer
void worker_end(struct worker *worker);

#endif
