// Compiles PTX kernels to host code when they're first launched. The launching thread does that itself; if
// several threads launch a kernel at the same time, the others wait. We first look for the code in the cache
// (../common/cache.c), and run gpt-asm only if it isn't there (../common/broker.h).

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch_sim.h"
#include "build.h"
#include "run.h"

static pthread_cond_t made = PTHREAD_COND_INITIALIZER;

// Make a cache key: the digest of everything that the host code for some PTX depends on. It's computed piece
// by piece, because kernel names can be longer than any fixed buffer.
static void name_code(const char *text, size_t size, const char *kernel, char key[65]) {
    const char *compiler = getenv("CC") ? getenv("CC") : "";
    char of_text[65], of_kernel[65], of_compiler[65], all[512];
    gpt_sha256(text, size, of_text);
    gpt_sha256(kernel, strlen(kernel), of_kernel);
    gpt_sha256(compiler, strlen(compiler), of_compiler);
    snprintf(all, sizeof(all), "%s\n%s\n%s\n%s\n%s", GPT_GENERATOR, arch_variant(), of_text, of_kernel,
             of_compiler);
    gpt_sha256(all, strlen(all), key);
}

// Ask gpt-asm. If `wanted`, a part of the answer, is missing, report why.
static CUresult ask(const struct gpt_asked *asked, struct gpt_outcome *answer,
                    const struct gpt_bytes *wanted) {
    gpt_ask(asked, answer);
    if (*answer->note)
        sim_warn("%s", answer->note);
    if (wanted->data)
        return CUDA_SUCCESS;
    gpt_empty(&answer->made), gpt_empty(&answer->outline);
    sim_say("%s%.512s%s%s",
            asked->kernel                 ? "kernel '"
            : !strcmp(asked->type, "ptx") ? "PTX"
                                          : "compressed PTX",
            asked->kernel ? asked->kernel : "", asked->kernel ? "': " : ": ", answer->fault);
    return answer->status < GPT_MISSING ? CUDA_ERROR_INVALID_PTX
           : answer->status > 128       ? CUDA_ERROR_OPERATING_SYSTEM // it was killed, or can't run now
                                        : CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

static void keep_outline(const char *text, size_t size, const struct gpt_bytes *outline) {
    char key[65];
    name_code(text, size, "--outline", key);
    gpt_cache("sim", key, outline);
}

CUresult sim_unpack(const struct fatbin_element *element, const char *want, char **text, size_t *size) {
    size_t whole = element->header_size + element->payload_size;
    struct fatbin_region head = {FATBIN_MAGIC, 1, sizeof(head), whole};
    char key[65], *fatbin = malloc(sizeof(head) + whole);
    if (!fatbin)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(fatbin, &head, sizeof(head));
    memcpy(fatbin + sizeof(head), element, whole);
    name_code(fatbin, sizeof(head) + whole, "", key);
    struct gpt_outcome answer = {0};
    CUresult status = CUDA_SUCCESS;
    if (!gpt_get_cached("sim", key, &answer.made)) {
        struct gpt_asked asked = {
            .type = "fatbin", .image = fatbin, .size = sizeof(head) + whole, .want = want};
        status = ask(&asked, &answer, &answer.made);
        if (!status)
            gpt_cache("sim", key, &answer.made);
        if (answer.outline.data)
            keep_outline(answer.made.data, answer.made.size, &answer.outline);
        gpt_empty(&answer.outline);
    }
    free(fatbin);
    *text = answer.made.data, *size = answer.made.size;
    return status;
}

CUresult sim_find_outline(const char *text, size_t size, bool load, struct gpt_bytes *outline,
                          struct gpt_bytes *made) {
    char key[65];
    name_code(text, size, "--outline", key);
    if (gpt_get_cached("sim", key, outline))
        return CUDA_SUCCESS;
    struct gpt_outcome answer;
    struct gpt_asked asked = {
        .type = "ptx", .image = text, .size = size, .want = load ? GPT_WANT_LOAD : GPT_WANT_OUTLINE};
    CUresult status = ask(&asked, &answer, &answer.outline);
    if (!status)
        gpt_cache("sim", key, &answer.outline);
    *outline = answer.outline, *made = answer.made;
    return status;
}

static const struct gpt_bytes good = {"", 1, 1}; // cached for PTX that passed a check

void sim_keep_loaded(const struct code *code, const struct gpt_bytes *made) {
    char key[65];
    bool one = code->entry_count == 1;
    if (one && !made->size)
        return;
    name_code(code->text, code->text_size, one ? code->entries->name : "--check", key);
    gpt_cache("sim", key, one ? made : &good);
}

static CUresult find(struct entry *entry, void **object) {
    char key[65];
    name_code(entry->text, entry->text_size, entry->name, key);
    struct gpt_bytes code = {0};
    if (gpt_get_cached("sim", key, &code)) {
        *object = sim_open_object(code.data, code.size);
        free(code.data);
        if (*object)
            return CUDA_SUCCESS;
    }
    struct gpt_outcome answer;
    struct gpt_asked asked = {
        .type = "ptx", .image = entry->text, .size = entry->text_size, .kernel = entry->name};
    CUresult status = ask(&asked, &answer, &answer.made);
    if (status)
        return status;
    *object = sim_open_object(answer.made.data, answer.made.size);
    if (*object)
        gpt_cache("sim", key, &answer.made);
    gpt_empty(&answer.made);
    return *object ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
}

static CUresult finish(struct entry *entry, CUresult status, void *object) {
    entry->module = status ? NULL : sim_module_of(object);
    for (uint32_t i = 0; !status && i < entry->module->kernel_count; i++)
        if (!strcmp(entry->module->kernels[i].name, entry->name))
            entry->kernel = &entry->module->kernels[i];
    entry->object = object;
    entry->fault = status || entry->kernel ? status : CUDA_ERROR_INVALID_IMAGE;
    entry->state = !entry->fault                                 ? MADE
                   : entry->fault == CUDA_ERROR_OPERATING_SYSTEM ? NOT_MADE // a later attempt may succeed
                                                                 : NOT_MAKEABLE;
    if (entry->kernel)
        sim_describe_entry(entry);
    return entry->fault;
}

CUresult sim_make_kernel(struct code *code, struct entry *entry) {
    code->references++;
    while (entry->state == BEING_MADE)
        pthread_cond_wait(&made, &sim_lock);
    CUresult status = entry->text ? entry->fault : CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (entry->text && entry->state == NOT_MADE) {
        entry->state = BEING_MADE;
        pthread_mutex_unlock(&sim_lock);
        void *object = NULL;
        status = find(entry, &object);
        pthread_mutex_lock(&sim_lock);
        status = finish(entry, status, object);
        pthread_cond_broadcast(&made);
    }
    sim_release_code(code);
    return status;
}

// Check that host code can be made for all kernels. A good result is cached and not checked again.
CUresult sim_check_all(const struct code *code) {
    char key[65];
    struct gpt_bytes found = {0};
    name_code(code->text, code->text_size, "--check", key);
    bool cached = gpt_get_cached("sim", key, &found);
    gpt_empty(&found);
    if (cached)
        return CUDA_SUCCESS;
    struct gpt_outcome answer;
    struct gpt_asked asked = {
        .type = "ptx", .image = code->text, .size = code->text_size, .want = GPT_WANT_LOAD};
    CUresult status = ask(&asked, &answer, &answer.made);
    if (!status)
        gpt_cache("sim", key, &good);
    gpt_empty(&answer.made), gpt_empty(&answer.outline);
    return status;
}
