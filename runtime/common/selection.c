// Reports the effect of -k, --filter, --launch-skip and similar options on a run. If an option excludes all
// launches, the probes find nothing, so the report lists the kernels that could have been chosen.
//
// Names come from the traces of all processes in the run. An option is blamed only if no process looked up
// a kernel that it chooses. At most MOST_NAMES different names are kept.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../say.h"
#include "selection.h"

enum { MOST_NAMES = 1 << 16, MOST_PARTS = 64, SHOWN = 5, SHOWN_BYTES = 256 };

static struct {
    const char *kernels, *filter, *skip, *count, *sample; // as the user gave them; NULL: not given
    bool probes;
} asked;

static uint64_t known[MOST_NAMES]; // hash set of names, with open addressing
static uint64_t used[MOST_PARTS];  // number of names that contain this part of -k

static struct list { // names of kernels for a message
    uint64_t count;
    char names[SHOWN][SHOWN_BYTES];
} all, chosen, filtered; // `chosen` by -k and --filter; `filtered` by --filter only

bool gpt_has_part(const char *name, size_t size, const char *parts) {
    for (const char *at = parts; *at; at += *at == ':') {
        size_t length = strcspn(at, ":");
        if (length && memmem(name, size, at, length))
            return true;
        at += length;
    }
    return false;
}

static const char *keep(const char *name) {
    const char *value = getenv(name);
    return value && *value ? strdup(value) : NULL;
}

void gpt_selection_setup(void) {
    asked.probes = getenv("GPT_HOOK_PROBE") && *getenv("GPT_HOOK_PROBE");
    asked.kernels = keep("GPT_HOOK_PROBE_KERNELS");
    asked.filter = keep("GPT_HOOK_PROBE_FILTER");
    asked.skip = keep("GPT_HOOK_PROBE_SKIP");
    asked.count = keep("GPT_HOOK_PROBE_COUNT");
    asked.sample = keep("GPT_HOOK_PROBE_SAMPLE");
}

bool gpt_is_selecting(void) { return asked.probes; }

bool gpt_is_choosing(void) { return asked.kernels || asked.filter; }

// When the table is full, treat all names as known. Messages contain only the first few names anyway.
static bool is_new(const char *name, size_t size) {
    uint64_t hash = 1469598103934665603u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)name[i]) * 1099511628211u;
    hash += !hash;
    for (size_t tries = 0; tries < 64; tries++) {
        uint64_t *place = &known[(hash + tries) % MOST_NAMES];
        if (*place == hash)
            return false;
        if (!*place) {
            *place = hash;
            return true;
        }
    }
    return false;
}

static void add(struct list *list, const char *name, size_t size) {
    if (list->count < SHOWN) {
        bool whole = size < SHOWN_BYTES;
        snprintf(list->names[list->count], SHOWN_BYTES, "%.*s%s", (int)(whole ? size : SHOWN_BYTES - 4), name,
                 whole ? "" : "...");
    }
    list->count++;
}

// Find the next part of -k, or return false if there are no more.
static bool next_part(const char **at, size_t *size) {
    *at += strspn(*at, ":");
    *size = strcspn(*at, ":");
    return *size;
}

void gpt_add_kernel(const char *name, size_t size) {
    if (!asked.probes || !size || !is_new(name, size))
        return;
    add(&all, name, size);
    size_t length, part = 0;
    for (const char *at = asked.kernels ? asked.kernels : ""; part < MOST_PARTS && next_part(&at, &length);
         at += length, part++)
        used[part] += memmem(name, size, at, length) != NULL;
    if (asked.kernels && !gpt_has_part(name, size, asked.kernels))
        return;
    add(asked.filter && gpt_has_part(name, size, asked.filter) ? &filtered : &chosen, name, size);
}

// The messages

__attribute__((format(printf, 3, 4))) static int append(char *line, size_t size, const char *format, ...) {
    va_list values;
    size_t at = strlen(line);
    va_start(values, format);
    int added = vsnprintf(line + at, size - at, format, values);
    va_end(values);
    return added;
}

static void say(const char *fact, const struct list *list) {
    static char line[4096];
    snprintf(line, sizeof(line), "gpt-hook: warning: %s", fact);
    for (uint64_t i = 0; i < list->count && i < SHOWN; i++)
        append(line, sizeof(line), "%s%s", i ? ", " : "", list->names[i]);
    if (list->count > SHOWN)
        append(line, sizeof(line), " and %lu more", list->count - SHOWN);
    gpt_write_line(line);
}

// Report parts of -k that aren't in any kernel's name.
static void say_unused_parts(void) {
    char unused[512] = "", fact[1024];
    size_t length, part = 0;
    for (const char *at = asked.kernels; part < MOST_PARTS && next_part(&at, &length); at += length, part++)
        if (!used[part])
            append(unused, sizeof(unused), "%s%.*s", *unused ? ":" : "", (int)length, at);
    if (!*unused)
        return;
    snprintf(fact, sizeof(fact), "-k %s matches no kernel; the program looked up: ", unused);
    say(fact, &all);
}

static void say_left_out(void) {
    char options[256] = "";
    if (asked.skip)
        append(options, sizeof(options), " --launch-skip %s", asked.skip);
    if (asked.count)
        append(options, sizeof(options), " --launch-count %s", asked.count);
    if (asked.sample)
        append(options, sizeof(options), " --sample 1/%s", asked.sample);
    char fact[512];
    snprintf(fact, sizeof(fact), "%s leaves out every launch of: ", options + 1);
    say(fact, &chosen);
}

void gpt_say_names(void) {
    if (asked.kernels && all.count)
        say_unused_parts();
    if (filtered.count && !chosen.count)
        say("--filter leaves no kernel; it drops: ", &filtered);
}

void gpt_say_selection(uint64_t launches, uint64_t probed, uint64_t unprobed, uint64_t left_out) {
    gpt_say_names();
    if (chosen.count && launches && !probed && !unprobed && (asked.kernels || asked.filter))
        say("no kernel that -k and --filter choose was launched; of these, the program looked up: ", &chosen);
    if (left_out && !probed)
        say_left_out();
}
