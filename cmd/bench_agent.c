#include "cmd/bench_agent.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

static uint32_t agent_draw(struct agent *a, struct range r) {
    assert(r.low <= r.high);
    return r.low + rng_below(&a->rng, r.high - r.low + 1);
}

/* Scales a number of the trace; a positive number stays positive. */
static uint32_t agent_scaled(uint32_t n, double by) {
    if (!n)
        return 0;
    return (uint32_t)fmax(1, round(n * by));
}

static uint32_t draw_tokens(struct agent *a, struct range r) {
    return agent_scaled(agent_draw(a, r), a->scale.tokens);
}

static double draw_seconds(struct agent *a, struct range r) {
    return agent_draw(a, r) * 1e-3 * a->scale.times;
}

double agent_init(struct agent *a, const struct trace_group *g, uint32_t number, uint64_t seed,
                  struct agent_scale scale) {
    struct rng mix = {seed};

    assert(scale.tokens >= 0 && scale.times >= 0);
    *a = (struct agent){
        .group = g, .scale = scale, .rng = {rng_next(&mix) ^ (number * 0xD1342543DE82EF95u)}};
    rng_next(&a->rng);
    snprintf(a->name, sizeof(a->name), "%u", number);
    a->n_turns = MAX(agent_draw(a, g->turns), 1u);
    return draw_seconds(a, g->start);
}

void agent_init_sub(struct agent *a, struct agent *parent) {
    assert(!parent->is_sub);
    *a = (struct agent){.group = parent->group,
                        .scale = parent->scale,
                        .rng = {rng_next(&parent->rng)},
                        .is_sub = true};
    snprintf(a->name, sizeof(a->name), "%.30s.%u", parent->name, ++parent->n_subs_begun);
    a->n_turns = MAX(agent_draw(a, a->group->sub_turns), 1u);
}

bool agent_ended(const struct agent *a) {
    assert(a->turn <= a->n_turns);
    return a->turn == a->n_turns;
}

struct agent_turn agent_next(struct agent *a) {
    const struct trace_group *g = a->group;
    struct agent_turn t = {0};

    assert(!agent_ended(a));
    if (a->turn++ == 0) {
        t.n_system = draw_tokens(a, g->system);
        t.n_new = draw_tokens(a, g->first);
    } else {
        t.n_new = MAX(draw_tokens(a, g->more), 1u);
    }
    t.n_output = draw_tokens(a, g->output);
    return t;
}

struct agent_pause agent_pause(struct agent *a) {
    const struct trace_group *g = a->group;
    bool delegates =
        !a->is_sub && g->subs_every.low > 0 && rng_below(&a->rng, g->subs_every.low) == 0;
    assert(a->turn > 0); /* a pause follows a turn */
    bool thinks = g->think_every.low > 0 && rng_below(&a->rng, g->think_every.low) == 0;

    return (struct agent_pause){
        .n_subs = delegates ? agent_draw(a, g->subs) : 0,
        .seconds = draw_seconds(a, thinks ? g->think : g->pause),
    };
}
