#pragma once

/* bench_agent - the behaviour of an agent of a trace, turn by turn: the lengths of its messages and
 * of the answers, its sub-agents, and the pauses for tools and people. They follow from the trace,
 * the seed and the agent's number and not from the server, so every server gets the same
 * requests. */

#include "base/rng.h"
#include "cmd/bench_trace.h"

struct agent_scale {
    /* factors for the numbers of the trace */
    double tokens, times;
};

/* Invariant: turn <= n_turns. Only agents of the trace have sub-agents; sub-agents have none. */
struct agent {
    const struct trace_group *group;
    struct agent_scale scale;
    struct rng rng;
    /* the session: "12" for an agent, "12.1", "12.2" for its sub-agents */
    char name[48];
    /* turn: number of turns drawn so far */
    uint32_t n_turns, turn;
    uint32_t n_subs_begun;
    bool is_sub;
};

struct agent_turn {
    /* tokens of the common system prompt in the first turn; 0: none */
    uint32_t n_system;
    /* tokens that the agent adds */
    uint32_t n_new;
    uint32_t n_output;
};

/* Describes the pause between a turn and the next one. */
struct agent_pause {
    /* number of sub-agents that work first */
    uint32_t n_subs;
    /* time that the pause takes after that */
    double seconds;
};

/* Initialises the @number-th agent of a trace. Returns when it begins, in seconds after the
 * start. */
double agent_init(struct agent *a, const struct trace_group *g, uint32_t number, uint64_t seed,
                  struct agent_scale scale);
/* Initialises the next sub-agent of @parent, which begins like the agents of the group. */
void agent_init_sub(struct agent *a, struct agent *parent);

bool agent_ended(const struct agent *a); /* true if no turn is left */
/* Returns the next turn of @a, which must have one left. */
struct agent_turn agent_next(struct agent *a);
/* Returns the pause between the turn that agent_next() gave last and the one after it. */
struct agent_pause agent_pause(struct agent *a);
