// Turns the options -p and --jit into a pipeline for the broker and variables for the hook.
//
// We run `gpt-ptx-probe --show` before the command starts, so a faulty probe ends the run here. Its output is
// also needed for the keys of cached results, which are digests of the pipeline's text and of the probes. The
// output is cached as well, because starting Python and reading the probes takes longer than many programs
// run.

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../common/broker.h"
#include "../common/cache.h"
#include "../common/needs.h"
#include "../common/private.h"
#include "launcher.h"
#include "probe.h"

enum {
    MOST_TOOL = 64 << 20,     // bytes of an executable that is digested
    PYTHON_STACK = 256 << 10, // bytes; 3.11 starts with 80 KiB
};

struct gpt_bytes probe_callbacks;

static struct gpt_bytes pipeline, identity;

// Architectures whose machine code gets probes, the proven ones of gpt/sass/arch.py. The simulated device
// runs no machine code.
#define SASS_ARCHS "sm_90"

void append(struct gpt_bytes *bytes, const char *format, ...) {
    va_list values;
    char *text;
    va_start(values, format);
    int size = vasprintf(&text, format, values);
    va_end(values);
    if (size < 0 || !gpt_add(bytes, text, (size_t)size))
        fail(BAD, NULL, "%s", strerror(ENOMEM));
    free(text);
}

void append_quoted(struct gpt_bytes *bytes, const char *word) {
    append(bytes, " '");
    for (; *word; word++)
        append(bytes, *word == '\'' ? "'\\''" : "%c", *word);
    append(bytes, "'");
}

static void add_stage(const char *name) {
    char path[PATH_MAX];
    append_quoted(&pipeline, find_neighbour(name, path) ? path : name);
}

// Read a command's output. If the command fails, its own message is the error.
static void read_output(FILE *stream, struct gpt_bytes *output) {
    char block[4096];
    size_t size;
    while (stream && (size = fread(block, 1, sizeof(block), stream)) > 0)
        if (!gpt_add(output, block, size))
            fail(BAD, NULL, "%s", strerror(ENOMEM));
    int status = stream ? pclose(stream) : -1;
    if (status < 0)
        fail(BAD, "-p", "%s", strerror(errno));
    struct rlimit stack;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV && !getrlimit(RLIMIT_STACK, &stack) &&
        stack.rlim_cur < PYTHON_STACK)
        fail(BAD, "-p", "Python needs a larger stack than %llu KiB (ulimit -s)",
             (unsigned long long)stack.rlim_cur >> 10);
    if (WIFSIGNALED(status))
        fail(BAD, "-p", "gpt-ptx-probe, which reads the probes, was ended by signal %d", WTERMSIG(status));
    if (status)
        exit(WEXITSTATUS(status) < CANNOT_RUN ? WEXITSTATUS(status) : MISSING);
}

// Start looking for ptxas and compilers, in parallel with reading the probes.
static FILE *begin_tools(void) {
    char path[PATH_MAX];
    struct gpt_bytes command = {0};
    append(&command, "exec");
    append_quoted(&command, find_neighbour("gpt-asm", path) ? path : "gpt-asm");
    append(&command, " --tools 2>/dev/null%c", '\0');
    FILE *stream = popen(command.data, "re");
    gpt_empty(&command);
    return stream;
}

// Read what `begin_tools` has found. It's empty without gpt-asm or any ptxas.
static void end_tools(FILE *stream) {
    char block[4096];
    size_t size;
    while (stream && (size = fread(block, 1, sizeof(block), stream)) > 0)
        append(&identity, "%.*s", (int)size, block);
    if (stream)
        pclose(stream);
}

// Read a quoted TOML text up to its closing quote. Supports \u escapes only below 128: --show writes
// no others.
static void read_string(const char *at, char text[PATH_MAX]) {
    static const char escapes[] = "\"\\bfnrt", values[] = "\"\\\b\f\n\r\t";
    size_t size = 0;
    for (; *at && *at != '"' && size < PATH_MAX - 1; at++) {
        const char *found = *at == '\\' && at[1] ? strchr(escapes, at[1]) : NULL;
        unsigned code;
        if (found) {
            text[size++] = values[found - escapes];
            at++;
        } else if (sscanf(at, "\\u%4x", &code) == 1 && code < 128) {
            text[size++] = (char)code;
            at += strlen("u0000");
        } else {
            text[size++] = *at;
        }
    }
    text[size] = '\0';
}

// Collect the callbacks that probes name, to run on their results. Fails if one doesn't exist.
static void find_callbacks(const char *shown, struct gpt_bytes *found) {
    static const char key[] = "\ncallback = \"";
    for (const char *at = shown; (at = strstr(at, key));) {
        char name[PATH_MAX];
        at += strlen(key);
        read_string(at, name);
        const char *suffix = strrchr(name, '.');
        if (*name != '/' && (suffix || strchr(name, '/')))
            fail(MISSING, name, "no such callback next to its probe file or among the built-in probes");
        if (*name == '/' && access(name, suffix && !strcmp(suffix, ".py") ? R_OK : R_OK | X_OK))
            fail(MISSING, name, "%s", strerror(errno));
        if (*name == '/' && !gpt_add(found, name, strlen(name) + 1))
            fail(BAD, NULL, "%s", strerror(ENOMEM));
    }
}

static bool digest_file(const char *path, char digest[65]) {
    struct stat status;
    bool small = !stat(path, &status) && S_ISREG(status.st_mode) && status.st_size <= MOST_TOOL;
    FILE *file = small ? fopen(path, "re") : NULL;
    char *data = file ? malloc((size_t)status.st_size + 1) : NULL;
    if (data)
        gpt_sha256(data, fread(data, 1, (size_t)status.st_size, file), digest);
    if (file)
        fclose(file);
    free(data);
    return data != NULL;
}

// Return whether `probe` is a file; if not, it's a built-in probe, even if a folder has its name.
static bool is_file(const char *probe) {
    struct stat status;
    return strchr(probe, '/') || (!stat(probe, &status) && !S_ISDIR(status.st_mode));
}

// Let the pipeline check that the files haven't changed: it starts later, perhaps several times, and results
// are cached under a digest of the files as they are now.
static void add_checks(const struct probing *probing) {
    char digest[65];
    for (size_t i = 0; i < probing->probe_count; i++) {
        struct stat status;
        const char *path = is_file(probing->probes[i]) ? absolute(probing->probes[i]) : NULL;
        if (path && !stat(path, &status) && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
            fail(USAGE, path, "not a regular file: a pipeline reads it again when it begins");
        if (!path || !digest_file(path, digest))
            continue;
        append(&pipeline, "{ [ \"$(sha256sum <");
        append_quoted(&pipeline, path);
        append(&pipeline,
               ")\" = '%s  -' ] || { echo 'the file of a probe has changed since gpt-hook read it' >&2; "
               "false; }; } &&\n",
               digest);
    }
}

// Add a stage that weaves probes. Returns where its words begin.
static size_t add_weaver(const char *name, const struct probing *probing) {
    size_t start = pipeline.size;
    add_stage(name);
    for (size_t i = 0; i < probing->probe_count; i++) {
        const char *probe = probing->probes[i];
        append(&pipeline, " -p");
        append_quoted(&pipeline, is_file(probe) ? absolute(probe) : probe);
    }
    return start;
}

// Add the stages that weave probes into PTX, after gpt-extract. `reader` gets the words of gpt-ptx-probe.
// `last` is set if no stage follows.
static void add_ptx_stages(const struct probing *probing, const char *options, bool last,
                           struct gpt_bytes *reader) {
    append(&pipeline, " stage");
    add_stage("gpt-extract");
    append(&pipeline, " --ptx%s | stage", options);
    size_t start = add_weaver("gpt-ptx-probe", probing);
    if (!reader->size)
        append(reader, "%.*s%c", (int)(pipeline.size - start), pipeline.data + start, '\0');
    append(&pipeline, "%s |%s", probing->memusage ? " --count" : "", last ? "" : " stage");
    add_stage("gpt-asm");
    append(&pipeline, " --arch \"$GPT_ARCH\"%s", probing->benchmark ? " --original" : "");
}

// Find the file of a probe. Returns false if gpt-ptx-probe has to look for it.
static bool find_source(const char *probe, char path[PATH_MAX]) {
    static const char *const folders[] = {"../_probes", "../../probes"}; // in a package; in a checkout
    char runtime[PATH_MAX];
    if (is_file(probe))
        return snprintf(path, PATH_MAX, "%s", absolute(probe)) < PATH_MAX;
    if (!find_runtime("libgpthook.so", runtime))
        return false;
    *strrchr(runtime, '/') = '\0';
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++)
        if (snprintf(path, PATH_MAX, "%s/%s/%s.toml", runtime, folders[i], probe) < PATH_MAX &&
            !access(path, R_OK))
            return true;
    return false;
}

// Compute the key under which the output of --show is cached: a digest of everything that it depends on,
// except callback files. Returns false if a probe's file can't be read.
static bool name_shown(const struct probing *probing, const char *reader, char key[65]) {
    struct gpt_bytes inputs = {0};
    bool whole = true;
    append(&inputs, "shown by " GPT_PACKAGE_VERSION " " GPT_WEAVER "%s\n", reader);
    for (size_t i = 0; i < probing->probe_count && whole; i++) {
        char path[PATH_MAX], digest[65];
        whole = find_source(probing->probes[i], path) && digest_file(path, digest);
        if (whole)
            append(&inputs, "%s\n", digest);
    }
    gpt_sha256(inputs.data, inputs.size, key);
    gpt_empty(&inputs);
    return whole;
}

// Run `reader`, a command line of gpt-ptx-probe, with --show, and append its output, or the cached output.
// Ends the program if a probe is faulty.
static void read_probes(const struct probing *probing, const char *reader, struct gpt_bytes *shown) {
    char key[65], again[65];
    bool named = name_shown(probing, reader, key);
    if (!named || !gpt_get_cached("probes", key, shown)) {
        struct gpt_bytes show = {0};
        append(&show, "exec%s --show%c", reader, '\0');
        append(shown, "\n");
        read_output(popen(show.data, "re"), shown);
        gpt_empty(&show);
        append(shown, "%c", '\0');
        find_callbacks(shown->data, &probe_callbacks);
        // A callback's file may come and go at any time, and a probe's may have changed just now.
        if (named && !probe_callbacks.size && name_shown(probing, reader, again) && !strcmp(key, again))
            gpt_cache("probes", key, shown);
    }
}

static void use_probes(const struct probing *probing) {
    struct gpt_bytes reader = {0}, shown = {0};
    append(&pipeline, GPT_STAGE_FUNCTION);
    add_checks(probing);
    append(&pipeline, "case $GPT_ARCH in\n" SASS_ARCHS ")");
    add_ptx_stages(probing, " --payload", false, &reader);
    append(&pipeline, " |");
    add_weaver("gpt-sass-probe", probing);
    append(&pipeline, "%s%s ;;\n*)", probing->memusage ? " --count" : "",
           probing->benchmark ? " --original" : "");
    add_ptx_stages(probing, "", true, &reader);
    append(&pipeline, " ;;\nesac");
    read_probes(probing, reader.data, &shown);
    append(&identity, "%s", shown.data);
    gpt_empty(&shown);
    gpt_empty(&reader);
    if (probing->benchmark || probing->memusage) // nothing is saved
        gpt_empty(&probe_callbacks);
}

static bool add_digest(const char *path) {
    char digest[65];
    bool there = digest_file(path, digest);
    if (there)
        append(&identity, "%s %s\n", path, digest);
    return there;
}

// Add the digests of the files that a command names anywhere: by a path, as in -pFILE, or through PATH.
static void add_files(const char *command) {
    for (const char *at = command; *at;) {
        char word[PATH_MAX], path[2 * PATH_MAX];
        size_t size = strcspn(at, " \t\n|&;()<>'\"=");
        snprintf(word, sizeof(word), "%.*s", (int)(size < PATH_MAX ? size : PATH_MAX - 1), at);
        at += size + (at[size] != '\0');
        bool found = !*word || add_digest(word) || (*word == '-' && word[1] && add_digest(word + 2));
        const char *folders = strchr(word, '/') ? NULL : getenv("PATH");
        for (; folders && !found; folders = *folders ? folders + 1 : NULL) {
            size_t length = strcspn(folders, ":");
            snprintf(path, sizeof(path), "%.*s/%s", (int)length, folders, word);
            folders += length;
            found = add_digest(path);
        }
    }
}

static void use_pipeline(const char *command) {
    if (!command[strspn(command, " \t\n")])
        fail(USAGE, "--jit", "no pipeline");
    char *here = getcwd(NULL, 0);
    if (!here)
        fail(BAD, "--jit", "%s", strerror(errno));
    append(&pipeline, "cd");
    append_quoted(&pipeline, here);
    append(&pipeline, " && {\n%s\n}", command);
    add_files(command);
    free(here);
}

// Check an option's number.
static const char *check_number(const char *option, const char *text, bool fraction) {
    char *end;
    double value = strtod(text, &end);
    const char *digits = fraction ? "0123456789." : "0123456789"; // strtod() takes hexadecimal and exponents
    if (!isdigit((unsigned char)*text) || *end || value > 1e18 || text[strspn(text, digits)])
        fail(USAGE, option, "not a number: '%s'", text);
    return text;
}

// Check a size: 64M, 2G or bytes.
const char *check_size(const char *option, const char *text) {
    static const char units[] = "KMGT";
    char *bytes = malloc(32);
    char *end;
    double value = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    bool is_plain = text + strspn(text, "0123456789.") == end; // no hexadecimal, no exponent
    for (size_t i = 0; unit && i <= (size_t)(unit - units); i++)
        value *= 1024;
    if (!isdigit((unsigned char)*text) || !is_plain || (*end && (!unit || end[1])) || value < 1 ||
        value > 1e18)
        fail(USAGE, option, "not a size: '%s' (as 512M or 2G)", text);
    if (bytes)
        snprintf(bytes, 32, "%.0f", value);
    return bytes;
}

const char *check_sample(const char *option, const char *text) {
    const char *rest = !strncmp(text, "1/", 2) ? text + 2 : text;
    check_number(option, rest, false);
    if (!strtoull(rest, NULL, 10))
        fail(USAGE, option, "not a share: '%s' (as 1/10)", text);
    return rest;
}

const char *add_parts(const char *option, const char *known, const char *parts) {
    char *all;
    if (!parts[strspn(parts, ":")]) // a variable of a script that is empty, say: it would mean every kernel
        fail(USAGE, option, "'%s' names no part of a kernel's name", parts);
    if (!known)
        return parts;
    if (asprintf(&all, "%s:%s", known, parts) < 0)
        fail(BAD, NULL, "%s", strerror(errno));
    return all;
}

const char *make_pipeline(const struct probing *probing, char digest[65]) {
    if (probing->probe_count && probing->jit)
        fail(USAGE, "--jit", "names its own probes, so -p can't be used with it");
    struct sigaction before; // a process that ignores it can't wait for children
    sigaction(SIGCHLD, &(struct sigaction){.sa_handler = SIG_DFL}, &before);
    FILE *tools = begin_tools();
    if (probing->jit)
        use_pipeline(probing->jit);
    else
        use_probes(probing);
    end_tools(tools);
    sigaction(SIGCHLD, &before, NULL);
    append(&identity, GPT_PACKAGE_VERSION " " GPT_WEAVER "\n%.*s", (int)pipeline.size, pipeline.data);
    append(&pipeline, "%c", '\0');
    gpt_sha256(identity.data, identity.size, digest);
    return pipeline.data;
}

const char *name_probes(const struct probing *probing) {
    struct gpt_bytes names = {0};
    if (probing->jit)
        append(&names, "%s", probing->jit);
    for (size_t i = 0; i < probing->probe_count; i++)
        append(&names, i ? " %s" : "%s", probing->probes[i]);
    append(&names, "%c", '\0');
    return names.data;
}

// Set or remove a variable, so that nothing of an outer gpt-hook is left.
void set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

// Return the absolute path of the trace of --rerun, after checking that it says how much memory kernels
// needed.
static const char *check_needs(const struct probing *probing) {
    struct gpt_needs needs;
    if (probing->memusage || probing->benchmark)
        fail(USAGE, "--rerun", "cannot be combined with --benchmark or --memusage");
    const char *path = absolute(probing->rerun), *fault = gpt_read_needs(path, &needs);
    if (fault)
        fail(USAGE, probing->rerun, "%s", fault);
    if (!needs.count)
        fail(USAGE, probing->rerun,
             "has no counts for --rerun: record it with --memusage and the same probes");
    free(needs.all);
    free(needs.data);
    return strdup(path);
}

const char *use_probing(const struct probing *probing) {
    static const struct {
        const char *name;
        size_t offset;
    } variables[] = {
        {"GPT_HOOK_PROBE_KERNELS", offsetof(struct probing, kernels)},
        {"GPT_HOOK_PROBE_FILTER", offsetof(struct probing, filter)},
        {"GPT_HOOK_PROBE_WAIT", offsetof(struct probing, wait)},
        {"GPT_HOOK_PROBE_SKIP", offsetof(struct probing, skip)},
        {"GPT_HOOK_PROBE_COUNT", offsetof(struct probing, count)},
        {"GPT_HOOK_PROBE_SAMPLE", offsetof(struct probing, sample)},
        {"GPT_HOOK_PROBE_DETAIL", offsetof(struct probing, detail)},
        {"GPT_HOOK_PROBE_MEMORY", offsetof(struct probing, memory)},
        {"GPT_HOOK_PROBE_RERUN", offsetof(struct probing, rerun)},
    };
    struct probing checked = *probing;
    bool on = probing->probe_count || probing->jit;
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
        if (!on && *(const char **)((char *)&checked + variables[i].offset))
            fail(USAGE, "run", "probe options without -p or --jit");
    if (!on && (probing->benchmark || probing->memusage))
        fail(USAGE, probing->benchmark ? "--benchmark" : "--memusage", "no -p or --jit");
    if (probing->memusage && probing->benchmark)
        fail(USAGE, "--memusage", "cannot be combined with --benchmark");
    if (checked.wait)
        check_number("--wait", checked.wait, true);
    if (checked.skip)
        check_number("--launch-skip", checked.skip, false);
    if (checked.count)
        check_number("--launch-count", checked.count, false);
    if (checked.sample)
        checked.sample = check_sample("--sample", checked.sample);
    if (checked.detail)
        check_number("--detail", checked.detail, false);
    if (checked.memory)
        checked.memory = check_size("--max-memory", checked.memory);
    if (checked.rerun)
        checked.rerun = check_needs(probing);
    for (size_t i = 0; i < sizeof(variables) / sizeof(*variables); i++)
        set(variables[i].name, *(const char **)((char *)&checked + variables[i].offset));
    set("GPT_HOOK_PROBE_COMPLETE", probing->complete ? "1" : NULL);
    set("GPT_HOOK_PROBE_BENCHMARK", probing->benchmark ? "1" : NULL);
    set("GPT_HOOK_PROBE_MEMUSAGE", probing->memusage ? "1" : NULL);
    set("GPT_HOOK_PROBE", NULL);
    if (!on)
        return NULL;
    const char *keep = getenv("GPT_KEEP");
    if (keep && *keep) { // the stages run in another folder, and nobody sees their messages
        static struct gpt_distrust why;
        static char inside[PATH_MAX]; // the stages make folders there, so its parent may be /tmp
        setenv("GPT_KEEP", keep = absolute(keep), 1);
        snprintf(inside, sizeof(inside), "%s/.", keep);
        int folder = gpt_open_private(inside, true, &why);
        if (folder < 0 && *why.reason)
            fail(BAD, "GPT_KEEP", "'%s': %s", why.where, why.reason);
        if (folder < 0 || faccessat(folder, ".", W_OK | X_OK, 0))
            fail(BAD, "GPT_KEEP", "'%s': %s", keep, strerror(errno));
        close(folder);
    }
    if (probing->benchmark && !probing->quiet)
        fputs("gpt-hook: warning: --benchmark runs each kernel twice: a kernel that works in place gives "
              "another "
              "result\n",
              stderr);
    char digest[65];
    const char *text = make_pipeline(probing, digest);
    set("GPT_HOOK_PROBE", digest);
    set("GPT_HOOK_PROBE_NAMES", name_probes(probing));
    return text;
}
