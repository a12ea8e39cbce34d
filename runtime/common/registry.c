// The pipelines that add probes, each stored under its digest: the supervisor's first pipeline, and any
// that gpt-hook ctl adds later. They're kept until the supervisor ends, because a process may ask for any
// of them again. Digests aren't verified here, since they also cover versions and probe files, which the
// supervisor doesn't have. There's nothing to gain from a wrong digest: a process that can register a text
// can have any text run anyway, and it can write to the cache of the same user. If a digest is registered a
// second time with another text, the second one is rejected.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker.h"

enum { MOST = 1024 };

static struct text {
    struct text *next;
    char digest[GPT_DIGEST_BYTES], text[];
} *texts;

const char *gpt_find_pipeline(const char *digest) {
    const struct text *text = texts;
    while (text && strcmp(text->digest, digest))
        text = text->next;
    return text ? text->text : NULL;
}

const char *gpt_add_pipeline(const char *digest, const char *text) {
    static unsigned count;
    const char *known = gpt_find_pipeline(digest);
    size_t size = strlen(text) + 1;
    if (known)
        return strcmp(known, text) ? "another pipeline has this digest" : NULL;
    if (count == MOST)
        return "the run has had 1024 different pipelines, the maximum";
    struct text *added = malloc(sizeof(*added) + size);
    if (!added)
        return strerror(ENOMEM);
    added->next = texts;
    snprintf(added->digest, sizeof(added->digest), "%s", digest);
    memcpy(added->text, text, size);
    texts = added;
    count++;
    return NULL;
}
