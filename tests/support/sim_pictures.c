#include "tests/support/sim_pictures.h"

#include <stdlib.h>
#include <string.h>

#include "tests/support/sched_sim.h"
#include "tests/support/telltale_text.h"

/* Describes picture @i of the pool. */
static void describe(uint32_t i, struct submit_picture *p) {
    uint32_t columns = 1 + i % 3, lines = 1 + i % 4, breaks = i % 2 ? lines - 1 : 0;

    *p = (struct submit_picture){
        .n_rows = columns * lines + breaks,
        .n_columns = columns,
        .n_lines = lines,
        .n_positions = i % 2 ? columns * lines + breaks : MAX(columns, lines),
        .width = 4 * columns,
        .height = 4 * lines,
    };
    memset(p->digest, 7, sizeof(p->digest) - 1);
    p->digest[sizeof(p->digest) - 1] = (uint8_t)i;
}

static uint32_t paint(uint32_t i, uint8_t rgb[static 3 * 12 * 16]) {
    struct submit_picture p;
    struct rng r = {i + 300};

    describe(i, &p);
    for (uint32_t k = 0; k < 3 * p.width * p.height; k++)
        rgb[k] = (uint8_t)rng_next(&r);
    return 3 * p.width * p.height;
}

static uint32_t number_of(const struct submit_picture *p) {
    return p->digest[sizeof(p->digest) - 1];
}

static bool is_broken(const struct sim *s, const struct submit_picture *p) {
    return s->opts.broken_picture && number_of(p) + 1 == s->opts.n_pictures;
}

/* ---- prompts ---- */

static void reserve(struct sim_client *c) {
    if (c->pictures)
        return;
    c->pictures = calloc(SUBMIT_PICTURES_MAX, sizeof(*c->pictures));
    c->seen = calloc((size_t)c->m.n_prompt + c->m.max_new, sizeof(*c->seen));
    if (!c->pictures || !c->seen)
        abort();
    memcpy(c->seen, c->tokens, c->m.n_prompt * sizeof(*c->seen));
    c->m.pictures = c->pictures;
}

static void put(struct sim_client *c, const struct submit_picture *p) {
    uint8_t rgb[3 * 12 * 16];
    struct picture_layout l = {.width = p->width,
                               .height = p->height,
                               .n_columns = p->n_columns,
                               .n_lines = p->n_lines,
                               .n_rows = p->n_rows,
                               .n_positions = p->n_positions};

    reserve(c);
    paint(number_of(p), rgb);
    c->pictures[c->m.n_pictures++] = *p;
    for (uint32_t k = 0; k < p->n_rows; k++) {
        c->tokens[p->at + k] = SIM_PLACEHOLDER;
        c->seen[p->at + k] = telltale_row(rgb, &l, k);
    }
}

void sim_add_pictures(struct sim *s, struct sim_client *c, uint32_t from, uint32_t to,
                      uint64_t seed) {
    struct rng r = {seed};
    uint32_t at = from;

    while (s->opts.n_pictures > 0) {
        struct submit_picture p;

        at += rng_below(&r, 30);
        describe(rng_below(&r, s->opts.n_pictures), &p);
        p.at = at;
        if (at + p.n_rows > to || c->m.n_pictures == SUBMIT_PICTURES_MAX)
            return;
        put(c, &p);
        c->broken |= is_broken(s, &p);
        at += p.n_rows;
    }
}

void sim_put_picture(struct sim *s, struct sim_client *c, uint32_t i, uint32_t at) {
    struct submit_picture p;

    describe(i, &p);
    p.at = at;
    put(c, &p);
    c->broken |= is_broken(s, &p);
}

void sim_copy_pictures(struct sim_client *c, const struct sim_client *before, uint32_t n_tokens) {
    for (uint32_t i = 0; i < before->m.n_pictures; i++)
        if (before->pictures[i].at + before->pictures[i].n_rows <= n_tokens)
            put(c, &before->pictures[i]);
    c->broken = before->broken;
}

const int32_t *sim_seen(const struct sim_client *c) {
    return c->seen ? c->seen : c->tokens;
}

void sim_see_outputs(struct sim_client *c) {
    if (c->seen)
        memcpy(c->seen + c->m.n_prompt, c->tokens + c->m.n_prompt, c->m.max_new * sizeof(*c->seen));
}

void sim_free_pictures(struct sim_client *c) {
    free(c->pictures);
    free(c->seen);
}

/* ---- the front ---- */

/* Sends the next part of the pixels of @n. Returns true if it was the last part or the request has
 * ended. */
static bool answer(struct sim *s, struct sim_need *n, struct rng *r) {
    const struct sim_client *c = &s->client[n->id - 1];
    struct msg_picture m = {.id = n->id, .index = n->index, .offset = n->offset};
    uint8_t rgb[3 * 12 * 16];

    if (c->n_ends > 0 || c->cancelled)
        return true; /* the front has dropped the request */
    if (n->wait-- > 0)
        return false;
    n->wait = rng_below(r, 3);
    if (is_broken(s, &c->pictures[n->index])) {
        m.status = 400;
        m.why = (struct str){"broken picture", 14};
        sched_picture(s->sched, &m);
        return true;
    }
    m.total = paint(number_of(&c->pictures[n->index]), rgb);
    uint32_t part = 60 + rng_below(r, 300);
    m.rgb = (struct str){(char *)rgb + n->offset, MIN(m.total - n->offset, part)};
    sched_picture(s->sched, &m);
    n->offset += m.rgb.len;
    return n->offset == m.total;
}

void sim_answer_pictures(struct sim *s) {
    struct rng r = {s->clock.ns + (int64_t)s->n_steps};

    for (uint32_t i = 0; i < s->n_needs;)
        if (answer(s, &s->need[i], &r))
            s->need[i] = s->need[--s->n_needs];
        else
            i++;
}

void sim_take_needs(struct sim *s) {
    struct msg_need_picture m;

    while (!s->deaf && s->n_needs < SIM_NEEDS && sched_need_picture(s->sched, &m)) {
        HOLD(s, NULL, NO_STRANGER, m.id >= 1 && m.id <= s->n_clients);
        struct sim_client *c = &s->client[m.id - 1];
        const struct request *r = *sched_slot(s->sched, m.id);

        HOLD(s, c, ASKED, c->n_ends == 0 && r && r->state == REQUEST_RUNNING);
        HOLD(s, c, ASKED, m.index < c->m.n_pictures);
        const struct submit_picture *p = &c->pictures[m.index];
        HOLD(s, c, ASKED, p->at + p->n_rows > r->n_computed);
        /* Checks that the pixels are requested once for all running requests with the same
         * isolation key. */
        for (uint32_t i = 0; i < s->n_needs; i++) {
            const struct sim_client *o = &s->client[s->need[i].id - 1];

            HOLD(s, c, ASKED,
                 o->n_ends > 0 || o->cancelled ||
                     /* requested again after a preemption */
                     (o == c && s->need[i].index == m.index) ||
                     memcmp(o->m.isolation_key, c->m.isolation_key, 16) != 0 ||
                     number_of(&o->pictures[s->need[i].index]) != number_of(p) ||
                     (*sched_slot(s->sched, o->m.id))->state != REQUEST_RUNNING);
        }
        sched_asked(s->sched, &m);
        s->need[s->n_needs++] = (struct sim_need){m.id, m.index, 0, (uint32_t)(m.id + m.index) % 5};
    }
}

bool sim_pictures_pending(struct sim *s) {
    struct msg_need_picture m;

    return s->n_needs > 0 || sched_need_picture(s->sched, &m);
}

/* ---- rules ---- */

/* Returns the number of pictures of requests that hold @x. Checks that they may hold it, and one
 * row of a computed picture. */
static uint32_t count_users(struct sim *s, const struct sched_picture *x) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < SCHED_ID_SLOTS; i++)
        for (const struct request *r = s->sched->by_id[i]; r; r = r->next_id)
            for (uint32_t k = 0; k < r->picture.n; k++) {
                const struct submit_picture *in = &r->picture.list[k].in;
                const struct sim_client *c = &s->client[r->id - 1];

                if (r->picture.list[k].held != x)
                    continue;
                n++;
                bool runs = r->state == REQUEST_RUNNING;
                HOLD(s, c, PICTURES, runs || (r->n_in_flight > 0 && x->state == PICTURE_READY));
                HOLD(s, c, PICTURES, !runs || in->at + in->n_rows > kv_seq_committed(r->seq));
                HOLD(s, c, PICTURES,
                     memcmp(&x->isolation, &r->isolation, sizeof(x->isolation)) == 0);
                if (x->state != PICTURE_READY)
                    continue;
                struct engine_picture p = {.n_rows = in->n_rows,
                                           .n_columns = in->n_columns,
                                           .n_lines = in->n_lines,
                                           .n_positions = in->n_positions};
                uint32_t row = (uint32_t)(s->n_steps % in->n_rows), width = SIM_PICTURE_WIDTH;
                HOLD(s, c, PICTURES,
                     text_row(&p, x->rows + (size_t)row * width, width) == c->seen[in->at + row]);
            }
    return n;
}

void sim_check_pictures(struct sim *s) {
    const struct pictures *p = &s->sched->pictures;
    uint64_t n_bytes = 0, n_pixels = 0, most = 0;

    for (uint32_t i = 0; i < PICTURES_BUCKETS && s->opts.n_pictures > 0; i++)
        for (const struct sched_picture *x = p->bucket[i]; x; x = x->next) {
            uint64_t bytes = (uint64_t)x->layout.n_rows * SIM_PICTURE_WIDTH * sizeof(float);
            uint64_t pixels = 3 * (uint64_t)x->layout.width * x->layout.height;

            HOLD(s, NULL, PICTURES, x->n_users == count_users(s, x));
            HOLD(s, NULL, PICTURES, x->n_users > 0 || x->state == PICTURE_READY);
            HOLD(s, NULL, PICTURES, (x == p->now) == (x->state == PICTURE_UNDER_WAY));
            for (const struct sched_picture *y = x->next; y; y = y->next)
                HOLD(s, NULL, PICTURES,
                     x->number != y->number || memcmp(&x->isolation, &y->isolation, 16) != 0);
            n_bytes += x->state >= PICTURE_UNDER_WAY ? bytes : 0;
            n_pixels += x->state > PICTURE_WANTED && x->state < PICTURE_READY ? pixels : 0;
            most = MAX(most, bytes);
        }
    HOLD(s, NULL, PICTURES, p->n_bytes == n_bytes && p->n_pixel_bytes == n_pixels);
    HOLD(s, NULL, PICTURES, n_bytes <= p->max_bytes + most);
}
