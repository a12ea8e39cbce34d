// The stubs that a program calls in place of driver functions.
//
// A stub knows neither the signature nor the result type of its function. It saves every register
// that can hold an argument, shows them to hook_enter, copies as many words of stack arguments as
// hook_enter says, and *calls* the real function. So its own frame stays on the stack, described by
// ordinary CFI: exceptions unwind through it, longjmp drops it, a debugger walks it, and shadow
// stacks (CET) stay true. Replacing the return address instead would save the copy, but break all
// of these.
//
// Most calls need only a row with time and result. Their stub (`lean`) writes it directly, without
// that frame. The remaining cost is two reads of the clock (19 to 30 ns in a virtual machine) and
// the trace's pages (5 ns per row).
//
// If a function isn't watched, its stub jumps to it, so the function sees only its caller's frame. The stub of a launch
// or query that is only counted does the same after counting. While nothing is recorded and nothing was ever probed,
// frequent calls aren't watched: launches (also of graphs), and calls that put other work into a stream or wait for it.
//
// A slot's flags change while calls are in progress, when recording is switched on or off. A stub decides by the flags
// that it read first whether the call is watched.

#include "hook/entry/stub.h"

    .text

// Each stub loads its number into r10 or r11, which never hold an argument. The stubs of the
// functions in abi/driver.h come first and have the functions' names, so a program that is linked
// to the driver calls them.

    .p2align 4
    .globl hook_stubs
    .hidden hook_stubs
hook_stubs:
    .set number, 0

    .macro stub
    .p2align 4
    .cfi_startproc
    endbr64
    movl $number, %r11d
    jmp enter
    .cfi_endproc
    .set number, number + 1
    .endm

    .macro named name
    .p2align 4
    .globl \name
    .type \name, @function
\name:
    stub
    .size \name, . - \name
    .endm

#define X(name, suffix, since, words) named name##suffix;
#include "abi/driver.h"

    .rept SLOTS - number
    stub
    .endr
    .globl hook_stubs_end
    .hidden hook_stubs_end
hook_stubs_end:

// A frame (watch.h) with the argument registers. The vector registers come later, since most functions pass nothing in
// them.

    .macro open_frame
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $FRAME_SIZE, %rsp
    movq %rdi, FRAME_ARGS(%rsp)
    movq %rsi, FRAME_ARGS + 8(%rsp)
    movq %rdx, FRAME_ARGS + 16(%rsp)
    movq %rcx, FRAME_ARGS + 24(%rsp)
    movq %r8, FRAME_ARGS + 32(%rsp)
    movq %r9, FRAME_ARGS + 40(%rsp)
    movq %rax, FRAME_RESULT(%rsp)
    movq %r11, FRAME_SLOT(%rsp)
    .endm

    .macro keep_vectors
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    movaps %xmm\i, FRAME_XMM + 16 * \i(%rsp)
    .endr
    .endm

    .macro load_arguments frame
    movq FRAME_ARGS(\frame), %rdi
    movq FRAME_ARGS + 8(\frame), %rsi
    movq FRAME_ARGS + 16(\frame), %rdx
    movq FRAME_ARGS + 24(\frame), %rcx
    movq FRAME_ARGS + 32(\frame), %r8
    movq FRAME_ARGS + 40(\frame), %r9
    movq FRAME_RESULT(\frame), %rax
    movq FRAME_SLOT(\frame), %r11
    .endm

    .macro load_vectors frame
    .irp i, 0, 1, 2, 3, 4, 5, 6, 7
    movaps FRAME_XMM + 16 * \i(\frame), %xmm\i
    .endr
    .endm

// Counts a launch of the function whose address is in a register, with the counter of the thread in
// r10, and jumps to it.
    .macro count function
    movabsq $KEY_FACTOR, %rax
    imulq \function, %rax
    shrq $KEY_SHIFT, %rax
    andl THREAD_COUNTERS_MASK(%r10), %eax
    shlq $COUNTER_BITS, %rax
    movq THREAD_COUNTERS(%r10), %r10
    testq %r10, %r10
    jz full
    addq %r10, %rax
    cmpq COUNTER_KEY(%rax), \function
    jne full
    movq COUNTER_CURRENT(%rax), %r10
    testq %r10, %r10
    jz full
    movq (%r10), %r10
    cmpq COUNTER_GENERATION(%rax), %r10
    jne full // the counted object no longer exists
    movq COUNTER_ROW(%rax), %rax
    cmpq $0, (%rax)
    je full
    incq (%rax)
    jmp *SLOT_REAL(%r11)
    .endm

    .p2align 5
    .type enter, @function
enter:
    .cfi_startproc
    shlq $SLOT_SHIFT, %r11
    leaq hook_slots(%rip), %r10
    addq %r10, %r11
look:
    movl SLOT_FLAGS(%r11), %r10d
    testl $(SLOT_WATCHED | SLOT_COUNTED), %r10d
    jnz 1f
9:  jmp *SLOT_REAL(%r11)

1:  testl $SLOT_LEAN, %r10d
    jnz lean
    testl $SLOT_WATCHED, %r10d
    jnz full

    // This call is only counted, in the thread's counter, which is part of the trace. The slow path handles a call
    // without a counter, such as the first one of its kind. No such function has an argument in rax. A launch that
    // fails later is counted too.
    movq hook_thread@gottpoff(%rip), %rax
    movq %fs:(%rax), %r10
    testq %r10, %r10
    jz full
    movq hook_live(%rip), %rax
    movl LIVE_PID(%rax), %eax
    cmpl THREAD_PID(%r10), %eax
    jne full
    testl $SLOT_QUERY, SLOT_FLAGS(%r11) // after a change of flags, no counter matches the wrong key
    jnz 3f
    testl $SLOT_SECOND, SLOT_FLAGS(%r11)
    jnz 2f
    count %rdi
2:  count %rsi
3:  movzbl SLOT_QUERY_INDEX(%r11), %eax
    movq THREAD_QUERIES(%r10, %rax, 8), %rax
    testq %rax, %rax
    jz full
    incq (%rax)
    jmp 9b

full:
    open_frame
    leaq 16(%rbp), %rcx
    movq %rcx, FRAME_STACK(%rsp)
    testl $SLOT_SCALAR, SLOT_FLAGS(%r11)
    jnz 6f
    keep_vectors
6:  movq %rsp, %rdi
    call hook_enter
    movq %rsp, %r10                 // the frame

    // Copy the stack arguments; rax is an even number of words.
    testq %rax, %rax
    jnz 4f
2:  load_arguments %r10
    testl $SLOT_SCALAR, SLOT_FLAGS(%r11)
    jnz 7f
    load_vectors %r10
    call *FRAME_REAL(%r10)
    leaq -FRAME_SIZE(%rbp), %rsp
    movaps %xmm0, FRAME_XMM(%rsp)
    movaps %xmm1, FRAME_XMM + 16(%rsp)
    jmp 8f
7:  call *FRAME_REAL(%r10)
    leaq -FRAME_SIZE(%rbp), %rsp
8:  movq %rax, FRAME_RESULT(%rsp)
    movq %rdx, FRAME_RDX(%rsp)
    movq %rsp, %rdi
    call hook_leave
    movq FRAME_RESULT(%rsp), %rax
    movq FRAME_RDX(%rsp), %rdx
    movaps FRAME_XMM(%rsp), %xmm0   // meaningless if the function has no such result
    movaps FRAME_XMM + 16(%rsp), %xmm1
    leave
    .cfi_remember_state
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_restore_state

4:  leaq (, %rax, 8), %rcx
    subq %rcx, %rsp
5:  movups 16 - 16(%rbp, %rax, 8), %xmm8
    movaps %xmm8, -16(%rsp, %rax, 8)
    subq $2, %rax
    jnz 5b
    jmp 2b
    .cfi_endproc
    .size enter, . - enter

// frame->real points here if a handler has answered the call. The stub calls it above, and it finds
// the frame through rbp.
    .p2align 4
    .globl hook_give_answer
    .hidden hook_give_answer
    .type hook_give_answer, @function
hook_give_answer:
    .cfi_startproc
    endbr64
    movq FRAME_ANSWER - FRAME_SIZE(%rbp), %rax
    ret
    .cfi_endproc
    .size hook_give_answer, . - hook_give_answer

// Does the work of hook_enter and hook_leave (calls.c) for a SLOT_LEAN: it writes a row with the
// start, and after the call the result and the duration. If there's more to do (a thread's first
// call, a full batch), it calls them. Such a function has no argument in rax or on the stack, and
// its result is in rax.
    .p2align 5
    .type lean, @function
lean:
    .cfi_startproc
    movq hook_thread@gottpoff(%rip), %rax
    movq %fs:(%rax), %r10
    testq %r10, %r10
    jz full
    movq hook_live(%rip), %rax
    movl LIVE_PID(%rax), %eax
    cmpl THREAD_PID(%r10), %eax
    jne full
    cmpl SLOT_ANNOUNCED(%r11), %eax
    jne full
    movl $ROW_SIZE, %eax            // as hook_take
    xaddq %rax, THREAD_NEXT(%r10)
    cmpq THREAD_END(%r10), %rax
    jae full
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    pushq %rbx
    .cfi_offset %rbx, -24
    pushq %r12
    .cfi_offset %r12, -32
    movq %rax, %rbx                 // the row
    movl SLOT_ID(%r11), %eax
    movl %eax, ROW_API(%rbx)
    movq %rdx, %r10
    rdtsc
    shlq $32, %rdx
    leaq (%rax, %rdx), %r12
    movq %r12, ROW_START(%rbx)
    movq %r10, %rdx
    call *SLOT_REAL(%r11)
    movq %rax, %r8
    rdtsc
    shlq $32, %rdx
    addq %rdx, %rax
    movq hook_thread@gottpoff(%rip), %rdx
    movq %fs:(%rdx), %r10
    testq %r10, %r10
    jz 3f
    movq %rbx, %rcx // check that the row is mapped and still belongs to this call
    subq THREAD_CHUNK(%r10), %rcx
    cmpq THREAD_CHUNK + 8(%r10), %rcx
    jae 2f
1:  cmpq %r12, ROW_START(%rbx)
    jne 3f
    movl %r8d, ROW_RESULT(%rbx)
    subq %r12, %rax
    cmpq $1, %rax
    adcq $0, %rax                   // at least 1
    movq %rax, ROW_DURATION(%rbx)
3:  movq %r8, %rax
    popq %r12
    popq %rbx
    popq %rbp
    .cfi_remember_state
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_restore_state
2:  .irp i, 0, 1, 2, 3              // EARLIER
    movq %rbx, %rcx
    subq THREAD_EARLIER + 16 * \i(%r10), %rcx
    cmpq THREAD_EARLIER + 16 * \i + 8(%r10), %rcx
    jb 1b
    .endr
    jmp 3b
    .cfi_endproc
    .size lean, . - lean

// The slot of a directly linked function points here before its first call. Finds the real function
// and jumps to it, or to the stub if recording wasn't set up before this call. r11 is the slot.
    .p2align 4
    .globl hook_resolve
    .hidden hook_resolve
    .type hook_resolve, @function
hook_resolve:
    .cfi_startproc
    endbr64
    open_frame
    keep_vectors
    movq %r11, %rdi
    call hook_resolve_slot
    movl %eax, %r10d
    load_vectors %rsp
    load_arguments %rsp
    leave
    .cfi_def_cfa %rsp, 8
    testl %r10d, %r10d
    jnz look
    jmp *SLOT_REAL(%r11)
    .cfi_endproc
    .size hook_resolve, . - hook_resolve

// Calls a function without arguments before jumping on with the original call's arguments.
    .macro call_between function
    pushq %rdi
    .cfi_def_cfa_offset 16
    pushq %rsi
    .cfi_def_cfa_offset 24
    subq $8, %rsp
    .cfi_def_cfa_offset 32
    call \function
    addq $8, %rsp
    .cfi_def_cfa_offset 24
    popq %rsi
    .cfi_def_cfa_offset 16
    popq %rdi
    .cfi_def_cfa_offset 8
    .endm

// dlsym depends on its caller's address (RTLD_NEXT, RTLD_DEFAULT), so unless we answer ourselves,
// we jump to it. hook_dlsym returns two values: the answer, and whether there is one.
    .p2align 4
    .globl hook_dlsym_here
    .hidden hook_dlsym_here
    .type hook_dlsym_here, @function
hook_dlsym_here:
    .cfi_startproc
    endbr64
    cmpb $0, hook_deep(%rip)
    jne 4f
0:  testq %rsi, %rsi
    jz 1f
    cmpb $'c', (%rsi)
    jne 1f
    cmpb $'u', 1(%rsi)
    je 2f
1:  movq hook_real_dlsym(%rip), %rax
    testq %rax, %rax
    jz 3f
    jmp *%rax

2:  movq (%rsp), %rdx               // the caller
    pushq %rdi
    .cfi_def_cfa_offset 16
    pushq %rsi
    .cfi_def_cfa_offset 24
    subq $8, %rsp
    .cfi_def_cfa_offset 32
    call hook_dlsym
    addq $8, %rsp
    .cfi_def_cfa_offset 24
    popq %rsi
    .cfi_def_cfa_offset 16
    popq %rdi
    .cfi_def_cfa_offset 8
    testq %rdx, %rdx
    jz 1b
    ret

3:  call_between hook_find_real
    jmp *hook_real_dlsym(%rip)
4:  call_between hook_see_deep
    jmp 0b
    .cfi_endproc
    .size hook_dlsym_here, . - hook_dlsym_here

// dlopen depends on its caller's address too (RUNPATH), so we only note that a library is about to
// be bound, and jump to it.
    .p2align 4
    .type hook_dlopen_here, @function
hook_dlopen_here:
    .cfi_startproc
    endbr64
    testl $8, %esi                  // RTLD_DEEPBIND
    jz 1f
    movb $1, hook_deep(%rip)
1:  movq hook_real_dlopen(%rip), %rax
    testq %rax, %rax
    jz 3f
    jmp *%rax
3:  call_between hook_find_real
    jmp *hook_real_dlopen(%rip)
    .cfi_endproc
    .size hook_dlopen_here, . - hook_dlopen_here

// Export the symbols under glibc's versions, since a library that looks for the next dlsym names a
// version (dlvsym).
    .macro versions name
    .globl \name\()_first, \name\()_now
    .type \name\()_first, @function
    .type \name\()_now, @function
    .set \name\()_first, hook_\name\()_here
    .set \name\()_now, hook_\name\()_here
    .symver \name\()_first, \name\()@GLIBC_2.2.5, remove
    .symver \name\()_now, \name\()@@GLIBC_2.34, remove
    .endm
    versions dlsym
    versions dlopen

// A vfork child runs in its parent's memory while the parent's thread waits. It must not write the
// parent's trace, so this thread is marked until the parent goes on. The return address is kept in
// a register, because the child returns first and may overwrite the stack.
    .p2align 4
    .globl vfork
    .type vfork, @function
vfork:
    .cfi_startproc
    endbr64
    movq hook_in_vfork@gottpoff(%rip), %rsi
    movzbl %fs:(%rsi), %r8d         // a vfork child may call vfork itself
    movb $1, %fs:(%rsi)
    movq hook_thread@gottpoff(%rip), %rdi
    movq %fs:(%rdi), %r9
    movq $0, %fs:(%rdi)
    movl $58, %eax                  // SYS_vfork
    popq %rdx
    .cfi_adjust_cfa_offset -8
    .cfi_register %rip, %rdx
    syscall
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rip, 0
    testl %eax, %eax
    jz 1f                           // the child
    movb %r8b, %fs:(%rsi)
    movq %r9, %fs:(%rdi)
    js 2f
1:  ret
2:  negl %eax
    pushq %rax
    .cfi_adjust_cfa_offset 8
    call __errno_location@PLT
    popq %rdx
    .cfi_adjust_cfa_offset -8
    movl %edx, (%rax)
    movl $-1, %eax
    ret
    .cfi_endproc
    .size vfork, . - vfork

    .section .note.GNU-stack, "", @progbits
