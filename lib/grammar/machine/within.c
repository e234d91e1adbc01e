/* within - the register of a pattern or format beside a large maxLength: the characters so far. An
 * edge may be taken as long as these and the fewest that are needed behind it (grammar.need) are
 * within the maximum, so a text that can be begun can be ended. */

#include "grammar/machine/machine.h"

bool within_step(const struct grammar *g, const struct call_desc *d, uint32_t to, uint32_t *reg) {
    *reg += (g->state[to].flags & STATE_BORDER) != 0;
    return *reg + g->need[to] <= d->max;
}

static bool within_register_step(const struct grammar *g, const struct call_desc *d,
                                 const struct state *from, uint32_t to, uint8_t byte,
                                 uint32_t *reg) {
    return within_step(g, d, to, reg);
}

static uint32_t within_n_free(const struct grammar *g, const struct call_desc *d, uint32_t state,
                              uint32_t reg) {
    const struct state *s = &g->state[state];
    uint32_t taken = reg + !(s->flags & STATE_BORDER) + g->rule[s->rule].need;

    return d->max - MIN(d->max, taken);
}

const struct register_kind REGISTER_WITHIN = {.step = within_register_step,
                                              .n_free = within_n_free};
