// The part of the final report about launches with and without probes: the GPU time of each group, and advice
// on the most frequent reasons for missing probes. totals.c supplies the numbers, and report.c says when to
// write them.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/selection.h"
#include "say.h"
#include "unpack.h"
#include "write.h"

enum { MOST_REASONS = 16, SHOWN = 2, CODE_BYTES = 32, DETAIL_BYTES = 256, FEWEST_KERNELS = 1 << 10 };

// The reasons for which launches ran without probes. Only the first few are kept, since there are hardly ever
// more.
static struct total {
    char code[CODE_BYTES], detail[DETAIL_BYTES];
    uint64_t launches;
    double time;
} reasons[MOST_REASONS + 1]; // the last one gets the time of all reasons that don't fit

static uint64_t times[2]; // without probes, and with them

// A hash table of kernels by number (0: a free entry): the time and the launches without probes of each, and
// these launches by reason. A time doesn't say which launch it belongs to, so a kernel's time is divided
// among its reasons in proportion to their launches.
static struct kernel {
    uint64_t number, time, launches;
} *kernels;
static struct kernel_reason {
    uint64_t number, launches;
    struct total *reason;
} *by_kernel;
static size_t room, kernel_count, by_kernel_count, by_kernel_room;

static struct kernel *find_place(uint64_t number) {
    uint64_t at = number * 0x9e3779b97f4a7c15u >> 16;
    while (kernels[at & (room - 1)].number && kernels[at & (room - 1)].number != number)
        at++;
    return &kernels[at & (room - 1)];
}

// Return NULL if memory runs out.
static struct kernel *find_kernel(uint64_t number) {
    if (2 * kernel_count >= room) {
        size_t before = room;
        struct kernel *old = kernels, *larger = calloc(before ? 2 * before : FEWEST_KERNELS, sizeof(*larger));
        if (!larger)
            return NULL;
        kernels = larger, room = before ? 2 * before : FEWEST_KERNELS;
        for (size_t i = 0; i < before; i++)
            if (old[i].number)
                *find_place(old[i].number) = old[i];
        free(old);
    }
    struct kernel *kernel = find_place(number);
    kernel_count += !kernel->number;
    kernel->number = number;
    return kernel;
}

static void add_to_kernel(uint64_t number, struct total *total, uint64_t launches) {
    struct kernel *kernel = launches ? find_kernel(number) : NULL;
    if (by_kernel_count == by_kernel_room) {
        size_t more = by_kernel_room ? 2 * by_kernel_room : FEWEST_KERNELS;
        struct kernel_reason *larger = realloc(by_kernel, more * sizeof(*larger));
        if (!larger)
            return;
        by_kernel = larger, by_kernel_room = more;
    }
    if (!kernel)
        return;
    kernel->launches += launches;
    by_kernel[by_kernel_count++] = (struct kernel_reason){number, launches, total};
}

static void share_times(void) {
    for (size_t i = 0; i < by_kernel_count; i++) {
        const struct kernel *kernel = find_place(by_kernel[i].number);
        by_kernel[i].reason->time +=
            (double)kernel->time * (double)by_kernel[i].launches / (double)kernel->launches;
    }
}

// Forget the times of kernels that -k or --filter left out, whose launches aren't counted either.
static void forget_left_out(void) {
    for (size_t i = 0; i < room; i++)
        if (kernels[i].number && !kernels[i].launches)
            times[0] -= kernels[i].time;
}

// The text and the advice that the user sees for each code.
static const struct explanation {
    const char *code, *text, *advice;
} explanations[] = {
#define X(code, text, advice) {#code, text, advice},
    GPT_REASONS(X)
#undef X
};

// Return NULL for a code that a newer stage has added.
static const struct explanation *find_explanation(const char *code) {
    for (size_t i = 0; i < sizeof(explanations) / sizeof(*explanations); i++)
        if (!strcmp(code, explanations[i].code))
            return &explanations[i];
    return NULL;
}

// Write a reason as str() does in gpt/stream/reasons.py.
static void write_reason(const struct total *total, char *text, size_t size) {
    const struct explanation *explanation = find_explanation(total->code);
    bool other = !strcmp(total->code, "other") && *total->detail;
    snprintf(text, size, "%.200s%s%.255s",
             other         ? ""
             : explanation ? explanation->text
                           : total->code,
             other || !*total->detail ? "" : ": ", total->detail);
}

void hook_add_reason(uint64_t kernel, const char *code, const char *detail, uint64_t launches) {
    struct total added = {.launches = launches}, *total = reasons;
    snprintf(added.code, sizeof(added.code), "%s", code);
    snprintf(added.detail, sizeof(added.detail), "%s", detail);
    while (total < reasons + MOST_REASONS && total->launches &&
           (strcmp(total->code, added.code) || strcmp(total->detail, added.detail)))
        total++;
    if (total < reasons + MOST_REASONS) {
        added.launches += total->launches;
        *total = added;
    }
    add_to_kernel(kernel, total, launches);
}

void hook_add_gpu_time(uint64_t kernel, bool probed, uint64_t duration) {
    struct kernel *found = probed ? NULL : find_kernel(kernel);
    times[probed] += duration;
    if (found)
        found->time += duration;
}

static int by_time(const void *one, const void *other) {
    const struct total *a = one, *b = other;
    return a->time != b->time ? (a->time < b->time) - (a->time > b->time)
                              : (a->launches < b->launches) - (a->launches > b->launches);
}

static double share_of(double time) { return 100 * time / ((double)times[0] + (double)times[1]); }

// Write nothing if the time isn't known.
static const char *write_time(bool probed, char text[64]) {
    double ms = (double)times[probed] * 1e3 / (hook_has_tsc ? (double)hook_tsc_hz() : 1e9);
    *text = '\0';
    if (times[0] || times[1])
        snprintf(text, 64, " (%.*f ms on the GPU, %.1f %%)", ms < 10 ? 2 : 0, ms,
                 share_of((double)times[probed]));
    return text;
}

const char *hook_explain_loss(struct value code) {
    if (is(code, WHY(not_saved)->code)) // chosen with --benchmark
        return NULL;
    for (size_t i = 0; i < sizeof(explanations) / sizeof(*explanations); i++)
        if (is(code, explanations[i].code))
            return explanations[i].text;
    return "another reason";
}

uint64_t hook_count_reason(const struct reason *why) {
    uint64_t launches = 0;
    for (size_t i = 0; i < MOST_REASONS; i++)
        if (!strcmp(reasons[i].code, why->code))
            launches += reasons[i].launches;
    return launches;
}

void hook_say_coverage(uint64_t probed, uint64_t unprobed, uint64_t launches) {
    char line[2048], why[512], with[64], without[64], share[32] = "";
    share_times();
    if (gpt_is_choosing())
        forget_left_out();
    qsort(reasons, MOST_REASONS, sizeof(*reasons), by_time);
    int size =
        snprintf(line, sizeof(line), "gpt-hook: %lu launch%s with probes%s, %lu without%s", probed,
                 probed == 1 ? "" : "es", write_time(true, with), unprobed, write_time(false, without));
    for (size_t i = 0; i < SHOWN && reasons[i].launches; i++) {
        write_reason(&reasons[i], why, sizeof(why));
        if (times[0] || times[1])
            snprintf(share, sizeof(share), ", %.1f %%", share_of(reasons[i].time));
        size += snprintf(line + size, sizeof(line) - (size_t)size, "%s%s (%lu%s)", i ? ", " : ": ", why,
                         reasons[i].launches, share);
    }
    if (!probed && !unprobed && launches)
        snprintf(line + size, sizeof(line) - (size_t)size, ", %lu %s", launches,
                 gpt_is_choosing() ? "left out by -k or --filter"
                                   : "in processes whose trace has no end, so nothing is known about them");
    else if (!probed && !unprobed)
        snprintf(line + size, sizeof(line) - (size_t)size, ": no launch was recorded");
    if (reasons[SHOWN].launches)
        snprintf(line + size, sizeof(line) - (size_t)size, ", and more: gpt-analyze summary has all");
    gpt_write_line(line);
    for (size_t i = 0; i < SHOWN && reasons[i].launches; i++) {
        const struct explanation *explanation = find_explanation(reasons[i].code);
        if (!explanation || !*explanation->advice || !strcmp(explanation->code, "other") ||
            (i && !strcmp(explanation->code, reasons[0].code)))
            continue;
        snprintf(line, sizeof(line), "gpt-hook: %s: %s", explanation->text, explanation->advice);
        gpt_write_line(line);
    }
}
