// Host code of kernels that an image holds as PTX: made on a kernel's first launch, by whichever thread comes
// first; looked for in the cache (../common/cache.c) before stages are asked (../common/broker.h).

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arch_sim.h"
#include "build.h"
#include "run.h"

static pthread_cond_t made = PTHREAD_COND_INITIALIZER;

// What decides which code is made of a text. Names of kernels can be longer than any buffer.
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

static CUresult make(enum gpt_pipeline which, const char *image, size_t size, const char *kernel,
                     struct gpt_bytes *made) {
    struct gpt_outcome answer;
    gpt_ask(which, image, size, which == GPT_UNPACK ? "fatbin" : "ptx", kernel, &answer);
    if (*answer.note)
        sim_warn("%s", answer.note);
    *made = answer.made;
    if (made->data)
        return CUDA_SUCCESS;
    sim_say("%s%.512s%s%s",
            kernel               ? "kernel '"
            : which == GPT_CHECK ? "PTX"
                                 : "compressed PTX",
            kernel ? kernel : "", kernel ? "': " : ": ", answer.fault);
    return answer.status < GPT_MISSING    ? CUDA_ERROR_INVALID_PTX
           : answer.status == GPT_NOT_RUN ? CUDA_ERROR_OPERATING_SYSTEM
                                          : CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
}

CUresult sim_unpack(const struct fatbin_element *element, char **text, size_t *size) {
    size_t whole = element->header_size + element->payload_size;
    struct fatbin_region head = {FATBIN_MAGIC, 1, sizeof(head), whole};
    char key[65], *fatbin = malloc(sizeof(head) + whole);
    if (!fatbin)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(fatbin, &head, sizeof(head));
    memcpy(fatbin + sizeof(head), element, whole);
    name_code(fatbin, sizeof(head) + whole, "", key);
    struct gpt_bytes found = {0};
    CUresult status = CUDA_SUCCESS;
    if (!gpt_get_kept("sim", key, &found)) {
        status = make(GPT_UNPACK, fatbin, sizeof(head) + whole, NULL, &found);
        if (!status)
            gpt_keep("sim", key, &found);
    }
    free(fatbin);
    *text = found.data, *size = found.size;
    return status;
}

static CUresult find(struct entry *entry, void **object) {
    char key[65];
    name_code(entry->text, entry->text_size, entry->name, key);
    struct gpt_bytes code = {0};
    if (gpt_get_kept("sim", key, &code)) {
        *object = sim_open_object(code.data, code.size);
        free(code.data);
        if (*object)
            return CUDA_SUCCESS;
        code = (struct gpt_bytes){0};
    }
    CUresult status = make(GPT_HOST, entry->text, entry->text_size, entry->name, &code);
    if (status)
        return status;
    *object = sim_open_object(code.data, code.size);
    if (*object)
        gpt_keep("sim", key, &code);
    free(code.data);
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
                   : entry->fault == CUDA_ERROR_OPERATING_SYSTEM ? NOT_MADE // it may be another time
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
static CUresult check_all(const struct code *code) {
    char key[65];
    struct gpt_bytes found = {0}, good = {"", 1, 1};
    name_code(code->text, code->text_size, "--check", key);
    bool kept = gpt_get_kept("sim", key, &found);
    CUresult status = kept ? CUDA_SUCCESS : make(GPT_CHECK, code->text, code->text_size, NULL, &found);
    if (!kept && !status)
        gpt_keep("sim", key, &good);
    free(found.data);
    return status;
}

CUresult sim_check_text(struct code *code) {
    if (!code->text || !sim_runs)
        return CUDA_SUCCESS;
    CUresult status = sim_check_target(code);
    if (status || code->entry_count != 1)
        return status ? status : check_all(code);
    LOCKED;
    return sim_make_kernel(code, code->entries);
}
