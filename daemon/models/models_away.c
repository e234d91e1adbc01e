/*
 * models_away - moves requests between daemons in an upgrade: the old daemon's workers end, and
 * workers of the next one continue their requests (workers_away.c, guests.h). A model of the same
 * name that gives the same tokens takes the requests; it is loaded for this if necessary. The old
 * daemon's workers continue the requests that no model takes.
 */

#include <assert.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/models/guests.h"
#include "daemon/models/models_private.h"

/* ---- functions of the old daemon ---- */

/* Returns true if a worker still has memory of the device. */
static bool uses_device(const struct models *m) {
    for (uint32_t i = 0; i < m->n; i++)
        if (workers_on_device(m->served[i]->workers) && workers_run(m->served[i]->workers))
            return true;
    return false;
}

void models_away(void *served) {
    const struct models *m = ((struct served *)served)->of;

    if (m->away && !uses_device(m))
        m->opts.on_away(m->opts.ctx);
}

void models_answered(void *served) {
    const struct models *m = ((struct served *)served)->of;

    m->opts.on_answer(m->opts.ctx);
}

bool models_hand_over(struct models *m) {
    assert(!m->away);
    m->away = true;
    for (uint32_t i = 0; i < m->n; i++)
        if (workers_on_device(m->served[i]->workers))
            workers_hand_over(m->served[i]->workers);
    return uses_device(m);
}

/* Returns true if requests of @s can move to the next daemon. A model in a swap is left out: it
 * shares its name with another one. */
static bool models_is_offered(const struct served *s) {
    return s->model && !s->old && !s->retired && workers_ready(s->workers)->len > 0 &&
           workers_answer(s->workers) == WORKERS_UNASKED && api_model_use(s->model).n_running > 0;
}

void models_offer(struct models *m, void (*send)(void *ctx, const char *name, int fd)) {
    int pair[2];

    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        if (!models_is_offered(s) ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
            continue;
        workers_offer(s->workers, pair[0]);
        send(m->opts.ctx, s->name, pair[1]);
        close(pair[1]);
    }
}

uint32_t models_asked(const struct models *m, enum workers_answer answer) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n; i++)
        n += workers_answer(m->served[i]->workers) == answer;
    return n;
}

void models_move(struct models *m) {
    for (uint32_t i = 0; i < m->n; i++)
        if (workers_answer(m->served[i]->workers) == WORKERS_ACCEPTED)
            workers_hand_over(m->served[i]->workers);
}

void models_come_back(struct models *m) {
    m->away = false;
    for (uint32_t i = 0; i < m->n; i++)
        workers_come_back(m->served[i]->workers);
    models_decide_soon(m);
}

/* ---- functions of the next daemon ---- */

/* A connection of the daemon before this one, for one model. */
struct guest_link {
    struct list link;
    struct served *served;
    struct guests *guests;
};

/* Answers the old daemon's question as soon as the model's state allows. */
static void models_answer(struct guest_link *g) {
    struct served *s = g->served;

    if (!guests_ask(g->guests))
        return;
    if (s->state == SERVED_READY && workers_ready(s->workers)->len > 0)
        guests_answer(g->guests, workers_ready(s->workers));
    else if (s->retired || *s->why)
        guests_close(g->guests);
    else if (s->of->on_demand)
        models_want(s);
}

/* Implements guests_opts.asked. */
static void on_asked(void *ctx) {
    models_answer(ctx);
}

void models_answer_guests(struct served *s) {
    LIST_FOREACH_ENTRY(g, &s->of->guest_links, struct guest_link, link) {
        if (g->served == s)
            models_answer(g);
    }
}

void models_accept_guests(struct models *m, const char *name, int fd) {
    struct err err;
    int i = models_index(m, name, &err);
    struct guest_link *g = i < 0 || m->stopping ? NULL : calloc(1, sizeof(*g));

    if (!g) {
        close(fd);
        return;
    }
    assert((uint32_t)i < m->n);
    g->served = m->served[i];
    const struct guests_opts o = {.loop = m->opts.loop,
                                  .clock = m->opts.clock,
                                  .model = g->served->model,
                                  .ctx = g,
                                  .asked = on_asked};
    if (guests_new(&g->guests, &o, fd) < 0)
        free(g);
    else
        list_push_back(&m->guest_links, &g->link);
}

void models_close_guests(struct models *m, const struct served *s) {
    LIST_FOREACH_ENTRY(g, &m->guest_links, struct guest_link, link) {
        if (!s || g->served == s)
            guests_close(g->guests);
    }
}

void models_free_guests(struct models *m) {
    LIST_FOREACH_ENTRY(g, &m->guest_links, struct guest_link, link) {
        list_remove(&g->link);
        guests_free(g->guests);
        free(g);
    }
}
