// gpt-hook: sets the environment that brings libgpthook.so into a command, and becomes the command: its pid,
// signals, terminal and exit status are the command's own.

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/broker.h"
#include "../common/control.h"
#include "../common/kept.h"
#include "../common/unwatchable.h"
#include "launcher.h"
#include "probe.h"

static const char HELP[] =
    "usage: gpt-hook run [-o FILE] [-f] [-q] [--calls all|none|WORD,...] [--stacks WORD,...]\n"
    "                    [--gpu-time] [--ioctl] [--save-modules DIR] [--device real|sim] [--replace DIR]\n"
    "                    [-p PROBE ... | --jit PIPELINE] [-k NAME:...] [--filter NAME:...] [--]\n"
    "                    [--disabled | --control] COMMAND [ARG ...]\n"
    "       gpt-hook ctl [--all] [--json] PID enable|disable|status\n"
    "       gpt-hook ctl [--all] [-k NAME:...] [--filter NAME:...] [--jit PIPELINE] PID probe [PROBE ...]\n"
    "       gpt-hook attach -p PID | --system [OPTION ...]\n"
    "       gpt-hook functions [--calls WORD,...]\n"
    "       gpt-hook check\n"
    "       gpt-hook --help | --version\n"
    "\n"
    "run    run COMMAND and record what it does with the CUDA driver\n"
    "  -o, --output FILE   the trace (trace.mp); %p is the pid, %h the host, %r RANK; a FIFO,\n"
    "                      '-' or '|COMMAND' get the stream while the program runs\n"
    "  -f, --force         overwrite FILE\n"
    "  -q, --quiet         do not say at the end what was written\n"
    "      --calls WORD,.. record the calls of these driver functions: all, none, globs of\n"
    "                      their names, types as memcpy or kernel, query; -WORD excludes\n"
    "                      (all,-query; with --ioctl all)\n"
    "      --stacks WORD,..  record where calls of these functions come from (none)\n"
    "      --gpu-time      time kernels, copies and memsets on the GPU, with two events each\n"
    "      --ioctl         record what the driver asks the kernel for\n"
    "      --save-modules DIR  keep the images of modules that are not in a file\n"
    "      --device KIND   real, or sim: a device simulated in host memory (real)\n"
    "      --replace DIR   load the libraries in DIR instead of those of the same name and build id\n"
    "  -p, --probe PROBE   weave a probe into the kernels that COMMAND launches: a file or a\n"
    "                      built-in probe; repeatable\n"
    "      --jit PIPELINE  a shell pipeline that weaves them, from modules to images\n"
    "  -k, --kernel NAME:...  only kernels with such a part in their name\n"
    "      --filter NAME:...  no kernels with such a part in their name\n"
    "      --wait S        seconds that look-ups may wait for kernels with probes (30)\n"
    "      --launch-skip N    leave out the first N launches of each kernel\n"
    "      --launch-count N   probe no more than N launches of each kernel\n"
    "      --sample 1/N    probe one launch in N of each kernel\n"
    "      --max-memory SIZE  device memory for buffers, as 512M (a tenth of what is free)\n"
    "      --complete      wait for buffers rather than leave out a launch\n"
    "      --benchmark     run each kernel without probes too, and time both; save no buffers\n"
    "      --memusage      only add up what buffers would need\n"
    "      --control       let gpt-hook ctl turn recording on and off\n"
    "      --disabled      the same, and begin with nothing recorded\n"
    "ctl    turn recording on or off in a process that was started so, or say how it is; or\n"
    "       name the probes that go into its kernels while it is on, in place of earlier ones\n"
    "      --all           in all processes of its run\n"
    "      --json          say it as JSON, a line for each process\n"
    "attach watch a process that already runs, by bpftrace, as root; see gpt-hook attach --help\n"
    "functions  print what is known of the driver's functions\n"
    "check  report what is installed: driver, devices, runtime, kernel features\n";

void help(void) {
    fputs(HELP, stdout);
    exit(0);
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

// Puts a value in front of a list in the environment.
static void prepend(const char *name, const char *value, bool split_at_spaces) {
    if (strchr(value, ':') || (split_at_spaces && strchr(value, ' ')))
        fail(MISSING, value, "the dynamic linker does not accept a path with a colon%s: move the runtime",
             split_at_spaces ? " or space" : "");
    const char *old = getenv(name);
    char *all;
    if (asprintf(&all, "%s%s%s", value, old && *old ? ":" : "", old ? old : "") < 0 || setenv(name, all, 1))
        fail(BAD, NULL, "%s", strerror(errno));
    free(all);
}

// The absolute name of a folder.
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

// What the command line asks for.
struct request {
    const char *output, *calls, *stacks, *device, *modules, *replacements;
    bool force, quiet, gpu_time, ioctls, simulated, control, disabled;
    struct probing probing;
    char **command; // and its arguments
};

static void read_options(struct request *request, int argc, char **argv) {
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'},
        {"force", no_argument, NULL, 'f'},
        {"calls", required_argument, NULL, 'c'},
        {"stacks", required_argument, NULL, 't'},
        {"gpu-time", no_argument, NULL, 'g'},
        {"ioctl", no_argument, NULL, 'i'},
        {"save-modules", required_argument, NULL, 's'},
        {"device", required_argument, NULL, 'd'},
        {"replace", required_argument, NULL, 'r'},
        {"quiet", no_argument, NULL, 'q'},
        {"probe", required_argument, NULL, 'p'},
        {"kernel", required_argument, NULL, 'k'},
        {"jit", required_argument, NULL, 'j'},
        {"filter", required_argument, NULL, 'x'},
        {"wait", required_argument, NULL, 'w'},
        {"launch-skip", required_argument, NULL, 'S'},
        {"launch-count", required_argument, NULL, 'C'},
        {"sample", required_argument, NULL, 'n'},
        {"max-memory", required_argument, NULL, 'm'},
        {"complete", no_argument, NULL, 'a'},
        {"control", no_argument, NULL, 'l'},
        {"disabled", no_argument, NULL, 'D'},
        {"benchmark", no_argument, NULL, 'b'},
        {"memusage", no_argument, NULL, 'u'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct probing *probing = &request->probing;
    for (int option; (option = getopt_long(argc, argv, "+:o:fqhp:k:", options, NULL)) != -1;)
        switch (option) {
        case 'o':
            request->output = optarg;
            break;
        case 'f':
            request->force = true;
            break;
        case 'q':
            request->quiet = probing->quiet = true;
            break;
        case 'c':
            request->calls = optarg;
            break;
        case 't':
            request->stacks = optarg;
            break;
        case 'd':
            request->device = optarg;
            break;
        case 's':
            request->modules = optarg;
            break;
        case 'i':
            request->ioctls = true;
            break;
        case 'r':
            request->replacements = optarg;
            break;
        case 'g':
            request->gpu_time = true;
            break;
        case 'p':
            if (probing->probe_count == MOST_PROBES)
                fail(USAGE, "-p", "more than %d probes", MOST_PROBES);
            probing->probes[probing->probe_count++] = optarg;
            break;
        case 'k':
            probing->kernels = add_parts("-k", probing->kernels, optarg);
            break;
        case 'j':
            probing->jit = optarg;
            break;
        case 'x':
            probing->filter = add_parts("--filter", probing->filter, optarg);
            break;
        case 'w':
            probing->wait = optarg;
            break;
        case 'S':
            probing->skip = optarg;
            break;
        case 'C':
            probing->count = optarg;
            break;
        case 'n':
            probing->sample = optarg;
            break;
        case 'm':
            probing->memory = optarg;
            break;
        case 'a':
            probing->complete = true;
            break;
        case 'D':
            request->disabled = true;
            // fall through
        case 'l':
            request->control = true;
            break;
        case 'b':
            probing->benchmark = true;
            break;
        case 'u':
            probing->memusage = true;
            break;
        case 'h':
            help();
        case ':':
            fail(USAGE, argv[optind - 1], "needs a value");
        default:
            fail(USAGE, argv[optind - 1], "no such option; see gpt-hook --help");
        }
    request->command = argv + optind;
}

// What makes no sense ends here, before anything is written.
static void check_request(struct request *request) {
    const char *output = request->output;
    if (!*request->command)
        fail(USAGE, "run", "no command; see gpt-hook --help");
    if (!*output || (*output != '|' && output[strlen(output) - 1] == '/') || !strcmp(output, "|"))
        fail(USAGE, "-o", *output == '|' ? "no command" : "not a file name");
    if (!request->calls) // queries ask the kernel too, and are to be the parents of what they ask
        request->calls = request->ioctls ? "all" : "all,-query";
    if (!*request->calls)
        fail(USAGE, "--calls", "names nothing; 'none' records no calls");
    check_calls("--calls", request->calls);
    if (request->stacks)
        check_calls("--stacks", request->stacks);
    request->simulated = !strcmp(request->device, "sim");
    if (!request->simulated && strcmp(request->device, "real"))
        fail(USAGE, "--device", "'%s' is neither real nor sim", request->device);
}

static void need_runtime(const char *name, char path[PATH_MAX]) {
    if (!find_runtime(name, path))
        fail(MISSING, path, "not found: run 'make runtime', or set GPT_RUNTIME");
}

// Nothing of an outer gpt-hook is left in it.
void set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

// The process that this one becomes says at its end what was written, if there still is our standard error.
static void set_report(bool wanted) {
    struct stat error;
    char value[96];
    if (!wanted || fstat(STDERR_FILENO, &error)) {
        set("GPT_HOOK_REPORT", NULL);
        set("GPT_HOOK_NOTES", NULL);
        return;
    }
    snprintf(value, sizeof(value), "%d %llu %llu", getpid(), (unsigned long long)error.st_dev,
             (unsigned long long)error.st_ino);
    set("GPT_HOOK_REPORT", value);
    char notes[PATH_MAX];
    const char *folder = getenv("TMPDIR");
    snprintf(notes, sizeof(notes), "%s/gpt-hook-%s", folder && *folder == '/' ? folder : "/tmp",
             getenv("GPT_HOOK_RUN"));
    set("GPT_HOOK_NOTES", notes);
}

// Fails for a program that cannot be watched.
static void check_command(const char *path) {
    char program[PATH_MAX];
    strcpy(program, path);
    const char *found = gpt_find_unwatchable(program);
    if (found)
        fail(MISSING, program, "%s: it cannot be watched", found);
}

// A stage, as a shell would run it where it is not beside this program.
static char *find_stage(const char *name, char path[PATH_MAX]) {
    return find_neighbour(name, path) ? path : (char *)name;
}

// gpt-hook attach: a program in Python, which asks this one for its table of functions.
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
        fail(BAD, folder, "cannot be made, or is no folder");
    close(opened);
    return 0;
}

static int run(int argc, char **argv) {
    struct request request = {.output = "trace.mp", .device = "real"};
    read_options(&request, argc, argv);
    check_request(&request);

    char library[PATH_MAX], driver[PATH_MAX], auditor[PATH_MAX], path[PATH_MAX];
    need_runtime("libgpthook.so", library);
    if (request.simulated)
        need_runtime("sim/libcuda.so.1", driver);
    if (request.replacements)
        request.replacements = find_folder(request.replacements), need_runtime("libgptreplace.so", auditor);
    find_command(request.command[0], path);
    check_command(path);
    set(GPT_CACHE_SAID, NULL);
    if (request.simulated || request.probing.probe_count || request.probing.jit)
        set(GPT_CACHE_SAID, gpt_complain_of_kept() ? "1" : NULL);
    const char *pipeline = use_probing(&request.probing);
    begin_trace(request.output, request.force, request.quiet, probes_call_back, request.command);

    set_report(!request.quiet);
    set("GPT_HOOK_CALLS", request.calls);
    set("GPT_HOOK_STACKS", request.stacks);
    set("GPT_HOOK_IOCTL", request.ioctls ? "1" : NULL);
    set("GPT_HOOK_GPU_TIME", request.gpu_time ? "1" : NULL);
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
    prepend("LD_PRELOAD", library, true);
    // That of gcc ends a program whose first library is another one.
    prepend("ASAN_OPTIONS", "verify_asan_link_order=0", false);
    const char *injection = getenv("NVTX_INJECTION64_PATH"); // of another tool, which gets the ranges too
    if (!injection || !*injection || strcmp(injection, library))
        set("GPT_HOOK_NVTX", injection);
    set("NVTX_INJECTION64_PATH", library);
    if (request.replacements) {
        prepend("LD_AUDIT", auditor, false);
        set("GPT_HOOK_REPLACE", request.replacements);
    }
    if (request.simulated) {
        *strrchr(driver, '/') = '\0';
        prepend("LD_LIBRARY_PATH", driver, false);
    }
    execv(path, request.command);
    if (errno == ENOEXEC) { // as execvp does: a script without its first line
        request.command[0] = path;
        *--request.command = "sh"; // in place of `run`, or of an option
        execv("/bin/sh", request.command);
    }
    fail(errno == ENOENT ? NOT_FOUND : CANNOT_RUN, path, "%s", strerror(errno));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
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
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) {
        help();
    }
    if (*what)
        fail(USAGE, what, "no such command; see gpt-hook --help");
    fail(USAGE, "arguments", "none; see gpt-hook --help");
}
