// gpt-hook check: report what's installed, and what won't work.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "launcher.h"

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
        row("driver", "libcuda.so.1 is not a CUDA driver");
        return false;
    }
    get_version(&version);
    CUresult status = init(0);
    if (status || get_count(&count)) {
        row("driver", "CUDA %d.%d, but cuInit returns %d", version / 1000, version % 1000 / 10, status);
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

// Run a command to its end, and return its status as waitpid does. `answer` is the first line of its
// standard output or, with `errors`, of its standard error.
static int ask(char *const *command, bool errors, char answer[PATH_MAX]) {
    int ends[2], status = -1;
    *answer = '\0';
    fflush(stdout);
    pid_t child = pipe2(ends, O_CLOEXEC) ? -1 : fork();
    if (!child) {
        dup2(open("/dev/null", O_RDWR | O_CLOEXEC), STDIN_FILENO);
        dup2(errors ? STDIN_FILENO : ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        execvp(*command, command);
        _exit(NOT_FOUND);
    }
    if (child > 0) {
        close(ends[1]);
        for (ssize_t size = 0, more; size < PATH_MAX - 1; size += more) {
            if ((more = read(ends[0], answer + size, (size_t)(PATH_MAX - 1 - size))) <= 0)
                break;
            answer[size + more] = '\0';
        }
        close(ends[0]);
        waitpid(child, &status, 0);
    }
    answer[strcspn(answer, "\n")] = '\0';
    return status;
}

// Check that the dynamic linker calls libgptreplace.so, with this program.
static void check_replace(void) {
    char library[PATH_MAX], answer[PATH_MAX];
    if (!find_runtime("libgptreplace.so", library)) {
        row("replace", "%s: not found", library);
        return;
    }
    setenv("LD_AUDIT", library, 1);
    setenv("GPT_HOOK_REPLACE", "", 1); // it reports that it was called, and does nothing else
    ask((char *[]){"/proc/self/exe", "--version", NULL}, true, answer);
    unsetenv("LD_AUDIT");
    const char *(*version)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
    int major = 0, minor = 0;
    if (version)
        sscanf(version(), "%d.%d", &major, &minor);
    if (strncmp(answer, "replace: ", 9))
        row("replace", "the dynamic linker does not support LD_AUDIT%s%s", *answer ? ": " : "", answer);
    else if (major == 2 && minor < 35)
        row("replace", "works; calls between libraries take longer with it: glibc %s, before 2.35",
            version());
    else
        row("replace", "works");
}

// Ask gpt-asm for ptxas, because it knows all the places to look.
static void check_ptxas(void) {
    char tool[PATH_MAX], answer[PATH_MAX];
    if (!find_neighbour("gpt-asm", tool))
        strcpy(tool, "gpt-asm");
    int status = ask((char *[]){tool, "--which", NULL}, false, answer);
    const char *error = strstr(answer, "error: ");
    if (status && *answer)
        row("ptxas", "none: %s", error ? error + 7 : answer);
    else
        row("ptxas", "%s", status ? "unknown: gpt-asm, which finds it, is missing or crashed" : answer);
}

// Exit status 0: a program on the real device can be watched.
int check(void) {
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
    row("fork", "%s", wipes ? "all forks are noticed" : "only fork() of libc is noticed: no MADV_WIPEONFORK");
    check_ptxas();
    if (fflush(stdout) || ferror(stdout))
        fail(BAD, "standard output", "%s", strerror(errno));
    return good ? 0 : BAD;
}
