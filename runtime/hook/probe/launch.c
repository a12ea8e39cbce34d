// Launches kernels with probes. Such a launch differs from the program's own in two ways: it runs another
// function, and the addresses of buffers follow the program's parameters. If that isn't possible, the
// program's own kernel runs, and is counted.

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

// What the program launches

static bool is_dependent(const struct frame *frame) {
    CUlaunchConfig config;
    CUlaunchAttribute attribute;
    if (frame->slot->special != SPECIAL_LAUNCH_EX ||
        !hook_read((const void *)frame_arg(frame, 0), &config, sizeof(config)))
        return false;
    for (uint32_t i = 0; config.attrs && i < config.numAttrs && i < 64 &&
                         hook_read(&config.attrs[i], &attribute, sizeof(attribute));
         i++)
        if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            return attribute.value.cooperative; // its value is an int at the same place
    return false;
}

static bool is_captured(uint64_t stream) {
    int capturing = 0;
    return hook_is_capturing() && hook_find_probe_calls() &&
           (hook_do.is_capturing(stream, &capturing) || capturing);
}

// Return whether a stream belongs to this context. Asking the driver takes longer than the rest of a launch.
// So for streams that do, a hash of stream and context is remembered, until any stream ends, because its
// handle may be reused.
static bool is_of_context(uint64_t stream, uint64_t context) {
    enum { STREAMS = 64 };
    static _Atomic uint64_t known[STREAMS];
    const uint64_t factor = 0x9e3779b97f4a7c15u;
    uint64_t ended = atomic_load(&hook_streams_ended), of = context;
    uint64_t hash = ((stream * factor ^ context) * factor ^ ended) * factor | 1;
    _Atomic uint64_t *at = &known[stream * factor / (UINT64_MAX / STREAMS + 1)];
    if (atomic_load_explicit(at, memory_order_relaxed) == hash)
        return true;
    CUresult status = hook_do.stream_context(stream, &of);
    if (!status && of == context)
        atomic_store_explicit(at, hash, memory_order_relaxed);
    return status || of == context;
}

// Return why this launch can't be probed, or NULL if it can. The reason is UNCOUNTED, for example, during a
// capture, when nothing runs until the graph is launched.
static const struct reason *find_reason(const struct frame *frame, const struct choice *choice,
                                        uint64_t context, uint64_t stream) {
    struct probed *first = choice->first;
    bool never = !first || first->refused;
    if (!hook_stream_is_known(stream))
        return never ? choice->reason : WHY(stream_unknown);
    if ((!never || choice->reason != UNCOUNTED) && is_captured(stream))
        return UNCOUNTED;
    const struct reason *reason = never ? choice->reason : hook_left_out(first);
    reason = reason ? reason : choice->reason;
    if (reason)
        return reason;
    if (choice->probed->is_library && stream > CU_STREAM_PER_THREAD_HANDLE && !is_of_context(stream, context))
        return WHY(stream_context);
    if (hook_settings.benchmark && is_dependent(frame))
        return WHY_DETAIL(benchmark, "it depends on its predecessor, so nothing may come between them");
    if (is_dependent(frame) && hook_must_copy(choice->bound))
        return WHY(dependent_constants);
    return NULL;
}

// Return whether the size of the buffers follows from the launch. The sizes of logs depend on what earlier
// launches saved.
static bool is_known_need(const struct save *save) {
    const struct woven *woven = save->probed->woven;
    bool known = true;
    for (size_t i = 0; i < woven->map_count; i++)
        known &= !woven->maps[i].log;
    return known;
}

// Add shared memory for the maps to the launch, if there's room.
static void add_room(struct frame *frame, const struct choice *choice, struct save *save) {
    unsigned place = hook_place_of_shared(frame);
    uint32_t shared = hook_find_room(choice, &frame->launch);
    if (!shared ||
        (!place && !hook_read((const void *)frame_arg(frame, 0), &save->config, sizeof(save->config))))
        return;
    save->shared = shared;
    save->config.sharedMemBytes = shared;
    save->given = frame_arg(frame, place);
    frame_set_arg(frame, place, place ? shared : (uint64_t)&save->config);
}

// Restore the program's arguments in place: some callers use them for several calls.
static void restore_arguments(struct frame *frame, const struct save *save) {
    hook_pass_arguments(frame, save->function, save->params, save->extra);
    if (save->shared)
        frame_set_arg(frame, hook_place_of_shared(frame), save->given);
}

// Store the reason in the frame. A launch without probes is counted only after it has been made.
static void keep_reason(struct frame *frame, const struct reason *reason) {
    frame_leave_note(frame, NOTE_REASON, reason != UNCOUNTED ? reason : NULL);
}

// A launch that the driver has rejected doesn't count for --launch-skip and --launch-count.
static void forget_launch(const struct frame *frame) {
    struct probed *first = hook_find_entry(frame->launch.function);
    if (first && frame->slot->special != SPECIAL_LAUNCH_OLD && atomic_load(&first->launches))
        atomic_fetch_sub(&first->launches, 1);
}

static void count_reason(const struct frame *frame, const struct reason *reason) {
    struct probed *probed = hook_find_probed(frame->launch.function);
    if ((CUresult)frame->result != CUDA_SUCCESS)
        forget_launch(frame);
    else
        hook_count_unprobed(probed ? probed->function : hook_ask_function(frame->launch.function), reason);
}

// Unpack the parameters of a launch that will have probes in a graph, because the driver doesn't return a
// node's packed parameters.
static void unpack(struct frame *frame, struct probed *probed) {
    const struct launch *launch = &frame->launch;
    struct save *save = launch->extra && !launch->params ? hook_new_save(probed, launch) : NULL;
    if (!save)
        return;
    save->unpacked = true;
    save->function = launch->function, save->params = launch->params, save->extra = launch->extra;
    hook_pass_arguments(frame, launch->function, save->arguments, NULL);
    frame_leave_note(frame, NOTE_SAVE, save);
}

// Claim buffers of the size that earlier launches of the same kernel needed, or smaller ones if none of that
// size are free.
static struct slab *claim_buffers(const struct frame *frame, struct save *save, struct claim claim,
                                  uint64_t *offset, const struct reason **reason) {
    const struct demand *earlier;
    save->demand = hook_find_demand(save, frame->launch.block, &earlier);
    if (earlier && !hook_settings.memusage && !hook_settings.benchmark)
        hook_size_logs(save, hook_wait_for_count(&claim, earlier));
    struct slab *slab;
    do {
        claim.bytes = save->bytes;
        slab = hook_claim(&claim, offset, reason);
    } while (!slab && save->demand && hook_size_logs(save, save->bytes / 2));
    return slab;
}

static void launch_with_probes(struct frame *frame, const struct choice *choice, uint64_t context,
                               uint64_t begun) {
    const struct launch *launch = &frame->launch;
    uint64_t stream = hook_stream_of(frame), offset;
    const struct reason *reason = find_reason(frame, choice, context, stream);
    struct save *save = reason ? NULL : hook_new_save(choice->probed, launch);
    if (!reason && !save)
        reason = WHY(parameters);
    if (save && !hook_size_buffers(save, launch))
        reason = WHY(buffers_too_large);
    if (!reason && hook_settings.memusage && is_known_need(save)) {
        frame_leave_note(frame, NOTE_SAVE,
                         save); // counted once it has been made, even without probes
        return;
    }
    struct slab *slab = NULL;
    if (!reason)
        slab = claim_buffers(frame, save,
                             (struct claim){.context = context,
                                            .stream = stream,
                                            .thread = frame->thread ? frame->thread->tid : 0,
                                            .dependent = is_dependent(frame)},
                             &offset, &reason);
    if (slab) // otherwise hook_claim has set the reason
        reason = !choice->bound->variable_count || hook_copy_variables(choice->bound, stream)
                     ? NULL
                     : WHY(constants);
    if (save)
        save->function = launch->function, save->params = launch->params, save->extra = launch->extra;
    if (slab && !reason && hook_settings.benchmark && (reason = hook_benchmark(frame, save, choice, stream)))
        restore_arguments(frame, save);
    if (!slab || reason) {
        if (slab)
            hook_issue(slab, NULL);
        keep_reason(frame, reason);
        hook_free_save(save);
        if (reason == UNCOUNTED && choice->probed)
            unpack(frame, choice->probed);
        return;
    }
    save->slab = slab;
    save->offset = offset;
    add_room(frame, choice, save);
    hook_point_at_buffers(save, hook_slab_address(slab) + offset);
    hook_pass_arguments(frame, choice->handle, save->arguments, NULL);
    frame_leave_note(frame, NOTE_SAVE, save);
    save->prologue = hook_now() - begun;
}

// Blocking signals takes two system calls, one before the launch and one after it, which are a third of what
// a launch would cost. Most launches don't need it: they take no lock, allocate nothing with malloc, and
// change what others see in a single step. Code that takes a lock blocks signals itself.
static bool is_plain(const struct choice *choice) {
    bool measures = hook_settings.benchmark || hook_settings.memusage;
    return !measures && (!choice->probed || !hook_has_growing_log(choice->probed->woven));
}

__attribute__((weak)) void hook_before_launch(struct frame *frame) {
    if (!hook_probing)
        return;
    uint64_t begun = hook_now(), context = hook_current_context();
    hook_end_burst();
    if (frame->slot->special == SPECIAL_LAUNCH_OLD) {
        const struct probed *first = hook_find_entry(frame->launch.function);
        keep_reason(frame, first && first->refused ? first->refused : WHY(old_launch));
        return;
    }
    struct choice choice = hook_choose(&frame->launch, context);
    if (is_plain(&choice))
        launch_with_probes(frame, &choice, context, begun);
    else {
        HOOK_HOLD_SIGNALS;
        launch_with_probes(frame, &choice, context, begun);
    }
    hook_let_choice_go(&choice);
}

// Record that a launch with probes is in its stream. The thread that writes its buffers also writes its
// record.
static void finish_launch(struct frame *frame, struct save *save) {
    const struct launch *launch = &frame->launch;
    restore_arguments(frame, save);
    frame->probed = true;
    if (hook_settings.benchmark)
        hook_benchmarked(save, hook_stream_of(frame));
    save->thread = frame->thread ? frame->thread->tid : 0;
    save->start = frame->start;
    save->stream = launch->stream;
    save->program_shared = launch->shared;
    memcpy(save->block_size, launch->block, sizeof(save->block_size));
    hook_issue(save->slab, save);
}

// If anything fails, launch the program's own kernel instead. If that fails, too, it fails as it would have
// without us.
static void launch_without_probes(struct frame *frame, struct save *save) {
    CUresult status = (CUresult)frame->result;
    restore_arguments(frame, save);
    hook_issue(save->slab, NULL);
    hook_forget_benchmark(save);
    frame->result = hook_call_again(frame);
    hook_call_without_buffers(frame);
    if ((CUresult)frame->result == CUDA_SUCCESS) {
        hook_count_unprobed(save->probed->function, WHY(launch_refused));
        hook_mark_unfit(save->probed, &frame->launch, status);
    } else
        forget_launch(frame);
    hook_free_save(save);
}

static void finish_other(struct frame *frame, struct save *save) {
    const struct reason *reason = frame_note(frame, NOTE_REASON);
    bool done = (CUresult)frame->result == CUDA_SUCCESS;
    if (reason)
        count_reason(frame, reason);
    if (!save)
        return;
    if (save->slab) {
        launch_without_probes(frame, save);
        return;
    }
    if (save->unpacked)
        restore_arguments(frame, save);
    else if (done)
        hook_count_need(save->probed->function, save->needed);
    else
        forget_launch(frame);
    hook_free_save(save);
}

__attribute__((weak)) void hook_after_launch(struct frame *frame) {
    struct save *save = frame_note(frame, NOTE_SAVE);
    bool probed = save && save->slab && (CUresult)frame->result == CUDA_SUCCESS;
    if (probed && !hook_settings.benchmark) {
        finish_launch(frame, save);
        return;
    }
    HOOK_HOLD_SIGNALS;
    if (probed)
        finish_launch(frame, save);
    else
        finish_other(frame, save);
}

// Other calls of the program

static _Atomic bool captures; // the process has begun a capture
_Atomic uint64_t hook_streams_ended;

void hook_after_wait(struct frame *frame) {
    if (!hook_probing)
        return;
    struct thread *thread = hook_this_thread();
    hook_finish_lookups();
    struct waited waited = {.since = frame->start, .thread = thread ? thread->tid : 0};
    bool done = (CUresult)frame->result == CUDA_SUCCESS;
    waited.all = done && !strncmp(frame->slot->symbol, "cuCtxSynchronize", strlen("cuCtxSynchronize"));
    bool of_stream = !strncmp(frame->slot->symbol, "cuStreamSynchronize", strlen("cuStreamSynchronize"));
    waited.stream = done && of_stream ? hook_stream_of(frame) : UINT64_MAX;
    hook_drain_waited(&waited);
}

void hook_before_stream_ends(struct frame *frame) {
    struct thread *thread = hook_this_thread();
    atomic_fetch_add(&hook_streams_ended, 1);
    if (hook_probing)
        hook_drain_stream(frame_arg(frame, 0), thread ? thread->tid : 0, true);
}

static void hold_drains(struct frame *frame) {
    frame->note.kind = NOTE_DRAINS_HELD;
    hook_hold_drains(frame_arg(frame, 0));
}

// cuStreamBeginCapture, cuStreamBeginCaptureToGraph
void hook_before_capture(struct frame *frame) {
    atomic_store_explicit(&captures, true, memory_order_relaxed);
    if (!hook_probing)
        return;
    const struct thread *thread = hook_this_thread();
    hook_drain_stream(frame_arg(frame, 0), thread ? thread->tid : 0,
                      false); // it can't be drained while captured
    hold_drains(frame);
}

// cuStreamWaitEvent: a stream that waits for an event of a captured stream becomes part of the capture.
void hook_before_join(struct frame *frame) {
    if (hook_probing && atomic_load_explicit(&captures, memory_order_relaxed))
        hold_drains(frame);
}

void hook_after_capture(struct frame *frame) {
    if (frame->note.kind == NOTE_DRAINS_HELD)
        hook_let_drain();
}

void hook_before_context_ends(struct frame *frame) {
    atomic_fetch_add(&hook_streams_ended, 1); // its streams end with it
    if (hook_probing)
        hook_drain_all(CONTEXT_ENDS, hook_context_that_ends(frame));
}

void hook_end_probing(void) {
    if (!hook_probing || !hook_is_this_process()) // but a child that shares our memory, as after vfork
        return;
    const struct thread *thread = hook_thread; // don't start a trace just for this
    // If it isn't, longjmp has left that call.
    bool calls = hook_calling > (const void *)__builtin_frame_address(0);
    bool within_driver = thread && thread->pid == (uint32_t)getpid() &&
                         (calls || hook_call_in_flight(thread)); // it may hold the driver's locks
    if (!within_driver)
        hook_drain_all(PROCESS_ENDS, 0);
    hook_probe_stop();
    hook_abandon_pending(within_driver);
}

// The first attempt only frees buffers that nobody is using.
void hook_call_without_buffers(struct frame *frame) {
    for (int i = 0; i < 2 && hook_probing && (CUresult)frame->result == CUDA_ERROR_OUT_OF_MEMORY; i++) {
        if (i)
            hook_drain_all(MEMORY_NEEDED, hook_current_context());
        if (hook_give_slabs_back())
            frame->result = hook_call_again(frame);
    }
}
