#include "api/generation/picture_sender.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/model.h"
#include "api/generation/picture_table.h"
#include "api/http/loop_lag.h"
#include "api/http/respond.h"
#include "base/text.h"

#define AGAIN_MS 2 /* until a full channel is tried again */

/*
 * A picture on its way to a worker. It holds a reference of its own, since the request may end
 * meanwhile.
 *
 * Invariants: it is in picture_sender.needs unless it is `lost`; lost implies works: the worker has
 * gone, and sender_on_made() frees it; pixels, result and err belong to the pool while `works`, and
 * to the other front while `gathers`.
 */
struct need {
    struct job job;
    struct list link;
    struct picture_sender *sender;
    struct model *model;
    /* NULL: another front has the file */
    struct picture_seen *seen;
    uint64_t id;
    uint32_t index, n_bytes, n_sent, n_gathered;
    uint8_t *pixels;
    int result;
    bool works, gathers, lost;
    struct err err;
};

static void free_need(struct need *n) {
    list_remove(&n->link);
    picture_release(n->seen);
    free(n->pixels);
    free(n);
}

static struct str sender_str(const char *s) {
    return (struct str){s, (uint32_t)strlen(s)};
}

/* Sends the reason why there are no pixels. */
static int send_error(struct need *n) {
    if (!n->err.status)
        respond_explain(n->result, &n->err);
    const struct msg_picture m = {.id = n->id,
                                  .index = n->index,
                                  .status = (uint16_t)n->err.status,
                                  .why = sender_str(n->err.message),
                                  .code = sender_str(n->err.code)};
    return n->model->port->picture(n->model->port, &m);
}

/* Sends parts until all are sent or there is no room. Returns 0, -EAGAIN or -errno. */
static int send_pixels(struct need *n) {
    int r = n->result < 0 ? send_error(n) : 0;

    while (n->result == 0 && r == 0 && n->n_sent < n->n_bytes) {
        uint32_t len = MIN(n->n_bytes - n->n_sent, PICTURE_SENT);
        const struct msg_picture m = {.id = n->id,
                                      .index = n->index,
                                      .offset = n->n_sent,
                                      .total = n->n_bytes,
                                      .rgb = {(const char *)n->pixels + n->n_sent, len}};

        r = n->model->port->picture(n->model->port, &m);
        n->n_sent += r == 0 ? len : 0;
    }
    return r;
}

static void sender_on_timer(uv_timer_t *t);

/* Sends as much as the channel takes, the oldest pictures first. After an error other than -EAGAIN
 * the worker is about to go; its successor asks for the picture again. */
static void pump(struct picture_sender *s) {
    bool full = false;

    LIST_FOREACH_ENTRY(n, &s->needs, struct need, link) {
        if (n->works || n->gathers)
            continue;
        if (send_pixels(n) == -EAGAIN)
            full = true;
        else
            free_need(n);
    }
    if (full && !uv_is_closing((uv_handle_t *)&s->timer))
        uv_timer_start(&s->timer, sender_on_timer, AGAIN_MS, 0);
}

static void sender_on_timer(uv_timer_t *t) {
    loop_lag_mark("pictures to be sent");
    pump(CONTAINER_OF(t, struct picture_sender, timer));
}

/* Decodes the picture, on the pool. */
static void make_pixels(struct job *j) {
    struct need *n = CONTAINER_OF(j, struct need, job);

    n->result = job_pause() < 0 ? -ECANCELED : picture_make_pixels(n->seen, &n->pixels, &n->err);
}

static void sender_on_made(struct job *j) {
    struct need *n = CONTAINER_OF(j, struct need, job);

    n->works = false;
    if (n->lost)
        free_need(n);
    else
        pump(n->sender);
}

static struct need *sender_find(const struct picture_sender *s, const struct model *m, uint64_t id,
                                uint32_t index) {
    LIST_FOREACH_ENTRY(n, &s->needs, struct need, link) {
        if (n->model == m && n->id == id && n->index == index)
            return n;
    }
    return NULL;
}

/* Gets the pixels: they are there, or come from the pool, or from the front that has the client. */
static void sender_begin(struct need *n, const struct picture_ask *ask) {
    n->gathers = !n->seen;
    if (n->seen)
        n->pixels = picture_acquire_pixels(n->seen);
    else
        n->pixels = malloc(n->n_bytes);
    if (n->gathers && !n->pixels) {
        n->gathers = false;
        n->result = -ENOMEM;
    } else if (!n->pixels) {
        n->job = (struct job){.run = make_pixels, .done = sender_on_made};
        n->result = -ECANCELED; /* an abandoned job may end without having run */
        n->works = job_pool_submit(n->sender->pool, &n->job, ask->tenant) == 0;
        if (!n->works) /* until then the result is the pool's */
            n->result = -ENOMEM;
    }
    pump(n->sender);
}

int picture_sender_send(struct picture_sender *s, const struct picture_ask *ask) {
    if (sender_find(s, ask->model, ask->id, ask->index))
        return 1;
    struct need *n = calloc(1, sizeof(*n));
    if (!n)
        return -ENOMEM;
    n->sender = s;
    n->model = ask->model;
    n->seen = ask->seen ? picture_use(ask->seen) : NULL;
    n->id = ask->id;
    n->index = ask->index;
    n->n_bytes = (uint32_t)picture_bytes(ask->shown->width, ask->shown->height);
    list_push_back(&s->needs, &n->link);
    sender_begin(n, ask);
    return 0;
}

/* Takes the next part of a picture that another front sends. Returns false if it does not fit. */
static bool gather(struct need *n, const struct msg_picture *part) {
    if (part->total == 0) {
        n->result = -EINVAL;
        err_set_code(&n->err, part->status, "", NULL, "%.*s", (int)MIN(part->why.len, 300),
                     text_or(part->why.data, ""));
        snprintf(n->err.code, sizeof(n->err.code), "%.*s", (int)MIN(part->code.len, 60),
                 text_or(part->code.data, ""));
        n->gathers = false;
        return true;
    }
    if (part->total != n->n_bytes || part->offset != n->n_gathered ||
        part->rgb.len > n->n_bytes - n->n_gathered)
        return false;
    memcpy(n->pixels + n->n_gathered, part->rgb.data, part->rgb.len);
    n->n_gathered += part->rgb.len;
    n->gathers = n->n_gathered < n->n_bytes;
    return true;
}

bool picture_sender_gather(struct picture_sender *s, const struct model *m, uint64_t id,
                           const struct msg_picture *part) {
    struct need *n = sender_find(s, m, id, part->index);

    if (!n || !n->gathers)
        return true; /* the worker has gone meanwhile */
    if (!gather(n, part))
        return false;
    pump(n->sender);
    return true;
}

void picture_sender_forget(struct picture_sender *s, const struct model *m, uint64_t id) {
    LIST_FOREACH_ENTRY(n, &s->needs, struct need, link) {
        if ((m && n->model != m) || (id && n->id != id))
            continue;
        n->lost = n->works;
        list_remove(&n->link);
        if (n->works)
            job_pool_abandon(s->pool, &n->job);
        else
            free_need(n);
    }
}

void picture_sender_init(struct picture_sender *s, uv_loop_t *loop, struct job_pool *pool) {
    s->pool = pool;
    list_init(&s->needs);
    uv_timer_init(loop, &s->timer);
}

void picture_sender_close(struct picture_sender *s) {
    picture_sender_forget(s, NULL, 0);
    uv_close((uv_handle_t *)&s->timer, NULL);
}
