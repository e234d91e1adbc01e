#include "tests/support/sim_constraint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/constraint.h"
#include "tests/support/sched_sim.h"

#define COMPILED_MAX 128
#define PLACE_LEAST 4096 /* bytes that a request is charged for its place in its constraint */
#define LATEST 30        /* most turns before the source delivers a constraint */

struct sim_constraint {
    /* shared by all clients with these texts */
    const struct constraint *compiled;
    struct constraint_state *matcher;
    /* references of the scheduler; tokens that matcher has read */
    uint32_t n_refs, n_placed;
    /* turn in which the source delivers it; 0: not pending */
    uint64_t due;
    /* sets of next tokens: tried, and allowed by the grammar */
    uint64_t tried, fits;
    /* with SUBMIT_COMPLETE: most tokens of the output */
    uint32_t limit;
};

/* Constraints compiled in this simulation. */
struct sim_grammars {
    struct grammar_vocab *vocab;
    struct made {
        const char *grammar, *after;
        /* NULL: refused */
        struct constraint *c;
    } made[COMPILED_MAX];
    uint32_t n;
};

static const char *const grammars[] = {
    R"({"regex":"[abcd]{3,40}"})",
    R"({"regex":"(ab|cd)*d{2,5}"})",
    R"({"regex":"a*b+c{2,30}(d|a)?"})",
    R"({"regex":"([a-c]{1,9}d)*"})",
    R"({"choice":["abcabcabcabc","abc","dddd","dddddddddddddddddda"]})",
    R"({"ebnf":"root ::= \"a\" root \"b\" | \"c\"+"})",
    R"({"literal":"abcddcbaabcddcbaabcd"})",
    R"({"sequence":[{"free_text":"dd"},{"literal":"ddabc"},{"regex":"[ab]*"}]})",
    R"({"repeat":{"either":[{"literal":"abab"},{"regex":"c{1,3}"}]},)"
    R"("separator":{"literal":"d"},"min":2,"max":9})",
    R"({"repeat":{"literal":"acdc"}})",
    R"({"regex":""})",
    R"({"regex":"("})",
};

static const char *const triggers[] = {
    "",
    "",
    "",
    R"({"after":["ab"]})",
    R"({"after":["dd","cbd"],"repeat":true})",
    R"({"after":["a","bcd"],"repeat":true,"required":true})",
    R"({"after":["acb"],"required":true})",
};

static _Noreturn void cannot(const char *what) {
    fprintf(stderr, "sim_constraint: %s\n", what);
    abort();
}

/* Returns the constraint of the texts, compiled once in a simulation; NULL: refused. Simulations
 * share none: masks that a grammar and its vocabulary have cached decide which masks are late. */
static const struct constraint *compile(struct sim *s, const char *grammar, const char *after) {
    struct sim_grammars *g = s->grammars ? s->grammars : (s->grammars = calloc(1, sizeof(*g)));
    struct err err = {0};

    if (!g || (!g->vocab && grammar_vocab_of(&g->vocab, s->tokenizer) < 0))
        cannot("no vocabulary");
    for (uint32_t i = 0; i < g->n; i++)
        if (strcmp(g->made[i].grammar, grammar) == 0 && strcmp(g->made[i].after, after) == 0)
            return g->made[i].c;
    if (g->n == COMPILED_MAX)
        cannot("too many grammars");
    struct made *m = &g->made[g->n++];
    m->grammar = grammar;
    m->after = after;
    int r =
        constraint_new(&m->c, g->vocab, grammar, strlen(grammar), after, strlen(after), NULL, &err);
    if (r < 0 && r != -EINVAL)
        cannot("no memory");
    return m->c;
}

/* Makes the output complete within its limit of tokens (SUBMIT_COMPLETE). The request is invalid if
 * no output is. */
static void complete(struct sim *s, struct sim_client *c) {
    uint64_t room = MIN((uint64_t)s->opts.n_pages * s->opts.page_tokens + 1, s->opts.max_context);
    struct sim_constraint *x = c->constraint;
    uint32_t bits[SIM_VOCAB / 32];

    if (c->m.n_prompt >= room)
        return;
    x->limit = (uint32_t)MIN(c->m.max_new, room - c->m.n_prompt);
    c->m.flags |= SUBMIT_COMPLETE;
    c->invalid |= constraint_mask_within(x->matcher, bits, x->limit) == 0;
}

void sim_constrain(struct sim *s, struct sim_client *c, const char *grammar, const char *after) {
    struct sim_constraint *x = c->constraint = calloc(1, sizeof(*x));

    if (!x)
        cannot("no memory");
    c->m.grammar = (struct str){grammar, (uint32_t)strlen(grammar)};
    c->m.triggers = (struct str){after, (uint32_t)strlen(after)};
    x->compiled = compile(s, grammar, after);
    if (!x->compiled)
        c->invalid = true;
    else if (constraint_state_new(&x->matcher, x->compiled) < 0)
        cannot("no memory");
    if (x->matcher && c->m.id % 2)
        complete(s, c);
}

void sim_constrain_randomly(struct sim *s, struct sim_client *c, struct rng *r) {
    sim_constrain(s, c, grammars[rng_below(r, ARRAY_SIZE(grammars))],
                  triggers[rng_below(r, ARRAY_SIZE(triggers))]);
}

struct sim_constraint *sim_constraint_free(struct sim_constraint *c) {
    if (c) {
        constraint_state_free(c->matcher);
        free(c);
    }
    return NULL;
}

/* Returns the token whose text is that of @token without its last letter, or -1. */
static int32_t shorter(int32_t token) {
    return token < 7 ? -1 : token < 23 ? 3 + (token - 7) % 4 : 7 + (token - 23) % 16;
}

/* Returns true if the grammar allows @token. A token is allowed only if the token with one letter
 * less is. */
static bool fits(struct sim_constraint *x, int32_t token) {
    uint64_t bit = UINT64_C(1) << token;

    if (x->tried & bit)
        return x->fits & bit;
    x->tried |= bit;
    if (shorter(token) >= 0 && !fits(x, shorter(token)))
        return false;
    if (constraint_accept(x->matcher, token) < 0)
        return false;
    constraint_rollback(x->matcher, 1);
    x->fits |= bit;
    return true;
}

/* Returns true for stop ids and end tokens before min_new, and always for end tokens that are
 * ignored. */
static bool banned(const struct submit *m, int32_t token, uint32_t n) {
    bool early = n < m->min_new;

    for (uint32_t i = 0; i < m->n_stop_ids; i++)
        if (early && m->stop_ids[i] == token)
            return true;
    return token == SIM_END && (early || m->sampling.ignore_eos);
}

/* Returns false if the bans leave no allowed token, in which case they are lifted. */
static bool bans_hold(struct sim_client *c, uint32_t n) {
    for (int32_t t = 0; t < SIM_VOCAB; t++)
        if (!banned(&c->m, t, n) && fits(c->constraint, t))
            return true;
    return false;
}

bool sim_constraint_at(void *ctx, const int32_t *out, uint32_t n) {
    struct sim_client *c = ctx;
    struct sim_constraint *x = c->constraint;

    if (n == 0) {
        constraint_state_reset(x->matcher);
        x->n_placed = 0;
    }
    for (; x->n_placed < n; x->n_placed++)
        if (constraint_accept(x->matcher, out[x->n_placed]) < 0)
            cannot("a token that is not allowed");
    x->tried = x->fits = 0;
    if (x->limit > n) {
        uint32_t bits[SIM_VOCAB / 32];

        constraint_mask_within(x->matcher, bits, x->limit - n);
        x->tried = UINT64_MAX;
        x->fits = bits[0] | (uint64_t)bits[1] << 32;
    }
    return !constraint_is_done(x->matcher);
}

bool sim_constraint_allows(void *ctx, int32_t token) {
    struct sim_client *c = ctx;
    struct sim_constraint *x = c->constraint;

    return fits(x, token) && (!banned(&c->m, token, x->n_placed) || !bans_hold(c, x->n_placed));
}

/* ---- the source ---- */

static struct sim_client *client_of(struct sim *s, uint64_t id) {
    HOLD(s, NULL, NO_STRANGER, id >= 1 && id <= s->n_clients && s->client[id - 1].constraint);
    return &s->client[id - 1];
}

static int ask(void *ctx, const struct submit *m, const struct constraint **out, struct err *err) {
    struct sim *s = ctx;
    struct sim_client *c = client_of(s, m->id);
    struct sim_constraint *x = c->constraint;
    struct rng r = {m->id * 31 + s->n_steps};

    HOLD(s, c, ONE_PLACE, x->due == 0 && x->n_refs == 0);
    if (rng_below(&r, 2)) {
        x->due = s->n_turns + 1 + rng_below(&r, LATEST);
        return 1;
    }
    if (!x->compiled)
        return err_set(err, 400, NULL, "no grammar");
    x->n_refs++;
    s->n_constraints++;
    *out = x->compiled;
    return 0;
}

static void forget(void *ctx, uint64_t id) {
    struct sim_client *c = client_of(ctx, id);

    HOLD(ctx, c, ONE_PLACE, c->constraint->due > 0);
    c->constraint->due = 0;
}

/* Releases a reference. The source does not learn whose it was, so only the number of references is
 * checked. */
static void release(void *ctx, const struct constraint *compiled, uint32_t tenant) {
    struct sim *s = ctx;

    HOLD(s, NULL, ALL_BACK, compiled && s->n_constraints > 0);
    s->n_constraints--;
}

static void charge(void *ctx, uint32_t tenant, int64_t more) {
    struct sim *s = ctx;

    (void)tenant;
    s->constraint_bytes += more;
    HOLD(s, NULL, COUNTERS, s->constraint_bytes >= 0);
}

/* Checks that requests are charged for their places while they have a constraint. A request may end
 * while its job runs, so jobs are added. */
static void check_charges(const struct sim *s) {
    HOLD(s, NULL, COUNTERS,
         s->constraint_bytes + (int64_t)s->n_jobs * PLACE_LEAST >=
             (int64_t)s->n_constraints * PLACE_LEAST);
    HOLD(s, NULL, ALL_BACK, s->n_constraints > 0 || s->constraint_bytes == 0);
}

static int put(void *ctx, struct constrain_job *j) {
    struct sim *s = ctx;

    if (s->n_jobs == SIM_JOBS)
        return -ENOMEM;
    s->job[s->n_jobs++] = j;
    return 0;
}

/* Runs and completes some of the queued jobs, as threads would; with @all every one is completed,
 * and some are not run. */
static void run_jobs(struct sim *s, bool all) {
    struct rng r = {s->n_turns * 7 + s->n_jobs};

    for (uint32_t i = s->n_jobs; i-- > 0;) {
        struct job *j = &s->job[i]->job;

        if (!all && rng_below(&r, 3))
            continue;
        s->job[i] = s->job[--s->n_jobs];
        if (!all || rng_below(&r, 2)) /* a job that is not run is abandoned */
            j->run(j);
        j->done(j);
    }
}

void sim_constraints_init(struct sim *s) {
    s->constraints = (struct sched_constraints){s, ask, forget, charge, release, put};
}

void sim_constraints_turn(struct sim *s) {
    struct err none = {.status = 400, .message = "no grammar"};

    s->n_turns++;
    run_jobs(s, false);
    for (uint32_t i = 0; i < s->n_live; i++) {
        struct sim_client *c = &s->client[s->live[i]];
        struct sim_constraint *x = c->constraint;

        if (!x || x->due == 0 || x->due > s->n_turns)
            continue;
        x->due = 0;
        x->n_refs += x->compiled != NULL;
        s->n_constraints += x->compiled != NULL;
        bool taken = sched_constraint_ready(s->sched, c->m.id, x->compiled, &none);

        HOLD(s, c, ONE_PLACE, taken);
    }
    check_charges(s);
}

bool sim_constraints_pending(const struct sim *s) {
    if (s->n_jobs > 0)
        return true;
    for (uint32_t i = 0; i < s->n_live; i++) {
        const struct sim_constraint *x = s->client[s->live[i]].constraint;

        if (x && x->due > 0)
            return true;
    }
    return false;
}

void sim_constraints_reset(struct sim *s) {
    run_jobs(s, true);
    HOLD(s, NULL, ALL_BACK, s->n_constraints == 0);
    check_charges(s);
    for (uint32_t i = 0; i < s->n_live; i++) {
        struct sim_constraint *x = s->client[s->live[i]].constraint;

        if (x)
            x->due = x->n_refs = 0;
    }
}

void sim_constraints_deinit(struct sim *s) {
    struct sim_grammars *g = s->grammars;

    for (uint32_t i = 0; g && i < g->n; i++)
        constraint_free(g->made[i].c);
    if (g)
        grammar_vocab_free(g->vocab);
    free(g);
    s->grammars = NULL;
}
