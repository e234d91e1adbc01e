#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/bench_agent.h"

static const struct agent_scale plain = {1, 1};

static struct trace_file read_text(const char *text) {
    char path[] = "/tmp/weft-test-trace-XXXXXX";
    int fd = mkstemp(path);
    struct trace_file t;
    struct err err = {0};

    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    int r = bench_trace_read(&t, path, NULL, &err);
    unlink(path);
    cr_assert(r == 0, "%s", err.message);
    return t;
}

static const char *const two_groups =
    "# a comment\n"
    "pool pages=100\n"
    "agents lead tenant=3 weight=2000 count=2 start=100-200 turns=4-9 system=1000 first=100-400 "
    "more=10-90 "
    "output=20-60 pause=500-1500 subs_every=2 subs=2-3 sub_turns=1-2\n"
    "agents solo tenant=4 turns=5 first=7 output=3 think_every=1 think=8000-9000\n"
    "until 5000\n";

Test(bench_trace, values_replace_those_of_the_file) {
    struct trace_file t = read_text(two_groups);
    struct err err = {0};

    cr_assert(t.n_groups == 2 && t.until_ms == 5000 && t.n_pages == 100 && t.page_tokens == 16);
    cr_assert(t.group[0].tenant.low == 3 && t.group[0].weight.low == 2000);
    cr_assert(t.group[1].count.low == 1 && t.group[1].turns.high == 5);
    cr_assert(bench_trace_set(&t, "solo.count=7,lead.turns=1-2,until=60,seed=9", &err) == 0);
    cr_assert(t.group[1].count.low == 7 && t.group[1].count.high == 7 && t.group[1].turns.low == 5);
    cr_assert(t.group[0].turns.low == 1 && t.group[0].turns.high == 2);
    cr_assert(t.until_ms == 60 && t.seed == 9);
    cr_assert(bench_trace_set(&t, "unknown.count=7", &err) < 0);
    cr_assert(bench_trace_set(&t, "solo.size=7", &err) < 0);
    cr_assert(bench_trace_set(&t, "solo.count=9-2", &err) < 0);
    cr_assert(bench_trace_set(&t, "solo", &err) < 0);
    cr_assert(bench_trace_set(&t, "solo.output=0", &err) < 0);
}

Test(bench_agent, turns_stay_within_the_trace_and_are_scaled) {
    struct trace_file t = read_text(two_groups);
    const struct trace_group *g = &t.group[0];
    const struct agent_scale small = {0.1, 3};
    uint32_t n_subs = 0, n_lengths = 0;

    for (uint32_t i = 0; i < 200; i++) {
        struct agent a;
        double begin_s = agent_init(&a, g, i, 1, small);

        cr_assert(begin_s > 0.299 && begin_s < 0.601);
        cr_assert(a.n_turns >= 4 && a.n_turns <= 9);
        n_lengths |= 1u << a.n_turns;
        for (uint32_t k = 0; !agent_ended(&a); k++) {
            struct agent_turn turn = agent_next(&a);
            struct agent_pause pause = agent_pause(&a);

            cr_assert_eq(turn.n_system, k == 0 ? 100u : 0u);
            cr_assert(k == 0 ? turn.n_new >= 10 && turn.n_new <= 40
                             : turn.n_new >= 1 && turn.n_new <= 9);
            cr_assert(turn.n_output >= 2 && turn.n_output <= 6);
            cr_assert(pause.seconds > 1.499 && pause.seconds < 4.501);
            cr_assert(pause.n_subs == 0 || pause.n_subs == 2 || pause.n_subs == 3);
            n_subs += pause.n_subs > 0;
        }
    }
    cr_assert_eq(n_lengths, 0x3f0); /* every number of turns was drawn */
    cr_assert(n_subs > 400 && n_subs < 900, "%u of about 650", n_subs);
}

Test(bench_agent, something_scaled_down_stays_something) {
    struct trace_file t = read_text(two_groups);
    struct agent a;

    agent_init(&a, &t.group[1], 0, 1, (struct agent_scale){0.001, 0.5});
    struct agent_turn turn = agent_next(&a);
    cr_assert(turn.n_system == 0 && turn.n_new == 1 && turn.n_output == 1);
    struct agent_pause pause = agent_pause(&a); /* always a person's */
    cr_assert(pause.seconds > 3.999 && pause.seconds < 4.501);
    turn = agent_next(&a);
    cr_assert_eq(turn.n_new, 1); /* more is 0 in the trace; a turn says something */
}

static uint64_t plan_of(const struct trace_group *g, uint32_t number, uint64_t seed) {
    struct agent a;
    uint64_t h = (uint64_t)(agent_init(&a, g, number, seed, plain) * 1e3);

    while (!agent_ended(&a)) {
        struct agent_turn turn = agent_next(&a);
        struct agent_pause pause = agent_pause(&a);

        h = h * 1000003 + turn.n_system;
        h = h * 1000003 + turn.n_new;
        h = h * 1000003 + turn.n_output;
        h = h * 1000003 + pause.n_subs;
        h = h * 1000003 + (uint64_t)(pause.seconds * 1e3);
    }
    return h;
}

Test(bench_agent, a_plan_follows_from_seed_and_number) {
    struct trace_file t = read_text(two_groups);

    for (uint32_t i = 0; i < 50; i++) {
        cr_assert_eq(plan_of(&t.group[0], i, 5), plan_of(&t.group[0], i, 5));
        cr_assert_neq(plan_of(&t.group[0], i, 5), plan_of(&t.group[0], i + 1, 5));
        cr_assert_neq(plan_of(&t.group[0], i, 5), plan_of(&t.group[0], i, 6));
    }
}

/* Whatever else the server answers first, a sub-agent is the same: its plan was drawn when it
 * began. */
Test(bench_agent, sub_agents_have_plans_and_names_of_their_own) {
    struct trace_file t = read_text(two_groups);
    struct agent a, b, one, two, again;

    agent_init(&a, &t.group[0], 17, 1, plain);
    agent_init(&b, &t.group[0], 17, 1, plain);
    agent_init_sub(&one, &a);
    agent_init_sub(&two, &a);
    agent_init_sub(&again, &b);
    cr_assert_str_eq(a.name, "17");
    cr_assert_str_eq(one.name, "17.1");
    cr_assert_str_eq(two.name, "17.2");
    cr_assert(one.n_turns >= 1 && one.n_turns <= 2);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(rng_next(&one.rng), rng_next(&again.rng));
    cr_assert_neq(rng_next(&one.rng), rng_next(&two.rng));
    while (!agent_ended(&two)) { /* they have none themselves */
        cr_assert_eq(agent_next(&two).n_system, two.turn == 1 ? 1000u : 0u);
        cr_assert_eq(agent_pause(&two).n_subs, 0u);
    }
}
