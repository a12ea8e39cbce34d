// The pipelines that weave probes, by the digest that questions have: what the supervisor was started with,
// and what gpt-hook ctl passed to it. They stay until it ends, as a process may ask for any of them again.
//
// A digest is taken as it comes: it covers more than the text, the versions and the probe files that it was
// made of, which aren't here. A wrong one gives nobody anything. Who may register a text may have any text
// run, and may write to the same user's cache; the first text of a digest stays, and another one is refused.

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
        return "the run has had 1024 different pipelines, which is the most";
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
