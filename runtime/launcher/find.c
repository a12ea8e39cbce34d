// Finds files: the runtime's, and the command's.

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher.h"

static bool readable(const char *path) { return !access(path, R_OK); }

// Find a file of the runtime in the Python package that this program was installed with. If several Pythons
// have the package, the one with this program's version is taken.
static bool find_packaged(const char *folder, const char *name, char path[PATH_MAX]) {
    static char pattern[3 * PATH_MAX], version[2 * PATH_MAX];
    char *at = pattern;
    for (; *folder; *at++ = *folder++)
        if (strchr("*?[\\", *folder))
            *at++ = '\\';
    snprintf(at, PATH_MAX, "/../lib*/python3*/*-packages/gpt/_runtime/%s", name);
    glob_t found;
    bool any = !glob(pattern, 0, NULL, &found), same = false;
    for (size_t i = 0; any && i < found.gl_pathc && !same; i++) {
        const char *file = found.gl_pathv[i];
        snprintf(version, sizeof(version), "%.*s/gpu_probe-%s.dist-info",
                 (int)(strstr(file, "-packages/gpt/_runtime/") - file) + 9, file, GPT_PACKAGE_VERSION);
        same = !access(version, F_OK);
        if ((i == 0 || same) && !realpath(file, path))
            any = false;
    }
    globfree(&found);
    return any;
}

// Find a file in one of several folders relative to `self`, this program's folder.
static bool find_near(const char *name, const char *const *places, char self[PATH_MAX], char path[PATH_MAX]) {
    ssize_t size = readlink("/proc/self/exe", self, PATH_MAX - 1);
    self[size > 0 ? size : 0] = '\0';
    if (size > 0)
        *strrchr(self, '/') = '\0';
    for (; size > 0 && *places; places++)
        if (snprintf(path, PATH_MAX, "%s/%s%s", self, *places, name) < PATH_MAX && readable(path))
            return true;
    return false;
}

// Find a file of the runtime: in GPT_RUNTIME, next to this program, in ../lib/gpt of its folder, or in the
// package that it was installed with; `pip install --target` puts that next to the folder.
bool find_runtime(const char *name, char path[PATH_MAX]) {
    const char *folder = getenv("GPT_RUNTIME");
    if (folder && *folder) {
        snprintf(path, PATH_MAX, "%s/%s", folder, name);
        return readable(path);
    }
    char self[PATH_MAX], near[PATH_MAX];
    if (find_near(name, (const char *[]){"", "../lib/gpt/", "../gpt/_runtime/", NULL}, self, near))
        return realpath(near, path);
    strcpy(path, near); // the last place tried, for a message
    return *self && find_packaged(self, name, path);
}

// Find another tool: next to this program, next to the script that started it (in an editable install,
// that's in another environment), or in the checkout.
bool find_neighbour(const char *name, char path[PATH_MAX]) {
    char self[PATH_MAX];
    if (find_near(name, (const char *[]){"", NULL}, self, path))
        return true;
    const char *called = program_invocation_name, *end = strrchr(called, '/');
    if (*called == '/' && snprintf(path, PATH_MAX, "%.*s/%s", (int)(end - called), called, name) < PATH_MAX &&
        readable(path))
        return true;
    return find_near(name, (const char *[]){"../../bin/", NULL}, self, path);
}

bool is_command(const char *name, char path[PATH_MAX]) {
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        return !access(path, F_OK);
    }
    const char *at = getenv("PATH");
    for (at = at ? at : "/bin:/usr/bin"; *name && at;) {
        size_t size = strcspn(at, ":");
        snprintf(path, PATH_MAX, "%.*s%s%s", (int)size, at, size ? "/" : "", name);
        struct stat status;
        if (!access(path, X_OK) && !stat(path, &status) && S_ISREG(status.st_mode))
            return true;
        at = at[size] ? at + size + 1 : NULL;
    }
    return false;
}

// Find the file that execvp would run.
void find_command(const char *name, char path[PATH_MAX]) {
    if (is_command(name, path))
        return;
    if (strchr(name, '/'))
        fail(NOT_FOUND, name, "%s", strerror(errno));
    fail(NOT_FOUND, name, *name == '-' ? "command not found: options go before '--'" : "command not found");
}

const char *absolute(const char *path) {
    static char whole[2 * PATH_MAX];
    char folder[PATH_MAX] = "";
    if (*path != '/' && !getcwd(folder, sizeof(folder)))
        fail(BAD, path, "%s", strerror(errno));
    snprintf(whole, sizeof(whole), "%s%s%s", folder, *folder ? "/" : "", path);
    return whole;
}
