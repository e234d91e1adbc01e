#pragma once

/*
 * mbox - a mailbox between threads: a mutex and an intrusive FIFO. Threads hand objects over
 * through it and never share them. A step produces one post, so a mutex costs nothing that can be
 * measured.
 */

#include <pthread.h>
#include <stdbool.h>

#include "base/util.h"

/* A link, embedded in the posted object and zeroed by its owner. queued: the link is in a
 * mailbox. */
struct mbox_link {
    struct mbox_link *next;
    bool queued;
};

/* Invariant, under the mutex: tail points to the `next` of the last link, or to `head` if the
 * mailbox is empty. */
struct mbox {
    pthread_mutex_t mutex;
    pthread_cond_t posted;
    struct mbox_link *head, **tail;
    /* NULL, or called after a post into an empty mailbox */
    void (*wake)(struct mbox *);
};

/* @wake is called by the posting thread, without the lock. */
void mbox_init(struct mbox *m, void (*wake)(struct mbox *));
void mbox_deinit(struct mbox *m); /* the mailbox must be empty */
/* Posts @l, which is in no mailbox: the caller must not touch it any more. For any thread. */
void mbox_post(struct mbox *m, struct mbox_link *l);
/* Takes the oldest link and returns it to the caller, who owns it from then on; returns NULL at
 * once if there is none. For any thread. */
struct mbox_link *mbox_receive(struct mbox *m);
/* Takes like mbox_receive(), but sleeps until a link arrives. */
struct mbox_link *mbox_wait(struct mbox *m);
