#include "api/generation/writer_private.h"

#include <assert.h>
#include <errno.h>
#include "api/generation/bill.h"
#include "api/generation/endpoint.h"
#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/prompt_steps.h"
#include "base/try.h"

#define PROMPT_TOP_MAX (1u << 20) /* limit of log probabilities at all positions of a prompt */

/* Computes the room that a prompt of @n tokens leaves for the output, or returns
 * context_length_exceeded. */
static int room_for(const struct writer *w, size_t n, uint32_t *max_new, struct err *err) {
    const struct gen_request *r = &w->job.request;
    const struct gen_env *env = w->job.env;
    uint32_t own = tenants_get(&env->tenants, w->exchange->tenant)->conf.max_context;
    uint32_t all = w->job.model->info->max_context;
    uint32_t context = own > 0 ? MIN(own, all) : all;
    uint32_t seen = w->job.context; /* a prompt longer than this has no grammar */
    uint32_t given = w->endpoint->default_tokens;
    const char *field = w->job.chat ? "messages" : "prompt";

    if (r->max_new)
        given = r->max_new;
    else if (!given)
        given = env->opts.default_max_tokens;
    if (n == 0)
        return json_refuse(err, field, "must not be empty");
    context = seen > 0 ? MIN(context, seen) : context;
    if (n >= context)
        return prompt_exceeds(&w->job, field, n, false, context, err);
    *max_new = context - (uint32_t)n;
    if (given && given < *max_new)
        *max_new = given;
    return 0;
}

/* Returns true if the client says how long the output may be. */
static bool gives_limit(const struct gen_request *r) {
    return r->max_new && r->max_new != GEN_REQUEST_NO_LIMIT;
}

int writer_charge(struct writer *w, struct err *err) {
    struct gen_env *env = w->job.env;
    struct tenant *t = tenants_get(&env->tenants, w->exchange->tenant);
    const struct gen_request *r = &w->job.request;
    uint64_t n_tokens = 0;

    assert(w->waiter.n == w->n_choices && w->waiter.n_context == 0);
    w->waiter.tenant = t;
    for (uint32_t i = 0; i < w->n_choices; i++) {
        const struct gen *g = w->choices[i].gen;
        uint32_t n_out = gives_limit(r) ? g->m.max_new : tenant_expects(t, g->m.max_new);

        n_tokens += (g->m.choice == 0 ? g->n_prompt : 0) + n_out;
        w->waiter.n_context += g->n_prompt + n_out;
    }
    TRY(bill_request(w->exchange, w->job.model, n_tokens, err));
    for (uint32_t i = 0; i < w->n_choices; i++) {
        struct gen *g = w->choices[i].gen;

        gen_charge(g, t, gives_limit(r) ? g->m.max_new : tenant_expects(t, g->m.max_new));
    }
    return 0;
}

static void fill_submit(struct writer *w, struct gen *g, uint64_t group, uint64_t seed) {
    g->owner = w;
    g->changed = writer_changed;
    g->m.group = group;
    g->m.seed = seed;
    gen_belongs(g, &w->exchange, &w->job.request);
}

static int set_output(struct writer *w, struct gen *g) {
    struct toolcall_opts opts = w->job.parse;

    opts.seed = rng_next(&w->job.env->rng); /* ids of calls must be unique in a conversation */
    /* A call that no grammar holds may break when half of it has been sent. */
    opts.whole_calls = w->endpoint->whole_calls || w->job.request.grammar.len == 0;
    opts.inline_reasoning = w->job.request.inline_reasoning && w->endpoint->inlines_reasoning;
    opts.joined = w->endpoint->repeats < REPEATS_PARTS;
    if (!w->job.parses && !w->endpoint->parsed)
        return 0;
    TRY(gen_parse_output(g, &opts));
    if (w->job.request.has_budget)
        return gen_limit_reasoning(g, w->job.request.thinking_budget);
    return g->loop_tokens ? gen_limit_reasoning(g, UINT32_MAX) : 0;
}

/* Adds choice @i of prompt @p to the answer, of at most @max_new tokens. The @last choice takes
 * over the tokens of the prompt instead of copying them. */
static int add_choice(struct writer *w, struct prompt *p, uint32_t i, bool last, uint32_t max_new,
                      uint64_t group, uint64_t seed) {
    struct choice *c = &w->choices[w->n_choices];
    struct gen *g = NULL;

    TRY(gen_new(&g, w->job.model, &w->job.request, &p->tokens, last, max_new, (uint16_t)i));
    *c = (struct choice){.gen = g,
                         .custom.text.max = UINT32_MAX,
                         .echo = echo_use(p->echo),
                         .n_chars = p->echo ? p->echo->n_chars : 0};
    w->n_choices++;
    gen_set_pictures(g, p);
    fill_submit(w, g, group, seed);
    return set_output(w, g);
}

int writer_create_gens(struct writer *w, struct err *err) {
    const struct gen_request *r = &w->job.request;
    struct gen_env *env = w->job.env;
    uint64_t seed = r->has_seed ? r->seed : rng_next(&env->rng);
    uint32_t n = gen_request_made(r);

    assert(!w->choices && w->n_choices == 0);
    w->choices = calloc((size_t)w->job.n_prompts * n, sizeof(*w->choices));
    if (!w->choices)
        return -ENOMEM;
    for (uint32_t k = 0; k < w->job.n_prompts; k++) {
        struct prompt *p = &w->job.prompts[k];
        uint64_t group = env->gens.next_id;
        uint32_t max_new = 0;

        TRY(room_for(w, p->tokens.n, &max_new, err));
        if (p->tokens.n * r->n_prompt_top > PROMPT_TOP_MAX)
            return err_set_code(err, 400, "invalid_value", "logprobs",
                                "The request asks for more than %u log probabilities of its "
                                "prompt: shorten the prompt or ask for fewer.",
                                PROMPT_TOP_MAX);
        for (uint32_t i = 0; i < n; i++)
            TRY(add_choice(w, p, i, i + 1 == n, max_new, group, seed));
    }
    return 0;
}

int writer_add_round(struct writer *w, struct err *err) {
    const struct gen *before = w->choices[w->n_choices - 1].gen;
    struct prompt *p = &w->job.prompts[0];
    struct tenant *t = tenants_get(&w->job.env->tenants, w->exchange->tenant);
    uint32_t left = before->m.max_new - before->n_out, max_new = 0;

    TRY(room_for(w, p->tokens.n, &max_new, err));
    assert(left > 0 && before->state == GEN_DONE);
    if (!array_resize(&w->choices, w->n_choices + 1, sizeof(*w->choices)))
        return -ENOMEM;
    TRY(add_choice(w, p, 0, true, MIN(max_new, left), before->m.group, before->m.seed));
    struct gen *g = w->choices[w->n_choices - 1].gen;
    gen_charge(g, t, g->m.max_new);
    w->waiter.n = 1;
    w->waiter.n_context = (uint64_t)g->n_prompt + g->m.max_new;
    w->waiter.refused = NULL;
    admit_again(&w->job.env->admit, &w->waiter);
    return 0;
}
