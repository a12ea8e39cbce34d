// What the host does between calls (gpt-hook --sample-host): `sample` records of the threads that call the
// driver, at random moments HZ times per second.
//
// How to find out where a thread is? ptrace stops it, and a thread can have only one tracer. A signal handler
// would see the whole native stack, but does harm: epoll_wait, poll, nanosleep and others fail with EINTR
// even with SA_RESTART, and some programs don't expect that. So a thread of ours looks from outside:
//
//   - the Python frames, in memory (python.c)
//   - /proc/self/task/TID/syscall: the system call and the instruction where a thread waits, or that it runs
//   - a perf event of each thread: which instruction it ran at some moment of the last period, if it ran. The
//     kernel takes these in the thread, in microseconds. Containers often forbid perf events.
//
// Callers of the native instruction aren't known.

#include <errno.h>
#include <fcntl.h>
#include <linux/perf_event.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hook/write/write.h"
#include "watch.h"

enum { MOST = 128, PAGE = 4096, RING = 2 * PAGE };
enum { SECOND = 1000000000 };

static unsigned hertz; // 0: no samples

// A thread that we sample.
struct target {
    uint32_t tid;
    bool seen;
    int waits, event; // files: where it waits, and the perf event; -1: none
    struct perf_event_mmap_page *ring;
};

static struct target targets[MOST];
static size_t target_count;

void hook_samples_setup(void) {
    const char *wanted = getenv("GPT_HOOK_SAMPLE_HOST");
    hertz = wanted ? (unsigned)strtoul(wanted, NULL, 10) : 0;
}

static void say(const char *text) {
    HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = GPT_STR("--sample-host"), .text = hook_str(text));
}

// Targets

static void open_event(struct target *target) {
    static bool warned;
    struct perf_event_attr wanted = {
        .type = PERF_TYPE_SOFTWARE,
        .size = sizeof(wanted),
        .config = PERF_COUNT_SW_TASK_CLOCK,
        .sample_period = SECOND / hertz / 2, // ns that it ran; two per period, so that each sample finds one
        .sample_type = PERF_SAMPLE_IP,
        .exclude_kernel = 1,
        .exclude_hv = 1,
    };
    target->event = (int)syscall(SYS_perf_event_open, &wanted, target->tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    void *ring = target->event < 0 ? MAP_FAILED
                                   : mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_SHARED, target->event, 0);
    target->ring = ring == MAP_FAILED ? NULL : ring;
    if (!target->ring && !warned && (warned = true))
        say("the system forbids perf events: where native code runs isn't known");
}

static struct target *open_target(uint32_t tid) {
    static bool warned;
    if (target_count == MOST) {
        if (!warned && (warned = true))
            say("more than 128 threads: the others aren't sampled");
        return NULL;
    }
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%u/syscall", tid);
    struct target *target = &targets[target_count++];
    *target = (struct target){.tid = tid, .waits = open(path, O_RDONLY | O_CLOEXEC)};
    open_event(target);
    return target;
}

static void close_target(struct target *target) {
    if (target->ring)
        munmap(target->ring, RING);
    if (target->event >= 0)
        close(target->event);
    if (target->waits >= 0)
        close(target->waits);
    *target = targets[--target_count];
}

static struct target *find_target(uint32_t tid) {
    for (size_t i = 0; i < target_count; i++)
        if (targets[i].tid == tid)
            return &targets[i];
    return open_target(tid);
}

// Samples

// Where a thread is.
struct place {
    bool gone, waiting;
    long call; // the number of the system call that it waits in; -1: for a page, for example
    uint64_t instruction;
};

// "230 0x0 0x0 ... 0x7ffe873db2b8 0x7f76ea286503": a number, arguments, the stack pointer, the instruction.
static void find_wait(const struct target *target, struct place *place) {
    char text[256], *end;
    ssize_t got = target->waits < 0 ? 0 : pread(target->waits, text, sizeof(text) - 1, 0);
    place->gone = got < 0 && errno == ESRCH;
    text[got > 0 ? got : 0] = '\0';
    place->call = strtol(text, &end, 10);
    place->waiting = end != text;
    const char *last = strrchr(text, ' ');
    if (place->waiting && last)
        place->instruction = strtoull(last + 1, NULL, 16);
}

// Take the last instruction from the ring, which has 16 bytes per entry, unless entries were lost.
static uint64_t take_running(const struct target *target) {
    struct {
        struct perf_event_header header;
        uint64_t instruction;
    } last = {0};
    if (!target->ring)
        return 0;
    const unsigned char *data = (const unsigned char *)target->ring + PAGE;
    uint64_t head = __atomic_load_n(&target->ring->data_head, __ATOMIC_ACQUIRE), at = target->ring->data_tail;
    uint64_t found = 0;
    while (at + sizeof(last.header) <= head) {
        memcpy(&last.header, data + at % PAGE, sizeof(last.header)); // entries are multiples of 8 bytes
        if (last.header.size < sizeof(last.header))
            break;
        if (last.header.type == PERF_RECORD_SAMPLE)
            memcpy(&found, data + (at + sizeof(last.header)) % PAGE, sizeof(found));
        at += last.header.size;
    }
    __atomic_store_n(&target->ring->data_tail, head, __ATOMIC_RELEASE);
    return found;
}

// Returns false if the thread is gone.
static bool sample(const struct target *target) {
    struct place place = {0};
    bool changed;
    find_wait(target, &place);
    uint64_t running = take_running(target);
    if (place.gone)
        return false;
    uint64_t at = hook_now();
    uint64_t code = hook_number_python(target->tid, &changed);
    if (!place.waiting)
        place.instruction = running;
    // A native stack has return addresses: readers look up the function of the byte before.
    uint64_t native = place.instruction ? hook_number_addresses(&(uint64_t){place.instruction + 1}, 1) : 0;
    HOOK_WRITE(sample, .thread = target->tid, .at = at, .python = {code != 0, code},
               .native = {native != 0, native},
               .syscall = {place.waiting && place.call >= 0, (uint64_t)place.call}, .changed = {changed, 1});
    return true;
}

static void sample_all(void) {
    for (size_t i = 0; i < target_count; i++)
        targets[i].seen = false;
    for (struct thread *thread = atomic_load(&hook_live->threads); thread; thread = thread->older) {
        uint32_t tid = atomic_load_explicit(&thread->caller, memory_order_relaxed);
        struct target *target = tid ? find_target(tid) : NULL;
        if (target)
            target->seen = sample(target);
    }
    for (size_t i = target_count; i-- > 0;)
        if (!targets[i].seen)
            close_target(&targets[i]);
}

// Wait for a period, a quarter longer or shorter at random, so that samples don't keep step with the program.
static void wait_period(void) {
    static uint64_t random = 0x9e3779b97f4a7c15u;
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint64_t period = SECOND / hertz, ns = period * 3 / 4 + (random >> 33) % (period / 2);
    struct timespec time = {(time_t)(ns / SECOND), (long)(ns % SECOND)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &time, NULL);
}

static void *run(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "gpt-sample");
    if (!hook_own_files(hook_keep_apart())) {
        hook_say("--sample-host", hook_describe_error(errno), "no samples are taken");
        return NULL;
    }
    bool found = false;
    for (uint64_t rounds = 0; hook_is_ours() && atomic_load(&hook_live->state) == ON; rounds++) {
        if (!found && rounds % hertz == 0) // once per second: a program may load Python later
            found = hook_find_python("--sample-host");
        if (atomic_load(&hook_recording))
            sample_all();
        wait_period();
    }
    return NULL;
}

void hook_sample_host(void) {
    static _Atomic pid_t sampled;
    pid_t pid = getpid(), before = atomic_load(&sampled);
    if (!hertz || before == pid || hook_in_vfork || !hook_this_thread() ||
        !atomic_compare_exchange_strong(&sampled, &before, pid))
        return;
    target_count = 0; // in a forked child, whose parent's files these were
    if (!hook_start_thread(run))
        hook_say("--sample-host", hook_describe_error(EAGAIN), "no samples are taken");
}
