// Passing a pipeline to the supervisor of a run.

#ifndef GPT_REGISTER_H
#define GPT_REGISTER_H

#include <stdbool.h>
#include <sys/types.h>

enum { FAULT_BYTES = 1024 };

// Pass a pipeline. Returns false if there's no supervisor with a socket in this folder, which `owner` must
// own. The fault is empty if the supervisor took the pipeline.
bool register_pipeline(const char *folder, uid_t owner, const char *digest, const char *text,
                       char fault[FAULT_BYTES]);

#endif
