// What is asked about a kernel: its image, its name and the device that it is for. The same makes the key
// that the answer is kept under, with what the launcher says of the pipeline and the probes.

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

// The device's architecture, and as the pipeline takes it.
static bool find_arch(char arch[GPT_ARCH_BYTES], char target[GPT_ARCH_BYTES]) {
    CUdevice device;
    int major, minor;
    if (hook_do.get_device(&device) ||
        hook_do.device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) ||
        hook_do.device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device))
        return false;
    snprintf(arch, GPT_ARCH_BYTES, "sm_%d%d", major, minor);
    snprintf(target, GPT_ARCH_BYTES, "%s", hook_driver_is_simulated() ? "host" : arch);
    return true;
}

const char *hook_name_result(const struct looked_up *function, const char *kernel, char key[65]) {
    static atomic_flag registered = ATOMIC_FLAG_INIT; // after the driver's own handlers: it runs before them
    char digest[65], arch[GPT_ARCH_BYTES], target[GPT_ARCH_BYTES], registers[16];
    struct gpt_bytes text = {0};
    if (!atomic_flag_test_and_set(&registered))
        atexit(hook_end_probing);
    if (!hook_find_probe_calls())
        return "the driver is too old: 12.0 is needed";
    const char *refused = hook_digest_source(function->handle, digest);
    if (refused)
        return refused;
    if (!find_arch(arch, target))
        return "its device is not known";
    const char *parts[] = {hook_order_of(function->order)->identity, arch, target, digest, registers, kernel};
    bool whole = true;
    snprintf(registers, sizeof(registers), "%u", function->registers);
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        whole = whole && gpt_add(&text, parts[i], strlen(parts[i]) + 1);
    if (whole && !hook_settings.keeps)
        gpt_sha256(text.data, text.size, key);
    else
        *key = '\0';
    gpt_empty(&text);
    return NULL;
}

const char *hook_send_question(const struct looked_up *function, const char *kernel, struct gpt_call *call) {
    char arch[GPT_ARCH_BYTES];
    struct gpt_question question = {.pipeline = GPT_PROBE};
    struct gpt_asked asked = {.kernel = kernel, .arch = arch, .registers = function->registers};
    struct gpt_bytes request = {0};
    int file;
    const char *refused = find_arch(arch, question.arch)
                              ? hook_add_request(function->handle, &asked, &request, &file)
                              : "its device is not known";
    snprintf(question.digest, sizeof(question.digest), "%s", hook_order_of(function->order)->identity);
    if (!refused)
        refused = gpt_begin(call, &question, &request, file);
    gpt_close((int[]){file, -1});
    gpt_empty(&request);
    return refused;
}
