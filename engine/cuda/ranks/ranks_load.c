/*
 * ranks_load - loads weights: each rank gets its share of the rows of every tensor, or of the
 * values of a vector, as the op's row says (op_division.cuts).
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/ranks/ranks.h"

/* Tensors of a rank's part of an op. data: copies of rows that are not contiguous in the file. */
struct slices {
    uint32_t n;
    struct tensor t[3 * OP_MATRICES];
    uint8_t *data[3 * OP_MATRICES];
};

static void slices_deinit(struct slices *s) {
    for (uint32_t i = 0; i < s->n; i++)
        free(s->data[i]);
}

/* Copies the rank's share of each section of @all to @part, which has none yet; without memory
 * there, only counts it. @each: bytes of a row, of a head's matrix, or of a vector's value. */
static void slice_sections(const struct be *b, const struct tensor *all, const struct op_cuts *c,
                           int d, size_t each, struct tensor *part, uint8_t *to) {
    uint64_t at = 0;

    for (uint32_t i = 0; at < all->ne[d]; i++) {
        uint64_t n_all = i < c->n ? c->first : c->rest;
        uint64_t first = rank_cut(n_all, b->group.rank, b->group.n);
        uint64_t n = rank_cut(n_all, b->group.rank + 1, b->group.n) - first;

        if (to && d == 0)
            memcpy(to + part->ne[d] * each, all->data + (at + first) * each, n * each);
        else if (to)
            tensor_copy_rows(all, at + first, n, to + part->ne[d] * each);
        part->ne[d] += n;
        at += n_all;
    }
    assert(at == all->ne[d] && d < 2);
}

/* Replaces *t, if it is not NULL, by the rank's share of it: rows of a matrix, matrices of its
 * heads, or values of a vector. Shares of several sections are copied. Returns 0 or -ENOMEM. */
static int slice(const struct be *b, struct slices *s, const struct tensor **t,
                 const struct op_cuts *c) {
    const struct tensor *all = *t;
    struct tensor *part = &s->t[s->n];
    uint8_t **data = &s->data[s->n];

    if (!all || c->whole)
        return 0;
    int d = all->n_dims > 1;
    if (all->ne[2] > 1)
        d = 2;
    size_t each = all->n_bytes / all->ne[d];
    s->n++;
    *part = *all;
    part->ne[d] = 0;
    *t = part;
    if (c->rest) {
        if (!cuda_counts(b) && !(*data = malloc(all->n_bytes)))
            return -ENOMEM;
        part->data = *data;
        part->piece = NULL;
        slice_sections(b, all, c, d, each, part, *data);
    } else {
        uint64_t first = rank_cut(all->ne[d], b->group.rank, b->group.n);

        part->ne[d] = rank_cut(all->ne[d], b->group.rank + 1, b->group.n) - first;
        if (d == 0)
            part->data += first * each;
        else
            tensor_skip_rows(part, first * each / all->row_bytes);
    }
    part->n_bytes = part->ne[d] * each;
    return 0;
}

/* Replaces the tensors of @part, which are those of all ranks, by the rank's share of them. */
static int slice_op(const struct be *b, struct slices *s, struct model_op *part) {
    const struct op_division *d = &cuda_ops[part->kind]->division;
    struct op_recurrent *r = &part->recurrent;
    const struct tensor **more[] = {&part->sinks, &r->conv, &r->dt, &r->decay};
    uint32_t n_more = op_recurrent(part) ? ARRAY_SIZE(more) : 1;
    const struct model_op op = *part;

    for (uint32_t i = 0; i < OP_MATRICES + n_more; i++) {
        struct op_cuts c = {0};

        if (d->cuts)
            c = d->cuts(b, &op, i);
        if (i >= OP_MATRICES) {
            TRY(slice(b, s, more[i - OP_MATRICES], &c));
            continue;
        }
        TRY(slice(b, s, &part->w[i], &c));
        TRY(slice(b, s, &part->bias[i], &c));
    }
    return 0;
}

/* Returns true if the host computes the gates and ups, and then also the down projection. */
static bool is_handed_over(const struct be *b, const struct model_op *op) {
    return op->kind == OP_GATE_UP && ffn_is_hosts(b->shape, op->layer);
}

int ranks_load_part(struct be *b, const struct model_op *op, struct weights **out,
                    struct err *err) {
    CLEANUP(slices_deinit) struct slices s = {0};
    struct model_op part = ranks_part_of(b, op);

    if (is_handed_over(b, op))
        return cuda_load(b, op, out, err);
    if (cuda_ops[op->kind]->division.cut == CUT_ROWS)
        TRY(slice_op(b, &s, &part));
    return cuda_load(b, &part, out, err);
}

/* Scales the tiles of each matrix, if there are any, by the largest scale of all ranks. Tiles of a
 * matrix have one common unit, and all ranks must round alike to give the results of one device. */
static int scale_parts(const struct ranks *k, struct weights *const part[RANKS]) {
    for (uint32_t m = 0; part[0] && m < part[0]->n_mats; m++) {
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

/* Loads an op's weights on each rank. All ranks use the embedding of the first one, which alone has
 * work that is handed to the host, too. The down projection of a shared expert is scaled, too. */
int ranks_load(struct ranks *k, const struct model_op *op, struct weights **out, struct err *err) {
    struct weights *part[RANKS] = {NULL}, *down[RANKS] = {NULL};
    bool first = cuda_ops[op->kind]->division.cut == CUT_FIRST || is_handed_over(k->be[0], op);

    for (uint32_t i = first ? 1 : k->n; i-- > 0;) {
        TRY(ON_DEVICE(k->be[i], ranks_load_part(k->be[i], op, &part[i], err)));
        down[i] = part[i]->down;
    }
    for (uint32_t i = 0; i < k->n; i++)
        part[0]->rank[i] = first ? part[0] : part[i];
    *out = part[0];
    if (first)
        return 0;
    TRY(scale_parts(k, part));
    return scale_parts(k, down);
}
