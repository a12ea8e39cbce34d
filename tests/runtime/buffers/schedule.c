// Coroutines instead of threads. A thread waits for a predicate. If all threads wait and the device has no
// work, time advances to the earliest time limit; if there's none, it's a deadlock. To simulate a busy
// machine, a thread of the code under test may be lazy: whenever it could run, time passes for a while
// instead, except while it's in a call of the driver, which may take long anyway.

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "schedule.h"

enum { STACK = 64 << 10 };

extern uint64_t seed;

unsigned pick(unsigned below) {
#ifdef REAL_THREADS
    static __thread uint64_t state;
    state = state ? state : seed * 77 + (uint64_t)running + 2;
#else
    static uint64_t state;
    state = state ? state : seed + 1;
#endif
    state = (state ^ state >> 30) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    uint64_t value = state ^ state >> 27;
    return (unsigned)((value * 0x94d049bb133111ebu >> 33) % below);
}

bool chance(unsigned percent) { return pick(100) < percent; }

__thread int running = -1;
__thread bool never_waits;

#ifdef REAL_THREADS
#include <unistd.h>

static pthread_mutex_t driver = PTHREAD_MUTEX_INITIALIZER;
static pthread_t threads[THREADS];
static struct job {
    void (*work)(uint64_t);
    uint64_t argument;
    int number;
} jobs[THREADS];
static _Atomic int count;
static int programs; // the first threads, which main starts

void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "seed %llu: ", (unsigned long long)seed);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    _exit(1);
}
static void *begin(void *with) {
    struct job *job = with;
    running = job->number;
    job->work(job->argument);
    return NULL;
}
void start(void (*work)(uint64_t), uint64_t argument) {
    int number = count++;
    jobs[number] = (struct job){work, argument, number};
    if (running >= 0) // a thread of the code under test
        pthread_create(&threads[number], NULL, begin, &jobs[number]);
    else
        programs = count;
}
static _Atomic bool done;
static void *serve(void *with) {
    bool (*device)(void) = (bool (*)(void))(uintptr_t)with;
    while (!done) {
        begin_atomic();
        bool worked = device();
        end_atomic();
        if (!worked || chance(5))
            usleep(20);
    }
    return NULL;
}
void run_all(bool (*device)(void)) {
    pthread_t gpu;
    pthread_create(&gpu, NULL, serve, (void *)(uintptr_t)device);
    for (int i = 0; i < programs; i++)
        pthread_create(&threads[i], NULL, begin, &jobs[i]);
    for (int i = 0; i < programs; i++)
        pthread_join(threads[i], NULL);
    done = true;
    pthread_join(gpu, NULL);
}
void turn(void) {
    if (chance(3))
        usleep(1);
}
void wait_until(bool (*is_over)(const void *), const void *of) {
    for (;;) {
        begin_atomic();
        bool over = is_over(of);
        end_atomic();
        if (over)
            return;
        usleep(10);
    }
}
void begin_atomic(void) { pthread_mutex_lock(&driver); }
void end_atomic(void) { pthread_mutex_unlock(&driver); }
void set_calls(bool calls) { (void)calls; }
bool holds_lock(void) { return false; }
uint64_t ns_passed(void) { return 0; }

#else

struct thread {
    ucontext_t context; // where it begins
    jmp_buf at;         // where it continues; unlike swapcontext, this makes no system call
    bool begun;
    void (*work)(uint64_t);
    uint64_t argument, until; // ns; 0: no time limit
    bool (*is_over)(const void *);
    const void *of;
    bool there, ended, never_waits, timed_out, calls;
};
static struct thread threads[THREADS];
static jmp_buf scheduler;
static int count;
static uint64_t now;
static struct { // who has a mutex; -1: nobody
    const void *what;
    int owner;
} things[16];
static char *stacks;
extern uint64_t steps;
extern unsigned speed; // percentage of turns in which the device works although a thread could run
extern int lazy;       // index of the lazy thread among those started last; -1: none
enum { LAZY_TURNS = 40 };
static int programs; // number of threads outside of the code under test

void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "seed %llu: ", (unsigned long long)seed);
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    for (int i = 0; i < count; i++)
        if (!threads[i].ended)
            fprintf(stderr, "  thread %d: waits for %p%s\n", i, (void *)(uintptr_t)threads[i].is_over,
                    threads[i].until ? ", with a time limit" : "");
    signal(SIGABRT, SIG_DFL);
    abort();
}

static void say_seed(int number) { // an assertion failed
    (void)number;
    fail("aborted");
}

static void enter(void) {
    threads[running].work(threads[running].argument);
    threads[running].ended = true;
    _longjmp(scheduler, 1);
}

static void go_on(struct thread *thread) {
    bool begun = thread->begun;
    thread->begun = true;
    if (_setjmp(scheduler))
        return;
    if (begun)
        _longjmp(thread->at, 1);
    setcontext(&thread->context);
}

void start(void (*work)(uint64_t), uint64_t argument) {
    struct thread *thread = &threads[count];
    if (!stacks)
        stacks = aligned_alloc(4096, (size_t)THREADS * STACK);
    *thread = (struct thread){.work = work, .argument = argument, .there = true};
    getcontext(&thread->context);
    thread->context.uc_stack.ss_sp = stacks + (size_t)count * STACK;
    thread->context.uc_stack.ss_size = STACK;
    makecontext(&thread->context, enter, 0);
    count++;
}

static bool is_ready(struct thread *thread) {
    return thread->there && !thread->ended && (!thread->is_over || thread->is_over(thread->of));
}

// The threads of the code under test never end: the run is over once all other threads have ended.
extern _Atomic int programs_left;

// Return whether the lazy thread could run but doesn't.
static bool is_lazy(int thread) {
    static unsigned turns;
    if (lazy < 0 || thread != programs + lazy || threads[thread].calls)
        return false;
    return ++turns % LAZY_TURNS;
}

static struct thread *first_limit(void) {
    struct thread *first = NULL;
    for (int i = 0; i < count; i++)
        if (threads[i].there && !threads[i].ended && threads[i].until &&
            (!first || threads[i].until < first->until))
            first = &threads[i];
    return first;
}

static void time_out(struct thread *thread) {
    now = thread->until > now ? thread->until : now;
    thread->timed_out = true;
    thread->is_over = NULL;
}

void run_all(bool (*device)(void)) {
    programs = count;
    signal(SIGABRT, say_seed);
    while (programs_left) {
        int ready[THREADS + 1], found = 0;
        bool kept = false;
        for (int i = 0; i < count; i++)
            if (is_ready(&threads[i])) {
                if (is_lazy(i))
                    kept = true;
                else
                    ready[found++] = i;
            }
        struct thread *first = first_limit();
        if (kept) {
            while (device()) // it isn't slow
                continue;
            now += pick(2000) * 1000000ull;
            if (first && first->until <= now)
                time_out(first);
        }
        if (!found || chance(speed)) {
            if (device())
                continue;
        }
        if (found) {
            running = ready[pick((unsigned)found)];
            never_waits = threads[running].never_waits;
            threads[running].is_over = NULL;
            CHECK(++steps < 2000000, "it goes on for ever");
            go_on(&threads[running]);
            continue;
        }
        if (kept)
            continue;
        CHECK(first, "all threads wait");
        time_out(first);
    }
}

static void leave(void) {
    int number = running;
    threads[number].never_waits = never_waits;
    if (!_setjmp(threads[number].at))
        _longjmp(scheduler, 1);
}

static int atomic_depth;
void turn(void) {
    if (!atomic_depth && running >= 0 && chance(60))
        leave();
}
void wait_until(bool (*is_over)(const void *), const void *of) {
    while (!is_over(of)) {
        threads[running].is_over = is_over, threads[running].of = of;
        leave();
    }
}
void begin_atomic(void) { atomic_depth++; }
void end_atomic(void) { atomic_depth--; }
void set_calls(bool calls) {
    if (running >= 0)
        threads[running].calls = calls;
}
uint64_t ns_passed(void) { return now; }

static int find(const void *what) {
    int i = 0;
    while (things[i].what && things[i].what != what)
        i++;
    if (!things[i].what)
        things[i].what = what, things[i].owner = -1;
    return i;
}
bool holds_lock(void) {
    for (int i = 0; i < 16; i++)
        if (things[i].what && things[i].owner == running)
            return true;
    return false;
}
static bool is_free(const void *mutex) { return things[find(mutex)].owner == -1; }
int turn_lock(pthread_mutex_t *mutex) {
    set_calls(false);
    turn();
    CHECK(running < 0 || things[find(mutex)].owner != running, "a thread locks twice");
    if (running >= 0)
        wait_until(is_free, mutex);
    things[find(mutex)].owner = running < 0 ? -1 : running;
    return 0;
}
int turn_unlock(pthread_mutex_t *mutex) {
    set_calls(true); // most likely of the driver
    things[find(mutex)].owner = -1;
    turn();
    return 0;
}

static const void *waits_at[THREADS]; // the condition for which each thread waits
static bool is_signalled(const void *thread) { return !waits_at[(const struct thread *)thread - threads]; }

int turn_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *end) {
    struct thread *thread = &threads[running];
    CHECK(things[find(mutex)].owner == running, "it waits without the lock");
    CHECK(!end || !never_waits, "a call waits for a time");
    thread->until = end ? (uint64_t)end->tv_sec * 1000000000 + (uint64_t)end->tv_nsec : 0;
    thread->timed_out = end && thread->until <= now;
    waits_at[running] = cond;
    things[find(mutex)].owner = -1;
    while (!thread->timed_out && waits_at[running]) {
        thread->is_over = is_signalled, thread->of = thread;
        leave();
    }
    bool late = waits_at[running];
    waits_at[running] = NULL;
    thread->until = 0;
    wait_until(is_free, mutex);
    things[find(mutex)].owner = running;
    return late ? ETIMEDOUT : 0;
}
int turn_wait(pthread_cond_t *cond, pthread_mutex_t *mutex) { return turn_timedwait(cond, mutex, NULL); }
int turn_wake(pthread_cond_t *cond) { // wake all waiters, as pthread_cond_signal may
    for (int i = 0; i < count; i++)
        if (waits_at[i] == cond)
            waits_at[i] = NULL;
    return 0;
}
int turn_time(clockid_t clock, struct timespec *at) {
    (void)clock;
    *at = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    return 0;
}
#endif
