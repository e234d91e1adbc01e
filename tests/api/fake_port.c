#include "fake_port.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/flight.h"

#define BATCH 4096

static struct fake_port *of(struct api_port *p) {
    return CONTAINER_OF(p, struct fake_port, port);
}

struct fake_request *fake_find(struct fake_port *f, uint64_t id) {
    for (uint32_t i = 0; i < f->n; i++)
        if (f->r[i].id == id)
            return &f->r[i];
    return NULL;
}

static void replace(char **text, struct str s) {
    free(*text);
    *text = strndup(s.data ? s.data : "", s.len);
}

/* Returns a free request, or a finished one if none is free; NULL: all run. */
static struct fake_request *find_free(struct fake_port *f) {
    if (f->n < FAKE_MAX)
        return &f->r[f->n++];
    for (uint32_t i = 0; i < FAKE_MAX; i++)
        if (f->r[i].finished)
            return &f->r[i];
    return NULL;
}

static int submit(struct api_port *p, const struct submit *m, uint32_t *sent) {
    struct fake_port *f = of(p);
    struct fake_request *r = fake_find(f, m->id);

    if (f->refuse_with)
        return f->refuse_with;
    if (f->n_again) {
        f->n_again--;
        return -EAGAIN;
    }
    if (f->part && msg_submit_len(m) > SUBMIT_WHOLE) {
        if (f->n_parts == 0)
            return -EAGAIN;
        f->n_parts--;
        *sent += f->part;
        if (*sent < msg_submit_len(m))
            return 1;
    }
    if (!r)
        r = find_free(f);
    if (!r)
        return -EAGAIN;
    r->id = m->id;
    r->n_submits++;
    r->begun_ns = 0;
    r->accepted = r->finished = r->cancelled = r->cut = false;
    r->m = *m;
    r->n_sent = m->n_tokens - m->n_prompt;
    for (uint32_t i = 0; i < MIN(m->n_pictures, (uint32_t)ARRAY_SIZE(r->pictures)); i++)
        r->pictures[i] = m->pictures[i];
    r->m.pictures = r->pictures;
    r->tokens = realloc(r->tokens, (m->n_tokens + 1) * sizeof(int32_t));
    memcpy(r->tokens, m->tokens, m->n_tokens * sizeof(int32_t));
    r->m.tokens = r->tokens;
    r->stop_ids = realloc(r->stop_ids, (m->n_stop_ids + 1) * sizeof(int32_t));
    if (m->n_stop_ids)
        memcpy(r->stop_ids, m->stop_ids, m->n_stop_ids * sizeof(int32_t));
    r->m.stop_ids = r->stop_ids;
    for (uint32_t i = 0; i < m->n_stops; i++) {
        size_t n = MIN(m->stops[i].len, sizeof(r->stops[i]) - 1);

        memcpy(r->stops[i], m->stops[i].data, n);
        r->stops[i][n] = 0;
    }
    replace(&r->grammar, m->grammar);
    replace(&r->triggers, m->triggers);
    r->n_allowed = m->allowed.len / (uint32_t)sizeof(int32_t);
    r->n_bad = (uint32_t)MIN(m->bad_words.len / sizeof(int32_t), ARRAY_SIZE(r->bad));
    if (r->n_bad)
        memcpy(r->bad, m->bad_words.data, r->n_bad * sizeof(int32_t));
    r->n_breakers = (uint32_t)MIN(m->breakers.len / sizeof(int32_t), ARRAY_SIZE(r->breakers));
    if (r->n_breakers)
        memcpy(r->breakers, m->breakers.data, r->n_breakers * sizeof(int32_t));
    r->n_prediction = m->prediction.len / (uint32_t)sizeof(int32_t);
    r->prediction = realloc(r->prediction, m->prediction.len + 1);
    if (m->prediction.len)
        memcpy(r->prediction, m->prediction.data, m->prediction.len);
    return 0;
}

static void cancel(struct api_port *p, uint64_t id) {
    struct fake_request *r = fake_find(of(p), id);

    of(p)->n_cancels++;
    if (r)
        r->cancelled = true;
}

static int picture(struct api_port *p, const struct msg_picture *m) {
    struct fake_port *f = of(p);

    if (f->picture_again) {
        f->picture_again--;
        return -EAGAIN;
    }
    if (m->total == 0) {
        f->n_picture_errors++;
        snprintf(f->picture_error, sizeof(f->picture_error), "%u %.*s %.*s", m->status,
                 (int)m->code.len, m->code.data, (int)m->why.len, m->why.data);
        return 0;
    }
    assert(m->offset == (m->offset ? f->n_pixels : 0) && m->rgb.len <= PICTURE_PART);
    f->pixels = realloc(f->pixels, m->total);
    memcpy(f->pixels + m->offset, m->rgb.data, m->rgb.len);
    f->n_pixels = m->offset + m->rgb.len;
    f->n_pictures += f->n_pixels == m->total;
    return 0;
}

static void turn_end(struct api_port *p, const struct turn_end *m) {
    struct fake_port *f = of(p);
    struct fake_request *r = fake_find(f, m->id);

    f->last_turn = *m;
    f->n_turns++;
    if (r && !r->finished)
        r->cut = true;
}

/* Reports that every request waited for pages before it ended: the first for 3 steps, the next for
 * one more. */
static uint32_t story(struct api_port *p, uint64_t id, struct flight_record *out, uint32_t max) {
    const struct fake_port *f = CONTAINER_OF(p, struct fake_port, port);
    uint32_t i = 0;

    assert(max >= 2);
    while (i < f->n && f->r[i].id != id)
        i++;
    out[0] = (struct flight_record){
        .id = id, .from_ns = 1000000, .until_ns = 6000000, .n_steps = 3 + i, .why = WHY_PAGES};
    out[1] = (struct flight_record){
        .id = id, .from_ns = 9000000, .until_ns = 9000000, .n_steps = 1, .why = WHY_ENDED};
    return 2;
}

void fake_init(struct fake_port *f, struct clock *clock) {
    memset(f, 0, sizeof(*f));
    f->port = (struct api_port){.submit = submit,
                                .cancel = cancel,
                                .turn_end = turn_end,
                                .picture = picture,
                                .story = story};
    f->clock = clock;
}

void fake_deinit(struct fake_port *f) {
    free(f->pixels);
    for (uint32_t i = 0; i < FAKE_MAX; i++) {
        free(f->r[i].tokens);
        free(f->r[i].stop_ids);
        free(f->r[i].grammar);
        free(f->r[i].triggers);
        free(f->r[i].prediction);
    }
}

static struct event event_of(struct fake_port *f, uint32_t i, uint16_t kind) {
    if (!f->r[i].begun_ns)
        f->r[i].begun_ns = clock_now(f->clock);
    return (struct event){.id = f->r[i].id,
                          .kind = kind,
                          .from = f->r[i].n_sent,
                          .n_cached = f->n_cached ? f->n_cached : f->r[i].m.n_prompt / 2,
                          .n_drafted = f->n_predicted + 90, /* most drafts are from other sources */
                          .n_accepted = f->n_predicted_accepted + 80,
                          .n_predicted = f->n_predicted,
                          .n_predicted_accepted = f->n_predicted_accepted,
                          .first_step_ns = f->r[i].begun_ns};
}

static bool is_pooled(const struct submit *m) {
    return m->flags & SUBMIT_POOLS;
}

void fake_accept(struct fake_port *f, uint32_t i) {
    struct event e = event_of(f, i, EVENT_ACCEPTED);

    f->r[i].accepted = true;
    api_on_event(f->model, &e);
}

void fake_refuse(struct fake_port *f, uint32_t i, const struct err *why) {
    struct event e = event_of(f, i, EVENT_REJECTED);

    e.status = (uint16_t)why->status;
    e.text = (struct str){why->message, (uint32_t)strlen(why->message)};
    e.code = (struct str){why->code, (uint32_t)strlen(why->code)};
    e.param = (struct str){why->param, (uint32_t)strlen(why->param)};
    f->r[i].finished = true;
    api_on_event(f->model, &e);
}

void fake_reject(struct fake_port *f, uint32_t i, int status, const char *why) {
    struct err err;

    err_set(&err, status, NULL, "%s", why);
    fake_refuse(f, i, &err);
}

static void add_prompt(const struct fake_request *r, struct event *e) {
    static float lp[BATCH];
    static struct event_top top[BATCH * SUBMIT_TOP_MAX];
    uint32_t n = MIN(r->m.n_prompt - 1, BATCH), n_top = r->m.n_prompt_top;

    for (uint32_t i = 0; i < n; i++) {
        lp[i] = -0.25f * (float)(i + 1);
        for (uint32_t k = 0; k < n_top; k++)
            top[i * n_top + k] =
                k ? (struct event_top){r->tokens[i + 1], lp[i]} : (struct event_top){'t', -0.125f};
    }
    e->n_prompt_lp = n;
    e->prompt_lp = lp;
    e->n_prompt_top = (uint8_t)n_top;
    e->prompt_top = n_top ? top : NULL;
}

static void send_ids(struct fake_port *f, uint32_t i, uint32_t from, const int32_t *ids,
                     uint32_t n) {
    static float logprobs[BATCH];
    static struct event_top top[BATCH * 2];
    static uint64_t digests[BATCH];
    struct event e = event_of(f, i, EVENT_TOKENS);

    for (uint32_t k = 0; k < n; k++) {
        logprobs[k] = f->r[i].logprob < 0 ? f->r[i].logprob : -0.5f;
        top[2 * k] = (struct event_top){ids[k], -0.5f};
        top[2 * k + 1] = (struct event_top){f->second ? f->second : 'z', -1.5f};
        digests[k] = 0xABC0 + from + k;
    }
    e.from = from;
    e.n_tokens = n;
    e.tokens = ids;
    e.prompt_end_ns = e.first_step_ns + FAKE_PROMPT_NS;
    e.computed_ns = e.prompt_end_ns + (int64_t)(from + n) * FAKE_TOKEN_NS;
    if (f->r[i].m.flags & SUBMIT_LOGPROBS) {
        e.logprobs = logprobs;
        e.n_top = (uint8_t)MIN(f->r[i].m.n_top, 2);
        e.top = e.n_top ? top : NULL;
        if (e.n_top == 1)
            for (uint32_t k = 1; k < n; k++)
                top[k] = top[2 * k];
    }
    if (f->r[i].m.flags & SUBMIT_DIGESTS)
        e.digests = digests;
    if (from == 0 && f->r[i].m.flags & SUBMIT_PROMPT_LOGPROBS)
        add_prompt(&f->r[i], &e);
    f->r[i].n_sent = MAX(f->r[i].n_sent, from + n);
    api_on_event(f->model, &e);
}

void fake_ids(struct fake_port *f, uint32_t i, const int32_t *ids, uint32_t n) {
    send_ids(f, i, f->r[i].n_sent, ids, n);
}

void fake_tokens_from(struct fake_port *f, uint32_t i, uint32_t from, const char *text) {
    int32_t ids[BATCH];
    uint32_t n = 0;

    for (; text[n] && n < BATCH; n++)
        ids[n] = (unsigned char)text[n];
    send_ids(f, i, from, ids, n);
}

void fake_tokens(struct fake_port *f, uint32_t i, const char *text) {
    fake_tokens_from(f, i, f->r[i].n_sent, text);
}

void fake_finish(struct fake_port *f, uint32_t i, enum finish_reason why) {
    struct event e = event_of(f, i, EVENT_FINISH);

    e.finish = (uint16_t)why;
    f->r[i].finished = true;
    if (why == FINISH_STOP && is_pooled(&f->r[i].m)) {
        const struct fake_request *r = &f->r[i];
        float v[FAKE_EMBD] = {(float)r->tokens[0], (float)r->tokens[r->m.n_prompt - 1],
                              (float)r->m.n_prompt, r->m.flags & SUBMIT_POOL_MEAN ? 1 : 0};

        e.n_vector = FAKE_EMBD;
        e.vector = v;
        if (r->m.flags & SUBMIT_SCORE) {
            e.n_vector = 1;
            v[0] = v[1] - 'm';
        }
        if (r->m.flags & SUBMIT_POOL_NONE) { /* element 0: the token; element 1: its position */
            uint32_t n = r->m.n_prompt;
            float *all = calloc((size_t)n * FAKE_EMBD, sizeof(*all));

            for (uint32_t k = 0; k < n; k++) {
                all[k * FAKE_EMBD] = (float)r->tokens[k];
                all[k * FAKE_EMBD + 1] = (float)k;
            }
            e.n_vector = n * FAKE_EMBD;
            e.vector = all;
            api_on_event(f->model, &e);
            free(all);
            return;
        }
        api_on_event(f->model, &e);
        return;
    }
    api_on_event(f->model, &e);
}

void fake_fail(struct fake_port *f, uint32_t i, int status, const char *why) {
    struct event e = event_of(f, i, EVENT_FINISH);

    e.finish = FINISH_ERROR;
    e.status = (uint16_t)status;
    e.text = (struct str){why, (uint32_t)strlen(why)};
    f->r[i].finished = true;
    api_on_event(f->model, &e);
}

void fake_turn(struct fake_port *f) {
    for (uint32_t i = 0; (f->script || f->turn) && !f->hold && i < f->n; i++) {
        struct fake_request *r = &f->r[i];

        if (r->finished || r->cancelled || r->cut)
            continue;
        if (f->turn) {
            f->turn(f, i);
            continue;
        }
        size_t len = strlen(f->script);

        if (!r->accepted) {
            fake_accept(f, i);
        } else if (!is_pooled(&r->m) && r->n_sent < len && r->n_sent < r->m.max_new) {
            char one[2] = {f->script[r->n_sent], 0};

            fake_tokens(f, i, one);
        } else {
            fake_finish(f, i, r->n_sent >= r->m.max_new ? FINISH_LENGTH : FINISH_STOP);
        }
    }
}

const char *fake_prompt(const struct fake_request *r) {
    static char out[4096];
    size_t n = 0;

    for (uint32_t i = 0; i < r->m.n_prompt && n + 1 < sizeof(out); i++)
        out[n++] = r->tokens[i] < 256 ? (char)r->tokens[i] : '|';
    out[n] = 0;
    return out;
}
