// The protocol between gpt-hook ctl and a process under gpt-hook. The process listens on an abstract Unix
// socket, whose name contains the process id and a number from the run's environment. Since anybody can use
// such a name, each side checks which user the other one belongs to. A message is an order followed by
// texts, each of which ends with a zero. The answer is the state that results.
//
// An order to change probes contains only the digest of a pipeline. Before sending it, gpt-hook ctl gives
// the text of the pipeline to the run's supervisor, through the folder that the process names. If the order
// contained the text, a child of the program in a sandbox, which can reach this socket, could decide what
// the supervisor runs.

#ifndef GPT_CONTROL_H
#define GPT_CONTROL_H

#include <stdint.h>

#define GPT_CONTROL "GPT_HOOK_CONTROL"                  // the variable with the number of the run
#define GPT_CONTROL_NAME "gpt-control.%d.%s"            // process id, number of the run
#define GPT_CONTROL_FORMAT "gpt-control.%d.%31[0-9a-f]" // to read it

enum { GPT_CONTROL_VERSION = 2 };

enum gpt_command { GPT_STATUS, GPT_ENABLE, GPT_DISABLE, GPT_ORDER };

// The texts after GPT_ORDER, which describe an order of probes. If all are empty, there are no probes.
enum gpt_text { GPT_IDENTITY, GPT_NAMES, GPT_KERNELS, GPT_FILTER, GPT_TEXTS };
enum { GPT_MOST_ORDER = 80 << 10 }; // bytes of them all

struct gpt_order {
    uint32_t version, command;
};

struct gpt_state {
    uint32_t version, recording;
    uint64_t since;   // ns since the epoch when it was last turned on or off; 0: never
    uint64_t periods; // periods during which it was on
    uint64_t launches, bytes;
    uint64_t with_probes, without;     // launches while probes were ordered
    uint64_t probed, pending, refused; // kernels that probes are ordered for
    char probes[1024], kernels[512], filter[512];
    char others[512];  // if no probes are ordered for any kernel that was looked up, some of these kernels
    char output[4096]; // the trace; empty if it has ended
    char broker[4096]; // the folder of the supervisor's socket; empty: the run has none
    char fault[256];   // why the order was not followed; empty if it was
};

#endif
