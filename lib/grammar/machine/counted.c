/* counted - the register of a loop that counts its characters, between min and max of its call.
 * Without a maximum it stops counting at min, so that configurations that differ only by a count
 * that no longer matters become equal. */

#include "grammar/machine/machine.h"

static bool counted_register_step(const struct grammar *g, const struct call_desc *d,
                                  const struct state *from, uint32_t to, uint8_t byte,
                                  uint32_t *reg) {
    if (!(from->flags & STATE_BORDER)) /* inside a character */
        return true;
    if (*reg >= d->max)
        return false;
    *reg = d->max == NO_MAX ? MIN(*reg + 1, d->min) : *reg + 1;
    return true;
}

static bool counted_may_end(const struct machine *m, const struct call_desc *d, uint32_t state,
                            uint32_t reg) {
    return reg >= d->min;
}

static uint32_t counted_n_free(const struct grammar *g, const struct call_desc *d, uint32_t state,
                               uint32_t reg) {
    if (d->max == NO_MAX)
        return NO_MAX;
    return d->max - reg;
}

const struct register_kind REGISTER_COUNTED = {
    .step = counted_register_step, .may_end = counted_may_end, .n_free = counted_n_free};
