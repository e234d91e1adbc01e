/*
 * selftest - the kernels' first work on a device: a few rows of the model's own matrices, one of
 * each type, times made-up activations, and attention over made-up keys, beside the same in double
 * on the host. A device, driver or compiler that gives something else is refused with one line
 * before anything is served, not noticed by what is generated. Only matmul_m128, which nothing
 * needs, is left out where its bits are not those of the others.
 *
 * It takes some 20 launches for each type of tensor in the file. WEFT_CUDA_CHECK=0 does without.
 */

#include "engine/cuda/cuda.h"

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
#define KEYS 40u
#define TYPES 64u

/* Memory of the device that weights will pass through, and of the host beside it. */
struct bench {
    struct be *b;
    size_t used;
};

struct piece {
    void *host, *device;
    size_t bytes;
};

static struct piece take(struct bench *t, size_t bytes) {
    struct piece p = {t->b->load[0].host + t->used, t->b->load[0].device + t->used, bytes};

    t->used += round_up(bytes, 256);
    return p;
}

static int send(struct be *b, const struct piece *p) {
    return cuda_check(b, b->api->copy(p->device, p->host, p->bytes, CUDA_TO_DEVICE, b->stream),
                      "cudaMemcpyAsync");
}

static int fetch(struct be *b, void *to, const void *from, size_t bytes) {
    int r =
        cuda_check(b, b->api->copy(to, from, bytes, CUDA_TO_HOST, b->stream), "cudaMemcpyAsync");

    return r < 0 ? r : cuda_check(b, b->api->stream_wait(b->stream), "the first kernels");
}

static void fill(float *x, size_t n, uint64_t seed) {
    struct rng rng = {seed};

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rng_unit(&rng) + rng_unit(&rng) + rng_unit(&rng) - 1.5);
}

/* -- matrices ---------------------------------------------------------------------------------- */

struct product {
    const struct tensor *tensor;
    uint32_t n_out, n_in, n_padded;
    struct weights w;
    struct piece raw, x, packed, scale, sums, y;
};

/* The first rows and columns of a tensor. */
static void lay_out(struct bench *t, struct product *p, const struct tensor *tensor) {
    const struct tensor_format *f = tensor->format;

    p->tensor = tensor;
    p->n_out = (uint32_t)MIN(tensor->ne[1], OUT);
    p->n_in = (uint32_t)MIN(tensor->ne[0], COLUMNS);
    p->n_padded = (uint32_t)round_up(p->n_in, 64);
    size_t row = (size_t)(p->n_in / f->block) * f->block_bytes;
    p->raw = take(t, p->n_out * row);
    p->x = take(t, (size_t)ROWS * p->n_in * sizeof(float));
    p->packed = take(t, round_up(ROWS, PACK_ROWS) * p->n_padded * sizeof(uint16_t));
    p->scale = take(t, round_up(ROWS, PACK_ROWS) * sizeof(float));
    p->sums = take(t, round_up(ROWS, PACK_ROWS) * p->n_padded / 32 * sizeof(float));
    p->y = take(t, (size_t)ROWS * p->n_out * sizeof(float));
    for (uint32_t r = 0; r < p->n_out; r++)
        memcpy((uint8_t *)p->raw.host + r * row, tensor->data + r * tensor->row_bytes, row);
    fill(p->x.host, (size_t)ROWS * p->n_in, 1 + (uint64_t)f->type);

    struct matrix *m = &p->w.m[0];
    p->w.n_mats = 1;
    p->w.n_in = p->n_in;
    m->format = tile_format_of((uint32_t)f->type);
    m->n_out = p->n_out;
    m->n_units = tile_units(m->format, p->n_in);
    m->n_row_tiles = (p->n_out + TILE_ROWS - 1) / TILE_ROWS;
    m->tiles = take(t, tile_matrix_bytes(m->format, p->n_out, p->n_in)).device;
    m->y = p->y.device;
}

static int prepare(struct be *b, struct product *p) {
    const struct tensor_format *f = p->tensor->format;
    struct repack_args repack = {
        .source = {p->raw.device, b->grid, p->raw.bytes / p->n_out, (uint32_t)f->type, f->block,
                   f->block_bytes, p->n_out, p->n_in},
        .tiles = (uint8_t *)p->w.m[0].tiles,
        .format = p->w.m[0].format,
        .n_units = p->w.m[0].n_units,
        .bad = b->bad,
    };
    struct pack_args pack = {.x = p->x.device,
                             .up = p->x.device,
                             .packed = p->packed.device,
                             .scale = p->scale.device,
                             .sums = p->sums.device,
                             .kind = PACK_PLAIN,
                             .n = p->n_in,
                             .n_padded = p->n_padded};
    struct launch first = {kernel_repack, p->w.m[0].n_units, p->w.m[0].n_row_tiles,
                           CUDA_THREADS,  "repack",          0};
    struct launch second = {kernel_pack, ROWS, 1, PACK_THREADS, "pack", 0};
    int r = cuda_check(b, b->api->fill(b->bad, 0, sizeof(*b->bad), b->stream), "cudaMemset");

    r = r < 0 ? r : send(b, &p->raw);
    r = r < 0 ? r : send(b, &p->x);
    r = r < 0 ? r : cuda_launch(b, &first, &repack, sizeof(repack));
    r = r < 0 ? r : cuda_launch(b, &second, &pack, sizeof(pack));
    return r < 0 ? r : fetch(b, b->bad_host, b->bad, sizeof(*b->bad));
}

enum way { ALONE, NARROW, WIDE, M128, WAYS };

static const char *const way_name[] = {"matvec", "matvec", "matmul_wide", "matmul_m128"};

static uint32_t rows_of(enum way way) {
    return way == ALONE ? 1 : way == NARROW ? MATVEC_ROWS : ROWS;
}

/* y of the first rows by one of the kernels. */
static int multiply(struct be *b, const struct product *p, enum way way, float *y) {
    struct operand x = {p->packed.device, p->scale.device, p->sums.device, NULL, rows_of(way)};
    int r =
        way == M128 ? m128_matmul(b, &p->w, &x, false) : cuda_matmul_strict(b, &p->w, &x, false);
    size_t bytes = (size_t)x.n_rows * p->n_out * sizeof(float);

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
                                         k % f->block, quant_iq2_xxs_grid);

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

static int refuse(const struct be *b, const char *what, double error, struct err *err) {
    return err_set(err, 0, NULL,
                   "%s (%s) does not compute what it should: %s is off by %.3g, at most %.3g is "
                   "expected; use --backend cpu and report this",
                   b->device.name, b->isa, what, error, LIMIT);
}

static int try_type(struct be *b, const struct tensor *tensor, struct err *err) {
    float y[WAYS][ROWS * OUT];
    struct bench t = {b, 0};
    struct product p = {0};
    char what[80];

    lay_out(&t, &p, tensor);
    if (t.used > b->load_bytes)
        return 0;
    int r = prepare(b, &p);
    if (r < 0 || *b->bad_host) /* load.c refuses it by its name */
        return r;
    for (enum way way = ALONE; way < WAYS; way++) {
        if (way == M128 && b->m128 == M128_NEVER)
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

        if (way == WIDE || (way == M128 && b->m128 == M128_NEVER) ||
            memcmp(y[way], y[WIDE], n) == 0)
            continue;
        if (way == M128) {
            b->m128 = M128_NEVER;
            if (getenv("WEFT_CUDA_SAY"))
                fprintf(stderr, "weft-cuda: without matmul_m128: other bits for %s\n",
                        tensor->format->name);
            continue;
        }
        return err_set(
            err, 0, NULL,
            "%s (%s) does not compute what it should: %s and matmul_wide give other bits "
            "for %s and %u rows; use --backend cpu and report this",
            b->device.name, b->isa, way_name[way], tensor->format->name, rows_of(way));
    }
    return 0;
}

/* -- attention --------------------------------------------------------------------------------- */

/* Of one query and head, over the keys up to @pos; to out [dim]. */
static void attend_on_host(const struct be *b, const float *q, const float *k, const float *v,
                           uint32_t head_kv, uint32_t pos, double *out) {
    uint32_t dim = b->shape->head_dim, n_kv = b->shape->n_head_kv;
    double p[KEYS], max = -INFINITY, sum = 0;

    for (uint32_t i = 0; i <= pos; i++) {
        p[i] = 0;
        for (uint32_t d = 0; d < dim; d++)
            p[i] += (double)q[d] * (double)k[((size_t)i * n_kv + head_kv) * dim + d] / sqrt(dim);
        max = fmax(max, p[i]);
    }
    for (uint32_t i = 0; i <= pos; i++)
        sum += p[i] = exp(p[i] - max);
    for (uint32_t d = 0; d < dim; d++) {
        out[d] = 0;
        for (uint32_t i = 0; i <= pos; i++)
            out[d] += p[i] / sum * (double)v[((size_t)i * n_kv + head_kv) * dim + d];
    }
}

/* Rows [pos0, pos0 + n) of the one sequence: their q is in be.q; o comes to @o. */
static int attend_rows(struct be *b, uint32_t pos0, uint32_t n, bool store, float *o) {
    static const int32_t token[KEYS];
    const struct model_shape *m = b->shape;
    uint32_t n_pages = (pos0 + n + b->page.page_tokens - 1) / b->page.page_tokens;
    uint32_t page[KEYS], start[2] = {0, n_pages};
    struct engine_seq seq = {.n_rows = n, .pos0 = pos0, .feed = -1};
    struct engine_batch batch = {
        .n_rows = n, .n_seqs = 1, .token = token, .seq = &seq, .table[KV_GLOBAL] = {start, page}};
    struct store_args a = {.batch = b->head,
                           .q = b->q,
                           .k = b->k,
                           .v = b->v,
                           .rope = b->rope,
                           .pages = b->pages,
                           .shape = b->page,
                           .n_head = m->n_head};
    struct launch l = {kernel_store, n,       (m->n_head + m->n_head_kv + 7) / 8,
                       CUDA_THREADS, "store", 0};
    struct model_op op = {.kind = OP_ATTEND, .attn.scale = (float)(1 / sqrt(m->head_dim))};
    struct step *s;

    for (uint32_t i = 0; i < n_pages; i++)
        page[i] = i;
    int r = step_begin(b, &batch, &s);
    if (r == 0 && store)
        r = cuda_launch(b, &l, &a, sizeof(a));
    r = r < 0 ? r : step_attend(s, &op);
    r = r < 0 ? r : fetch(b, o, b->o, (size_t)n * m->n_head * m->head_dim * sizeof(float));
    b->step[0].batch = NULL;
    b->step[0].packed = false;
    return r;
}

/* A prompt, then its last row alone: near what the host gives, and the same bits. */
static int try_attention(struct be *b, struct err *err) {
    const struct model_shape *m = b->shape;
    size_t n_q = (size_t)m->n_head * m->head_dim, n_kv = (size_t)m->n_head_kv * m->head_dim;
    uint64_t most = MIN((uint64_t)b->n_pages * b->page.page_tokens, b->opts->max_context);
    uint32_t n = (uint32_t)MIN(MIN(most, b->opts->max_rows), KEYS);
    struct bench t = {b, 0};
    struct piece q = take(&t, n * n_q * 4), k = take(&t, n * n_kv * 4), v = take(&t, n * n_kv * 4);
    struct piece o = take(&t, n * n_q * 4), alone = take(&t, n_q * 4);
    double right[256], d = 0, norm = 0;

    if (t.used > b->load_bytes)
        return 0;
    fill(q.host, n * n_q, 1);
    fill(k.host, n * n_kv, 2);
    fill(v.host, n * n_kv, 3);
    q.device = b->q;
    k.device = b->k;
    v.device = b->v;
    int r = send(b, &q);
    r = r < 0 ? r : send(b, &k);
    r = r < 0 ? r : send(b, &v);
    r = r < 0 ? r : attend_rows(b, 0, n, true, o.host);
    struct piece last = {(float *)q.host + (n - 1) * n_q, b->q, n_q * 4};
    r = r < 0 ? r : send(b, &last);
    r = r < 0 ? r : attend_rows(b, n - 1, 1, false, alone.host);
    if (r < 0)
        return r;
    for (uint32_t row = 0; row < n; row += MAX(n - 1, 1u))
        for (uint32_t h = 0; h < m->n_head; h++) {
            size_t at = row * n_q + (size_t)h * m->head_dim;

            attend_on_host(b, (float *)q.host + at, k.host, v.host, h * m->n_head_kv / m->n_head,
                           row, right);
            for (uint32_t i = 0; i < m->head_dim; i++) {
                d += pow(right[i] - (double)((float *)o.host)[at + i], 2);
                norm += right[i] * right[i];
            }
        }
    double error = sqrt(d / norm), limit = b->page.q8 ? 8 * LIMIT : LIMIT;
    if (!(error <= limit))
        return refuse(b, "attention", error, err);
    if (memcmp((float *)o.host + (n - 1) * n_q, alone.host, n_q * 4) != 0)
        return err_set(err, 0, NULL,
                       "%s (%s) does not compute what it should: attention of a row alone gives "
                       "other bits; use --backend cpu and report this",
                       b->device.name, b->isa);
    return 0;
}

int cuda_selftest(struct be *b, struct err *err) {
    const char *said = getenv("WEFT_CUDA_CHECK");
    bool tried[TYPES] = {false};

    if (said && strcmp(said, "0") == 0)
        return 0;
    int r = try_attention(b, err);
    for (uint64_t i = 0; i < gguf_n_tensors(b->opts->file) && r == 0; i++) {
        const struct tensor *t = gguf_tensor(b->opts->file, i);
        uint32_t type = (uint32_t)t->format->type;

        if (t->n_dims != 2 || type >= TYPES || tried[type])
            continue;
        tried[type] = true;
        r = try_type(b, t, err);
    }
    return r;
}
