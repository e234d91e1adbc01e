/*
 * cuda_check - tests a router on made-up logits: its picks must have the bits of engine/experts.c.
 * No plainer kernel exists, so a device with wrong results is refused.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/cuda/selftest.h"
#include "engine/experts.h"

/* Returns the number of rows whose picks or weights differ from the host's. */
static uint32_t wrong_picks(const struct selftest_op *t, float *logits, const float *bias,
                            const float *weight, const uint32_t *expert) {
    const struct model_shape *m = t->b->shape;
    const struct expert_rule rule = experts_rule(m, t->of, bias);
    struct expert_pick right[ROUTE_PICKS];
    uint32_t n_used = t->of->n_used, n_wrong = 0;

    for (uint32_t r = 0; r < t->n_rows; r++) {
        float *row = logits + (size_t)r * m->n_expert;
        bool same = true;

        for (uint32_t e = 0; e < m->n_expert; e++)
            row[e] *= t->of->scale;
        experts_pick(row, &rule, right);
        for (uint32_t k = 0; k < n_used; k++)
            same = same && right[k].expert == expert[r * n_used + k] &&
                   memcmp(&right[k].weight, &weight[r * n_used + k], sizeof(*weight)) == 0;
        n_wrong += !same;
    }
    return n_wrong;
}

static int check_route(struct selftest_op *t, struct err *err) {
    struct be *b = t->b;
    const struct model_shape *m = b->shape;
    size_t n_logits = (size_t)t->n_rows * m->n_expert;
    size_t n_pairs = (size_t)t->n_rows * t->of->n_used;
    float *bias_on = (float *)b->load.buffer[0].device;
    struct step *s;
    const struct model_op op = {.kind = OP_ROUTE,
                                .layer = t->of->layer,
                                .scale = t->of->scale,
                                .n_used = t->of->n_used,
                                .weights = &t->weights};

    t->all = malloc((n_logits + m->n_expert + 2 * n_pairs) * sizeof(*t->all));
    if (!t->all)
        return -ENOMEM;
    float *logits = t->all, *bias = logits + n_logits, *weight = bias + m->n_expert;
    uint32_t *expert = (uint32_t *)(weight + n_pairs);
    selftest_fill(logits, n_logits + m->n_expert, 1);
    if (t->of->pick_bias)
        t->weights.pick_bias = bias_on;
    else
        t->weights.pick_bias = NULL;
    TRY(selftest_send(b, bias, bias_on, m->n_expert));
    TRY(selftest_begin(b, &t->step, 0, t->n_rows, false, &s));
    TRY(selftest_send(b, logits, b->experts.logits, n_logits));
    struct route_args a = experts_route_args(s, &op);
    a.slot = NULL; /* computed as if the device had all experts; the slots are not known yet */
    a.slots = (struct expert_slots){0};
    a.picks = NULL;
    TRY(CUDA_LAUNCH(b, route, (t->n_rows + ROUTE_ROWS - 1) / ROUTE_ROWS, 1, CUDA_THREADS, &a));
    TRY(selftest_fetch(b, weight, a.weight, n_pairs * sizeof(*weight)));
    TRY(selftest_fetch(b, expert, a.expert, n_pairs * sizeof(*expert)));
    selftest_end(b);
    uint32_t n = wrong_picks(t, logits, t->weights.pick_bias ? bias : NULL, weight, expert);
    if (!n)
        return 0;
    return selftest_refuse(b, err, "%u of %u rows pick other experts or weights", n, t->n_rows);
}

/* Tests the first router of the device that does not read its picks from a table. */
int experts_check(struct be *b, struct err *err) {
    const struct model_op *op = selftest_next(b, OP_ROUTE, NULL);

    while (op && op->picks)
        op = selftest_next(b, OP_ROUTE, op);
    if (!op)
        return 0;
    return selftest_try(b, op, check_route, err);
}
