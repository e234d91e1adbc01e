/*
 * vision - the CPU backend of image encoders (engine/vision/ops.h).
 *
 * Matrix products are those of the language model (matmul.c). Attention of a head is computed by
 * the same kernels, as two products with float weights: the keys are packed as a matrix whose rows
 * are keys, the values as a matrix whose rows are dimensions. A block of 16 queries is multiplied
 * by the keys, its scores go through the softmax, and the result is multiplied by the values:
 *
 *     scores [16][keys] = queries [16][dim] x keys;  out [16][dim] = exp(scores) x values / sum
 *
 * All scores of a block are in memory at a time. An encoder with windows has many small windows: a
 * thread packs and computes one head of one window (do_window()). Attention over a whole picture
 * has one large head at a time: all threads pack its keys and values, then all threads compute its
 * blocks (attend_head()).
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"
#include "base/try.h"
#include "engine/cpu/cpu.h"
#include "engine/vision/encoder.h"
#include "engine/vision/host.h"

/* Queries of a block. */
enum { BLOCK = 2 * TILE_MAX };

/* A packed matrix of the encoder. */
struct vis_mat {
    struct vis_mat *next;
    struct mat m;
};

/* A head's keys, [keys][dim], and values, [dim][keys], as matrices. */
struct packed {
    struct mat keys, values;
};

/* Buffers of one thread. */
struct lane {
    /* [BLOCK] queries, as ACTS_F */
    uint8_t *acts;
    /* [BLOCK][keys], as ACTS_F */
    float *scores;
    /* keys of a window, then its values */
    uint8_t *panel;
};

/* State of the backend. */
struct vis_be {
    struct vis_host host;
    const struct cpu_kernels *kernels;
    struct pool *pool;
    /* [threads] */
    struct matmul_scratch *scratch;
    /* [threads] */
    struct lane *lane;
    struct vis_mat *mats;
    /* [max_rows]; NULL: no matrix needs this format */
    uint8_t *acts[ACTS_KINDS];
    /* keys of a head of a whole picture, then its values */
    uint8_t *panel;
};

/* keys_bytes() and cpu_vision_values_bytes() return the bytes of a head's packed keys and values,
 * each a whole number of panels. */
static size_t keys_bytes(uint32_t n_keys, uint32_t dim) {
    return round_up(n_keys, LANES) * dim * sizeof(float);
}

static size_t cpu_vision_values_bytes(uint32_t n_keys, uint32_t dim) {
    return round_up(dim, LANES) * (size_t)n_keys * sizeof(float);
}

/* Returns @n bytes aligned to 64, or NULL. */
static void *aligned(size_t n) {
    return aligned_alloc(64, round_up(MAX(n, 1), 64));
}

/* Implements vis_ops.close; accepts a backend that cpu_vision_open_be() left half-built. */
static struct vis_be *cpu_vision_close_be(struct vis_be *b) {
    if (!b)
        return NULL;
    for (struct vis_mat *m = b->mats, *next; m; m = next) {
        next = m->next;
        free(m->m.data);
        free(m);
    }
    for (uint32_t i = 0; b->lane && i < pool_n_threads(b->pool); i++) {
        free(b->lane[i].acts);
        free(b->lane[i].scores);
        free(b->lane[i].panel);
    }
    for (int i = 0; i < ACTS_KINDS; i++)
        free(b->acts[i]);
    vis_host_close(&b->host);
    free(b->panel);
    free(b->lane);
    free(b->scratch);
    pool_free(b->pool);
    free(b);
    return NULL;
}

/* Allocates the buffers. Returns false if there is no memory; cpu_vision_close_be() then frees
 * those that were allocated. */
static bool cpu_vision_allocate(struct vis_be *b) {
    uint32_t n = pool_n_threads(b->pool), dim = b->host.sizes.head_dim,
             keys = b->host.sizes.max_keys;
    uint32_t window = MIN(keys, PROJECTOR_WINDOW_MAX * PROJECTOR_WINDOW_MAX);

    b->scratch = aligned(n * sizeof(*b->scratch));
    b->lane = calloc(n, sizeof(*b->lane));
    b->panel = aligned(keys_bytes(keys, dim) + cpu_vision_values_bytes(keys, dim));
    for (uint32_t i = 0; i < n && b->lane; i++) {
        struct lane *l = &b->lane[i];

        l->acts = aligned(acts_bytes(ACTS_F, dim, BLOCK));
        l->scores = aligned(acts_bytes(ACTS_F, keys, BLOCK));
        l->panel = aligned(keys_bytes(window, dim) + cpu_vision_values_bytes(window, dim));
        if (!l->acts || !l->scores || !l->panel)
            return false;
    }
    return b->scratch && b->lane && b->panel;
}

/* Context of cpu_vision_do_item(). */
struct items {
    vis_row_fn fn;
    void *ctx;
};

static void cpu_vision_do_item(void *ctx, uint32_t i, uint32_t thread) {
    const struct items *w = ctx;

    w->fn(w->ctx, i);
}

/* Implements vis_host.each. */
static void cpu_vision_each(struct vis_be *b, uint32_t n, vis_row_fn fn, void *ctx) {
    pool_each(b->pool, n, cpu_vision_do_item, &(struct items){fn, ctx});
}

/* Implements vis_host.norm: a layer norm, or without @bias an RMS norm. */
static void cpu_vision_norm(const struct vis_be *b, const float *x, const float *w,
                            const float *bias, float eps, uint32_t n, float *y) {
    if (!bias) {
        b->kernels->norm(x, w, y, n, eps);
        return;
    }
    if (y != x)
        memcpy(y, x, n * sizeof(float));
    b->kernels->layer_norm(y, w, bias, n, eps);
}

/* Computes x = x / (1 + e^(-1.702 x)), the approximation of GELU by a sigmoid. */
static void quick_gelu(const struct vis_be *b, float *x, uint32_t n) {
    float gate[256];

    for (uint32_t at = 0; at < n; at += ARRAY_SIZE(gate)) {
        uint32_t m = MIN(n - at, (uint32_t)ARRAY_SIZE(gate));

        for (uint32_t i = 0; i < m; i++)
            gate[i] = 1.702f * x[at + i];
        b->kernels->gate(x + at, gate, m);
    }
}

/* Computes x = act(x) for activations without a kernel of their own. */
static void plain_act(const struct vis_be *b, enum projector_act act, float *x, uint32_t n) {
    if (act == PROJECTOR_QUICK_GELU) {
        quick_gelu(b, x, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (act == PROJECTOR_SILU)
            x[i] = mx_silu(x[i]);
        else
            x[i] = mx_gelu_erf(x[i]);
    }
}

/* Implements vis_host.act. */
static void cpu_vision_act(const struct vis_be *b, enum projector_act act, float *x,
                           const float *up, uint32_t n) {
    if (act == PROJECTOR_GELU && !up)
        b->kernels->gelu(x, n);
    else if (act == PROJECTOR_GELU)
        b->kernels->glu[GLU_GELU](x, up, x, n);
    else if (act == PROJECTOR_SILU && up)
        b->kernels->glu[GLU_SILU](x, up, x, n);
    else {
        plain_act(b, act, x, n);
        for (uint32_t i = 0; i < n && up; i++)
            x[i] *= up[i];
    }
}

/* Implements vis_ops.open_bytes: the bytes of all buffers, including those of each thread. */
static uint64_t cpu_vision_open_bytes(const struct vis_sizes *s, uint32_t n_threads) {
    uint64_t thread = (uint64_t)s->max_keys * VIS_HEAD_ROWS;

    return vis_host_bytes(s) +
           (2ull * s->max_keys * s->head_dim + n_threads * thread) * sizeof(float) +
           (uint64_t)s->max_rows * s->max_in * sizeof(float);
}

static int cpu_vision_open_parts(struct vis_be *b, const struct image_encoder_opts *opts,
                                 const struct vis_sizes *sizes) {
    TRY(vis_host_open(&b->host, sizes));
    TRY(pool_new(&b->pool, opts->n_threads));
    return cpu_vision_allocate(b) ? 0 : -ENOMEM;
}

/* Implements vis_ops.open. */
static int cpu_vision_open_be(struct vis_be **out, const struct image_encoder_opts *opts,
                              const struct vis_sizes *sizes, struct err *err) {
    const struct cpu_kernels *kernels = isa_find(opts->isa, err);
    struct vis_be *b = kernels ? calloc(1, sizeof(*b)) : NULL;

    if (!b)
        return kernels ? -ENOMEM : -EINVAL;
    b->kernels = kernels;
    b->host =
        (struct vis_host){.each = cpu_vision_each, .norm = cpu_vision_norm, .act = cpu_vision_act};
    int r = cpu_vision_open_parts(b, opts, sizes);
    if (r < 0)
        cpu_vision_close_be(b);
    else
        *out = b;
    return r;
}

/* Context of pack_panel(): a matrix, and the tensor from which it is packed. */
struct packing {
    struct mat *m;
    const struct tensor *t;
};

static void pack_panel(void *ctx, uint32_t i) {
    const struct packing *p = ctx;

    panel_pack(p->m, p->t, i, p->m->data + i * p->m->panel_bytes);
}

/* Implements vis_ops.load. */
static int cpu_vision_load(struct vis_be *b, const struct tensor *t, const float *bias,
                           struct vis_mat **out, struct err *err) {
    struct vis_mat *v = calloc(1, sizeof(*v));

    if (!v)
        return -ENOMEM;
    v->next = b->mats;
    b->mats = v;
    TRY(panel_plan(&v->m, t, err));
    enum acts_kind kind = panel_infos[v->m.format].acts;
    v->m.bias = bias;
    v->m.data = aligned(v->m.n_panels * v->m.panel_bytes);
    if (!b->acts[kind])
        b->acts[kind] = aligned(acts_bytes(kind, (uint32_t)round_up(b->host.sizes.max_in, 256),
                                           (uint32_t)round_up(b->host.sizes.max_rows, TILE_MAX)));
    if (!v->m.data || !b->acts[kind])
        return -ENOMEM;
    struct packing p = {&v->m, t};
    cpu_vision_each(b, v->m.n_panels, pack_panel, &p);
    *out = v;
    return 0;
}

/* Context of cpu_vision_store_row(): rows that are converted to activations. */
struct storing {
    struct vis_be *b;
    const float *in;
    uint32_t n_in;
    enum acts_kind kind;
};

static void cpu_vision_store_row(void *ctx, uint32_t r) {
    const struct storing *s = ctx;

    s->b->kernels->acts_store[s->kind](s->in + (size_t)r * s->n_in, s->n_in,
                                       s->b->acts[s->kind] + acts_bytes(s->kind, s->n_in, r));
}

/* Implements vis_ops.linear. */
static void cpu_vision_linear(struct vis_be *b, const struct vis_mat *m, const float *in,
                              uint32_t n_rows, float *out, bool add) {
    enum acts_kind kind = panel_infos[m->m.format].acts;
    struct storing s = {b, in, m->m.n_in, kind};
    struct matmul mm = {
        .kernels = b->kernels,
        .mode = add ? MATMUL_ADD : MATMUL_STORE,
        .n_mats = 1,
        .n_rows = n_rows,
        .m = {&m->m},
        .out = {out},
        .out_stride = {m->m.n_out},
        .scratch = b->scratch,
    };

    assert(n_rows <= b->host.sizes.max_rows && m->m.n_in <= b->host.sizes.max_in);
    mm.acts[kind] = b->acts[kind];
    cpu_vision_each(b, n_rows, cpu_vision_store_row, &s);
    matmul_run(b->pool, &mm, 1);
}

/* Attention of head h among the rows [first, first + n). */
struct head {
    struct vis_be *b;
    const struct vis_attend *a;
    uint32_t h, first, n;
    struct packed p;
    /* the first block that is computed */
    uint32_t block0;
};

/* Returns the query (@which 0), key (1) or value (2) of row first + @r. */
static const float *part(const struct head *h, uint32_t r, uint32_t which) {
    const struct vis_sizes *s = &h->b->host.sizes;
    size_t n_embd = (size_t)s->n_head * s->head_dim;

    return h->b->host.qkv + ((size_t)(h->first + r) * 3 + which) * n_embd +
           (size_t)h->h * s->head_dim;
}

/* Returns a matrix [n_out][n_in] of floats at @data. */
static struct mat cpu_vision_matrix(uint8_t *data, uint32_t n_out, uint32_t n_in) {
    return (struct mat){
        .format = PANEL_F32,
        .n_out = n_out,
        .n_in = n_in,
        .n_blocks = n_in,
        .n_panels = (n_out + LANES - 1) / LANES,
        .panel_bytes = (size_t)n_in * LANES * sizeof(float),
        .data = data,
    };
}

/* Sets the head's matrices, whose memory begins at @panel. */
static void set_packed(struct head *h, uint8_t *panel) {
    uint32_t dim = h->b->host.sizes.head_dim;

    h->p.keys = cpu_vision_matrix(panel, h->n, dim);
    h->p.values = cpu_vision_matrix(panel + keys_bytes(h->n, dim), dim, h->n);
}

/* Packs keys [16 i, 16 i + 16) and their values. Lanes of the last panel of values that are no
 * dimension stay as they are: cpu_vision_multiply() does not read their sums. */
static void pack_keys(void *ctx, uint32_t i) {
    const struct head *h = ctx;
    uint32_t dim = h->b->host.sizes.head_dim, n = MIN(h->n - i * LANES, (uint32_t)LANES);
    float *k = (float *)(h->p.keys.data + i * h->p.keys.panel_bytes);

    memset(k, 0, h->p.keys.panel_bytes);
    for (uint32_t j = 0; j < n; j++) {
        const float *key = part(h, i * LANES + j, 1), *value = part(h, i * LANES + j, 2);

        for (uint32_t d = 0; d < dim; d++)
            k[d * LANES + j] = key[d];
        for (uint32_t p = 0; p < h->p.values.n_panels; p++) {
            float *v = (float *)(h->p.values.data + p * h->p.values.panel_bytes) +
                       (size_t)(i * LANES + j) * LANES;
            uint32_t m = MIN(dim - p * LANES, (uint32_t)LANES);

            memcpy(v, value + p * LANES, m * sizeof(float));
        }
    }
}

/* Multiplies a block of @n rows by @m: out[r * stride + i] = scale[r] times the product of row r
 * and row i of @m, for i < @width. @scale NULL: 1. */
static void cpu_vision_multiply(const struct head *h, const struct mat *m, const uint8_t *acts,
                                uint32_t n, float *out, size_t stride, uint32_t width,
                                const float *scale) {
    float acc[BLOCK * LANES * 2] __attribute__((aligned(64)));

    for (uint32_t p = 0; p < m->n_panels; p++) {
        matmul_panels(h->b->kernels, m, p, 1, acts, n, acc, NULL);
        for (uint32_t r = 0; r < n; r++) {
            float *to = out + r * stride + (size_t)p * LANES;

            for (uint32_t i = 0; i < MIN(width - p * LANES, (uint32_t)LANES); i++)
                to[i] = acc[r * LANES + i] * (scale ? scale[r] : 1);
        }
    }
}

/* Computes block @i of the head: rows [BLOCK * i, BLOCK * i + BLOCK). */
static void attend_block(const struct head *h, uint32_t i, const struct lane *l) {
    uint32_t dim = h->b->host.sizes.head_dim, n = MIN(h->n - i * BLOCK, (uint32_t)BLOCK);
    size_t n_embd = (size_t)h->b->host.sizes.n_head * dim;
    size_t stride = acts_bytes(ACTS_F, h->n, 1) / sizeof(float);
    uint32_t padded = (uint32_t)round_up(h->n, LANES);
    float inverse[BLOCK];

    for (uint32_t r = 0; r < n; r++)
        memcpy(l->acts + acts_bytes(ACTS_F, dim, r), part(h, i * BLOCK + r, 0),
               dim * sizeof(float));
    cpu_vision_multiply(h, &h->p.keys, l->acts, n, l->scores, stride, padded, NULL);
    for (uint32_t r = 0; r < n; r++) {
        float *s = l->scores + r * stride;

        for (uint32_t k = h->n; k < padded; k++)
            s[k] = -INFINITY;
        inverse[r] = 1 / h->b->kernels->exps(s, padded, h->a->scale);
    }
    float *out = h->a->out + (size_t)(h->first + i * BLOCK) * n_embd + (size_t)h->h * dim;
    cpu_vision_multiply(h, &h->p.values, (const uint8_t *)l->scores, n, out, n_embd, dim, inverse);
}

/* Implements each_fn: computes a block of a head. */
static void do_block(void *ctx, uint32_t i, uint32_t thread) {
    const struct head *h = ctx;

    attend_block(h, h->block0 + i, &h->b->lane[thread]);
}

/* Computes rows [first, first + n) of head @head among all patches of the picture. The keys and
 * values of the head are packed when @first is 0. */
static void attend_head(struct vis_be *b, const struct vis_attend *a, uint32_t head, uint32_t first,
                        uint32_t n) {
    struct head h = {.b = b, .a = a, .h = head, .n = a->n_patches, .block0 = first / BLOCK};

    assert(first % BLOCK == 0 && (n % BLOCK == 0 || first + n == h.n));
    assert(h.n <= b->host.sizes.max_keys);
    set_packed(&h, b->panel);
    if (first == 0)
        cpu_vision_each(b, (h.n + LANES - 1) / LANES, pack_keys, &h);
    pool_each(b->pool, (n + BLOCK - 1) / BLOCK, do_block, &h);
}

/* Implements vis_ops.attend_blocks. */
static void cpu_vision_attend_blocks(struct vis_be *b, const struct vis_attend *a, uint32_t first,
                                     uint32_t n) {
    uint32_t each_head = vis_head_blocks(a->n_patches);

    for (uint32_t i = first, more; i < first + n; i += more) {
        uint32_t row = i % each_head * VIS_HEAD_ROWS;

        more = MIN(each_head - i % each_head, first + n - i);
        attend_head(b, a, i / each_head, row, MIN(more * VIS_HEAD_ROWS, a->n_patches - row));
    }
}

/* Context of do_window(). */
struct windows {
    struct vis_be *b;
    const struct vis_attend *a;
};

/* Implements each_fn: computes head i % n_head of window i / n_head. */
static void do_window(void *ctx, uint32_t i, uint32_t thread) {
    const struct windows *w = ctx;
    uint32_t n_head = w->b->host.sizes.n_head, s = i / n_head, first = w->a->start[s];
    struct head h = {
        .b = w->b, .a = w->a, .h = i % n_head, .first = first, .n = w->a->start[s + 1] - first};

    set_packed(&h, w->b->lane[thread].panel);
    for (uint32_t k = 0; k < (h.n + LANES - 1) / LANES; k++)
        pack_keys(&h, k);
    for (uint32_t k = 0; k < (h.n + BLOCK - 1) / BLOCK; k++)
        attend_block(&h, k, &w->b->lane[thread]);
}

/* Implements vis_ops.attend. */
static void cpu_vision_attend(struct vis_be *b, const struct vis_attend *a) {
    assert(a->longest <= PROJECTOR_WINDOW_MAX * PROJECTOR_WINDOW_MAX);
    pool_each(b->pool, a->n_segments * b->host.sizes.n_head, do_window, &(struct windows){b, a});
}

const struct vis_ops vis_cpu = {
    .name = "cpu",
    .open = cpu_vision_open_be,
    .close = cpu_vision_close_be,
    .open_bytes = cpu_vision_open_bytes,
    VIS_HOST_OPS,
    .load = cpu_vision_load,
    .linear = cpu_vision_linear,
    .attend = cpu_vision_attend,
    .attend_blocks = cpu_vision_attend_blocks,
};
