/*
 * choose - decides how a product of many rows is computed: by panels of 64 or of 128 rows, and by
 * how many blocks that share the segments of a panel (split-K). Each way has the same bits, so the
 * choice is free, and the device itself is asked instead of a model of it: in the steps before the
 * device serves (cuda_warm()), the first product of a shape and a class of rows is computed in each
 * way and timed, on the weights and the rows of that step, and the fastest way serves as long as
 * the worker lives. A model has about six shapes, and there are seven classes of up to 2048 rows;
 * the trial of the largest product of Qwen3-8B with 2048 rows takes 12 ms on an H100 (computed:
 * eight runs of 1.5 ms).
 *
 * Sums that blocks leave to residual() are added up by the last block where they are timed, which
 * takes longer; so where shared segments win the trial, they win the step.
 *
 * Several devices, WEFT_CUDA_TIMES=0, products by warps with roles (WEFT_CUDA_ROLES=1), and
 * products that no step before the first request had: nothing is timed. Blocks then share segments
 * as long as there are multiprocessors for them.
 */

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"

#define FEWEST 32u /* rows of the first class; the next ones have up to twice as many */
#define MOST 2048u /* rows that are timed */
#define WAYS 7u
#define RUNS 3u /* timed runs of each way, after a warm-up run */
/* A way replaces a simpler one only if it is faster by more than this fraction, which exceeds the
 * difference between two runs of the same way. */
#define MARGIN 0.04f

/* Lists the ways to compute a product in @ways, the simplest first, and returns their number. */
static uint32_t list_ways(const struct be *b, const struct weights *w, const struct operand *x,
                          struct product_way ways[WAYS]) {
    uint32_t most = cuda_can_split(b, w, x->n_rows) ? TILE_SEGMENTS : 1, n = 0;

    if (x->cores && x->n_rows > MATMUL_COLUMNS)
        ways[n++] = (struct product_way){WGMMA_ROWS, 1, false, false};
    for (uint32_t splits = 1; splits <= most; splits *= 2)
        ways[n++] = (struct product_way){MATMUL_COLUMNS, splits, false, false};
    if (most > 1 && x->cores && !x->gates && b->products.join == WAY_ON)
        ways[n++] = (struct product_way){MATMUL_COLUMNS, WGMMA_JOIN, false, true};
    assert(n > 0 && n <= WAYS);
    return n;
}

/* Returns how many blocks share the segments of each of @panels panels, if that is not timed: as
 * many as there are multiprocessors for. */
static uint32_t usual_splits(const struct be *b, const struct weights *w, const struct operand *x,
                             uint32_t panels) {
    uint32_t n = (uint32_t)b->about.device.n_multiprocessors, n_splits = 1;

    if (x->gates || !cuda_can_split(b, w, x->n_rows))
        return 1;
    while (n_splits < TILE_SEGMENTS && 2 * panels * n_splits <= n)
        n_splits *= 2;
    return n_splits;
}

/* Returns the way of products that are not timed. */
static struct product_way usual_way(const struct be *b, const struct weights *w,
                                    const struct operand *x) {
    uint32_t panels = cuda_panels(w, x->n_rows);
    struct product_way way = {MATMUL_COLUMNS, usual_splits(b, w, x, panels), false, false};

    if (x->cores && x->n_rows > MATMUL_COLUMNS &&
        panels > (uint32_t)b->about.device.n_multiprocessors)
        way.block_rows = WGMMA_ROWS;
    return way;
}

/* Returns true if warps with roles compute the product (WEFT_CUDA_ROLES=1). */
static bool has_roles(const struct be *b, const struct weights *w, const struct operand *x) {
    return b->products.roles == WAY_ON && x->cores && cuda_roles_fit(w, x->n_rows);
}

/* Returns the way of such a product. */
static struct product_way roles_way(const struct be *b, const struct weights *w,
                                    const struct operand *x) {
    struct product_way way = {MATMUL_COLUMNS, 1, true, false};

    if (x->n_rows <= WGMMA_ROWS)
        way.n_splits = usual_splits(b, w, x, cuda_roles_panels(w, x->n_rows));
    return way;
}

/* Returns the key of a product: the shape and the class of rows that a choice is made for; its way
 * is not set. */
static struct choice product_key(const struct weights *w, const struct operand *x) {
    struct choice key;

    memset(&key, 0, sizeof(key)); /* keys are compared by their bytes */
    key.n_mats = w->n_mats;
    key.n_in = w->n_in;
    key.cores = x->cores;
    key.gated = x->gates;
    for (key.n_rows = FEWEST; key.n_rows < x->n_rows;)
        key.n_rows *= 2;
    for (uint32_t i = 0; i < w->n_mats; i++) {
        key.m[i].format = w->m[i].format;
        key.m[i].n_out = w->m[i].n_out;
    }
    return key;
}

/* Computes the product once in @way and sets *us to its time in microseconds. Writes other memory
 * before it, so that the L2 cache does not hold the data of the run before. */
static int time_way(struct be *b, const struct weights *w, const struct operand *x,
                    struct product_way way, float *us) {
    const struct cuda_api *api = b->api;
    struct products *p = &b->products;

    TRY(cuda_fill(b, b->attention.partial, 0, b->attention.partial_bytes));
    TRY(cuda_check(b, api->event_record(p->from, b->queue.stream), "cudaEventRecord"));
    TRY(cuda_matmul_wide(b, w, x, false, way));
    TRY(cuda_check(b, api->event_record(p->to, b->queue.stream), "cudaEventRecord"));
    TRY(cuda_wait_event(b, p->to, "timing of products"));
    return cuda_check(b, api->elapsed(p->from, p->to, us), "cudaEventElapsedTime");
}

/* Times the ways in turns and sets *best to the fastest. */
static int time_ways(struct be *b, const struct weights *w, const struct operand *x,
                     const struct product_way *ways, uint32_t n, struct product_way *best) {
    float us[WAYS], least[WAYS];
    uint32_t fastest = 0;

    for (uint32_t run = 0; run <= RUNS; run++)
        for (uint32_t i = 0; i < n; i++) {
            TRY(time_way(b, w, x, ways[i], &us[i]));
            if (run < 2 || us[i] < least[i])
                least[i] = us[i];
        }
    for (uint32_t i = 1; i < n; i++)
        if (least[i] < least[fastest] * (1 - MARGIN))
            fastest = i;
    *best = ways[fastest];
    return 0;
}

/* Times the product alone: without PDL, outside graphs, and without adding to x. */
static int product_try_ways(struct be *b, const struct weights *w, const struct operand *x,
                            bool add, const struct product_way *ways, uint32_t n,
                            struct product_way *best) {
    bool early = b->ways.early, noting = b->graphs.noting;
    struct products *p = &b->products;
    struct operand operand = *x;
    struct weights to = *w;
    int e = 0;

    if (!p->from)
        e = b->api->timer_new(&p->from);
    if (!e && !p->to)
        e = b->api->timer_new(&p->to);
    TRY(cuda_check(b, e, "cudaEventCreate"));
    operand.leaves = false;
    if (add) /* or if a norm follows */
        to.m[0].y = b->act.o;
    b->ways.early = b->graphs.noting = false;
    int r = time_ways(b, &to, &operand, ways, n, best);
    b->ways.early = early;
    b->graphs.noting = noting;
    return r;
}

/* Returns the choice for a product that was timed, or NULL. */
static const struct choice *product_find(const struct products *p, const struct choice *key) {
    for (uint32_t i = 0; i < p->n_choices; i++)
        if (memcmp(&p->choice[i], key, offsetof(struct choice, way)) == 0)
            return &p->choice[i];
    return NULL;
}

uint32_t product_class(uint32_t i) {
    if (i < 32 && FEWEST <= MOST >> i)
        return FEWEST << i;
    return 0;
}

struct product_way product_chosen(const struct be *b, const struct weights *w,
                                  const struct operand *x) {
    const struct products *p = &b->products;
    struct choice key = product_key(w, x);
    const struct choice *c = product_find(p, &key);
    struct product_way ways[WAYS];

    if (has_roles(b, w, x))
        return roles_way(b, w, x);
    if (!p->timed || x->untimed || (!c && !p->timing))
        return usual_way(b, w, x);
    uint32_t n = list_ways(b, w, x, ways);
    if (n == 1 || x->n_rows > MOST || !c)
        return ways[0];
    ways[0] = c->way;
    if (ways[0].block_rows == MATMUL_COLUMNS && !cuda_can_split(b, w, x->n_rows))
        ways[0] = (struct product_way){MATMUL_COLUMNS, 1, false, false}; /* timed with fewer rows */
    return ways[0];
}

int product_choose(struct be *b, const struct weights *w, const struct operand *x, bool add,
                   struct product_way *way) {
    struct choice key = product_key(w, x);
    struct products *p = &b->products;
    struct product_way ways[WAYS];
    uint32_t n = list_ways(b, w, x, ways);
    bool timed = p->timing && !has_roles(b, w, x) && !x->untimed && n > 1 && x->n_rows <= MOST;

    assert(b->group.n == 1 || !p->timed);
    assert(p->timed || !p->timing);
    if (timed && !b->graphs.replaying && !b->fault.lost && p->n_choices < CHOICES &&
        !product_find(p, &key)) {
        TRY(product_try_ways(b, w, x, add, ways, n, &key.way));
        p->choice[p->n_choices++] = key;
    }
    *way = product_chosen(b, w, x);
    return 0;
}
