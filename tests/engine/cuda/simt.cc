#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/rng.h"

#define MAX_THREADS SIMT_THREADS /* of a cluster */
#define STACK_BYTES (32u << 10)
/* From one stack to the next: what lanes use of theirs shares no sets of a cache. */
#define STACK_STRIDE (STACK_BYTES + 320)
#define ASYNC_MAX 128u
#define BULK_MAX 64u

#ifdef __x86_64__
/* simt_switch(save, to): saves callee-saved registers and the stack pointer, and continues on
 * another stack. */
extern "C" void simt_switch(void **save, void *to);
asm(".text\n.type simt_switch, @function\nsimt_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size simt_switch, .-simt_switch\n");
#else
#include <ucontext.h>
#endif

struct async { /* an asynchronous copy that has not been waited for */
    void *to;
    const void *from;
    uint32_t group, n;
};

#define PRODUCTS_MAX 16u
#define SUMS_MAX 4u /* sums of a thread with products in flight */
#define ARRIVALS_MAX 32u

struct bulk { /* a bulk copy that has not completed */
    void *to;
    const void *from;
    uint32_t n;
};

struct barrier { /* an mbarrier, or the barrier of some of the block's threads */
    uint64_t *at;
    bool published;
    uint32_t thread;                           /* the thread that initialised it */
    uint32_t phase;                            /* the current phase */
    uint32_t count;                            /* arrivals of a phase */
    uint32_t n_arrived;                        /* arrivals so far */
    struct simt_arrival told[2][ARRIVALS_MAX]; /* by those of an even and of an odd phase */
    uint32_t bytes, asked; /* bytes announced for the phase; bytes of the copies started in it */
    struct bulk copy[BULK_MAX];
    uint32_t n_copies;
};

struct wgmma { /* a lane's part of a warpgroup's product that has not been waited for */
    uint32_t n, group, a[4];
    const uint32_t *from; /* registers of a, which must not change either */
    uint32_t sums;        /* index in struct products */
    bool first;           /* begins its sums */
    uint64_t b, seen;     /* seen: digest of its operand in shared memory */
};

struct wgmma_sums { /* d of n_products products in flight; free if there is none */
    float *d;
    uint32_t n, n_products;
    float v[64];
};

/* Products of a thread; stored apart from its fiber, so that the fibers of a block fit in the L1
 * cache. */
struct products {
    struct wgmma product[PRODUCTS_MAX];
    struct wgmma_sums sums[SUMS_MAX];
};

/* fibers are in the order in which the block runs them; 32 of a warp are consecutive. A block of
 * 512 threads does not fit in the L1 cache: what most kernels use is in the
 * first two cache lines of a fiber. */
struct alignas(64) fiber {
    uint8_t *stack;
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    const char *here;            /* the barrier or instruction of the warp that it waits at */
    struct barrier *bar;         /* whose phase it waits for, or NULL */
    uint32_t n_registers;        /* as it has asked for; 0: it has not */
    uint64_t multiplied;         /* a digest of the operands of its products, in their order */
    uint32_t n_copies, n_groups; /* n_groups: groups committed */
    uint32_t n_products, n_product_groups;
    uint32_t phase;
    bool begun, done;
    bool multiplies; /* wgmma_begin() stands in front of the products */
    struct simt_lane lane;
    struct async *copy;
    struct products *own;
};

struct gift { /* operands that a lane contributes to an instruction of the warp */
    union {
        float f;
        uint32_t u[4];
        uint64_t u64;
    };
};

struct alignas(32) tile { /* operands of mma and mma_bytes, of all lanes; c: also the result */
    union {
        uint16_t a[16][16];
        int8_t a_bytes[16][32];
    };
    union {
        uint16_t b[16][8];
        int8_t b_bytes[8][32];
    };
    union {
        float c[16][8];
        int32_t sum[16][8];
    };
};

struct warp {
    /* The lane that comes last replaces gifts of a reduction by its results. */
    struct gift gift[2][32];
    struct tile tile[2];
    /* Lanes at the current instruction; instructions that are through; where. */
    uint32_t n_arrived, n_complete;
    const char *here;
    /* Lanes, as bits by place in the order: those that can run, and those at a barrier of the
     * block. Other lanes wait for lanes of their own warp, or have ended. */
    uint32_t ready, at_barrier, at_copies; /* at_copies: lanes that wait for bulk copies */
    /* Lanes that wait for their cluster; phases of its barrier at which the warp has arrived. */
    uint32_t at_cluster, n_arrivals;
};

/* A block of the cluster that runs; its fibers are consecutive. */
struct member {
    uint32_t rank;
    uint32_t n_waiting, n_alive;
};

struct simt_dim simt_thread, simt_block, simt_grid;
uint32_t simt_rank;

static struct fiber fibers[MAX_THREADS];
static struct async copies[MAX_THREADS][ASYNC_MAX];
static struct products products[MAX_THREADS];
static struct warp warps[MAX_THREADS / 32];
static struct fiber scheduler, *current;
static struct warp *warp; /* warp of the current fiber */
static const struct simt_kernel *kernel;
static const void *kernel_args;
static uint32_t n_threads, n_fibers, n_dynamic; /* n_threads: of a block */
/* The members of the running cluster in the order of their fibers; without clusters, a block. */
static struct member members[SIMT_CLUSTER];
static uint32_t n_members, first_block; /* first_block: blockIdx.x of rank 0 */
static uint32_t n_phases, n_arrived;    /* of the cluster's barrier: phases that ended; warps */
static struct rng order_rng;
static bool shuffled;
static uint64_t n_blocks;
/* before the last barrier, some thread had written shared memory without a fence */
static bool hidden;
static bool other_sums; /* set by simt_wgmma_other() */
static uint32_t n_left; /* argument of the wgmma_wait() at which the lanes meet */
static struct barrier barriers[SIMT_BARRIERS];
static uint32_t n_barriers;
static struct barrier first_threads[SIMT_CLUSTER]; /* of simt_sync_first(), for each member */

uint8_t simt_dynamic[SIMT_CLUSTER * SIMT_DYNAMIC_MAX]
    __attribute__((section("simt_at_launch"), aligned(128)));

extern uint8_t __start_simt_shared[], __stop_simt_shared[];

void simt_order(uint64_t seed) {
    order_rng.state = seed;
    shuffled = seed != 0;
}

uint64_t simt_blocks(void) {
    return n_blocks;
}

/* -- fibers ------------------------------------------------------------------------------------ */

static void fiber_main();

/* Prepares the first switch to @f. */
static void begin(struct fiber *f) {
#ifdef __x86_64__
    void **sp = (void **)(f->stack + STACK_BYTES) - 2;

    *sp = (void *)fiber_main; /* return address of the first switch; leaves the stack aligned */
    f->sp = sp - 6;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->context, fiber_main, 0);
#endif
    f->begun = true;
}

/* Returns the member of the cluster that fiber @f is of. */
static struct member *member_of(const struct fiber *f) {
    return &members[n_members == 1 ? 0 : (uint32_t)(f - fibers) / n_threads];
}

static void become(struct fiber *f) {
    current = f;
    simt_lane = &f->lane;
    simt_thread.x = f->lane.thread;
    if (n_members > 1 && f != &scheduler) {
        simt_rank = member_of(f)->rank;
        simt_thread.x = f->lane.thread % n_threads;
        simt_block.x = first_block + simt_rank;
    }
}

static void switch_to(struct fiber *from, struct fiber *to) {
    if (!to->begun)
        begin(to);
    become(to);
#ifdef __x86_64__
    simt_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
}

static uint32_t place_bit() {
    return 1u << ((current - fibers) % 32);
}

/* Returns the next lane of the warp that is ready, the scheduler if none is. */
static struct fiber *next_fiber() {
    uint32_t later = warp->ready & ~(place_bit() * 2 - 1), next = later ? later : warp->ready;

    return next ? &fibers[(warp - warps) * 32 + __builtin_ctz(next)] : &scheduler;
}

static void yield() {
    switch_to(current, next_fiber());
}

static void check_end() {
    if (current->n_copies)
        simt_fault("ends with a copy that it has not waited for");
    if (current->n_products)
        simt_fault("ends with products that it has not waited for");
    if (!current->lane.waited && blockIdx.x + blockIdx.y == 0)
        simt_fault("ends without wait_for_previous()");
    if (n_members > 1 && warp->n_arrivals != current->lane.n_meetings)
        simt_fault("ends between its arrival at the cluster's barrier and the wait");
    if (n_members > 1)
        simt_check_left(simt_rank);
}

/* A thread, and on the same stack those of the warp that begin as soon as the last one has ended:
 * threads that wait for no others take no switch. */
static void fiber_main() {
    for (;;) {
        (simt_looks ? kernel->run : kernel->quick)(kernel_args);
        check_end();
        current->done = true;
        warp->ready &= ~place_bit();
        member_of(current)->n_alive--;
        struct fiber *next = next_fiber(), *last = current;
        if (next->begun)
            break;
        uint8_t *stack = next->stack;
        next->stack = last->stack;
        last->stack = stack;
        if (simt_looks)
            next->lane.stack = next->stack;
        next->begun = true;
        become(next);
    }
    yield();
    abort();
}

static void make_fibers() {
    uint8_t *p = (uint8_t *)mmap(NULL, MAX_THREADS * STACK_STRIDE, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        abort();
    madvise(p, MAX_THREADS * STACK_STRIDE, MADV_HUGEPAGE); /* page faults are slow */
    for (uint32_t i = 0; i < MAX_THREADS; i++) {
        fibers[i].stack = p + i * STACK_STRIDE;
        fibers[i].copy = copies[i];
        fibers[i].own = &products[i];
    }
    scheduler.lane = *simt_lane;
    scheduler.begun = true;
}

static void start(struct fiber *f, uint32_t thread) {
    f->begun = f->done = false;
    f->n_copies = f->n_groups = 0;
    for (uint32_t k = 0; k < f->n_products; k++) /* left by a launch that was stopped */
        f->own->sums[f->own->product[k].sums].n_products = 0;
    f->n_products = f->n_product_groups = 0;
    f->multiplied = 0;
    f->n_registers = 0;
    f->multiplies = false;
    f->bar = NULL;
    f->lane.stack = simt_looks ? f->stack : NULL;
    f->lane.stack_bytes = simt_looks ? STACK_BYTES : SIZE_MAX;
    f->lane.thread = thread;
    f->lane.n_warp_syncs = 0;
    f->lane.waited = f->lane.hidden = false;
    f->lane.fenced = f->lane.met = 0;
    f->lane.n_meetings = 0;
}

/* -- barriers and instructions of a warp ------------------------------------------------------- */

void simt_sync_block(const char *here) {
    current->here = here;
    warp->ready &= ~place_bit();
    warp->at_barrier |= place_bit();
    member_of(current)->n_waiting++;
    yield();
}

/* Returns a b + c. Products of two halves are exact in double precision, so both ways have the same
 * bits. */
static inline double multiply_add(double a, double b, double c) {
#ifdef __FMA__
    return __builtin_fma(a, b, c);
#else
    return a * b + c;
#endif
}

/* Converts @n halves, a multiple of 8. */
static void to_doubles(const uint16_t *h, uint32_t n, double *to) {
#ifdef __F16C__
    typedef short eight_halves __attribute__((vector_size(16)));
    typedef double eight_doubles __attribute__((vector_size(64)));

    for (uint32_t i = 0; i < n; i += 8) {
        eight_halves v;

        memcpy(&v, h + i, sizeof(v));
        eight_doubles d = __builtin_convertvector(__builtin_ia32_vcvtph2ps256(v), eight_doubles);
        memcpy(to + i, &d, sizeof(d));
    }
#else
    for (uint32_t i = 0; i < n; i++)
        to[i] = half_to_float(h[i]);
#endif
}

/* Computes C += A B of a warp. */
static void multiply(struct tile *t) {
    double a[16][16], b[16][8];

    to_doubles(t->a[0], 256, a[0]);
    to_doubles(t->b[0], 128, b[0]);
    for (uint32_t row = 0; row < 16; row++) {
        double c[8];

        for (uint32_t n = 0; n < 8; n++)
            c[n] = t->c[row][n];
        for (uint32_t k = 0; k < 16; k++)
            for (uint32_t n = 0; n < 8; n++)
                c[n] = multiply_add(a[row][k], b[k][n], c[n]);
        for (uint32_t n = 0; n < 8; n++)
            t->c[row][n] = (float)c[n];
    }
}

/* Computes A B of a warp, as mma_bytes() returns it. The last 16 columns are 0 if the instruction
 * has 16. */
static void multiply_bytes(struct tile *t) {
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t n = 0; n < 8; n++) {
            int32_t sum = 0x4B400000;

            for (uint32_t k = 0; k < 32; k++)
                sum += t->a_bytes[row][k] * t->b_bytes[n][k];
            t->sum[row][n] = sum;
        }
}

static void finish_products();
static void arrive_at_cluster();

/* Joins the gifts of lanes whose numbers differ in bits @first to @end / 2 alone, in the order of
 * warp_sum(). */
template <class T, class JOIN>
static void reduce(struct gift gift[32], uint32_t first, uint32_t end, const JOIN &join) {
    T v[32];

    for (uint32_t lane = 0; lane < 32; lane++)
        memcpy(&v[lane], &gift[lane], sizeof(T));
    for (uint32_t m = first; m < end; m *= 2)
        for (uint32_t lane = 0; lane < 32; lane++)
            if (!(lane & m))
                v[lane] = v[lane ^ m] = join(v[lane], v[lane ^ m]);
    for (uint32_t lane = 0; lane < 32; lane++)
        memcpy(&gift[lane], &v[lane], sizeof(T));
}

enum meeting { GIFTS, SYNC, SUM, SUM_64, MAX, MAX_32, MAX_64, MMA, MMA_BYTES, WGMMA_WAIT, CLUSTER };

static uint32_t first_bit, end_bit; /* of the reduction at which the lanes meet */

/* Executes the instruction at which all lanes of the warp have met. */
static void execute(enum meeting what, struct gift gift[32], struct tile *tile) {
    switch (what) {
    case GIFTS:
        break;
    case SYNC:
        simt_check_warp();
        break;
    case SUM:
        reduce<float>(gift, first_bit, end_bit, [](float x, float y) { return x + y; });
        break;
    case SUM_64:
        reduce<uint64_t>(gift, first_bit, end_bit, [](uint64_t x, uint64_t y) { return x + y; });
        break;
    case MAX:
        reduce<float>(gift, first_bit, end_bit, simt_max);
        break;
    case MAX_32:
        reduce<uint32_t>(gift, first_bit, end_bit,
                         [](uint32_t x, uint32_t y) { return x > y ? x : y; });
        break;
    case MAX_64:
        reduce<uint64_t>(gift, first_bit, end_bit,
                         [](uint64_t x, uint64_t y) { return x > y ? x : y; });
        break;
    case MMA:
        multiply(tile);
        break;
    case MMA_BYTES:
        multiply_bytes(tile);
        break;
    case WGMMA_WAIT:
        finish_products();
        break;
    case CLUSTER:
        arrive_at_cluster();
        break;
    }
}

/* Returns the place for the lane's operands of the next instruction, to be written before
 * meet(). */
static struct gift *mine() {
    return &warp->gift[warp->n_complete % 2][simt_thread.x % 32];
}

/* Waits until all lanes of the warp have arrived at the instruction. Lanes come in any order, and
 * one may already be at the next instruction, so operands of two instructions are kept; returns the
 * index of this one's. */
static uint32_t meet(const char *here, enum meeting what) {
    struct warp *w = warp;
    uint32_t i = w->n_complete % 2;

    if (w->n_arrived > 0 && w->here != here)
        simt_fault("at %s, and another lane of the warp at %s", here, w->here);
    w->here = here;
    if (++w->n_arrived == 32) {
        w->n_arrived = 0;
        w->n_complete++;
        w->ready = ~0u;
        execute(what, w->gift[i], &w->tile[i]);
    } else {
        current->here = here;
        w->ready &= ~place_bit();
        yield();
    }
    return i;
}

float simt_lane_xor(const char *here, float v, int mask) {
    mine()->f = v;
    uint32_t i = meet(here, GIFTS);

    return warp->gift[i][simt_thread.x % 32 ^ (uint32_t)mask].f;
}

uint64_t simt_lane_xor(const char *here, uint64_t v, int mask) {
    mine()->u64 = v;
    uint32_t i = meet(here, GIFTS);

    return warp->gift[i][simt_thread.x % 32 ^ (uint32_t)mask].u64;
}

uint32_t simt_lane_from(const char *here, uint32_t v, uint32_t from) {
    mine()->u[0] = v;
    uint32_t i = meet(here, GIFTS);

    return warp->gift[i][from].u[0];
}

/* Returns the result of a reduction, to which the lane has given its operand. */
static const struct gift *met(const char *here, enum meeting what, uint32_t first, uint32_t end) {
    first_bit = first;
    end_bit = end;
    uint32_t i = meet(here, what);
    return &warp->gift[i][simt_thread.x % 32];
}

uint32_t simt_lanes_max(const char *here, uint32_t v) {
    mine()->u[0] = v;
    return met(here, MAX_32, 1, 32)->u[0];
}

float simt_warp_sum(const char *here, float v, uint32_t first, uint32_t end) {
    mine()->f = v;
    return met(here, SUM, first, end)->f;
}

uint64_t simt_warp_sum(const char *here, uint64_t v, uint32_t first, uint32_t end) {
    mine()->u64 = v;
    return met(here, SUM_64, first, end)->u64;
}

float simt_warp_max(const char *here, float v, uint32_t first, uint32_t end) {
    mine()->f = v;
    return met(here, MAX, first, end)->f;
}

uint64_t simt_warp_max(const char *here, uint64_t v, uint32_t first, uint32_t end) {
    mine()->u64 = v;
    return met(here, MAX_64, first, end)->u64;
}

void simt_sync_warp(const char *here) {
    meet(here, SYNC);
    current->lane.n_warp_syncs++;
}

/* The lanes' parts of a product are those that engine/cuda/device.cuh defines. */
void simt_mma(const char *here, float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
              uint32_t b0, uint32_t b1) {
    uint32_t lane = simt_thread.x % 32, row = lane / 4, k = lane % 4 * 2;
    struct tile *t = &warp->tile[warp->n_complete % 2];

    memcpy(&t->a[row][k], &a0, 4);
    memcpy(&t->a[row + 8][k], &a1, 4);
    memcpy(&t->a[row][k + 8], &a2, 4);
    memcpy(&t->a[row + 8][k + 8], &a3, 4);
    t->b[k][row] = (uint16_t)b0;
    t->b[k + 1][row] = (uint16_t)(b0 >> 16);
    t->b[k + 8][row] = (uint16_t)b1;
    t->b[k + 9][row] = (uint16_t)(b1 >> 16);
    memcpy(&t->c[row][k], c, 8);
    memcpy(&t->c[row + 8][k], c + 2, 8);
    meet(here, MMA);
    memcpy(c, &t->c[row][k], 8);
    memcpy(c + 2, &t->c[row + 8][k], 8);
}

void simt_mma_bytes(const char *here, uint32_t k, float c[4], const uint32_t a[4], uint32_t b0,
                    uint32_t b1) {
    uint32_t lane = simt_thread.x % 32, row = lane / 4, column = lane % 4;
    const uint32_t none[2] = {};
    struct tile *t = &warp->tile[warp->n_complete % 2];

    for (uint32_t i = 0; i < 2; i++) {
        memcpy(&t->a_bytes[row + 8 * i][4 * column], &a[i], 4);
        memcpy(&t->a_bytes[row + 8 * i][4 * column + 16], k == 32 ? &a[2 + i] : &none[i], 4);
    }
    memcpy(&t->b_bytes[row][4 * column], &b0, 4);
    memcpy(&t->b_bytes[row][4 * column + 16], &b1, 4);
    meet(here, MMA_BYTES);
    memcpy(c, &t->sum[row][2 * column], 8);
    memcpy(c + 2, &t->sum[row + 8][2 * column], 8);
}

/* -- clusters ---------------------------------------------------------------------------------- */

/* Executes an arrival, for which all lanes of the warp have met. The last warp ends the phase. */
static void arrive_at_cluster() {
    simt_check_cluster_arrival(n_phases);
    warp->n_arrivals++;
    if (++n_arrived < n_fibers / 32)
        return;
    n_arrived = 0;
    n_phases++;
}

void simt_cluster_arrive(const char *here) {
    if (warp->n_arrivals != current->lane.n_meetings)
        simt_fault("at %s, arrives again before it has waited", here);
    meet(here, CLUSTER);
}

void simt_cluster_wait(const char *here) {
    if (warp->n_arrivals == current->lane.n_meetings)
        simt_fault("at %s, waits for the cluster and has not arrived", here);
    if (n_phases < warp->n_arrivals) {
        current->here = here;
        warp->ready &= ~place_bit();
        warp->at_cluster |= place_bit();
        yield();
    }
    current->lane.n_meetings++;
}

void *simt_shared_of(void *p, uint32_t rank) {
    uintptr_t at = (uintptr_t)p - (uintptr_t)dynamic_shared();

    if (at >= n_dynamic)
        simt_fault("the place of no dynamic shared memory of the block");
    if (rank >= n_members)
        simt_fault("memory of block %u of a cluster of %u", rank, n_members);
    return simt_dynamic + (size_t)rank * SIMT_DYNAMIC_MAX + at;
}

/* -- products of a warpgroup ------------------------------------------------------------------- */

/* Returns core matrix (@k / 8, @n / 8) of the operand with descriptor @b in the dynamic shared
 * memory @of: 8 columns of 8 halves. */
static const uint8_t *core_in(const uint8_t *of, uint64_t b, uint32_t k, uint32_t n) {
    uint32_t start = ((b & 0x3FFF) << 4) - SIMT_START, along_k = (b >> 16 & 0x3FFF) << 4,
             along_n = (b >> 32 & 0x3FFF) << 4;

    if (b & ~0x00003FFF3FFF3FFFull)
        simt_fault("an operand of wgmma with a swizzle or an offset: not emulated");
    return of + start + k / 8 * along_k + n / 8 * along_n;
}

/* Returns the same of the running thread's block. */
static const uint8_t *core_of(uint64_t b, uint32_t k, uint32_t n) {
    return core_in(dynamic_shared(), b, k, n);
}

/* Checks the operand of a product in shared memory, to which no copy may be in flight, and returns
 * its digest. */
static uint64_t look_at(const char *here, uint64_t b, uint32_t n, const void *pc) {
    uint64_t digest = 0;

    for (uint32_t i = 0; i < n / 4; i++) {
        const uint8_t *core = core_of(b, i % 2 * 8, i / 2 * 8);
        uint64_t word;

        simt_check_product(core, 128, pc);
        if (here && hidden &&
            /* bulk copies write through the same proxy as wgmma reads */
            !simt_check_in_bulk(core, 128))
            simt_fault("at %s, what was written before the barrier is not published", here);
        for (uint32_t at = 0; at < 128; at += 8) {
            memcpy(&word, core + at, 8);
            digest = (digest ^ word) * 0x9E3779B97F4A7C15ull;
            digest ^= digest >> 29;
        }
    }
    return digest;
}

/* Returns the index of the sums @d of @n columns of the running thread, which products in flight may
 * share; of others these may be no part. They are hidden from the thread until then. */
static uint32_t sums_at(const char *here, float *d, uint32_t n) {
    struct wgmma_sums *sums = current->own->sums;
    uint32_t at = SUMS_MAX;

    for (uint32_t i = 0; i < SUMS_MAX; i++) {
        const struct wgmma_sums *s = &sums[i];

        if (s->n_products == 0)
            at = at < SUMS_MAX ? at : i;
        else if (s->d == d && s->n == n)
            return i;
        else if (s->d < d + n / 2 && d < s->d + s->n / 2)
            simt_fault("at %s, other sums are under way", here);
    }
    if (at == SUMS_MAX)
        simt_fault("at %s, more than %u sums under way", here, SUMS_MAX);
    sums[at].d = d;
    sums[at].n = n;
    memcpy(sums[at].v, d, n / 2 * sizeof(*d));
    memset(d, 0xFF, n / 2 * sizeof(*d));
    return at;
}

void simt_wgmma(const char *here, uint32_t n, float *d, const uint32_t a[4], uint64_t b,
                bool first) {
    struct fiber *f = current;
    struct wgmma *p = &f->own->product[f->n_products];

    if (f->n_products == PRODUCTS_MAX)
        simt_fault("more than %u products under way", PRODUCTS_MAX);
    if (!f->multiplies)
        simt_fault("at %s, without wgmma_begin()", here);
    uint32_t sums = sums_at(here, d, n);
    *p = {n, f->n_product_groups, {a[0], a[1], a[2], a[3]}, a, sums, first, b, 0};
    f->own->sums[sums].n_products++;
    if (simt_thread.x % 32 == 0)
        p->seen = look_at(here, b, n, __builtin_return_address(0));
    f->n_products++;
    f->multiplied = (f->multiplied + b + n + first) * 0x9E3779B97F4A7C15ull;
}

void simt_wgmma_begin(const char *here) {
    current->multiplies = true;
}

void wgmma_commit() {
    current->multiplies = false;
    current->n_product_groups++;
}

static float *sum_of(struct fiber *const lane[32], uint32_t sums, uint32_t row, uint32_t n) {
    struct products *own = lane[row % 8 * 4 + n % 8 / 2]->own;

    return &own->sums[sums].v[n / 8 * 4 + row / 8 * 2 + n % 2];
}

/* Computes d of the warp's 16 rows. */
static void multiply_rows(struct fiber *const lane[32], uint32_t at) {
    static double a[16][16];
    const struct wgmma *p = &lane[0]->own->product[at];

    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t i = 0; i < 4; i++) {
            const struct wgmma *q = &lane[l]->own->product[at];
            double *x = &a[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8];

            if (q->b != p->b || q->n != p->n || q->group != p->group || q->sums != p->sums)
                simt_fault("lanes with other operands of wgmma");
            if (q->from[i] != q->a[i])
                simt_fault("registers of wgmma have changed before it was waited for");
            x[0] = half_to_float((uint16_t)q->a[i]);
            x[1] = half_to_float((uint16_t)(q->a[i] >> 16));
        }
    for (uint32_t n = 0; n < p->n; n += 8) {
        double b[16][8], column[64];

        for (uint32_t k = 0; k < 16; k += 8) {
            to_doubles((const uint16_t *)core_of(p->b, k, n), 64, column);
            for (uint32_t i = 0; i < 64; i++)
                b[k + i % 8][i / 8] = column[i];
        }
        for (uint32_t row = 0; row < 16; row++) {
            float *sums[4]; /* of two columns each */
            double c[8];

            for (uint32_t i = 0; i < 8; i++) {
                sums[i / 2] = i % 2 ? sums[i / 2] : sum_of(lane, p->sums, row, n + i);
                if (p->first)
                    sums[i / 2][i % 2] = 0;
                c[i] = other_sums ? 0 : (double)sums[i / 2][i % 2];
            }
            for (uint32_t k = 0; k < 16; k++)
                for (uint32_t i = 0; i < 8; i++)
                    c[i] = multiply_add(a[row][k], b[k][i], c[i]);
            for (uint32_t i = 0; i < 8; i++) {
                float *sum = &sums[i / 2][i % 2];

                *sum = other_sums ? *sum + (float)c[i] : (float)c[i];
            }
        }
    }
}

/* Completes all groups of products but the last n_left, when the lanes of a warp have met. */
static void finish_products() {
    struct fiber *lane[32];
    uint32_t done = 0;

    for (uint32_t i = 0; i < 32; i++) {
        struct fiber *f = &fibers[(warp - warps) * 32 + i];

        lane[f->lane.thread % 32] = f;
    }
    const struct fiber *first = lane[0];
    for (; done < first->n_products; done++) {
        const struct wgmma *p = &first->own->product[done];

        if (p->group + n_left >= first->n_product_groups)
            break;
        if (p->seen != look_at(NULL, p->b, p->n, NULL))
            simt_fault("what wgmma reads has changed before it was waited for");
        multiply_rows(lane, done);
    }
    for (uint32_t i = 0; i < 32; i++) {
        struct fiber *f = lane[i];
        struct products *own = f->own;

        for (uint32_t k = 0; k < done; k++) {
            struct wgmma_sums *sums = &own->sums[own->product[k].sums];

            if (--sums->n_products == 0)
                memcpy(sums->d, sums->v, sums->n / 2 * sizeof(float));
        }
        f->n_products -= done;
        memmove(own->product, own->product + done, f->n_products * sizeof(*own->product));
    }
}

void simt_wgmma_wait(const char *here, uint32_t left) {
    n_left = left;
    meet(here, WGMMA_WAIT);
}

void simt_wgmma_other(bool other) {
    other_sums = other;
}

void simt_registers(const char *here, uint32_t n) {
    if (current->n_registers)
        simt_fault("at %s, registers are set again: not emulated", here);
    current->n_registers = n;
}

/* Checks that the four warps of each warpgroup have executed the same products and have the same
 * number of registers, of which there are enough. */
static void check_warpgroups() {
    const struct fiber *first[MAX_THREADS / 128];
    uint32_t n_registers = 0;

    for (uint32_t i = 0; i < n_fibers; i++)
        if (fibers[i].lane.thread % 128 == 0)
            first[fibers[i].lane.thread / 128] = &fibers[i];
    for (uint32_t i = 0; i < n_fibers; i++) {
        const struct fiber *f = &fibers[i], *of_group = first[f->lane.thread / 128];

        if (f->multiplied != of_group->multiplied || (f->multiplied && n_threads % 128))
            simt_fault("warps of a group have not multiplied together");
        if (f->n_registers != of_group->n_registers || (f->n_registers && n_threads % 128))
            simt_fault("warps of a group have different numbers of registers");
        n_registers += f->n_registers;
    }
    if (n_registers / n_members > 65536)
        simt_fault("%u registers in a block", n_registers);
}

/* -- memory ------------------------------------------------------------------------------------ */

static void check_aligned(const void *p, size_t n) {
    if ((uintptr_t)p % n)
        simt_fault("%zu bytes at %p: not aligned", n, p);
}

void simt_take(const void *p, size_t n, void *to) {
    check_aligned(p, n);
    simt_check_access(p, n, SIMT_READ, __builtin_return_address(0));
    memcpy(to, p, n);
}

void simt_take_device(const void *p, size_t n, void *to) {
    if (simt_is_shared(p))
        simt_fault("shared memory is taken for device memory");
    check_aligned(p, n);
    simt_check_access(p, n, SIMT_READ, __builtin_return_address(0));
    memcpy(to, p, n);
}

void simt_put(void *p, size_t n, const void *from) {
    check_aligned(p, n);
    simt_check_access(p, n, SIMT_WRITE, __builtin_return_address(0));
    memcpy(p, from, n);
}

void prefetch_bytes(const uint8_t *p, uint32_t n) {
    check_aligned(p, 16);
    if (n == 0 || n % 16)
        simt_fault("%u bytes are asked for: not aligned", n);
    simt_check_prefetch(p, n);
}

/* A block that runs ahead ends here: the thread stays. */
void wait_for_previous() {
    if (simt_is_ahead) {
        warp->ready &= ~place_bit();
        yield();
    }
    current->lane.waited = true;
}

void fence_bulk() {}

void simt_atomic_get(const void *p, size_t n, void *to) {
    check_aligned(p, n);
    simt_check_access(p, n, SIMT_ATOMIC, __builtin_return_address(0));
    memcpy(to, p, n);
}

void simt_atomic_put(void *p, size_t n, const void *from) {
    check_aligned(p, n);
    simt_check_access(p, n, SIMT_ATOMIC, __builtin_return_address(0));
    memcpy(p, from, n);
}

void add_shared(uint64_t *p, uint64_t v) {
    check_aligned(p, 8);
    simt_check_access(p, 8, SIMT_ATOMIC, __builtin_return_address(0));
    *p += v;
}

bool arrive(uint32_t *count, uint32_t k, uint32_t n) {
    check_aligned(count, 4);
    simt_check_access(count, 4, SIMT_ATOMIC, __builtin_return_address(0));
    if (k == 0 || *count + k > n)
        simt_fault("%u more than %u have arrived, of %u", k, *count, n);
    *count += k;
    simt_check_arrival(count, *count == n);
    if (*count < n)
        return false;
    *count = 0;
    return true;
}

void store_alike(uint32_t *p, uint32_t v) {
    check_aligned(p, 4);
    simt_check_access(p, 4, SIMT_ATOMIC, __builtin_return_address(0));
    *p = v;
}

static void copy_bytes(void *to, const void *from, uint32_t n, const void *pc) {
    check_aligned(to, n);
    check_aligned(from, n);
    if (current->n_copies == ASYNC_MAX)
        simt_fault("more than %u copies under way", ASYNC_MAX);
    simt_check_access(from, n, SIMT_READ, pc);
    simt_check_pending(to, n, true, pc);
    current->copy[current->n_copies++] = {to, from, current->n_groups, n};
}

void copy_async(void *to, const void *from) {
    copy_bytes(to, from, 16, __builtin_return_address(0));
}

void copy_async4(void *to, const void *from) {
    copy_bytes(to, from, 4, __builtin_return_address(0));
}

void copy_commit() {
    current->n_groups++;
}

void simt_copy_wait(uint32_t n_left) {
    uint32_t done = 0;

    for (; done < current->n_copies; done++) {
        const struct async *c = &current->copy[done];

        if (c->group + n_left >= current->n_groups)
            break;
        memcpy(c->to, c->from, c->n);
        simt_check_pending(c->to, c->n, false, __builtin_return_address(0));
        current->lane.hidden = true;
    }
    current->n_copies -= done;
    memmove(current->copy, current->copy + done, current->n_copies * sizeof(*current->copy));
}

/* -- bulk copies ------------------------------------------------------------------------------- */

void bulk_init(uint64_t *bar, uint32_t n) {
    struct barrier *b = &barriers[n_barriers++];

    if (n == 0 || n > ARRIVALS_MAX)
        simt_fault("a barrier of %u arrivals", n);
    if (n_barriers > SIMT_BARRIERS)
        simt_fault("more than %u barriers", SIMT_BARRIERS);
    check_aligned(bar, 8);
    simt_check_access(bar, 8, SIMT_WRITE, __builtin_return_address(0));
    *b = {};
    b->at = bar;
    b->count = n;
    for (uint32_t i = 0; i < n_fibers; i++)
        fibers[i].lane.phases[n_barriers - 1] = 0;
    b->thread = current->lane.thread;
}

void bulk_publish() {
    current->lane.hidden = false;
    simt_check_fence();
    for (uint32_t i = 0; i < n_barriers; i++)
        barriers[i].published |= barriers[i].thread == current->lane.thread;
}

static struct barrier *barrier_at(uint64_t *bar, const void *pc) {
    uint32_t i = 0;

    simt_check_access(bar, 8, SIMT_READ, pc);
    while (i < n_barriers && barriers[i].at != bar)
        i++;
    if (i == n_barriers)
        simt_fault("a barrier that is not initialised");
    if (!barriers[i].published)
        simt_fault("a barrier without bulk_publish() behind bulk_init()");
    return &barriers[i];
}

/* Returns true if all have arrived and all announced bytes belong to copies that were started. */
static bool is_complete(const struct barrier *b) {
    return b->n_arrived == b->count && b->asked == b->bytes;
}

static void check_bytes(const struct barrier *b) {
    if (b->n_arrived == b->count && b->asked > b->bytes)
        simt_fault("copies of %u bytes, %u were announced", b->asked, b->bytes);
}

static void arrive_at(struct barrier *b) {
    b->told[b->phase % 2][b->n_arrived++] = simt_check_leave();
}

void bulk_expect(uint64_t *bar, uint32_t bytes) {
    struct barrier *b = barrier_at(bar, __builtin_return_address(0));

    if (bytes >= 1u << 20)
        simt_fault("%u bytes are announced: more than a barrier counts", bytes);
    if (b->n_arrived == b->count)
        simt_fault("announced for phase %u again before it was waited for", b->phase);
    arrive_at(b);
    b->bytes += bytes;
    check_bytes(b);
}

void bulk_arrive(uint64_t *bar) {
    struct barrier *b = barrier_at(bar, __builtin_return_address(0));

    if (b->n_arrived == b->count)
        simt_fault("arrives at phase %u, which is complete and was not waited for", b->phase);
    arrive_at(b);
}

/* Checks that no product in flight reads what a bulk copy will overwrite. */
static void check_products(const uint8_t *to, uint32_t n) {
    for (uint32_t i = 0; i < n_fibers; i++) {
        const uint8_t *of = simt_dynamic + (size_t)member_of(&fibers[i])->rank * SIMT_DYNAMIC_MAX;

        for (uint32_t k = 0; k < fibers[i].n_products && fibers[i].lane.thread % 32 == 0; k++) {
            const struct wgmma *p = &fibers[i].own->product[k];

            for (uint32_t j = 0; j < p->n / 4; j++) {
                const uint8_t *core = core_in(of, p->b, j % 2 * 8, j / 2 * 8);

                if (core < to + n && to < core + 128)
                    simt_fault("a copy in bulk over what a product reads that is not waited for");
            }
        }
    }
}

void bulk_copy(void *to, const void *from, uint32_t n, uint64_t *bar) {
    const void *pc = __builtin_return_address(0);
    struct barrier *b = barrier_at(bar, pc);

    check_aligned(to, 16);
    check_aligned(from, 16);
    if (n == 0 || n % 16)
        simt_fault("a copy in bulk of %u bytes: not aligned", n);
    if (b->n_copies == BULK_MAX)
        simt_fault("more than %u copies in bulk in a phase", BULK_MAX);
    simt_check_access(from, n, SIMT_READ, pc);
    simt_check_bulk(to, from, n, pc);
    check_products((const uint8_t *)to, n);
    b->copy[b->n_copies++] = {to, from, n};
    b->asked += n;
    check_bytes(b);
}

void cluster_copy(void *to, const void *from, uint32_t n, uint64_t *bar, uint32_t ranks) {
    if (ranks == 0 || ranks >> n_members)
        simt_fault("a copy to blocks %#x of a cluster of %u", ranks, n_members);
    for (uint32_t rank = 0; rank < n_members; rank++)
        if (ranks >> rank & 1)
            bulk_copy(simt_shared_of(to, rank), from, n, (uint64_t *)simt_shared_of(bar, rank));
}

/* Executes the copies of the current phase of @b and ends it. */
static void end_phase(struct barrier *b) {
    for (uint32_t i = 0; i < b->n_copies; i++) {
        const struct bulk *c = &b->copy[i];

        memcpy(c->to, c->from, c->n);
        simt_check_came(c->to, c->n, (uint32_t)(b - barriers), b->phase);
    }
    b->phase++;
    b->bytes = b->asked = b->n_copies = b->n_arrived = 0;
}

/* Waits until phase @phase of @b is complete. */
static void wait_at(const char *here, struct barrier *b, uint32_t phase) {
    current->here = here;
    current->bar = b;
    current->phase = phase;
    warp->ready &= ~place_bit();
    warp->at_copies |= place_bit();
    yield();
}

void simt_bulk_wait(const char *here, uint64_t *bar, uint32_t phase) {
    struct barrier *b = barrier_at(bar, __builtin_return_address(0));

    if (phase == b->phase && !is_complete(b))
        wait_at(here, b, phase);
    if (phase > b->phase || phase + 1 < b->phase)
        simt_fault("at %s, waits for phase %u, and %u is under way", here, phase, b->phase);
    for (uint32_t i = 0; i < b->count; i++)
        simt_check_learn(current->lane.thread, &b->told[phase % 2][i]);
    if (phase == b->phase)
        end_phase(b);
    current->lane.phases[b - barriers] = phase + 1;
}

/* The last thread to arrive lets the others go on. */
void simt_sync_first(const char *here, uint32_t n) {
    const struct member *m = member_of(current);
    uint32_t first = (uint32_t)(m - members) * n_threads;
    struct barrier *b = &first_threads[m - members];

    if (simt_thread.x >= n || n % 32 || n > n_threads)
        simt_fault("at %s, thread %u at a barrier of the first %u", here, simt_thread.x, n);
    if (b->n_arrived && b->count != n)
        simt_fault("at %s, a barrier of %u threads, others wait for %u", here, n, b->count);
    b->count = n;
    if (++b->n_arrived < n) {
        wait_at(here, b, b->phase);
        return;
    }
    simt_check_some(m->rank * n_threads, n);
    for (uint32_t i = first; i < first + n_threads; i++)
        if (fibers[i].lane.thread % n_threads < n)
            fibers[i].lane.met = simt_check_time();
    b->n_arrived = 0;
    b->phase++;
}

/* Makes those lanes of the warp runnable whose copies have all been started. */
static void release_copies(uint32_t first) {
    for (uint32_t left = warp->at_copies; left; left &= left - 1) {
        struct fiber *f = &fibers[first + (uint32_t)__builtin_ctz(left)];

        if (f->bar->phase == f->phase && !is_complete(f->bar))
            continue;
        f->bar = NULL;
        warp->at_copies &= ~(left & -left);
        warp->ready |= left & -left;
    }
}

struct vec4 simt_load_transposed(const char *here, const void *row) {
    uint32_t v[4], lane = simt_thread.x % 32;

    simt_take(row, 16, mine()->u);
    const struct gift *all = warp->gift[meet(here, GIFTS)];
    for (uint32_t j = 0; j < 4; j++) {
        const struct gift *two = &all[8 * j + lane % 4 * 2];
        uint32_t word = lane / 8, shift = lane / 4 % 2 * 16;

        v[j] = (two[0].u[word] >> shift & 0xFFFF) | (two[1].u[word] >> shift & 0xFFFF) << 16;
    }
    return {v[0], v[1], v[2], v[3]};
}

/* -- blocks ------------------------------------------------------------------------------------ */

#ifdef SIMT_NO_HOOKS /* with hooks, a read of unwritten shared memory is reported instead */
static void poison_shared() {
    memset(__start_simt_shared, 0xFF, (size_t)(__stop_simt_shared - __start_simt_shared));
    memset(simt_dynamic, 0xFF, n_dynamic);
}
#endif

template <typename T> static void shuffle(T *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = shuffled ? rng_below(&order_rng, i + 1) : i;

        order[i] = order[j];
        order[j] = (T)i;
    }
}

/* Lets the threads of a block go on that have all arrived at its barrier. */
static void release_barrier(struct member *m) {
    uint32_t first = (uint32_t)(m - members) * n_threads, end = first + n_threads;
    const char *here = NULL;

    hidden = false;
    for (uint32_t i = first; i < end; i++) {
        simt_seen.closed |= fibers[i].lane.waited; /* ahead, no thread passes such a barrier */
        if (fibers[i].done)
            continue;
        hidden = hidden || fibers[i].lane.hidden;
        if (here && here != fibers[i].here)
            simt_fault("threads at the barriers of %s and of %s", here, fibers[i].here);
        here = fibers[i].here;
    }
    for (uint32_t i = first / 32; i < end / 32; i++) {
        warps[i].ready = warps[i].at_barrier;
        warps[i].at_barrier = 0;
    }
    m->n_waiting = 0;
    if (n_members == 1)
        simt_check_barrier();
    else
        simt_check_some(m->rank * n_threads, n_threads);
    for (uint32_t i = first; i < end; i++)
        fibers[i].lane.met = simt_check_time();
}

/* Starts the threads of a member of the cluster, with warps in an order chosen by simt_order(), and
 * lanes within each. */
static void start_member(struct member *m) {
    uint32_t n_warps = n_threads / 32, first = (uint32_t)(m - members) * n_warps;
    uint8_t warp_at[MAX_THREADS / 32], lane_at[32];

    shuffle(warp_at, n_warps);
    for (uint32_t w = 0; w < n_warps; w++) {
        struct warp *of = &warps[first + w];

        of->n_arrived = of->n_complete = 0;
        of->ready = ~0u;
        of->at_barrier = of->at_copies = of->at_cluster = of->n_arrivals = 0;
        shuffle(lane_at, 32);
        for (uint32_t i = 0; i < 32; i++)
            start(&fibers[(first + w) * 32 + i],
                  m->rank * n_threads + warp_at[w] * 32u + lane_at[i]);
    }
    m->n_alive = n_threads;
    m->n_waiting = 0;
}

static void start_all() {
    uint8_t rank_at[SIMT_CLUSTER] = {};

    if (n_members > 1 && n_members <= SIMT_CLUSTER) /* so for the compiler, too */
        shuffle(rank_at, n_members);
    for (uint32_t i = 0; i < n_members; i++) {
        members[i].rank = rank_at[i];
        start_member(&members[i]);
    }
    for (uint32_t i = 0; i < n_members; i++)
        first_threads[i].n_arrived = first_threads[i].bytes = first_threads[i].asked = 0;
    n_barriers = n_phases = n_arrived = 0;
    hidden = false;
}

static bool is_alive() {
    for (uint32_t i = 0; i < n_members; i++)
        if (members[i].n_alive > 0)
            return true;
    return false;
}

/* Reports a deadlock: no thread can run. */
static void check_waiting() {
    const struct fiber *f = fibers;

    while (f->done)
        f++;
    for (uint32_t i = 0; i < n_fibers; i++)
        if (fibers[i].bar)
            simt_fault(
                "thread %u waits at %s for %u of %u arrivals, for %u bytes, of which %u were "
                "asked for",
                fibers[i].lane.thread, fibers[i].here,
                fibers[i].bar->count - fibers[i].bar->n_arrived, fibers[i].bar->count,
                fibers[i].bar->bytes, fibers[i].bar->asked);
    simt_fault("threads wait for each other, thread %u at %s", f->lane.thread, f->here);
}

/* Runs each warp as far as it can go; returns false if none can. */
static bool run_warps() {
    bool ran = false;

    for (uint32_t i = 0; i < n_fibers / 32; i++) {
        warp = &warps[i];
        if (warp->at_copies)
            release_copies(i * 32);
        if (warp->at_cluster && n_phases == warp->n_arrivals) {
            warp->ready |= warp->at_cluster;
            warp->at_cluster = 0;
        }
        if (!warp->ready)
            continue;
        ran = true;
        switch_to(&scheduler, &fibers[i * 32 + (uint32_t)__builtin_ctz(warp->ready)]);
    }
    return ran;
}

/* Runs cluster @i of @n, or block @i of @n without clusters. */
static void run_block(uint32_t i, uint32_t n) {
    uint32_t columns = simt_grid.x / n_members;

    first_block = i % columns * n_members;
    simt_block = {first_block, i / columns, 0};
    simt_check_block(i, n);
    simt_seen = {};
    start_all();
    while (is_alive()) {
        bool ran = run_warps();

        for (struct member *m = members; m < members + n_members; m++)
            if (m->n_alive > 0 && m->n_waiting == m->n_alive) {
                release_barrier(m);
                ran = true;
            }
        if (!ran && is_alive() && simt_is_ahead)
            break;
        if (!ran && is_alive())
            check_waiting();
    }
    simt_rank = 0;
    if (simt_is_ahead && is_alive())
        return;
    for (uint32_t k = 0; k < n_barriers; k++)
        if (barriers[k].n_copies)
            simt_fault("ends with a copy that it has not waited for");
    n_blocks += n_members;
    check_warpgroups();
}

static void begin_launch(const struct simt_kernel *k, struct simt_dim grid, uint32_t shared,
                         const void *args) {
    kernel = k;
    kernel_args = args;
    n_threads = k->n_threads;
    n_members = k->cluster;
    n_fibers = n_threads * n_members;
    simt_grid = grid;
    n_dynamic = shared;
    if (n_threads % 32 || n_threads > 1024 || n_members > SIMT_CLUSTER || n_fibers > MAX_THREADS)
        simt_fault("%u threads a block, %u blocks a cluster", n_threads, n_members);
    if (grid.x % n_members)
        simt_fault("a grid of %u blocks in clusters of %u", grid.x, n_members);
    if (!fibers[0].stack)
        make_fibers();
    simt_check_launch(k, args, shared);
}

static const struct simt_ahead *expected; /* of the next launch, or NULL */

void simt_expect(const struct simt_ahead *ahead) {
    expected = ahead;
}

void simt_run_ahead(const struct simt_kernel *k, struct simt_dim grid, uint32_t shared,
                    const void *args, struct simt_ahead *ahead) {
    *ahead = {};
    begin_launch(k, grid, shared, args);
    uint32_t n = grid.x * grid.y / n_members;
    simt_is_ahead = true;
    for (uint32_t i = 0; i < n && ahead->n < SIMT_AHEAD; i++) {
        if (i < (uint64_t)n * ahead->n / SIMT_AHEAD || !simt_will_look(i, n))
            continue;
        run_block(i, n);
        ahead->block[ahead->n] = i;
        ahead->seen[ahead->n++] = simt_seen.sum;
    }
    simt_is_ahead = false;
}

/* Compares what block @block has read before it waited with what it read when it ran ahead. */
static void check_ahead(uint32_t block) {
    for (uint32_t i = 0; expected && i < expected->n; i++)
        if (expected->block[i] == block && expected->seen[i] != simt_seen.sum)
            simt_fault("reads before wait_for_previous() what an earlier launch changes");
}

void simt_launch(const struct simt_kernel *k, struct simt_dim grid, uint32_t shared,
                 const void *args) {
    begin_launch(k, grid, shared, args);
    uint32_t n = grid.x * grid.y / n_members, *order = (uint32_t *)malloc(n * sizeof(*order));
    if (!order)
        abort();
    shuffle(order, n);
#ifdef SIMT_NO_HOOKS
    poison_shared();
#endif
    for (uint32_t i = 0; i < n; i++) {
        run_block(order[i], n);
        check_ahead(order[i]);
    }
    expected = NULL;
    free(order);
}
