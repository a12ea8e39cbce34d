// Fuzz answer.c, with which the hook reads the answers of a pipeline, which anybody may have written, and the
// sizes of the buffers that they request. The records that it writes about them into a trace must be
// readable.

#include "absent.h"
#include "common/records.c"
#include "hook/probe/answer.c"
#include "hook/probe/launch.c"
#include "hook/watch/memory.c"
#include "hook/write/reasons.c"

static unsigned char room[1 << 20];

struct held_signals hook_hold_signals(void) { return (struct held_signals){0}; }
void hook_release_signals(const struct held_signals *before) { (void)before; }
uint64_t hook_needed_before(const char *kernel) { return strlen(kernel); }

static void check_stream(const unsigned char *end) {
    struct cursor cursor = {room, end, false};
    while (cursor.at < cursor.end) {
        take_value(&cursor);
        if (cursor.bad)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct watched state;
    struct gpt_bytes answer = {0};
    hook_watched = &state;
    if (!gpt_add(&answer, data, size))
        abort();
    struct woven *woven = hook_read_woven(&answer, "foo");
    if (!woven || !(woven->fault || (woven->image && woven->added_count)))
        abort();
    uint32_t shape[] = {3, 5, 7};
    uint64_t bytes;
    for (size_t i = 0; i < woven->map_count; i++)
        hook_map_bytes(&woven->maps[i], shape, shape, &bytes);
    for (size_t i = 0; !woven->fault && i < woven->added_count; i++)
        if (woven->added[i].map >= woven->map_count)
            abort();
    struct cursor cursor = begin(&woven->answer);
    while (cursor.at < cursor.end) {
        struct gpt_packer to = {room, room + sizeof(room), false};
        struct record record = read_record(&cursor);
        if (cursor.bad)
            break;
        copy_record(&to, record.start, woven, 1, is(record.kind, "kernel"),
                    record.registers.type == UNSIGNED ? 7 : 0);
        check_stream(to.at);
    }
    hook_free_woven(woven);
    return 0;
}
