// The cache's interface for Python (gpt/base/cache.py), so that its rules exist once, in
// runtime/common/cache.c.

#include <stdlib.h>

#include "../common/cache.h"
#include "../common/own.h"

#define EXPORT __attribute__((visibility("default")))

// Each returns true and the result, or false; if the folder can't be trusted, also the reason.
EXPORT bool gpt_cache_get(const char *path, const char *key, long limit, char **data, size_t *size,
                          struct gpt_distrust *why) {
    struct gpt_bytes found = {0};
    bool got = gpt_get_from(path, key, limit, &found, why);
    *data = found.data;
    *size = found.size;
    return got;
}

EXPORT void gpt_cache_put(const char *path, const char *key, const char *data, size_t size, long limit,
                          long *room, struct gpt_distrust *why) {
    gpt_keep_in(path, key, &(struct gpt_bytes){(char *)data, size, size}, limit, room, why);
}

EXPORT void gpt_cache_free(char *data) { free(data); }

EXPORT int gpt_cache_temporary(const char *parent, const char *prefix, char path[PATH_MAX]) {
    return gpt_make_temporary(parent, prefix, path);
}

EXPORT int gpt_cache_open(const char *path, bool make, struct gpt_distrust *why) {
    return gpt_open_private(path, make, why);
}
