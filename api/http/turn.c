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
    bool over = t->began_ns && now - t->began_ns >= TURN_NS;

    t->left_out |= over && !had;
    if (over || (had && t->goes_on)) {
        t->n_deferred++;
        return false;
    }
    if (!t->began_ns)
        t->began_ns = now;
    *round = t->round;
    return true;
}

bool turn_accept(struct turn *t) {
    bool now = t->n_accepted++ < TURN_ACCEPTS;

    t->n_deferred += !now;
    return now;
}

uint32_t turn_first_round(const struct turn *t) {
    return t->goes_on || t->left_out ? t->round : t->round - 1;
}
