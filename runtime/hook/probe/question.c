// The question about a kernel: its image, its name and the device. Together with the launcher's digest of the
// pipeline and the probes, they make the cache key of the answer. Without the name, that's the key of an
// answer about the whole image.

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

static void (*end_probing)(void);

// Find the architecture of the device, and the name that the pipeline uses for it.
static bool find_arch(char arch[GPT_ARCH_BYTES], char target[GPT_ARCH_BYTES]) {
    CUdevice device;
    int major, minor;
    if (hook_do.get_device(&device) ||
        hook_do.device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ||
        hook_do.device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        return false;
    snprintf(arch, GPT_ARCH_BYTES, "sm_%d%d", major, minor);
    snprintf(target, GPT_ARCH_BYTES, "%s", strcmp(hook_driver_runs(), "ptx") ? arch : "host");
    return true;
}

static bool make_key(const char *const *parts, size_t count, char key[65]) {
    struct gpt_bytes text = {0};
    bool whole = true;
    for (size_t i = 0; i < count; i++)
        whole = whole && gpt_add(&text, parts[i], strlen(parts[i]) + 1);
    if (whole)
        gpt_sha256(text.data, text.size, key);
    gpt_empty(&text);
    return whole;
}

void hook_request_setup(void (*at_exit)(void)) { end_probing = at_exit; }

const struct reason *hook_name_result(const struct looked_up *function, const char *kernel,
                                      struct answer_keys *keys) {
    static atomic_flag registered =
        ATOMIC_FLAG_INIT; // registered after the driver's own handlers, so it runs before them
    char digest[65], arch[GPT_ARCH_BYTES], target[GPT_ARCH_BYTES], registers[16];
    if (!atomic_flag_test_and_set(&registered))
        atexit(end_probing);
    if (!hook_find_probe_calls())
        return WHY(driver_too_old);
    const struct reason *refused = hook_digest_source(function->handle, digest);
    if (refused)
        return refused;
    if (!find_arch(arch, target))
        return WHY(no_device);
    enum { OF_IMAGE = 4, OF_KERNEL = 6 };
    const char *parts[OF_KERNEL] = {
        hook_order_of(function->order)->identity, arch, target, digest, registers, kernel};
    snprintf(registers, sizeof(registers), "%u", function->registers);
    *keys->kernel = '\0';
    if (!make_key(parts, OF_IMAGE, keys->image) ||
        (!hook_settings.keeps && !make_key(parts, OF_KERNEL, keys->kernel)))
        return WHY(no_memory);
    return NULL;
}

const struct reason *hook_send_question(const struct looked_up *function, const char *kernel,
                                        struct gpt_call *call) {
    char arch[GPT_ARCH_BYTES];
    struct gpt_question question = {.pipeline = GPT_PROBE};
    struct gpt_asked asked = {.kernel = kernel, .arch = arch, .registers = function->registers};
    struct gpt_bytes request = {0};
    int file;
    const struct reason *refused = find_arch(arch, question.arch)
                                       ? hook_add_request(function->handle, &asked, &request, &file)
                                       : WHY(no_device);
    snprintf(question.digest, sizeof(question.digest), "%s", hook_order_of(function->order)->identity);
    struct gpt_fault fault = GPT_SERVED;
    if (!refused)
        fault = gpt_begin(call, &question, &request, file);
    if (fault.code)
        refused = hook_make_reason(fault.code, fault.detail);
    gpt_close((int[]){file, -1});
    gpt_empty(&request);
    return refused;
}
