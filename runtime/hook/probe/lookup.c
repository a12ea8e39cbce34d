// A function that is looked up is asked for with probes in it: of the cache, else of the broker. The look-up
// waits, as long as --wait allows for all look-ups without a launch between them. What comes later is loaded
// in the program's next look-up, load or wait for the GPU: never at a launch, and never on a thread of ours.

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/kept.h"
#include "driver_calls.h"
#include "hook/watch/contexts.h"
#include "hook/watch/driver.h"
#include "hook/write/thread.h"
#include "launch.h"
#include "load.h"
#include "lookup.h"
#include "settings.h"
#include "sources.h"

struct pending {
    struct pending *next;
    struct gpt_call call;
    struct looked_up function;
    char key[65];
    char name[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *all;
static _Atomic uint64_t spent; // ms of this burst

void hook_end_burst(void) {
    if (atomic_load_explicit(&spent, memory_order_relaxed))
        atomic_store_explicit(&spent, 0, memory_order_relaxed);
}

// The device's architecture, as the pipeline takes it.
static bool find_arch(char arch[GPT_ARCH_BYTES]) {
    CUdevice device;
    int major, minor;
    if (hook_driver_is_simulated()) {
        strcpy(arch, "host");
        return true;
    }
    if (hook_do.get_device(&device) ||
        hook_do.device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ||
        hook_do.device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        return false;
    snprintf(arch, GPT_ARCH_BYTES, "sm_%d%d", major, minor);
    return true;
}

static void name_result(const struct source *source, const char *arch, const char *kernel, char key[65]) {
    struct gpt_bytes text = {0};
    if (gpt_add(&text, hook_settings.identity, strlen(hook_settings.identity)) &&
        gpt_add(&text, arch, strlen(arch) + 1) && gpt_add(&text, source->digest, 64) &&
        gpt_add(&text, kernel, strlen(kernel)))
        gpt_sha256(text.data, text.size, key);
    else
        *key = '\0';
    gpt_empty(&text);
}

// An answer has come, or has not.
static void finish(struct pending *pending, enum gpt_call_state state, struct gpt_bytes *answer,
                   const struct gpt_reply *reply) {
    if (state == GPT_CALL_DONE) {
        if (*pending->key)
            gpt_keep("probed", pending->key, answer);
        hook_load_probed(&pending->function, pending->name, answer);
    } else {
        char *fault;
        bool told = asprintf(&fault, "the pipeline failed: %s", reply->fault) > 0;
        hook_refuse(&pending->function, told ? fault : "the pipeline failed");
    }
    free(pending);
}

// Waits for the answer as long as it may. False: it is still under way.
static bool wait_for(struct pending *pending) {
    for (;;) {
        struct gpt_bytes answer = {0};
        struct gpt_reply reply;
        enum gpt_call_state state = gpt_end(&pending->call, &answer, &reply);
        if (state != GPT_CALL_WAITS) {
            finish(pending, state, &answer, &reply);
            return true;
        }
        uint64_t used = atomic_load(&spent), start = gpt_now();
        if (used >= hook_settings.wait)
            return false;
        struct pollfd file = {pending->call.socket, POLLIN, 0};
        uint64_t left = hook_settings.wait - used;
        poll(&file, 1, left > 100 ? 100 : (int)left);
        atomic_fetch_add(&spent, gpt_now() - start);
    }
}

void hook_finish_lookups(void) {
    if (!all)
        return;
    pthread_mutex_lock(&lock);
    struct pending *list = all, *rest = NULL;
    all = NULL;
    pthread_mutex_unlock(&lock);
    for (struct pending *pending = list, *next; pending; pending = next) {
        struct gpt_bytes answer = {0};
        struct gpt_reply reply;
        next = pending->next;
        bool here = !pending->function.context || pending->function.context == hook_current_context();
        enum gpt_call_state state = here ? gpt_end(&pending->call, &answer, &reply) : GPT_CALL_WAITS;
        if (state != GPT_CALL_WAITS) {
            finish(pending, state, &answer, &reply);
            continue;
        }
        pending->next = rest;
        rest = pending;
    }
    for (struct pending *pending = rest, *next; pending; pending = next) {
        next = pending->next;
        pthread_mutex_lock(&lock);
        pending->next = all;
        all = pending;
        pthread_mutex_unlock(&lock);
    }
}

static bool is_pending(uint64_t handle) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct pending *pending = all; pending && !found; pending = pending->next)
        found = pending->function.handle == handle && hook_is_alive(pending->function.reference);
    pthread_mutex_unlock(&lock);
    return found;
}

static void ask(const struct looked_up *function, const char *name, bool waits) {
    struct source source;
    struct gpt_question question = {.pipeline = GPT_PROBE};
    struct gpt_bytes found = {0}, request = {0};
    static atomic_flag registered = ATOMIC_FLAG_INIT; // after the driver's own handlers: it runs before them
    if (!atomic_flag_test_and_set(&registered))
        atexit(hook_end_probing);
    if (!hook_find_probe_calls()) {
        hook_refuse(function, "the driver is too old: 12.0 is needed");
        return;
    }
    if (!hook_find_source(function->handle, &source)) {
        hook_refuse(function, "where its code comes from is not known");
        return;
    }
    if (source.refused || !find_arch(question.arch)) {
        hook_refuse(function, source.refused ? source.refused : "its device is not known");
        return;
    }
    struct pending *pending = calloc(1, sizeof(*pending) + strlen(name) + 1);
    if (!pending)
        return;
    pending->function = *function;
    strcpy(pending->name, name);
    name_result(&source, question.arch, name, pending->key);
    if (*pending->key && gpt_get_kept("probed", pending->key, &found)) {
        hook_load_probed(function, name, &found);
        free(pending);
        return;
    }
    if (!gpt_add_module(&request, source.image.start, source.image.size, source.image.type, name) ||
        !gpt_begin(&pending->call, &question, &request)) {
        hook_refuse(function, request.size ? "gpt-hook's helper, which asks the pipeline, is not there"
                                           : "its image is too large for the pipeline");
        free(pending);
    } else if (!waits || !wait_for(pending)) {
        pthread_mutex_lock(&lock);
        pending->next = all;
        all = pending;
        pthread_mutex_unlock(&lock);
    }
    gpt_empty(&request);
}

static void look_up(uint64_t handle, const char *name, bool waits) {
    struct object_view view;
    hook_finish_lookups();
    if (!name || !hook_object_look(handle, &view) || hook_find_probed(handle) || is_pending(handle))
        return;
    struct looked_up function = {.handle = handle,
                                 .module = view.parent,
                                 .context = view.kind == OBJECT_KERNEL ? 0 : view.context,
                                 .reference = view.reference,
                                 .function = view.id,
                                 .is_kernel = view.kind == OBJECT_KERNEL};
    if (!hook_is_wanted(name))
        hook_refuse(&function, "");
    else
        ask(&function, name, waits);
}

static uint64_t out(const struct frame *frame) {
    const uint64_t *handle = (const uint64_t *)frame->args[0];
    return hook_probing && (CUresult)frame->rax == CUDA_SUCCESS && handle ? *handle : 0;
}

// cuModuleGetFunction, cuLibraryGetKernel
void hook_after_function(struct frame *frame) {
    if (out(frame))
        look_up(out(frame), (const char *)frame->args[2], true);
}

// cuKernelGetFunction: the function of a kernel that is known.
void hook_after_kernel_function(struct frame *frame) {
    struct object_view view;
    const struct probed *kernel = out(frame) ? hook_find_probed(frame->args[1]) : NULL;
    if (!kernel || hook_find_probed(out(frame)) || !hook_object_look(out(frame), &view))
        return;
    struct probed *function = malloc(sizeof(*function));
    if (!function)
        return;
    *function = *kernel;
    function->handle = out(frame);
    function->reference = view.reference;
    function->launches = 0;
    function->loaded = 0;
    if (!kernel->refused && hook_do.kernel_function(&function->probed, kernel->probed))
        function->refused = "it is not found with probes in this context";
    if (!hook_add_probed(function))
        free(function);
}

// What was enumerated is asked for ahead.
static void look_up_all(struct frame *frame, const char *counter, const char *namer) {
    const uint64_t *handles = (const uint64_t *)frame->args[0];
    CUresult (*count_of)(unsigned *, uint64_t) = hook_driver_function(counter);
    CUresult (*name_of)(const char **, uint64_t) = hook_driver_function(namer);
    unsigned count = 0;
    if (!hook_probing || (CUresult)frame->rax != CUDA_SUCCESS || !handles || !count_of || !name_of ||
        count_of(&count, frame->args[2]))
        return;
    for (unsigned i = 0; i < count && i < (unsigned)frame->args[1]; i++) {
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
