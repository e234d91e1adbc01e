#pragma once

/*
 * picture_sender - sends workers the pixels that they ask for. Pixels that were freed are made
 * again from the file, on the pool. They are sent in parts, so that other messages can be sent in
 * between.
 */

#include <uv.h>

#include "api/limits/job_pool.h"
#include "base/list.h"
#include "proto/messages.h"

struct model;
struct picture_seen;

struct picture_sender {
    struct job_pool *pool;
    /* need.link: asked for and not sent, oldest first */
    struct list needs;
    /* runs while requests wait for room in the channel */
    uv_timer_t timer;
};

/* A request of a worker for the pixels of a picture. */
struct picture_ask {
    struct model *model;
    /* charged for the work */
    const struct tenant *tenant;
    /* id of the request, and index of the picture in it */
    uint64_t id;
    uint32_t index;
    const struct submit_picture *shown;
    /* NULL: another front has the file, and is asked by the caller */
    struct picture_seen *seen;
};

/* Prepares @s, which sends nothing yet. @pool makes pixels anew. */
void picture_sender_init(struct picture_sender *s, uv_loop_t *loop, struct job_pool *pool);
/* Stops sending; jobs on the pool end with the pool. */
void picture_sender_close(struct picture_sender *s);
/* Sends the picture of @ask, now or later. Returns 0, 1 if it is under way already, or -ENOMEM. */
int picture_sender_send(struct picture_sender *s, const struct picture_ask *ask);
/* Takes the next part of a picture of generation @id from another front. Returns false if the part
 * is not the expected one. */
bool picture_sender_gather(struct picture_sender *s, const struct model *m, uint64_t id,
                           const struct msg_picture *part);
/* Drops the requests of the worker of @m (NULL: of any model) for pictures of generation @id (0: of
 * any). */
void picture_sender_forget(struct picture_sender *s, const struct model *m, uint64_t id);
