// The command line's options for probes.

#ifndef GPT_PROBE_H
#define GPT_PROBE_H

#include <stdbool.h>
#include <stddef.h>

enum { MOST_PROBES = 64 };

struct probing { // NULL: the option was not given
    char *probes[MOST_PROBES];
    size_t probe_count;
    const char *jit, *kernels, *filter, *wait, *skip, *count, *sample, *memory;
    bool complete, benchmark, memusage, quiet;
};

extern bool probes_call_back; // one names a file that is to be run on what each launch saved

// Sets what the hook reads, and returns the pipeline's text for the broker, or NULL if nothing is to be
// probed. Fails if the options make no sense or a probe can't be read.
const char *use_probing(const struct probing *probing);

// Adds the parts of names in a -k or --filter option to those `known` from earlier ones (NULL: none). Fails
// if the option names no part.
const char *add_parts(const char *option, const char *known, const char *parts);

// The text of the pipeline for probes or --jit, and its digest with theirs. Fails as the above.
const char *make_pipeline(const struct probing *probing, char digest[65]);
const char *name_probes(const struct probing *probing); // what they are called, with spaces between them

void set(const char *name, const char *value); // a variable of the hook's; NULL: it is not set

#endif
