// Reads the environment variables that configure the device (gpt-sim(7)), and prints messages. An invalid
// value is an error. If it were ignored, the user would believe that the setting was in effect.

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "say.h"
#include "sim.h"

int sim_major, sim_minor;
uint64_t sim_delay, sim_memory;
unsigned sim_load_delay;
bool sim_strict;
bool sim_runs = true;
const char *sim_twins;
unsigned sim_timeout;
__thread char sim_said[sizeof(sim_said)];

// Messages

static void say(const char *begin, const char *format, va_list arguments) {
    char line[2048];
    size_t size = strlen(strcpy(line, begin));
    vsnprintf(line + size, sizeof(line) - size, format, arguments);
    gpt_write_line(line);
}

void sim_say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say("libcuda.so.1: error: ", format, arguments);
    va_end(arguments);
    va_start(arguments, format);
    vsnprintf(sim_said, sizeof(sim_said), format, arguments);
    va_end(arguments);
}

void sim_say_once(const char *format, ...) {
    static __thread char before[sizeof(sim_said)];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sim_said, sizeof(sim_said), format, arguments);
    va_end(arguments);
    if (sim_runs && strcmp(before, sim_said))
        sim_say("%s", strcpy(before, sim_said));
}

void sim_warn(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    say("libcuda.so.1: warning: ", format, arguments);
    va_end(arguments);
}

// Variables

// "9.0" or "sm_90".
static bool read_arch(const char *text) {
    int end = 0, both;
    if (text[strspn(text, "sm_.0123456789")]) // sscanf() takes blanks and signs before a number
        return false;
    if (sscanf(text, "%2d.%1d%n", &sim_major, &sim_minor, &end) == 2 && !text[end])
        return *text > '0' && *text <= '9';
    if (sscanf(text, "sm_%3d%n", &both, &end) != 1 || text[end] || text[3] <= '0' || text[3] > '9' ||
        both < 10)
        return false;
    sim_major = both / 10, sim_minor = both % 10;
    return true;
}

// An empty variable counts as absent.
static const char *find(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

// Accept only decimal digits: strtoull() also accepts signs, spaces and trailing text.
static bool read_number(const char *name, const char *unit, uint64_t least, uint64_t most, uint64_t *value) {
    const char *text = find(name);
    if (!text)
        return true;
    errno = 0;
    *value = strtoull(text, NULL, 10);
    if (!text[strspn(text, "0123456789")] && !errno && *value >= least && *value <= most)
        return true;
    sim_say("%s: not a number of %s from %lu to %lu: '%s'", name, unit, least, most, text);
    return false;
}

static bool read_all(void) {
    uint64_t delay = 0, load = 0, memory = 0, timeout = 60;
    const char *arch = find("GPT_SIM_ARCH"), *what = find("GPT_SIM_RUN");
    if (!read_arch(arch ? arch : "9.0")) {
        sim_say("GPT_SIM_ARCH: not a compute capability: '%s' (examples: 9.0, sm_90)", arch);
        return false;
    }
    if (what && strcmp(what, "none") && strcmp(what, "all")) {
        sim_say("GPT_SIM_RUN: neither none nor all: '%s'", what);
        return false;
    }
    if (!read_number("GPT_SIM_DELAY", "microseconds", 0, 1000000000, &delay) ||
        !read_number("GPT_SIM_LOAD_DELAY", "microseconds", 0, 1000000000, &load) ||
        !read_number("GPT_SIM_MEMORY", "bytes", 1, UINT64_MAX, &memory) ||
        !read_number("GPT_SIM_TIMEOUT", "seconds", 0, 1000000000, &timeout))
        return false;
    sim_delay = 1000 * delay;
    sim_load_delay = (unsigned)load;
    sim_memory = memory;
    sim_timeout = (unsigned)timeout;
    sim_strict = find("GPT_SIM_STRICT") != NULL;
    sim_runs = !what || strcmp(what, "none");
    sim_twins = find("GPT_SIM_TWINS");
    return true;
}

bool sim_read_environment(void) {
    static enum { UNREAD, GOOD, BAD } state;
    if (state == UNREAD)
        state = read_all() ? GOOD : BAD;
    return state == GOOD;
}

size_t sim_total_memory(void) {
    static size_t there;
    if (!sim_memory && !there)
        there = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    return sim_memory ? sim_memory : there;
}
