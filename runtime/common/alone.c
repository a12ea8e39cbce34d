// A pipeline that the program runs itself, for one request. The program notices nothing: what it waits for
// are its own children, of which these are none. A first child makes the pipeline and goes; as its end sends
// no signal, only who asks for it, as this does, meets it. The pipeline has a session, and none of the
// program's descriptors, handlers of signals or preloaded libraries.

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

struct start {
    struct gpt_plan plan;
    unsigned char *stacks;
};

static int run(void *start) { return gpt_become(&((struct start *)start)->plan); }

static int run_and_leave(void *given) {
    struct start *start = given;
    _exit(clone(run, start->stacks + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, start) < 0);
}

static bool start(const struct gpt_plan *plan) {
    struct start start = {*plan,
                          mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
    sigset_t all, mask;
    if (start.stacks == MAP_FAILED)
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask);
    int status = 1;
    pid_t child = clone(run_and_leave, start.stacks + 2 * STACK, CLONE_VM | CLONE_VFORK, &start);
    if (child > 0 && waitpid(child, &status, __WCLONE) != child)
        status = 1;
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    munmap(start.stacks, 2 * STACK);
    return child > 0 && !status;
}

// A stage: beside the library as it lies in a checkout or in an installation, else in PATH.
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

static void read_all(int file, struct gpt_bytes *found) {
    for (ssize_t got = 1; got && found->size < MOST;) {
        char *to = gpt_make_room(found, BLOCK);
        got = to ? read(file, to, BLOCK) : 0;
        if (got < 0 && errno != EINTR)
            return;
        found->size += got > 0 ? (size_t)got : 0;
    }
}

void gpt_run_alone(enum gpt_pipeline which, const struct gpt_bytes *input, struct gpt_bytes *output,
                   struct gpt_outcome *outcome) {
    char extract[PATH_MAX], assemble[PATH_MAX];
    char *words[] = {"sh", "-c", (char *)gpt_lines[which], "gpt", extract, assemble, NULL};
    int ends[2] = {-1, -1};
    struct gpt_plan plan = {.words = words,
                            .environment = gpt_make_environment(),
                            .input = gpt_make_file(input->data, input->size),
                            .errors = gpt_make_file("", 0)};
    find_stage("gpt-extract", extract);
    find_stage("gpt-asm", assemble);
    outcome->status = GPT_NO_STATUS;
    if (plan.input >= 0 && plan.errors >= 0 && plan.environment && !pipe2(ends, O_CLOEXEC)) {
        plan.output = ends[1];
        bool started = start(&plan);
        close(ends[1]);
        if (started)
            read_all(ends[0], output);
        close(ends[0]);
        outcome->status = gpt_read_errors(plan.errors, outcome->fault, sizeof(outcome->fault));
    }
    if (plan.input >= 0)
        close(plan.input);
    if (plan.errors >= 0)
        close(plan.errors);
    free(plan.environment);
}
