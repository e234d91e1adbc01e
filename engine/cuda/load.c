/*
 * load - loads weights from the file to the device. A piece of the file (whole rows of tiles) is
 * copied to one of two pinned buffers, sent to the device, and repacked there while the next piece
 * is read.
 */

#include "engine/cuda/cuda.h"
#include "engine/cuda/ranks/ranks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/try.h"
#include "engine/quant.h"
#include "engine/shared/blocks.h"

/* Takes @bytes of @from, whose size was counted before; while it is counted, *out is NULL. Returns
 * 0, or -ENOMEM with @err. */
static int own(struct pool *from, size_t bytes, void **out, struct err *err) {
    size_t n = round_up(MAX(bytes, 1), 512);

    if (n > from->size - from->used) {
        err_set(err, 0, NULL,
                "loading weights: a tensor is larger than when memory was counted; the file may "
                "have changed: start weft again");
        return -ENOMEM;
    }
    *out = from->at ? from->at + from->used : NULL;
    from->used += n;
    return 0;
}

/* Waits until buffer @i may be filled. */
static int wait_buffer(struct be *b, int i) {
    bool busy = b->load.buffer[i].busy;

    b->load.buffer[i].busy = false;
    return busy ? cuda_wait_event(b, b->load.buffer[i].event, "a copy of weights") : 0;
}

/* Starts to copy @n bytes of the file to @to through buffer @i. The caller marks the buffer busy.
 * Returns 0 or -EIO. */
static int send_piece(struct be *b, int i, const uint8_t *from, size_t n, void *to) {
    TRY(wait_buffer(b, i));
    assert(n <= b->load.bytes && !b->load.buffer[i].busy);
    memcpy(b->load.buffer[i].host, from, n);
    return cuda_copy(b, to, b->load.buffer[i].host, n, CUDA_TO_DEVICE);
}

/* Marks buffer @i busy until the work that was enqueued has read it. */
static int mark_busy(struct be *b, int i) {
    b->load.buffer[i].busy = true;
    return cuda_check(b, b->api->event_record(b->load.buffer[i].event, b->stream),
                      "cudaEventRecord");
}

int cuda_load_wait(struct be *b) {
    TRY(mark_busy(b, 0));
    return wait_buffer(b, 0);
}

/* Copies @n bytes to the device unchanged. */
int cuda_load_bytes(struct be *b, const void *data, size_t n, void *to) {
    const uint8_t *from = data;

    for (size_t at = 0, k = 0; at < n; k++) {
        size_t part = MIN(n - at, b->load.bytes);

        TRY(send_piece(b, k % 2, from + at, part, (uint8_t *)to + at));
        TRY(mark_busy(b, k % 2));
        at += part;
    }
    return 0;
}

/* Copies @n bytes to new memory of the weights. Returns 0 or -errno. */
static int own_bytes(struct be *b, const void *data, size_t n, void **out, struct err *err) {
    TRY(own(&b->load.weights, n, out, err));
    return cuda_counts(b) ? 0 : cuda_load_bytes(b, data, n, *out);
}

/* Loads a vector unchanged; *out stays NULL if @t is NULL. Returns 0 or -errno. */
static int load_vector(struct be *b, const struct tensor *t, float **out, struct err *err) {
    assert(!*out);
    return t ? own_bytes(b, t->data, t->n_bytes, (void **)out, err) : 0;
}

/* Returns the first @n_rows rows of @t, which are at @data on the device. */
static struct tile_source source_of(const struct be *b, const struct tensor *t, const uint8_t *data,
                                    uint32_t n_rows) {
    return (struct tile_source){
        .data = data,
        .grids = b->load.grids,
        .row_bytes = t->row_bytes,
        .type = (uint32_t)t->format->type,
        .block = t->format->block,
        .block_bytes = t->format->block_bytes,
        .n_rows = n_rows,
        .n_in = (uint32_t)t->ne[0],
    };
}

/* Repacks rows [row, row + n) of a matrix; @row is a multiple of 16. */
static int repack_piece(struct be *b, const struct tensor *t, const struct matrix *m, int i,
                        uint32_t row, uint32_t n) {
    assert(row % TILE_ROWS == 0 && n > 0 && row + n <= t->ne[1] * t->ne[2]);
    uint32_t tiles = (n + TILE_ROWS - 1) / TILE_ROWS;

    TRY(send_piece(b, i, t->data + row * t->row_bytes, n * t->row_bytes, b->load.buffer[i].device));
    struct repack_args a = {
        .source = source_of(b, t, b->load.buffer[i].device, n),
        .tiles =
            (uint8_t *)m->tiles + (size_t)(row / TILE_ROWS) * m->n_units * tile_bytes(m->format),
        .format = m->format,
        .n_units = m->n_units,
        .found = b->load.found,
    };
    assert((size_t)m->n_units * tile_k(m->format) >= t->ne[0]);
    TRY(CUDA_LAUNCH(b, repack, m->n_units, tiles, CUDA_THREADS, &a));
    return mark_busy(b, i);
}

/* Returns how many rows a piece has at most: those that fit in a buffer, and in a grid, whose y is
 * at most 65535. */
static uint32_t rows_at_once(const struct be *b, const struct tensor *t) {
    size_t rows = b->load.bytes / t->row_bytes / TILE_ROWS * TILE_ROWS;

    assert(rows > 0); /* load_bytes holds a row of tiles of the file's widest tensor */
    return (uint32_t)MIN(rows, 65535u * TILE_ROWS);
}

/* Waits, and returns -EINVAL with @err if repack() has found a number that exceeds half
 * precision. */
static int check_values(struct be *b, const struct tensor *t, struct err *err) {
    TRY(cuda_copy(b, b->load.found_host, b->load.found, sizeof(*b->load.found), CUDA_TO_HOST));
    TRY(cuda_load_wait(b));
    if (b->load.found_host->bad)
        return err_set(err, 0, NULL,
                       "tensor '%s' holds numbers beyond half precision, in which backend "
                       "'cuda' computes: use --backend cpu",
                       t->name);
    return 0;
}

int cuda_scale_tiles(struct be *b, struct matrix *m, uint32_t n_row_tiles, float most) {
    uint32_t n_tiles = n_row_tiles * m->n_units, warps = CUDA_THREADS / 32;
    struct scale_args a = {(uint8_t *)m->tiles, m->format, n_tiles, tile_unit(m->format, most)};

    m->inverse *= tile_power_of_two(-a.unit);
    TRY(CUDA_LAUNCH(b, scale_tiles, (n_tiles + warps - 1) / warps, 1, CUDA_THREADS, &a));
    /* matvec, launched early, reads tiles before the previous kernel has ended */
    return cuda_load_wait(b);
}

/* The parts of a tensor that form a matrix: parts of @n rows, @stride apart, from row @first on.
 * Each part begins with a row tile of its own. @layer is 1 + the layer whose experts on the host
 * are skipped; 0: no part is skipped. */
struct parts {
    uint32_t n_parts, n, stride, first, layer;
};

/* Returns all rows of a matrix, or of the matrices of experts. The latter are one part if each has
 * whole row tiles. */
static struct parts all_rows(const struct tensor *t) {
    uint32_t n_out = (uint32_t)t->ne[1], n = (uint32_t)t->ne[2];

    return n_out % TILE_ROWS ? (struct parts){n, n_out, n_out, 0, 0}
                             : (struct parts){1, n_out * n, n_out * n, 0, 0};
}

/* Returns matrix @i of all experts that the device has or fetches; of each only the rank's rows. */
static struct parts expert_rows(const struct be *b, const struct model_op *op, int i) {
    uint32_t n_out = (uint32_t)op->w[i]->ne[1], first = rank_cut(n_out, b->group.rank, b->group.n);
    uint32_t n = rank_cut(n_out, b->group.rank + 1, b->group.n) - first;

    if (b->group.n > 1)
        return (struct parts){b->shape->n_expert, n, n_out, first, 0};
    if (!n_host_experts(b->shape, op->layer))
        return all_rows(op->w[i]);
    if (b->shape->fetches) {
        struct parts p = all_rows(op->w[i]);

        p.layer = 1 + op->layer;
        return p;
    }
    return (struct parts){b->shape->n_expert, n_out, n_out, 0, 1 + op->layer};
}

/* Returns the gates (@half 0) or the ups of all experts, if the tensor has both for each expert; of
 * each only the rank's rows. */
static struct parts half_of_experts(const struct be *b, const struct model_op *op, uint32_t half) {
    uint32_t n = (uint32_t)op->w[0]->ne[1] / 2, first = rank_cut(n, b->group.rank, b->group.n);
    uint32_t own = rank_cut(n, b->group.rank + 1, b->group.n) - first;

    return (struct parts){(uint32_t)op->w[0]->ne[2], own, 2 * n, half * n + first, 1 + op->layer};
}

/* Returns true if part @i is on the device or fetched by it. */
static bool has_part(const struct be *b, const struct parts *p, uint32_t i) {
    return p->layer == 0 || b->shape->fetches || !expert_is_hosts(b->shape, p->layer - 1, i);
}

/* Returns the queries of all heads, or the gates, which follow the queries of each head. */
static struct parts half_of_heads(const struct heads *h, bool gates) {
    return (struct parts){h->n, h->dim, 2 * h->dim, gates ? h->dim : 0, 0};
}

/* Repacks the parts of @t to the tiles of @m, consecutively. */
static int repack_all(struct be *b, const struct tensor *t, const struct matrix *m,
                      const struct parts *p) {
    uint32_t at_once = rows_at_once(b, t), k = 0;
    struct tensor part = *t;
    struct matrix to = *m;

    part.data += p->first * t->row_bytes;
    for (uint32_t i = 0; i < p->n_parts; i++, part.data += p->stride * t->row_bytes) {
        if (!has_part(b, p, i))
            continue;
        for (uint32_t row = 0; row < p->n; row += at_once, k++)
            TRY(repack_piece(b, &part, &to, k % 2, row, MIN(p->n - row, at_once)));
        to.tiles += tile_matrix_bytes(m->format, p->n, (uint32_t)t->ne[0]);
    }
    return 0;
}

/* Returns the first value of an F32 tensor. */
static float first_of(const struct tensor *t) {
    float f;

    memcpy(&f, t->data, sizeof(f));
    return f;
}

/* Loads a vector with a part for each expert: values [first, first + n) of the parts of the
 * device's experts; @n 0: all values. *out stays NULL if @t is NULL. */
static int load_expert_vector(struct be *b, const struct tensor *t, const struct parts *p,
                              uint32_t first, uint32_t n, float **out, struct err *err) {
    size_t each = t ? t->n_bytes / b->shape->n_expert : 0;
    size_t bytes = n ? n * sizeof(float) : each;

    if (!t)
        return 0;
    struct tensor part = *t;
    assert(first * sizeof(float) + bytes <= each);
    part.n_bytes = 0;
    for (uint32_t i = 0; i < b->shape->n_expert; i++)
        part.n_bytes += has_part(b, p, i) ? bytes : 0;
    if (cuda_counts(b))
        return load_vector(b, &part, out, err);
    CLEANUP(freep) uint8_t *all = malloc(MAX(part.n_bytes, 1));
    if (!all)
        return -ENOMEM;
    uint8_t *to = all;
    for (uint32_t i = 0; i < b->shape->n_expert; i++)
        if (has_part(b, p, i)) {
            memcpy(to, t->data + i * each + first * sizeof(float), bytes);
            to += bytes;
        }
    part.data = all;
    return load_vector(b, &part, out, err);
}

/* Copies the tiles of those experts of @layer that begin in a slot from host memory, which @m names
 * so far, to the slots at @to, with @each bytes for an expert, and makes @m name the slots. */
static int fill_slots(struct be *b, struct matrix *m, uint32_t layer, size_t each, uint8_t *to) {
    const uint8_t *from = m->tiles;

    m->tiles = to;
    for (uint32_t e = 0; e < b->shape->n_expert; e++, from += each)
        if (!expert_is_hosts(b->shape, layer, e)) {
            TRY(cuda_copy(b, to, from, each, CUDA_TO_DEVICE));
            to += each;
        }
    return 0;
}

/* Fills the tiles of @m, @n_tiles rows of them, and sets *most to their largest scale. A rank's
 * tiles are scaled later (ranks_load.c). */
static int fill_tiles(struct be *b, const struct tensor *t, const struct parts *p, struct matrix *m,
                      uint32_t n_tiles, float *most, struct err *err) {
    TRY(cuda_fill(b, b->load.found, 0, sizeof(*b->load.found)));
    TRY(repack_all(b, t, m, p));
    TRY(check_values(b, t, err));
    *most = mx_float_of((uint32_t)b->load.found_host->most);
    return b->group.n == 1 ? cuda_scale_tiles(b, m, n_tiles, *most) : 0;
}

/* Loads a matrix: file -> pinned buffer -> device -> tiles, with two buffers alternately, so that
 * one piece is repacked while the next is read. */
static int load_parts(struct be *b, struct weights *w, const struct tensor *t,
                      const struct parts *p, const struct tensor *bias, float *y, struct err *err) {
    assert(w->n_mats < ARRAY_SIZE(w->m));
    assert(p->n > 0 && p->first + (p->n_parts - 1ull) * p->stride + p->n <= t->ne[1] * t->ne[2]);
    struct matrix *m = &w->m[w->n_mats++];
    uint32_t n_out = p->n_parts * p->n / (uint32_t)t->ne[2], n_in = (uint32_t)t->ne[0];
    uint32_t n_hosts = p->layer ? n_host_experts(b->shape, p->layer - 1) : 0;
    float *bias_at = NULL, *scale_at = NULL;
    bool fetched = n_hosts > 0 && b->shape->fetches;
    void *d, *far = NULL;

    w->n_experts = (uint32_t)t->ne[2] - (fetched ? 0 : n_hosts);
    *m = (struct matrix){
        .format = tile_format_of(t->format->type),
        .n_out = n_out,
        .y = y,
        .inverse = t->scale && t->ne[2] == 1 ? first_of(t->scale) : 1,
    };
    matrix_cut(m, n_in);
    w->n_in = n_in;
    size_t each = tile_matrix_bytes(m->format, n_out, n_in);
    TRY(own(&b->load.weights, each * ((uint32_t)t->ne[2] - n_hosts), &d, err));
    if (fetched)
        TRY(own(&b->load.host, each * w->n_experts, &far, err));
    w->host[m - w->m] = far;
    m->tiles = fetched ? far : d;
    if (!cuda_counts(b)) {
        m->grid = tile_grid_of(t->format->type, b->load.tile_grids);
        TRY(fill_tiles(b, t, p, m, m->n_row_tiles * w->n_experts, &w->most[m - w->m], err));
        TRY(fetched ? fill_slots(b, m, p->layer - 1, each, d) : 0);
    }
    bool some = b->group.n > 1; /* a rank has some rows of each expert */
    if (t->ne[2] > 1) {
        TRY(load_expert_vector(b, t->scale, p, 0, 0, &scale_at, err));
        TRY(load_expert_vector(b, bias, p, some ? p->first : 0, some ? p->n : 0, &bias_at, err));
    } else {
        TRY(load_vector(b, bias, &bias_at, err));
    }
    m->scale = scale_at;
    m->bias = bias_at;
    return 0;
}

/* Reuses the matrix of another op for @w if it is that of @t and its product has the same place. A
 * block drafter uses some matrices twice, and the model's output matrix. While weights are counted,
 * all places are NULL: no model has a matrix with two places. */
static bool share_matrix(const struct be *b, struct weights *w, const struct tensor *t,
                         const float *y) {
    for (const struct weights *k = b->weights; k; k = k->next)
        for (uint32_t i = 0; i < k->n_mats; i++)
            if (k->of[i] == t && k->m[i].y == y) {
                w->m[w->n_mats] = k->m[i];
                w->most[w->n_mats++] = k->most[i];
                w->n_in = k->n_in;
                w->n_experts = k->n_experts;
                return true;
            }
    return false;
}

/* Loads @t as the next matrix of @w, with its bias (or NULL) and the place of its product. */
static int load_matrix(struct be *b, struct weights *w, const struct tensor *t,
                       const struct tensor *bias, float *y, struct err *err) {
    const struct parts all = all_rows(t);
    bool plain = b->group.n == 1 && !bias;

    if (plain && share_matrix(b, w, t, y))
        return 0;
    w->of[w->n_mats] = plain ? t : NULL;
    return load_parts(b, w, t, &all, bias, y, err);
}

/* Returns true if @t is also the output matrix. In a model without one the embedding serves as
 * both, so only tiles are stored, unless several devices share the model. */
static bool comes_as_output(const struct be *b, const struct tensor *t) {
    return b->group.n == 1 && has_last_layer(b) && !gguf_find(b->opts->file, "output.weight") &&
           t == gguf_find(b->opts->file, "token_embd.weight") &&
           tile_is_legible((uint32_t)t->format->type);
}

/* Loads the rows of the embedding unchanged, unless the tiles of the output matrix serve as
 * both. */
static int load_embedding(struct be *b, struct weights *w, const struct tensor *t,
                          struct err *err) {
    void *d = NULL;

    if (!comes_as_output(b, t))
        TRY(own_bytes(b, t->data, t->n_bytes, &d, err));
    w->n_in = (uint32_t)t->ne[0];
    w->embedding = t;
    w->raw = source_of(b, t, d, (uint32_t)t->ne[1]);
    return 0;
}

/* Gives the tiles of the output matrix to an embedding without rows of its own. */
static void lend_tiles(struct be *b, const struct weights *from, const struct tensor *t) {
    for (struct weights *w = b->weights; w; w = w->next)
        if (w->embedding == t && !w->raw.data)
            w->m[0] = from->m[0];
}

/* Returns the place of the product with matrix @i of an op; NULL while weights are counted. */
static float *target_of(const struct be *b, const struct model_op *op, int i) {
    enum op_kind kind = op->kind;
    float *const qkv[3] = {b->act.q, b->act.k, b->act.v}, *const gate_up[2] = {b->act.gate,
                                                                               b->act.up};
    float *const experts[3] = {b->experts.gate, b->experts.up, b->experts.y};
    const struct condensed *c = &b->condensed;
    float *const csa_in[3] = {c->r, c->key, c->t}, *const mix[3] = {b->streams.gate, c->low,
                                                                    c->weight};
    float *const index[2] = {b->indexer.q, b->sparse.k};
    float *const mla_in[2] = {b->act.k, b->shape->mla.q_rank ? b->latent.r : b->latent.q};

    return cuda_counts(b)           ? NULL
           : kind == OP_MIX         ? mix[i]
           : kind == OP_NGRAM       ? (i ? b->act.q : b->streams.gate)
           : kind == OP_HC_IN       ? c->low
           : kind == OP_CSA_IN      ? csa_in[i]
           : kind == OP_CSA_Q       ? b->act.q
           : kind == OP_COMPRESS    ? (i ? c->g : c->u)
           : kind == OP_CSA_INDEX   ? b->indexer.q
           : kind == OP_CSA_OUT     ? b->recurrent.out
           : kind == OP_QKV         ? qkv[i]
           : kind == OP_INDEX       ? index[i]
           : kind == OP_KEYS        ? qkv[1 + i]
           : kind == OP_DRAFT_IN    ? b->act.x
           : kind == OP_FUSE        ? b->act.o /* after the logits, whose hidden states are in x */
           : kind == OP_BLOCK_IN    ? b->draft.d
           : kind == OP_SELECT      ? b->draft.g
           : kind == OP_GATE        ? b->act.q
           : kind == OP_GATE_UP     ? gate_up[i]
           : kind == OP_GATE_IN     ? b->act.gate
           : kind == OP_LAYER_INPUT ? b->act.layer_input
           : kind == OP_ROUTE       ? b->experts.logits
           : kind == OP_EXPERTS     ? experts[i]
           : op->parts              ? recurrent_part(b, (uint32_t)i)
           : kind == OP_STATE_IN    ? b->recurrent.in[op->first + i]
           : kind == OP_MLA_IN      ? mla_in[i]
           : kind == OP_MLA_Q       ? b->latent.q
           : kind == OP_MLA_KV      ? b->act.q
           : kind == OP_MLA_OUT     ? b->act.q
           : kind == OP_PROJ        ? residual_target(b, op)
           : b->group.n > 1         ? b->sampling.z
                                    : b->sampling.logits;
}

/* Returns empty weights, which cuda_unload() frees; NULL without memory. */
static struct weights *weights_new(struct be *b) {
    struct weights *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    w->next = b->weights;
    b->weights = w;
    return w;
}

/* Loads @n tensors of any type and equal size as floats, consecutively, transposed to
 * [columns][rows]. */
static int load_decoded(struct be *b, const struct tensor *const t[], uint32_t n, float **out,
                        struct err *err) {
    size_t each = t[0]->ne[1] * t[0]->ne[2], n_rows = n * each, n_columns = t[0]->ne[0];
    size_t bytes = n_rows * n_columns * sizeof(float);

    if (cuda_counts(b))
        return own_bytes(b, NULL, bytes, (void **)out, err);
    CLEANUP(freep) float *all = malloc(bytes);
    if (!all)
        return -ENOMEM;
    for (size_t r = 0; r < n_rows; r++) {
        const struct tensor *of = t[r / each];
        const struct tensor_format *f = of->format;
        const uint8_t *row = of->data + r % each * of->row_bytes;

        for (size_t i = 0; i < n_columns; i++)
            all[i * n_rows + r] = (of->scale ? first_of(of->scale) : 1) *
                                  blk_value((uint32_t)f->type, row + i / f->block * f->block_bytes,
                                            i % f->block, &quant_grids);
    }
    return own_bytes(b, all, bytes, (void **)out, err);
}

/* Loads a shared expert. Its down projection has rows of another size, and its gate is a vector. */
static int load_shared(struct be *b, struct weights *w, const struct model_op *op,
                       struct err *err) {
    struct weights *down = weights_new(b);

    if (!down)
        return -ENOMEM;
    w->down = down;
    TRY(load_matrix(b, w, op->w[0], NULL, b->act.gate, err));
    TRY(load_matrix(b, w, op->w[1], NULL, b->act.up, err));
    TRY(load_matrix(b, down, op->w[2], NULL, b->experts.shared, err));
    return load_decoded(b, &op->w[3], 1, &w->gate, err);
}

/* Loads a MIX: w[1] and w[2] multiply the streams; w[0] multiplies the low-rank result of w[1], and
 * becomes @w->down. */
static int load_mix(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    w->down = weights_new(b);
    if (!w->down)
        return -ENOMEM;
    TRY(load_matrix(b, w->down, op->w[0], NULL, target_of(b, op, 0), err));
    for (int i = 1; i < 3; i++)
        TRY(op->w[i] ? load_matrix(b, w, op->w[i], NULL, target_of(b, op, i), err) : 0);
    return 0;
}

/* Loads queries and their gates, which the file has head by head, as two matrices. */
static int load_gated(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    const struct parts q = half_of_heads(&op->heads, false), gate = half_of_heads(&op->heads, true);

    TRY(load_parts(b, w, op->w[0], &q, NULL, b->act.q, err));
    if (op->w[1])
        TRY(load_matrix(b, w, op->w[1], op->bias[1], b->act.k, err));
    if (op->w[2])
        TRY(load_matrix(b, w, op->w[2], op->bias[2], b->act.v, err));
    return load_parts(b, w, op->w[0], &gate, NULL, b->act.o_gate, err);
}

/* Loads gates and ups that are one tensor as two matrices. */
static int load_joined(struct be *b, struct weights *w, const struct model_op *op,
                       struct err *err) {
    const struct parts gate = half_of_experts(b, op, 0), up = half_of_experts(b, op, 1);
    const struct parts down = expert_rows(b, op, 2);

    TRY(load_parts(b, w, op->w[0], &gate, NULL, b->experts.gate, err));
    TRY(load_parts(b, w, op->w[0], &up, NULL, b->experts.up, err));
    return load_parts(b, w, op->w[2], &down, op->bias[2], b->experts.y, err);
}

/* Loads the device's experts, and hands the host's to its backend. */
static int load_experts(struct be *b, struct weights *w, const struct model_op *op,
                        struct err *err) {
    uint32_t n_host = n_host_experts(b->shape, op->layer);

    if (n_host && !cuda_counts(b))
        TRY(b->shape->fetches ? experts_load_slots(b, op->layer)
                              : experts_load_host(b, w, op, err));
    if (n_host == b->shape->n_expert && !b->shape->fetches)
        return 0;
    if (op->joined)
        return load_joined(b, w, op, err);
    for (int i = 0; i < OP_MATRICES; i++)
        /* GLU_RELU: the gate is also the up */
        if (op->w[i] && (i == 0 || op->w[i] != op->w[i - 1])) {
            const struct parts p = expert_rows(b, op, i);

            TRY(load_parts(b, w, op->w[i], &p, op->bias[i], target_of(b, op, i), err));
        }
    return 0;
}

/* Loads a table whose rows are decoded when they are used. */
static int load_table(struct be *b, const struct tensor *t, struct tile_source *out,
                      struct err *err) {
    void *d = NULL;
    int r = own_bytes(b, t->data, t->n_bytes, &d, err);

    *out = source_of(b, t, d, (uint32_t)t->ne[1]);
    return r;
}

/* Loads a matrix that multiplies the row, and one or two tables. */
static int load_with_tables(struct be *b, struct weights *w, const struct model_op *op,
                            struct err *err) {
    TRY(load_matrix(b, w, op->w[0], NULL, target_of(b, op, 0), err));
    TRY(load_table(b, op->w[1], &w->raw, err));
    return op->w[2] ? load_table(b, op->w[2], &w->after_raw, err) : 0;
}

/* Loads the parts of an output, which are one tensor, with the first of their ops, as matrices of
 * experts. */
static int load_output_parts(struct be *b, struct weights *w, const struct model_op *op,
                             struct err *err) {
    struct tensor all = *op->w[0];
    uint32_t n = b->shape->condensed.n_group;

    if (op->part)
        return 0;
    all.ne[2] = n;
    all.n_dims = 3;
    all.n_bytes *= n;
    all.scale = NULL; /* one number for all parts, applied below */
    const struct parts rows = all_rows(&all);
    TRY(load_parts(b, w, &all, &rows, NULL, target_of(b, op, 0), err));
    w->m[0].inverse *= op->w[0]->scale ? first_of(op->w[0]->scale) : 1;
    return 0;
}

/* Loads ones as the weights of a norm without weights. */
static int load_ones(struct be *b, float **out, struct err *err) {
    size_t n = b->shape->n_embd;
    CLEANUP(freep) float *ones = malloc(n * sizeof(*ones));

    if (!ones)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        ones[i] = 1;
    return own_bytes(b, ones, n * sizeof(*ones), (void **)out, err);
}

/* Uses the buffer of rows that a step copies (ngram.c) as the table, which stays in the file. */
static void name_table(const struct be *b, struct weights *w, const struct model_op *op) {
    uint32_t n = b->opts->max_rows * ngram_n_rows(b->shape);

    w->raw = source_of(b, op->table, b->streams.rows, n);
}

/* Loads all tensors of an op. Returns 0 or -errno. */
static int load_tensors(struct be *b, struct weights *w, const struct model_op *op,
                        struct err *err) {
    TRY(op->kind == OP_NORM && !op->norm ? load_ones(b, &w->norm, err)
                                         : load_vector(b, op->norm, &w->norm, err));
    TRY(load_vector(b, op->post_norm, &w->post_norm, err));
    TRY(load_vector(b, op->q_norm, &w->q_norm, err));
    TRY(load_vector(b, op->k_norm, &w->k_norm, err));
    TRY(load_vector(b, op->pick_bias, &w->pick_bias, err));
    TRY(op->kind == OP_BLOCK_IN || op->kind == OP_BLOCK_OUT || op->kind == OP_COMPRESS
            ? load_decoded(b, &op->weigh, 1, &w->weigh, err)
            : load_vector(b, op->weigh, &w->weigh, err));
    TRY(load_vector(b, op->sinks, &w->sinks, err));
    TRY(load_vector(b, op->dt, &w->dt, err));
    TRY(load_vector(b, op->decay, &w->decay, err));
    TRY(load_vector(b, op->skip, &w->skip, err));
    TRY(load_vector(b, op->conv_bias, &w->conv_bias, err));
    const struct tensor *const conv[] = {op->conv, op->conv_more[0], op->conv_more[1]};
    if (op->conv)
        TRY(load_decoded(b, conv, op->conv_more[0] ? 3 : 1, &w->taps, err));
    if (op->kind == OP_EMBED)
        return load_embedding(b, w, op->w[0], err);
    if (op->kind == OP_SHARED)
        return load_shared(b, w, op, err);
    if (op->kind == OP_MIX)
        return load_mix(b, w, op, err);
    if (op->kind == OP_NGRAM)
        name_table(b, w, op);
    if (op->kind == OP_LAYER_INPUT || op->kind == OP_SELECT)
        return load_with_tables(b, w, op, err);
    if (op->kind == OP_CHAIN) {
        TRY(load_table(b, op->w[1], &w->raw, err));
        return load_table(b, op->w[0], &w->after_raw, err);
    }
    if (op->kind == OP_CSA_OUT)
        return load_output_parts(b, w, op, err);
    if (op->kind == OP_ROUTE)
        b->experts.norm = op->norm;
    if (op->kind == OP_ROUTE && op->table)
        TRY(load_table(b, op->table, &w->raw, err));
    if (op->kind == OP_EXPERTS)
        return load_experts(b, w, op, err);
    if (op->kind == OP_GATE_UP && ffn_is_hosts(b->shape, op->layer))
        return cuda_counts(b) ? 0 : ffn_load_host(b, w, op, err);
    if (op->kind == OP_PROJ && op->in == ACT_H && ffn_is_hosts(b->shape, op->layer))
        return 0;
    if (op->gated)
        return load_gated(b, w, op, err);
    for (int i = 0; i < OP_MATRICES; i++)
        /* GLU_RELU: the gate is also the up */
        if (op->w[i] && (i == 0 || op->w[i] != op->w[i - 1]))
            TRY(load_matrix(b, w, op->w[i], op->bias[i], target_of(b, op, i), err));
    if (op->kind == OP_LOGITS)
        lend_tiles(b, w, op->w[0]);
    return 0;
}

int cuda_load(struct be *b, const struct model_op *op, struct weights **out, struct err *err) {
    struct weights *w = weights_new(b);

    assert(op_has_weights(op));
    if (!w)
        return -ENOMEM;
    if (op_has_pages(op)) {
        const struct page_shape page = cuda_page_shape(b, &op->heads);
        struct kv_class *kv = &b->kv[op->kv.cls];

        assert(op->kv.cls < PAGE_CLASSES && op->kv.layer < MODEL_LAYERS_MAX);
        kv->layer_bytes[op->kv.layer] = page_layer_bytes(&page);
        kv->all_layer_bytes[op->kv.layer] = cuda_page_ranks(b) * page_layer_bytes(&page);
    }
    if (op->temper.slope != 0) {
        assert(b->attention.temper.slope == 0 || b->attention.temper.slope == op->temper.slope);
        b->attention.temper = op->temper;
    }
    int r = load_tensors(b, w, op, err);
    if (r == -EIO)
        err_set(err, 0, NULL, "loading weights: %s", b->fault.text);
    w->scale = op->scale;
    w->cap = op->cap;
    *out = w;
    return r;
}

/* Returns true if the device loads the weights of op @i of the model: the first device loads the
 * embedding, and the last one all that comes after the layers, and embeddings of passes of their
 * own. */
static bool loads(const struct be *b, uint32_t i) {
    const struct model_shape *s = b->shape;
    const struct model_op *op = &s->op[i];
    bool first = true;

    if (op->kind != OP_EMBED)
        return op->kind == OP_LOGITS || op->layer >= s->n_layer
                   ? has_last_layer(b)
                   : op->layer >= b->layers.first && op->layer < b->layers.end;
    for (uint32_t k = 0; k < i; k++)
        first = first && s->op[k].kind != OP_EMBED;
    return first ? is_first_device(b) || embeds_drafts(b) : has_last_layer(b);
}

int cuda_count_weights(struct be *b, struct err *err) {
    const struct model_op *op = b->shape->op;
    struct weights *w;
    int r = 0;

    assert(cuda_counts(b));
    b->load.weights.size = b->load.host.size = SIZE_MAX;
    for (uint32_t i = 0; i < b->shape->n_ops && r == 0; i++)
        if (op_has_weights(&op[i]) && op_weights_of(op, i) == i && loads(b, i))
            r = (b->group.n > 1 ? ranks_load_part : cuda_load)(b, &op[i], &w, err);
    cuda_unload(b);
    b->load.weights = (struct pool){.size = b->load.weights.used + b->shape->picture_weights};
    b->load.host = (struct pool){.size = b->load.host.used};
    return r;
}

int cuda_load_one(struct be *b, const struct tensor *t, const float *bias, struct weights **out,
                  struct err *err) {
    const struct parts all = all_rows(t);
    const struct tensor vector = {.n_bytes = t->ne[1] * sizeof(*bias),
                                  .data = (const uint8_t *)bias};

    *out = weights_new(b);
    return *out ? load_parts(b, *out, t, &all, bias ? &vector : NULL, NULL, err) : -ENOMEM;
}

int cuda_load_floats(struct be *b, const float *v, size_t n, const float **out, struct err *err) {
    void *d;
    int r = own_bytes(b, v, n * sizeof(*v), &d, err);

    *out = r < 0 ? NULL : d;
    return r;
}

const void *cuda_load_back(struct be *b, const void *from, size_t n) {
    assert(n <= b->load.bytes);
    int r = wait_buffer(b, 0);

    r = r < 0 ? r : cuda_copy(b, b->load.buffer[0].host, from, n, CUDA_TO_HOST);
    return r < 0 || cuda_load_wait(b) < 0 ? NULL : b->load.buffer[0].host;
}

void cuda_unload(struct be *b) {
    for (struct weights *w = b->weights, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    b->weights = NULL;
}
