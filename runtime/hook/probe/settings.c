// The variables that the launcher sets (../../launcher/probe.c), and the libraries that are never probed.

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/records.h"
#include "common/broker.h"
#include "common/control.h"
#include "common/selection.h"
#include "hook/write/write.h"
#include "probe.h"

_Atomic bool hook_probing;
struct settings hook_settings;

static const struct order no_order;
const struct order *_Atomic hook_last_order = &no_order;

const struct order *hook_order_of(unsigned number) {
    const struct order *order = hook_order();
    while (order->number != number && order->before)
        order = order->before;
    return order;
}

// One thread at a time.
bool hook_make_order(const struct order *made) {
    struct order *order = malloc(sizeof(*order));
    if (!order)
        return false;
    *order = *made;
    order->before = hook_order();
    order->number = order->before->number + 1;
    atomic_store_explicit(&hook_last_order, order, memory_order_release);
    return true;
}

static _Atomic bool has_probed;

bool hook_has_probed(void) { return hook_probing && atomic_load(&has_probed); }

bool hook_will_probe(const struct order *order, bool recording) {
    return hook_probing && order->identity && recording && !atomic_exchange(&has_probed, true);
}

// NVIDIA's libraries with closed code, by the beginning of their names. Those with other names are recognized
// by the pipeline (gpt/formats/closed.py).
static const char *const closed[] = {GPT_CLOSED_FILES};

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static uint64_t milliseconds(const char *seconds) {
    double value = strtod(seconds, NULL);
    return (uint64_t)((value < 1e9 ? value : 1e9) * 1000);
}

int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

static pid_t process;
static _Atomic bool begun;

static void set_probing(bool on) {
    hook_remember_contexts(on);
    hook_probing = on;
}

void hook_probe_stop(void) { set_probing(false); }

void hook_probe_begin(void) { begun = true; }

bool hook_is_this_process(void) { return !hook_in_vfork && getpid() == process; }

// A child that was forked before anything was loaded is like any other process.
static void go_on(void) {
    process = getpid();
    set_probing(hook_probing && !begun);
}

void hook_probe_setup(void) {
    const char *wait = getenv("GPT_HOOK_PROBE_WAIT"), *keep = getenv("GPT_KEEP");
    hook_settings = (struct settings){
        .wait = wait && *wait ? milliseconds(wait) : 30000,
        .skip = number("GPT_HOOK_PROBE_SKIP", 0),
        .count = number("GPT_HOOK_PROBE_COUNT", UINT64_MAX),
        .sample = number("GPT_HOOK_PROBE_SAMPLE", 1),
        .detail = number("GPT_HOOK_PROBE_DETAIL", UINT64_MAX),
        .memory = number("GPT_HOOK_PROBE_MEMORY", 0),
        .complete = getenv("GPT_HOOK_PROBE_COMPLETE") != NULL,
        .keeps = keep && *keep,
        .benchmark = getenv("GPT_HOOK_PROBE_BENCHMARK") != NULL,
        .memusage = getenv("GPT_HOOK_PROBE_MEMUSAGE") != NULL,
        .rerun = hook_keep_variable("GPT_HOOK_PROBE_RERUN"),
    };
    const char *identity = hook_keep_variable("GPT_HOOK_PROBE");
    set_probing(getenv(GPT_CONTROL) || (identity && *identity));
    struct order order = {.identity = identity,
                          .probes = hook_keep_variable("GPT_HOOK_PROBE_NAMES"),
                          .kernels = hook_keep_variable("GPT_HOOK_PROBE_KERNELS"),
                          .filter = hook_keep_variable("GPT_HOOK_PROBE_FILTER")};
    bool stored = (identity || !getenv("GPT_HOOK_PROBE")) &&
                  (order.kernels || !getenv("GPT_HOOK_PROBE_KERNELS")) &&
                  (order.filter || !getenv("GPT_HOOK_PROBE_FILTER"));
    if (!stored || (identity && *identity && !hook_make_order(&order)))
        hook_say("memory", hook_describe_error(ENOMEM), "no kernel gets probes");
    hook_will_probe(hook_order(), atomic_load(&hook_recording));
    if (hook_probing && __register_atfork)
        __register_atfork(NULL, NULL, go_on, NULL);
    process = getpid();
    gpt_find_broker();
    hook_settings.sample += !hook_settings.sample;
}

bool hook_is_wanted(const char *kernel, const struct order *order) {
    size_t size = strlen(kernel);
    return (!order->kernels || !*order->kernels || gpt_has_part(kernel, size, order->kernels)) &&
           (!order->filter || !gpt_has_part(kernel, size, order->filter));
}

bool hook_is_closed(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL, *name = slash ? slash + 1 : path;
    for (size_t i = 0; name && i < sizeof(closed) / sizeof(*closed); i++)
        if (!strncmp(name, closed[i], strlen(closed[i])))
            return true;
    return false;
}
