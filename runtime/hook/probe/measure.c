// Implements --benchmark. The kernel without probes is in a separate module, which is loaded when the
// function is looked up. Its variables are copies of the program's, refreshed before each launch, so whatever
// it writes to them is lost. What it writes through pointers isn't, but the kernel with probes writes the
// same again. These operations are put into the launch's stream: flush, event, the kernel without probes,
// event, flush, event, the kernel with probes, event. A flush takes longer than the calls after it, so the
// times don't include time on the host.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

static bool load(struct probed *probed, const char *name) {
    const struct woven *woven = probed->woven;
    bool kernel = probed->is_library;
    void *image = aligned_alloc(64, (woven->plain_size | 63) + 1);
    if (!image)
        return false;
    memcpy(image, woven->plain, woven->plain_size);
    CUresult status = kernel
                          ? hook_do.load_library(&probed->plain_loaded, image, NULL, NULL, 0, NULL, NULL, 0)
                          : hook_do.load_module(&probed->plain_loaded, image);
    free(image);
    if (status)
        probed->plain_loaded = 0;
    return !status && !(kernel ? hook_do.get_kernel(&probed->plain, probed->plain_loaded, name)
                               : hook_do.get_function(&probed->plain, probed->plain_loaded, name));
}

const struct reason *hook_load_plain(struct probed *probed, const char *name) {
    return !probed->woven->plain
               ? WHY_DETAIL(benchmark,
                            "the pipeline returns no code without probes, as 'gpt-asm --original' does")
           : load(probed, name) ? NULL
                                : WHY_DETAIL(benchmark, "the driver doesn't load the version without probes");
}

static bool bind_variables(const struct probed *probed, struct bound *bound) {
    const struct woven *woven = probed->woven;
    size_t from_size, to_size;
    bound->plain_variables = calloc(woven->variable_count + 1, sizeof(*bound->plain_variables));
    for (size_t i = 0; bound->plain_variables && i < woven->variable_count; i++) {
        CUdeviceptr from, to;
        const char *name = woven->variables[i].name;
        if (!hook_find_variable(probed->is_library, probed->module, name, &from, &from_size) ||
            !hook_find_variable(probed->is_library, probed->plain_loaded, name, &to, &to_size) ||
            from_size < to_size)
            return false;
        bound->plain_variables[bound->plain_variable_count++] =
            (struct shared_variable){from, to, to_size, NULL};
    }
    return bound->plain_variables != NULL;
}

// Return twice the size of the L2 cache, because lines aren't necessarily evicted in the order in which they
// were loaded.
static uint64_t scratch_bytes(void) {
    CUdevice device;
    int size = 0;
    bool known = !hook_do.get_device(&device) &&
                 !hook_do.device_attribute(&size, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, device);
    return known && size > 0 && !hook_driver_is_simulated() ? 2 * (uint64_t)size : 256;
}

static bool make_scratch(uint64_t size) {
    struct pool *pool = hook_pool_here();
    return pool && hook_add_scratch(pool, size);
}

const struct reason *hook_bind_plain(const struct probed *probed, struct bound *bound) {
    bound->plain = probed->plain;
    if ((probed->is_library && hook_do.kernel_function(&bound->plain, probed->plain)) ||
        !bind_variables(probed, bound))
        return WHY_DETAIL(benchmark, "the version without probes lacks it, or one of its variables");
    return make_scratch(scratch_bytes())
               ? NULL
               : WHY_DETAIL(benchmark, "flushing the L2 cache needs more than --max-memory allows");
}

// The L2 cache

static bool flush(uint64_t stream) {
    const struct pool *pool = hook_pool_here();
    uint64_t scratch = pool ? __atomic_load_n(&pool->scratch, __ATOMIC_ACQUIRE) : 0;
    return scratch && !hook_do.clear(scratch, 0, pool->scratch_size, stream);
}

// Launches

enum { PLAIN_BEGINS, PLAIN_ENDS, PROBED_BEGINS, PROBED_ENDS };

static const struct reason *launch_plain(struct frame *frame, struct save *save, const struct choice *choice,
                                         uint64_t stream) {
    const struct bound *bound = choice->bound;
    uint64_t plain = choice->handle == bound->function ? bound->plain : choice->probed->plain;
    const uint64_t *events = save->events;
    CUresult status = 0;
    for (size_t i = 0; i < bound->plain_variable_count; i++) {
        const struct shared_variable *variable = &bound->plain_variables[i];
        status = status ? status : hook_do.copy(variable->to, variable->from, variable->size, stream);
    }
    if (status || !flush(stream) || hook_do.record(events[PLAIN_BEGINS], stream))
        return WHY_DETAIL(benchmark, "its stream refuses a copy, flush or event");
    if (!hook_launch_as(frame, plain, save->arguments))
        return WHY_DETAIL(benchmark, "the driver refused the launch without probes");
    if (hook_do.record(events[PLAIN_ENDS], stream) || !flush(stream) ||
        hook_do.record(events[PROBED_BEGINS], stream))
        return WHY_DETAIL(benchmark, "its stream refuses a flush or event");
    return NULL;
}

const struct reason *hook_benchmark(struct frame *frame, struct save *save, const struct choice *choice,
                                    uint64_t stream) {
    const struct reason *reason = NULL;
    int mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED); // another stream may be captured
    for (size_t i = 0; i < BENCHMARK_EVENTS && !reason; i++)
        if (hook_do.create_event(&save->events[i], 0))
            reason = WHY_DETAIL(benchmark, "the driver creates no event");
    if (!reason)
        reason = launch_plain(frame, save, choice, stream);
    if (reason)
        hook_forget_events(save);
    hook_relaxed_mode(mode);
    return reason;
}

void hook_benchmarked(const struct save *save, uint64_t stream) {
    hook_do.record(save->events[PROBED_ENDS], stream); // if that fails, there are no times
}

static bool measure(const struct save *save, int begin, int end, uint64_t *ns) {
    float ms;
    bool good = hook_streams_setup() &&
                !hook_cu.elapsed(&ms, (void *)save->events[begin], (void *)save->events[end]) && ms >= 0;
    *ns = good ? (uint64_t)((double)ms * 1e6) : 0;
    return good;
}

bool hook_read_times(const struct save *save, uint64_t *kernel, uint64_t *original) {
    return measure(save, PLAIN_BEGINS, PLAIN_ENDS, original) &&
           measure(save, PROBED_BEGINS, PROBED_ENDS, kernel);
}

void hook_forget_events(struct save *save) {
    for (size_t i = 0; i < BENCHMARK_EVENTS; i++) {
        if (save->events[i])
            hook_do.destroy_event(save->events[i]);
        save->events[i] = 0;
    }
}

// -- Memory that probes need -----------------------------------------------
//
// Sums by function. A lock is good enough, because --memusage isn't for measuring times.

enum { BUCKETS = 1 << 12 };

struct need {
    struct need *next;
    uint32_t function;
    uint64_t launches, bytes, most;
    uint64_t written_launches, written_bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct need *buckets[BUCKETS];

bool hook_needed_bytes(const struct woven *woven, const uint32_t grid[3], const uint32_t block[3],
                       uint64_t *bytes) {
    *bytes = 0;
    for (size_t i = 0; i < woven->map_count; i++) {
        struct woven_map map = woven->maps[i];
        uint64_t size;
        map.capacity = map.wanted > map.capacity ? map.wanted : map.capacity;
        if (!hook_map_bytes(&map, grid, block, &size) || (*bytes += size) >> 62)
            return false;
    }
    return true;
}

void hook_count_need(uint32_t function, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    struct need **bucket = &buckets[function % BUCKETS], *need = *bucket;
    while (need && need->function != function)
        need = need->next;
    if (!need && (need = calloc(1, sizeof(*need)))) {
        need->function = function;
        need->next = *bucket;
        *bucket = need;
    }
    if (need) {
        need->launches++;
        need->bytes += bytes;
        need->most = bytes > need->most ? bytes : need->most;
    }
    pthread_mutex_unlock(&lock);
}

void hook_write_needs(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct need *need = buckets[i]; need; need = need->next)
            if (need->launches > need->written_launches &&
                HOOK_WRITE(memusage, .function = need->function,
                           .launches = need->launches - need->written_launches,
                           .bytes = need->bytes - need->written_bytes, .most = need->most)) {
                need->written_launches = need->launches;
                need->written_bytes = need->bytes;
            }
    pthread_mutex_unlock(&lock);
}
