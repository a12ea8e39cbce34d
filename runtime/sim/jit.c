// The linker of the driver API (cuLink*), and compiler logs. A program passes buffers for logs in the options
// of a call. The simulated device writes only errors about PTX to them; the log for other information stays
// empty.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "image.h"

CUresult sim_read_jit(struct jit *jit, unsigned count, const int *options, void **values) {
    enum { MOST = 63 }; // the manual's last option is 34; newer ones are accepted, but not any number
    *jit = (struct jit){0};
    *sim_said = '\0';
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        switch (options[i]) {
        case CU_JIT_ERROR_LOG_BUFFER:
            jit->errors.text = values[i];
            break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            jit->errors.size = &values[i];
            jit->errors.room = (uintptr_t)values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER:
            jit->information.text = values[i];
            break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            jit->information.size = &values[i];
            jit->information.room = (uintptr_t)values[i];
            break;
        default:
            if (options[i] < 0 || options[i] > MOST)
                return CUDA_ERROR_INVALID_VALUE;
        }
    return CUDA_SUCCESS;
}

static void write_log(const struct jit_log *log, const char *text) {
    size_t room = (unsigned)log->room, size = 0; // the option has 32 bits
    if (log->text && room) {
        snprintf(log->text, room, "%s", text);
        size = strlen(log->text);
    }
    if (log->size)
        *log->size = (void *)(uintptr_t)size;
}

CUresult sim_log_jit(const struct jit *jit, CUresult status) {
    write_log(&jit->errors, status ? sim_said : "");
    write_log(&jit->information, "");
    return status;
}

// Linking

struct link {
    struct object object;
    struct part *parts;
    struct jit jit;
    char *result;
};

_Static_assert(sizeof(struct link) <= OBJECT_SIZE, "fit");

static void end_link(struct object *object) {
    struct link *link = (struct link *)object;
    sim_free_parts(link->parts);
    free(link->result);
}

AT_END(LINK, end_link)

API cuLinkCreate_v2(unsigned count, int *options, void **values, void **state) {
    IN_CONTEXT;
    struct jit jit;
    if (!state || sim_read_jit(&jit, count, options, values))
        return CUDA_ERROR_INVALID_VALUE;
    struct link *made = sim_new(LINK, context);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->jit = jit;
    *state = made;
    return sim_log_jit(&made->jit, CUDA_SUCCESS);
}

static CUresult check_link(const struct link *link) {
    IN_CONTEXT;
    return is_kind(link, LINK) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// Add PTX to a link. Call it without the lock, because the PTX may have to be decompressed.
static CUresult add_data(struct link *link, const char *data, size_t size) {
    struct part *parts = NULL;
    bool library =
        size >= 8 && !memcmp(data, "!<arch>\n", 8); // libcudadevrt.a, whose code is the device's own
    CUresult status = library ? sim_add_part(&parts, sim_device_runtime, strlen(sim_device_runtime))
                              : sim_each_ptx(data, size, sim_add_part, &parts);
    LOCKED;
    if (!is_kind(link, LINK)) {
        sim_free_parts(parts);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    struct part **at = &link->parts;
    while (*at)
        at = &(*at)->next;
    *at = parts;
    if (status == CUDA_ERROR_NO_BINARY_FOR_GPU || status == CUDA_ERROR_INVALID_IMAGE)
        sim_say("no PTX for the device: only PTX can be linked, see gpt-sim(7)");
    return sim_log_jit(&link->jit, status);
}

API cuLinkAddData_v2(void *state, int type, void *data, size_t size, const char *name, unsigned count,
                     int *options, void **values) {
    (void)name, (void)count, (void)options, (void)values;
    CUresult status = check_link(state);
    if (status)
        return status;
    if (!data || !size || type < 0 || type >= CU_JIT_NUM_INPUT_TYPES)
        return CUDA_ERROR_INVALID_VALUE;
    return add_data(state, data, size);
}

API cuLinkAddFile_v2(void *state, int type, const char *path, unsigned count, int *options, void **values) {
    (void)count, (void)options, (void)values;
    CUresult status = check_link(state);
    if (status)
        return status;
    if (!path || type < 0 || type >= CU_JIT_NUM_INPUT_TYPES)
        return CUDA_ERROR_INVALID_VALUE;
    char *data;
    size_t size;
    status = sim_read_whole(path, &data, &size);
    if (!status) {
        status = add_data(state, data, size);
        free(data);
    }
    return status;
}

// Link everything added so far, once. `text` is a copy of the result, which the caller frees.
static CUresult complete(struct link *link, char **text) {
    IN_CONTEXT;
    if (!is_kind(link, LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!link->parts)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = link->result ? CUDA_SUCCESS : sim_link_parts(link->parts, &link->result);
    *text = status ? NULL : strdup(link->result);
    return status || *text ? status : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult check_text(const char *text) {
    struct code *code;
    CUresult status = sim_read_image(&code, text, SIZE_MAX);
    if (status)
        return status;
    status = sim_check_text(code);
    LOCKED;
    sim_release_code(code);
    return status;
}

API cuLinkComplete(void *state, void **image, size_t *size) {
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    char *text = NULL;
    CUresult status = complete(state, &text);
    if (!status)
        status = check_text(text);
    free(text);
    LOCKED;
    struct link *link = state;
    if (!is_kind(link, LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    sim_log_jit(&link->jit, status);
    if (status)
        return status;
    *image = link->result;
    if (size)
        *size = strlen(link->result) + 1;
    return CUDA_SUCCESS;
}

API cuLinkDestroy(void *state) {
    LOCKED;
    if (!is_kind(state, LINK))
        return CUDA_ERROR_INVALID_HANDLE;
    sim_delete(state);
    return CUDA_SUCCESS;
}
