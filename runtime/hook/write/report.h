// What gpt-hook's process says at its end.

#ifndef GPT_REPORT_H
#define GPT_REPORT_H

void hook_report_setup(void);
void hook_report(void); // in the root process: one line about what was written

void hook_report_loss(void); // the same, as the root process becomes a program without the hook

#endif
