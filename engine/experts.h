#pragma once

/* experts - routing in a mixture of experts, for the backends that compute on the host. */

#include "engine/backend.h"

enum { EXPERT_GROUPS_MAX = 64 };

/* Expert number of a pick that is not computed here: a device does, or the layer picks fewer. */
#define NO_EXPERT UINT32_MAX

/* An expert that a row picked, and the factor of its output. */
struct expert_pick {
    uint32_t expert;
    float weight;
};

/* Rule that picks experts from the router's logits l: p = gating of l; the @n_used experts with the
 * largest p + bias, best first (ties: the lower number), weighted by p, divided by the sum of the
 * picked p if @normalize, times @scale. With groups, only experts of the @n_group_used best groups,
 * judged by the sum of their two largest p + bias. GATING_MASKED: see experts_pick_masked(). */
struct expert_rule {
    uint32_t n, n_used;
    float scale;
    enum gating gating;
    bool normalize;
    /* 0: no groups */
    uint32_t n_group, n_group_used;
    /* NULL: none */
    const float *bias;
};

/* Returns the rule of the ROUTE op @op, whose pick_bias is @bias. */
static inline struct expert_rule experts_rule(const struct model_shape *s,
                                              const struct model_op *op, const float *bias) {
    return (struct expert_rule){
        .n = s->n_expert,
        .n_used = op->n_used,
        .scale = s->expert_scale,
        .gating = s->gating,
        .normalize = !s->unnormed,
        .n_group = s->n_expert_group,
        .n_group_used = s->n_group_used,
        .bias = bias,
    };
}

/* Returns the width of the rows that experts read and write: of x, or of the latent space. */
static inline uint32_t experts_width(const struct model_shape *s) {
    if (s->n_latent)
        return s->n_latent;
    return s->n_embd;
}

/* Picks the experts of a row. NaN counts as less than every number. @logits are overwritten. */
void experts_pick(float *logits, const struct expert_rule *rule, struct expert_pick *out);
/* Computes the weights of the experts in @out, which are picked already. @logits are
 * overwritten. */
void experts_weigh(float *logits, const struct expert_rule *rule, struct expert_pick *out);
/* Reads the picks of @token from the @table of a ROUTE op. */
void experts_look_up(const struct tensor *table, uint32_t token, struct expert_pick *out);
