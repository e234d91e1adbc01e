#pragma once

/* experts - the choice of a row in a mixture of experts, for the backends that compute on the
 * host. */

#include <stdint.h>

struct expert_pick {
    uint32_t expert;
    float weight;
};

/* The @n_used largest of the router's @n numbers, best first (ties: the lowest expert), weighted by
 * their softmax among each other (which is that over all, divided by its sum) times @scale. What is
 * not a number is picked last. @logits are overwritten. */
void experts_pick(float *logits, uint32_t n, uint32_t n_used, float scale, struct expert_pick *out);
