// Launches with probes and without, their time on the GPU, and what helps against the most frequent reasons.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/selection.h"
#include "say.h"
#include "write.h"

enum { MOST_REASONS = 16, SHOWN = 2, REASON_BYTES = 128 };

// Why launches ran without probes: those that were met first, which hardly are more.
static struct reason {
    char text[REASON_BYTES];
    uint64_t launches;
} reasons[MOST_REASONS];

static uint64_t times[2]; // without probes, and with them

// What the user can do about it; WAYS of gpt/analyze/coverage.py is the same.
static const struct {
    const char *reason, *way; // how it begins
} ways[] = {
    {"no PTX comes with it",
     "build it with PTX, or use torch.compile or Triton (README, Kernels without PTX)"},
    {"it was linked, and not of one PTX module", "link it when it is built (README, Kernels without PTX)"},
    {"it is a library of NVIDIA's whose code is closed",
     "torch.compile makes kernels of its own for much of it (README, Kernels without PTX)"},
    {"it was found without its name, or is still being made",
     "--wait waits longer, and another run finds what was made since"},
    {"no buffer was free within --max-memory", "--max-memory gives more, --complete waits"},
    {"its buffers are larger than --max-memory", "--max-memory gives more"},
    {"other graphs have the buffers that there are within --max-memory", "--max-memory gives more"},
    {"gpt-hook's supervisor", "gpt-hook(1), SUPERVISOR, says which processes it answers"},
    {"the pipeline failed", "GPT_KEEP=DIR keeps what it made of each kernel"},
};

void hook_add_reason(const char *text, size_t size, uint64_t launches) {
    char name[REASON_BYTES];
    struct reason *reason = reasons;
    snprintf(name, sizeof(name), "%.*s", (int)(size < REASON_BYTES ? size : REASON_BYTES), text);
    while (reason < reasons + MOST_REASONS && reason->launches && strcmp(reason->text, name))
        reason++;
    if (reason == reasons + MOST_REASONS)
        return;
    memcpy(reason->text, name, sizeof(name));
    reason->launches += launches;
}

void hook_add_gpu_time(bool probed, uint64_t duration) { times[probed] += duration; }

static int by_launches(const void *one, const void *other) {
    uint64_t a = ((const struct reason *)one)->launches, b = ((const struct reason *)other)->launches;
    return (a < b) - (a > b);
}

// Nothing where no time is known.
static const char *write_time(bool probed, char text[64]) {
    double ms = (double)times[probed] * 1e3 / (hook_has_tsc ? (double)hook_tsc_hz() : 1e9);
    *text = '\0';
    if (times[0] || times[1])
        snprintf(text, 64, " (%.*f ms on the GPU)", ms < 10 ? 2 : 0, ms);
    return text;
}

uint64_t hook_count_reason(const char *start) {
    uint64_t launches = 0;
    for (size_t i = 0; i < MOST_REASONS; i++)
        if (!strncmp(reasons[i].text, start, strlen(start)))
            launches += reasons[i].launches;
    return launches;
}

void hook_say_coverage(uint64_t probed, uint64_t unprobed, uint64_t launches) {
    char line[1024], with[64], without[64];
    qsort(reasons, MOST_REASONS, sizeof(*reasons), by_launches);
    int size =
        snprintf(line, sizeof(line), "gpt-hook: %lu launch%s with probes%s, %lu without%s", probed,
                 probed == 1 ? "" : "es", write_time(true, with), unprobed, write_time(false, without));
    for (size_t i = 0; i < SHOWN && reasons[i].launches; i++)
        size += snprintf(line + size, sizeof(line) - (size_t)size, "%s%s (%lu)", i ? ", " : ": ",
                         reasons[i].text, reasons[i].launches);
    if (!probed && !unprobed && launches)
        snprintf(line + size, sizeof(line) - (size_t)size, ", %lu of %s", launches,
                 gpt_is_choosing() ? "kernels that -k and --filter leave out"
                                   : "processes whose trace has no end, so that nothing is known of them");
    else if (!probed && !unprobed)
        snprintf(line + size, sizeof(line) - (size_t)size, ": no launch was recorded");
    if (reasons[SHOWN].launches)
        snprintf(line + size, sizeof(line) - (size_t)size, ", and more: gpt-analyze summary has all");
    gpt_write_line(line);
    for (size_t i = 0; i < SHOWN && reasons[i].launches; i++)
        for (size_t k = 0; k < sizeof(ways) / sizeof(*ways); k++)
            if (!strncmp(reasons[i].text, ways[k].reason, strlen(ways[k].reason))) {
                snprintf(line, sizeof(line), "gpt-hook: %s: %s", ways[k].reason, ways[k].way);
                gpt_write_line(line);
            }
}
