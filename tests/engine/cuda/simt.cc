#include <stdio.h>
#include <stdlib.h>
#include "base/rng.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define NO_ASAN __attribute__((no_sanitize("address")))
#else
#define NO_ASAN
#endif

#define MAX_THREADS 1024u
#define STACK_BYTES (128u << 10)
#define ASYNC_MAX 128u

#ifdef __x86_64__
/* simt_switch(save, to): saves the callee's registers and the stack pointer, goes on with another
 * stack. */
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

struct fiber {
    uint8_t *stack;
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t context;
#endif
    void *fake_stack; /* AddressSanitizer's */
    size_t stack_bytes;
    bool done, at_barrier;
    const char *here;     /* the barrier or instruction of the warp that it waits at */
    uint32_t n_exchanges; /* instructions of the warp that this lane has come to */
    struct simt_lane lane;
    struct async copy[ASYNC_MAX];
    uint32_t n_copies, n_groups; /* n_groups: committed */
};

struct warp {
    struct simt_gift gift[2][32];
    float product[2][32][4]; /* of mma, by the lane that came last */
    /* Lanes at the current instruction; instructions that are through; where. */
    uint32_t n_arrived, n_complete;
    const char *here;
};

struct simt_dim simt_thread, simt_block, simt_grid;

static struct fiber fibers[MAX_THREADS];
static struct warp warps[MAX_THREADS / 32];
static struct fiber scheduler, *current;
static const struct simt_kernel *kernel;
static const void *kernel_args;
static uint32_t n_threads, n_waiting, n_alive, n_dynamic;
static struct rng order_rng;
static bool shuffled;
static uint64_t n_blocks;

uint8_t simt_dynamic[SIMT_DYNAMIC_MAX] __attribute__((section("simt_at_launch"), aligned(128)));

extern uint8_t __start_simt_shared[], __stop_simt_shared[];

void simt_order(uint64_t seed) {
    order_rng.state = seed;
    shuffled = seed != 0;
}

uint64_t simt_blocks(void) {
    return n_blocks;
}

/* -- fibers ------------------------------------------------------------------------------------ */

static void switch_to(struct fiber *from, struct fiber *to) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(from->done ? NULL : &from->fake_stack, to->stack,
                                   to->stack_bytes);
#endif
#ifdef __x86_64__
    simt_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;

    __sanitizer_finish_switch_fiber(from->fake_stack, &bottom, &size);
    if (from != &scheduler) { /* where we came from: the scheduler's own stack */
        scheduler.stack = (uint8_t *)bottom;
        scheduler.stack_bytes = size;
    }
#endif
}

static void yield() {
    switch_to(current, &scheduler);
}

static void fiber_main() {
#ifdef __SANITIZE_ADDRESS__
    const void *bottom;
    size_t size;

    __sanitizer_finish_switch_fiber(NULL, &bottom, &size);
    scheduler.stack = (uint8_t *)bottom;
    scheduler.stack_bytes = size;
#endif
    kernel->run(kernel_args);
    if (current->n_copies)
        simt_fault("ends with a copy that it has not waited for");
    current->done = true;
    n_alive--;
    yield();
    abort();
}

static void start(struct fiber *f) {
    if (!f->stack)
        f->stack = (uint8_t *)aligned_alloc(64, STACK_BYTES);
    if (!f->stack)
        abort();
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(f->stack, STACK_BYTES); /* the last fiber never returned */
#endif
    f->done = f->at_barrier = false;
    f->n_exchanges = f->n_copies = f->n_groups = 0;
    f->lane = {f->stack, STACK_BYTES, (uint32_t)(f - fibers), 0, false};
    f->fake_stack = NULL;
    f->stack_bytes = STACK_BYTES;
#ifdef __x86_64__
    void **sp = (void **)(f->stack + STACK_BYTES) - 2;

    *sp = (void *)
        fiber_main; /* the return address of the first switch; the stack is aligned after it */
    f->sp = sp - 6;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->context, fiber_main, 0);
#endif
}

/* -- what threads wait for --------------------------------------------------------------------- */

void simt_sync_block(const char *here) {
    current->at_barrier = true;
    current->here = here;
    n_waiting++;
    yield();
}

/* C += A B of a warp: the registers of all lanes, as engine/cuda/device.cuh says. */
static void multiply(const struct simt_gift gift[32], float product[32][4]) {
    double a[16][16], b[16][8], c[16][8];

    for (uint32_t lane = 0; lane < 32; lane++) {
        const struct simt_gift *g = &gift[lane];
        uint32_t row = lane / 4, k = lane % 4 * 2;

        for (uint32_t i = 0; i < 4; i++) {
            double *x = &a[row + i % 2 * 8][k + i / 2 * 8];

            x[0] = half_to_float((uint16_t)g->u[i]);
            x[1] = half_to_float((uint16_t)(g->u[i] >> 16));
            c[row + i / 2 * 8][k + i % 2] = g->f[6 + i];
        }
        for (uint32_t i = 0; i < 2; i++) {
            b[k + i * 8][row] = half_to_float((uint16_t)g->u[4 + i]);
            b[k + i * 8 + 1][row] = half_to_float((uint16_t)(g->u[4 + i] >> 16));
        }
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t k = 0; k < 16; k++)
            for (uint32_t column = 0; column < 8; column++)
                c[row][column] += a[row][k] * b[k][column];
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t i = 0; i < 4; i++)
            product[lane][i] = (float)c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
}

/* Lanes come in any order; the gifts of two instructions are kept, since a lane may be one ahead.
 * Returns which of the two it is. */
static uint32_t meet(const struct simt_gift *mine, const char *here, bool product) {
    uint32_t lane = simt_thread.x % 32, i = current->n_exchanges++;
    struct warp *w = &warps[simt_thread.x / 32];

    if (w->n_arrived > 0 && w->here != here)
        simt_fault("at %s, and another lane of the warp at %s", here, w->here);
    w->here = here;
    w->gift[i % 2][lane] = *mine;
    if (++w->n_arrived == 32) {
        w->n_arrived = 0;
        w->n_complete++;
        if (product)
            multiply(w->gift[i % 2], w->product[i % 2]);
    } else {
        current->here = here;
        while (w->n_complete <= i)
            yield();
    }
    return i % 2;
}

const struct simt_gift *simt_exchange(const struct simt_gift *mine, const char *here) {
    return warps[simt_thread.x / 32].gift[meet(mine, here, false)];
}

void simt_sync_warp(const char *here) {
    struct simt_gift none = {};

    simt_exchange(&none, here);
    current->lane.n_warp_syncs++;
}

void simt_mma(const char *here, float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
              uint32_t b0, uint32_t b1) {
    struct simt_gift mine = {};
    const uint32_t given[6] = {a0, a1, a2, a3, b0, b1};

    memcpy(mine.u, given, sizeof(given));
    memcpy(mine.f + 6, c, 16);
    memcpy(c, warps[simt_thread.x / 32].product[meet(&mine, here, true)][simt_thread.x % 32], 16);
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

void simt_put(void *p, size_t n, const void *from) {
    check_aligned(p, n);
    simt_check_access(p, n, SIMT_WRITE, __builtin_return_address(0));
    memcpy(p, from, n);
}

void wait_for_previous() {
    current->lane.waited = true;
}

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

void put_alike(uint32_t *p, uint32_t v) {
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
    }
    current->n_copies -= done;
    memmove(current->copy, current->copy + done, current->n_copies * sizeof(*current->copy));
}

/* -- blocks ------------------------------------------------------------------------------------ */

NO_ASAN static void poison_shared() {
    uint8_t *p = __start_simt_shared;

    for (; p < __stop_simt_shared && (uintptr_t)p % 8; p++)
        *(volatile uint8_t *)p = 0xFF;
    for (; p + 8 <= __stop_simt_shared; p += 8)
        *(volatile uint64_t *)p = UINT64_MAX;
    for (; p < __stop_simt_shared; p++)
        *(volatile uint8_t *)p = 0xFF;
    memset(simt_dynamic, 0xFF, n_dynamic);
}

template <typename T> static void shuffle(T *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = shuffled ? rng_below(&order_rng, i + 1) : i;

        order[i] = order[j];
        order[j] = (T)i;
    }
}

static void release_barrier() {
    const char *here = NULL;

    for (uint32_t i = 0; i < n_threads; i++) {
        if (!fibers[i].at_barrier)
            continue;
        if (here && here != fibers[i].here)
            simt_fault("threads at the barriers of %s and of %s", here, fibers[i].here);
        here = fibers[i].here;
        fibers[i].at_barrier = false;
    }
    n_waiting = 0;
    simt_check_barrier();
}

static uint64_t progress() {
    uint64_t sum = n_alive;

    for (uint32_t i = 0; i < n_threads; i++)
        sum += ((uint64_t)fibers[i].n_exchanges << 12) + (fibers[i].at_barrier ? 0 : 1);
    return sum;
}

static void run_block() {
    uint16_t order[MAX_THREADS];

    shuffle(order, n_threads);
    poison_shared();
    simt_check_block();
    n_alive = n_threads;
    n_waiting = 0;
    memset(warps, 0, sizeof(warps));
    for (uint32_t i = 0; i < n_threads; i++)
        start(&fibers[i]);
    while (n_alive > 0) {
        uint64_t before = progress();
        bool released = false;

        for (uint32_t i = 0; i < n_threads; i++) {
            struct fiber *f = &fibers[order[i]];

            if (f->done || f->at_barrier)
                continue;
            current = f;
            simt_lane = &f->lane;
            simt_thread = {order[i], 0, 0};
            switch_to(&scheduler, f);
        }
        if (n_waiting > 0 && n_waiting == n_alive) {
            release_barrier();
            released = true;
        }
        if (!released && progress() == before) {
            for (uint32_t i = 0; i < n_threads; i++)
                if (!fibers[i].done)
                    simt_fault("threads wait for each other, thread %u at %s", i, fibers[i].here);
        }
    }
    n_blocks++;
}

void simt_launch(const struct simt_kernel *k, struct simt_dim grid, uint32_t shared,
                 const void *args) {
    kernel = k;
    kernel_args = args;
    n_threads = k->n_threads;
    simt_grid = grid;
    n_dynamic = shared;
    simt_check_launch(k->name, args, k->args_size, shared);
    uint32_t n = grid.x * grid.y, *order = (uint32_t *)malloc(n * sizeof(*order));
    if (!order)
        abort();
    shuffle(order, n);
    for (uint32_t i = 0; i < n; i++) {
        simt_block = {order[i] % grid.x, order[i] / grid.x, 0};
        run_block();
    }
    free(order);
    simt_lane = NULL;
}
