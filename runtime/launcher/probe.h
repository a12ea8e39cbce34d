// The command line's options for probes.

#ifndef GPT_PROBE_H
#define GPT_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#include "../common/broker.h"

enum { MOST_PROBES = 64 };

struct probing { // NULL: option not given
    char *probes[MOST_PROBES];
    size_t probe_count;
    const char *jit, *kernels, *filter, *wait, *skip, *count, *sample, *detail, *memory, *rerun;
    bool complete, benchmark, memusage, quiet;
};

extern struct gpt_bytes probe_callbacks; // files to run on each launch's data, each ended by a zero

// Set the hook's variables, and return the pipeline's text for the broker, or NULL without probes. Fails if
// the options make no sense or a probe can't be read.
const char *use_probing(const struct probing *probing);

// Add the parts of names in a -k or --filter option to those `known` from earlier ones (NULL: none). Fails
// if the option names no part.
const char *add_parts(const char *option, const char *known, const char *parts);

// Return the text of the pipeline for probes or --jit, and set a digest of both. Fails as above.
const char *make_pipeline(const struct probing *probing, char digest[65]);
const char *name_probes(const struct probing *probing); // their names, separated by spaces

// Return the bytes of a size such as 512M as text, or fail.
const char *check_size(const char *option, const char *text);

const char *check_sample(const char *option, const char *text); // return N of 1/N or N, or fail

void set(const char *name, const char *value); // sets a variable for the hook; NULL: removes it

#endif
