// The save of a launch: the program's parameters, the sizes of the buffers, and their addresses among the
// arguments of the kernel with probes.

#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"
#include "hook/watch/watch.h"
#include "probe.h"

const char *hook_left_out(struct probed *probed) {
    uint64_t before = atomic_fetch_add_explicit(&probed->launches, 1, memory_order_relaxed);
    return before < hook_settings.skip || (before - hook_settings.skip) % hook_settings.sample ||
                   (before - hook_settings.skip) / hook_settings.sample >= hook_settings.count
               ? "it was left out, as --launch-skip, --launch-count or --sample say"
               : NULL;
}

// The program's parameters, as a block. False if it passes them in no form that is known, or not all of them:
// the driver answers that.
static bool copy_params(const struct launch *launch, const struct woven *woven, char *block) {
    if (launch->params && launch->extra)
        return false;
    if (launch->params) {
        bool good = true;
        const void *param;
        for (size_t i = 0; i < woven->param_count && good; i++)
            good = hook_read(&launch->params[i], &param, sizeof(param)) &&
                   hook_read(param, block + woven->params[i].offset, woven->params[i].size);
        return good;
    }
    const void *packed = NULL;
    size_t size = 0;
    for (void **at = launch->extra; at; at += 2) {
        void *pair[2];
        if (!hook_read(at, pair, sizeof(pair[0])))
            return false;
        if (!pair[0])
            break;
        if (!hook_read(at, pair, sizeof(pair)))
            return false;
        if ((uintptr_t)pair[0] == CU_LAUNCH_PARAM_BUFFER_POINTER_HANDLE)
            packed = pair[1];
        else if ((uintptr_t)pair[0] != CU_LAUNCH_PARAM_BUFFER_SIZE_HANDLE ||
                 !hook_read(pair[1], &size, sizeof(size)))
            return false;
    }
    if (!packed)
        return !woven->param_count;
    return size >= woven->param_bytes && hook_read(packed, block, woven->param_bytes);
}

struct save *hook_new_save(struct probed *probed, const struct launch *launch) {
    const struct woven *woven = probed->woven;
    size_t count = woven->param_count + woven->added_count,
           head = sizeof(struct save) + count * sizeof(void *);
    struct save *save = calloc(1, head + woven->param_bytes + 16 + woven->added_count * sizeof(uint64_t));
    char *block = save ? (char *)save + (head + 15) / 16 * 16 : NULL;
    if (!save || !copy_params(launch, woven, block)) {
        free(save);
        return NULL;
    }
    hook_hold_again(save->probed = probed);
    save->block = block;
    for (size_t i = 0; i < woven->param_count; i++)
        save->arguments[i] = block + woven->params[i].offset;
    return save;
}

void hook_free_save(struct save *save) {
    if (save && save->probed)
        hook_let_probed_go(save->probed);
    free(save);
}

// A grid may count clusters. False if there are more blocks than can be.
static bool find_blocks(const struct woven *woven, const uint32_t grid[3], uint32_t blocks[3]) {
    bool good = true;
    for (int i = 0; i < 3; i++)
        good &= !__builtin_mul_overflow(grid[i], woven->cluster[i], &blocks[i]);
    return good;
}

bool hook_map_bytes(const struct woven_map *map, const uint32_t grid[3], const uint32_t block[3],
                    uint64_t *bytes) {
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    unsigned __int128 blocks = (unsigned __int128)grid[0] * grid[1] * grid[2], size;
    uint64_t units = map->level == LEVEL_THREAD ? threads
                     : map->level == LEVEL_WARP ? (threads + 31) / 32
                                                : 1;
    if (map->log)
        size = 8 + (unsigned __int128)map->capacity * (8 + map->stride);
    else
        size = blocks * units * (8 + map->capacity * map->stride);
    *bytes = (uint64_t)size;
    return size >> 62 == 0;
}

bool hook_size_buffers(struct save *save, const struct launch *launch) {
    const struct woven *woven = save->probed->woven;
    if (!find_blocks(woven, launch->grid, save->grid))
        return false;
    save->bytes = 0;
    for (size_t i = 0; i < woven->map_count; i++) {
        if (!hook_map_bytes(&woven->maps[i], save->grid, launch->block, &save->sizes[i]))
            return false;
        save->bytes += hook_rounded(save->sizes[i]);
        if (save->bytes >> 62)
            return false;
    }
    return !hook_settings.memusage || hook_needed_bytes(woven, save->grid, launch->block, &save->needed);
}

void hook_point_at_buffers(struct save *save, uint64_t address) {
    const struct woven *woven = save->probed->woven;
    uint64_t *values = (uint64_t *)(save->block + (woven->param_bytes + 7) / 8 * 8);
    for (size_t i = 0; i < woven->added_count; i++) {
        uint64_t at = address;
        for (uint32_t k = 0; k < woven->added[i].map; k++)
            at += hook_rounded(save->sizes[k]);
        values[i] = at | (save->repeats && woven->maps[woven->added[i].map].keeps_last) |
                    save->steps[woven->added[i].map];
        save->arguments[woven->param_count + i] = &values[i];
    }
}
