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

#ifdef __x86_64__
/* simt_switch(save, to): saves the callee's registers and the stack pointer, goes on with another stack. */
extern "C" void simt_switch(void **save, void *to);
asm(".text\n.type simt_switch, @function\nsimt_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size simt_switch, .-simt_switch\n");
#else
#include <ucontext.h>
#endif

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
    uint32_t n_exchanges; /* instructions of the warp that this lane has come to */
};

struct warp {
    struct simt_gift gift[2][32];
    uint32_t n_arrived,
        n_complete; /* lanes at the current instruction; instructions that are through */
};

struct simt_dim simt_thread, simt_block, simt_grid;

static struct fiber fibers[MAX_THREADS];
static struct warp warps[MAX_THREADS / 32];
static struct fiber scheduler, *current;
static const struct simt_kernel *kernel;
static const void *kernel_args;
static uint32_t n_threads, n_waiting, n_alive;
static struct rng order_rng;
static bool shuffled;
static uint64_t n_blocks;

extern uint8_t __start_simt_shared[], __stop_simt_shared[];

void simt_order(uint64_t seed) {
    order_rng.state = seed;
    shuffled = seed != 0;
}

uint64_t simt_blocks(void) {
    return n_blocks;
}

/* -- fibers --------------------------------------------------------------------------------------- */

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
    f->n_exchanges = 0;
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

/* -- what threads wait for ------------------------------------------------------------------------ */

void sync_block() {
    current->at_barrier = true;
    n_waiting++;
    yield();
}

/* Lanes come in any order; the gifts of two instructions are kept, since a lane may be one ahead. */
const struct simt_gift *simt_exchange(const struct simt_gift *mine) {
    uint32_t lane = simt_thread.x % 32, i = current->n_exchanges++;
    struct warp *w = &warps[simt_thread.x / 32];

    w->gift[i % 2][lane] = *mine;
    if (++w->n_arrived == 32) {
        w->n_arrived = 0;
        w->n_complete++;
    } else {
        while (w->n_complete <= i)
            yield();
    }
    return w->gift[i % 2];
}

void mma(float c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    uint32_t lane = simt_thread.x % 32, g = lane / 4, t = lane % 4;
    struct simt_gift mine = {};
    const uint32_t given[6] = {a0, a1, a2, a3, b0, b1};

    memcpy(mine.u, given, sizeof(given));
    const struct simt_gift *all = simt_exchange(&mine);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t column = 2 * t + i % 2;
        double sum = c[i];

        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t *a = all[4 * g + k % 8 / 2].u, *b = all[4 * column + k % 8 / 2].u;
            uint32_t aw = a[i / 2 + k / 8 * 2] >> (16 * (k % 2)),
                     bw = b[4 + k / 8] >> (16 * (k % 2));

            sum += (double)half_to_float((uint16_t)aw) * (double)half_to_float((uint16_t)bw);
        }
        c[i] = (float)sum;
    }
}

/* -- blocks --------------------------------------------------------------------------------------- */

NO_ASAN static void poison_shared() {
    uint8_t *p = __start_simt_shared;

    for (; p < __stop_simt_shared && (uintptr_t)p % 8; p++)
        *(volatile uint8_t *)p = 0xFF;
    for (; p + 8 <= __stop_simt_shared; p += 8)
        *(volatile uint64_t *)p = UINT64_MAX;
    for (; p < __stop_simt_shared; p++)
        *(volatile uint8_t *)p = 0xFF;
}

static void shuffle(uint16_t *order) {
    for (uint32_t i = 0; i < n_threads; i++) {
        uint32_t j = shuffled ? rng_below(&order_rng, i + 1) : i;

        order[i] = order[j];
        order[j] = (uint16_t)i;
    }
}

static void release_barrier() {
    if (n_waiting == 0 || n_waiting < n_alive)
        return;
    for (uint32_t i = 0; i < n_threads; i++)
        fibers[i].at_barrier = false;
    n_waiting = 0;
}

static uint64_t progress() {
    uint64_t sum = n_alive;

    for (uint32_t i = 0; i < n_threads; i++)
        sum += ((uint64_t)fibers[i].n_exchanges << 12) + (fibers[i].at_barrier ? 0 : 1);
    return sum;
}

static void run_block() {
    uint16_t order[MAX_THREADS];

    shuffle(order);
    poison_shared();
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
            simt_thread = {order[i], 0, 0};
            switch_to(&scheduler, f);
        }
        if (n_waiting > 0 && n_waiting == n_alive) {
            release_barrier();
            released = true;
        }
        if (!released && progress() == before) {
            fprintf(stderr, "simt: threads of %s wait for each other\n", kernel->name);
            abort();
        }
    }
    n_blocks++;
}

void simt_launch(const struct simt_kernel *k, struct simt_dim grid, const void *args) {
    kernel = k;
    kernel_args = args;
    n_threads = k->n_threads;
    simt_grid = grid;
    for (uint32_t y = 0; y < grid.y; y++)
        for (uint32_t x = 0; x < grid.x; x++) {
            simt_block = {x, y, 0};
            run_block();
        }
}
