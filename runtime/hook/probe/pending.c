// The list of what was asked for and is not loaded yet. A thread that is at an entry marks it busy; nobody
// else touches it then, so no lock is held while the cache, the broker or the driver is asked. A thread that
// waits holds nothing at all: a signal handler may take it away. It looks for its kernel anew each time, and
// whichever thread finds the answer first loads it.
//
// What comes late is loaded in the program's next look-up, load or wait for the GPU: never at a launch, and
// never on a thread of ours. No more than MOST_ASKED questions are under way at once, for each takes a
// descriptor; the others are asked as answers come.

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/contexts.h"
#include "hook/write/calm.h"
#include "lookup.h"
#include "pending.h"
#include "question.h"
#include "settings.h"

enum { MOST_ASKED = 64, SLICE = 100, STEP = 2 }; // ms: to wait for an answer, and for another thread

struct pending {
    struct pending *next;
    struct looked_up function;
    struct gpt_call call;
    bool busy, asked;
    uint64_t pass; // of hook_finish_lookups, in which it was looked at last
    char key[65];
    char name[];
};

struct late { // the function of a kernel that is pending
    struct late *next;
    uint64_t function, kernel, context;
    struct reference reference;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *all;
static struct late *all_late;
static unsigned asked_count;
static _Atomic uint64_t spent, waited_until; // ms of this burst; the clock, up to which they are counted

void hook_end_burst(void) {
    if (atomic_load_explicit(&spent, memory_order_relaxed))
        atomic_store_explicit(&spent, 0, memory_order_relaxed);
}

// Adds the time from `start` on, which threads that wait together spend once.
static void spend(uint64_t start) {
    uint64_t now = gpt_now();
    pthread_mutex_lock(&lock);
    uint64_t from = atomic_load(&waited_until);
    from = from > start ? from : start;
    if (now > from) {
        atomic_fetch_add(&spent, now - from);
        atomic_store(&waited_until, now);
    }
    pthread_mutex_unlock(&lock);
}

// Entries

static struct pending *find(uint64_t handle) {
    struct pending *pending = all;
    while (pending && (pending->function.handle != handle || !hook_is_alive(pending->function.reference)))
        pending = pending->next;
    return pending;
}

bool hook_is_pending(uint64_t handle) {
    pthread_mutex_lock(&lock);
    bool found = find(handle) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

// The thread is done with an entry, which goes if it is `finished`.
static void release(struct pending *pending, bool finished) {
    pthread_mutex_lock(&lock);
    pending->busy = false;
    struct pending **at = &all;
    while (*at != pending)
        at = &(*at)->next;
    if (finished) {
        *at = pending->next;
        asked_count -= pending->asked;
    }
    pthread_mutex_unlock(&lock);
    if (finished)
        free(pending);
}

static bool is_here(const struct pending *pending) {
    return !pending->function.context || pending->function.context == hook_current_context();
}

// Asks, if there is room for one more question. False if that fails: it is refused.
static bool ask(struct pending *pending) {
    pthread_mutex_lock(&lock);
    bool room = asked_count < MOST_ASKED;
    asked_count += room;
    pending->asked = room;
    pthread_mutex_unlock(&lock);
    const char *fault =
        room ? hook_send_question(pending->function.handle, pending->name, &pending->call) : NULL;
    if (fault)
        hook_refuse(&pending->function, fault);
    return !fault;
}

// Takes the answer, if it has come: true if the entry is finished.
static bool take(struct pending *pending) {
    struct gpt_bytes answer = {0};
    struct gpt_reply reply;
    bool alive = hook_is_alive(pending->function.reference);
    if (!alive && pending->asked)
        gpt_cancel(&pending->call);
    if (!alive || (!pending->asked && !ask(pending)))
        return true;
    enum gpt_call_state state = pending->asked ? gpt_end(&pending->call, &answer, &reply) : GPT_CALL_WAITS;
    if (state == GPT_CALL_WAITS)
        return false;
    if (state == GPT_CALL_DONE) {
        if (*pending->key)
            gpt_keep("probed", pending->key, &answer);
        hook_load_probed(&pending->function, pending->name, &answer);
    } else {
        char *fault;
        bool told = asprintf(&fault, "the pipeline failed: %s", reply.fault) > 0;
        hook_refuse(&pending->function, told ? fault : "the pipeline failed");
    }
    return true;
}

// Functions of kernels

static void enter(uint64_t function, struct reference reference, const struct probed *kernel) {
    struct probed *probed = malloc(sizeof(*probed));
    if (!probed)
        return;
    *probed = *kernel;
    probed->handle = function;
    probed->reference = reference;
    probed->launches = 0;
    probed->loaded = 0;
    if (!kernel->refused && hook_do.kernel_function(&probed->probed, kernel->probed))
        probed->refused = "it is not found with probes in this context";
    if (!hook_add_probed(probed))
        free(probed);
}

void hook_enter_function(uint64_t function, uint64_t kernel) {
    struct object_view view;
    const struct probed *known = hook_find_probed(kernel);
    if (hook_find_probed(function) || !hook_object_look(function, &view))
        return;
    if (known) {
        enter(function, view.reference, known);
        return;
    }
    struct late *late = hook_is_pending(kernel) ? malloc(sizeof(*late)) : NULL;
    if (!late)
        return;
    pthread_mutex_lock(&lock);
    *late = (struct late){all_late, function, kernel, hook_current_context(), view.reference};
    all_late = late;
    pthread_mutex_unlock(&lock);
}

// Those whose kernel has come, and which are of the current context.
static void enter_late(void) {
    uint64_t context = hook_current_context();
    for (;;) {
        pthread_mutex_lock(&lock);
        struct late **at = &all_late, *late;
        while ((late = *at) && hook_is_alive(late->reference) &&
               (late->context != context || !hook_find_probed(late->kernel)))
            at = &late->next;
        if (late)
            *at = late->next;
        pthread_mutex_unlock(&lock);
        if (!late)
            return;
        const struct probed *kernel = hook_find_probed(late->kernel);
        if (kernel && hook_is_alive(late->reference) && !hook_find_probed(late->function))
            enter(late->function, late->reference, kernel);
        free(late);
    }
}

// What look-ups do

void hook_ask_for(const struct looked_up *function, const char *name) {
    struct pending *pending = calloc(1, sizeof(*pending) + strlen(name) + 1);
    if (!pending)
        return;
    pending->function = *function;
    pending->busy = true;
    strcpy(pending->name, name);
    pthread_mutex_lock(&lock);
    bool first = !find(function->handle) && !hook_find_probed(function->handle);
    if (first) {
        pending->next = all;
        all = pending;
    }
    pthread_mutex_unlock(&lock);
    if (!first) {
        free(pending);
        return;
    }
    struct gpt_bytes found = {0};
    const char *fault = hook_name_result(function->handle, name, pending->key);
    bool kept = !fault && *pending->key && gpt_get_kept("probed", pending->key, &found);
    if (fault)
        hook_refuse(function, fault);
    else if (kept)
        hook_load_probed(function, name, &found);
    release(pending, fault || kept || take(pending));
}

// Looks after one entry. False: there is none any more. Sets the socket that its answer comes from, -1 if it
// is another thread's or another context's to take it.
static bool look_after(uint64_t handle, int *socket) {
    *socket = -1;
    pthread_mutex_lock(&lock);
    struct pending *pending = find(handle);
    bool there = pending != NULL, mine = there && !pending->busy && is_here(pending);
    if (mine)
        pending->busy = true;
    pthread_mutex_unlock(&lock);
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
    enter_late();
}

void hook_finish_lookups(void) {
    static _Atomic uint64_t passes;
    if (!__atomic_load_n(&all, __ATOMIC_RELAXED) && !__atomic_load_n(&all_late, __ATOMIC_RELAXED))
        return;
    for (uint64_t pass = atomic_fetch_add(&passes, 1) + 1;;) {
        pthread_mutex_lock(&lock);
        struct pending *pending = all;
        while (pending && (pending->busy || pending->pass >= pass ||
                           (!is_here(pending) && hook_is_alive(pending->function.reference))))
            pending = pending->next;
        if (pending) {
            pending->busy = true;
            pending->pass = pass;
        }
        pthread_mutex_unlock(&lock);
        if (!pending)
            break;
        release(pending, take(pending));
    }
    enter_late();
}
