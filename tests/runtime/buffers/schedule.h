// Threads that are interleaved by a random number, so that a seed determines the run: a schedule. With
// REAL_THREADS, they're system threads, for a sanitizer.

#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

enum { THREADS = 16 };

void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
#define CHECK(what, ...)                                                                                     \
    do {                                                                                                     \
        if (!(what))                                                                                         \
            fail(__VA_ARGS__);                                                                               \
    } while (0)

unsigned pick(unsigned below); // random
bool chance(unsigned percent);

void start(void (*work)(uint64_t), uint64_t argument);
void run_all(bool (*device)(void)); // until no thread is left; `device` does one piece of work, if it can
void turn(void);                    // perhaps of another thread now
void wait_until(bool (*is_over)(const void *), const void *of);
void begin_atomic(void), end_atomic(void); // no other thread runs in between
bool holds_lock(void);                     // a lock of the code under test
void set_calls(bool calls);                // the driver, until it locks something
uint64_t ns_passed(void);
extern __thread int running;      // the number of the thread
extern __thread bool never_waits; // the call that it makes may not wait for a time

#ifndef REAL_THREADS
int turn_lock(pthread_mutex_t *mutex), turn_unlock(pthread_mutex_t *mutex);
int turn_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int turn_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *end);
int turn_wake(pthread_cond_t *cond);
int turn_time(clockid_t clock, struct timespec *now);

#ifdef UNDER_TEST // by -include
#define pthread_mutex_lock turn_lock
#define pthread_mutex_unlock turn_unlock
#define pthread_cond_wait turn_wait
#define pthread_cond_timedwait turn_timedwait
#define pthread_cond_signal turn_wake
#define pthread_cond_broadcast turn_wake
#define clock_gettime turn_time
#endif
#endif

#ifdef UNDER_TEST // another thread may come between a look and the action that follows, and right after that
#include <stdatomic.h>
#undef atomic_compare_exchange_weak
#define atomic_compare_exchange_weak(at, before, after)                                                      \
    ({                                                                                                       \
        turn();                                                                                              \
        bool done_ = atomic_compare_exchange_strong(at, before, after);                                      \
        turn();                                                                                              \
        done_;                                                                                               \
    })
#define BETWEEN_TURNS(action)                                                                                \
    ({                                                                                                       \
        turn();                                                                                              \
        __auto_type before_ = action;                                                                        \
        turn();                                                                                              \
        before_;                                                                                             \
    })
#undef atomic_exchange
#define atomic_exchange(at, value) BETWEEN_TURNS(atomic_exchange_explicit(at, value, memory_order_seq_cst))
#undef atomic_fetch_sub
#define atomic_fetch_sub(at, value) BETWEEN_TURNS(atomic_fetch_sub_explicit(at, value, memory_order_seq_cst))
#endif

#endif
