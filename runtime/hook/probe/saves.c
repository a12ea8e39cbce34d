// The save of a launch: the program's parameters, the sizes of the buffers, and their addresses among the
// arguments of the kernel with probes. It exists until the buffers have been written. Each node of a graph
// has one.

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "abi/cuda.h"
#include "graphs.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"

// Copy the program's parameters to one block. Returns false if they're passed in an unknown form, or if some
// are missing, in which case the driver will reject the launch.
static bool copy_params(const struct launch *launch, const struct woven *woven, char *block) {
    if (launch->params && launch->extra)
        return false;
    if (launch->params) {
        bool good = true;
        const void *param;
        uintptr_t pointers = 0, values = 0;
        for (size_t i = 0; i < woven->param_count && good; i++)
            good = hook_read_near(&launch->params[i], &param, sizeof(param), &pointers) &&
                   hook_read_near(param, block + woven->params[i].offset, woven->params[i].size, &values);
        return good;
    }
    const void *packed = NULL;
    size_t size = 0;
    for (void **at = launch->extra; at; at += 2) {
        void *pair[2];
        if (!hook_read(at, pair, sizeof(pair[0])))
            return false;
        if (!pair[0])
            break;
        if (!hook_read(at, pair, sizeof(pair)))
            return false;
        if ((uintptr_t)pair[0] == CU_LAUNCH_PARAM_BUFFER_POINTER_HANDLE)
            packed = pair[1];
        else if ((uintptr_t)pair[0] != CU_LAUNCH_PARAM_BUFFER_SIZE_HANDLE ||
                 !hook_read(pair[1], &size, sizeof(size)))
            return false;
    }
    if (!packed)
        return !woven->param_count;
    return size >= woven->param_bytes && hook_read(packed, block, woven->param_bytes);
}

// Memory for saves. While a launch is taking a save, a signal handler of the program may run; it may launch
// something itself, and may leave with siglongjmp, which malloc doesn't survive. So a thread takes a save
// from its own list, or if that's empty, takes all that the writer has given back, or else allocates several
// at once, which are kept for later launches. Lists are emptied by a single exchange, so a handler that runs
// after it finds an empty list.

enum { SMALLEST = 512, AT_ONCE = 16 };

static struct save *_Atomic given_back[SAVE_SIZES];

static void give_back(struct save *save) {
    if (!save->size) {
        HOOK_HOLD_SIGNALS;
        free(save);
        return;
    }
    struct save *_Atomic *to = &given_back[save->size - 1];
    save->next = atomic_load(to);
    while (!atomic_compare_exchange_weak(to, &save->next, save))
        continue;
}

static struct save *make_saves(size_t bytes, unsigned count) {
    HOOK_HOLD_SIGNALS;
    char *made = malloc(bytes * count);
    for (unsigned i = 0; made && i < count; i++)
        ((struct save *)(made + i * bytes))->next = i + 1 < count ? (void *)(made + (i + 1) * bytes) : NULL;
    return (struct save *)made;
}

static struct save *take_save(size_t bytes) {
    struct thread *thread = hook_thread;
    unsigned size = 0;
    while (size < SAVE_SIZES && bytes > (size_t)SMALLEST << size)
        size++;
    bool listed = size < SAVE_SIZES && thread;
    struct save *taken = listed ? atomic_exchange(&thread->saves[size], NULL) : NULL;
    if (listed && !taken)
        taken = atomic_exchange(&given_back[size], NULL);
    if (!taken && !(taken = listed ? make_saves((size_t)SMALLEST << size, AT_ONCE) : make_saves(bytes, 1)))
        return NULL;
    struct save *left = listed ? atomic_exchange(&thread->saves[size], taken->next) : NULL;
    memset(taken, 0, bytes); // parameters, too: the trace gets what's between them
    taken->size = (uint8_t)(listed ? size + 1 : 0);
    for (struct save *next; left; left = next) { // a signal handler that launched in the meantime left these
        next = left->next;
        left->size = taken->size;
        give_back(left);
    }
    return taken;
}

struct save *hook_new_save(struct probed *probed, const struct launch *launch) {
    const struct woven *woven = probed->woven;
    size_t count = woven->param_count + woven->added_count,
           sizes = sizeof(struct save) + count * sizeof(void *),
           numbers = sizes + woven->map_count * sizeof(uint64_t),
           at = (numbers + woven->map_count + 15) / 16 * 16;
    struct save *save = take_save(at + woven->param_bytes + 16 + woven->added_count * sizeof(uint64_t));
    char *block = save ? (char *)save + at : NULL;
    if (save && !copy_params(launch, woven, block)) {
        give_back(save);
        save = NULL;
    }
    if (!save)
        return NULL;
    hook_hold_again(save->probed = probed);
    save->block = block;
    save->sizes = (uint64_t *)((char *)save + sizes);
    save->numbers = (uint8_t *)save + numbers;
    for (size_t i = 0; i < woven->param_count; i++)
        save->arguments[i] = block + woven->params[i].offset;
    return save;
}

void hook_free_save(struct save *save) {
    if (!save || atomic_fetch_sub(&save->others, 1))
        return;
    if (save->probed)
        hook_let_probed_go(save->probed);
    give_back(save);
}

// A grid may be in units of clusters. Returns false if there are too many blocks.
static bool find_blocks(const struct woven *woven, const uint32_t grid[3], uint32_t blocks[3]) {
    bool good = true;
    for (int i = 0; i < 3; i++)
        good &= !__builtin_mul_overflow(grid[i], woven->cluster[i], &blocks[i]);
    return good;
}

enum { SHARE = 8, MOST_DOUBLINGS = 31 }; // blocks per arena, at least; of a log's size

static unsigned arena_bits(const uint32_t grid[3]) {
    unsigned __int128 blocks = (unsigned __int128)grid[0] * grid[1] * grid[2];
    unsigned bits = 0;
    while (2u << bits <= ROOM_ARENAS && (unsigned)SHARE << (bits + 1) <= blocks)
        bits++;
    return bits;
}

// Return the number in the lowest bits of a log's address.
static uint8_t number_of_rooms(const uint32_t grid[3], unsigned doublings) {
    return (uint8_t)(arena_bits(grid) << 5 | (doublings < MOST_DOUBLINGS ? doublings : MOST_DOUBLINGS));
}

bool hook_size_buffers(struct save *save, const struct launch *launch) {
    const struct woven *woven = save->probed->woven;
    if (!find_blocks(woven, launch->grid, save->grid))
        return false;
    save->bytes = 0;
    for (size_t i = 0; i < woven->map_count; i++) {
        if (!hook_map_bytes(&woven->maps[i], save->grid, launch->block, &save->sizes[i]))
            return false;
        if (woven->maps[i].log)
            save->numbers[i] = number_of_rooms(save->grid, 0);
        save->bytes += hook_rounded(save->sizes[i]);
        if (save->bytes >> 62)
            return false;
    }
    return !hook_settings.memusage || hook_needed_bytes(woven, save->grid, launch->block, &save->needed);
}

void hook_point_at_buffers(struct save *save, uint64_t address) {
    const struct woven *woven = save->probed->woven;
    uint64_t *values = (uint64_t *)(save->block + (woven->param_bytes + 7) / 8 * 8);
    for (size_t i = 0; i < woven->added_count; i++) {
        uint64_t at = address;
        for (uint32_t k = 0; k < woven->added[i].map; k++)
            at += hook_rounded(save->sizes[k]);
        const struct woven_map *map = &woven->maps[woven->added[i].map];
        values[i] = at | (save->repeats && map->knows_repeats) | (save->shared && map->has_room) |
                    save->numbers[woven->added[i].map];
        save->arguments[woven->param_count + i] = &values[i];
    }
}

// -- Nodes of graphs -------------------------------------------------------

void hook_drop_members(struct members *members) {
    if (atomic_fetch_sub(&members->users, 1) > 1)
        return;
    for (size_t i = 0; i < members->count; i++)
        hook_free_save(members->all[i].save);
    free(members->all);
    free(members->written);
    free(members->tallies);
    free(members);
}

static bool write_launch(struct save *save, CUdevice device, const struct replay *replay,
                         const struct member *member) {
    const struct woven *woven = save->probed->woven;
    uint64_t grid[3], block[3];
    for (int i = 0; i < 3; i++)
        grid[i] = save->grid[i], block[i] = save->block_size[i];
    save->id = save->thread ? hook_new_id(&hook_watched->probed) : 0;
    if (save->id &&
        HOOK_WRITE(probed, .id = save->id, .kernel = woven->number,
                   .function = member ? member->function : save->probed->function, .thread = save->thread,
                   .start = save->start, .device = (uint64_t)device, .stream = save->stream,
                   .grid = {grid, 3}, .block = {block, 3}, .shared = save->program_shared,
                   .room = {save->shared, save->shared - save->program_shared},
                   .params = {save->block, woven->param_bytes}, .exec = {replay, replay ? replay->exec : 0},
                   .node = {member, member ? member->node : 0},
                   .repeats = {member && !member->unconditional, 1})) {
        hook_watched->probed_nodes += replay != NULL;
        return true;
    }
    save->id = 0;
    return false;
}

bool hook_write_launch(struct save *save) {
    return save->id || (!hook_settings.memusage && write_launch(save, save->slab->pool->device, NULL, NULL));
}

bool hook_next_replayed(const struct save *of, size_t *at, struct save *node) {
    const struct replay *replay = of->replay;
    while (*at < replay->members->count) {
        const struct member *member = &replay->members->all[(*at)++];
        if (!member->save || member->disabled)
            continue;
        const struct reason *reason = hook_left_out(member->choice.first);
        if (reason) {
            hook_count_unprobed(member->function, reason);
            continue;
        }
        *node = *member->save;
        node->offset = replay->starts[member->set] + member->save->offset;
        node->thread = replay->thread, node->start = replay->start, node->stream = replay->stream;
        node->program_shared = member->shared;
        memcpy(node->block_size, member->block, sizeof(node->block_size));
        if (hook_settings.memusage || write_launch(node, replay->device, replay, member))
            return true;
    }
    return false;
}

void hook_end_replay(struct replay *replay) {
    hook_drop_members(replay->members);
    free(replay);
}

// -- Sizes of logs ---------------------------------------------------------
//
// Remembers how large the logs of launches had to be, in sectors, so that the next launch of the same kernel
// gets logs that are large enough. The first launch with another grid or block gets as much for each thread
// as the most that any launch of the kernel needed; with --rerun, it gets as much as the kernel's largest
// launch needed in an earlier run. A ring gets a room for each unit.
//
// The list has its own lock, under which nothing is called. A launch looks up its demand; the thread that
// writes adds to it with atomics.

enum { BUCKETS = 1 << 10 };

struct key {
    uint32_t kernel, maps, grid[3], block[3]; // kernel: its number in the trace
};

struct demand {
    struct demand *next;
    struct key key;
    struct demand *all; // the demand for any grid and block, which are 0 in its key; there it's NULL
    _Atomic bool counted;
    _Atomic uint64_t sectors[]; // the most that a launch needed, by map; in `all`, that RATED threads needed
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct demand *buckets[BUCKETS];
static const unsigned __int128 RATED = 1 << 20;
static const uint64_t RERUN = 1ull << 63; // this bit of a number of sectors: no launch has counted them yet
static const uint64_t FORESEEN =
    (64 << 20) / ROOM_SECTOR; // most sectors that a ring gets before any are counted

static struct demand **bucket_of(const struct key *key) {
    const uint32_t *words = (const uint32_t *)key;
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof(*key) / sizeof(*words); i++)
        hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15u;
    return &buckets[(hash >> 32) % BUCKETS];
}

// Find a demand, or add it. Must be called with the lock held. `known` is set to whether it already existed.
static struct demand *find(const struct key *key, bool *known) {
    struct demand **bucket = bucket_of(key), *found = *bucket;
    while (found && memcmp(&found->key, key, sizeof(*key)))
        found = found->next;
    *known = found != NULL;
    if (!found && (found = calloc(1, sizeof(*found) + key->maps * sizeof(*found->sectors)))) {
        found->key = *key;
        found->next = *bucket;
        *bucket = found;
    }
    return found;
}

// It isn't known which of several logs needed the memory, so each gets as much.
static bool repeat(struct demand *demand, const struct woven *woven) {
    for (size_t i = 0; i < woven->map_count; i++)
        if (woven->maps[i].grows)
            atomic_store(&demand->sectors[i], RERUN | woven->needed / ROOM_SECTOR);
    atomic_store(&demand->counted, true);
    return true;
}

static unsigned __int128 threads_of(const struct key *key) {
    unsigned __int128 threads = 1;
    for (int i = 0; i < 3; i++)
        threads *= (uint64_t)key->grid[i] * key->block[i];
    return threads ? threads : 1;
}

// Return how many sectors a launch would claim if each thread needed as much as in other launches.
static unsigned __int128 rated(const struct demand *demand, size_t map) {
    uint64_t rate = atomic_load(&demand->all->sectors[map]);
    unsigned __int128 threads = threads_of(&demand->key);
    return rate && threads > ((unsigned __int128)1 << 100) / rate ? UINT64_MAX : rate * threads / RATED;
}

// Return how many sectors the units of a ring claim: each claims one room, or more if its lanes come apart.
static unsigned __int128 rooms_of(const struct woven_map *map, const struct key *key) {
    unsigned __int128 sectors = map->ring / ROOM_SECTOR * hook_units(map, key->block);
    for (int i = 0; i < 3 && sectors < FORESEEN; i++)
        sectors *= key->grid[i];
    return sectors < FORESEEN ? sectors : FORESEEN;
}

// Returns false if there's no ring, so that nothing is known before a launch has been counted.
static bool foresee(struct demand *demand, const struct woven *woven) {
    bool any = false;
    for (size_t i = 0; i < woven->map_count; i++)
        any |= woven->maps[i].grows && woven->maps[i].ring;
    for (size_t i = 0; any && i < woven->map_count; i++) {
        const struct woven_map *map = &woven->maps[i];
        unsigned __int128 sectors = map->ring ? rooms_of(map, &demand->key) : rated(demand, i);
        if (map->grows)
            atomic_store(&demand->sectors[i], RERUN | (sectors < RERUN ? (uint64_t)sectors : RERUN - 1));
    }
    if (any)
        atomic_store(&demand->counted, true);
    return any;
}

struct demand *hook_find_demand(const struct save *save, const uint32_t block[3],
                                const struct demand **earlier) {
    const struct woven *woven = save->probed->woven;
    struct key key = {.kernel = woven->number, .maps = (uint32_t)woven->map_count};
    bool known, any;
    *earlier = NULL;
    if (!hook_has_growing_log(woven))
        return NULL;
    pthread_mutex_lock(&lock);
    struct demand *all = find(&key, &any);
    memcpy(key.grid, save->grid, sizeof(key.grid));
    memcpy(key.block, block, sizeof(key.block));
    struct demand *found = all ? find(&key, &known) : NULL;
    if (found) {
        found->all = all;
        if (!known)
            known = woven->needed ? repeat(found, woven) : foresee(found, woven);
        *earlier = known ? found : any ? all : NULL;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

bool hook_is_counted(const struct demand *demand) { return atomic_load(&demand->counted); }

// Only the writer thread does this.
static bool add_sectors(struct demand *demand, uint32_t map, unsigned __int128 sectors) {
    uint64_t known = atomic_load(&demand->sectors[map]);
    if (sectors > known || known & RERUN)
        atomic_store(&demand->sectors[map], sectors < RERUN ? (uint64_t)sectors : RERUN - 1);
    return !atomic_exchange(&demand->counted, true);
}

void hook_count_sectors(struct demand *demand, uint32_t map, uint64_t sectors) {
    if (!demand)
        return;
    unsigned __int128 threads = threads_of(&demand->key);
    bool first = add_sectors(demand->all, map, (sectors * RATED + threads - 1) / threads);
    if (add_sectors(demand, map, sectors) || first)
        hook_wake_claims();
}

// Return how many sectors a launch is expected to claim. It may claim a little more than the earlier one.
static unsigned __int128 expected(const struct demand *demand, size_t map) {
    if (hook_is_counted(demand))
        return atomic_load(&demand->sectors[map]) & ~RERUN;
    return rated(demand, map);
}

// Return how many times the size of a log has to be doubled for a launch, which is 0 if it's large enough.
static unsigned doublings_for(const struct woven_map *map, unsigned __int128 claimed) {
    uint64_t capacity = map->capacity / ROOM_ARENAS * ROOM_ARENAS; // arenas have equal sizes
    unsigned doublings = 0;
    if (map->grows && claimed > capacity)
        while (doublings < MOST_DOUBLINGS && (capacity << doublings) / 9 * 8 < claimed)
            doublings++;
    return doublings;
}

static void size_log(struct save *save, size_t at, unsigned doublings, const uint32_t block[3]) {
    struct woven_map map = save->probed->woven->maps[at];
    map.capacity <<= doublings;
    if (!hook_map_bytes(&map, save->grid, block, &save->sizes[at]))
        save->sizes[at] = UINT64_MAX / MOST_MAPS / 2;
    save->numbers[at] = number_of_rooms(save->grid, doublings);
}

bool hook_size_logs(struct save *save, uint64_t most) {
    const struct woven *woven = save->probed->woven;
    uint64_t before = save->bytes;
    unsigned less = 0, largest = 0;
    do {
        save->bytes = largest = 0;
        for (size_t i = 0; i < woven->map_count; i++) {
            unsigned more = doublings_for(&woven->maps[i], expected(save->demand, i));
            largest = more > largest ? more : largest;
            if (woven->maps[i].grows)
                size_log(save, i, more > less ? more - less : 0, save->demand->key.block);
            save->bytes += hook_rounded(save->sizes[i]);
        }
    } while (save->bytes > most && less++ < largest);
    return save->bytes < before;
}
