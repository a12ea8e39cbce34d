// What is asked about a kernel, and what its answer is kept under.

#ifndef GPT_QUESTION_H
#define GPT_QUESTION_H

#include <stdint.h>

#include "common/kept.h"

// Both return NULL, or why the kernel cannot get probes: a text that stays.
const char *hook_name_result(uint64_t function, const char *kernel, char key[65]);
const char *hook_send_question(uint64_t function, const char *kernel, struct gpt_call *call);

#endif
