// printf, assert and malloc for device code. Each call's output is written immediately and in one piece. A
// GPU buffers it until the next synchronization.

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run.h"
#include "say.h"

// The arguments of vprintf, one after another, each aligned to its size.
struct arguments {
    struct lane *lane;
    uint32_t site;
    uint64_t at;
    int count;
};

static uint64_t next(struct arguments *arguments, unsigned size) {
    uint64_t value = 0;
    arguments->at = (arguments->at + size - 1) & ~(uint64_t)(size - 1);
    if (!sim_may_access(arguments->lane, arguments->at, size))
        sim_fault(&arguments->lane->thread, arguments->site, HOST_FAULT_ADDRESS, arguments->at);
    memcpy(&value, (const void *)arguments->at, size);
    arguments->at += size;
    arguments->count++;
    return value;
}

struct output {
    char *at, *end;
};

static void put(struct output *text, int written) {
    size_t left = (size_t)(text->end - text->at);
    if (written > 0)
        text->at += (size_t)written < left ? (size_t)written : left ? left - 1 : 0;
}

// Format a conversion, starting after its percent sign: flags, width, precision, size, letter. Returns the
// position after it, or NULL if it isn't a conversion.
static const char *convert(const char *from, struct arguments *arguments, struct output *text) {
    char form[48] = "%", word[1024];
    size_t size = 1;
    bool wide = false;
    for (; *from && strchr("-+ #0123456789.*hlLqjzt", *from); from++) {
        wide |= strchr("lLqjzt", *from) != NULL;
        if (*from == '*')
            size += (size_t)snprintf(form + size, sizeof(form) - size, "%d", (int)next(arguments, 4));
        else if (!strchr("hlLqjzt", *from))
            form[size++] = *from;
        if (size > 30)
            return NULL;
    }
    size_t room = (size_t)(text->end - text->at);
    bool integer = *from && strchr("diouxXc", *from);
    if (integer && *from != 'c' && wide)
        form[size++] = 'l';
    form[size++] = *from;
    form[size] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (integer) {
        uint64_t value = next(arguments, wide ? 8 : 4);
        bool half = !wide && from[-1] == 'h', quarter = half && from[-2] == 'h', sign = strchr("di", *from);
        if (quarter)
            value = sign ? (uint64_t)(int8_t)value : (uint8_t)value;
        else if (half)
            value = sign ? (uint64_t)(int16_t)value : (uint16_t)value;
        put(text, wide ? snprintf(text->at, room, form, value) : snprintf(text->at, room, form, (int)value));
    } else if (*from && strchr("eEfFgGaA", *from)) {
        uint64_t bits = next(arguments, 8);
        double value;
        memcpy(&value, &bits, sizeof(value));
        put(text, snprintf(text->at, room, form, value));
    } else if (*from == 's') {
        uint64_t address = next(arguments, 8);
        if (address)
            sim_read_text(arguments->lane, arguments->site, address, word, sizeof(word));
        put(text, snprintf(text->at, room, form, address ? word : "(null)"));
    } else if (*from == 'p')
        put(text, snprintf(text->at, room, form, (void *)next(arguments, 8)));
    else
        return NULL;
#pragma GCC diagnostic pop
    return from + 1;
}

int sim_print(struct host_thread *thread, uint32_t site, uint64_t format, uint64_t at) {
    char form[4096], room[8192];
    struct arguments arguments = {lane_of(thread), site, at, 0};
    struct output text = {room, room + sizeof(room)};
    if (!format)
        return -1;
    sim_read_text(lane_of(thread), site, format, form, sizeof(form));
    for (const char *from = form; *from && text.at < text.end - 1;) {
        const char *after = *from == '%' && from[1] != '%' ? convert(from + 1, &arguments, &text) : NULL;
        if (after)
            from = after;
        else {
            *text.at++ = *from;
            from += *from == '%' && from[1] == '%' ? 2 : 1;
        }
    }
    if (write(STDOUT_FILENO, room, (size_t)(text.at - room)) < 0)
        return -1;
    return arguments.count;
}

void sim_assert(struct host_thread *thread, uint32_t site, uint64_t message, uint64_t file, uint32_t line,
                uint64_t function) {
    struct lane *lane = lane_of(thread);
    char condition[1024], where[1024], in[1024], text[4096];
    sim_read_text(lane, site, message, condition, sizeof(condition));
    sim_read_text(lane, site, file, where, sizeof(where));
    sim_read_text(lane, site, function, in, sizeof(in));
    snprintf(text, sizeof(text), "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.",
             where, line, in, thread->ctaid[0], thread->ctaid[1], thread->ctaid[2], thread->tid[0],
             thread->tid[1], thread->tid[2], condition);
    gpt_write_line(text);
    sim_fault(thread, site, HOST_FAULT_ASSERT, 0);
}

uint64_t sim_heap_allocate(struct host_thread *thread, uint32_t site, uint64_t size) {
    (void)site;
    return sim_heap_take(run_of(lane_of(thread))->context, size);
}

void sim_heap_release(struct host_thread *thread, uint32_t site, uint64_t address) {
    struct run *run = run_of(lane_of(thread));
    if (!address || sim_heap_give(run->context, address))
        return;
    sim_fail(run, lane_of(thread), site, CUDA_ERROR_ILLEGAL_ADDRESS,
             "free of 0x%llx, which malloc did not return, or which was freed", (unsigned long long)address);
    sim_end_lane(lane_of(thread));
}
