/* ranks_load - loads weights: each rank gets its part of every tensor. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/ranks/ranks.h"

/* Points @out to rank @b's part of @t: rows of a matrix, matrices of its heads, or values of a
 * vector. Returns @out, or NULL if @t is NULL. */
static const struct tensor *ranks_slice(const struct be *b, const struct tensor *t,
                                        struct tensor *out) {
    if (!t)
        return NULL;
    int d = t->n_dims > 1;
    if (t->ne[2] > 1)
        d = 2;
    size_t each = t->n_bytes / t->ne[d];
    uint32_t first = rank_cut(t->ne[d], b->group.rank, b->group.n);

    *out = *t;
    out->ne[d] = rank_cut(t->ne[d], b->group.rank + 1, b->group.n) - first;
    if (d == 0)
        out->data += first * each;
    else
        tensor_skip_rows(out, first * each / t->row_bytes);
    out->n_bytes = out->ne[d] * each;
    return out;
}

/* A tensor assembled from rows of a matrix, or values of a vector, that are not contiguous. */
struct rows {
    struct tensor t;
    /* room for all bytes of the original tensor; NULL: bytes are only counted */
    uint8_t *data;
};

static void ranks_add_rows(struct rows *to, const struct tensor *from, size_t first, size_t n) {
    int d = from->n_dims > 1 ? 1 : 0;
    size_t each = from->n_bytes / from->ne[d];

    assert(first + n <= from->ne[d] && to->t.n_bytes + n * each <= from->n_bytes);
    if (to->data && d == 0)
        memcpy(to->data + to->t.n_bytes, from->data + first * each, n * each);
    else if (to->data)
        tensor_copy_rows(from, first, n, to->data + to->t.n_bytes);
    to->t.n_bytes += n * each;
    to->t.ne[d] += n;
}

/* Appends the rows of rank @b's value heads, @each rows for each head; the first head begins at row
 * @at of @from. */
static void add_value_heads(struct rows *to, const struct be *b, const struct tensor *from,
                            size_t at, size_t each) {
    const struct head_pieces h = rank_value_heads(b);

    for (uint32_t i = 0; i < h.n; i++)
        ranks_add_rows(to, from, at + ((size_t)i * h.stride + b->group.rank * h.own) * each,
                       h.own * each);
}

/* Assembles rank @b's part of a tensor of a delta net in @out, and sets *part to it. With @each,
 * the tensor has @each rows for each value head. With @each 0 it has one row for each channel:
 * queries and keys of the key heads, then values of the value heads. *part is NULL if @t is. The
 * caller frees out->data. Returns 0 or -ENOMEM. */
static int slice_heads(const struct be *b, const struct tensor *t, size_t each, struct rows *out,
                       const struct tensor **part) {
    const struct delta_shape *d = &b->shape->delta;
    size_t keys = (size_t)d->n_key_head * d->dim, all = keys * b->group.n;
    bool channels = each == 0;

    *part = NULL;
    if (!t)
        return 0;
    if (!cuda_counts(b) && !(out->data = malloc(t->n_bytes)))
        return -ENOMEM;
    out->t = *t;
    out->t.data = out->data;
    out->t.piece = NULL;
    out->t.n_bytes = out->t.ne[t->n_dims > 1 ? 1 : 0] = 0;
    for (uint32_t i = 0; i < 2 && channels; i++)
        ranks_add_rows(out, t, i * all + b->group.rank * keys, keys);
    add_value_heads(out, b, t, channels ? 2 * all : 0, channels ? d->dim : each);
    *part = &out->t;
    return 0;
}

enum { CONV = OP_MATRICES, DT, DECAY, SLICED };

/* Makes the tensors of a rank's part of an op of a delta net; @rows holds their data. */
static int slice_delta(const struct be *b, const struct model_op *op, struct rows rows[SLICED],
                       struct model_op *part) {
    bool joined = op->kind == OP_STATE_IN && !op->w[3]; /* w[2] has betas and alphas, by key head */
    const size_t each[OP_MATRICES] = {0, b->shape->delta.dim, joined ? 2 : 1, 1};

    for (int i = 0; i < OP_MATRICES; i++)
        TRY(slice_heads(b, op->w[i], each[i], &rows[i], &part->w[i]));
    TRY(slice_heads(b, op->recurrent.conv, 0, &rows[CONV], &part->recurrent.conv));
    TRY(slice_heads(b, op->recurrent.dt, 1, &rows[DT], &part->recurrent.dt));
    return slice_heads(b, op->recurrent.decay, 1, &rows[DECAY], &part->recurrent.decay);
}

static int load_slices(struct be *b, const struct model_op *op, struct rows rows[SLICED],
                       struct weights **out, struct err *err) {
    struct model_op part = *op;

    TRY(slice_delta(b, op, rows, &part));
    return cuda_load(b, &part, out, err);
}

/* Loads a rank's part of an op of a delta net. Its tensors are copies, which live during the
 * load. */
static int load_delta(struct be *b, const struct model_op *op, struct weights **out,
                      struct err *err) {
    struct rows rows[SLICED] = {0};
    int r = load_slices(b, op, rows, out, err);

    for (int i = 0; i < SLICED; i++)
        free(rows[i].data);
    return r;
}

/* Returns true if the host computes the gates and ups, and then also the down projection. */
static bool is_handed_over(const struct be *b, const struct model_op *op) {
    return op->kind == OP_GATE_UP && ffn_is_hosts(b->shape, op->layer);
}

int ranks_load_part(struct be *b, const struct model_op *op, struct weights **out,
                    struct err *err) {
    const struct op_division *d = &cuda_code[op->kind].division;
    struct tensor w[OP_MATRICES], bias[OP_MATRICES], sinks;
    struct model_op part = ranks_part_of(b, op);

    part.sinks = ranks_slice(b, op->sinks, &sinks);
    for (int i = 0; i < OP_MATRICES && d->cut == CUT_ROWS; i++) {
        if (d->keeps && d->keeps(b->shape, i))
            continue;
        part.w[i] = ranks_slice(b, op->w[i], &w[i]);
        part.bias[i] = ranks_slice(b, op->bias[i], &bias[i]);
    }
    if (is_handed_over(b, op))
        return cuda_load(b, op, out, err);
    if (d->cut == CUT_HEADS)
        return load_delta(b, &part, out, err);
    return cuda_load(b, &part, out, err);
}

/* Returns -EINVAL if the key heads of the op's layer cannot be divided among the ranks. */
static int check_layer(const struct ranks *k, const struct model_op *op, struct err *err) {
    if (op->heads.n_kv % cuda_page_ranks(k->be[0]) == 0)
        return 0;
    return err_set(err, 0, "devices",
                   "%u devices do not divide the %u key heads of layer %u: name fewer", k->n,
                   op->heads.n_kv, op->layer);
}

/* Scales the tiles of each matrix by the largest scale of all ranks. Tiles of a matrix have one
 * common unit, and all ranks must round alike to give the results of one device. */
static int scale_parts(const struct ranks *k, struct weights *const part[RANKS]) {
    for (uint32_t m = 0; m < part[0]->n_mats; m++) {
        float most = 0;

        for (uint32_t i = 0; i < k->n; i++)
            most = MAX(most, part[i]->most[m]);
        for (uint32_t i = k->n; i-- > 0;) {
            struct matrix *matrix = &part[i]->m[m];
            uint32_t n = matrix->n_row_tiles * part[i]->n_experts;

            TRY(ON_DEVICE(k->be[i], cuda_scale_tiles(k->be[i], matrix, n, most)));
        }
    }
    return 0;
}

/* Loads an op's weights on each rank. The embedding, and work that is handed to the host, belong to
 * the first rank alone. The down projection of a shared expert is scaled, too. */
int ranks_load(struct ranks *k, const struct model_op *op, struct weights **out, struct err *err) {
    struct weights *part[RANKS] = {NULL}, *down[RANKS] = {NULL};
    bool first = cuda_code[op->kind].division.cut == CUT_FIRST || is_handed_over(k->be[0], op);

    TRY(check_layer(k, op, err));
    for (uint32_t i = first ? 1 : k->n; i-- > 0;) {
        TRY(ON_DEVICE(k->be[i], ranks_load_part(k->be[i], op, &part[i], err)));
        down[i] = part[i]->down;
    }
    *out = part[0];
    memcpy(part[0]->rank, part, sizeof(part));
    if (first)
        return 0;
    TRY(scale_parts(k, part));
    return down[0] ? scale_parts(k, down) : 0;
}
