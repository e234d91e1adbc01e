/* ranks_load - loads weights: each rank gets its part of every tensor. */

#include <assert.h>
#include <errno.h>
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

/* Returns true if the host computes the gates and ups, and then also the down projection. */
static bool is_handed_over(const struct be *b, const struct model_op *op) {
    return op->kind == OP_GATE_UP && ffn_is_hosts(b->shape, op->layer);
}

int ranks_load_part(struct be *b, const struct model_op *op, struct weights **out,
                    struct err *err) {
    const struct op_division *d = &cuda_ops[op->kind]->division;
    struct tensor w[OP_MATRICES], bias[OP_MATRICES], sinks;
    struct model_op part = ranks_part_of(b, op);

    if (is_handed_over(b, op))
        return cuda_load(b, op, out, err);
    if (d->load)
        return d->load(b, &part, out, err);
    part.sinks = ranks_slice(b, op->sinks, &sinks);
    for (int i = 0; i < OP_MATRICES && d->cut == CUT_ROWS; i++) {
        if (d->keeps && d->keeps(b->shape, i))
            continue;
        part.w[i] = ranks_slice(b, op->w[i], &w[i]);
        part.bias[i] = ranks_slice(b, op->bias[i], &bias[i]);
    }
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
    bool first = cuda_ops[op->kind]->division.cut == CUT_FIRST || is_handed_over(k->be[0], op);

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
    if (!down[0])
        return 0;
    return scale_parts(k, down);
}
