// What the driver links has no PTX in it, so that of the parts is kept: of the links that are under way, and
// of some results. A result is known again by its contents, for programs copy it.
//
// Only what was made of one PTX module is probed. Of several, one may replace weak functions of another, and
// two may have variables of one name: which of them a kernel uses, only the linker knows. A static library,
// which is CUDA's device runtime, does neither; a kernel that calls it is left alone by who weaves.

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_abi.h"
#include "hook/watch/watch.h"
#include "probe.h"

enum { MOST_RESULTS = 64, MOST_TEXT = 64 << 20 }; // results; bytes of a part

struct link {
    struct link *next;
    uint64_t state; // 0: it is a result
    struct gpt_bytes text;
    unsigned parts; // but libraries
    uint64_t size;  // of the result
    char digest[65];
};

static pthread_mutex_t links_lock = PTHREAD_MUTEX_INITIALIZER;
static struct link *links;

static void drop(struct link **at) {
    struct link *gone = *at;
    *at = gone->next;
    gpt_empty(&gone->text);
    free(gone);
}

// The link that is under way; the lock is held.
static struct link **find_link(uint64_t state) {
    struct link **at = &links;
    while (*at && (*at)->state != state)
        at = &(*at)->next;
    return at;
}

static bool is_done(const struct frame *frame) {
    return hook_probing && (CUresult)frame->rax == CUDA_SUCCESS && frame->args[0];
}

// cuLinkCreate, whose state is its last argument.
void hook_after_link_begun(struct frame *frame) {
    const uint64_t *state = (const uint64_t *)frame->args[3];
    struct link *link =
        hook_probing && (CUresult)frame->rax == CUDA_SUCCESS && state ? calloc(1, sizeof(*link)) : NULL;
    if (!link)
        return;
    pthread_mutex_lock(&links_lock);
    struct link **old = find_link(*state);
    if (*old)
        drop(old);
    link->state = *state;
    link->next = links;
    links = link;
    pthread_mutex_unlock(&links_lock);
}

static void add_part(uint64_t state, int type, const void *data, size_t size) {
    if (type == CU_JIT_INPUT_LIBRARY)
        return;
    pthread_mutex_lock(&links_lock);
    struct link *link = *find_link(state);
    if (link && ++link->parts == 1 && type == CU_JIT_INPUT_PTX && size <= MOST_TEXT &&
        hook_is_readable(data, size))
        gpt_add(&link->text, data, size);
    else if (link)
        gpt_empty(&link->text);
    pthread_mutex_unlock(&links_lock);
}

// cuLinkAddData
void hook_after_link_data(struct frame *frame) {
    if (is_done(frame))
        add_part(frame->args[0], (int)frame->args[1], (const void *)frame->args[2], frame->args[3]);
}

// cuLinkAddFile
void hook_after_link_file(struct frame *frame) {
    const char *path = (const char *)frame->args[2];
    struct gpt_bytes text = {0};
    struct stat status;
    if (!is_done(frame) || !path)
        return;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool small = file >= 0 && !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size <= MOST_TEXT;
    bool whole = small && gpt_read_file(file, &text);
    add_part(frame->args[0], whole ? (int)frame->args[1] : -1, text.data, text.size);
    gpt_empty(&text);
    if (file >= 0)
        close(file);
}

// Too many results: the oldest, which are the last, go.
static void shrink(void) {
    unsigned count = 0;
    for (struct link **at = &links; *at;)
        if (!(*at)->state && ++count > MOST_RESULTS)
            drop(at);
        else
            at = &(*at)->next;
}

// cuLinkComplete
void hook_after_link(struct frame *frame) {
    void *const *result = (void *const *)frame->args[1];
    if (!is_done(frame) || !result || !*result)
        return;
    struct image image = hook_read_image(*result);
    struct link *made = hook_is_readable(image.start, image.size) ? calloc(1, sizeof(*made)) : NULL;
    if (!made)
        return;
    made->size = image.size;
    gpt_sha256(image.start, image.size, made->digest);
    pthread_mutex_lock(&links_lock);
    const struct link *link = *find_link(frame->args[0]);
    if (link && link->text.size)
        gpt_add(&made->text, link->text.data, link->text.size);
    made->next = links;
    links = made;
    shrink();
    pthread_mutex_unlock(&links_lock);
}

// cuLinkDestroy
void hook_after_link_end(struct frame *frame) {
    pthread_mutex_lock(&links_lock);
    struct link **at = find_link(frame->args[0]);
    if (frame->args[0] && (CUresult)frame->rax == CUDA_SUCCESS && *at)
        drop(at);
    pthread_mutex_unlock(&links_lock);
}

bool hook_find_linked(const struct image *image, struct gpt_bytes *text) {
    char digest[65] = "";
    pthread_mutex_lock(&links_lock);
    const struct link *link = links;
    for (; link; link = link->next) {
        if (link->state || link->size != image->size)
            continue;
        if (!*digest && hook_is_readable(image->start, image->size))
            gpt_sha256(image->start, image->size, digest);
        if (!strcmp(digest, link->digest))
            break;
    }
    if (link && link->text.size)
        gpt_add(text, link->text.data, link->text.size);
    pthread_mutex_unlock(&links_lock);
    return link != NULL;
}
