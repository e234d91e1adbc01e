#include "base/mbox.h"

#include <assert.h>

void mbox_init(struct mbox *m, void (*wake)(struct mbox *)) {
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->posted, NULL);
    m->head = NULL;
    m->tail = &m->head;
    m->wake = wake;
}

void mbox_deinit(struct mbox *m) {
    assert(!m->head);
    pthread_cond_destroy(&m->posted);
    pthread_mutex_destroy(&m->mutex);
}

void mbox_post(struct mbox *m, struct mbox_link *l) {
    pthread_mutex_lock(&m->mutex);
    assert(!l->queued && !*m->tail);
    bool was_empty = !m->head;
    l->queued = true;
    l->next = NULL;
    *m->tail = l;
    m->tail = &l->next;
    pthread_cond_signal(&m->posted);
    pthread_mutex_unlock(&m->mutex);

    /* A mailbox that was not empty has already caused a wake-up. */
    if (was_empty && m->wake)
        m->wake(m);
}

static struct mbox_link *pop_locked(struct mbox *m) {
    struct mbox_link *l = m->head;

    if (!l)
        return NULL;
    assert(l->queued);
    m->head = l->next;
    if (!m->head)
        m->tail = &m->head;
    l->next = NULL;
    l->queued = false;
    return l;
}

struct mbox_link *mbox_receive(struct mbox *m) {
    pthread_mutex_lock(&m->mutex);
    struct mbox_link *l = pop_locked(m);
    pthread_mutex_unlock(&m->mutex);
    return l;
}

struct mbox_link *mbox_wait(struct mbox *m) {
    struct mbox_link *l;

    pthread_mutex_lock(&m->mutex);
    while (!(l = pop_locked(m)))
        pthread_cond_wait(&m->posted, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
    return l;
}
