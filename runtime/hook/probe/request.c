// Handlers of look-ups: when the program looks up a function, we request the function with probes, and wait
// for the answer.

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/control.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

static void look_up(uint64_t handle, const char *name, bool waits) {
    struct object_view view;
    const struct order *order = hook_order();
    bool asks = order->identity && atomic_load(&hook_recording);
    hook_finish_lookups();
    if (!name || !hook_object_look(handle, &view))
        return;
    asks &= view.kind != OBJECT_KERNEL || hook_current_context(); // otherwise we don't know the device yet
    struct looked_up function = {.handle = handle,
                                 .module = view.parent,
                                 .context = view.kind == OBJECT_KERNEL ? 0 : view.context,
                                 .reference = view.reference,
                                 .function = view.id,
                                 .order = order->number,
                                 .is_kernel = view.kind == OBJECT_KERNEL};
    hook_know(&function, name, asks);
    if (!asks || hook_find_probed(handle))
        return;
    if (!hook_is_wanted(name, order)) {
        hook_refuse(&function, UNCOUNTED);
        return;
    }
    hook_ask_for(&function, name);
    if (waits)
        hook_await(handle);
}

static uint64_t out(const struct frame *frame) {
    const uint64_t *handle = (const uint64_t *)frame_arg(frame, 0);
    return hook_probing && (CUresult)frame->result == CUDA_SUCCESS && handle ? *handle : 0;
}

void hook_after_load_image(struct frame *frame) {
    if (hook_keep_loaded_image(frame))
        hook_finish_lookups();
}

void hook_after_load_file(struct frame *frame) {
    if (hook_keep_loaded_file(frame))
        hook_finish_lookups();
}

// cuModuleGetFunction, cuLibraryGetKernel
void hook_after_function(struct frame *frame) {
    if (out(frame))
        look_up(out(frame), (const char *)frame_arg(frame, 2), true);
}

// cuKernelGetFunction
void hook_after_kernel_function(struct frame *frame) {
    if (!out(frame))
        return;
    hook_finish_lookups();
    hook_enter_function(out(frame), frame_arg(frame, 1));
}

// Request functions that were enumerated before they're used.
static void look_up_all(struct frame *frame, const char *counter, const char *namer) {
    const uint64_t *handles = (const uint64_t *)frame_arg(frame, 0);
    CUresult (*count_of)(unsigned *, uint64_t) = hook_driver_function(counter);
    CUresult (*name_of)(const char **, uint64_t) = hook_driver_function(namer);
    unsigned count = 0;
    if (!hook_probing || (CUresult)frame->result != CUDA_SUCCESS || !handles || !count_of || !name_of ||
        count_of(&count, frame_arg(frame, 2)))
        return;
    for (unsigned i = 0; i < count && i < (unsigned)frame_arg(frame, 1); i++) {
        const char *name = NULL;
        if (!name_of(&name, handles[i]))
            look_up(handles[i], name, false);
    }
}

void hook_after_functions(struct frame *frame) {
    look_up_all(frame, "cuModuleGetFunctionCount", "cuFuncGetName");
}

void hook_after_kernels(struct frame *frame) {
    look_up_all(frame, "cuLibraryGetKernelCount", "cuKernelGetName");
}

// -- Known functions -------------------------------------------------------
//
// Functions that were looked up while nothing was probed, or before there was a context for a library's
// kernel, are kept here, and so are functions of an earlier order. Once they're wanted, we request them in
// the program's next look-up, load or wait for the GPU, without waiting for the answers.

enum { BUCKETS = 1 << 12 };

struct known {
    struct known *next;
    struct looked_up function; // with the last order that requested it
    char name[];
};

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct known *buckets[BUCKETS];
static _Atomic unsigned all_asked; // the order for which all were requested

static struct known **bucket_of(uint64_t handle) { return &buckets[handle * 0x9e3779b97f4a7c15u >> 52]; }

static struct known *copy(const struct looked_up *function, const char *name) {
    struct known *known = malloc(sizeof(*known) + strlen(name) + 1);
    if (known) {
        known->function = *function;
        strcpy(known->name, name);
    }
    return known;
}

void hook_know(const struct looked_up *function, const char *name, bool asked) {
    static _Atomic int wanted; // 1: yes, -1: no
    int is_wanted = wanted;
    if (!is_wanted)
        wanted = is_wanted = getenv(GPT_CONTROL) ? 1 : -1;
    struct known *added = is_wanted > 0 || !asked ? copy(function, name) : NULL;
    if (!added)
        return;
    added->function.order = asked ? function->order : 0;
    pthread_mutex_lock(&known_lock);
    struct known **at = bucket_of(function->handle), *known;
    while ((known = *at) && hook_is_alive(known->function.reference) &&
           known->function.handle != function->handle)
        at = &known->next;
    if (known && hook_is_alive(known->function.reference)) {
        if (asked)
            known->function.order = function->order;
        free(added);
    } else { // replace an entry that no longer exists
        added->next = known ? known->next : NULL;
        *at = added;
        free(known);
        if (!asked)
            all_asked = 0;
    }
    pthread_mutex_unlock(&known_lock);
}

// Remove functions that no longer exist, and return copies of the functions to request in this context.
static struct known *collect(unsigned order) {
    struct known *found = NULL, *known, *copied;
    uint64_t context = hook_current_context();
    bool rest = false;
    pthread_mutex_lock(&known_lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct known **at = &buckets[i]; (known = *at);) {
            struct looked_up *function = &known->function;
            if (!hook_is_alive(function->reference)) {
                *at = known->next;
                free(known);
                continue;
            }
            at = &known->next;
            bool here = !function->context || function->context == context;
            rest |= function->order != order && !here;
            if (function->order == order || !here)
                continue;
            function->order = order;
            if ((copied = copy(function, known->name))) {
                copied->next = found;
                found = copied;
            }
        }
    if (!rest)
        all_asked = order;
    pthread_mutex_unlock(&known_lock);
    return found;
}

void hook_ask_known(void) {
    const struct order *order = hook_order();
    if (!order->identity || !atomic_load(&hook_recording) ||
        atomic_load_explicit(&all_asked, memory_order_relaxed) == order->number || !hook_current_context())
        return;
    for (struct known *known = collect(order->number), *next; known; known = next) {
        next = known->next;
        if (!hook_is_wanted(known->name, order))
            hook_refuse(&known->function, UNCOUNTED);
        else if (!hook_find_probed(known->function.handle))
            hook_ask_later(&known->function, known->name);
        free(known);
    }
}

bool hook_is_meant(uint64_t handle) {
    const struct probed *found = hook_find_probed(handle);
    if (found && found->kernel)
        handle = found->kernel;
    pthread_mutex_lock(&known_lock);
    const struct known *known = *bucket_of(handle);
    while (known && (known->function.handle != handle || !hook_is_alive(known->function.reference)))
        known = known->next;
    bool meant = !known || hook_is_wanted(known->name, hook_order());
    pthread_mutex_unlock(&known_lock);
    return meant;
}

void hook_count_known(struct known_counts *counts) {
    const struct order *order = hook_order();
    pthread_mutex_lock(&known_lock);
    for (size_t i = 0; i < BUCKETS && order->identity; i++)
        for (const struct known *known = buckets[i]; known; known = known->next) {
            if (!hook_is_alive(known->function.reference))
                continue;
            if (!hook_is_wanted(known->name, order)) {
                size_t at = strlen(counts->others), size = sizeof(counts->others) - at;
                if (strlen(known->name) + 3 < size)
                    snprintf(counts->others + at, size, "%s%s", at ? ", " : "", known->name);
                continue;
            }
            const struct probed *probed = hook_find_probed(known->function.handle);
            *(!probed ? &counts->pending : probed->refused ? &counts->refused : &counts->probed) += 1;
        }
    pthread_mutex_unlock(&known_lock);
}

// -- Pending requests ------------------------------------------------------
//
// The list of requests that haven't been loaded. A thread that works on an entry marks it busy, and other
// threads leave it alone, so no lock is held while we ask the cache, the broker or the driver. A waiting
// thread holds nothing at all, since a signal handler may leave with longjmp. It looks up its kernel again
// each time, and the first thread that finds the answer loads it.
//
// Late results are loaded in the program's next look-up, load or wait for the GPU: never at a launch, and
// never in a thread of ours. At most MOST_ASKED questions are open at once, because each needs a descriptor
// and a program may have few. The others are asked as answers arrive.

enum { MOST_ASKED = 64, SHARE = 32 }; // questions; use at most 1/SHARE of the descriptors
enum { SLICE = 100, STEP = 2 };       // ms: to wait for an answer, and for another thread

struct pending {
    struct pending *next;
    struct looked_up function;
    struct gpt_call call;
    struct gpt_bytes cached; // the answer from the cache
    bool busy, asked;
    uint64_t pass; // number of the last pass of hook_finish_lookups that looked at it
    struct answer_keys keys;
    char name[];
};

static pthread_mutex_t pending_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *all;
static _Atomic unsigned count; // number of requests
static unsigned asked_count;
_Atomic uint64_t hook_burst_spent;
static _Atomic uint64_t waited_until; // the time up to which waiting has been counted

// Add the time since `start`. If several threads wait at the same time, it counts only once.
static void spend(uint64_t start) {
    uint64_t now = gpt_now();
    pthread_mutex_lock(&pending_lock);
    uint64_t from = atomic_load(&waited_until);
    from = from > start ? from : start;
    if (now > from) {
        atomic_fetch_add(&hook_burst_spent, now - from);
        atomic_store(&waited_until, now);
    }
    pthread_mutex_unlock(&pending_lock);
}

// Entries

// Return whether the answer is still needed.
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

// Release an entry. If it's `finished`, remove it.
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

// If the pipeline has said, about another kernel, why no kernel of the image gets probes, return this reason,
// otherwise NULL.
static const struct reason *find_refusal(const struct pending *pending) {
    const struct reason *reason;
    struct gpt_bytes cached = {0}, record;
    if (hook_find_refusal(pending->function.handle, pending->keys.image, &reason))
        return reason;
    if (*pending->keys.kernel && gpt_get_cached("probed", pending->keys.image, &cached))
        reason = hook_read_refusal(&cached, &record);
    gpt_empty(&cached);
    return hook_refuse_image(pending->function.handle, pending->keys.image, reason);
}

// If the answer is about the whole image, keep it. Returns the reason in it.
static const struct reason *keep_refusal(const struct pending *pending, const struct gpt_bytes *answer) {
    struct gpt_bytes record;
    const struct reason *reason = hook_read_refusal(answer, &record);
    if (!reason)
        return NULL;
    if (*pending->keys.kernel)
        gpt_cache("probed", pending->keys.image, &record);
    return hook_refuse_image(pending->function.handle, pending->keys.image, reason);
}

// Ask the question, if there's room for another one. Returns false if it was rejected.
static bool ask(struct pending *pending) {
    struct rlimit files;
    const struct reason *fault = find_refusal(pending);
    if (fault) {
        hook_refuse(&pending->function, fault);
        return false;
    }
    rlim_t most = getrlimit(RLIMIT_NOFILE, &files) ? 0 : files.rlim_cur / SHARE;
    pthread_mutex_lock(&pending_lock);
    bool room = asked_count <= most && asked_count < MOST_ASKED;
    asked_count += room;
    pending->asked = room;
    pthread_mutex_unlock(&pending_lock);
    fault = room ? hook_send_question(&pending->function, pending->name, &pending->call) : NULL;
    if (fault)
        hook_refuse(&pending->function, fault);
    return !fault;
}

// Load the answer if it has arrived. Returns true if the entry is finished.
static bool finish(struct pending *pending) {
    struct gpt_bytes answer = {0};
    struct gpt_reply reply;
    if (pending->cached.data) {
        hook_load_probed(&pending->function, pending->name, &pending->cached);
        return true;
    }
    if (!pending->asked && !ask(pending))
        return true;
    enum gpt_call_state state = pending->asked ? gpt_end(&pending->call, &answer, &reply) : GPT_CALL_WAITS;
    if (state == GPT_CALL_WAITS)
        return false;
    bool lasting = state == GPT_CALL_DONE && hook_is_lasting(&answer);
    const struct reason *whole = lasting ? keep_refusal(pending, &answer) : NULL;
    if (whole) {
        hook_refuse(&pending->function, whole);
        gpt_empty(&answer);
    } else if (state == GPT_CALL_DONE) {
        if (*pending->keys.kernel && lasting)
            gpt_cache("probed", pending->keys.kernel, &answer);
        hook_load_probed(&pending->function, pending->name, &answer);
    } else {
        hook_refuse(&pending->function, hook_make_reason(reply.code, reply.fault));
    }
    return true;
}

// Load the answer if it's still needed: another thread may own the entry and unload it.
static bool finish_if_wanted(struct pending *pending) {
    struct reference held = hook_object_hold(pending->function.reference);
    bool alive = held.current && is_wanted(&pending->function);
    bool finished = !alive || finish(pending);
    hook_object_let_go(held);
    if (!alive && pending->asked)
        gpt_cancel(&pending->call);
    if (!alive)
        gpt_empty(&pending->cached);
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
    const struct reason *fault = hook_name_result(function, name, &pending->keys);
    fault = fault ? fault : find_refusal(pending);
    const char *key = pending->keys.kernel;
    bool cached = !fault && *key && gpt_get_cached("probed", key, &pending->cached);
    if (fault)
        hook_refuse(function, fault);
    release(pending, fault || (loads ? finish_if_wanted(pending) : !cached && !ask(pending)));
}

void hook_ask_for(const struct looked_up *function, const char *name) { ask_for(function, name, true); }
void hook_ask_later(const struct looked_up *function, const char *name) { ask_for(function, name, false); }

// Handle one entry. Returns false if it no longer exists. Sets `socket` to the socket on which its answer
// will arrive, or to -1 if another thread or context has to load the answer.
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
    bool finished = finish_if_wanted(pending);
    *socket = !finished && pending->asked ? pending->call.socket : -1;
    release(pending, finished);
    return !finished;
}

void hook_await(uint64_t handle) {
    for (int socket; look_after(handle, &socket);) {
        uint64_t used = atomic_load(&hook_burst_spent), start = gpt_now();
        if (used >= hook_settings.wait)
            return;
        if (socket < 0)
            hook_finish_lookups(); // answers that arrive make room for this question
        uint64_t left = hook_settings.wait - used, most = socket < 0 ? STEP : SLICE;
        struct pollfd file = {socket, POLLIN, 0};
        hook_wait_with_signals(socket < 0 ? NULL : &file, left < most ? left : most);
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
        release(pending, finish_if_wanted(pending));
    }
}
