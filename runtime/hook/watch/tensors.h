// What the program tells of its tensors: gpt/tensors/__init__.py finds these functions among the symbols of
// the process, and any other program may.

#ifndef GPT_TENSORS_H
#define GPT_TENSORS_H

#include <stdint.h>

#include "hook/write/write.h"

// A tensor is there, under this name. `id` is a number that the program gives it, and is not given again;
// under another name it has the same. `address` is that of its lowest byte, `bytes` how many there are from
// it to the end of the highest, `first` where the first element is. Of a text the first 1,023 bytes are
// taken, of `dims` the first
// 64. `function` and `file` may be NULL. Returns 1 if it was recorded, 0 if nothing is recorded now.
EXPORT int gpt_hook_tensor(uint64_t id, const char *name, uint64_t address, uint64_t bytes, uint64_t first,
                           const char *dtype, const uint64_t *shape, uint64_t dims, const char *function,
                           const char *file, uint64_t line);

// The program gave it up: what is at its address from now on is something else.
EXPORT void gpt_hook_tensor_end(uint64_t id);

#endif
