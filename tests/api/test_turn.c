/* Whose turn it is to read, when more connections are readable than one iteration has time for. */

#include <criterion/criterion.h>
#include "api/http/turn.h"
#include "base/util.h"

#define CONNS 40
#define EACH_NS 1000000 /* what a read takes */
#define PER_ITERATION (TURN_NS / EACH_NS)

struct scene {
    struct turn t;
    int64_t now;
    uint32_t round[CONNS + 1000], n_read[CONNS + 1000];
    uint32_t n_conns;
};

static void setup(struct scene *s, uint32_t n) {
    *s = (struct scene){.now = 1};
    turn_init(&s->t);
    for (; s->n_conns < n; s->n_conns++)
        s->round[s->n_conns] = turn_first_round(&s->t);
}

static bool read_one(struct scene *s, uint32_t i) {
    if (!turn_read(&s->t, &s->round[i], s->now))
        return false;
    s->now += EACH_NS;
    s->n_read[i]++;
    return true;
}

/* All are readable, always in the same order; each reads until it is told to wait, as libuv does.
 * How many reads there were. */
static uint32_t iterate(struct scene *s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_conns; i++)
        for (int k = 0; k < 32 && read_one(s, i); k++)
            n++;
    turn_end(&s->t);
    return n;
}

Test(turn, an_iteration_is_short_and_all_have_their_turns) {
    static struct scene s;
    uint32_t least = UINT32_MAX, most = 0;

    setup(&s, CONNS);
    for (int i = 0; i < 10 * CONNS; i++) {
        uint32_t n = iterate(&s);

        cr_assert(n >= 1 && n <= PER_ITERATION, "%u reads", n);
    }
    for (uint32_t i = 0; i < CONNS; i++) {
        least = MIN(least, s.n_read[i]);
        most = MAX(most, s.n_read[i]);
    }
    cr_expect_gt(s.t.n_deferred, 0);
    cr_expect_geq(least, 10 * CONNS * PER_ITERATION / CONNS / 5, "%u to %u", least, most);
}

Test(turn, who_is_left_out_comes_before_a_second_turn) {
    static struct scene s;
    uint32_t n = 0;

    setup(&s, CONNS);
    while (s.n_read[CONNS - 1] == 0) {
        n += iterate(&s);
        cr_assert_leq(n, CONNS + PER_ITERATION, "it waits for one round");
    }
}

Test(turn, new_connections_do_not_keep_the_old_ones_waiting) {
    static struct scene s;

    setup(&s, CONNS);
    for (int i = 0; i < 200; i++) {
        iterate(&s);
        for (int k = 0; k < 5; k++, s.n_conns++) /* as many as can be served meanwhile */
            s.round[s.n_conns] = turn_first_round(&s.t);
    }
    for (uint32_t i = 0; i < CONNS; i++)
        cr_expect_geq(s.n_read[i], 2, "connection %u: %u", i, s.n_read[i]);
}

Test(turn, without_haste_each_reads_as_often_as_it_can) {
    static struct scene s;

    setup(&s, 2);
    for (int i = 0; i < 3; i++) {
        cr_expect(turn_read(&s.t, &s.round[0], s.now));
        cr_expect(turn_read(&s.t, &s.round[1], s.now));
    }
    cr_expect_eq(s.t.n_deferred, 0);
}

Test(turn, so_many_are_accepted_at_a_time) {
    struct turn t;
    uint32_t n = 0;

    turn_init(&t);
    while (turn_accept(&t))
        n++;
    cr_expect_eq(n, TURN_ACCEPTS);
    cr_expect_eq(t.n_deferred, 1);
    turn_end(&t);
    cr_expect(turn_accept(&t));
}
