// gpt-hook: sets up the environment that loads libgpthook.so into a command, and becomes the command: its
// pid, signals, terminal and exit status are the command's own.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/broker.h"
#include "../common/cache.h"
#include "../common/control.h"
#include "../common/own.h"
#include "../common/unwatchable.h"
#include "../say.h"
#include "launcher.h"
#include "options.h"
#include "probe.h"

#define TENSORS "gpt/tensors/__init__.py"
#define LAYERS "layers/sitecustomize.py"

// Warn of options that make Python ignore PYTHONPATH, because --layers loads gpt.layers through it.
static void check_python(char *const *command) {
    const char *name = strrchr(command[0], '/');
    if (strncmp(name ? name + 1 : command[0], "python", strlen("python")))
        return;
    for (char *const *word = command + 1;
         *word && **word == '-' && strcmp(*word, "-m") && strcmp(*word, "-c"); word++)
        if ((*word)[1] != '-' && (*word)[1 + strcspn(*word + 1, "IES")])
            fprintf(stderr,
                    "gpt-hook: warning: %s: with this option, Python doesn't load gpt.layers: no modules are "
                    "recorded\n",
                    *word);
}

static void save_modules(const char *folder) {
    struct stat status;
    if (mkdir(folder, 0777) && errno != EEXIST)
        fail(BAD, folder, "%s", strerror(errno));
    if (!lstat(folder, &status) && S_ISLNK(status.st_mode) && !gpt_is_user(status.st_uid, 0) &&
        !gpt_is_user(status.st_uid, geteuid()))
        fail(BAD, folder, "is a symbolic link that another user may have made");
    if (access(folder, W_OK | X_OK))
        fail(BAD, folder, "%s", strerror(errno));
    setenv("GPT_HOOK_MODULES", absolute(folder), 1);
}

// A command has one hook. If this is part of another run, that run's trace won't have the command.
static void warn_of_outer_run(void) {
    const char *outer = getenv("GPT_HOOK_ROOT");
    char line[PATH_MAX + 128];
    if (!outer || !*outer)
        return;
    snprintf(line, sizeof(line),
             "gpt-hook: warning: %s won't have this command: another gpt-hook run records it", outer);
    gpt_write_line(line);
}

// Put a folder or file at the front of a list in the environment.
static void prepend(const char *name, const char *value) {
    if (strchr(value, ':'))
        fail(MISSING, value, "%s takes no path with a colon: move the runtime", name);
    const char *old = getenv(name);
    char *all;
    if (asprintf(&all, "%s%s%s", value, old && *old ? ":" : "", old ? old : "") < 0 || setenv(name, all, 1))
        fail(BAD, NULL, "%s", strerror(errno));
    free(all);
}

static void prepend_folder(const char *name, const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    prepend(name, folder);
}

// LD_PRELOAD is split at blanks too, and has no quotes. If the folder's name has a blank, the library has to
// be found by its name alone.
static void preload(const char *library) {
    bool is_split = library[strcspn(library, " \t\n")];
    prepend("LD_PRELOAD", is_split ? strrchr(library, '/') + 1 : library);
    if (is_split)
        prepend_folder("LD_LIBRARY_PATH", library);
}

// Return the absolute name of a folder.
static const char *find_folder(const char *name) {
    struct stat status;
    char *folder = realpath(name, NULL);
    if (!folder || stat(folder, &status))
        fail(MISSING, name, "%s", strerror(errno));
    if (!S_ISDIR(status.st_mode))
        fail(USAGE, name, "not a folder");
    if (access(folder, R_OK | X_OK))
        fail(MISSING, name, "%s", strerror(errno));
    return folder;
}

static void need_runtime(const char *name, char path[PATH_MAX]) {
    if (find_runtime(name, path))
        return;
    if (!*path)
        fail(MISSING, name, "can't be searched for: /proc isn't mounted; set GPT_RUNTIME");
    fail(MISSING, path, "not found: run 'make runtime', or set GPT_RUNTIME");
}

// The process that we become reports its traces at exit, if our standard error is still open then.
static void set_report(bool wanted) {
    struct stat error;
    char value[PATH_MAX + 96], path[PATH_MAX] = "";
    if (!wanted || fstat(STDERR_FILENO, &error)) {
        set("GPT_HOOK_REPORT", NULL);
        set("GPT_HOOK_NOTES", NULL);
        return;
    }
    // The program may close its standard error, as coreutils do at exit. A terminal or file can be opened
    // again.
    if ((S_ISCHR(error.st_mode) || S_ISREG(error.st_mode)) &&
        readlink("/proc/self/fd/2", path, sizeof(path) - 1) < 0)
        *path = '\0';
    snprintf(value, sizeof(value), "%d %llu %llu %s", getpid(), (unsigned long long)error.st_dev,
             (unsigned long long)error.st_ino, path);
    set("GPT_HOOK_REPORT", value);
    char notes[PATH_MAX];
    snprintf(notes, sizeof(notes), "%s/gpt-hook-%s", gpt_temporary_parent(), getenv("GPT_HOOK_RUN"));
    set("GPT_HOOK_NOTES", notes);
}

// Set where the processes in a run count the bytes that they write, and how many these may be.
static void set_disk(const char *bytes) {
    char value[PATH_MAX + 64];
    const char *folder = getenv("TMPDIR");
    snprintf(value, sizeof(value), "%s %d %s/gpt-hook-%s.disk", bytes ? bytes : "", getpid(),
             folder && *folder == '/' ? folder : "/tmp", getenv("GPT_HOOK_RUN"));
    set("GPT_HOOK_MAX_DISK", bytes ? value : NULL);
}

// Fail if gpt-hook can't watch the program.
static void check_command(const char *path) {
    static char program[PATH_MAX];
    strcpy(program, path);
    const char *found = gpt_find_unwatchable(program);
    if (found)
        fail(MISSING, program, "%s: it cannot be watched", found);
}

// Find a stage next to this program, otherwise as a shell would.
static char *find_stage(const char *name, char path[PATH_MAX]) {
    return find_neighbour(name, path) ? path : (char *)name;
}

// gpt-hook attach: runs gpt-attach, a Python program that gets the table of functions from this one.
static int attach(char **argv) {
    char path[PATH_MAX], self[PATH_MAX] = "";
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0)
        setenv("GPT_HOOK", self, 1);
    argv[0] = find_stage("gpt-attach", path);
    execvp(argv[0], argv);
    fail(MISSING, argv[0], "%s", strerror(errno));
}

// gpt-hook private FOLDER, for gpt-debloat: makes a folder, and fails if another user could have filled it.
static int private(const char *folder) {
    static struct gpt_distrust why;
    int opened = gpt_open_private(absolute(folder), true, &why);
    if (opened < 0 && *why.reason)
        fail(BAD, why.where, "%s", why.reason);
    if (opened < 0)
        fail(BAD, folder, "cannot be created, or is not a folder");
    close(opened);
    return 0;
}

static int run(int argc, char **argv) {
    struct request request = {.output = "trace.mp", .device = "real"};
    read_options(&request, argc, argv);

    // Static, as is each large buffer that lives long: the command may be given a stack of 64 KiB.
    static char library[PATH_MAX], driver[PATH_MAX], auditor[PATH_MAX], path[PATH_MAX], tensors[PATH_MAX],
        layers[PATH_MAX];
    need_runtime("libgpthook.so", library);
    if (request.simulated)
        need_runtime("sim/libcuda.so.1", driver);
    if (request.replacements)
        request.replacements = find_folder(request.replacements), need_runtime("libgptreplace.so", auditor);
    if (request.tensors)
        need_runtime("python/" TENSORS, tensors);
    if (request.layers)
        need_runtime(LAYERS, layers), check_python(request.command);
    find_command(request.command[0], path);
    check_command(path);
    set(GPT_CACHE_SAID, NULL);
    if (request.simulated || request.probing.probe_count || request.probing.jit)
        set(GPT_CACHE_SAID, gpt_warn_of_cache() ? "1" : NULL);
    const char *pipeline = use_probing(&request.probing);
    if (request.disk && probe_callbacks.size)
        fail(USAGE, "--max-disk", "the trace goes through gpt-dump, for the callbacks of its probes");
    if (request.disk && is_stream(request.output))
        fail(USAGE, "--max-disk", "a stream has no size; limit what reads it");
    warn_of_outer_run();
    begin_trace(request.output, request.force, request.quiet, &probe_callbacks, request.command);

    set_report(!request.quiet);
    set_disk(request.disk);
    set("GPT_HOOK_CALLS", request.calls);
    set("GPT_HOOK_STACKS", request.stacks);
    set("GPT_HOOK_SAMPLE_HOST", request.sample_host);
    set("GPT_HOOK_IOCTL", request.ioctls ? "1" : NULL);
    set("GPT_HOOK_GPU_TIME", request.gpu_time ? "1" : NULL);
    set("GPT_HOOK_NODE_TIMES", request.node_times);
    set("GPT_HOOK_DISABLED", request.disabled ? "1" : NULL);
    set(GPT_CONTROL, request.control ? getenv("GPT_HOOK_RUN") : NULL);
    set("GPT_HOOK_MODULES", NULL);
    set(GPT_BROKER, NULL);
    if (request.simulated || pipeline || request.control) {
        static char places[GPT_STAGES][PATH_MAX];
        char *paths[GPT_STAGES];
        for (size_t i = 0; i < GPT_STAGES; i++)
            paths[i] = find_stage(gpt_stages[i], places[i]);
        gpt_start_broker(paths, getenv("GPT_HOOK_PROBE"), pipeline, request.control);
    }
    if (request.modules)
        save_modules(request.modules);
    preload(library);
    // gcc's ASan ends a program if another library is loaded first.
    prepend("ASAN_OPTIONS", "verify_asan_link_order=0");
    const char *injection =
        getenv("NVTX_INJECTION64_PATH"); // another tool's library; the hook passes ranges on to it
    if (!injection || !*injection || strcmp(injection, library))
        set("GPT_HOOK_NVTX", injection);
    set("NVTX_INJECTION64_PATH", library);
    if (request.replacements) {
        prepend("LD_AUDIT", auditor);
        set("GPT_HOOK_REPLACE", request.replacements);
    }
    if (request.simulated)
        prepend_folder("LD_LIBRARY_PATH", driver);
    if (request.tensors) { // the folder's `gpt` is a namespace package, so a `gpt` of the program's own wins
        tensors[strlen(tensors) - strlen("/" TENSORS)] = '\0';
        prepend("PYTHONPATH", tensors);
    }
    if (request.layers)
        prepend_folder("PYTHONPATH", layers);
    execv(path, request.command);
    if (errno == ENOEXEC) { // as execvp does, for a script without a #! line
        request.command[0] = path;
        *--request.command = "sh"; // this slot held `run` or an option
        execv("/bin/sh", request.command);
    }
    fail(errno == ENOENT ? NOT_FOUND : CANNOT_RUN, path, "%s", strerror(errno));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    bool asked = argc > 1 && (!strcmp(argv[argc - 1], "--help") || !strcmp(argv[argc - 1], "-h"));
    if (asked && (argc == 2 || !strcmp(what, "functions") || !strcmp(what, "check")))
        help();
    if (!strcmp(what, "run"))
        return run(argc - 1, argv + 1);
    if (!strcmp(what, "ctl"))
        return control(argc - 1, argv + 1);
    if (!strcmp(what, "attach"))
        return attach(argv + 1);
    if (!strcmp(what, "functions"))
        return functions(argc - 1, argv + 1);
    if (!strcmp(what, "private") && argc == 3)
        return private(argv[2]);
    if (!strcmp(what, "check") && argc == 2)
        return check();
    if (!strcmp(what, "--version") && argc == 2) {
        puts("gpt-hook " GPT_PACKAGE_VERSION);
        return 0;
    }
    fail_without_command(argv + 1);
}
