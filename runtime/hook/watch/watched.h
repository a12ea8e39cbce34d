// What is known of this process.

#ifndef GPT_WATCHED_H
#define GPT_WATCHED_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "objects.h"

// In memory that is zero again in a forked child (write/live.h).

#define MAP_ENTRIES (1u << 18)
#define MAX_LIBRARIES 4096
#define MAX_SEGMENTS 4
#define MAX_DEVICES 64
#define PATH_BYTES (512u << 10)

struct map { // open addressing; keys are never 0 and never removed
    _Atomic uint64_t keys[MAP_ENTRIES];
    _Atomic uint64_t values[MAP_ENTRIES];
};

struct library {
    struct {
        uint64_t start, end, offset; // addresses, and where the first of them is in the file
    } segments[MAX_SEGMENTS];
    unsigned count;
    const char *path;
    const char *replaces;  // the path that the program knows, where it is another one
    uint64_t mapping;      // a digest of where it begins
    uint64_t end, dynamic; // of all segments; of its dynamic section
};

struct watched {
    _Atomic uint32_t modules, functions;    // ids that were given
    _Atomic uint32_t kernels, maps, probed; // of probes
    struct stream_queue *_Atomic timelines; // of --gpu-time
    pthread_mutex_t finding;                // the driver's functions
    _Atomic uint64_t devices;               // bits of those that have a record
    _Atomic uint32_t libraries;
    _Atomic bool unmapped; // some may have been closed since they were looked for
    _Atomic uint32_t scanning;
    uint64_t linked; // a digest of the list of the dynamic linker at the last scan
    uint32_t paths_used;
    struct library library[MAX_LIBRARIES];
    char paths[PATH_BYTES];
    struct objects objects;
    _Atomic uint64_t primary[MAX_DEVICES]; // contexts of the devices
    _Atomic bool unseen; // it was said which libraries' calls are not recorded, see scopes.c
    struct map missing;  // what was said, see missing.c
    struct map rules;    // how stacks are walked, see unwind.c
    struct map stacks;   // what has a record, see sites.c
    _Atomic uint32_t said;
};
extern struct watched *hook_watched;
bool hook_watched_setup(void);
_Atomic uint64_t *hook_find_in_map(struct map *map, uint64_t key); // its place, or NULL if there is none

#endif
