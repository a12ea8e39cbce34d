// --detail: after the first N launches of a kernel and grid that are drained, a launch keeps the sums of its
// buffers only. A kernel of ours reduces them where they are, so a few hundred bytes leave the device instead
// of a buffer. gpt-stream(5) has the layout of the sums.
//
// Without --detail, all launches keep everything. Sums can't provide block_sched's schedules, percentiles,
// dmat's matrices or the progress of warps, and users shouldn't have to request those.
//
// The kernel runs when a slab is drained, in our stream: its launches have ended by then, and nothing waits
// for it. It reduces as many launches of a slab at once as have room for their sums. Only the thread that
// writes calls these functions, so the counts need no lock.
//
// Not reduced: tables, whose rows are sums already; maps with fields that the kernel doesn't know; and
// launches whose buffers are no larger than their sums. If the driver can't assemble or launch the kernel,
// all launches keep their details.

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/write/write.h"
#include "probe.h"

enum { AREA = 1 << 20 }; // bytes of device memory: descriptions of buffers, and their sums
enum { THREADS = 256, PER_THREAD = 8, CHUNKS = 64 }; // CHUNKS is the maximum number of blocks for a buffer
enum { ASKED = 10, FIELD = 2 };                      // words that describe a buffer, and a field of it
enum { BUCKETS = 1 << 10 };
enum { BINS = 65, LEAST_PACKED = 512 }; // LEAST_PACKED: bytes, as in drain.c

static const uint64_t SIGN = 1ull << 63;

// -- Counting launches -----------------------------------------------------

struct counted {
    struct counted *next;
    uint32_t function, grid[3];
    uint64_t launches;
};

static struct counted *buckets[BUCKETS];

// Count a launch, and return whether it comes after the first ones, which keep their detail.
static bool is_beyond(const struct save *save) {
    struct counted key = {.function = save->probed->function};
    uint64_t hash = key.function;
    for (int i = 0; i < 3; i++)
        hash = (hash ^ (key.grid[i] = save->grid[i])) * 0x9e3779b97f4a7c15u;
    struct counted **bucket = &buckets[(hash >> 32) % BUCKETS], *found = *bucket;
    while (found && (found->function != key.function || memcmp(found->grid, key.grid, sizeof(key.grid))))
        found = found->next;
    if (!found && (found = malloc(sizeof(*found)))) {
        *found = key;
        found->next = *bucket;
        *bucket = found;
    }
    return found && ++found->launches > hook_settings.detail;
}

// -- The kernel ------------------------------------------------------------
//
// Block (x, y) takes each gridDim.x-th piece of buffer y. It goes over the slots once to count them, and once
// for each field: threads add up in registers, then blocks in shared memory. The least value is kept as the
// greatest of all complements, in an order in which unsigned numbers sort, so zero means none.

#define LOAD(name, at) "ld.global.u64 %" name ", [%asked+" #at "];\n"

static const char code[] =
    ".version 6.0\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry gpt_reduce(.param .u64 asked)\n"
    "{\n"
    ".reg .u64 %asked, %from, %to, %slots, %per, %unit, %first, %stride, %flags, %fields, %count, %out;\n"
    ".reg .u64 %begin, %step, %slot, %number, %index, %base, %saved, %word, %at, %end, %more, %size;\n"
    ".reg .u64 %sum, %least, %most, %key, %value, %flip, %offset, %kind, %bits, %one, %wide;\n"
    ".reg .f64 %real, %reals;\n"
    ".reg .f32 %single;\n"
    ".reg .u32 %thread, %block, %blocks, %which, %field, %bin, %shared, %bins, %sums, %narrow, %shift;\n"
    ".reg .pred %p, %q, %has, %float, %signed, %counting, %plain;\n"
    ".shared .align 8 .b8 all_bins[264];\n"
    ".shared .align 8 .b8 all_sums[32];\n"
    "mov.u32 %thread, %tid.x;\n"
    "mov.u32 %block, %ctaid.x;\n"
    "mov.u32 %blocks, %nctaid.x;\n"
    "mov.u32 %which, %ctaid.y;\n"
    "ld.param.u64 %asked, [asked];\n"
    "mad.wide.u32 %asked, %which, 80, %asked;\n" //
    LOAD("from", 0) LOAD("to", 8) LOAD("slots", 16) LOAD("per", 24) LOAD("unit", 32) LOAD("first", 40)
        LOAD("stride", 48) LOAD("flags", 56) LOAD("fields", 64)
            LOAD("count", 72) "cvt.u64.u32 %begin, %thread;\n"
                              "mad.wide.u32 %begin, %block, 256, %begin;\n"
                              "mul.wide.u32 %step, %blocks, 256;\n"
                              "mov.u32 %bins, all_bins;\n"
                              "mov.u32 %sums, all_sums;\n"
                              "setp.eq.u64 %plain, %per, 1;\n"
                              "and.b64 %word, %flags, 2;\n"
                              "setp.eq.u64 %p, %word, 0;\n"
                              "@%p bra RECORDS;\n"
                              // Copies of a histogram are added up.
                              "mov.u64 %slot, %begin;\n"
                              "COPIES:\n"
                              "setp.ge.u64 %p, %slot, %slots;\n"
                              "@%p bra END;\n"
                              "shl.b64 %at, %slot, 3;\n"
                              "add.u64 %at, %at, %from;\n"
                              "ld.global.u64 %value, [%at];\n"
                              "rem.u64 %at, %slot, %per;\n"
                              "shl.b64 %at, %at, 3;\n"
                              "add.u64 %at, %at, %to;\n"
                              "setp.ne.u64 %p, %value, 0;\n"
                              "@%p red.global.add.u64 [%at], %value;\n"
                              "add.u64 %slot, %slot, %step;\n"
                              "bra COPIES;\n"
                              "RECORDS:\n"
                              "and.b64 %word, %flags, 1;\n"
                              "setp.ne.u64 %has, %word, 0;\n"
                              "setp.eq.and.u64 %p, %per, %slots, %has;\n" // one unit: no more slots than its
                                                                          // count says
                              "@%p ld.global.u64 %saved, [%from];\n"
                              "@%p min.u64 %slots, %slots, %saved;\n"
                              "@%p max.u64 %slots, %slots, 1;\n"
                              "mov.u32 %field, 0;\n" // 0 only counts; the fields follow
                              "PASS:\n"
                              "setp.eq.u32 %counting, %field, 0;\n"
                              "@%counting bra ZERO;\n"
                              "sub.u32 %narrow, %field, 1;\n"
                              "mad.wide.u32 %at, %narrow, 16, %fields;\n"
                              "ld.global.u64 %word, [%at];\n"
                              "ld.global.u64 %flip, [%at+8];\n"
                              "and.b64 %offset, %word, 65535;\n"
                              "shr.u64 %size, %word, 16;\n"
                              "and.b64 %size, %size, 255;\n"
                              "shr.u64 %kind, %word, 24;\n"
                              "setp.eq.u64 %signed, %kind, 1;\n"
                              "setp.eq.u64 %float, %kind, 2;\n"
                              "mul.wide.u32 %out, %narrow, 544;\n"
                              "add.u64 %out, %out, %to;\n"
                              "add.u64 %out, %out, 24;\n"
                              "ZERO:\n"
                              "mul.lo.u32 %shared, %thread, 4;\n"
                              "add.u32 %shared, %shared, %bins;\n"
                              "setp.lt.u32 %p, %thread, 66;\n"
                              "@%p st.shared.u32 [%shared], 0;\n"
                              "mul.lo.u32 %shared, %thread, 8;\n"
                              "add.u32 %shared, %shared, %sums;\n"
                              "setp.lt.u32 %p, %thread, 4;\n"
                              "@%p st.shared.u64 [%shared], 0;\n"
                              "bar.sync 0;\n"
                              "mov.u64 %sum, 0;\n"
                              "mov.u64 %least, 0;\n"
                              "mov.u64 %most, 0;\n"
                              "mov.f64 %reals, 0d0000000000000000;\n"
                              "mov.u64 %slot, %begin;\n"
                              "SLOT:\n"
                              "setp.ge.u64 %p, %slot, %slots;\n"
                              "@%p bra DONE;\n"
                              "mov.u64 %number, %slot;\n"
                              "mov.u64 %index, 0;\n"
                              "@%plain bra FOUND;\n"
                              "div.u64 %number, %slot, %per;\n"
                              "mul.lo.u64 %index, %number, %per;\n"
                              "sub.u64 %index, %slot, %index;\n"
                              "FOUND:\n"
                              "mad.lo.u64 %base, %number, %unit, %from;\n"
                              "@!%has bra ANY;\n"
                              "ld.global.u64 %saved, [%base];\n"
                              "bra KNOWN;\n"
                              "ANY:\n" // without a count, a unit that's all zeros saved nothing
                              "mov.u64 %word, 0;\n"
                              "mov.u64 %at, %base;\n"
                              "add.u64 %end, %base, %unit;\n"
                              "WORD:\n"
                              "ld.global.u64 %more, [%at];\n"
                              "or.b64 %word, %word, %more;\n"
                              "add.u64 %at, %at, 8;\n"
                              "setp.lt.u64 %p, %at, %end;\n"
                              "@%p bra WORD;\n"
                              "setp.ne.u64 %p, %word, 0;\n"
                              "selp.u64 %saved, 1, 0, %p;\n"
                              "KNOWN:\n"
                              "setp.lt.u64 %q, %index, %saved;\n"
                              "@!%counting bra FIELD;\n"
                              "selp.u64 %one, 1, 0, %q;\n"
                              "add.u64 %sum, %sum, %one;\n"
                              "setp.ne.u64 %p, %index, 0;\n"
                              "@%p bra NEXT;\n"
                              "add.u64 %most, %most, %saved;\n"
                              "setp.le.u64 %p, %saved, %per;\n"
                              "@%p bra NEXT;\n"
                              "sub.u64 %more, %saved, %per;\n"
                              "add.u64 %least, %least, %more;\n"
                              "bra NEXT;\n"
                              "FIELD:\n"
                              "@!%q bra NEXT;\n"
                              "mad.lo.u64 %at, %index, %stride, %base;\n"
                              "add.u64 %at, %at, %first;\n"
                              "add.u64 %at, %at, %offset;\n"
                              "setp.eq.u64 %p, %size, 1;\n"
                              "@%p ld.global.u8 %value, [%at];\n"
                              "setp.eq.u64 %p, %size, 2;\n"
                              "@%p ld.global.u16 %value, [%at];\n"
                              "setp.eq.u64 %p, %size, 4;\n"
                              "@%p ld.global.u32 %value, [%at];\n"
                              "setp.eq.u64 %p, %size, 8;\n"
                              "@%p ld.global.u64 %value, [%at];\n"
                              "@%float bra REAL;\n"
                              "xor.b64 %value, %value, %flip;\n"
                              "mov.u64 %key, %value;\n"
                              "mov.u64 %wide, %value;\n"
                              "@!%signed bra WHOLE;\n"
                              "cvt.u32.u64 %narrow, %size;\n"
                              "shl.b32 %shift, %narrow, 3;\n"
                              "sub.u32 %shift, 64, %shift;\n"
                              "shl.b64 %value, %value, %shift;\n"
                              "shr.s64 %value, %value, %shift;\n"
                              "abs.s64 %wide, %value;\n"
                              "xor.b64 %key, %value, 0x8000000000000000;\n"
                              "WHOLE:\n"
                              "add.u64 %sum, %sum, %value;\n"
                              "bra COMPARE;\n"
                              "REAL:\n"
                              "cvt.u32.u64 %narrow, %value;\n"
                              "mov.b32 %single, %narrow;\n"
                              "setp.eq.u64 %p, %size, 4;\n"
                              "@%p cvt.f64.f32 %real, %single;\n"
                              "@!%p mov.b64 %real, %value;\n"
                              "setp.nan.f64 %p, %real, %real;\n"
                              "@%p bra NEXT;\n"
                              "add.f64 %reals, %reals, %real;\n"
                              "mov.b64 %value, %real;\n"
                              "shr.s64 %key, %value, 63;\n"
                              "or.b64 %key, %key, 0x8000000000000000;\n"
                              "xor.b64 %key, %key, %value;\n"
                              "abs.f64 %real, %real;\n"
                              "cvt.rzi.u64.f64 %wide, %real;\n"
                              "COMPARE:\n"
                              "max.u64 %most, %most, %key;\n"
                              "not.b64 %key, %key;\n"
                              "max.u64 %least, %least, %key;\n"
                              "clz.b64 %bin, %wide;\n"
                              "sub.u32 %bin, 64, %bin;\n"
                              "mad.lo.u32 %bin, %bin, 4, %bins;\n"
                              "red.shared.add.u32 [%bin], 1;\n"
                              "NEXT:\n"
                              "add.u64 %slot, %slot, %step;\n"
                              "bra SLOT;\n"
                              "DONE:\n"
                              "@%counting bra COUNTS;\n"
                              "@!%float red.shared.add.u64 [%sums], %sum;\n"
                              "@%float red.shared.add.f64 [%sums], %reals;\n"
                              "red.shared.max.u64 [%sums+8], %least;\n"
                              "red.shared.max.u64 [%sums+16], %most;\n"
                              "bra ADD;\n"
                              "COUNTS:\n"
                              "red.shared.add.u64 [%sums], %sum;\n"
                              "red.shared.add.u64 [%sums+8], %least;\n"
                              "red.shared.add.u64 [%sums+16], %most;\n"
                              "ADD:\n"
                              "bar.sync 0;\n"
                              "setp.ne.u32 %q, %thread, 0;\n"
                              "@%q bra SPREAD;\n"
                              "ld.shared.u64 %sum, [%sums];\n"
                              "ld.shared.u64 %least, [%sums+8];\n"
                              "ld.shared.u64 %most, [%sums+16];\n"
                              "@%counting bra TOTAL;\n"
                              "mov.b64 %reals, %sum;\n"
                              "@!%float red.global.add.u64 [%out], %sum;\n"
                              "@%float red.global.add.f64 [%out], %reals;\n"
                              "red.global.max.u64 [%out+8], %least;\n"
                              "red.global.max.u64 [%out+16], %most;\n"
                              "bra SPREAD;\n"
                              "TOTAL:\n"
                              "red.global.add.u64 [%to], %sum;\n"
                              "red.global.add.u64 [%to+8], %least;\n"
                              "red.global.add.u64 [%to+16], %most;\n"
                              "SPREAD:\n"
                              "@%counting bra AGAIN;\n"
                              "setp.ge.u32 %p, %thread, 65;\n"
                              "@%p bra AGAIN;\n"
                              "mul.lo.u32 %shared, %thread, 4;\n"
                              "add.u32 %shared, %shared, %bins;\n"
                              "ld.shared.u32 %narrow, [%shared];\n"
                              "setp.eq.u32 %p, %narrow, 0;\n"
                              "@%p bra AGAIN;\n"
                              "mad.wide.u32 %at, %thread, 8, %out;\n"
                              "cvt.u64.u32 %value, %narrow;\n"
                              "red.global.add.u64 [%at+24], %value;\n"
                              "AGAIN:\n"
                              "bar.sync 0;\n"
                              "cvt.u64.u32 %wide, %field;\n"
                              "add.u32 %field, %field, 1;\n"
                              "setp.lt.u64 %p, %wide, %count;\n"
                              "@%p bra PASS;\n"
                              "END:\n"
                              "ret;\n"
                              "}\n";

void hook_load_reducer(struct pool *pool) {
    uint64_t module = 0, function = 0, area = 0;
    if (hook_settings.detail == UINT64_MAX)
        return;
    bool loaded = !hook_do.load_module(&module, code);
    if (loaded && !hook_do.get_function(&function, module, "gpt_reduce") &&
        !hook_do.alloc(&area, AREA, pool->memory, pool->stream)) {
        pool->area = area;
        __atomic_store_n(&pool->reducer, function, __ATOMIC_RELEASE);
        return;
    }
    if (loaded)
        hook_do.unload_module(module);
    hook_say("--detail", "the driver doesn't load the kernel that adds up",
             "all launches keep their details");
}

// -- Reducing --------------------------------------------------------------

static uint64_t sum_words(const struct woven_map *map) {
    if (map->copies)
        return map->capacity ? map->stride / sizeof(uint64_t) : 1;
    return SUM_COUNTS + (map->capacity ? map->field_count : 0) * SUM_FIELD;
}

static uint64_t asked_words(const struct woven_map *map) {
    return ASKED + FIELD * (map->copies || !map->capacity ? 0 : map->field_count);
}

// Return how many words the descriptions and the sums of a launch need, or 0 if its buffers are no larger
// than the sums would be.
static uint64_t words_of(const struct save *save, uint64_t *sums) {
    const struct woven *woven = save->probed->woven;
    uint64_t words = 0, bytes = 0;
    *sums = 0;
    for (size_t i = 0; i < woven->map_count; i++)
        if (woven->maps[i].reducible) {
            *sums += sum_words(&woven->maps[i]);
            words += asked_words(&woven->maps[i]);
            bytes += save->sizes[i];
        }
    return bytes > *sums * sizeof(uint64_t) ? words + *sums : 0;
}

struct area { // places are in words
    uint64_t *words;
    uint64_t address;           // on the device
    uint64_t asked, field, sum; // where the next ones are stored
    uint64_t most;              // slots of the largest buffer
};

static void ask(struct area *to, const struct woven_map *map, uint64_t address, uint64_t size) {
    uint64_t unit = hook_unit_bytes(map), per = map->capacity;
    bool counts = map->head || !map->capacity;
    size_t fields = map->capacity ? map->field_count : 0;
    per = map->copies ? unit / sizeof(uint64_t) : per ? per : 1;
    uint64_t slots = size / unit * per;
    const uint64_t asked[ASKED] = {address,
                                   to->address + to->sum * sizeof(uint64_t),
                                   slots,
                                   per,
                                   unit,
                                   map->head,
                                   map->stride,
                                   (uint64_t)counts | (map->copies ? 2 : 0),
                                   to->address + to->field * sizeof(uint64_t),
                                   fields};
    memcpy(to->words + to->asked, asked, sizeof(asked));
    for (size_t i = 0; i < fields && !map->copies; i++) {
        const struct woven_field *field = &map->fields[i];
        to->words[to->field++] = field->offset | (uint64_t)field->size << 16 | (uint64_t)field->kind << 24;
        to->words[to->field++] = field->flip;
    }
    to->asked += ASKED;
    to->sum += sum_words(map);
    to->most = slots > to->most ? slots : to->most;
}

static void ask_for(struct area *to, const struct slab *slab, struct save *save) {
    const struct woven *woven = save->probed->woven;
    uint64_t at = slab->address + save->offset;
    save->sums = to->words + to->sum;
    for (size_t i = 0; i < woven->map_count; i++) {
        if (woven->maps[i].reducible)
            ask(to, &woven->maps[i], at, save->sizes[i]);
        at += hook_rounded(save->sizes[i]);
    }
}

// Returns false if the kernel can't be launched. If the device has failed, that's stored in the slab.
static bool run(struct slab *slab, uint64_t reducer, const struct area *done, uint64_t first_sum) {
    uint64_t blocks = (done->most + THREADS * PER_THREAD - 1) / (THREADS * PER_THREAD);
    uint64_t place = done->address, sums = (done->sum - first_sum) * sizeof(uint64_t);
    void *arguments[] = {&place};
    CUresult status = hook_do.copy_to(place, done->words, done->sum * sizeof(uint64_t), slab->ours);
    if (!status &&
        hook_do.launch(reducer,
                       blocks > CHUNKS ? CHUNKS
                       : blocks        ? (unsigned)blocks
                                       : 1,
                       (unsigned)(done->asked / ASKED), 1, THREADS, 1, 1, 0, slab->ours, arguments, NULL))
        return false;
    if (!status)
        status = hook_do.copy_back(done->words + first_sum, place + first_sum * sizeof(uint64_t), sums,
                                   slab->ours);
    slab->failed = status ? status : hook_do.wait_stream(slab->ours);
    hook_progress++;
    return !slab->failed;
}

size_t hook_reduce(struct slab *slab, struct save **saves, size_t count) {
    static uint64_t *words;
    uint64_t reducer = __atomic_load_n(&slab->pool->reducer, __ATOMIC_ACQUIRE);
    if (!reducer || slab->failed || hook_settings.memusage || hook_settings.benchmark ||
        (!words && !(words = malloc(AREA))))
        return count;
    uint64_t all = 0, sums = 0, asked = 0, more;
    size_t chosen = 0;
    for (; chosen < count; chosen++) {
        struct save *save = saves[chosen];
        uint64_t needed = words_of(save, &more);
        if ((all + needed) * sizeof(uint64_t) > AREA && all)
            break;
        if (!save->id || !is_beyond(save) || !needed || needed * sizeof(uint64_t) > AREA)
            continue;
        save->reduced = true;
        all += needed, sums += more;
        for (size_t i = 0; i < save->probed->woven->map_count; i++)
            asked += save->probed->woven->maps[i].reducible ? ASKED : 0;
    }
    if (!all)
        return chosen;
    struct area area = {.words = words, .address = slab->pool->area, .field = asked, .sum = all - sums};
    memset(words + area.sum, 0, sums * sizeof(uint64_t));
    uint64_t first_sum = area.sum;
    for (size_t i = 0; i < chosen; i++)
        if (saves[i]->reduced)
            ask_for(&area, slab, saves[i]);
    hook_writer_calls = true;
    bool good = run(slab, reducer, &area, first_sum);
    hook_writer_calls = false;
    for (size_t i = 0; i < chosen && !good; i++)
        saves[i]->reduced = false;
    return chosen;
}

// -- Sums as records -------------------------------------------------------

static uint64_t value_of(uint64_t key, const struct woven_field *field) {
    if (field->kind == FIELD_FLOAT)
        return key & SIGN ? key ^ SIGN : ~key;
    return field->kind == FIELD_SIGNED ? key ^ SIGN : key;
}

// Write the bins from the first to the last that has counted anything.
static uint64_t write_field(uint64_t *to, const uint64_t *sums, bool any, const struct woven_field *field) {
    uint64_t first = 0, end = BINS;
    while (first < BINS && !sums[3 + first])
        first++;
    while (end > first && !sums[3 + end - 1])
        end--;
    to[0] = sums[0];
    to[1] = any ? value_of(~sums[1], field) : 0;
    to[2] = any ? value_of(sums[2], field) : 0;
    to[3] = end > first ? first : 0;
    to[4] = end - first;
    memcpy(to + 5, sums + 3 + first, (end - first) * sizeof(uint64_t));
    return 5 + end - first;
}

uint64_t hook_write_sums(const struct save *save, const struct woven_map *map, const uint64_t *sums) {
    static uint64_t room[SUM_COUNTS + MOST_FIELDS * (5 + BINS)];
    uint64_t words = sum_words(map), written = map->copies ? words : SUM_COUNTS;
    size_t number = (size_t)(map - save->probed->woven->maps);
    if (!map->copies)
        memcpy(room, sums, written * sizeof(uint64_t));
    for (size_t i = 0; SUM_COUNTS + i * SUM_FIELD < words && !map->copies; i++)
        written += write_field(room + written, sums + SUM_COUNTS + i * SUM_FIELD, *sums, &map->fields[i]);
    uint64_t size = written * sizeof(uint64_t);
    struct packing packed = {map->copies ? sums : room, size, NULL, 0};
    if (!hook_folder && size >= LEAST_PACKED)
        hook_pack(packed.data, size, 0, false, &packed);
    if (hook_limit_reached())
        HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size,
                   .lost = hook_str(WHY(max_disk)->code));
    else
        HOOK_WRITE(buffer, .launch = save->id, .map = map->number, .size = size,
                   .reduced = {true, save->sizes[number]}, .codec = hook_str(packed.codec),
                   .data = {packed.data, packed.size});
    return words;
}
