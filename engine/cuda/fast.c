/*
 * fast - determinism = fast: layers' matrices times more than FAST_ROWS rows are left to cuBLASLt,
 * which reaches more of the tensor cores than mma does. For that it needs the weights a second
 * time, in half precision: as many matrices as fit into what is free after all else, in the order
 * in which they are loaded. Decoding stays as it is.
 *
 * Weights are rounded once to half precision, as the strict recipe does with those that have no
 * scale; activations are the packed ones of the strict kernels, laid out row by row at a common
 * power of two (fast.cu). So the same request may get other last bits, and another token, with
 * other rows in the step or another chunk; within 2e-3 as all the rest.
 *
 * What the library has nothing for is done by the strict kernels, matrix by matrix: its refusal
 * comes before it has done anything. Algorithms are chosen when a matrix is loaded, for sizes of
 * steps half an octave apart. Steps of so many rows are no graphs.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESERVE_BYTES                                                                              \
    ((size_t)512 << 20) /* for the library's kernels, which come when they are needed */

static double gib(uint64_t bytes) {
    return (double)bytes / 0x1p30;
}

/* "strict: " and why, where fast was asked for. */
__attribute__((format(printf, 2, 3))) static void stay_strict(struct fast *f, const char *format,
                                                              ...) {
    va_list list;
    int n =
        snprintf(f->recipe, sizeof(f->recipe), "strict: determinism = fast was asked for, but ");

    va_start(list, format);
    vsnprintf(f->recipe + n, sizeof(f->recipe) - (size_t)n, format, list);
    va_end(list);
    f->on = false;
}

static size_t copy_bytes(uint64_t n_out, uint64_t n_in) {
    return round_up(n_out * round_up(n_in, 64) * sizeof(uint16_t), 512);
}

/* Whether a tensor's matrix is one of a layer. */
static bool is_layer_matrix(const struct tensor *t) {
    return t->n_dims == 2 && strncmp(t->name, "blk.", 4) == 0;
}

static void choose_sizes(struct fast *f, uint32_t max_rows) {
    for (uint32_t octave = 128; f->n_sizes < FAST_SIZES - 1; octave *= 2)
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t size = octave + half * octave / 2;

            if (size <= f->above)
                continue;
            f->size[f->n_sizes++] = MIN(size, max_rows);
            if (size >= max_rows)
                return;
        }
}

/* The library comes first: what it takes for itself is then no longer free. */
void fast_open(struct be *b) {
    struct fast *f = &b->fast;
    const char *said = getenv("WEFT_CUDA_FAST_ROWS");

    snprintf(f->recipe, sizeof(f->recipe), "strict");
    f->above = said ? (uint32_t)MAX(atoi(said), 16) : FAST_ROWS;
    if (!b->opts->fast)
        return;
    f->api = fast_api();
    if (b->opts->max_rows <= f->above)
        stay_strict(f, "no step has more than %u rows", f->above);
    else if (f->api->open(&f->library, f->why, sizeof(f->why)))
        stay_strict(f, "%s", f->why);
    else
        f->on = true;
    choose_sizes(f, b->opts->max_rows);
}

uint64_t fast_wants(const struct be *b) {
    uint64_t sum = RESERVE_BYTES + FAST_WORKSPACE;

    for (uint64_t i = 0; i < gguf_n_tensors(b->opts->file); i++) {
        const struct tensor *t = gguf_tensor(b->opts->file, i);

        sum += is_layer_matrix(t) ? copy_bytes(t->ne[1], t->ne[0]) : 0;
    }
    return sum;
}

#define SCALARS_BYTES 256u

/* Whole matrices are copied, in the order of loading, as far as @n_free goes; with none the
 * recipe stays strict. */
void fast_fit(struct be *b, uint64_t n_free, size_t widest) {
    struct fast *f = &b->fast;

    f->x_bytes = round_up(b->opts->max_rows * widest * sizeof(uint16_t), 256);
    uint64_t besides = f->x_bytes + SCALARS_BYTES + FAST_WORKSPACE + RESERVE_BYTES;
    for (uint64_t i = 0; i < gguf_n_tensors(b->opts->file); i++) {
        const struct tensor *t = gguf_tensor(b->opts->file, i);

        if (!is_layer_matrix(t))
            continue;
        f->wanted += copy_bytes(t->ne[1], t->ne[0]);
        f->n_matrices++;
    }
    uint64_t room = n_free > besides ? n_free - besides : 0;
    f->bytes = MIN(room / 512 * 512, f->wanted);
    if (f->bytes == 0)
        stay_strict(
            f,
            "%.2f GiB of weights in half precision, buffers and reserve of %.2f do not fit into "
            "the %.2f GiB that weights, KV pages and buffers leave",
            gib(f->wanted), gib(besides), gib(n_free));
}

/* One allocation. A device that has no room for it after all is none that is lost. */
int fast_start(struct be *b) {
    static const float scalars[3] = {0, 0, 1};
    struct fast *f = &b->fast;
    void *d;

    if (!f->on)
        return 0;
    int e = b->api->alloc(&d, f->x_bytes + SCALARS_BYTES + FAST_WORKSPACE + f->bytes);
    if (e) {
        stay_strict(f, "%.2f GiB: %s", gib(f->bytes), b->api->text(e));
        return 0;
    }
    f->memory = d;
    f->copies = f->memory; /* multiples of 512 */
    f->x = (uint16_t *)(void *)(f->copies + f->bytes);
    f->workspace = f->copies + f->bytes + f->x_bytes;
    f->scalars = (float *)(void *)((uint8_t *)f->workspace + FAST_WORKSPACE);
    return cuda_check(b,
                      b->api->copy(f->scalars, scalars, sizeof(scalars), CUDA_TO_DEVICE, b->stream),
                      "cudaMemcpyAsync");
}

void fast_close(struct be *b) {
    struct fast *f = &b->fast;

    if (f->memory)
        b->api->release(f->memory);
    f->memory = NULL;
    if (!f->library)
        return;
    for (uint32_t i = 0; i < f->n_shapes; i++)
        for (uint32_t k = 0; k < f->n_sizes; k++)
            if (f->plans[i].plan[k])
                f->api->plan_free(f->library, f->plans[i].plan[k]);
    f->api->close(f->library);
    f->library = NULL;
}

/* -- weights ----------------------------------------------------------------------------------- */

/* Which plans are of this shape; made when it comes for the first time. FAST_SHAPES: no room, or
 * none of its sizes has an algorithm. */
static uint32_t plans_of(struct fast *f, const struct fast_shape *s) {
    uint32_t i = 0, n_found = 0;

    while (i < f->n_shapes && memcmp(&f->plans[i].shape, s, sizeof(*s)) != 0)
        i++;
    if (i == FAST_SHAPES)
        return i;
    if (i == f->n_shapes) {
        f->plans[f->n_shapes++].shape = *s;
        for (uint32_t k = 0; k < f->n_sizes; k++)
            if (f->api->plan(f->library, s, f->size[k], &f->plans[i].plan[k]))
                f->plans[i].plan[k] = NULL;
    }
    for (uint32_t k = 0; k < f->n_sizes; k++)
        n_found += f->plans[i].plan[k] != NULL;
    return n_found ? i : FAST_SHAPES;
}

/* Decodes a matrix from its tiles to half precision, row by row. */
static int copy_matrix(struct be *b, struct weights *w, uint32_t i) {
    struct fast *f = &b->fast;
    const struct matrix *m = &w->m[i];
    struct fast_copy_args a = {
        .tiles = m->tiles,
        .copy = (uint16_t *)(void *)(f->copies + f->used),
        .format = m->format,
        .n_units = m->n_units,
        .n_out = m->n_out,
        .n_padded = (uint32_t)round_up(w->n_in, 64),
    };
    struct launch l = {kernel_fast_copy, m->n_units, m->n_row_tiles, CUDA_THREADS, "fast_copy", 0};

    w->copy[i] = a.copy;
    f->used += copy_bytes(m->n_out, w->n_in);
    assert(f->used <= f->bytes && (uintptr_t)a.copy % 512 == (uintptr_t)f->copies % 512);
    f->n_copied++;
    return cuda_launch(b, &l, &a, sizeof(a));
}

/* A matrix that the library has no algorithm for, or that finds no room, stays with the strict
 * kernels. */
int fast_load(struct be *b, struct weights *w, enum op_kind kind) {
    struct fast *f = &b->fast;
    int r = 0;

    if (!f->on || kind == OP_EMBED || kind == OP_EXPERTS || kind == OP_LOGITS)
        return 0;
    for (uint32_t i = 0; i < w->n_mats && r == 0; i++) {
        struct fast_shape s;

        memset(&s, 0, sizeof(s)); /* with what lies between its members */
        s.n_out = w->m[i].n_out;
        s.n_in = (uint32_t)round_up(w->n_in, 64);
        s.bias = w->m[i].bias != NULL;
        w->plans[i] = (uint8_t)plans_of(f, &s);
        if (w->plans[i] < FAST_SHAPES && w->m[i].n_row_tiles <= 65535 &&
            copy_bytes(s.n_out, s.n_in) <= f->bytes - f->used)
            r = copy_matrix(b, w, i);
    }
    return r;
}

const char *fast_recipe(struct be *b) {
    struct fast *f = &b->fast;

    if (f->on)
        snprintf(f->recipe, sizeof(f->recipe),
                 "fast: steps of more than %u rows use %s for %u of %u matrices (%.2f of %.2f GiB "
                 "in half precision)",
                 f->above, f->why, f->n_copied, f->n_matrices, gib(f->used), gib(f->wanted));
    return f->recipe;
}

/* -- products ---------------------------------------------------------------------------------- */

static void *plan_for(const struct fast *f, const struct weights *w, uint32_t i, uint32_t n_rows) {
    uint32_t k = 0;

    while (k < f->n_sizes && f->size[k] < n_rows)
        k++;
    return w->copy[i] && k < f->n_sizes ? f->plans[w->plans[i]].plan[k] : NULL;
}

/* The packed activations row by row at a common power of two, as the library takes them. */
static int lay_out(struct be *b, const struct operand *x, uint32_t n_padded) {
    struct fast *f = &b->fast;

    assert((size_t)x->n_rows * n_padded * sizeof(*f->x) <= f->x_bytes);
    struct fast_rows_args a = {
        .packed = x->packed,
        .scale = x->scale,
        .x = f->x,
        .alpha = f->scalars,
        .n_rows = x->n_rows,
        .n_padded = n_padded,
    };
    uint32_t groups = (x->n_rows + PACK_ROWS - 1) / PACK_ROWS;
    uint32_t parts = (4 * (uint32_t)b->device.n_multiprocessors + groups - 1) / groups;
    struct launch l = {kernel_fast_rows, groups,      MIN(parts, (n_padded + 255) / 256),
                       CUDA_THREADS,     "fast_rows", 0};

    return cuda_launch(b, &l, &a, sizeof(a));
}

/* 0, FAST_REFUSED (nothing was done) or -EIO. */
static int multiply(struct be *b, const struct weights *w, uint32_t i, const struct operand *x,
                    bool add) {
    struct fast *f = &b->fast;
    void *plan = plan_for(f, w, i, x->n_rows);
    struct fast_product p = {
        .shape = {w->m[i].n_out, (uint32_t)round_up(w->n_in, 64), w->m[i].bias != NULL},
        .n_rows = x->n_rows,
        .w = w->copy[i],
        .x = f->x,
        .bias = w->m[i].bias,
        .alpha = f->scalars,
        .beta = f->scalars + (add ? 2 : 1),
        .y = w->m[i].y,
        .workspace = f->workspace,
    };
    int e = plan ? f->api->multiply(f->library, plan, &p, b->stream) : FAST_REFUSED;

    if (e == 0 || e == FAST_REFUSED)
        return e;
    if (!b->lost)
        snprintf(b->error, sizeof(b->error), "cublasLtMatmul: error %d", e);
    b->lost = true;
    return -EIO;
}

static int multiply_strictly(struct be *b, const struct weights *w, const struct operand *x,
                             bool add) {
    return (m128_is_better(b, w, x->n_rows) ? m128_matmul : cuda_matmul_strict)(b, w, x, add);
}

/* Matrices that the library does not take are left to the kernels. */
int cuda_matmul(struct be *b, const struct weights *w, const struct operand *x, bool add) {
    bool any = false;
    struct weights rest = *w;

    for (uint32_t i = 0; i < w->n_mats; i++)
        any = any || w->copy[i];
    if (!b->fast.on || !any || x->n_rows <= b->fast.above)
        return multiply_strictly(b, w, x, add);
    if (lay_out(b, x, (uint32_t)round_up(w->n_in, 64)) < 0)
        return -EIO;
    rest.n_mats = 0;
    for (uint32_t i = 0; i < w->n_mats; i++) {
        int r = multiply(b, w, i, x, add);

        if (r == -EIO)
            return r;
        if (r == FAST_REFUSED)
            rest.m[rest.n_mats++] = w->m[i];
    }
    return rest.n_mats ? multiply_strictly(b, &rest, x, add) : 0;
}
