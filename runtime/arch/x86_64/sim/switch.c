// Switches between the stacks of lanes.

#include "sim/run.h"

// Save the registers that a function must preserve (System V ABI) on the stack that it leaves.
void sim_first(void) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".type sim_switch, @function\n"
        ".hidden sim_switch\n"
        ".globl sim_switch\n"
        "sim_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    subq $8, %rsp\n"
        "    stmxcsr (%rsp)\n"
        "    fnstcw 4(%rsp)\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    fldcw 4(%rsp)\n"
        "    ldmxcsr (%rsp)\n"
        "    addq $8, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sim_switch, . - sim_switch\n"
        ".type sim_first, @function\n"
        ".hidden sim_first\n"
        ".globl sim_first\n"
        "sim_first:\n"
        "    movq %rbx, %rdi\n"
        "    call *%r12\n"
        "    ud2\n"
        ".size sim_first, . - sim_first\n");

// Prepare a stack so that sim_switch continues at sim_first.
void *sim_prepare_stack(unsigned char *top, void (*run)(struct worker *), struct worker *worker) {
    uint64_t *at = (uint64_t *)top;
    *--at = (uint64_t)sim_first;
    *--at = 0;                // rbp
    *--at = (uint64_t)worker; // rbx
    *--at = (uint64_t)run;    // r12
    for (int i = 0; i < 3; i++)
        *--at = 0;
    *--at = 0x037f00001f80; // the control words that a process starts with
    return at;
}
