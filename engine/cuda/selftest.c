/*
 * selftest - the kernels' first work on a device: a few rows of the model's own matrices, one of
 * each type, times made-up activations, and attention over made-up keys, for models with sinks with
 * those and a window, too, beside the same in double on the host. A kernel that gives something
 * else is left out where a plainer one does the same (be.note says so): matmul_m128 and matvec for
 * matmul_wide, expert_vec and expert_wide for each other, attend_wide for attend. Where there is
 * none the device is refused with one line before anything is served. What a step is made of beside
 * these, engine/prove.c looks at when the weights are loaded.
 *
 * It takes some 20 launches for each type of tensor in the file. WEFT_CUDA_CHECK=0 does without.
 */

#include "engine/cuda/cuda.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/rng.h"
#include "engine/quant.h"
#include "engine/shared/blocks.h"

#define ROWS 20u /* of activations: for matmul_wide; matvec gets 16, and one */
#define OUT 32u  /* of the matrix */
#define COLUMNS 2048u
#define LIMIT 4e-3
#define KEYS 300u       /* more than a chunk: results of chunks are merged */
#define LATENT_HEADS 8u /* of latent attention: their rows are wide */
#define WINDOW 70u      /* of the last row: the last tile of a chunk, and what is behind it */
#define TYPES 64u
#define FEW_ITEMS ((ROWS + EXPERT_ROWS - 1) / EXPERT_ROWS)

/* Memory of the device that weights will pass through, and of the host beside it. */
struct bench {
    struct be *b;
    size_t used;
};

/* The same bytes on both sides. */
struct piece {
    void *host, *device;
    size_t bytes;
};

/* The next @bytes of the loading buffers; the caller compares t->used with their size. */
static struct piece take(struct bench *t, size_t bytes) {
    struct piece p = {t->b->load[0].host + t->used, t->b->load[0].device + t->used, bytes};

    t->used += round_up(bytes, 256);
    return p;
}

/* The host's bytes to the device. */
static int send(struct be *b, const struct piece *p) {
    return cuda_check(b, b->api->copy(p->device, p->host, p->bytes, CUDA_TO_DEVICE, b->stream),
                      "cudaMemcpyAsync");
}

/* @bytes of the device to @to; waits for all that was enqueued. */
static int fetch(struct be *b, void *to, const void *from, size_t bytes) {
    int r =
        cuda_check(b, b->api->copy(to, from, bytes, CUDA_TO_HOST, b->stream), "cudaMemcpyAsync");

    return r < 0 ? r : cuda_check(b, b->api->stream_wait(b->stream), "the first kernels");
}

/* Numbers around 0, nearly normal with variance 1/4, from @seed. */
static void fill(float *x, size_t n, uint64_t seed) {
    struct rng rng = {seed};

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rng_unit(&rng) + rng_unit(&rng) + rng_unit(&rng) - 1.5);
}

/* -- matrices ---------------------------------------------------------------------------------- */

/* A product of ROWS rows by the first rows and columns of a tensor of the model. */
struct product {
    const struct tensor *tensor;
    uint32_t n_out, n_in, n_padded;
    struct weights w;
    struct piece raw, x, packed, cores, scale, y, picks;
};

/* The rows as pairs of the first expert, by both sizes of items. */
struct picks {
    uint32_t n_few, n_many, list[ROWS];
    struct expert_item few[FEW_ITEMS], many;
};

/* Every row picked expert 0. */
static struct picks all_rows(void) {
    struct picks p = {.n_few = FEW_ITEMS, .n_many = 1, .many = {0, 0, ROWS}};

    for (uint32_t i = 0; i < ROWS; i++)
        p.list[i] = i * ROUTE_PICKS;
    for (uint32_t i = 0; i < FEW_ITEMS; i++)
        p.few[i] =
            (struct expert_item){0, i * EXPERT_ROWS, MIN(ROWS - i * EXPERT_ROWS, EXPERT_ROWS)};
    return p;
}

/* The first rows and columns of a tensor. */
static void lay_out(struct bench *t, struct product *p, const struct tensor *tensor) {
    const struct tensor_format *f = tensor->format;

    p->tensor = tensor;
    p->n_out = (uint32_t)MIN(tensor->ne[1], OUT);
    p->n_in = (uint32_t)MIN(tensor->ne[0], COLUMNS);
    p->n_padded = (uint32_t)round_up(p->n_in, 64);
    assert(p->n_in % f->block == 0);
    size_t row = (size_t)(p->n_in / f->block) * f->block_bytes;
    p->raw = take(t, p->n_out * row);
    p->x = take(t, (size_t)ROWS * p->n_in * sizeof(float));
    p->packed = take(t, round_up(ROWS, PACK_ROWS) * p->n_padded * sizeof(uint16_t));
    p->cores = take(t, p->packed.bytes);
    p->scale = take(t, round_up(ROWS, PACK_ROWS) * sizeof(float));
    p->y = take(t, (size_t)ROWS * p->n_out * sizeof(float));
    p->picks = take(t, sizeof(struct picks));
    *(struct picks *)p->picks.host = all_rows();
    for (uint32_t r = 0; r < p->n_out; r++)
        memcpy((uint8_t *)p->raw.host + r * row, tensor->data + r * tensor->row_bytes, row);
    fill(p->x.host, (size_t)ROWS * p->n_in, 1 + (uint64_t)f->type);

    struct matrix *m = &p->w.m[0];
    p->w.n_mats = 1;
    p->w.n_in = p->n_in;
    m->format = tile_format_of((uint32_t)f->type);
    m->n_out = p->n_out;
    m->grid = tile_grid_of(f->type, t->b->tile_grids);
    matrix_cut(m, p->n_in);
    m->tiles = take(t, tile_matrix_bytes(m->format, p->n_out, p->n_in)).device;
    m->inverse = 1;
    m->y = p->y.device;
}

/* Sends the piece of the matrix and the rows, and makes tiles and packed rows of them. */
static int prepare(struct be *b, struct product *p) {
    const struct tensor_format *f = p->tensor->format;
    struct repack_args repack = {
        .source = {p->raw.device, b->grids, p->raw.bytes / p->n_out, (uint32_t)f->type, f->block,
                   f->block_bytes, p->n_out, p->n_in},
        .tiles = (uint8_t *)p->w.m[0].tiles,
        .format = p->w.m[0].format,
        .n_units = p->w.m[0].n_units,
        .found = b->found,
    };
    struct pack_args pack = {.x = p->x.device,
                             .up = p->x.device,
                             .packed = p->packed.device,
                             .scale = p->scale.device,
                             .kind = PACK_PLAIN,
                             .n = p->n_in,
                             .n_padded = p->n_padded};
    struct launch first = {kernel_repack, p->w.m[0].n_units, p->w.m[0].n_row_tiles,
                           CUDA_THREADS,  "repack",          0};
    struct launch second = {kernel_pack, ROWS, 1, PACK_THREADS, "pack", 0};
    int r = cuda_check(b, b->api->fill(b->found, 0, sizeof(*b->found), b->stream), "cudaMemset");

    r = r < 0 ? r : send(b, &p->raw);
    r = r < 0 ? r : send(b, &p->x);
    r = r < 0 ? r : send(b, &p->picks);
    r = r < 0 ? r : cuda_launch(b, &first, &repack, sizeof(repack));
    r = r < 0 ? r : cuda_launch(b, &second, &pack, sizeof(pack));
    pack.packed = p->cores.device;
    pack.cores = true;
    r = r < 0 ? r : cuda_launch(b, &second, &pack, sizeof(pack));
    r = r < 0 ? r : fetch(b, b->found_host, b->found, sizeof(*b->found));
    return r < 0 ? r
                 : cuda_scale_tiles(b, &p->w.m[0], p->w.m[0].n_row_tiles,
                                    mx_float_of((uint32_t)b->found_host->most));
}

/* The ways in which a product is computed; way_name[] says by which kernel. */
enum way { ALONE, NARROW, WIDE, SHARING, M128, WGMMA, WGMMA_64, EXPERT_VEC, EXPERT_WIDE, WAYS };

static const char *const way_name[] = {"matvec",          "matvec",      "matmul_wide",
                                       "shared segments", "matmul_m128", "matmul_wgmma",
                                       "matmul_wgmma",    "expert_vec",  "expert_wide"};

static uint32_t rows_of(enum way way) {
    return way == ALONE ? 1 : way == NARROW ? MATVEC_ROWS : ROWS;
}

/* All rows as those of an expert. */
static int multiply_expert(struct be *b, const struct product *p, bool few) {
    const struct picks *on = p->picks.device;
    struct expert_args a = {
        .m = {p->w.m[0]},
        .x = p->packed.device,
        .scale = p->scale.device,
        .n_mats = 1,
        .n_blocks = p->n_padded / 16,
        .n_used = 1,
        .n_experts = b->shape->n_expert,
        .by_pair = true,
        .item = few ? on->few : &on->many,
        .n_items = few ? &on->n_few : &on->n_many,
        .list = on->list,
        .stride = ROWS,
    };

    return experts_product(b, &a, few, few ? FEW_ITEMS : 1);
}

/* y of the first rows by one of the kernels. */
static int multiply(struct be *b, const struct product *p, enum way way, float *y) {
    struct operand x = {
        .packed = p->packed.device, .scale = p->scale.device, .n_rows = rows_of(way)};
    struct operand cores = {
        .packed = p->cores.device, .scale = p->scale.device, .n_rows = x.n_rows, .cores = true};
    struct matmul_args few = cuda_matmul_args(&p->w, &x, false);
    size_t bytes = (size_t)x.n_rows * p->n_out * sizeof(float);
    assert(way < WAYS && bytes <= p->y.bytes);
    const struct division whole = {1, 0}, shared = {4, 0};
    bool can_split = cuda_can_split(b, &p->w, ROWS);
    /* What another kernel left there must not pass. */
    int r = cuda_check(b, b->api->fill(p->y.device, 0xFF, p->y.bytes, b->stream), "cudaMemset");

    if (r == 0)
        r = way == M128    ? m128_matmul(b, &p->w, &x, false)
            : way == WGMMA ? wgmma_launch(b, &p->w, &cores, false, WGMMA_ROWS, whole)
            : way == WGMMA_64
                ? wgmma_launch(b, &p->w, &cores, false, MATMUL_COLUMNS, can_split ? shared : whole)
            : way >= EXPERT_VEC ? multiply_expert(b, p, way == EXPERT_VEC)
            : way < WIDE        ? cuda_matvec(b, &few)
                         : cuda_matmul_wide(b, &p->w, &x, false, way == WIDE ? whole : shared);
    r = r < 0 ? r : fetch(b, p->y.host, p->y.device, bytes);
    memcpy(y, p->y.host, r < 0 ? 0 : bytes);
    return r;
}

/* |y - W x| / |W x|, in double. */
static double error_of(const struct product *p, const float *y) {
    const struct tensor_format *f = p->tensor->format;
    size_t row_bytes = p->raw.bytes / p->n_out;
    double d = 0, norm = 0, sum[ROWS];

    for (uint32_t o = 0; o < p->n_out; o++) {
        const uint8_t *row = (const uint8_t *)p->raw.host + o * row_bytes;

        memset(sum, 0, sizeof(sum));
        for (uint32_t k = 0; k < p->n_in; k++) {
            double v = (double)blk_value((uint32_t)f->type, row + k / f->block * f->block_bytes,
                                         k % f->block, &quant_grids);

            for (uint32_t r = 0; r < ROWS; r++)
                sum[r] += v * (double)((const float *)p->x.host)[(size_t)r * p->n_in + k];
        }
        for (uint32_t r = 0; r < ROWS; r++) {
            d += pow(sum[r] - (double)y[(size_t)r * p->n_out + o], 2);
            norm += sum[r] * sum[r];
        }
    }
    return d == 0 ? 0 : sqrt(d / norm);
}

/* -EINVAL: @what is off by @error, and there is nothing plainer to do it. */
static int refuse(const struct be *b, const char *what, double error, struct err *err) {
    return err_set(err, 0, NULL,
                   "%s (%s) does not compute what it should: %s is off by %.3g, at most %.3g is "
                   "expected; use --backend cpu and report this",
                   b->device.name, b->isa, what, error, LIMIT);
}

/* Says that a plainer kernel does what @what did. */
static void leave_out(struct be *b, const char *what, const char *why) {
    size_t at = strlen(b->note);

    snprintf(b->note + at, sizeof(b->note) - at, "%swithout %s: %s", at ? "; " : "", what, why);
}

/* Whether steps use the way, and the product has what it needs. */
static bool is_used(const struct be *b, const struct product *p, enum way way) {
    if (way == EXPERT_VEC || way == EXPERT_WIDE)
        return p->tensor->n_dims == 3 &&
               !(way == EXPERT_VEC ? b->no_expert_vec : b->no_expert_wide);
    if (way == WGMMA || way == WGMMA_64)
        return b->wgmma;
    if (way == SHARING)
        return cuda_can_split(b, &p->w, ROWS);
    return way == M128 ? b->m128 != M128_NEVER : way == WIDE || !b->no_matvec;
}

/* The way was found wrong: no step uses it from now on. */
static void leave_way(struct be *b, enum way way) {
    if (way == M128) {
        b->m128 = M128_NEVER;
    } else if (way == WGMMA || way == WGMMA_64) {
        b->wgmma = false;
    } else if (way == SHARING) {
        b->no_split = true;
    } else if (way == EXPERT_WIDE) {
        b->no_expert_wide = true;
    } else if (way == EXPERT_VEC) {
        b->no_expert_vec = true;
        b->wants_expert_vec = false;
    } else {
        b->no_matvec = true;
    }
}

/* One type of tensor by every kernel: near the exact product, and the same bits. */
static int try_type(struct be *b, const struct tensor *tensor, struct err *err) {
    float y[WAYS][ROWS * OUT];
    struct bench t = {b, 0};
    struct product p = {0};
    char what[80];

    lay_out(&t, &p, tensor);
    if (t.used > b->load_bytes)
        return 0;
    int r = prepare(b, &p);
    if (r < 0 || b->found_host->bad) /* load.c refuses it by its name */
        return r;
    for (enum way way = ALONE; way < WAYS; way++) {
        if (!is_used(b, &p, way))
            continue;
        r = multiply(b, &p, way, y[way]);
        if (r < 0)
            return r;
    }
    double error = error_of(&p, y[WIDE]);
    snprintf(what, sizeof(what), "matmul_wide of %s", tensor->format->name);
    if (!(error <= LIMIT))
        return refuse(b, what, error, err);
    for (enum way way = ALONE; way < WAYS; way++) {
        size_t n = (size_t)rows_of(way) * p.n_out * sizeof(float);

        if (way == WIDE || !is_used(b, &p, way) || memcmp(y[way], y[WIDE], n) == 0)
            continue;
        snprintf(what, sizeof(what), "other bits than matmul_wide for %s and %u rows",
                 tensor->format->name, rows_of(way));
        leave_out(b, way_name[way], what);
        leave_way(b, way);
    }
    if (b->no_expert_vec && b->no_expert_wide)
        return err_set(err, 0, NULL,
                       "%s (%s) does not compute what it should: experts of %s; use --backend cpu "
                       "and report this",
                       b->device.name, b->isa, tensor->format->name);
    return 0;
}

/* -- attention --------------------------------------------------------------------------------- */

/* What attention is tried with. */
struct attention {
    struct heads heads;
    struct piece q, k, v, o, part; /* host: [n] rows; part: o of some of them */
    struct piece turned;           /* latent attention: what of queries turns is behind others */
    struct piece sinks;            /* [n_head] */
    uint32_t n, window;            /* window 0: none, and no sinks */
    uint32_t n_value;              /* of a head's result, and of its query in q */
    size_t n_q, n_kv, n_turned;    /* values of a row */
    double limit;
};

/* Value @d of a query. */
static double query_value(const struct attention *t, uint32_t row, uint32_t head, uint32_t d) {
    const float *q = (const float *)t->q.host + row * t->n_q + (size_t)head * t->n_value;
    size_t width = t->n_turned / t->heads.n, behind = width + t->n_value - t->heads.dim;

    if (d < t->n_value)
        return (double)q[d];
    return (double)((const float *)
                        t->turned.host)[row * t->n_turned + head * width + behind + d - t->n_value];
}

/* Of one query and head, over the keys that @pos sees; to out [n_value]. */
static void attend_on_host(const struct attention *t, uint32_t head, uint32_t pos, double *out) {
    uint32_t dim = t->heads.dim, n_kv = t->heads.n_kv;
    uint32_t head_kv = head * n_kv / t->heads.n;
    uint32_t first = t->window && pos >= t->window ? pos - t->window + 1 : 0;
    const float *k = t->k.host, *v = t->v.host;
    double sink = t->window ? (double)((const float *)t->sinks.host)[head] : -INFINITY;
    double p[KEYS], max = sink, sum;

    for (uint32_t i = first; i <= pos; i++) {
        p[i] = 0;
        for (uint32_t d = 0; d < dim; d++)
            p[i] += query_value(t, pos, head, d) *
                    (double)k[((size_t)i * n_kv + head_kv) * dim + d] / sqrt(dim);
        max = fmax(max, p[i]);
    }
    sum = exp(sink - max);
    for (uint32_t i = first; i <= pos; i++)
        sum += p[i] = exp(p[i] - max);
    for (uint32_t d = 0; d < t->n_value; d++) {
        out[d] = 0;
        for (uint32_t i = first; i <= pos; i++)
            out[d] += p[i] / sum * (double)v[((size_t)i * n_kv + head_kv) * dim + d];
    }
}

/* Rows [pos0, pos0 + n) of the one sequence: their q is in be.q; o comes to @o. */
static int attend_rows(struct be *b, const struct attention *t, uint32_t pos0, uint32_t n,
                       bool store, float *o) {
    static const int32_t token[KEYS];
    const struct heads *h = &t->heads;
    uint32_t n_pages = (pos0 + n + b->opts->page_tokens - 1) / b->opts->page_tokens;
    uint32_t page[KEYS], start[2] = {0, n_pages};
    struct engine_seq seq = {.n_rows = n, .pos0 = pos0, .feed = -1};
    struct engine_batch batch = {.n_rows = n,
                                 .n_seqs = 1,
                                 .token = token,
                                 .seq = &seq,
                                 .table[KV_GLOBAL] = {start, page},
                                 .table[KV_WINDOW] = {start, page}};
    struct store_args a = {.batch = b->head,
                           .q = b->q,
                           .k = b->k,
                           .v = b->v,
                           .rope = b->rope[0],
                           .pages = b->kv[KV_GLOBAL].pages,
                           .shape = cuda_page_shape(b, h),
                           .n_head = h->n,
                           .n_kv = h->n_kv};
    struct latent_args latent = latent_store_args(b, h, &b->shape->rope[0]);
    struct launch l = {kernel_store, n, (h->n + h->n_kv + 7) / 8, CUDA_THREADS, "store", 0};
    struct weights w = {.sinks = t->window ? t->sinks.device : NULL};
    struct model_op op = {.kind = OP_ATTEND,
                          .heads = *h,
                          .attn = {.scale = (float)(1 / sqrt(h->dim)), .window = t->window},
                          .weights = &w};
    struct step *s;

    assert(pos0 + n <= KEYS && n <= b->opts->max_rows);
    for (uint32_t i = 0; i < n_pages; i++)
        page[i] = i;
    int r = step_begin(b, &batch, &s);
    if (t->n_turned) {
        latent.store.n_rot = 0;
        latent.store.pages = a.pages;
        l.kernel = kernel_store_latent;
    }
    if (r == 0 && store)
        r = t->n_turned ? cuda_launch(b, &l, &latent, sizeof(latent))
                        : cuda_launch(b, &l, &a, sizeof(a));
    r = r < 0 ? r : step_attend(s, &op);
    r = r < 0 ? r : fetch(b, o, b->o, n * t->n_q * sizeof(float));
    b->step[0].batch = NULL;
    b->step[0].packed = false;
    return r;
}

/* Rows [pos0, pos0 + n) of @t, their queries sent before; o comes to @o. */
static int attend_part(struct be *b, const struct attention *t, uint32_t pos0, uint32_t n,
                       bool store, float *o) {
    const struct {
        const struct piece *from;
        void *to;
        size_t width;
    } send_of[] = {{&t->q, b->q, t->n_q},
                   {&t->turned, b->latent.q, t->n_turned},
                   {&t->k, b->k, t->n_kv},
                   {&t->v, b->v, t->n_kv}};
    int r = 0;

    for (size_t i = 0; i < (store ? ARRAY_SIZE(send_of) : 2) && r == 0; i++) {
        struct piece p = {(float *)send_of[i].from->host + pos0 * send_of[i].width, send_of[i].to,
                          n * send_of[i].width * sizeof(float)};

        r = p.bytes ? send(b, &p) : 0;
    }
    return r < 0 ? r : attend_rows(b, t, pos0, n, store, o);
}

/* All rows, in as few steps as may be: |o - right| / |right| of the first and the last one. */
static int attend_all(struct be *b, const struct attention *t, double *error) {
    double right[HEAD_VALUES], d = 0, norm = 0;
    int r = 0;

    for (uint32_t at = 0, n; at < t->n && r == 0; at += n) {
        n = MIN(t->n - at, b->opts->max_rows);
        r = attend_part(b, t, at, n, true, (float *)t->o.host + at * t->n_q);
    }
    for (uint32_t row = 0; row < t->n && r == 0; row += MAX(t->n - 1, 1u))
        for (uint32_t h = 0; h < t->heads.n; h++) {
            size_t at = row * t->n_q + (size_t)h * t->n_value;

            attend_on_host(t, h, row, right);
            for (uint32_t i = 0; i < t->n_value; i++) {
                d += pow(right[i] - (double)((float *)t->o.host)[at + i], 2);
                norm += right[i] * right[i];
            }
        }
    *error = sqrt(d / norm);
    return r;
}

/* Whether the last @n rows, in a step of their own, have the bits that they have among all. 1, 0 or
 * -EIO. */
static int same_alone(struct be *b, const struct attention *t, uint32_t n) {
    int r = attend_part(b, t, t->n - n, n, false, t->part.host);

    return r < 0 ? r
                 : memcmp((float *)t->o.host + (t->n - n) * t->n_q, t->part.host,
                          n * t->n_q * sizeof(float)) == 0;
}

/* A prompt, its last @few rows alone, its last row alone. 1: within the limit of what the host
 * gives, by @error, and the same bits; 0 or -EIO. */
static int attend_ways(struct be *b, const struct attention *t, uint32_t few, double *error) {
    int r = attend_all(b, t, error);

    if (r < 0 || !(*error <= t->limit))
        return r;
    r = same_alone(b, t, few);
    return r == 1 ? same_alone(b, t, 1) : r;
}

/* All rows must give what they should, or do so without fused kernels, without attend_wide, or
 * without both; latent attention without attend_latent_bulk. */
static int compare_attention(struct be *b, const struct attention *t, struct err *err) {
    static const struct {
        bool fuse, wide, bulk;
        const char *without;
    } ways[] = {{true, true, true, NULL},
                {true, true, false, "attend_latent_bulk"},
                {false, true, true, "fused kernels"},
                {true, false, true, "attend_wide"},
                {false, false, true, "attend_wide and fused kernels"}};
    const uint32_t fuse = b->fuse, wide_rows = b->wide_rows;
    const bool wide = t->n > wide_rows && !t->n_turned, bulk = b->bulk;
    const char *why = NULL;
    double error = 0;
    int same = 0;

    for (size_t i = 0; i < ARRAY_SIZE(ways) && same == 0; i++) {
        if ((!ways[i].fuse && !fuse) || (!ways[i].wide && !wide) || (!ways[i].bulk && !bulk))
            continue;
        b->fuse = ways[i].fuse ? fuse : 0;
        b->wide_rows = ways[i].wide ? wide_rows : UINT32_MAX;
        b->bulk = bulk && ways[i].bulk;
        same = attend_ways(b, t, MIN(MIN(t->n, ROWS), b->opts->max_rows), &error);
        if (same == 0 && !why)
            why = error <= t->limit ? "other bits" : "attention is off";
        if (same == 1 && why)
            leave_out(b, ways[i].without, why);
    }
    if (!b->fuse)
        b->wants_fuse = 0;
    if (same < 0)
        return -EIO;
    if (!(error <= t->limit))
        return refuse(b, t->window ? "attention with a window" : "attention", error, err);
    if (same == 0)
        return err_set(err, 0, NULL,
                       "%s (%s) does not compute what it should: attention of few rows alone gives "
                       "other bits; use --backend cpu and report this",
                       b->device.name, b->isa);
    return 0;
}

/* Attention of random queries and keys in the model's shape against a plain sum, without a window
 * and, where the model has sinks, with both. 0, or -errno with @err. */
static int try_attention(struct be *b, struct err *err) {
    const struct model_shape *m = b->shape;
    uint32_t tokens = b->opts->page_tokens;
    const struct heads heads = {m->mla.rank ? MIN(m->n_head, LATENT_HEADS) : m->n_head,
                                m->n_head_kv, m->head_dim};
    uint32_t n_value = cuda_head_values(b, &heads);
    struct page_shape page = cuda_page_shape(b, &heads);
    uint64_t room = b->kv[KV_GLOBAL].n_pages * b->kv[KV_GLOBAL].page_bytes, most;
    struct attention t = {
        .heads = heads,
        .n_value = n_value,
        .n_q = (size_t)heads.n * n_value,
        .n_kv = (size_t)heads.n_kv * heads.dim,
        .n_turned = m->mla.rank ? heads.n * (m->mla.n_nope + heads.dim - m->mla.rank) : 0,
        .limit = page.q8 ? 8 * LIMIT : LIMIT,
    };
    struct bench bench = {b, 0};

    most = MIN(room / page_layer_bytes(&page) * tokens, b->opts->max_context);
    t.n = (uint32_t)MIN(most, KEYS);
    t.q = take(&bench, t.n * t.n_q * 4);
    t.k = take(&bench, t.n * t.n_kv * 4);
    t.v = t.n_turned ? t.k : take(&bench, t.n * t.n_kv * 4);
    t.turned = take(&bench, t.n * t.n_turned * 4);
    t.o = take(&bench, t.n * t.n_q * 4);
    t.part = take(&bench, MIN(t.n, ROWS) * t.n_q * 4);
    t.sinks = take(&bench, m->n_head * sizeof(float));
    if (bench.used > b->load_bytes)
        return 0;
    fill(t.q.host, t.n * t.n_q, 1);
    fill(t.k.host, t.n * t.n_kv, 2);
    fill(t.v.host, t.n * t.n_kv, 3);
    fill(t.turned.host, t.n * t.n_turned, 5);
    fill(t.sinks.host, m->n_head, 4);
    int r = compare_attention(b, &t, err);
    if (r < 0 || !gguf_find(b->opts->file, "blk.0.attn_sinks.weight"))
        return r;
    t.window = WINDOW;
    r = send(b, &t.sinks);
    return r < 0 ? r : compare_attention(b, &t, err);
}

bool cuda_selftest_wanted(void) {
    const char *said = getenv("WEFT_CUDA_CHECK");

    return !(said && strcmp(said, "0") == 0);
}

int cuda_selftest(struct be *b, struct err *err) {
    bool tried[2][TYPES] = {{false}}; /* of matrices, of those of experts */

    if (!cuda_selftest_wanted())
        return 0;
    int r = try_attention(b, err);
    for (uint64_t i = 0; i < gguf_n_tensors(b->opts->file) && r == 0; i++) {
        const struct tensor *t = gguf_tensor(b->opts->file, i);
        uint32_t type = (uint32_t)t->format->type;

        if (t->n_dims < 2 || t->n_dims > 3 || type >= TYPES || tried[t->n_dims == 3][type])
            continue;
        tried[t->n_dims == 3][type] = true;
        r = try_type(b, t, err);
    }
    return r;
}
