// --ioctl: the driver's requests to the kernel, as `ioctl` records. The driver calls libc's ioctl, which this
// library replaces. A call counts if the path of its descriptor starts with /dev/nvidia. That also works in
// containers, and with major numbers assigned dynamically.
//
// The numbers are from NVIDIA's open kernel modules: nv_escape.h, nv-ioctl-numbers.h, nv-ioctl-numa.h,
// uvm_ioctl.h, uvm_linux_ioctl.h.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "hook/write/write.h"
#include "watch.h"

#define DEVICES "/dev/nvidia"

struct number {
    uint32_t number;
    const char *name;
};

static const struct number escapes[] = {
    {0x27, "NV_ESC_RM_ALLOC_MEMORY"},
    {0x28, "NV_ESC_RM_ALLOC_OBJECT"},
    {0x29, "NV_ESC_RM_FREE"},
    {0x2a, "NV_ESC_RM_CONTROL"},
    {0x2b, "NV_ESC_RM_ALLOC"},
    {0x32, "NV_ESC_RM_CONFIG_GET"},
    {0x33, "NV_ESC_RM_CONFIG_SET"},
    {0x34, "NV_ESC_RM_DUP_OBJECT"},
    {0x35, "NV_ESC_RM_SHARE"},
    {0x37, "NV_ESC_RM_CONFIG_GET_EX"},
    {0x38, "NV_ESC_RM_CONFIG_SET_EX"},
    {0x39, "NV_ESC_RM_I2C_ACCESS"},
    {0x41, "NV_ESC_RM_IDLE_CHANNELS"},
    {0x4a, "NV_ESC_RM_VID_HEAP_CONTROL"},
    {0x4d, "NV_ESC_RM_ACCESS_REGISTRY"},
    {0x4e, "NV_ESC_RM_MAP_MEMORY"},
    {0x4f, "NV_ESC_RM_UNMAP_MEMORY"},
    {0x52, "NV_ESC_RM_GET_EVENT_DATA"},
    {0x54, "NV_ESC_RM_ALLOC_CONTEXT_DMA2"},
    {0x56, "NV_ESC_RM_ADD_VBLANK_CALLBACK"},
    {0x57, "NV_ESC_RM_MAP_MEMORY_DMA"},
    {0x58, "NV_ESC_RM_UNMAP_MEMORY_DMA"},
    {0x59, "NV_ESC_RM_BIND_CONTEXT_DMA"},
    {0x5c, "NV_ESC_RM_EXPORT_OBJECT_TO_FD"},
    {0x5d, "NV_ESC_RM_IMPORT_OBJECT_FROM_FD"},
    {0x5e, "NV_ESC_RM_UPDATE_DEVICE_MAPPING_INFO"},
    {200, "NV_ESC_CARD_INFO"},
    {201, "NV_ESC_REGISTER_FD"},
    {206, "NV_ESC_ALLOC_OS_EVENT"},
    {207, "NV_ESC_FREE_OS_EVENT"},
    {209, "NV_ESC_STATUS_CODE"},
    {210, "NV_ESC_CHECK_VERSION_STR"},
    {211, "NV_ESC_IOCTL_XFER_CMD"},
    {212, "NV_ESC_ATTACH_GPUS_TO_FD"},
    {213, "NV_ESC_QUERY_DEVICE_INTR"},
    {214, "NV_ESC_SYS_PARAMS"},
    {215, "NV_ESC_NUMA_INFO"},
    {216, "NV_ESC_SET_NUMA_STATUS"},
    {217, "NV_ESC_EXPORT_TO_DMABUF_FD"},
    {218, "NV_ESC_WAIT_OPEN_COMPLETE"},
    {0, NULL},
};

static const struct number uvm[] = {
    {0x30000001, "UVM_INITIALIZE"},
    {0x30000002, "UVM_DEINITIALIZE"},
    {1, "UVM_RESERVE_VA"},
    {2, "UVM_RELEASE_VA"},
    {3, "UVM_REGION_COMMIT"},
    {4, "UVM_REGION_DECOMMIT"},
    {5, "UVM_REGION_SET_STREAM"},
    {6, "UVM_SET_STREAM_RUNNING"},
    {7, "UVM_SET_STREAM_STOPPED"},
    {9, "UVM_RUN_TEST"},
    {10, "UVM_ADD_SESSION"},
    {11, "UVM_REMOVE_SESSION"},
    {12, "UVM_ENABLE_COUNTERS"},
    {13, "UVM_MAP_COUNTER"},
    {14, "UVM_CREATE_EVENT_QUEUE"},
    {15, "UVM_REMOVE_EVENT_QUEUE"},
    {16, "UVM_MAP_EVENT_QUEUE"},
    {17, "UVM_EVENT_CTRL"},
    {18, "UVM_REGISTER_MPS_SERVER"},
    {19, "UVM_REGISTER_MPS_CLIENT"},
    {20, "UVM_GET_GPU_UUID_TABLE"},
    {23, "UVM_CREATE_RANGE_GROUP"},
    {24, "UVM_DESTROY_RANGE_GROUP"},
    {25, "UVM_REGISTER_GPU_VASPACE"},
    {26, "UVM_UNREGISTER_GPU_VASPACE"},
    {27, "UVM_REGISTER_CHANNEL"},
    {28, "UVM_UNREGISTER_CHANNEL"},
    {29, "UVM_ENABLE_PEER_ACCESS"},
    {30, "UVM_DISABLE_PEER_ACCESS"},
    {31, "UVM_SET_RANGE_GROUP"},
    {33, "UVM_MAP_EXTERNAL_ALLOCATION"},
    {34, "UVM_FREE"},
    {35, "UVM_MEM_MAP"},
    {36, "UVM_DEBUG_ACCESS_MEMORY"},
    {37, "UVM_REGISTER_GPU"},
    {38, "UVM_UNREGISTER_GPU"},
    {39, "UVM_PAGEABLE_MEM_ACCESS"},
    {40, "UVM_PREVENT_MIGRATION_RANGE_GROUPS"},
    {41, "UVM_ALLOW_MIGRATION_RANGE_GROUPS"},
    {42, "UVM_SET_PREFERRED_LOCATION"},
    {43, "UVM_UNSET_PREFERRED_LOCATION"},
    {44, "UVM_ENABLE_READ_DUPLICATION"},
    {45, "UVM_DISABLE_READ_DUPLICATION"},
    {46, "UVM_SET_ACCESSED_BY"},
    {47, "UVM_UNSET_ACCESSED_BY"},
    {51, "UVM_MIGRATE"},
    {53, "UVM_MIGRATE_RANGE_GROUP"},
    {54, "UVM_ENABLE_SYSTEM_WIDE_ATOMICS"},
    {55, "UVM_DISABLE_SYSTEM_WIDE_ATOMICS"},
    {56, "UVM_TOOLS_INIT_EVENT_TRACKER"},
    {57, "UVM_TOOLS_SET_NOTIFICATION_THRESHOLD"},
    {58, "UVM_TOOLS_EVENT_QUEUE_ENABLE_EVENTS"},
    {59, "UVM_TOOLS_EVENT_QUEUE_DISABLE_EVENTS"},
    {60, "UVM_TOOLS_ENABLE_COUNTERS"},
    {61, "UVM_TOOLS_DISABLE_COUNTERS"},
    {62, "UVM_TOOLS_READ_PROCESS_MEMORY"},
    {63, "UVM_TOOLS_WRITE_PROCESS_MEMORY"},
    {64, "UVM_TOOLS_GET_PROCESSOR_UUID_TABLE"},
    {65, "UVM_MAP_DYNAMIC_PARALLELISM_REGION"},
    {66, "UVM_UNMAP_EXTERNAL"},
    {67, "UVM_TOOLS_FLUSH_EVENTS"},
    {68, "UVM_ALLOC_SEMAPHORE_POOL"},
    {69, "UVM_CLEAN_UP_ZOMBIE_RESOURCES"},
    {70, "UVM_PAGEABLE_MEM_ACCESS_ON_GPU"},
    {71, "UVM_POPULATE_PAGEABLE"},
    {72, "UVM_VALIDATE_VA_RANGE"},
    {73, "UVM_CREATE_EXTERNAL_RANGE"},
    {74, "UVM_MAP_EXTERNAL_SPARSE"},
    {75, "UVM_MM_INITIALIZE"},
    {0, NULL},
};

bool hook_ioctl_wanted;

void hook_ioctl_setup(void) { hook_ioctl_wanted = getenv("GPT_HOOK_IOCTL") != NULL; }

static const char *find_name(const struct number *table, uint64_t number, char room[32]) {
    for (; table && table->name; table++)
        if (table->number == number)
            return table->name;
    snprintf(room, 32, "%#lx", (unsigned long)number);
    return room;
}

// Return what an ioctl asks for in more detail, if it has that in its arguments: the command of
// NV_ESC_RM_CONTROL, the class of NV_ESC_RM_ALLOC, or the escape that NV_ESC_IOCTL_XFER_CMD stands for.
static struct gpt_u64 read_command(unsigned long request, const uint32_t *args) {
    static const struct {
        uint8_t escape, word;
    } words[] = {{0x2a, 2}, {0x2b, 3}, {211, 0}};
    for (size_t i = 0; args && i < sizeof(words) / sizeof(*words); i++)
        if (words[i].escape == _IOC_NR(request) && _IOC_SIZE(request) >= 4u * (words[i].word + 1u))
            return GPT_U64(args[words[i].word]);
    return (struct gpt_u64){false, 0};
}

// Find the device of a descriptor. Returns false if it isn't one of NVIDIA's.
static bool find_device(int file, char path[64]) {
    char link[40];
    snprintf(link, sizeof(link), "/proc/thread-self/fd/%d", file);
    ssize_t size = readlink(link, path, 63);
    path[size > 0 ? size : 0] = '\0';
    return !strncmp(path, DEVICES, strlen(DEVICES));
}

int hook_record_ioctl(int (*real)(int, unsigned long, ...), int file, unsigned long request, void *argument) {
    int before = errno;
    char path[64], room[32];
    bool wanted = atomic_load_explicit(&hook_recording, memory_order_relaxed) && find_device(file, path);
    struct thread *thread = wanted ? hook_this_thread() : NULL;
    const struct row *call = thread ? hook_call_in_flight(thread) : NULL;
    uint64_t parent = call ? call->start : 0, start = hook_now();
    errno = before;
    int result = real(file, request, argument);
    int error = errno;
    uint64_t duration = hook_now() - start;
    if (thread && (thread = hook_this_thread())) {
        bool managed = !strncmp(path, DEVICES "-uvm", strlen(DEVICES "-uvm"));
        bool escape = !managed && _IOC_TYPE(request) == 'F';
        const char *name = find_name(managed  ? uvm
                                     : escape ? escapes
                                              : NULL,
                                     escape ? _IOC_NR(request) : request, room);
        HOOK_WRITE(ioctl, .thread = thread->tid, .parent = {parent != 0, parent}, .device = hook_str(path),
                   .request = request, .name = hook_str(name),
                   .command =
                       escape && result >= 0 ? read_command(request, argument) : (struct gpt_u64){false, 0},
                   .start = start, .duration = duration, .error = {result < 0, (uint64_t)error});
    }
    errno = error;
    return result;
}
