// gpt-hook: sets the environment that brings libgpthook.so into a command, and becomes the command: its pid,
// signals, terminal and exit status are the command's own.

#include <dirent.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "../cuda_abi.h"
#include "../follow/follow.h"
#include "template.h"

enum { BAD = 1, USAGE = 2, MISSING = 4, CANNOT_RUN = 126, NOT_FOUND = 127 };

static const char HELP[] =
    "usage: gpt-hook run [-o FILE] [-f] [--calls all|none|WORD,...] [--gpu-time] [--ioctl]\n"
    "                    [--save-modules DIR] [--device real|sim] [--replace DIR] [--]\n"
    "                    COMMAND [ARG ...]\n"
    "       gpt-hook check\n"
    "       gpt-hook --help | --version\n"
    "\n"
    "run    run COMMAND and record what it does with the CUDA driver\n"
    "  -o, --output FILE   the trace (trace.mp); %p is the pid, %h the host, %r RANK; a FIFO,\n"
    "                      '-' or '|COMMAND' get the stream while the program runs\n"
    "  -f, --force         overwrite FILE\n"
    "      --calls WORD,.. record the calls of these driver functions: all, none, globs of\n"
    "                      their names, types as memcpy or kernel, query; -WORD leaves out\n"
    "                      (all,-query; with --ioctl all)\n"
    "      --gpu-time      time kernels, copies and memsets on the GPU, with two events each\n"
    "      --ioctl         record what the driver asks the kernel for\n"
    "      --save-modules DIR  keep the images of modules that lie in no file\n"
    "      --device KIND   real, or sim: a device simulated in host memory (real)\n"
    "      --replace DIR   load the libraries in DIR instead of those of the same name and build id\n"
    "check  say what is here: driver, devices, runtime, kernel features\n";

static void say(const char *level, const char *where, const char *format, va_list args) {
    fprintf(stderr, "gpt-hook: %s: %s%s", level, where ? where : "", where ? ": " : "");
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

__attribute__((format(printf, 3, 4), noreturn)) static void fail(int status, const char *where,
                                                                 const char *format, ...) {
    va_list args;
    va_start(args, format);
    say("error", where, format, args);
    va_end(args);
    exit(status);
}

// Where things are

static bool readable(const char *path) { return !access(path, R_OK); }

// Finds a file of the runtime in the Python package that this program was installed with; of the packages of
// several Pythons that of this version.
static bool find_packaged(const char *folder, const char *name, char path[PATH_MAX]) {
    char pattern[3 * PATH_MAX], version[2 * PATH_MAX], *at = pattern;
    for (; *folder; *at++ = *folder++)
        if (strchr("*?[\\", *folder))
            *at++ = '\\';
    snprintf(at, PATH_MAX, "/../lib*/python3*/*-packages/gpt/_runtime/%s", name);
    glob_t found;
    bool any = !glob(pattern, 0, NULL, &found), same = false;
    for (size_t i = 0; any && i < found.gl_pathc && !same; i++) {
        const char *file = found.gl_pathv[i];
        snprintf(version, sizeof(version), "%.*s/gpu_probe_toolchain-%s.dist-info",
                 (int)(strstr(file, "-packages/gpt/_runtime/") - file) + 9, file, GPT_PACKAGE_VERSION);
        same = !access(version, F_OK);
        if ((i == 0 || same) && !realpath(file, path))
            any = false;
    }
    globfree(&found);
    return any;
}

// Finds a file of the runtime: in GPT_RUNTIME, beside this program, in ../lib/gpt of its folder, or in the
// package that it was installed with.
static bool find_runtime(const char *name, char path[PATH_MAX]) {
    const char *folder = getenv("GPT_RUNTIME");
    if (folder && *folder) {
        snprintf(path, PATH_MAX, "%s/%s", folder, name);
        return readable(path);
    }
    char self[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (size <= 0)
        return false;
    self[size] = '\0';
    *strrchr(self, '/') = '\0';
    static const char *const places[] = {"", "../lib/gpt/"};
    for (int i = 0; i < 2; i++) {
        if (snprintf(path, PATH_MAX, "%s/%s%s", self, places[i], name) < PATH_MAX && readable(path))
            return true;
    }
    return find_packaged(self, name, path);
}

// The file that execvp would run.
static void find_command(const char *name, char path[PATH_MAX]) {
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        if (access(path, F_OK))
            fail(NOT_FOUND, name, "%s", strerror(errno));
        return;
    }
    const char *at = getenv("PATH");
    for (at = at ? at : "/bin:/usr/bin"; *name && at;) {
        size_t size = strcspn(at, ":");
        snprintf(path, PATH_MAX, "%.*s%s%s", (int)size, at, size ? "/" : "", name);
        struct stat status;
        if (!access(path, X_OK) && !stat(path, &status) && S_ISREG(status.st_mode))
            return;
        at = at[size] ? at + size + 1 : NULL;
    }
    fail(NOT_FOUND, name, "command not found");
}

// Programs that a preloaded library cannot enter

static const char *replacements; // the folder of --replace

// Only the dynamic linker of glibc asks which file to load.
static void check_linker(int file, const char *path, const Elf64_Phdr *segment) {
    char linker[PATH_MAX] = "";
    size_t size = segment->p_filesz < sizeof(linker) - 1 ? segment->p_filesz : sizeof(linker) - 1;
    if (replacements && pread(file, linker, size, (off_t)segment->p_offset) > 0 &&
        strstr(linker, "/ld-musl-"))
        fail(MISSING, path, "a program of musl, whose dynamic linker cannot replace libraries");
}

static void check_elf(int file, const char *path) {
    Elf64_Ehdr head;
    if (pread(file, &head, sizeof(head), 0) < (ssize_t)sizeof(Elf32_Ehdr) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG))
        return; // the kernel will say what it thinks of it
    if (head.e_ident[EI_CLASS] != ELFCLASS64)
        fail(MISSING, path, "a 32-bit program: it cannot be watched");
    if (head.e_machine != EM_X86_64)
        fail(MISSING, path, "a program for another machine: it cannot be watched");
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr segment;
        if (pread(file, &segment, sizeof(segment), (off_t)(head.e_phoff + (size_t)i * sizeof(segment))) !=
            sizeof(segment))
            return;
        if (segment.p_type == PT_INTERP) {
            check_linker(file, path, &segment);
            return;
        }
    }
    fail(MISSING, path, "a statically linked program: it cannot be watched");
}

static void check_command(const char *path) {
    char script[PATH_MAX], line[PATH_MAX];
    for (int depth = 0; depth < 5; depth++) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        struct stat status;
        if (file < 0 || fstat(file, &status)) {
            if (file >= 0)
                close(file);
            return; // it may be executable without being readable
        }
        if (status.st_mode & S_ISUID && status.st_uid != geteuid())
            fail(MISSING, path, "a setuid program: it cannot be watched");
        if (status.st_mode & S_ISGID && status.st_mode & S_IXGRP && status.st_gid != getegid())
            fail(MISSING, path, "a setgid program: it cannot be watched");
        if (getuid() && fgetxattr(file, "security.capability", NULL, 0) > 0)
            fail(MISSING, path, "a program with capabilities: it cannot be watched");
        ssize_t size = pread(file, line, sizeof(line) - 1, 0);
        if (size < 2 || memcmp(line, "#!", 2)) {
            check_elf(file, path);
            close(file);
            return;
        }
        close(file);
        line[size] = '\0';
        char *start = line + 2 + strspn(line + 2, " \t");
        start[strcspn(start, " \t\r\n")] = '\0';
        path = strcpy(script, start);
    }
}

// The trace

static const char *absolute(const char *path) {
    static char whole[2 * PATH_MAX];
    char folder[PATH_MAX] = "";
    if (*path != '/' && !getcwd(folder, sizeof(folder)))
        fail(BAD, path, "%s", strerror(errno));
    snprintf(whole, sizeof(whole), "%s%s%s", folder, *folder ? "/" : "", path);
    return whole;
}

// The name as this process will expand it.
static void expand(const char *from, char path[PATH_MAX]) {
    for (const char *c = from; *c; c++)
        if (*c == '%' && c[1] && !strchr("phr%", *++c))
            fail(USAGE, c - 1, "only %%p, %%h, %%r and %%%% mean something in a file's name");
    gpt_expand_name(from, path, PATH_MAX);
}

static bool is_trace(const char *path) {
    unsigned char head[30];
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool same = file >= 0 && read(file, head, sizeof(head)) == sizeof(head) &&
                !memcmp(head,
                        "\x83\xd9\x04kind\xd9\x05"
                        "chunk",
                        14);
    if (file >= 0)
        close(file);
    return same;
}

// Removes the traces that an earlier run left: FILE, and those of its other processes, FILE.PID.
static void remove_old(const char *path) {
    if (unlink(path) && errno != ENOENT)
        fail(BAD, path, "%s", strerror(errno));
    char folder[PATH_MAX], other[2 * PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    char *name = strrchr(folder, '/');
    *name++ = '\0';
    size_t size = strlen(name);
    DIR *entries = opendir(*folder ? folder : "/");
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const char *rest = entry->d_name + size;
        if (strncmp(entry->d_name, name, size) || *rest != '.' || !rest[1] ||
            rest[strspn(rest, ".0123456789")])
            continue;
        snprintf(other, sizeof(other), "%s/%s", folder, entry->d_name);
        if (is_trace(other))
            unlink(other);
    }
    if (entries)
        closedir(entries);
}

static void prepare_output(const char *output, bool force) {
    char path[PATH_MAX];
    if (strlen(output) > PATH_MAX - 512)
        fail(USAGE, output, "the name is too long");
    expand(output, path);
    struct stat status;
    if (!lstat(path, &status)) {
        if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode))
            fail(BAD, path, "no regular file");
        if (!force)
            fail(BAD, path, "exists; -f overwrites it");
        remove_old(path);
    }
    // Better to say it now than from within the command.
    char *slash = strrchr(path, '/'), kept = slash[1];
    slash[1] = '\0';
    if (access(path, W_OK | X_OK))
        fail(BAD, path, "%s", strerror(errno));
    slash[1] = kept;
}

// Others tell the trace of the command, if it has one, where theirs are.
static void set_output(const char *template) {
    char path[PATH_MAX];
    expand(template, path);
    setenv("GPT_HOOK_OUTPUT", template, 1);
    setenv("GPT_HOOK_ROOT", path, 1);
}

// The traces go to a private folder, and a helper makes them one stream.
static void begin_stream(const char *where, const char *path, char **argv) {
    struct follow follow = {.where = where, .output = -1, .argv = argv};
    if (*where == '|') {
        follow.shell = where + 1;
    } else if (!strcmp(where, "-")) { // as perf does: the program's own output goes to standard error
        if (isatty(STDOUT_FILENO))
            fail(USAGE, "-o -", "standard output is a terminal");
        follow.output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        if (follow.output >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
            fail(BAD, "standard error", "%s", strerror(errno));
    } else { // waits for its reader, as a shell does
        follow.output = open(path, O_WRONLY | O_CLOEXEC);
    }
    if (follow.output < 0 && !follow.shell)
        fail(BAD, where, "%s", strerror(errno));

    static char folder[PATH_MAX], traces[2 * PATH_MAX];
    const char *parent = getenv("TMPDIR");
    snprintf(folder, PATH_MAX - 8, "%s/gpt-hook.XXXXXX", parent && *parent == '/' ? parent : "/tmp");
    if (!mkdtemp(folder))
        fail(BAD, folder, "%s", strerror(errno));
    follow.folder = folder;
    if (!follow_start(&follow))
        fail(BAD, "helper", "%s", strerror(errno));
    size_t at = 0;
    for (const char *from = folder; *from; from++) {
        if (*from == '%')
            traces[at++] = '%';
        traces[at++] = *from;
    }
    strcpy(traces + at, "/%p");
    set_output(traces);
    setenv("GPT_HOOK_FOLDER", folder, 1);
}

// Decides where the trace goes.
static void begin_trace(const char *output, bool force, char **argv) {
    unsetenv("GPT_HOOK_FOLDER");
    char path[PATH_MAX] = "";
    struct stat status;
    bool stream = *output == '|' || !strcmp(output, "-");
    if (!stream) {
        if (strlen(output) > PATH_MAX - 512)
            fail(USAGE, output, "the name is too long");
        expand(output, path);
    }
    if (stream || (!stat(path, &status) && S_ISFIFO(status.st_mode))) {
        begin_stream(output, path, argv);
        return;
    }
    output = absolute(output);
    prepare_output(output, force);
    set_output(output);
}

static void save_modules(const char *folder) {
    if (mkdir(folder, 0777) && errno != EEXIST)
        fail(BAD, folder, "%s", strerror(errno));
    if (access(folder, W_OK | X_OK))
        fail(BAD, folder, "%s", strerror(errno));
    setenv("GPT_HOOK_MODULES", absolute(folder), 1);
}

// Puts a value in front of a list in the environment.
static void prepend(const char *name, const char *value, bool split_at_spaces) {
    if (strchr(value, ':') || (split_at_spaces && strchr(value, ' ')))
        fail(MISSING, value, "the dynamic linker takes no path with a colon%s: move the runtime",
             split_at_spaces ? " or space" : "");
    const char *old = getenv(name);
    char *all;
    if (asprintf(&all, "%s%s%s", value, old && *old ? ":" : "", old ? old : "") < 0 || setenv(name, all, 1))
        fail(BAD, NULL, "%s", strerror(errno));
    free(all);
}

// Finds the library that replaces others, and makes the folder's name absolute.
static void prepare_replacements(char auditor[PATH_MAX]) {
    struct stat status;
    char *folder = realpath(replacements, NULL);
    if (!folder || stat(folder, &status))
        fail(MISSING, replacements, "%s", strerror(errno));
    if (!S_ISDIR(status.st_mode))
        fail(USAGE, replacements, "no folder");
    if (access(folder, R_OK | X_OK))
        fail(MISSING, replacements, "%s", strerror(errno));
    if (!find_runtime("libgptreplace.so", auditor))
        fail(MISSING, auditor, "not found: run 'make runtime', or set GPT_RUNTIME");
    replacements = folder;
}

static int run(int argc, char **argv) {
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'}, {"force", no_argument, NULL, 'f'},
        {"calls", required_argument, NULL, 'c'},  {"gpu-time", no_argument, NULL, 'g'},
        {"ioctl", no_argument, NULL, 'i'},        {"save-modules", required_argument, NULL, 's'},
        {"device", required_argument, NULL, 'd'}, {"replace", required_argument, NULL, 'r'},
        {"help", no_argument, NULL, 'h'},         {0},
    };
    const char *output = "trace.mp", *calls = NULL, *device = "real", *modules = NULL;
    bool force = false, gpu_time = false, ioctls = false;
    for (int option; (option = getopt_long(argc, argv, "+:o:fh", options, NULL)) != -1;)
        switch (option) {
        case 'o':
            output = optarg;
            break;
        case 'f':
            force = true;
            break;
        case 'c':
            calls = optarg;
            break;
        case 'd':
            device = optarg;
            break;
        case 's':
            modules = optarg;
            break;
        case 'i':
            ioctls = true;
            break;
        case 'r':
            replacements = optarg;
            break;
        case 'g':
            gpu_time = true;
            break;
        case 'h':
            fputs(HELP, stdout);
            return 0;
        case ':':
            fail(USAGE, argv[optind - 1], "needs a value");
        default:
            fail(USAGE, argv[optind - 1], "no such option; see gpt-hook --help");
        }
    if (optind == argc)
        fail(USAGE, "run", "no command; see gpt-hook --help");
    if (!*output || (*output != '|' && output[strlen(output) - 1] == '/') || !strcmp(output, "|"))
        fail(USAGE, "-o", *output == '|' ? "no command" : "no name of a file");
    if (!calls) // queries ask the kernel too, and are to be the parents of what they ask
        calls = ioctls ? "all" : "all,-query";
    if (!*calls)
        fail(USAGE, "--calls", "names nothing; 'none' records no calls");
    bool simulated = !strcmp(device, "sim");
    if (!simulated && strcmp(device, "real"))
        fail(USAGE, "--device", "'%s' is neither real nor sim", device);

    char library[PATH_MAX], driver[PATH_MAX], path[PATH_MAX], auditor[PATH_MAX];
    if (!find_runtime("libgpthook.so", library))
        fail(MISSING, library, "not found: run 'make runtime', or set GPT_RUNTIME");
    if (simulated && !find_runtime("sim/libcuda.so.1", driver))
        fail(MISSING, driver, "not found: run 'make runtime', or set GPT_RUNTIME");
    if (replacements)
        prepare_replacements(auditor);
    find_command(argv[optind], path);
    check_command(path);
    begin_trace(output, force, argv + optind);
    setenv("GPT_HOOK_CALLS", calls, 1);
    unsetenv("GPT_HOOK_MODULES");
    if (modules)
        save_modules(modules);
    unsetenv("GPT_HOOK_IOCTL");
    if (ioctls)
        setenv("GPT_HOOK_IOCTL", "1", 1);
    if (gpu_time)
        setenv("GPT_HOOK_GPU_TIME", "1", 1);
    else
        unsetenv("GPT_HOOK_GPU_TIME");
    prepend("LD_PRELOAD", library, true);
    const char *injection = getenv("NVTX_INJECTION64_PATH");
    if (!injection || !*injection)
        setenv("NVTX_INJECTION64_PATH", library, 1);
    if (replacements) {
        prepend("LD_AUDIT", auditor, false);
        setenv("GPT_HOOK_REPLACE", replacements, 1);
    }
    if (simulated) {
        *strrchr(driver, '/') = '\0';
        prepend("LD_LIBRARY_PATH", driver, false);
    }
    execv(path, argv + optind);
    if (errno == ENOEXEC) { // as execvp does: a script without its first line
        argv[optind] = path;
        argv[--optind] = "sh";
        execv("/bin/sh", argv + optind);
    }
    fail(errno == ENOENT ? NOT_FOUND : CANNOT_RUN, path, "%s", strerror(errno));
}

// gpt-hook check

static void row(const char *what, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%-12s ", what);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

static bool check_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        row("driver", "none: libcuda.so.1 is not found; --device sim works without");
        return false;
    }
    CUresult (*init)(unsigned) = dlsym(driver, "cuInit");
    CUresult (*get_version)(int *) = dlsym(driver, "cuDriverGetVersion");
    CUresult (*get_count)(int *) = dlsym(driver, "cuDeviceGetCount");
    CUresult (*get_name)(char *, int, CUdevice) = dlsym(driver, "cuDeviceGetName");
    CUresult (*attribute)(int *, int, CUdevice) = dlsym(driver, "cuDeviceGetAttribute");
    int version = 0, count = 0;
    if (!init || !get_version || !get_count || !get_name || !attribute) {
        row("driver", "libcuda.so.1 is no CUDA driver");
        return false;
    }
    get_version(&version);
    CUresult status = init(0);
    if (status || get_count(&count)) {
        row("driver", "CUDA %d.%d, but cuInit gives %d", version / 1000, version % 1000 / 10, status);
        return false;
    }
    row("driver", "CUDA %d.%d", version / 1000, version % 1000 / 10);
    for (int i = 0; i < count; i++) {
        char name[256] = "";
        int major = 0, minor = 0;
        get_name(name, sizeof(name) - 1, i);
        attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, i);
        attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, i);
        row("device", "%d: %s, sm_%d%d", i, name, major, minor);
    }
    if (!count)
        row("device", "none");
    return count;
}

// Runs this program once more, so that the dynamic linker may ask libgptreplace.so for it.
static void check_replace(void) {
    char library[PATH_MAX], answer[256] = "";
    int ends[2];
    if (!find_runtime("libgptreplace.so", library)) {
        row("replace", "%s: not found", library);
        return;
    }
    fflush(stdout);
    pid_t child = pipe2(ends, O_CLOEXEC) ? -1 : fork();
    if (!child) {
        dup2(ends[1], STDERR_FILENO);
        dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
        setenv("LD_AUDIT", library, 1);
        setenv("GPT_HOOK_REPLACE", "", 1); // it says that it was asked, and does no more
        execl("/proc/self/exe", "gpt-hook", "--version", NULL);
        _exit(NOT_FOUND);
    }
    if (child > 0) {
        close(ends[1]);
        if (read(ends[0], answer, sizeof(answer) - 1) < 0)
            *answer = '\0';
        close(ends[0]);
        waitpid(child, NULL, 0);
    }
    answer[strcspn(answer, "\n")] = '\0';
    const char *(*version)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
    int major = 0, minor = 0;
    if (version)
        sscanf(version(), "%d.%d", &major, &minor);
    if (strncmp(answer, "replace: ", 9))
        row("replace", "the dynamic linker knows no LD_AUDIT%s%s", *answer ? ": " : "", answer);
    else if (major == 2 && minor < 35)
        row("replace", "works; calls between libraries take longer with it: glibc %s, before 2.35",
            version());
    else
        row("replace", "works");
}

// Exit status 0: a program on the real device can be watched.
static int check(void) {
    char path[PATH_MAX];
    bool good = find_runtime("libgpthook.so", path);
    row("runtime", "%s%s", path, good ? "" : ": not found: run 'make runtime', or set GPT_RUNTIME");
    row("simulated", "%s%s", path, find_runtime("sim/libcuda.so.1", path) ? "" : ": not found");
    check_replace();
    fflush(stdout);
    pid_t child = fork(); // a driver that crashes must not take the rest with it
    if (!child) {
        bool found = check_driver();
        fflush(stdout);
        _exit(!found);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) < 0 || WIFSIGNALED(status))
        row("driver", "crashes when it is initialized");
    good &= !status;
    void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool wipes = page != MAP_FAILED && !madvise(page, 4096, MADV_WIPEONFORK);
    row("fork", "%s", wipes ? "every way is noticed" : "only fork() of libc is noticed: no MADV_WIPEONFORK");
    char command[PATH_MAX] = "";
    const char *at = getenv("PATH");
    for (bool found = false; at && !found;) {
        size_t size = strcspn(at, ":");
        snprintf(command, sizeof(command), "%.*s/ptxas", (int)size, at);
        found = !access(command, X_OK);
        if (!found)
            *command = '\0';
        at = at[size] ? at + size + 1 : NULL;
    }
    row("ptxas", "%s", *command ? command : "none in PATH");
    return good ? 0 : BAD;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "run"))
        return run(argc - 1, argv + 1);
    if (!strcmp(what, "check") && argc == 2)
        return check();
    if (!strcmp(what, "--version") && argc == 2) {
        puts("gpt-hook " GPT_PACKAGE_VERSION);
        return 0;
    }
    if (!strcmp(what, "--help") || !strcmp(what, "-h")) {
        fputs(HELP, stdout);
        return 0;
    }
    if (*what)
        fail(USAGE, what, "no such command; see gpt-hook --help");
    fail(USAGE, "arguments", "none; see gpt-hook --help");
}
