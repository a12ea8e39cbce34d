// Runs a pipeline of stages over an image. The program notices nothing: what it waits for are its own
// children, of which these are none. A first child makes the pipeline and goes; as its end sends no signal,
// only who asks for it, as this does, meets it. The pipeline has a session, and none of the program's
// descriptors, handlers of signals or preloaded libraries.

#include <dlfcn.h>
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

#include "build.h"
#include "unpack.h"

extern char **environ;

enum { STACK = 64 << 10, MOST = 1 << 28, MISSING = 4 }; // bytes; the exit status of a stage that lacks a tool

static const struct {
    const char *line, *kind; // of the shell; of the record that is wanted
} pipelines[] = {
    [SIM_MAKE] = {"\"$1\" --ptx | \"$2\" --arch host --kernel \"$3\"; echo $? >&2", "object"},
    [SIM_UNPACK] = {"\"$1\" --ptx; echo $? >&2", "ptx"},
};

struct plan {
    char **words, **environment;
    int input, output, errors;
    unsigned char *stacks;
    sigset_t mask;
};

// The pipeline itself.
static int run(void *given) {
    const struct plan *plan = given;
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int number = 1; number < 65; number++)
        sigaction(number, &action, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (dup2(plan->input, 0) < 0 || dup2(plan->output, 1) < 0 || dup2(plan->errors, 2) < 0)
        _exit(127);
    close_range(3, ~0u, 0);
    execve("/bin/sh", plan->words, plan->environment);
    _exit(127);
}

static int run_and_leave(void *given) {
    struct plan *plan = given;
    _exit(clone(run, plan->stacks + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, plan) < 0);
}

static bool start(struct plan *plan) {
    sigset_t all;
    plan->stacks = mmap(NULL, 2 * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (plan->stacks == MAP_FAILED)
        return false;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &plan->mask);
    int status = 1;
    pid_t child = clone(run_and_leave, plan->stacks + 2 * STACK, CLONE_VM | CLONE_VFORK, plan);
    if (child > 0 && waitpid(child, &status, __WCLONE) != child)
        status = 1;
    pthread_sigmask(SIG_SETMASK, &plan->mask, NULL);
    munmap(plan->stacks, 2 * STACK);
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

// The environment, without what would load libraries into the stages, or watch them.
static char **environment(void) {
    static const char *const without[] = {"LD_PRELOAD=", "LD_AUDIT=", "GPT_HOOK_"};
    size_t count = 0, kept = 0;
    while (environ && environ[count])
        count++;
    char **copy = calloc(count + 1, sizeof(*copy));
    for (size_t i = 0; copy && i < count; i++) {
        bool leave = false;
        for (size_t k = 0; k < sizeof(without) / sizeof(*without); k++)
            leave |= !strncmp(environ[i], without[k], strlen(without[k]));
        if (!leave)
            copy[kept++] = environ[i];
    }
    return copy;
}

static int as_file(const char *data, size_t size) {
    int file = memfd_create("gpt-sim", MFD_CLOEXEC);
    while (file >= 0 && size) {
        ssize_t written = write(file, data, size);
        if (written <= 0) {
            close(file);
            return -1;
        }
        data += written, size -= (size_t)written;
    }
    if (file >= 0)
        lseek(file, 0, SEEK_SET);
    return file;
}

static void read_all(int file, struct bytes *found) {
    size_t room = 0;
    for (ssize_t got = 1; got > 0 && found->size < MOST; found->size += got > 0 ? (size_t)got : 0) {
        if (room - found->size < 4096) {
            char *larger = realloc(found->data, room + 65536 + room / 2);
            if (!larger)
                return;
            found->data = larger;
            room += 65536 + room / 2;
        }
        got = read(file, found->data + found->size, room - found->size - 1);
    }
}

// What the stages answer

struct answer {
    struct bytes made; // the payload of the last record of the kind that is wanted
    char fault[1024];  // the first that a record reports
    long status;       // of the last stage
};

static void read_record(struct cursor *cursor, const char *kind, struct answer *answer) {
    struct value map = read_value(cursor), is_kind = {0}, data = {0}, text = {0}, where = {0}, level = {0};
    struct {
        const char *name;
        struct value *value;
    } wanted[] = {{"kind", &is_kind}, {"data", &data}, {"text", &text}, {"where", &where}, {"level", &level}};
    if (map.type != MAP) {
        cursor->bad = true;
        return;
    }
    for (uint64_t i = 0; i < map.number && !cursor->bad; i++) {
        struct value name = take_value(cursor), value = take_value(cursor);
        for (size_t k = 0; k < sizeof(wanted) / sizeof(*wanted); k++)
            if (is(name, wanted[k].name))
                *wanted[k].value = value;
    }
    if (cursor->bad)
        return;
    if (is(is_kind, kind) && data.type == BINARY) {
        free(answer->made.data);
        answer->made.data = malloc(data.number + 1);
        answer->made.size = answer->made.data ? data.number : 0;
        if (answer->made.data)
            memcpy(answer->made.data, data.data, data.number), answer->made.data[data.number] = '\0';
    } else if (is(is_kind, "diag") && is(level, "error") && !*answer->fault)
        snprintf(answer->fault, sizeof(answer->fault), "%.*s: %.*s",
                 where.type == TEXT ? (int)where.number : 0, where.data,
                 text.type == TEXT ? (int)text.number : 0, text.data);
}

// What was written to standard error: messages, and in the last line the status. A fault that no record
// reports stands in the line before.
static void read_errors(int file, struct answer *answer) {
    char text[4096], *before = NULL, *last = NULL, *rest = text;
    ssize_t size = pread(file, text, sizeof(text) - 1, 0);
    text[size > 0 ? size : 0] = '\0';
    for (char *line; (line = strtok_r(rest, "\n", &rest)); last = line)
        before = last;
    answer->status = last ? strtol(last, NULL, 10) : 0;
    if (before && !*answer->fault)
        snprintf(answer->fault, sizeof(answer->fault), "%.1000s", before);
}

static CUresult judge(const struct answer *answer, const char *kernel) {
    if (answer->made.data && !*answer->fault)
        return CUDA_SUCCESS;
    sim_say("%s%.512s%s%s", kernel ? "kernel '" : "compressed PTX", kernel ? kernel : "",
            kernel ? "': " : ": ",
            *answer->fault ? answer->fault : "gpt-extract or gpt-asm ended without an answer");
    return answer->status >= 1 && answer->status < MISSING ? CUDA_ERROR_INVALID_PTX
                                                           : CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

CUresult sim_run_stages(enum sim_stages which, const char *input, size_t size, const char *kernel,
                        struct bytes *made) {
    char extract[PATH_MAX], assemble[PATH_MAX];
    char *words[] = {"sh",           "-c", (char *)pipelines[which].line, "gpt-sim", extract, assemble,
                     (char *)kernel, NULL};
    struct plan plan = {
        .words = words, .environment = environment(), .errors = memfd_create("gpt-sim", MFD_CLOEXEC)};
    struct answer answer = {0};
    struct bytes got = {0};
    int ends[2] = {-1, -1}, before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    find_stage("gpt-extract", extract);
    find_stage("gpt-asm", assemble);
    plan.input = as_file(input, size);
    if (plan.input >= 0 && plan.errors >= 0 && plan.environment && !pipe2(ends, O_CLOEXEC)) {
        plan.output = ends[1];
        bool started = start(&plan);
        close(ends[1]);
        if (started)
            read_all(ends[0], &got);
        close(ends[0]);
        struct cursor cursor = {(unsigned char *)got.data, (unsigned char *)got.data + got.size, false};
        while (cursor.at < cursor.end && !cursor.bad)
            read_record(&cursor, pipelines[which].kind, &answer);
        read_errors(plan.errors, &answer);
    }
    CUresult status = judge(&answer, kernel);
    if (status)
        free(answer.made.data);
    else
        *made = answer.made;
    if (plan.input >= 0)
        close(plan.input);
    if (plan.errors >= 0)
        close(plan.errors);
    free(plan.environment);
    free(got.data);
    pthread_setcancelstate(before, NULL);
    return status;
}
