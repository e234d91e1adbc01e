#pragma once

/*
 * mbox - a mailbox between threads: a mutex and an intrusive FIFO. Objects are given away through
 * it, never shared. A step produces one post, so a mutex costs nothing that can be measured.
 */

#include <pthread.h>
#include <stdbool.h>
#include "base/util.h"

struct mbox_link {
    struct mbox_link *next;
    bool queued;
};

struct mbox {
    pthread_mutex_t mutex;
    pthread_cond_t posted;
    struct mbox_link *head, **tail;
    void (*wake)(struct mbox *); /* NULL, or called after a post into an empty mailbox */
};

void mbox_init(struct mbox *m, void (*wake)(struct mbox *));
void mbox_deinit(struct mbox *m); /* must be empty */
void mbox_post(struct mbox *m, struct mbox_link *l);
struct mbox_link *mbox_take(struct mbox *m); /* the oldest, or NULL at once */
struct mbox_link *mbox_wait(struct mbox *m); /* sleeps until there is one */
