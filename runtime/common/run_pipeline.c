// Runs a pipeline for one request inside the program, without the program noticing. The pipeline can't be a
// child of the program, because programs wait for their children. So a first child starts the pipeline and
// exits. This exit sends no signal, and only a wait that explicitly asks for such children, as ours does,
// returns it. The pipeline has its own session, and none of the program's descriptors, signal handlers or
// preloaded libraries.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker.h"

enum { STACK = 64 << 10, BLOCK = 64 << 10, MOST = 1 << 28 }; // bytes

// In memory that stays shared if the children are forked, because valgrind forks in place of clone().
struct start {
    unsigned char stacks[2 * STACK];
    struct gpt_plan plan;
    pid_t shell;
};

// ThreadSanitizer takes these two, which run in the caller's memory and never return, for calls of its
// thread.
#define UNSEEN __attribute__((no_sanitize("thread")))

UNSEEN static int run(void *start) { return gpt_become(&((struct start *)start)->plan); }

UNSEEN static int run_and_leave(void *given) {
    struct start *start = given;
    start->shell = clone(run, start->stacks + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, start);
    _exit(0);
}

// Start the shell. Returns its pid, or -1 with errno set.
static pid_t start(const struct gpt_plan *plan) {
    struct start *start =
        mmap(NULL, sizeof(*start), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sigset_t all, mask;
    if (start == MAP_FAILED)
        return -1;
    start->plan = *plan;
    start->shell = -1;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    pid_t child = clone(run_and_leave, start->stacks + 2 * STACK, CLONE_VM | CLONE_VFORK, start);
    int error = errno;
    if (child > 0)
        waitpid(child, NULL, __WCLONE);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    pid_t shell = start->shell;
    munmap(start, sizeof(*start));
    errno = error;
    return shell;
}

// Find a stage. It's first looked for relative to the library, where it is in a checkout or an installation,
// and then in PATH.
static void find_stage(const char *name, char path[PATH_MAX]) {
    static const char *const places[] = {"../../../bin", "../../../../../../bin", "../../../../../bin"};
    Dl_info info;
    char self[PATH_MAX];
    if (dladdr((void *)find_stage, &info) && realpath(info.dli_fname, self)) {
        *strrchr(self, '/') = '\0';
        for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++)
            if (snprintf(path, PATH_MAX, "%s/%s/%s", self, places[i], name) < PATH_MAX && !access(path, X_OK))
                return;
    }
    snprintf(path, PATH_MAX, "%s", name);
}

// Read to the end of the file. Returns false with errno set on a timeout or an error.
static bool read_all(int file, struct gpt_bytes *found) {
    uint64_t until = gpt_now() + GPT_PATIENCE * 1000;
    for (ssize_t got = 1; got && found->size < MOST;) {
        char *to = gpt_make_room(found, BLOCK);
        errno = to ? ETIMEDOUT : ENOMEM;
        if (!to || !gpt_wait_for(file, until) || ((got = read(file, to, BLOCK)) < 0 && errno != EINTR))
            return false;
        found->size += got > 0 ? (size_t)got : 0;
    }
    return true;
}

// Run a pipeline. Returns false with errno set if it can't be run.
static bool run_plan(struct gpt_plan *plan, struct gpt_bytes *output) {
    int ends[2];
    if (!plan->environment || plan->input < 0 || plan->errors < 0 || pipe2(ends, O_CLOEXEC))
        return false;
    plan->output = ends[1];
    pid_t shell = start(plan);
    int error = errno;
    close(ends[1]);
    bool good = shell > 0 && read_all(ends[0], output);
    if (shell > 0 && !good) {
        error = errno;
        kill(-shell, SIGKILL);
    }
    close(ends[0]);
    errno = error;
    return good;
}

void gpt_run_alone(enum gpt_pipeline which, const struct gpt_bytes *input, struct gpt_bytes *output,
                   struct gpt_outcome *outcome) {
    char places[GPT_STAGES][PATH_MAX], *paths[GPT_STAGES], *words[GPT_WORDS];
    for (size_t i = 0; i < GPT_STAGES; i++)
        find_stage(gpt_stages[i], paths[i] = places[i]);
    gpt_make_words(which, paths, "", NULL, words);
    struct gpt_plan plan = {.words = words,
                            .environment = gpt_make_environment(),
                            .input = gpt_make_file(input->data, input->size),
                            .errors = gpt_make_file("", 0)};
    struct gpt_bytes messages = {0};
    if (run_plan(&plan, output)) {
        bool heard = gpt_read_file(plan.errors, &messages);
        outcome->status = gpt_read_errors(heard && messages.data ? messages.data : "",
                                          heard ? messages.size : 0, outcome->fault, sizeof(outcome->fault));
    } else {
        bool late = errno == ETIMEDOUT;
        outcome->status = late ? GPT_MISSING : GPT_NOT_RUN;
        snprintf(outcome->fault, sizeof(outcome->fault),
                 late ? "gpt-extract and gpt-asm didn't answer in time"
                      : "cannot run gpt-extract and gpt-asm: %s",
                 strerror(errno));
    }
    if (plan.input >= 0)
        close(plan.input);
    if (plan.errors >= 0)
        close(plan.errors);
    free(plan.environment);
    gpt_empty(&messages);
}
