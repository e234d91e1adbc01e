/* names - the register of a key that must be none of some names: the node that the key has reached
 * in the tree of these names, NAMES_NONE once no name begins with it, and 0 while it is empty. */

#include "grammar/machine/machine.h"

static bool names_register_step(const struct grammar *g, const struct call_desc *d,
                                const struct state *from, uint32_t to, uint8_t byte,
                                uint32_t *reg) {
    *reg = names_step(d->names, *reg, byte);
    return true;
}

static bool names_may_end(const struct machine *m, const struct call_desc *d, uint32_t state,
                          uint32_t reg) {
    return reg == NAMES_NONE || (reg != 0 && !d->names->node[reg].end);
}

const struct register_kind REGISTER_NAMES = {.step = names_register_step, .may_end = names_may_end};
