/*
 * load - loads weights from the file to the device. A piece of the file (whole rows of tiles) is
 * copied to one of two pinned buffers, sent to the device, and repacked there while the next piece
 * is read.
 */

#include "engine/cuda/load.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/repack.h"
#include "base/try.h"
#include "engine/cuda/bounds.h"
#include "engine/cuda/several.h"
#include "engine/formats/blocks.h"
#include "engine/formats/quant.h"

/* Takes @bytes of @from, whose size was counted before; while it is counted, *out is NULL. Returns
 * 0, or -ENOMEM with @err. */
static int load_own_memory(struct pool *from, size_t bytes, void **out, struct err *err) {
    size_t n = round_up(MAX(bytes, 1), 512);

    if (n > from->size - from->used) {
        err_set(err, 0, NULL,
                "loading weights: a tensor is larger than when memory was counted; the file may "
                "have changed: start weft again");
        return -ENOMEM;
    }
    if (from->at)
        *out = from->at + from->used;
    else
        *out = NULL;
    from->used += n;
    return 0;
}

/* Waits until buffer @i may be filled. */
static int wait_buffer(struct be *b, int i) {
    bool busy = b->load.buffer[i].busy;

    b->load.buffer[i].busy = false;
    if (!busy)
        return 0;
    return cuda_wait_event(b, b->load.buffer[i].event, "a copy of weights");
}

/* Starts to copy @n bytes of the file to @to through buffer @i. The caller marks the buffer busy.
 * Returns 0 or -EIO. */
static int load_send_piece(struct be *b, int i, const uint8_t *from, size_t n, void *to) {
    TRY(wait_buffer(b, i));
    assert(n <= b->load.bytes && !b->load.buffer[i].busy);
    memcpy(b->load.buffer[i].host, from, n);
    return cuda_copy(b, to, b->load.buffer[i].host, n, CUDA_TO_DEVICE);
}

/* Copies rows [row, row + n) of @t, which may be scattered, to the device's side of buffer @i. */
static int load_send_rows(struct be *b, int i, const struct tensor *t, uint32_t row, uint32_t n) {
    size_t bytes = n * t->row_bytes;

    TRY(wait_buffer(b, i));
    assert(bytes <= b->load.bytes && !b->load.buffer[i].busy);
    tensor_copy_rows(t, row, n, b->load.buffer[i].host);
    return cuda_copy(b, b->load.buffer[i].device, b->load.buffer[i].host, bytes, CUDA_TO_DEVICE);
}

/* Marks buffer @i busy until the work that was enqueued has read it. */
static int mark_busy(struct be *b, int i) {
    b->load.buffer[i].busy = true;
    return cuda_check(b, b->api->event_record(b->load.buffer[i].event, b->queue.stream),
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

        TRY(load_send_piece(b, k % 2, from + at, part, (uint8_t *)to + at));
        TRY(mark_busy(b, k % 2));
        at += part;
    }
    return 0;
}

int load_own(struct be *b, const void *data, size_t n, void **out, struct err *err) {
    TRY(load_own_memory(&b->load.weights, n, out, err));
    if (cuda_counts(b))
        return 0;
    return cuda_load_bytes(b, data, n, *out);
}

int load_vector(struct be *b, const struct tensor *t, float **out, struct err *err) {
    assert(!*out);
    if (!t)
        return 0;
    return load_own(b, t->data, t->n_bytes, (void **)out, err);
}

enum tile_format load_tile_format(const struct tensor *t) {
    enum tile_format f = tile_format_of(t->format->type);

    if (f == TILE_Q5_0 && repack_has_groups(t, tile_k(TILE_G4)))
        return TILE_G4;
    return f;
}

struct tile_source load_source(const struct be *b, const struct tensor *t, const uint8_t *data,
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

    TRY(load_send_rows(b, i, t, row, n));
    struct repack_args a = {
        .source = load_source(b, t, b->load.buffer[i].device, n),
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

struct parts load_all_rows(const struct tensor *t) {
    uint32_t n_out = (uint32_t)t->ne[1], n = (uint32_t)t->ne[2];

    return n_out % TILE_ROWS ? (struct parts){n, n_out, n_out, 0, 0}
                             : (struct parts){1, n_out * n, n_out * n, 0, 0};
}

/* Returns true if part @i is on the device or fetched by it. */
static bool has_part(const struct be *b, const struct parts *p, uint32_t i) {
    return p->layer == 0 || b->shape->fetches || !expert_is_hosts(b->shape, p->layer - 1, i);
}

/* Repacks the parts of @t to the tiles of @m, consecutively. */
static int repack_all(struct be *b, const struct tensor *t, const struct matrix *m,
                      const struct parts *p) {
    uint32_t at_once = rows_at_once(b, t), k = 0;
    struct tensor part = *t;
    struct matrix to = *m;

    tensor_skip_rows(&part, p->first);
    for (uint32_t i = 0; i < p->n_parts; i++, tensor_skip_rows(&part, p->stride)) {
        if (!has_part(b, p, i))
            continue;
        for (uint32_t row = 0; row < p->n; row += at_once, k++)
            TRY(repack_piece(b, &part, &to, k % 2, row, MIN(p->n - row, at_once)));
        to.tiles += tile_matrix_bytes(m->format, p->n, (uint32_t)t->ne[0]);
    }
    return 0;
}

float load_first_of(const struct tensor *t) {
    float f;

    memcpy(&f, t->data, sizeof(f));
    return f;
}

/* Loads a vector with a part for each expert: values [first, first + n) of the parts of the
 * device's experts; @n 0: all values. *out stays NULL if @t is NULL. */
static int load_expert_vector(struct be *b, const struct tensor *t, const struct parts *p,
                              uint32_t first, uint32_t n, float **out, struct err *err) {
    size_t each = t ? t->n_bytes / b->shape->n_expert : 0;
    size_t bytes = each;

    if (n)
        bytes = n * sizeof(float);
    if (!t)
        return 0;
    struct tensor part = *t;
    assert(first * sizeof(float) + bytes <= each);
    part.n_bytes = 0;
    for (uint32_t i = 0; i < b->shape->n_expert; i++)
        if (has_part(b, p, i))
            part.n_bytes += bytes;
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
static int load_fill_tiles(struct be *b, const struct tensor *t, const struct parts *p,
                           struct matrix *m, uint32_t n_tiles, float *most, struct err *err) {
    TRY(cuda_fill(b, b->load.found, 0, sizeof(*b->load.found)));
    TRY(repack_all(b, t, m, p));
    TRY(check_values(b, t, err));
    *most = mx_float_of((uint32_t)b->load.found_host->most);
    if (b->group.n != 1)
        return 0;
    return cuda_scale_tiles(b, m, n_tiles, *most);
}

int load_parts(struct be *b, struct weights *w, const struct tensor *t, const struct parts *p,
               const struct tensor *bias, float *y, struct err *err) {
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
        .format = load_tile_format(t),
        .n_out = n_out,
        .y = y,
        .inverse = t->scale && t->ne[2] == 1 ? load_first_of(t->scale) : 1,
    };
    matrix_cut(m, n_in);
    w->n_in = n_in;
    size_t each = tile_matrix_bytes(m->format, n_out, n_in);
    TRY(load_own_memory(&b->load.weights, each * ((uint32_t)t->ne[2] - n_hosts), &d, err));
    if (fetched)
        TRY(load_own_memory(&b->load.host, each * w->n_experts, &far, err));
    w->host[m - w->m] = far;
    if (fetched)
        m->tiles = far;
    else
        m->tiles = d;
    if (!cuda_counts(b)) {
        m->grid = tile_grid_of(t->format->type, b->load.tile_grids);
        TRY(load_fill_tiles(b, t, p, m, m->n_row_tiles * w->n_experts, &w->most[m - w->m], err));
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
    for (const struct weights *k = b->load.list; k; k = k->next)
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

int load_matrix(struct be *b, struct weights *w, const struct tensor *t, const struct tensor *bias,
                float *y, struct err *err) {
    const struct parts all = load_all_rows(t);
    bool plain = b->group.n == 1 && !bias;

    if (plain && share_matrix(b, w, t, y))
        return 0;
    if (plain)
        w->of[w->n_mats] = t;
    else
        w->of[w->n_mats] = NULL;
    return load_parts(b, w, t, &all, bias, y, err);
}

struct weights *load_weights_new(struct be *b) {
    struct weights *w = calloc(1, sizeof(*w));

    if (!w)
        return NULL;
    w->next = b->load.list;
    b->load.list = w;
    return w;
}

int load_decoded(struct be *b, const struct tensor *const t[], uint32_t n, float **out,
                 struct err *err) {
    size_t each = t[0]->ne[1] * t[0]->ne[2], n_rows = n * each, n_columns = t[0]->ne[0];
    size_t bytes = n_rows * n_columns * sizeof(float);

    if (cuda_counts(b))
        return load_own(b, NULL, bytes, (void **)out, err);
    CLEANUP(freep) float *all = malloc(bytes);
    CLEANUP(freep) uint8_t *row = malloc(n_columns * sizeof(float));
    if (!all || !row)
        return -ENOMEM;
    for (size_t r = 0; r < n_rows; r++) {
        const struct tensor *of = t[r / each];
        const struct tensor_format *f = of->format;

        assert(of->row_bytes <= n_columns * sizeof(float));
        tensor_copy_rows(of, r % each, 1, row);

        for (size_t i = 0; i < n_columns; i++)
            all[i * n_rows + r] = (of->scale ? load_first_of(of->scale) : 1) *
                                  blk_value((uint32_t)f->type, row + i / f->block * f->block_bytes,
                                            i % f->block, &quant_grids);
    }
    return load_own(b, all, bytes, (void **)out, err);
}

float *load_place(const struct be *b, const struct model_op *op, int i) {
    const struct op_code *code = cuda_ops[op->kind];

    if (cuda_counts(b))
        return NULL;
    if (code->place)
        return code->place(b, op, i);
    assert(code->out[i] > 0);
    return load_buffer(b, code->out[i]);
}

int load_matrices(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    for (int i = 0; i < OP_MATRICES; i++)
        if (op->w[i] && (i == 0 || op->w[i] != op->w[i - 1]))
            TRY(load_matrix(b, w, op->w[i], op->bias[i], load_place(b, op, i), err));
    return 0;
}

int load_apart(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    for (int i = 0; i < OP_MATRICES && op->w[i]; i++) {
        struct weights *own = w;

        if (i > 0)
            own = load_weights_new(b);
        if (!own)
            return -ENOMEM;
        if (i > 0)
            w->down = own;
        TRY(load_matrix(b, own, op->w[i], NULL, load_place(b, op, i), err));
        w = own;
    }
    return 0;
}

/* Loads all tensors of an op. Returns 0 or -errno. */
static int load_tensors(struct be *b, struct weights *w, const struct model_op *op,
                        struct err *err) {
    const struct op_code *code = cuda_ops[op->kind];

    TRY(load_vector(b, op->norm, &w->norm, err));
    TRY(load_vector(b, op->norm_bias, &w->norm_bias, err));
    TRY(load_vector(b, op->post_norm, &w->post_norm, err));
    TRY(load_vector(b, op->q_norm, &w->q_norm, err));
    TRY(load_vector(b, op->k_norm, &w->k_norm, err));
    TRY(load_vector(b, op->pick_bias, &w->pick_bias, err));
    if (code->decodes)
        TRY(load_decoded(b, &op->weigh, 1, &w->weigh, err));
    else
        TRY(load_vector(b, op->weigh, &w->weigh, err));
    TRY(load_vector(b, op->sinks, &w->sinks, err));
    if (code->load)
        return code->load(b, w, op, err);
    return load_matrices(b, w, op, err);
}

/* Sets the bytes that the op's layer takes in a page. */
static void load_page_size(struct be *b, const struct model_op *op) {
    const struct page_shape page = cuda_page_shape(b, &op->heads);
    struct kv_class *kv = &b->memory.kv[op->kv.cls];

    assert(op->kv.cls < PAGE_CLASSES && op->kv.layer < MODEL_LAYERS_MAX);
    kv->layer_bytes[op->kv.layer] = page_layer_bytes(&page);
    kv->all_layer_bytes[op->kv.layer] = cuda_page_ranks(b) * page_layer_bytes(&page);
}

/* Returns true if the input of @op is the output of attention over pages of f16, whose bound is
 * known. */
static bool load_bounds_heads(const struct be *b, const struct model_op *op) {
    const struct model_op *from = op->links.from;

    return op->kind == OP_PROJ && from && from->kind == OP_ATTEND && !from->attn.sparse &&
           b->opts->kv_type.v == ENGINE_KV_F16 && op->w[0]->ne[0] % 64 == 0;
}

/* Sets the static scales of an op. Products of bytes have scales of their own. */
static void load_scales(const struct be *b, struct weights *w, const struct model_op *op) {
    if (!b->ways.fixed || b->products.planes > 1 || b->group.n > 1 || cuda_counts(b))
        return;
    w->fixed_norm = bounds_scale(bounds_norm(b->shape, op));
    if (op->kind == OP_GATE_UP && op->w[0]->ne[1] % 64 == 0)
        w->fixed_h = bounds_scale(bounds_ffn(b->shape, op));
    if (load_bounds_heads(b, op))
        w->fixed_o = bounds_scale(bounds_attend(b->shape, op->links.from));
}

/* Lets the product before @w, which is that of @op, prefetch the first be.products.ahead bytes of
 * its matrices: in the order in which blocks go over them, those of gate and up by turns. */
static void load_ahead(struct be *b, struct weights *w, const struct model_op *op) {
    uint64_t kinds = OP_BIT(OP_QKV) | OP_BIT(OP_PROJ) | OP_BIT(OP_GATE_UP) | OP_BIT(OP_LOGITS);
    bool product = (kinds & OP_BIT(op->kind)) && !op_is_hosts(b->shape, op);
    uint32_t left = b->products.ahead, most = left;
    struct weights *before = b->load.before;

    if (w->n_mats == 0)
        return;
    b->load.before = product && op->kind != OP_LOGITS ? w : NULL;
    if (!product || !before || cuda_counts(b))
        return;
    if (op->kind == OP_GATE_UP && w->n_mats == 2 && cuda_are_alike(&w->m[0], &w->m[1]))
        most = left / 2;
    for (uint32_t i = 0; i < w->n_mats; i++) {
        const struct matrix *m = &w->m[i];
        size_t all = tile_matrix_bytes(m->format, m->n_out, w->n_in);
        uint32_t bytes = (uint32_t)MIN(all, MIN(left, most));

        before->ahead[i] = (struct ahead){m->tiles, bytes};
        left -= bytes;
    }
}

int cuda_load(struct be *b, const struct model_op *op, struct weights **out, struct err *err) {
    struct weights *w = load_weights_new(b);

    assert(op_has_weights(op));
    if (!w)
        return -ENOMEM;
    if (op_has_pages(op))
        load_page_size(b, op);
    const struct temper *temper = op_temper(op);
    if (temper && temper->slope != 0) {
        assert(b->attention.temper.slope == 0 || b->attention.temper.slope == temper->slope);
        b->attention.temper = *temper;
    }
    load_scales(b, w, op);
    int r = load_tensors(b, w, op, err);
    if (r == -EIO)
        err_set(err, 0, NULL, "loading weights: %s", b->fault.text);
    w->scale = op->scale;
    if (op->kind == OP_LOGITS)
        w->cap = op->cap;
    else
        w->cap = 0;
    if (r == 0)
        load_ahead(b, w, op);
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

    for (uint32_t k = 0; k < i && op->kind == OP_EMBED; k++)
        first = first && s->op[k].kind != OP_EMBED;
    if (op->kind == OP_EMBED && first)
        return is_first_device(b) || embeds_drafts(b);
    if (op->kind == OP_EMBED || op->kind == OP_LOGITS || op->layer >= s->n_layer)
        return has_last_layer(b);
    return op->layer >= b->group.layers.first && op->layer < b->group.layers.end;
}

int cuda_count_weights(struct be *b, struct err *err) {
    const struct model_op *op = b->shape->op;
    struct weights *w;
    int r = 0;

    assert(cuda_counts(b));
    b->load.weights.size = b->load.host.size = SIZE_MAX;
    for (uint32_t i = 0; i < b->shape->n_ops; i++) /* also of ops that share weights */
        if (op_has_pages(&op[i]) && op_weights_of(op, i) != i)
            load_page_size(b, &op[i]);
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
    const struct parts all = load_all_rows(t);
    const struct tensor vector = {.n_bytes = t->ne[1] * sizeof(*bias),
                                  .data = (const uint8_t *)bias};

    *out = load_weights_new(b);
    if (!*out)
        return -ENOMEM;
    return load_parts(b, *out, t, &all, bias ? &vector : NULL, NULL, err);
}

int cuda_load_floats(struct be *b, const float *v, size_t n, const float **out, struct err *err) {
    void *d;
    int r = load_own(b, v, n * sizeof(*v), &d, err);

    if (r < 0)
        *out = NULL;
    else
        *out = d;
    return r;
}

const void *cuda_load_back(struct be *b, const void *from, size_t n) {
    assert(n <= b->load.bytes);
    if (wait_buffer(b, 0) < 0)
        return NULL;
    if (cuda_copy(b, b->load.buffer[0].host, from, n, CUDA_TO_HOST) < 0)
        return NULL;
    if (cuda_load_wait(b) < 0)
        return NULL;
    return b->load.buffer[0].host;
}

void cuda_unload(struct be *b) {
    for (struct weights *w = b->load.list, *next; w; w = next) {
        next = w->next;
        free(w);
    }
    b->load.list = b->load.before = NULL;
}
