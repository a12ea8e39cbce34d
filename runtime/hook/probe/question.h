// What is asked about a kernel, and what its answer is kept under.

#ifndef GPT_QUESTION_H
#define GPT_QUESTION_H

#include "common/kept.h"
#include "probed.h"

// Both return NULL, or why the kernel cannot get probes: a text that stays.
const char *hook_name_result(const struct looked_up *function, const char *kernel, char key[65]);
const char *hook_send_question(const struct looked_up *function, const char *kernel, struct gpt_call *call);

#endif
