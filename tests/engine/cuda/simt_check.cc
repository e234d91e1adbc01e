#include "tests/engine/cuda/simt_check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/engine/cuda/simt.h"
#include "tests/engine/cuda/simt_banks.h"

/* Time and thread of an access: number of the interval between barriers (41 bits) | number of the
 * lane's sync_warp() calls (7) | atomic (1) | thread (11) | bytes of the cell (4). */
typedef uint64_t moment;

struct cell { /* the accesses to four bytes */
    moment write, read, other;
    uint32_t block; /* of shared memory: the block that wrote last */
    uint8_t written, pending;
    /* if a bulk copy wrote it: its barrier + 1, and the low bits of the phase */
    uint8_t bar, phase;
    bool product; /* the last read was by a wgmma product */
};

struct memory {
    uintptr_t from, to;
    enum simt_space space;
    int device;
    struct cell *cell;
};

#define MEMORIES 4096u

extern uint8_t __start_simt_shared[], __stop_simt_shared[];
extern const uint8_t __ehdr_start[], _end[];

/* The host, which runs before the first launch and between blocks; none of its accesses are
 * checked. */
static struct simt_lane host = {NULL, SIZE_MAX, 0, 0, false, false, 0, 0, 0, {}};
struct simt_lane *simt_lane = &host;
bool simt_looks = true, simt_is_ahead;
struct simt_seen simt_seen;
static uint32_t looked = UINT32_MAX; /* simt_look() */

static struct memory memory[MEMORIES];
static uint32_t n_memories;
static int device;           /* simt_device() */
static uint32_t reached[32]; /* simt_reach(): a bit for each other device */
static struct memory shared_memory, dynamic_memory;
static uint32_t n_dynamic; /* bytes of a block */
static bool strict;        /* allocations are registered, so addresses are checked */
static uintptr_t args_from, args_to;
static const char *kernel;
static uint32_t n_threads = 1, n_members = 1; /* of a block; blocks of a cluster */
/* Intervals are numbered consecutively over all launches of the process. */
static uint64_t interval = 1, first_of_launch = 1, first_of_block = 1, first_unsettled = 1;
static uint64_t since = 1; /* first interval after the block's last barrier */
static uint32_t n_blocks;

#define THREADS SIMT_THREADS

/* Intervals also end at sync_warp() and at arrivals; synced: first interval after a warp's last
 * sync_warp(). known: of each thread, what each warp has told it last; what it was told about
 * earlier blocks is older than all accesses of this one. */
static uint64_t synced[THREADS / 32];
static struct simt_arrival known[THREADS][THREADS / 32];

/* Of the last phases of the cluster's barrier: the first interval of each warp after its arrival. A
 * warp may be two phases ahead of another one. visited: of each block of a cluster, the last interval in which each warp of the
 * others accessed its memory. */
#define PHASES 4u
static uint64_t arrived[PHASES][THREADS / 32], visited[SIMT_CLUSTER][THREADS / 32];

/* Arrivals of blocks at counts, each with the intervals [from, to) of the block before it arrived.
 * The n_heard arrivals that the running block knows of, because it was the last to arrive, order
 * its accesses after interval @since; for the thread that was told, at once. */
struct arrival {
    const void *count;
    uint64_t from, to;
};
static struct arrival arrival[1 << 16];
static uint32_t n_arrivals;
static struct {
    uint64_t from, to, since;
    uint32_t thread;
} heard[1 << 16];
static uint32_t n_heard;

#ifdef SIMT_NO_HOOKS
#define SEEN false
#else
#define SEEN true
#endif

static const uint8_t *describe(uintptr_t a, char out[80]) {
    uintptr_t shared = (uintptr_t)__start_simt_shared;
    const struct memory *m = NULL;

    for (uint32_t i = 0; i < n_memories && !m; i++)
        if (a >= memory[i].from && a < memory[i].to)
            m = &memory[i];
    if (a >= shared && a < (uintptr_t)__stop_simt_shared)
        snprintf(out, 80, "shared memory + %zu", (size_t)(a - shared));
    else if (a - (uintptr_t)simt_dynamic < sizeof(simt_dynamic))
        snprintf(out, 80, "byte %zu of %zu of dynamic shared memory",
                 (size_t)(a - (uintptr_t)simt_dynamic) % SIMT_DYNAMIC_MAX, (size_t)n_dynamic);
    else if (m)
        snprintf(out, 80, "byte %zu of %zu of %s", (size_t)(a - m->from), (size_t)(m->to - m->from),
                 m->space == SIMT_DEVICE ? "an allocation" : "pinned memory");
    else
        snprintf(out, 80, "%p", (void *)a);
    return (const uint8_t *)a;
}

void simt_fault(const char *format, ...) {
    va_list list;

    va_start(list, format);
    fflush(stdout);
    fprintf(stderr, "simt: %s, block (%u, %u), thread %u: ", kernel, blockIdx.x, blockIdx.y,
            simt_lane->thread % n_threads);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    abort();
}

/* Reports an access to address @a; @pc is the address of its code, for addr2line. */
[[noreturn]] static void fault_at(uintptr_t a, const void *pc, const char *what) {
    char where[80];

    describe(a, where);
    simt_fault("%s: %s (code at 0x%zx)", where, what, (size_t)((const uint8_t *)pc - __ehdr_start));
}

/* -- allocations ------------------------------------------------------------------------------- */

static size_t cell_bytes(size_t n) {
    return (n / 4 + 2) * sizeof(struct cell);
}

#define KEPT 64u

/* Cells of memory that was freed, for the next one of the same size. What they tell was before
 * every launch to come. */
static struct {
    struct cell *cell;
    size_t bytes;
} kept[KEPT];
static uint32_t n_kept;

static struct cell *new_cells(size_t n) {
    for (uint32_t i = 0; i < n_kept; i++)
        if (kept[i].bytes == cell_bytes(n)) {
            struct cell *c = kept[i].cell;

            kept[i] = kept[--n_kept];
            return c;
        }
    void *p = mmap(NULL, cell_bytes(n), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        abort();
    madvise(p, cell_bytes(n), MADV_HUGEPAGE); /* page faults are slow */
    return (struct cell *)p;
}

static void free_cells(struct memory *m) {
    size_t bytes = cell_bytes(m->to - m->from);

    if (m->cell && n_kept < KEPT)
        kept[n_kept++] = {m->cell, bytes};
    else if (m->cell)
        munmap(m->cell, bytes);
}

void simt_memory_add(const void *p, size_t n, enum simt_space space) {
    uint32_t i = n_memories++;

    if (n_memories > MEMORIES)
        abort();
    for (; i > 0 && memory[i - 1].from > (uintptr_t)p; i--)
        memory[i] = memory[i - 1];
    memory[i] = {(uintptr_t)p, (uintptr_t)p + n, space, device, NULL};
    if (SEEN)
        memory[i].cell = new_cells(n);
    strict = true;
}

static uint32_t last_found[256]; /* index of the allocation found last, by a hash of the address */

static struct memory *find_slowly(uintptr_t a) {
    uint32_t *guess = &last_found[a >> 10 & 255], low = 0, high = n_memories;

    while (low < high) {
        uint32_t middle = (low + high) / 2;

        if (a < memory[middle].to)
            high = middle;
        else
            low = middle + 1;
    }
    *guess = low;
    return low < n_memories && a >= memory[low].from ? &memory[low] : NULL;
}

static inline struct memory *find(uintptr_t a) {
    struct memory *m = &memory[last_found[a >> 10 & 255]];

    return a - m->from < m->to - m->from ? m : find_slowly(a);
}

void simt_memory_drop(const void *p) {
    struct memory *m = find((uintptr_t)p);

    if (!m)
        abort();
    free_cells(m);
    n_memories--;
    memmove(m, m + 1, (size_t)(memory + n_memories - m) * sizeof(*m));
    memory[n_memories] = {};
}

int simt_memory_space(const void *p) {
    const struct memory *m = find((uintptr_t)p);

    return m ? (int)m->space : -1;
}

void simt_device(int d) {
    device = d;
}

void simt_reach(int d, int other, bool on) {
    reached[d] = (reached[d] & ~(1u << other)) | (uint32_t)on << other;
}

int simt_memory_device(const void *p) {
    const struct memory *m = find((uintptr_t)p);

    return m && m->space == SIMT_DEVICE ? m->device : -1;
}

/* -- times of accesses ------------------------------------------------------------------------- */

void simt_settled(void) {
    first_unsettled = ++interval;
}

void simt_look(uint32_t n_blocks_a_launch) {
    looked = n_blocks_a_launch;
}

void simt_check_launch(const struct simt_kernel *k, const void *args, uint32_t shared) {
    kernel = k->name;
    n_threads = k->n_threads;
    n_members = k->cluster;
    n_dynamic = shared;
    args_from = (uintptr_t)args;
    args_to = args_from + k->args_size;
    first_of_launch = ++interval;
    n_arrivals = 0;
    if (!dynamic_memory.cell)
        dynamic_memory.cell = new_cells(sizeof(simt_dynamic));
    dynamic_memory.from = (uintptr_t)simt_dynamic;
    dynamic_memory.to = dynamic_memory.from + (n_members - 1) * SIMT_DYNAMIC_MAX + shared;
}

/* The last block is always among those that are looked at. */
bool simt_will_look(uint32_t block, uint32_t n) {
    uint64_t many = n < looked ? n : looked;

    return SEEN && block * many / n != (block + 1) * many / n;
}

void simt_check_block(uint32_t block, uint32_t n) {
    uint64_t many = n < looked ? n : looked;

    simt_banks_count();
    simt_looks = block * many / n != (block + 1) * many / n;
    first_of_block = since = ++interval;
    n_blocks++;
    n_heard = 0;
    if (n_members > 1)
        memset(visited, 0, sizeof(visited));
}

void simt_check_barrier() {
    since = ++interval;
    simt_banks_count();
}

uint64_t simt_check_time() {
    return interval;
}

void simt_check_warp() {
    synced[simt_lane->thread / 32] = ++interval;
}

struct simt_arrival simt_check_leave() {
    uint32_t warp = simt_lane->thread / 32;
    uint64_t all = synced[warp] < since ? since : synced[warp];

    return {interval++, all, simt_lane->thread};
}

void simt_check_learn(uint32_t thread, const struct simt_arrival *from) {
    known[thread][from->thread / 32] = *from;
}

/* Records that thread @thread has been told of what lanes of warp @warp did before time @all. */
static void know_warp(uint32_t thread, uint32_t warp, uint64_t all) {
    struct simt_arrival *k = &known[thread][warp];

    if (k->all < all)
        *k = {0, all, warp * 32};
}

void simt_check_some(uint32_t first, uint32_t n) {
    interval++;
    for (uint32_t thread = first; thread < first + n; thread++)
        for (uint32_t other = first; other < first + n; other += 32)
            know_warp(thread, other / 32, interval);
}

void simt_check_cluster_arrival(uint32_t phase) {
    arrived[phase % PHASES][simt_lane->thread / 32] = ++interval;
}

/* Returns the current time and thread, without bytes. */
static moment now(bool atomic) {
    return interval << 23 | (moment)(simt_lane->n_warp_syncs & 127) << 16 | (moment)atomic << 15 |
           (moment)simt_lane->thread << 4;
}

static uint64_t interval_of(moment m) {
    return m >> 23;
}

static unsigned thread_of(moment m) {
    return m >> 4 & (SIMT_THREADS - 1);
}

void simt_check_arrival(const void *count, bool last) {
    uint32_t n = 0;

    if (!SEEN || !simt_looks)
        return;
    if (n_arrivals == sizeof(arrival) / sizeof(*arrival))
        abort();
    arrival[n_arrivals++] = {count, first_of_block, simt_lane->met};
    for (uint32_t i = 0; i < n_arrivals && last; i++) {
        const struct arrival *a = &arrival[i];

        if (a->count != count) {
            arrival[n++] = *a;
            continue;
        }
        if (n_heard == sizeof(heard) / sizeof(*heard))
            abort();
        heard[n_heard++] = {a->from, a->to, interval, simt_lane->thread};
    }
    n_arrivals = last ? n : n_arrivals;
}

/* Returns true if an arrival has told the block about accesses of another block in interval @at. */
static bool is_heard(uint64_t at) {
    for (uint32_t i = n_heard; i-- > 0;)
        if (at >= heard[i].from && at < heard[i].to &&
            (simt_lane->met > heard[i].since || heard[i].thread == simt_lane->thread))
            return true;
    return false;
}

/* Returns true if the running thread has been told about access @then of another one. */
static bool is_known(uint64_t at, unsigned thread) {
    const struct simt_arrival *k = &known[simt_lane->thread][thread / 32];

    uint32_t meetings = simt_lane->n_meetings;

    if (meetings > 0 && at < arrived[(meetings - 1) % PHASES][thread / 32])
        return true;
    return at < k->all || (thread == k->thread && at <= k->own);
}

void simt_check_left(uint32_t rank) {
    for (uint32_t warp = 0; SEEN && simt_looks && warp < n_threads * n_members / 32; warp++)
        if (visited[rank][warp] && !is_known(visited[rank][warp], warp * 32))
            simt_fault("ends while other blocks of the cluster may access its memory");
}

/* Checks an access to dynamic shared memory at @a by a block of a cluster. */
static void check_visit(uintptr_t a, const void *pc) {
    uint32_t rank = (uint32_t)((a - (uintptr_t)simt_dynamic) / SIMT_DYNAMIC_MAX);

    if (rank == simt_rank)
        return;
    if (simt_lane->n_meetings == 0)
        fault_at(a, pc, "the memory of a block of the cluster that may not have begun");
    visited[rank][simt_lane->thread / 32] = interval;
}

/* Returns true if nothing orders access @then before an access of this thread to the same
 * @bytes. */
static bool unordered(moment then, unsigned bytes, bool atomic, bool shared) {
    uint64_t at = interval_of(then);
    unsigned thread = thread_of(then);

    if (!(then & bytes) || at < first_of_launch || (atomic && (then >> 15 & 1)))
        return false;
    if (at < first_of_block)
        return !shared && !is_heard(at);
    if (at < since || thread == simt_lane->thread || is_known(at, thread))
        return false;
    return thread / 32 != simt_lane->thread / 32 ||
           (then >> 16 & 127) == (simt_lane->n_warp_syncs & 127);
}

/* -- accesses ---------------------------------------------------------------------------------- */

static inline void see_read(struct cell *c, moment m, unsigned bytes) {
    moment same = c->read ^ m;

    c->product = false;
    if (same >> 4 == 0) { /* the same thread in the same interval */
        c->read |= bytes;
        return;
    }
    if (c->read && thread_of(c->read) != thread_of(m) &&
        (thread_of(c->read) / 32 != thread_of(m) / 32 || interval_of(c->other) < since))
        c->other = c->read;
    c->read = m;
}

/* Returns true if no bulk copy wrote @c, or this thread has waited for it. */
static inline bool has_come(const struct cell *c) {
    return !c->bar || (int8_t)((uint8_t)simt_lane->phases[c->bar - 1] - c->phase) > 0;
}

static inline void see(struct cell *c, moment m, unsigned bytes, enum simt_access kind, bool shared,
                       uintptr_t a, const void *pc) {
    bool atomic = kind == SIMT_ATOMIC;

    m |= bytes;
    if (kind == SIMT_READ && !shared && interval_of(c->write) < first_of_launch &&
        simt_lane->waited) { /* fast path: data of an earlier launch */
        see_read(c, m, bytes);
        return;
    }
    if (kind == SIMT_READ && shared && interval_of(c->write) < since && c->block == n_blocks &&
        /* fast path: data written before a barrier */
        !(bytes & ~c->written) && !c->pending && !c->bar) {
        see_read(c, m, bytes);
        return;
    }

    if (unordered(c->write, bytes, atomic, shared))
        fault_at(a, pc,
                 kind == SIMT_READ ? "read while another thread writes it"
                                   : "written while another thread writes it");
    if (kind == SIMT_READ) {
        if (shared && (c->block != n_blocks || (bytes & ~c->written)))
            fault_at(a, pc, "read before it was written");
        if ((c->pending & bytes) || !has_come(c))
            fault_at(a, pc, "read before the copy to it was waited for");
        if (!shared && !simt_lane->waited && (c->write & bytes) &&
            interval_of(c->write) >= first_unsettled)
            fault_at(a, pc, "read before wait_for_previous()");
        see_read(c, m, bytes);
        return;
    }
    if (unordered(c->read, bytes, atomic, shared) || unordered(c->other, bytes, atomic, shared))
        fault_at(a, pc, "written while another thread reads it");
    c->write = (c->write ^ m) >> 4 == 0 ? c->write | m : m;
    if (shared) {
        simt_lane->hidden = true;
        c->written = c->block == n_blocks ? c->written | (uint8_t)bytes : (uint8_t)bytes;
        c->block = n_blocks;
        c->bar = 0;
    }
}

static inline struct cell *cell_of(const struct memory *m, uintptr_t a) {
    return &m->cell[(a - (m->from & ~(uintptr_t)3)) / 4];
}

static inline void see_all(const struct memory *m, uintptr_t a, size_t n, enum simt_access kind,
                           const void *pc) {
    struct cell *c = cell_of(m, a);
    bool shared = m == &shared_memory || m == &dynamic_memory;
    moment when = now(kind == SIMT_ATOMIC);

    for (size_t skip = a % 4; n > 0; c++, skip = 0) {
        size_t here = n < 4 - skip ? n : 4 - skip;

        see(c, when, ((1u << here) - 1) << skip, kind, shared, a, pc);
        n -= here;
    }
}

/* Returns the shared memory that address @a of the program is in, or NULL. */
static inline struct memory *shared_of(uintptr_t a) {
    if (a - dynamic_memory.from < dynamic_memory.to - dynamic_memory.from &&
        (n_members == 1 || (a - dynamic_memory.from) % SIMT_DYNAMIC_MAX < n_dynamic))
        return &dynamic_memory;
    if (a < (uintptr_t)__start_simt_shared || a >= (uintptr_t)__stop_simt_shared)
        return NULL;
    if (!shared_memory.cell) {
        shared_memory.from = (uintptr_t)__start_simt_shared;
        shared_memory.to = (uintptr_t)__stop_simt_shared;
        shared_memory.cell = new_cells(shared_memory.to - shared_memory.from);
    }
    return &shared_memory;
}

bool simt_is_shared(const void *p) {
    return shared_of((uintptr_t)p) != NULL;
}

/* Returns true for kernels that may access host memory. */
static bool reaches_host() {
    static const char *const those[] = {"copy_page",   "hand_over", "combine",    "residual",
                                        "repack",      "bring",     "expert_vec", "expert_wide",
                                        "scale_tiles", "ngram_ask"};

    for (const char *k : those)
        if (strcmp(kernel, k) == 0)
            return true;
    return false;
}

/* Returns true for reads of another device's memory by the kernels that exchange shares, and by
 * embed, as all devices have one table. */
static bool reaches_device(const struct memory *m, enum simt_access kind) {
    return (reached[device] >> m->device & 1) && kind == SIMT_READ &&
           (strcmp(kernel, "embed") == 0 || strcmp(kernel, "gather") == 0 ||
            strcmp(kernel, "pack_shares") == 0 || strcmp(kernel, "residual_shares") == 0);
}

/* Adds a read before wait_for_previous() to the block's digest. Threads may run in any order, so
 * the digests of reads are added up. */
static void see_early(uintptr_t a, size_t n) {
    uint64_t sum = a * 0x9E3779B97F4A7C15u + n;

    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ *(const uint8_t *)(a + i)) * 0xD6E8FEB86659FD93u;
        sum ^= sum >> 32;
    }
    simt_seen.sum += sum;
}

/* Checks an access to @a, which is neither in shared memory nor in the kernel's argument. */
static inline void check_device(uintptr_t a, size_t n, enum simt_access kind, const void *pc) {
    const struct memory *m = find(a);

    if (!m)
        fault_at(a, pc,
                 kind == SIMT_READ ? "read outside all memory" : "written outside all memory");
    if (m->space != SIMT_DEVICE && !reaches_host())
        fault_at(a, pc, "a kernel has no business in the host's memory");
    if (m->space == SIMT_DEVICE && m->device != device && !reaches_device(m, kind))
        fault_at(a, pc, "memory of another device");
    if (a + n > m->to)
        fault_at(a, pc, "an access beyond the end");
    if (!simt_lane->waited && kind != SIMT_READ)
        fault_at(a, pc, "written before wait_for_previous()");
    if (!simt_lane->waited && !simt_seen.closed)
        see_early(a, n);
    if (!simt_is_ahead)
        see_all(m, a, n, kind, pc);
}

/* Checks an access. Constants, the variables that emulate threadIdx and others, and the kernel's
 * argument may be read. */
static inline void check(uintptr_t a, size_t n, enum simt_access kind, const void *pc) {
    if (a - (uintptr_t)__ehdr_start < (uintptr_t)(_end - __ehdr_start)) {
        struct memory *m = shared_of(a);

        if (m && a + n > m->to)
            fault_at(a, pc, "an access beyond the end");
        if (m && n_members > 1 && m == &shared_memory)
            fault_at(a, pc, "static shared memory, in a cluster");
        if (m && n_members > 1)
            check_visit(a, pc);
        bool own = n_members == 1 || a - (uintptr_t)dynamic_shared() < SIMT_DYNAMIC_MAX;
        if (m && own && simt_banks_on && !simt_is_ahead && n <= 16)
            simt_banks_note(kernel, simt_lane->thread, a, n, pc);
        if (m && !simt_is_ahead)
            see_all(m, a, n, kind, pc);
        if (m || (kind == SIMT_READ && a - (uintptr_t)simt_dynamic >= sizeof(simt_dynamic)))
            return;
    }
    if (kind == SIMT_READ && a >= args_from && a + n <= args_to)
        return;
    if (strict)
        check_device(a, n, kind, pc);
}

void simt_check_prefetch(const void *p, size_t n) {
    const struct memory *m = strict ? find((uintptr_t)p) : NULL;

    if (strict && (!m || (uintptr_t)p + n > m->to || m->space != SIMT_DEVICE))
        fault_at((uintptr_t)p, __builtin_return_address(0), "asked for outside all memory");
}

static inline bool is_own(const void *p) {
    return (uintptr_t)p - (uintptr_t)simt_lane->stack < simt_lane->stack_bytes;
}

void simt_check_access(const void *p, size_t n, enum simt_access kind, const void *pc) {
    if (SEEN && !is_own(p))
        check((uintptr_t)p, n, kind, pc);
}

void simt_check_pending(const void *to, size_t n, bool pending, const void *pc) {
    struct memory *m = SEEN && simt_looks ? shared_of((uintptr_t)to) : NULL;

    if (!SEEN || !simt_looks || simt_is_ahead)
        return;
    if (!m)
        fault_at((uintptr_t)to, pc, "an asynchronous copy that does not go to shared memory");
    if (pending && simt_banks_on && n <= 16)
        simt_banks_note(kernel, simt_lane->thread, (uintptr_t)to, n, pc);
    see_all(m, (uintptr_t)to, n, SIMT_WRITE, pc);
    for (size_t i = 0; i < n; i += 4)
        cell_of(m, (uintptr_t)to + i)->pending = pending ? 15 : 0;
}

void simt_check_fence() {
    simt_lane->fenced = now(false);
}

/* Returns true if the thread's fence follows access @then. An access of the thread itself in the
 * same interval may follow the fence; since that is not recorded, it counts as fenced. */
static bool is_fenced(moment then) {
    return interval_of(then) < first_of_block || then >> 16 < simt_lane->fenced >> 16 ||
           (then ^ simt_lane->fenced) >> 4 == 0;
}

/* Checks and records a bulk copy. It uses the async proxy (PTX), so a barrier alone does not order
 * it after accesses of threads: a fence must. */
void simt_check_bulk(const void *to, const void *from, size_t n, const void *pc) {
    struct memory *m = SEEN && simt_looks ? shared_of((uintptr_t)to) : NULL;
    const struct memory *source = m ? find((uintptr_t)from) : NULL;

    for (size_t i = 0; source && i < n; i += 4)
        if (interval_of(cell_of(source, (uintptr_t)from + i)->write) >= first_of_launch)
            fault_at((uintptr_t)from + i, pc, "a copy in bulk of what its kernel has written");
    for (size_t i = 0; m && i < n; i += 4) {
        const struct cell *c = cell_of(m, (uintptr_t)to + i);
        /* wgmma reads through the async proxy, too, and needs no fence. */
        const moment touched[] = {c->product ? 0 : c->read, c->product ? 0 : c->other, c->write};

        for (moment then : touched)
            if (!is_fenced(then) && !unordered(then, 15, false, true))
                fault_at((uintptr_t)to + i, pc,
                         "a copy in bulk over what threads have touched, without a fence");
    }
    simt_check_pending(to, n, true, pc);
}

void simt_check_came(const void *to, size_t n, uint32_t bar, uint32_t phase) {
    struct memory *m = SEEN && simt_looks ? shared_of((uintptr_t)to) : NULL;

    for (size_t i = 0; m && i < n; i += 4) {
        struct cell *c = cell_of(m, (uintptr_t)to + i);

        c->write = 0; /* the barrier orders it before later accesses */
        c->pending = 0;
        c->bar = (uint8_t)(bar + 1);
        c->phase = (uint8_t)phase;
    }
}

void simt_check_product(const void *p, size_t n, const void *pc) {
    struct memory *m = SEEN && simt_looks ? shared_of((uintptr_t)p) : NULL;

    simt_check_access(p, n, SIMT_READ, pc);
    for (size_t i = 0; m && i < n; i += 4)
        cell_of(m, (uintptr_t)p + i)->product = true;
}

bool simt_check_in_bulk(const void *p, size_t n) {
    struct memory *m = SEEN && simt_looks ? shared_of((uintptr_t)p) : NULL;

    for (size_t i = 0; m && i < n; i += 4)
        if (!cell_of(m, (uintptr_t)p + i)->bar)
            return false;
    return true;
}

/* -- hooks that the compiler calls ------------------------------------------------------------- */

#ifndef SIMT_NO_HOOKS

#define ALIGNMENT(n) ((n) < 4 ? (n) : 4)

/* Checks an access of a size and kind. It is not inlined, because most accesses are to the lane's
 * own variables and need no check. */
template <size_t N, enum simt_access KIND>
__attribute__((noinline)) static void check_value(uintptr_t a, const void *pc) {
    if (a % ALIGNMENT(N))
        fault_at(a, pc, "not aligned");
    check(a, N, KIND, pc);
}

/* Checks alignment up to 4 bytes only: accesses of 8 bytes and more may be to structs of words, and
 * vectors are loaded by functions of their own. The compiler does not vectorise here, and
 * -fsanitize=alignment traps wider types that are not aligned. */
template <size_t N, enum simt_access KIND>
static inline void access_value(const void *p, const void *pc) {
    if (!is_own(p) || (uintptr_t)p % ALIGNMENT(N))
        check_value<N, KIND>((uintptr_t)p, pc);
}

#define HOOKS(N)                                                                                   \
    void __tsan_read##N(void *p) {                                                                 \
        access_value<N, SIMT_READ>(p, __builtin_return_address(0));                                \
    }                                                                                              \
    void __tsan_write##N(void *p) {                                                                \
        access_value<N, SIMT_WRITE>(p, __builtin_return_address(0));                               \
    }                                                                                              \
    void __tsan_unaligned_read##N(void *p) {                                                       \
        simt_check_access(p, N, SIMT_READ, __builtin_return_address(0));                           \
    }                                                                                              \
    void __tsan_unaligned_write##N(void *p) {                                                      \
        simt_check_access(p, N, SIMT_WRITE, __builtin_return_address(0));                          \
    }

extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_read_range(void *p, size_t n) {
    simt_check_access(p, n, SIMT_READ, __builtin_return_address(0));
}

void __tsan_write_range(void *p, size_t n) {
    simt_check_access(p, n, SIMT_WRITE, __builtin_return_address(0));
}

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
}
#endif
