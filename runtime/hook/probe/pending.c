// The list of what was asked for and is not loaded yet. A thread that is at an entry marks it busy; nobody
// else touches it then, so no lock is held while the cache, the broker or the driver is asked. A thread that
// waits holds nothing at all: a signal handler may take it away. It looks for its kernel anew each time, and
// whichever thread finds the answer first loads it.
//
// What comes late is loaded in the program's next look-up, load or wait for the GPU: never at a launch, and
// never on a thread of ours. No more than MOST_ASKED questions are under way at once, for each takes a
// descriptor, of which a program may have few; the others are asked as answers come.

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

enum { MOST_ASKED = 64, SHARE = 32 }; // questions; of this many descriptors one is for them
enum { SLICE = 100, STEP = 2 };       // ms: to wait for an answer, and for another thread

struct pending {
    struct pending *next;
    struct looked_up function;
    struct gpt_call call;
    struct gpt_bytes kept; // the answer that the cache had
    bool busy, asked;
    uint64_t pass; // of hook_finish_lookups, in which it was looked at last
    char key[65];
    char name[];
};

static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *all;
static _Atomic unsigned count; // of all
static unsigned asked_count;
static _Atomic uint64_t spent, waited_until; // ms of this burst; the clock, up to which they are counted

void hook_end_burst(void) {
    if (atomic_load_explicit(&spent, memory_order_relaxed))
        atomic_store_explicit(&spent, 0, memory_order_relaxed);
}

// Adds the time from `start` on, which threads that wait together spend once.
static void spend(uint64_t start) {
    uint64_t now = gpt_now();
    pthread_mutex_lock(&pending_lock);
    uint64_t from = atomic_load(&waited_until);
    from = from > start ? from : start;
    if (now > from) {
        atomic_fetch_add(&spent, now - from);
        atomic_store(&waited_until, now);
    }
    pthread_mutex_unlock(&pending_lock);
}

// Entries

// Whether somebody still wants it.
static bool is_wanted(const struct looked_up *function) {
    return hook_is_alive(function->reference) && function->order == hook_order()->number;
}

static struct pending *find(uint64_t handle, unsigned registers) {
    struct pending *pending = all;
    while (pending && (pending->function.handle != handle || pending->function.registers != registers ||
                       !is_wanted(&pending->function)))
        pending = pending->next;
    return pending;
}

// The thread is done with an entry, which goes if it is `finished`.
static void release(struct pending *pending, bool finished) {
    pthread_mutex_lock(&pending_lock);
    pending->busy = false;
    struct pending **at = &all;
    while (*at != pending)
        at = &(*at)->next;
    if (finished) {
        *at = pending->next;
        count--;
        asked_count -= pending->asked;
    }
    pthread_mutex_unlock(&pending_lock);
    if (finished)
        free(pending);
}

static bool is_here(const struct pending *pending) {
    return !pending->function.context || pending->function.context == hook_current_context();
}

// Asks, if there is room for one more question. False if that fails: it is refused.
static bool ask(struct pending *pending) {
    struct rlimit files;
    rlim_t most = getrlimit(RLIMIT_NOFILE, &files) ? 0 : files.rlim_cur / SHARE;
    pthread_mutex_lock(&pending_lock);
    bool room = asked_count <= most && asked_count < MOST_ASKED;
    asked_count += room;
    pending->asked = room;
    pthread_mutex_unlock(&pending_lock);
    const char *fault = room ? hook_send_question(&pending->function, pending->name, &pending->call) : NULL;
    if (fault)
        hook_refuse(&pending->function, fault);
    return !fault;
}

// Takes the answer, if it has come: true if the entry is finished.
static bool take_alive(struct pending *pending) {
    struct gpt_bytes answer = {0};
    struct gpt_reply reply;
    if (pending->kept.data) {
        hook_load_probed(&pending->function, pending->name, &pending->kept);
        return true;
    }
    if (!pending->asked && !ask(pending))
        return true;
    enum gpt_call_state state = pending->asked ? gpt_end(&pending->call, &answer, &reply) : GPT_CALL_WAITS;
    if (state == GPT_CALL_WAITS)
        return false;
    if (state == GPT_CALL_DONE) {
        if (*pending->key && hook_is_lasting(&answer))
            gpt_keep("probed", pending->key, &answer);
        hook_load_probed(&pending->function, pending->name, &answer);
    } else {
        char fault[sizeof("the pipeline failed: ") + sizeof(reply.fault)];
        snprintf(fault, sizeof(fault), "%s%s",
                 reply.status == GPT_REFUSED ? "" : "the pipeline failed: ", reply.fault);
        const char *kept = hook_keep_text(fault);
        hook_refuse(&pending->function, kept ? kept : "the pipeline failed");
    }
    return true;
}

// The same if somebody still wants it: it may be another thread's, which unloads it.
static bool take(struct pending *pending) {
    struct reference held = hook_object_hold(pending->function.reference);
    bool alive = held.current && is_wanted(&pending->function);
    bool finished = !alive || take_alive(pending);
    hook_object_let_go(held);
    if (!alive && pending->asked)
        gpt_cancel(&pending->call);
    if (!alive)
        gpt_empty(&pending->kept);
    return finished;
}

// What look-ups do

static void ask_for(const struct looked_up *function, const char *name, bool loads) {
    struct pending *pending = calloc(1, sizeof(*pending) + strlen(name) + 1);
    if (!pending)
        return;
    pending->function = *function;
    pending->busy = true;
    strcpy(pending->name, name);
    pthread_mutex_lock(&pending_lock);
    bool first = !find(function->handle, function->registers) &&
                 (function->registers || !hook_find_probed(function->handle));
    if (first) {
        pending->next = all;
        all = pending;
        count++;
    }
    pthread_mutex_unlock(&pending_lock);
    if (!first) {
        free(pending);
        return;
    }
    const char *fault = hook_name_result(function, name, pending->key);
    bool kept = !fault && *pending->key && gpt_get_kept("probed", pending->key, &pending->kept);
    if (fault)
        hook_refuse(function, fault);
    release(pending, fault || (loads ? take(pending) : !kept && !ask(pending)));
}

void hook_ask_for(const struct looked_up *function, const char *name) { ask_for(function, name, true); }
void hook_ask_later(const struct looked_up *function, const char *name) { ask_for(function, name, false); }

// Looks after one entry. False: there is none any more. Sets the socket that its answer comes from, -1 if it
// is another thread's or another context's to take it.
static bool look_after(uint64_t handle, int *socket) {
    *socket = -1;
    pthread_mutex_lock(&pending_lock);
    struct pending *pending = find(handle, 0);
    bool there = pending != NULL, mine = there && !pending->busy && is_here(pending);
    if (mine)
        pending->busy = true;
    pthread_mutex_unlock(&pending_lock);
    if (!mine)
        return there;
    bool finished = take(pending);
    *socket = !finished && pending->asked ? pending->call.socket : -1;
    release(pending, finished);
    return !finished;
}

void hook_await(uint64_t handle) {
    for (int socket; look_after(handle, &socket);) {
        uint64_t used = atomic_load(&spent), start = gpt_now();
        if (used >= hook_settings.wait)
            return;
        if (socket < 0)
            hook_finish_lookups(); // whose answers make room for its question
        uint64_t left = hook_settings.wait - used, most = socket < 0 ? STEP : SLICE;
        struct pollfd file = {socket, POLLIN, 0};
        hook_wait_openly(socket < 0 ? NULL : &file, left < most ? left : most);
        spend(start);
    }
}

void hook_finish_lookups(void) {
    static _Atomic uint64_t passes;
    hook_unload_replaced();
    hook_bind_missed();
    hook_ask_known();
    if (!atomic_load_explicit(&count, memory_order_acquire))
        return;
    for (uint64_t pass = atomic_fetch_add(&passes, 1) + 1;;) {
        pthread_mutex_lock(&pending_lock);
        struct pending *pending = all;
        while (pending && (pending->busy || pending->pass >= pass ||
                           (!is_here(pending) && is_wanted(&pending->function))))
            pending = pending->next;
        if (pending) {
            pending->busy = true;
            pending->pass = pass;
        }
        pthread_mutex_unlock(&pending_lock);
        if (!pending)
            break;
        release(pending, take(pending));
    }
}
