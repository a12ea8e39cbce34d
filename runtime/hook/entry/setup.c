// Sets up the library, in its constructor or in a driver call that comes before that.

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "abi/nvtx.h"
#include "entry.h"
#include "hook/probe/probe.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "say.h"
#include "stub.h"

static bool is_wanted(void) {
    const char *output = getenv("GPT_HOOK_OUTPUT");
    return output && *output;
}

#define UNKNOWN_PROCESSOR "built without stubs for this processor: no calls are recorded"

// Return why nothing is recorded of this process, or NULL. The process itself runs normally.
static const char *why_unwatched(void) {
    if (!hook_is_glibc()) // musl, for example, which can't load the driver: that needs glibc
        return "not linked to glibc: this program is not watched";
    return hook_stub_of(hook_slots) ? NULL : UNKNOWN_PROCESSOR;
}

// Write the reason to the trace. For a build without stubs, gpt-hook's own command also prints a message.
static void say_unwatched(const char *why) {
    const char *root = getenv("GPT_HOOK_REPORT");
    HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = GPT_STR("process"), .text = hook_str(why));
    if (hook_is_glibc() && root && atoi(root) == getpid())
        gpt_write_line("gpt-hook: warning: " UNKNOWN_PROCESSOR);
    hook_finish(0);
}

static void after_init(struct frame *frame) {
    hook_serve_control(frame);
    hook_sample_host();
}

static void survey(bool end) {
    static pid_t process;
    pid_t before = process;
    if ((process = getpid()) != before)
        hook_find_all_flags(); // needed in a child that was forked while they changed
    if (end)
        hook_scan_at_end();
    else
        hook_scan_libraries();
    hook_write_unprobed();
    hook_write_needs();
}

// Constructors of libraries that the program is linked to run before ours and may use the driver, so the
// first call sets everything up. Returns whether this was the first.
bool hook_setup(void) {
    static _Atomic bool begun;
    if (LIKELY(atomic_load_explicit(&begun, memory_order_relaxed)) || atomic_exchange(&begun, true))
        return false;
    int error = errno;
    if (!hook_real_dlsym)
        hook_find_real();
    hook_clock_setup();
    if (hook_watched_setup() && hook_trace_setup(survey))
        hook_exits_setup();
    else if (is_wanted()) // RLIMIT_AS
        hook_say("memory", hook_describe_error(errno), "this process is not watched");
    hook_decode_setup(after_init);
    hook_samples_setup();
    hook_ioctl_setup();
    hook_save_setup();
    hook_report_setup();
    hook_limit_setup(hook_stop_recording);
    hook_kernels_setup(hook_ask_later);
    hook_request_setup(hook_end_probing);
    const char *why = why_unwatched();
    if (why)
        say_unwatched(why);
    else if (hook_has_driver())
        hook_this_thread();
    if (hook_probing && !why)
        hook_zstd_setup(&(struct linker){hook_real_dlopen, hook_real_dlclose, hook_real_dlsym});
    errno = error;
    return true;
}

__attribute__((constructor)) static void setup(void) { hook_setup(); }

EXPORT nvtx_initialize InitializeInjectionNvtx2;
EXPORT nvtx_initialize_extension InitializeInjectionNvtxExtension;

// Find a function in the library that NVTX_INJECTION64_PATH named before us. Returns NULL if there's
// none, or if it's ours.
static void *find_other(const char *name, void *ours) {
    const char *path = getenv("GPT_HOOK_NVTX");
    void *library = path && *path ? hook_real_dlopen(path, RTLD_LAZY) : NULL;
    void *found = library ? hook_real_dlsym(library, name) : NULL;
    return found == ours ? NULL : found;
}

// NVTX calls this in the library that NVTX_INJECTION64_PATH names. Returns 1 if the program's ranges are to
// be recorded, or another tool wants them.
EXPORT int InitializeInjectionNvtx2(nvtx_get_export_table *get_table) {
    hook_setup();
    return hook_nvtx_begin(get_table, find_other(__func__, InitializeInjectionNvtx2), is_wanted());
}

// The same for an extension of NVTX.
EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module) {
    hook_setup();
    nvtx_initialize_extension *other = find_other(__func__, InitializeInjectionNvtxExtension);
    return hook_nvtx_begin_extension(module, other, is_wanted());
}
