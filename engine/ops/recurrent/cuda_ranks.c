/*
 * cuda_ranks - what a device loads of a delta net if several devices divide the matrices: the rows
 * of its key heads, and those of the value heads that use them. The latter need not be contiguous.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"

/* A tensor assembled from rows of a matrix, or values of a vector, that are not contiguous. */
struct rows {
    struct tensor t;
    /* room for all bytes of the original tensor; NULL: bytes are only counted */
    uint8_t *data;
};

static void slice_add(struct rows *to, const struct tensor *from, size_t first, size_t n) {
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
static void slice_add_heads(struct rows *to, const struct be *b, const struct tensor *from,
                            size_t at, size_t each) {
    const struct head_pieces h = rank_value_heads(b);

    for (uint32_t i = 0; i < h.n; i++)
        slice_add(to, from, at + ((size_t)i * h.stride + b->group.rank * h.own) * each,
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
        slice_add(out, t, i * all + b->group.rank * keys, keys);
    slice_add_heads(out, b, t, channels ? 2 * all : 0, channels ? d->dim : each);
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

static int slice_load(struct be *b, const struct model_op *op, struct rows rows[SLICED],
                      struct weights **out, struct err *err) {
    struct model_op part = *op;

    TRY(slice_delta(b, op, rows, &part));
    return cuda_load(b, &part, out, err);
}

/* The tensors are copies, which live during the load. */
int recurrent_load_part(struct be *b, const struct model_op *op, struct weights **out,
                        struct err *err) {
    struct rows rows[SLICED] = {0};
    int r = slice_load(b, op, rows, out, err);

    for (int i = 0; i < SLICED; i++)
        free(rows[i].data);
    return r;
}
