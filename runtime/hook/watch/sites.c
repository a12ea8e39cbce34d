// Call stacks (gpt-hook --stacks): `stack` and `call_site` records. Each stack is recorded once; its number
// is the index of its digest in a table.

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hook/write/write.h"
#include "watch.h"

enum { DEEPEST = 64 };

const char *hook_stacks;

void hook_sites_setup(void) {
    hook_stacks = getenv("GPT_HOOK_STACKS");
    if (hook_stacks)
        hook_unwind_setup();
}

struct addresses {
    const uint64_t *items;
    size_t count;
};

static bool write_addresses(uint64_t id, const void *what) {
    const struct addresses *addresses = what;
    struct gpt_frame frames[DEEPEST];
    char buffer[1024]; // receives the path of a file that the program mapped itself: not a library
    for (size_t i = 0; i < addresses->count; i++) {
        uint64_t offset = 0;
        const char *path =
            hook_find_file((const void *)(addresses->items[i] - 1), &offset, buffer, sizeof(buffer));
        path = path == buffer ? NULL : path;
        frames[i] = (struct gpt_frame){.path = path ? hook_str(path) : (struct gpt_str){0},
                                       .offset = path ? offset + 1 : addresses->items[i]};
    }
    return HOOK_WRITE(stack, .id = id, .frames = {frames, addresses->count});
}

uint64_t hook_number_stack(uint64_t digest, bool (*write)(uint64_t id, const void *what), const void *what) {
    _Atomic uint64_t *place = hook_find_in_map(&hook_watched->stacks, digest | 1);
    if (!place)
        return 0;
    uint64_t id = (uint64_t)(place - hook_watched->stacks.values) + 1;
    if (!atomic_load_explicit(place, memory_order_relaxed) && !atomic_exchange(place, 1) && !write(id, what))
        atomic_store(place, 0);
    return id;
}

uint64_t hook_number_addresses(const uint64_t *addresses, size_t count) {
    uint64_t digest = 0xcbf29ce484222325u + hook_unwind_generation();
    for (size_t i = 0; i < count; i++)
        digest = (digest ^ addresses[i] ^ addresses[i] >> 32) * 0x100000001b3u, digest ^= digest >> 29;
    return hook_number_stack(digest, write_addresses, &(struct addresses){addresses, count});
}

void hook_write_site(struct frame *frame, uint64_t python) {
    uint64_t addresses[DEEPEST];
    size_t count = hook_unwind(addresses, DEEPEST);
    if (!count)
        addresses[count++] = frame_caller(frame);
    uint64_t id = hook_number_addresses(addresses, count);
    if (id)
        HOOK_WRITE(call_site, .thread = frame->thread->tid, .start = frame->start, .stack = id,
                   .python = {python != 0, python});
}

void hook_on_site(struct frame *frame) { hook_write_site(frame, 0); }
