/*
 * selftest - tests the kernels on a device before their first step (docs/design/cuda-step.md):
 * products of a few rows of one of the model's matrices of each type with made-up activations, in
 * each way that products are computed (struct way); and what families of ops test
 * (op_family.check). A wrong way is not used, and be.about.note says so, if a plainer one does the
 * same work. Otherwise the device is refused.
 */

#include "engine/cuda/selftest.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/formats/blocks.h"
#include "engine/formats/quant.h"

#define ROWS 72u /* rows of activations: two blocks of matmul_wide; matvec gets a part of them */
#define OWN 24u  /* different rows; the others repeat them */
#define OUT 32u  /* rows of the matrix */
#define COLUMNS 2048u
#define TYPES 64u
#define FEW_ITEMS ((ROWS + EXPERT_ROWS - 1) / EXPERT_ROWS)
/* Panels of matmul_wide, and items of expert_wide. */
#define PANELS ((ROWS + MATMUL_COLUMNS - 1) / MATMUL_COLUMNS)

/* Allocator of the loading buffers on device and host, which are not yet in use. */
struct bench {
    struct be *b;
    size_t used;
};

/* Memory of the same size on the host and on the device. */
struct piece {
    void *host, *device;
    size_t bytes;
};

/* Returns the next @bytes of the loading buffers, which have room for all pieces (LOAD_BYTES). */
static struct piece selftest_alloc(struct bench *t, size_t bytes) {
    struct piece p = {t->b->load.buffer[0].host + t->used, t->b->load.buffer[0].device + t->used,
                      bytes};

    t->used += round_up(bytes, 256);
    assert(t->used <= t->b->load.bytes);
    return p;
}

/* Copies a piece from the host to the device. */
static int selftest_send_piece(struct be *b, const struct piece *p) {
    return cuda_copy(b, p->device, p->host, p->bytes, CUDA_TO_DEVICE);
}

int selftest_send(struct be *b, const float *from, float *to, size_t n) {
    if (n == 0)
        return 0;
    return cuda_copy(b, to, from, n * sizeof(*from), CUDA_TO_DEVICE);
}

int selftest_fetch(struct be *b, void *to, const void *from, size_t bytes) {
    TRY(cuda_copy(b, to, from, bytes, CUDA_TO_HOST));
    return cuda_check(b, b->api->stream_wait(b->queue.stream), "the first kernels");
}

void selftest_fill(float *x, size_t n, uint64_t seed) {
    struct rng rng = {seed};

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rng_unit(&rng) + rng_unit(&rng) + rng_unit(&rng) - 1.5);
}

int selftest_begin(struct be *b, struct selftest_step *t, uint32_t pos0, uint32_t n, bool apart,
                   struct step **s) {
    static const int32_t token[SELFTEST_KEYS];
    uint32_t tokens = b->opts->page_tokens, n_seqs = apart ? n : 1, n_tables = 0;

    assert(n <= SELFTEST_KEYS && n <= b->opts->max_rows && n_seqs <= b->opts->max_seqs);
    for (uint32_t i = 0; i < n_seqs; i++) {
        uint32_t end = apart ? pos0 + i + 1 : pos0 + n;

        t->seq[i] = (struct engine_seq){
            .row0 = i, .n_rows = apart ? 1 : n, .pos0 = apart ? pos0 + i : pos0, .feed = -1};
        t->start[i] = n_tables;
        for (uint32_t k = 0; k * tokens < end; k++)
            t->page[n_tables++] = k;
    }
    t->start[n_seqs] = n_tables;
    t->batch = (struct engine_batch){.n_rows = n,
                                     .n_seqs = n_seqs,
                                     .token = token,
                                     .seq = t->seq,
                                     .table[KV_GLOBAL] = {t->start, t->page},
                                     .table[KV_WINDOW] = {t->start, t->page}};
    return step_begin(b, &t->batch, s);
}

void selftest_end(struct be *b) {
    b->step[0].batch = NULL;
}

/* -- matrices ---------------------------------------------------------------------------------- */

/* A product of ROWS rows with the first rows and columns of a tensor of the model. */
struct product {
    const struct tensor *tensor;
    uint32_t n_out, n_in, n_padded;
    struct weights w;
    struct piece raw, x, packed, cores, scale, y, picks;
};

/* Work lists that make all rows pairs of expert 0, with small and with large items. */
struct picks {
    uint32_t n_few, n_many, list[ROWS];
    struct expert_item few[FEW_ITEMS], many[PANELS];
};

/* Returns lists in which every row has picked expert 0. */
static struct picks all_rows(void) {
    struct picks p = {.n_few = FEW_ITEMS, .n_many = PANELS};

    for (uint32_t i = 0; i < ROWS; i++)
        p.list[i] = i * ROUTE_PICKS;
    for (uint32_t i = 0; i < FEW_ITEMS; i++)
        p.few[i] =
            (struct expert_item){0, i * EXPERT_ROWS, MIN(ROWS - i * EXPERT_ROWS, EXPERT_ROWS)};
    for (uint32_t i = 0; i < PANELS; i++)
        p.many[i] = (struct expert_item){0, i * MATMUL_COLUMNS,
                                         MIN(ROWS - i * MATMUL_COLUMNS, MATMUL_COLUMNS)};
    return p;
}

/* Prepares the product of the first rows and columns of a tensor. */
static void selftest_lay_out(struct bench *t, struct product *p, const struct tensor *tensor) {
    const struct tensor_format *f = tensor->format;

    p->tensor = tensor;
    p->n_out = (uint32_t)MIN(tensor->ne[1], OUT);
    p->n_in = (uint32_t)MIN(tensor->ne[0], COLUMNS);
    p->n_padded = (uint32_t)round_up(p->n_in, 64);
    assert(p->n_in % f->block == 0);
    size_t row = (size_t)(p->n_in / f->block) * f->block_bytes;
    p->raw = selftest_alloc(t, p->n_out * row);
    p->x = selftest_alloc(t, (size_t)OWN * p->n_in * sizeof(float));
    p->packed =
        selftest_alloc(t, (size_t)ROWS * p->n_padded * t->b->products.planes * sizeof(uint16_t));
    p->cores = selftest_alloc(t, (size_t)WGMMA_ROWS * p->n_padded * sizeof(uint16_t));
    p->scale = selftest_alloc(t, ROWS * sizeof(float));
    p->y = selftest_alloc(t, (size_t)ROWS * p->n_out * sizeof(float));
    p->picks = selftest_alloc(t, sizeof(struct picks));
    *(struct picks *)p->picks.host = all_rows();
    for (uint32_t r = 0; r < p->n_out; r++) {
        uint8_t *to = (uint8_t *)p->raw.host + r * row;
        const uint8_t *from = tensor_blocks(tensor, r, 0, p->n_in / f->block, to);

        if (from != to)
            memcpy(to, from, row);
    }
    selftest_fill(p->x.host, (size_t)OWN * p->n_in, 1 + (uint64_t)f->type);

    struct matrix *m = &p->w.m[0];
    p->w.n_mats = 1;
    p->w.n_in = p->n_in;
    m->format = load_tile_format(tensor);
    m->n_out = p->n_out;
    m->grid = tile_grid_of(f->type, t->b->load.tile_grids);
    matrix_cut(m, p->n_in);
    m->tiles = selftest_alloc(t, tile_matrix_bytes(m->format, p->n_out, p->n_in)).device;
    m->inverse = 1;
    m->y = p->y.device;
}

/* Repeats OWN packed rows for the other rows: in each part of @part bytes, a row has @row bytes. */
static int selftest_repeat(struct be *b, const struct piece *p, size_t part, size_t row) {
    TRY(selftest_fetch(b, p->host, p->device, p->bytes));
    for (uint8_t *at = p->host; at < (uint8_t *)p->host + p->bytes; at += part)
        for (size_t i = OWN * row; i < ROWS * row; i += OWN * row)
            memcpy(at + i, at, OWN * row);
    return selftest_send_piece(b, p);
}

/* Copies the part of the matrix and the rows to the device; computes tiles and packed rows. */
static int selftest_prepare(struct be *b, struct product *p) {
    const struct tensor_format *f = p->tensor->format;
    struct repack_args repack = {
        .source = {p->raw.device, b->load.grids, p->raw.bytes / p->n_out, (uint32_t)f->type,
                   f->block, f->block_bytes, p->n_out, p->n_in},
        .tiles = (uint8_t *)p->w.m[0].tiles,
        .format = p->w.m[0].format,
        .n_units = p->w.m[0].n_units,
        .found = b->load.found,
    };
    struct pack_args pack = {.x = p->x.device,
                             .up = p->x.device,
                             .scale = p->scale.device,
                             .kind = PACK_PLAIN,
                             .n = p->n_in,
                             .n_padded = p->n_padded};

    TRY(cuda_fill(b, b->load.found, 0, sizeof(*b->load.found)));
    TRY(selftest_send_piece(b, &p->raw));
    TRY(selftest_send_piece(b, &p->x));
    TRY(selftest_send_piece(b, &p->picks));
    TRY(CUDA_LAUNCH(b, repack, p->w.m[0].n_units, p->w.m[0].n_row_tiles, CUDA_THREADS, &repack));
    for (uint32_t cores = 0; cores <= (b->products.wgmma == WAY_ON); cores++) {
        const struct piece *to = cores ? &p->cores : &p->packed;

        pack.packed = to->device;
        pack.cores = cores;
        TRY(CUDA_LAUNCH(b, pack, OWN, 1, PACK_THREADS, &pack));
        size_t part = cores ? WGMMA_SLICE_BYTES(WGMMA_ROWS) : to->bytes;
        size_t row = cores ? 64 * sizeof(uint16_t) : to->bytes / ROWS;
        TRY(selftest_repeat(b, to, part, row));
    }
    TRY(selftest_repeat(b, &p->scale, p->scale.bytes, sizeof(float)));
    TRY(selftest_fetch(b, b->load.found_host, b->load.found, sizeof(*b->load.found)));
    return cuda_scale_tiles(b, &p->w.m[0], p->w.m[0].n_row_tiles,
                            mx_float_of((uint32_t)b->load.found_host->most));
}

struct way;
typedef int (*multiply)(struct be *b, const struct product *p, const struct operand *x,
                        const struct way *w);

/* A way to compute a product. */
struct way {
    /* named in be.about.note if it is wrong */
    const char *name;
    multiply multiply;
    /* place of its enum way_state in struct be */
    size_t state;
    /* rows of activations; rows of a panel; split-K */
    uint32_t n_rows, block_rows, n_splits;
    /* pack_args.cores; for tensors of experts; warps with roles */
    bool cores, expert, roles;
};

static int by_matvec(struct be *b, const struct product *p, const struct operand *x,
                     const struct way *w) {
    struct matmul_args a = cuda_matmul_args(&p->w, x, false);

    return cuda_matvec(b, &a, NULL);
}

/* Multiplies by clusters; it is not used for products that they do not take. */
static int by_cluster(struct be *b, const struct product *p, const struct operand *x,
                      const struct way *w) {
    struct matmul_args a = cuda_matmul_args(&p->w, x, false);

    if (!cuda_cluster_fits(b, &a))
        return cuda_matvec(b, &a, NULL);
    return cuda_matvec_cluster(b, &a);
}

/* Multiplies rows that the product packs; it is not used for rows that it has no room for. */
static int by_norm(struct be *b, const struct product *p, const struct operand *x,
                   const struct way *w) {
    struct matmul_args a = cuda_matmul_args(&p->w, x, false);
    struct pack_args norm = {
        .x = p->x.device, .kind = PACK_PLAIN, .n = p->n_in, .n_padded = p->n_padded};

    return cuda_matvec(b, &a, cuda_matvec_packs(w->n_rows, &norm) ? &norm : NULL);
}

static int by_wide(struct be *b, const struct product *p, const struct operand *x,
                   const struct way *w) {
    const struct product_way way = {w->block_rows, w->n_splits, w->roles, false};

    return cuda_matmul_wide(b, &p->w, x, false, way);
}

/* Multiplies by clusters that share the segments. */
static int by_join(struct be *b, const struct product *p, const struct operand *x,
                   const struct way *w) {
    const struct product_way way = {w->block_rows, w->n_splits, false, true};

    return cuda_matmul_wide(b, &p->w, x, false, way);
}

/* Multiplies all rows as pairs of one expert. */
static int by_expert(struct be *b, const struct product *p, const struct operand *x,
                     const struct way *w) {
    const struct picks *on = p->picks.device;
    bool few = w->block_rows == EXPERT_ROWS;
    struct expert_args a = {
        .m = {p->w.m[0]},
        .x = x->packed,
        .scale = x->scale,
        .n_mats = 1,
        .n_blocks = p->n_padded / 16,
        .n_used = 1,
        .n_experts = b->shape->n_expert,
        .by_pair = true,
        .item = few ? on->few : on->many,
        .n_items = few ? &on->n_few : &on->n_many,
        .list = on->list,
        .stride = ROWS,
    };

    return experts_product(b, &a, few, few ? FEW_ITEMS : PANELS);
}

#define STATE(field) offsetof(struct be, field)

/* Ways to compute a product. The result of the first must be right; the others must have its
 * bits. */
static const struct way ways[] = {
    {"matmul_wide", by_wide, 0, ROWS, 64, 1, false, false, false},
    /* before matvec, which is computed like this as long as it is right */
    {"dry runs", by_matvec, STATE(products.dry), 1, 0, 1, false, false, false},
    {"dry runs", by_matvec, STATE(products.dry), MATVEC_ROWS, 0, 1, false, false, false},
    {"matvec", by_matvec, STATE(products.matvec), 1, 0, 1, false, false, false},
    {"matvec", by_matvec, STATE(products.matvec), PACK_ROWS, 0, 1, false, false, false},
    {"matvec", by_matvec, STATE(products.matvec), MATVEC_ROWS, 0, 1, false, false, false},
    {"matvec_norm", by_norm, STATE(ways.prologue), 1, 0, 1, false, false, false},
    {"matvec_norm", by_norm, STATE(ways.prologue), 2, 0, 1, false, false, false},
    {"matvec_cluster", by_cluster, STATE(products.cluster), 3, 0, 1, false, false, false},
    {"matvec_cluster", by_cluster, STATE(products.cluster), MATVEC_ROWS, 0, 1, false, false, false},
    {"shared segments", by_wide, STATE(products.split), ROWS, 64, 4, false, false, false},
    {"matmul_wgmma", by_wide, STATE(products.wgmma), ROWS, 128, 1, true, false, false},
    {"matmul_wgmma", by_wide, STATE(products.wgmma), ROWS, 64, 1, true, false, false},
    {"shared segments", by_wide, STATE(products.split), ROWS, 64, 4, true, false, false},
    {"matmul_wgmma_join", by_join, STATE(products.join), ROWS, 64, WGMMA_JOIN, true, false, false},
    {"expert_vec", by_expert, STATE(experts.vec), ROWS, EXPERT_ROWS, 1, false, true, false},
    {"expert_wide", by_expert, STATE(experts.wide), ROWS, 64, 1, false, true, false},
    {"matmul_roles", by_wide, STATE(products.roles), 24, 64, 1, true, false, true},
    {"matmul_roles", by_wide, STATE(products.roles), 31, 64, 1, true, false, true},
    {"matmul_roles", by_wide, STATE(products.roles), 48, 64, 4, true, false, true},
    {"matmul_roles", by_wide, STATE(products.roles), 64, 64, 1, true, false, true},
    {"matmul_roles", by_wide, STATE(products.roles), ROWS, 64, 4, true, false, true},
    {"matmul_roles", by_wide, STATE(products.roles), ROWS, 128, 1, true, false, true},
};

#define WAYS ARRAY_SIZE(ways)

static enum way_state *state_of(struct be *b, const struct way *w) {
    return (enum way_state *)(void *)((uint8_t *)b + w->state);
}

/* Returns true if steps use the way and the product fulfils its conditions. */
static bool is_used(struct be *b, const struct product *p, const struct way *w) {
    bool fits = (!w->expert || p->tensor->n_dims == 3) &&
                (!w->cores || b->products.wgmma == WAY_ON) &&
                (!w->roles || cuda_roles_fit(&p->w, w->n_rows)) &&
                (w->n_splits == 1 || cuda_can_split(b, &p->w, ROWS));

    return w == ways || (fits && *state_of(b, w) == WAY_ON);
}

/* Computes y of the way's rows. */
static int multiply_by(struct be *b, const struct product *p, const struct way *w, float *y) {
    const struct operand x = {.packed = w->cores ? p->cores.device : p->packed.device,
                              .scale = p->scale.device,
                              .n_rows = w->n_rows,
                              .cores = w->cores};
    size_t bytes = (size_t)x.n_rows * p->n_out * sizeof(float);

    assert(bytes <= p->y.bytes);
    /* y is filled with NaN first, so that a result of an earlier kernel cannot pass */
    TRY(cuda_fill(b, p->y.device, 0xFF, p->y.bytes));
    TRY(w->multiply(b, p, &x, w));
    TRY(selftest_fetch(b, p->y.host, p->y.device, bytes));
    memcpy(y, p->y.host, bytes);
    return 0;
}

/* Returns the relative error |y - W x| / |W x| of the different rows, in double precision. */
static double selftest_error(const struct product *p, const float *y) {
    const struct tensor_format *f = p->tensor->format;
    size_t row_bytes = p->raw.bytes / p->n_out;
    double d = 0, norm = 0, sum[OWN];

    for (uint32_t o = 0; o < p->n_out; o++) {
        const uint8_t *row = (const uint8_t *)p->raw.host + o * row_bytes;

        memset(sum, 0, sizeof(sum));
        for (uint32_t k = 0; k < p->n_in; k++) {
            double v = (double)blk_value((uint32_t)f->type, row + k / f->block * f->block_bytes,
                                         k % f->block, &quant_grids);

            for (uint32_t r = 0; r < OWN; r++)
                sum[r] += v * (double)((const float *)p->x.host)[(size_t)r * p->n_in + k];
        }
        for (uint32_t r = 0; r < OWN; r++) {
            d += pow(sum[r] - (double)y[(size_t)r * p->n_out + o], 2);
            norm += sum[r] * sum[r];
        }
    }
    if (d == 0)
        return 0;
    return sqrt(d / norm);
}

/* Returns true if the rows of @y have the bits of @wide, the result of matmul_wide; row r must
 * equal row r % OWN. */
static bool same_bits(const struct product *p, const float *y, const float *wide, uint32_t n_rows) {
    bool same = true;

    for (uint32_t r = 0; r < n_rows; r++)
        same =
            same && memcmp(y + r * p->n_out, wide + r % OWN * p->n_out, p->n_out * sizeof(*y)) == 0;
    return same;
}

int selftest_refuse(const struct be *b, struct err *err, const char *format, ...) {
    char what[160];
    va_list list;

    va_start(list, format);
    vsnprintf(what, sizeof(what), format, list);
    va_end(list);
    return err_set(err, 0, NULL,
                   "%s (%s) computes wrong results: %s; use --backend cpu and report this",
                   b->about.device.name, b->about.isa, what);
}

int selftest_disable(struct be *b, const char *what, const char *why) {
    note_add(b->about.note, sizeof(b->about.note), "; ", "without %s: %s", what, why);
    return cuda_clear_arrived(b);
}

/* Returns the largest error that products of the type may have. */
static double selftest_limit(const struct be *b, const struct tensor *t) {
    enum tile_format f = load_tile_format(t);

    if (b->products.planes == 2 && BYTES_FORMAT(f))
        return SELFTEST_LIMIT_BYTES;
    return SELFTEST_LIMIT;
}

/* Tests products of one tensor in every way. The first must be near the exact product, the others
 * must have its bits. */
static int try_type(struct be *b, const struct tensor *tensor, struct err *err) {
    float y[WAYS][ROWS * OUT];
    struct bench t = {b, 0};
    struct product p = {0};
    char what[80];

    selftest_lay_out(&t, &p, tensor);
    int r = selftest_prepare(b, &p);
    if (r < 0 || b->load.found_host->bad) /* load.c refuses the tensor by its name */
        return r;
    for (size_t i = 0; i < WAYS && r == 0; i++)
        if (is_used(b, &p, &ways[i]))
            r = multiply_by(b, &p, &ways[i], y[i]);
    if (r < 0)
        return r;
    double error = selftest_error(&p, y[0]), limit = selftest_limit(b, tensor);
    snprintf(what, sizeof(what), "matmul_wide of %s", tensor->format->name);
    if (!(error <= limit))
        return selftest_refuse(b, err, SELFTEST_OFF, what, error, limit);
    if (!same_bits(&p, y[0], y[0], ROWS))
        return selftest_refuse(b, err, "%s gives equal rows other bits", what);
    for (size_t i = 1; i < WAYS && r == 0; i++) {
        const struct way *w = &ways[i];

        if (!is_used(b, &p, w) || same_bits(&p, y[i], y[0], w->n_rows))
            continue;
        snprintf(what, sizeof(what), "other bits than matmul_wide for %s and %u rows",
                 tensor->format->name, w->n_rows);
        r = selftest_disable(b, w->name, what);
        *state_of(b, w) = WAY_FAILED;
    }
    if (r == 0 && b->experts.vec != WAY_ON && b->experts.wide != WAY_ON)
        return selftest_refuse(b, err, "experts of %s", tensor->format->name);
    return r;
}

/* -- families of ops --------------------------------------------------------------------------- */

const struct model_op *selftest_next(const struct be *b, enum op_kind kind,
                                     const struct model_op *after) {
    const struct model_op *first = b->shape->op, *end = first + b->shape->n_ops;

    for (const struct model_op *op = after ? after + 1 : first; op < end; op++)
        if (op->kind == kind && op->layer >= b->group.layers.first &&
            op->layer < b->group.layers.end)
            return op;
    return NULL;
}

int selftest_try(struct be *b, const struct model_op *op,
                 int (*try)(struct selftest_op *t, struct err *err), struct err *err) {
    uint32_t page[SELFTEST_ROWS]; /* an entry for each row, or fewer */
    struct selftest_op t = {
        .b = b, .of = op, .step.page = page, .n_rows = MIN(SELFTEST_ROWS, b->opts->max_rows)};
    int r = try(&t, err);

    free(t.all);
    return r;
}

/* Tests what the families of the model's ops test. */
static int check_families(struct be *b, struct err *err) {
    const struct op_family *family[OP_KINDS];
    uint32_t n = ops_families(b->shape, family);

    for (uint32_t i = 0; i < n; i++)
        if (family[i]->check)
            TRY(family[i]->check(b, err));
    return 0;
}

/* Tests the tensor with the longest rows of each type, format of tiles and number of dimensions,
 * since split-K needs long rows. */
int cuda_selftest(struct be *b, struct err *err) {
    /* [0]: matrices, [1]: tensors of experts, [2], [3]: those whose tiles are not of their type */
    const struct tensor *widest[4][TYPES] = {{NULL}};

    if (!cuda_wants("CHECK"))
        return 0;
    for (uint64_t i = 0; i < gguf_n_tensors(b->opts->file); i++) {
        const struct tensor *t = gguf_tensor(b->opts->file, i);
        uint32_t type = (uint32_t)t->format->type;

        if (t->n_dims < 2 || t->n_dims > 3 || type >= TYPES)
            continue;
        bool other = load_tile_format(t) != tile_format_of(type);
        const struct tensor **w = &widest[(t->n_dims == 3) + 2 * other][type];
        if (!*w || (*w)->ne[0] < t->ne[0])
            *w = t;
    }
    TRY(check_families(b, err));
    for (uint32_t i = 0; i < 4 * TYPES; i++)
        if (widest[i / TYPES][i % TYPES])
            TRY(try_type(b, widest[i / TYPES][i % TYPES], err));
    return 0;
}
