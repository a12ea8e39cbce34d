// Streams are queues of a few operations. As on an H200, a call that finds a queue full waits until the
// device has done some of them. No call may be made while a lock of the code under test is held.

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver.h"
#include "hook/probe/driver_calls.h"
#include "schedule.h"

enum { HOSTS = 64 };

uint64_t limit;
unsigned fails;
bool breaks;
_Atomic bool broke, gated;
int current[THREADS];

static struct stream streams[STREAMS];
static struct {
    uint64_t recorded, done;
    bool there;
} events[EVENTS];
static uint64_t serial, last_event;
static struct {
    char *base; // UNITS * UNIT bytes
    unsigned char used[UNITS];
    uint64_t sizes[UNITS], live;
    bool gone;
} memory[CONTEXTS + 1];
static char *host[HOSTS]; // host memory, which outlives a schedule
static unsigned hosts;

void begin_driver(void) {
    for (int i = 1; i <= CONTEXTS; i++)
        memory[i].base = mmap(NULL, UNITS * UNIT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < HOSTS; i++)
        host[i] = mmap(NULL, 16 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void call(void) {
    CHECK(!holds_lock(), "the driver is called under a lock");
    set_calls(true);
    turn();
}

struct stream *stream_of(uint64_t handle) {
    for (int i = 0; i < STREAMS; i++) {
        struct stream *stream = &streams[i];
        bool legacy = handle < 2 && stream->handle == 1, own = handle == 2 && stream->handle == 2;
        if (stream->there && (handle > 2 ? stream->handle == handle
                                         : (legacy || (own && stream->thread == running)) &&
                                               stream->context == current[running]))
            return stream;
    }
    CHECK(handle <= 2, "stream %llu is not there", (unsigned long long)handle);
    for (int i = 0; i < STREAMS; i++)
        if (!streams[i].there && !streams[i].count) {
            streams[i] = (struct stream){.handle = handle == 2 ? 2 : 1,
                                         .context = current[running],
                                         .there = true,
                                         .blocking = handle == 2,
                                         .thread = running};
            return &streams[i];
        }
    fail("too many streams");
}

uint64_t add_stream(int context, bool blocking, bool ours) {
    begin_atomic();
    uint64_t handle = 0;
    for (int i = 0; i < STREAMS && !handle; i++)
        if (!streams[i].there && !streams[i].count) { // use the lowest free handle
            for (handle = 100; handle < 200; handle++) {
                bool used = false;
                for (int k = 0; k < STREAMS; k++)
                    used |= streams[k].there && streams[k].handle == handle;
                if (!used)
                    break;
            }
            streams[i] = (struct stream){
                .handle = handle, .context = context, .there = true, .blocking = blocking, .ours = ours};
        }
    end_atomic();
    CHECK(handle, "too many streams");
    return handle;
}

static bool has_room(const void *of) { return ((const struct stream *)of)->count < QUEUE; }
static bool is_idle(const void *of) { return !((const struct stream *)of)->count; }

static void push(struct stream *stream, struct work operation) {
    operation.serial = ++serial;
    stream->queue[(stream->first + stream->count++) % QUEUE] = operation;
}

static bool legacy_is_captured(const struct stream *stream) {
    bool found = false;
    for (int i = 0; i < STREAMS; i++)
        found |= streams[i].there && streams[i].blocking && streams[i].capture &&
                 streams[i].context == stream->context;
    return found;
}

void enqueue(uint64_t handle, struct work operation) {
    call();
    begin_atomic();
    struct stream *stream = stream_of(handle);
    end_atomic();
    for (bool done = false; !done;) {
        wait_until(has_room, stream);
        begin_atomic();
        if ((done = stream->count < QUEUE)) {
            CHECK(!stream->capture && !(stream->handle == 1 && legacy_is_captured(stream)),
                  "work of kind %d in a captured stream", operation.kind);
            if (operation.kind == RECORD)
                operation.number = ++events[operation.event].recorded;
            if (operation.kind == WAIT)
                operation.number = events[operation.event].recorded;
            push(stream, operation);
        }
        end_atomic();
    }
    turn();
}

bool is_busy(uint64_t handle) {
    begin_atomic();
    bool busy = stream_of(handle)->count;
    end_atomic();
    return busy;
}

void synchronize(uint64_t handle) {
    call();
    for (int i = 0; i < STREAMS; i++) {
        begin_atomic();
        bool wanted = streams[i].there || streams[i].count;
        wanted = wanted && (handle ? &streams[i] == stream_of(handle)
                                   : streams[i].context == current[running] && !streams[i].ours);
        end_atomic();
        if (wanted)
            wait_until(is_idle, &streams[i]);
    }
    turn();
}

void drop_stream(uint64_t handle) {
    call();
    begin_atomic();
    struct stream *stream = stream_of(handle);
    stream->there = false;
    stream->capture = 0;
    end_atomic();
}

void drop_context(int context) {
    begin_atomic();
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].context == context)
            streams[i].there = false, streams[i].count = 0;
    memory[context].gone = true;
    end_atomic();
}

void add_context(int context) {
    memory[context].gone = false;
    memory[context].live = 0;
    memset(memory[context].used, 0, sizeof(memory[context].used));
    memset(memory[context].sizes, 0, sizeof(memory[context].sizes));
}

// The device

static char *place(const struct stream *stream, uint64_t address, uint64_t bytes, const char *what) {
    uint64_t first = (address - (uint64_t)memory[stream->context].base) / UNIT;
    CHECK(first < UNITS && first + (bytes + UNIT - 1) / UNIT <= UNITS, "%s: beyond the memory", what);
    for (uint64_t i = first; i < first + (bytes + UNIT - 1) / UNIT; i++)
        CHECK(memory[stream->context].used[i], "%s: memory that was freed", what);
    return (char *)address;
}

static bool can_do(const struct stream *stream, const struct work *head) {
    if (head->gate && !*head->gate) {
        gated = true;
        return false;
    }
    if (head->kind == WAIT && events[head->event].done < head->number)
        return false;
    for (int i = 0; i < STREAMS; i++) { // the legacy stream and blocking ones wait for each other
        const struct stream *other = &streams[i];
        bool both = (stream->handle == 1 && other->blocking) || (stream->blocking && other->handle == 1);
        if (both && other->context == stream->context && other->count &&
            other->queue[other->first].serial < head->serial)
            return false;
    }
    return true;
}

static void do_it(const struct stream *stream, const struct work *done) {
    uint64_t words = done->bytes / 8, *at;
    switch (done->kind) {
    case LAUNCH:
        at = (uint64_t *)place(stream, done->address, done->bytes, "a launch");
        for (uint64_t i = 0; i < words; i++) {
            CHECK(!at[i], "launch %llu has a buffer that isn't clear: %llx", (unsigned long long)done->to,
                  (unsigned long long)at[i]);
            at[i] = done->to;
        }
        break;
    case CLEAR:
        memset(place(stream, done->address, done->bytes, "clear"), 0, done->bytes);
        break;
    case MOVE:
        memcpy(place(stream, done->to, done->bytes, "move"),
               place(stream, done->address, done->bytes, "move"), done->bytes);
        memset((char *)done->address, 0, done->bytes);
        break;
    case BACK:
        memcpy((char *)done->to, place(stream, done->address, done->bytes, "read"), done->bytes);
        break;
    case RECORD:
        if (events[done->event].done < done->number)
            events[done->event].done = done->number;
        break;
    case FREE:
        memset(place(stream, done->address, done->bytes, "free"), 0xee, done->bytes);
        memset(memory[stream->context].used + (done->address - (uint64_t)memory[stream->context].base) / UNIT,
               0, done->bytes / UNIT);
        break;
    default:
        break;
    }
}

bool work_of_device(void) {
    unsigned from = pick(STREAMS);
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *stream = &streams[(from + i) % STREAMS];
        struct work *head = &stream->queue[stream->first];
        if (!stream->count || !can_do(stream, head))
            continue;
        do_it(stream, head);
        stream->first = (stream->first + 1) % QUEUE;
        stream->count--;
        return true;
    }
    return false;
}

// The functions

static CUresult get_device(CUdevice *device) { return *device = 0, call(), CUDA_SUCCESS; }
static CUresult create_pool(uint64_t *pool, const CUmemPoolProps *props) {
    return (void)props, *pool = 1, call(), CUDA_SUCCESS;
}
static CUresult set_pool(uint64_t pool, int what, void *value) {
    return (void)pool, (void)what, (void)value, call(), CUDA_SUCCESS;
}
static CUresult trim_pool(uint64_t pool, size_t size) { return (void)pool, (void)size, call(), CUDA_SUCCESS; }
static CUresult exchange_mode(int *mode) { return *mode = 0, call(), CUDA_SUCCESS; }
static CUresult create_stream(uint64_t *stream, unsigned flags) {
    call();
    return (void)flags, *stream = add_stream(current[running], false, true), CUDA_SUCCESS;
}
CUresult hook_push_context(uint64_t context) {
    call();
    CHECK(!memory[context].gone, "a call in a context that is gone");
    current[running] = current[running] * 10 + (int)context;
    return CUDA_SUCCESS;
}
void hook_pop_context(void) {
    call();
    current[running] /= 10;
}
static CUresult create_event(uint64_t *event, unsigned flags) {
    (void)flags;
    call();
    if (chance(fails))
        return CUDA_ERROR_OUT_OF_MEMORY;
    begin_atomic();
    CHECK(last_event + 1 < EVENTS, "too many events");
    events[ *event = ++last_event].there = true;
    end_atomic();
    return CUDA_SUCCESS;
}
static CUresult destroy_event(uint64_t event) {
    call();
    return events[event].there = false, CUDA_SUCCESS;
}
static CUresult record(uint64_t event, uint64_t stream) {
    CHECK(events[event].there, "an event that isn't there");
    if (breaks && chance(2)) {
        broke = true;
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    enqueue(stream, (struct work){.kind = RECORD, .event = event});
    return CUDA_SUCCESS;
}
static CUresult query(uint64_t event) {
    call();
    CHECK(events[event].there, "an event that isn't there");
    begin_atomic();
    bool done = events[event].done >= events[event].recorded;
    end_atomic();
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
static CUresult wait_event(uint64_t stream, uint64_t event, unsigned flags) {
    CHECK(events[event].there && !flags, "an event that isn't there");
    enqueue(stream, (struct work){.kind = WAIT, .event = event});
    return CUDA_SUCCESS;
}
static CUresult wait_stream(uint64_t stream) { return synchronize(stream), CUDA_SUCCESS; }
static CUresult is_capturing(uint64_t handle, int *capturing) {
    call();
    begin_atomic();
    const struct stream *stream = stream_of(handle);
    bool implicit = stream->handle == 1 && legacy_is_captured(stream);
    *capturing = stream->capture != 0;
    end_atomic();
    turn();
    return implicit ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}
static CUresult allocate(CUdeviceptr *address, size_t bytes, uint64_t pool, uint64_t stream) {
    (void)pool;
    call();
    if (chance(fails))
        return CUDA_ERROR_OUT_OF_MEMORY;
    begin_atomic();
    int context = stream_of(stream)->context;
    uint64_t first = 0, run = 0, units = bytes / UNIT;
    CHECK(bytes && bytes % UNIT == 0, "allocates %zu bytes", bytes);
    for (uint64_t i = 0; i < UNITS && run < units; i++)
        if (memory[context].used[i])
            run = 0;
        else if (!run++)
            first = i;
    CHECK(run == units, "the device has no memory");
    memset(memory[context].used + first, 1, units);
    memory[context].sizes[first] = bytes;
    memory[context].live += bytes;
    uint64_t live = memory[context].live;
    memset(memory[context].base + first * UNIT, 0xdd, bytes);
    *address = (uint64_t)memory[context].base + first * UNIT;
    end_atomic();
    CHECK(live <= limit, "%llu bytes are allocated", (unsigned long long)live);
    return CUDA_SUCCESS;
}
static CUresult release(CUdeviceptr address, uint64_t stream) {
    begin_atomic();
    int context = stream_of(stream)->context;
    uint64_t first = (address - (uint64_t)memory[context].base) / UNIT, bytes = memory[context].sizes[first];
    CHECK(first < UNITS && bytes, "frees what isn't allocated");
    memory[context].sizes[first] = 0;
    memory[context].live -= bytes;
    end_atomic();
    enqueue(stream, (struct work){.kind = FREE, .address = address, .bytes = bytes});
    return CUDA_SUCCESS;
}
static CUresult alloc_host(void **found, size_t size) {
    call();
    if (breaks && chance(20)) {
        broke = true;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    begin_atomic();
    CHECK(hosts < HOSTS && size <= 16 << 20, "too much memory of the host");
    *found = host[hosts++];
    end_atomic();
    return CUDA_SUCCESS;
}
static CUresult clear(CUdeviceptr address, unsigned char value, size_t bytes, uint64_t stream) {
    CHECK(!value, "clears to %d", value);
    enqueue(stream, (struct work){.kind = CLEAR, .address = address, .bytes = bytes});
    return CUDA_SUCCESS;
}
static CUresult copy_back(void *to, CUdeviceptr address, size_t bytes, uint64_t stream) {
    if (breaks && chance(3)) {
        broke = true;
        return CUDA_ERROR_LAUNCH_FAILED;
    }
    enqueue(stream, (struct work){.kind = BACK, .address = address, .bytes = bytes, .to = (uint64_t)to});
    return CUDA_SUCCESS;
}

struct probe_calls hook_do = {.get_device = get_device,
                              .create_pool = create_pool,
                              .set_pool = set_pool,
                              .trim_pool = trim_pool,
                              .exchange_mode = exchange_mode,
                              .create_stream = create_stream,
                              .create_event = create_event,
                              .destroy_event = destroy_event,
                              .record = record,
                              .query = query,
                              .wait_event = wait_event,
                              .wait_stream = wait_stream,
                              .is_capturing = is_capturing,
                              .alloc = allocate,
                              .free = release,
                              .alloc_host = alloc_host,
                              .clear = clear,
                              .copy_back = copy_back};

int hook_relaxed_mode(int mode) {
    hook_do.exchange_mode(&mode);
    return mode;
}
