#include "engine/experts.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/mathx.h"

/* twice the noise of the router in training, which Phi-3.5-MoE's configuration gives as 0.01 */
#define MASKED_SPREAD 0.02f

/* Replaces the logits of all experts by p. */
static void experts_probabilities(float *logits, const struct expert_rule *r) {
    float max = -3e38f, sum = 0;

    for (uint32_t i = 0; i < r->n; i++)
        max = MAX(logits[i], max);
    for (uint32_t i = 0; i < r->n; i++) {
        if (r->gating == GATING_SIGMOID)
            logits[i] = mx_sigmoid(logits[i]);
        else if (r->gating == GATING_ROOT)
            logits[i] = sqrtf(mx_softplus(logits[i]));
        else
            logits[i] = mx_expf(logits[i] - max);
        sum += logits[i];
    }
    for (uint32_t i = 0; i < r->n && r->gating == GATING_SOFTMAX; i++)
        logits[i] /= sum;
}

/* Returns the best expert that is not taken yet (taken: p is -inf). */
static uint32_t experts_best(const float *p, const struct expert_rule *r) {
    uint32_t best = 0;

    if (!r->bias) {
        for (uint32_t i = 1; i < r->n; i++)
            if (p[i] > p[best])
                best = i;
        return best;
    }
    for (uint32_t i = 1; i < r->n; i++)
        if (p[i] + r->bias[i] > p[best] + r->bias[best])
            best = i;
    return best;
}

/* Returns the sum of the two largest p + bias of group @g. */
static float experts_judge_group(const float *p, const struct expert_rule *r, uint32_t g) {
    uint32_t each = r->n / r->n_group;
    float best = -INFINITY, second = -INFINITY;

    for (uint32_t i = g * each; i < (g + 1) * each; i++) {
        float score = p[i] + (r->bias ? r->bias[i] : 0);

        if (score > best) {
            second = best;
            best = score;
        } else if (score > second) {
            second = score;
        }
    }
    if (each <= 1)
        return best;
    return best + second;
}

/* Excludes the experts of all but the best groups: sets their p to -inf. */
static void exclude_groups(float *p, const struct expert_rule *r) {
    float score[EXPERT_GROUPS_MAX];
    uint32_t each = r->n / r->n_group;
    bool kept[EXPERT_GROUPS_MAX] = {false};

    assert(r->n_group <= EXPERT_GROUPS_MAX && r->n % r->n_group == 0);
    for (uint32_t g = 0; g < r->n_group; g++)
        score[g] = experts_judge_group(p, r, g);
    for (uint32_t k = 0; k < r->n_group_used; k++) {
        uint32_t best = 0;

        for (uint32_t g = 1; g < r->n_group; g++)
            if (kept[best] || (!kept[g] && score[g] > score[best]))
                best = g;
        kept[best] = true;
    }
    for (uint32_t i = 0; i < r->n; i++)
        if (!kept[i / each])
            p[i] = -INFINITY;
}

/* Replaces NaN by a number below all others, but above -inf, which means taken. */
static void clean(float *logits, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!(logits[i] > -INFINITY))
            logits[i] = -3e38f;
}

/* Computes the weights of the picks from their p. */
static void scale_picks(const struct expert_rule *r, struct expert_pick *out) {
    float sum = 0;

    for (uint32_t k = 0; k < r->n_used; k++)
        sum += out[k].weight;
    if (!r->normalize)
        sum = 1;
    else if (sum < 0x1p-14f) /* all may be near 0 */
        sum = 0x1p-14f;
    for (uint32_t k = 0; k < r->n_used; k++)
        out[k].weight = out[k].weight / sum * r->scale;
}

/* Picks by GATING_MASKED (Liu et al. 2023, "Bridging Discrete and Backpropagation: Straight-Through
 * and Beyond"; without the noise of training): the expert with the largest logit l of those that
 * are left, whose weight is that of a softmax over those of them that have (l - l_i) / max(|l_i|,
 * l) of at most MASKED_SPREAD. */
static void experts_pick_masked(float *logits, const struct expert_rule *r,
                                struct expert_pick *out) {
    for (uint32_t k = 0; k < r->n_used; k++) {
        uint32_t best = experts_best(logits, r);
        float top = logits[best], sum = 0;

        for (uint32_t i = 0; i < r->n; i++) {
            bool masked = (top - logits[i]) / fmaxf(fabsf(logits[i]), top) > MASKED_SPREAD;

            if (logits[i] > -INFINITY && !masked)
                sum += mx_expf(logits[i] - top);
        }
        out[k] = (struct expert_pick){best, 1 / sum * r->scale};
        logits[best] = -INFINITY;
    }
}

/* If a softmax is divided by the sum of the picks, logits have the order of p and only the picked
 * experts need an exponential; so it is computed after the choice. */
void experts_pick(float *logits, const struct expert_rule *r, struct expert_pick *out) {
    bool late = r->gating == GATING_SOFTMAX && r->normalize && !r->bias && !r->n_group;
    float max = 0;

    assert(r->n_used > 0 && r->n_used <= r->n);
    clean(logits, r->n);
    if (r->gating == GATING_MASKED) {
        experts_pick_masked(logits, r, out);
        return;
    }
    if (!late)
        experts_probabilities(logits, r);
    if (r->n_group)
        exclude_groups(logits, r);
    for (uint32_t k = 0; k < r->n_used; k++) {
        uint32_t best = experts_best(logits, r);

        if (k == 0)
            max = logits[best];
        out[k] = (struct expert_pick){best, late ? mx_expf(logits[best] - max) : logits[best]};
        logits[best] = -INFINITY;
    }
    scale_picks(r, out);
}

void experts_weigh(float *logits, const struct expert_rule *r, struct expert_pick *out) {
    assert(r->gating != GATING_MASKED);
    clean(logits, r->n);
    experts_probabilities(logits, r);
    for (uint32_t k = 0; k < r->n_used; k++) {
        assert(out[k].expert < r->n);
        out[k].weight = logits[out[k].expert];
    }
    scale_picks(r, out);
}

void experts_look_up(const struct tensor *table, uint32_t token, struct expert_pick *out) {
    assert(token < table->ne[1]);
    for (uint64_t k = 0; k < table->ne[0]; k++)
        memcpy(&out[k].expert, table->data + token * table->row_bytes + 4 * k, 4);
}
