#include "api/http/turn.h"

void turn_init(struct turn *t) {
    *t = (struct turn){.round = 1};
}

void turn_end(struct turn *t) {
    t->goes_on = t->left_out;
    t->round += !t->left_out;
    t->left_out = false;
    t->began_ns = 0;
    t->n_accepted = 0;
}

bool turn_read(struct turn *t, uint32_t *round, int64_t now) {
    bool had = *round == t->round;

    if (had && t->goes_on)
        return false;
    if (t->began_ns && now - t->began_ns >= TURN_NS) {
        t->left_out |= !had;
        return false;
    }
    if (!t->began_ns)
        t->began_ns = now;
    *round = t->round;
    return true;
}

bool turn_accept(struct turn *t) {
    return t->n_accepted++ < TURN_ACCEPTS;
}

uint32_t turn_first_round(const struct turn *t) {
    return t->goes_on || t->left_out ? t->round : t->round - 1;
}
