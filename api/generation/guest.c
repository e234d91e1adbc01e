/*
 * guest - a request that the previous daemon hands over during an upgrade (daemon/models/guests.h)
 * while it keeps the client's connection. Here the request is a generation without an exchange; it
 * is admitted in its tenant's turn, charged, and submitted again after a worker's death like any
 * other. Its text is not parsed here: the other front has the parser, the stop strings and the text
 * that the client got.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/gen.h"
#include "api/generation/gen_request.h"
#include "api/generation/model.h"
#include "base/try.h"

/* Invariants: n_told <= gen->n_out; the next event to the other front continues where the last
 * event ended; the guest is freed after it has sent the event that ends the generation. */
struct api_guest {
    struct waiter waiter;
    struct gen *gen;
    /* id in the front that hands the request over */
    uint64_t id;
    /* output tokens that the other front has */
    uint32_t n_told;
    bool prompt_told;
    /* what gen->m points into */
    struct buf payload;
    void (*notify)(void *ctx, struct api_guest *g, const struct event *e);
    void (*need)(void *ctx, struct api_guest *g, uint32_t index);
    void *ctx;
};

uint64_t api_guest_id(const struct api_guest *g) {
    return g->id;
}

void api_guest_free(struct api_guest *g) {
    if (!g)
        return;
    if (g->gen)
        admit_cancel(&g->gen->env->admit, &g->waiter);
    gen_free(g->gen);
    buf_deinit(&g->payload);
    free(g);
}

static struct str guest_str(const char *s) {
    return (struct str){s, (uint32_t)strlen(s)};
}

/* Returns an event with the part of the generation that the other front has not got yet. */
static struct event news_of(const struct api_guest *g) {
    const struct gen *n = g->gen;

    assert(g->n_told <= n->n_out);
    struct event e = {
        .id = g->id,
        .kind = EVENT_TOKENS,
        .n_top = n->m.n_top,
        .from = g->n_told,
        .n_tokens = n->n_out - g->n_told,
        .n_cached = n->n_cached,
        .n_drafted = n->drafts.n,
        .n_accepted = n->drafts.accepted,
        .n_predicted = n->drafts.n_predicted,
        .n_predicted_accepted = n->drafts.predicted_accepted,
        .first_step_ns = n->first_step_ns,
        .prompt_end_ns = n->prompt_end_ns,
        .computed_ns = n->computed_ns,
        .tokens = n->tokens + n->n_prompt + g->n_told,
        .logprobs = n->logprobs ? n->logprobs + g->n_told : NULL,
        .top = n->top ? n->top + (size_t)g->n_told * n->m.n_top : NULL,
        .digests = n->digests ? n->digests + g->n_told : NULL,
    };

    if (n->prompt_lp && !g->prompt_told) {
        e.n_prompt_lp = n->n_prompt - 1;
        e.n_prompt_top = n->m.n_prompt_top;
        e.prompt_lp = n->prompt_lp;
        e.prompt_top = n->prompt_top;
    }
    return e;
}

/* Adds the end of the generation in the form of a worker's event. */
static void guest_add_end(struct event *e, const struct gen *n) {
    assert(n->state == GEN_DONE && n->finish != FINISH_NONE);
    e->kind = n->accepted || n->finish != FINISH_ERROR ? EVENT_FINISH : EVENT_REJECTED;
    e->finish = (uint16_t)n->finish;
    e->retry_ms = n->retry_ms;
    e->n_vector = n->n_vector;
    e->vector = n->vector;
    if (n->finish != FINISH_ERROR)
        return;
    e->status = (uint16_t)n->err.status;
    e->text = guest_str(n->err.message);
    e->code = guest_str(n->err.code);
    e->param = guest_str(n->err.param);
}

/* The callback gen.changed: sends the news to the other front. */
static void guest_on_changed(struct gen *n) {
    struct api_guest *g = n->owner;
    struct event e = news_of(g);
    bool over = n->state == GEN_DONE;

    if (over)
        guest_add_end(&e, n);
    g->n_told = n->n_out;
    g->prompt_told |= e.n_prompt_lp > 0;
    g->notify(g->ctx, g, &e);
    if (over)
        api_guest_free(g);
}

static void guest_on_admitted(struct waiter *w) {
    gen_start(CONTAINER_OF(w, struct api_guest, waiter)->gen);
}

static void guest_on_expired(struct waiter *w) {
    gen_fail(CONTAINER_OF(w, struct api_guest, waiter)->gen, 504, "request_timeout", GEN_TOO_LATE);
}

/* The callback gen.need_picture: asks the other front, which has the file. */
static void on_need_picture(struct gen *n, uint32_t index) {
    struct api_guest *g = n->owner;

    g->need(g->ctx, g, index);
}

bool api_guest_picture(struct api_guest *g, const struct msg_picture *m) {
    return picture_sender_gather(&g->gen->env->sender, g->gen->model, g->gen->m.id, m);
}

/* Makes the generation of @s. It keeps the pointers of @s, which point into g->payload. */
static int make_gen(struct api_guest *g, struct model *m, const struct submit *s) {
    const struct gen_request none = {0};
    struct tokens prompt = {.id = (int32_t *)s->tokens, .n = s->n_prompt};
    struct gen *n;
    TRY(gen_new(&g->gen, m, &none, &prompt, false, s->max_new, s->choice));
    n = g->gen;
    uint64_t id = n->m.id;
    n->m = *s;
    n->m.id = id;
    n->owner = g;
    n->changed = guest_on_changed;
    n->need_picture = s->n_pictures ? on_need_picture : NULL;
    n->n_faults = s->n_faults;
    g->id = s->id;
    g->n_told = s->n_tokens - s->n_prompt;
    if (g->n_told > 0) /* the first token was generated under the other daemon */
        n->first_token_ns = n->last_token_ns = clock_now(m->env->clock);
    return gen_add_output(n, s->tokens + s->n_prompt, g->n_told);
}

/* Returns the tenant of the same name, with the limits that this daemon's configuration gives
 * it. */
static struct tenant *guest_assign(struct gen *n) {
    struct api_tenant row = {0};
    struct str name = n->m.tenant_name;

    if (name.len == 0 || name.len >= sizeof(row.name) || memchr(name.data, 0, name.len))
        return NULL;
    memcpy(row.name, name.data, name.len);
    struct tenant *t = tenants_named(&n->env->tenants, row.name);
    if (!t)
        return NULL;
    gen_set_tenant(n, t);
    gen_charge(n, t, n->m.max_new);
    return t;
}

DEFINE_FREEP(struct api_guest, api_guest)

int api_guest_new(struct api_guest **out, struct model *m, struct buf *payload,
                  void (*notify)(void *ctx, struct api_guest *g, const struct event *e),
                  void (*need)(void *ctx, struct api_guest *g, uint32_t index), void *ctx) {
    CLEANUP(api_guest_freep) struct api_guest *g = calloc(1, sizeof(*g));
    struct submit s;

    if (!g)
        return -ENOMEM;
    g->payload = *payload;
    buf_init(payload, payload->max);
    g->notify = notify;
    g->need = need;
    g->ctx = ctx;
    list_init(&g->waiter.link);
    TRY(msg_submit_parse(g->payload.data, (uint32_t)g->payload.len, &s));
    TRY(make_gen(g, m, &s));
    g->waiter.tenant = guest_assign(g->gen);
    if (!g->waiter.tenant)
        return -EPROTO;
    g->waiter.n = 1;
    g->waiter.n_context = (uint64_t)s.n_prompt + s.max_new;
    g->waiter.deadline_ns = s.deadline_ns;
    g->waiter.admitted = guest_on_admitted;
    g->waiter.expired = guest_on_expired;
    *out = STEAL(g);
    admit_again(&m->env->admit, &(*out)->waiter);
    return 0;
}
