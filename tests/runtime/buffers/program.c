// Random programs on buffers.c, slabs.c and drain.c, built by test_buffers.py. A seed generates threads that
// launch into their own streams and a shared one, capture, replay, wait, destroy streams and contexts, run
// out of memory, and exit. Now and then a kernel waits until another thread releases it, or the machine is so
// busy that a thread of the hook doesn't run for minutes.
//
// A launch must find cleared memory. Its record is written exactly once, with the launch's own data, or it's
// counted as lost, which is only allowed where the test expects it. With --complete, no launch is left out
// unnecessarily. The driver isn't called under a lock, no more than --max-memory is allocated, memory isn't
// freed or written while it's being read, and no thread waits forever or unnecessarily.
//
//     buffers [SEED [COUNT]]

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver.h"
#include "hook/probe/probe.h"
#include "hook/write/write.h"
#include "schedule.h"

// Receives drain.c's output.
static void saw_buffer(const struct gpt_buffer *buffer);
static void saw_times(const struct gpt_times *times) { (void)times; }
#undef HOOK_WRITE
#define HOOK_WRITE(kind, ...) saw_##kind(&(struct gpt_##kind){__VA_ARGS__})
#include DRAIN

uint64_t seed, steps;
unsigned speed;
int lazy = -1;
_Atomic int programs_left;

struct totals {
    uint64_t schedules, probed, unprobed, lost, replays;
};
static struct totals *totals; // totals of all schedules

// -- What the code under test needs ----------------------------------------

struct settings hook_settings;
_Atomic bool hook_probing = true;
const char *hook_folder = "/"; // a live stream: all data is in records
struct live *hook_live;
bool hook_has_tsc;
static _Atomic uint64_t generations[CONTEXTS + 1];

uint64_t hook_monotonic(void) {
#ifdef REAL_THREADS
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
#else
    static uint64_t ticks;
    return ns_passed() + ++ticks;
#endif
}
int __wrap_gettid(void) { return running + 1; }
uint64_t hook_tsc_hz(void) { return 0; }
uint64_t hook_current_context(void) {
    CHECK(!holds_lock(), "the driver is called under a lock");
    return (uint64_t)current[running] % 10;
}
struct reference hook_object_add(const struct object_facts *facts) {
    return (struct reference){&generations[facts->handle], generations[facts->handle]};
}
bool hook_start_thread(void *(*work)(void *)) {
    start((void (*)(uint64_t))(uintptr_t)work, 0);
    return true;
}
struct held_signals hook_hold_signals(void) { return (struct held_signals){0}; }
void hook_release_signals(const struct held_signals *before) { (void)before; }
void hook_count_unprobed(uint32_t function, const struct reason *reason) { (void)function, (void)reason; }
void hook_count_sectors(struct demand *demand, uint32_t map, uint64_t sectors) {
    (void)demand, (void)map, (void)sectors;
}
bool hook_is_counted(const struct demand *demand) { return *(const _Atomic bool *)demand; }
void hook_count_need(uint32_t function, uint64_t bytes) { (void)function, (void)bytes; }
bool hook_read_times(const struct save *save, uint64_t *kernel, uint64_t *original) {
    return *kernel = *original = 0, (void)save, false;
}
void hook_forget_events(struct save *save) { (void)save; }
void hook_free_save(struct save *save) { free(save); }
bool hook_write_launch(struct save *save) { return save->id; }
int gpt_set_aside(int file) { return file; }
void hook_say(const char *where, const char *fact, const char *consequence) {
    fprintf(stderr, "%s: %s; %s\n", where, fact, consequence);
}
const char *hook_describe_error(int error) { return strerror(error); }
_Atomic bool hook_limit_is_reached;
bool hook_may_write(uint64_t size, bool needed) {
    (void)needed;
    return size > 0;
}
uint64_t hook_pack_row(uint64_t record) { return record; }
size_t hook_reduce(struct slab *slab, struct save **saves, size_t count) {
    (void)slab, (void)saves;
    return count;
}
uint64_t hook_write_sums(const struct save *save, const struct woven_map *map, const uint64_t *sums) {
    (void)save, (void)map, (void)sums;
    abort(); // nothing is reduced
}
bool hook_pack(const void *data, uint64_t size, uint64_t row, bool quick, struct packing *packed) {
    return (void)data, (void)size, (void)row, (void)quick, (void)packed, false; // a live stream doesn't pack
}
int gpt_create(int folder, const char *path, int flags, mode_t mode) {
    return (void)folder, (void)path, (void)flags, (void)mode, -1;
}

// A replay has one node here.
struct replay {
    struct save node;
};
bool hook_next_replayed(const struct save *of, size_t *at, struct save *node) {
    *node = of->replay->node;
    return !(*at)++;
}
void hook_end_replay(struct replay *replay) { free(replay); }

// -- Records ---------------------------------------------------------------

static struct {
    _Atomic bool issued;
    _Atomic unsigned written, lost;
    uint64_t bytes, stream;
    _Atomic bool may_lose; // its stream was destroyed while being captured
} records[IDS];
static _Atomic uint32_t last_id;
static _Atomic bool may_lose; // something in this schedule is meant to lose records
static _Atomic bool exits;    // the process is ending while launches are made, or a stream is captured
static _Atomic bool ending;   // the process is ending
static _Atomic uint64_t unprobed, losses, replays;

static void saw_buffer(const struct gpt_buffer *buffer) {
    CHECK(!holds_lock(), "a record is written under a lock");
    CHECK(buffer->launch && buffer->launch < IDS && buffer->size == records[buffer->launch].bytes,
          "launch %llu has %llu bytes", (unsigned long long)buffer->launch, (unsigned long long)buffer->size);
    if (buffer->lost.data) {
        CHECK(may_lose || exits || broke || records[buffer->launch].may_lose, "launch %llu is lost: %s",
              (unsigned long long)buffer->launch, buffer->lost.data);
        records[buffer->launch].lost++;
        losses++;
        return;
    }
    records[buffer->launch].written += buffer->at.value + buffer->data.size == buffer->size;
    for (uint64_t i = 0; i < buffer->data.size / 8; i++) {
        uint64_t word;
        memcpy(&word, buffer->data.data + 8 * i, 8);
        CHECK(word == buffer->launch, "launch %llu: %llx was read", (unsigned long long)buffer->launch,
              (unsigned long long)word);
    }
}

static uint32_t new_record(uint64_t stream, uint64_t bytes) {
    begin_atomic();
    uint32_t id = ++last_id;
    CHECK(id < IDS, "too many launches");
    records[id].stream = stream;
    records[id].bytes = bytes;
    end_atomic();
    return id;
}

static struct woven woven = {.map_count = 1};
static struct woven_map map = {.capacity = 1, .stride = 56, .number = 1};
static struct probed probed = {.woven = &woven};

static struct save new_save(uint32_t id, uint64_t offset, uint64_t bytes) {
    return (struct save){
        .id = id, .probed = &probed, .offset = offset, .bytes = bytes, .sizes = &records[id].bytes};
}

// -- A program -------------------------------------------------------------

enum { PROGRAMS = 9, OWN = 2 };

static struct program {
    uint64_t streams[OWN]; // 0: it was destroyed
    int capture;           // the capture that it has begun in streams[0]; 0: none
    bool joined;           // streams[1] takes part
    bool no_context;       // its context no longer exists
    struct graph {
        struct slab *slab;
        uint64_t bytes, stream;
        unsigned ended; // streams, when it ran
        bool runs;
    } graph;
    _Atomic(bool *) gate; // the gate that it has to open
    bool ended;
    int context;
} programs[PROGRAMS];
static uint64_t shared;
static _Atomic unsigned streams_ended;
static bool gates[64];
static _Atomic bool gate_is_open = true;
static unsigned gate_count;
static bool is_over; // no thread closes another gate
static int last_capture;
static bool uses_captures, uses_gates, uses_contexts, within_driver;
static int count; // number of programs

static uint64_t some_bytes(void) {
    uint64_t most = limit / 4 / UNIT;
    return UNIT * (1 + pick((unsigned)(chance(90) ? most / 4 + 1 : chance(80) ? most : 6 * most)));
}

static bool is_captured(uint64_t stream) {
    int capturing = 0;
    return hook_do.is_capturing(stream, &capturing) || capturing;
}

// One gate at a time. Until it's opened, the thread that opens it only waits for its own streams.
static const bool *new_gate(int number) {
    const bool *made = NULL;
    begin_atomic();
    if (uses_gates && !is_over && gate_is_open && gate_count < 64 && chance(15)) {
        struct program *other = &programs[(number + 1 + (int)pick((unsigned)count - 1)) % count];
        if (!other->capture && !other->ended) {
            gate_is_open = false;
            made = other->gate = &gates[gate_count++];
        }
    }
    end_atomic();
    return made;
}

static struct claim claim_of(const struct program *program, uint64_t stream, uint64_t bytes) {
    return (struct claim){.context = (uint64_t)program->context,
                          .stream = stream,
                          .thread = (uint32_t)running + 1,
                          .dependent = chance(20),
                          .bytes = bytes};
}

// With --complete, a launch may still get no buffers because of something that the program or the driver
// does. Graphs keep theirs, and a launch that depends on its predecessor allows no event in between.
// `holding` counts graphs that are getting buffers, `holds` how often graphs got them or gave them back.
static _Atomic unsigned holding, holds;

static void check_left_out(const struct claim *claim, const struct reason *reason, unsigned holds_before) {
    const struct pool *pool = hook_first_pool();
    uint64_t held = 0, size = (claim->bytes + limit / 4 - 1) / (limit / 4) * (limit / 4);
    CHECK(reason, "a claim fails without a reason");
    CHECK((claim->bytes > limit) == (reason == WHY(buffers_over_limit)) || reason == WHY(ending),
          "a launch of %llu bytes was left out: %s", (unsigned long long)claim->bytes, reason->code);
    pthread_mutex_lock(&hook_pools_lock);
    for (; pool; pool = pool->next)
        held = pool->held > held ? pool->held : held;
    pthread_mutex_unlock(&hook_pools_lock);
    bool allowed = holding || holds != holds_before || !hook_settings.complete || uses_captures || fails ||
                   breaks || gated || claim->dependent;
    CHECK(allowed || ending || size + held > limit, "a launch of %llu bytes was left out: %s",
          (unsigned long long)claim->bytes, reason->code);
}

static void launch(struct program *program, int number, uint64_t stream) {
    uint64_t bytes = some_bytes(), offset;
    const struct reason *reason = NULL;
    if (is_captured(stream))
        return;
    struct claim claim = claim_of(program, stream, bytes);
    never_waits = !hook_settings.complete;
    if (chance(10)) {
        _Atomic bool counted = false;
        never_waits = false;
        hook_wait_for_count(&claim, (struct demand *)&counted);
        never_waits = !hook_settings.complete;
    }
    unsigned before = holds;
    struct slab *slab = hook_claim(&claim, &offset, &reason);
    never_waits = false;
    if (!slab) {
        check_left_out(&claim, reason, before);
        unprobed++;
        return;
    }
    if (chance(5)) { // the driver refuses it
        hook_issue(slab, NULL);
        return;
    }
    uint32_t id = new_record(stream, bytes);
    const bool *closed = program->gate || stream == shared ? NULL : new_gate(number);
    enqueue(stream, (struct work){.kind = LAUNCH,
                                  .address = hook_slab_address(slab) + offset,
                                  .bytes = bytes,
                                  .to = id,
                                  .gate = closed});
    struct save *save = malloc(sizeof(*save));
    *save = new_save(id, offset, bytes);
    records[id].issued = true;
    never_waits = true;
    hook_issue(slab, save);
    never_waits = false;
}

static void make_graph(struct program *program) {
    const struct reason *reason = NULL;
    uint64_t bytes = some_bytes();
    bool ready = program->graph.slab != NULL;
    if (ready) { // destroy it, which the program may do while it runs
        holds++;
        hook_let_go(program->graph.slab);
        program->graph = (struct graph){0};
        return;
    }
    never_waits = !hook_settings.complete;
    holding++;
    holds++;
    struct slab *slab = hook_hold(bytes, 0, &reason);
    holding--;
    never_waits = false;
    CHECK(slab || reason, "a graph has no buffers without a reason");
    CHECK(slab || reason != WHY(device_buffers), "the context has a pool");
    program->graph = (struct graph){.slab = slab, .bytes = bytes};
}

static void replay(struct program *program, uint64_t stream) {
    struct graph *graph = &program->graph;
    struct slab *held = graph->slab, *slab;
    const struct reason *reason = NULL;
    uint64_t offset;
    if (!held || is_captured(stream))
        return;
    if (!held->known_ready && !hook_do.query(held->cleared))
        held->known_ready = true;
    if (!held->known_ready)
        hook_do.wait_event(stream, held->cleared, 0);
    if (graph->runs && (graph->stream != stream || graph->ended != streams_ended))
        hook_do.wait_event(stream, held->event, 0);
    uint32_t id = new_record(stream, graph->bytes);
    enqueue(stream, (struct work){.kind = LAUNCH, .address = held->address, .bytes = graph->bytes, .to = id});
    graph->runs = true;
    graph->stream = stream;
    graph->ended = streams_ended;
    struct claim claim = claim_of(program, stream, graph->bytes);
    claim.copied = true, claim.dependent = false;
    never_waits = !hook_settings.complete;
    slab = hook_claim(&claim, &offset, &reason);
    never_waits = false;
    if (slab)
        enqueue(stream, (struct work){.kind = MOVE,
                                      .address = held->address,
                                      .bytes = graph->bytes,
                                      .to = hook_slab_address(slab) + offset});
    else
        hook_do.clear(held->address, 0, graph->bytes, stream);
    enqueue(stream, (struct work){.kind = RECORD, .event = held->event});
    if (!slab)
        return;
    struct save *save = calloc(1, sizeof(*save));
    save->replay = malloc(sizeof(*save->replay));
    save->replay->node = new_save(id, offset, graph->bytes);
    records[id].issued = true;
    never_waits = true;
    hook_make_next(slab);
    hook_issue(slab, save);
    never_waits = false;
    replays++;
}

static void wait_for(uint64_t stream, bool knows) {
    struct waited waited = {
        .since = hook_now(), .stream = stream, .all = !stream, .thread = (uint32_t)running + 1};
    if (stream && is_captured(stream))
        return;
    synchronize(stream);
    if (!knows) // it was an event
        waited.all = false, waited.stream = UINT64_MAX;
    never_waits = true;
    hook_drain_waited(&waited);
    never_waits = false;
}

static void set_capture(uint64_t stream, int capture) {
    begin_atomic();
    stream_of(stream)->capture = capture;
    end_atomic();
}

static void capture(struct program *program) {
    if (program->capture) {
        set_capture(program->streams[0], 0);
        if (program->joined)
            set_capture(program->streams[1], 0);
        begin_atomic();
        program->capture = program->joined = 0;
        end_atomic();
        return;
    }
    if (program->gate || !program->streams[0])
        return;
    never_waits = true;
    hook_drain_stream(program->streams[0], (uint32_t)running + 1, false);
    hook_hold_drains(program->streams[0]);
    turn();
    begin_atomic();
    program->capture = ++last_capture;
    end_atomic();
    set_capture(program->streams[0], program->capture);
    turn();
    hook_let_drain();
    if (program->streams[1] && chance(50)) {
        hook_hold_drains(program->streams[1]);
        turn();
        set_capture(program->streams[1], program->capture);
        begin_atomic();
        program->joined = true;
        end_atomic();
        turn();
        hook_let_drain();
    }
    never_waits = false;
}

static void end_stream(struct program *program) {
    int which = uses_captures && chance(30) ? 0 : 1;
    uint64_t stream = program->streams[which];
    bool captured = which ? program->joined : program->capture;
    if (stream) {
        begin_atomic();
        for (uint32_t id = 1; captured && id <= last_id; id++)
            records[id].may_lose |= records[id].stream == stream; // records[id].may_lose from before
        end_atomic();
        never_waits = true;
        hook_drain_stream(stream, (uint32_t)running + 1, true);
        never_waits = false;
        drop_stream(stream);
        streams_ended++;
        bool ends = !which && program->capture; // the capture ends with the stream that began it
        if (ends && program->joined)
            set_capture(program->streams[1], 0);
        begin_atomic();
        program->joined = program->joined && !which && !ends;
        program->capture = ends ? 0 : program->capture;
        end_atomic();
        program->streams[which] = 0;
    } else
        program->streams[which] = add_stream(program->context, chance(50), false);
}

static void end_context(struct program *program) {
    if (program->capture)
        capture(program);
    if (program->graph.slab)
        make_graph(program);
    hook_drain_all(CONTEXT_ENDS, (uint64_t)program->context);
    if (hook_give_slabs_back())
        turn();
    synchronize(0);
    generations[program->context]++;
    drop_context(program->context);
    current[running] = 0;
    program->no_context = true;
}

// Perhaps where the old one was.
static void begin_context(struct program *program) {
    begin_atomic();
    add_context(program->context);
    generations[program->context]++;
    end_atomic();
    program->no_context = false;
    current[running] = program->context;
    for (int i = 0; i < OWN; i++)
        program->streams[i] = add_stream(program->context, chance(50), false);
    if (!hook_make_pool((uint64_t)program->context))
        fail("no pool");
}

static void open_gate(struct program *program) {
    begin_atomic();
    *program->gate = gate_is_open = true;
    program->gate = NULL;
    end_atomic();
}

static void act(struct program *program, int number) {
    bool opens = program->gate != NULL, others = !opens && gate_is_open;
    uint64_t own = program->streams[pick(OWN)],
             stream = chance(20) && !opens && program->context == 1 ? shared : own;
    if (chance(15))
        stream = chance(20) && !opens ? 0 : 2;
    if (stream == 0 && (uses_captures || uses_gates)) // which all blocking streams wait for
        stream = 2;
    if (!own && stream == own)
        return;
    switch (pick(12)) {
    case 0:
        wait_for(own ? own : 2, chance(50));
        break;
    case 1:
        if (others && !uses_captures && !uses_gates && chance(50))
            wait_for(0, true);
        break;
    case 2:
        if (uses_captures)
            capture(program);
        break;
    case 3:
        if (!opens && chance(30))
            end_stream(program);
        break;
    case 4:
        if (!program->capture)
            make_graph(program);
        break;
    case 5:
    case 6:
        if (!opens || own == stream)
            replay(program, own ? own : 2);
        break;
    case 7:
        if (chance(30)) {
            if (uses_gates)
                may_lose = true;
            hook_drain_all(MEMORY_NEEDED, (uint64_t)program->context);
            hook_give_slabs_back();
        }
        break;
    default:
        launch(program, number, stream);
    }
    if (program->gate && chance(15))
        open_gate(program);
}

static void run_program(uint64_t number) {
    struct program *program = &programs[number];
    current[running] = program->context;
    unsigned actions = 5 + pick(40);
    if (!hook_begin_writing() || !hook_begin_marking() || !hook_make_pool((uint64_t)program->context))
        fail("no pool");
    for (unsigned i = 0; i < actions; i++) {
        act(program, (int)number);
        if (program->context > 1 && chance(5)) {
            end_context(program);
            begin_context(program);
        }
    }
    begin_atomic();
    bool opens = program->gate != NULL;
    program->ended = true;
    end_atomic();
    if (opens)
        open_gate(program);
    if (program->capture && chance(50))
        capture(program);
    if (program->context > 1)
        end_context(program);
    begin_atomic();
    programs_left--;
    end_atomic();
}

static bool are_others_done(const void *unused) { return (void)unused, programs_left <= 1; }

// The thread that ends the process, sometimes while the others continue.
static void exit_process(uint64_t unused) {
    (void)unused;
    bool early = chance(30);
    current[running] = 1;
    if (early)
        for (unsigned i = pick(200); i--;)
            turn();
    else
        wait_until(are_others_done, NULL);
    begin_atomic();
    exits = early;
    ending = true;
    for (int i = 0; i < count; i++)
        exits |= programs[i].capture || programs[i].joined;
    end_atomic();
    if (!within_driver)
        hook_drain_all(PROCESS_ENDS, 0);
    exits |= within_driver;
    hook_abandon_pending(within_driver);
    begin_atomic(); // at this point the process would have ended
    is_over = true;
    for (unsigned i = 0; i < gate_count; i++)
        gates[i] = true;
    end_atomic();
    wait_until(are_others_done, NULL);
    begin_atomic();
    programs_left--;
    end_atomic();
}

// If the driver doesn't answer the writer thread, the process ends anyway.
static bool is_copying(void) {
    unsigned found = 0;
    for (struct pool *pool = hook_first_pool(); pool; pool = pool->next)
        found += pool->count[SLAB_COPYING];
    return found;
}

static void run_schedule(void) {
    woven.maps = &map;
    hook_settings = (struct settings){.memory = limit = (256ull << chance(50)) << 10, .complete = chance(30)};
    fails = chance(20) ? 20 : 0;
    breaks = chance(10);
    speed = chance(50) ? 30 : 1 + pick(20);
    uses_captures = chance(40);
    uses_gates = chance(40);
#ifdef REAL_THREADS // real threads would wait for a minute
    uses_gates = false;
#endif
    uses_contexts = chance(30) && !uses_gates;
    within_driver = chance(10);
    if (chance(30)) // the marking or the writing thread, if they start before other threads
        lazy = (int)pick(3);
    count = 2 + (int)pick(chance(70) ? 3 : PROGRAMS - 1);
    programs_left = count + 1;
    shared = add_stream(1, true, false);
    for (int i = 0; i < count; i++) {
        programs[i].context = uses_contexts && i && i >= count - 2 ? i - count + 4 : 1;
        for (int k = 0; k < OWN; k++)
            programs[i].streams[k] = add_stream(programs[i].context, chance(50), false);
    }
    for (int i = count; i < PROGRAMS; i++)
        programs[i].ended = true;
    for (int i = 0; i < count; i++)
        start(run_program, (uint64_t)i);
    start(exit_process, 0);
    run_all(work_of_device);
    for (uint32_t id = 1; id <= last_id; id++)
        CHECK(records[id].issued == records[id].written + records[id].lost || (exits && is_copying()),
              "launch %u: issued %d, written %u, lost %u", id, records[id].issued, records[id].written,
              records[id].lost);
    CHECK(gated || hook_settings.complete || lazy >= 0 || ns_passed() < 2000000000, "%g s passed",
          (double)ns_passed() / 1e9);
    totals->schedules++;
    totals->probed += last_id;
    totals->unprobed += unprobed;
    totals->lost += losses;
    totals->replays += replays;
}

extern char __data_start, _end; // the range of all variables; each schedule begins with their current values

int main(int argc, char **argv) {
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1,
             count = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    totals = mmap(NULL, sizeof(*totals), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    begin_driver();
#ifdef REAL_THREADS
    (void)count;
    seed = first;
    run_schedule();
    _exit(0); // the threads of the hook are still running
#else
    size_t size = (size_t)(&_end - &__data_start);
    char *before = malloc(size);
    memcpy(before, &__data_start, size);
    for (uint64_t i = 0; i < count; i++) {
        memcpy(&__data_start, before, size);
        seed = first + i;
        running = -1;
        never_waits = false;
        run_schedule();
    }
    printf("%llu schedules: %llu launches, %llu without probes, %llu lost, %llu replays\n",
           (unsigned long long)totals->schedules, (unsigned long long)totals->probed,
           (unsigned long long)totals->unprobed, (unsigned long long)totals->lost,
           (unsigned long long)totals->replays);
    return 0;
#endif
}
