#include "kvpager/disk_io.h"

#include <assert.h>
#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

/* Does the next piece of slot io->n_done. Returns STORE_MORE, or as store_go_on(). */
static int disk_io_go_on(const struct store *s, struct disk_io *io) {
    uint32_t i = io->n_done;
    int r = 0;

    if (!io->now && io->what == IO_READ)
        r = store_read(&io->now, s, io->slot[i], &io->head[i].id, io->bytes[i]);
    else if (!io->now)
        r = store_write(&io->now, s, io->slot[i], &io->head[i],
                        io->tokens + (size_t)i * io->page_tokens, io->media, io->bytes[i]);
    r = r == 0 ? store_go_on(io->now) : r;
    if (r != STORE_MORE)
        io->now = store_io_free(io->now);
    return r;
}

/* Does the next piece of @io. Returns false when the job is finished. */
static bool disk_io_advance(const struct store *s, struct disk_io *io) {
    io->answer = disk_io_go_on(s, io);
    if (io->answer == STORE_MORE)
        return true;
    io->n_done += io->answer == 0;
    if (io->answer == 0 && io->n_done < io->n)
        return true;
    io->lost = io->what == IO_WRITE && store_is_deleted(s);
    return false;
}

static void *disk_io_run(void *arg) {
    struct disk_thread *t = arg;
    bool stops = false;

    while (!stops || !list_empty(&t->turns)) {
        struct mbox_link *mail;

        if (list_empty(&t->turns))
            mail = mbox_wait(&t->to);
        else
            mail = mbox_receive(&t->to);

        if (mail) {
            struct disk_io *new = CONTAINER_OF(mail, struct disk_io, mail);

            stops |= new->what == IO_STOP;
            if (new->what != IO_STOP)
                list_push_back(&t->turns, &new->link);
            continue;
        }
        struct disk_io *io = LIST_ENTRY(list_pop_front(&t->turns), struct disk_io, link);
        int64_t begin = clock_now(clock_monotonic());
        bool more = disk_io_advance(t->store, io);

        io->ns += clock_now(clock_monotonic()) - begin;
        if (more)
            list_push_back(&t->turns, &io->link);
        else
            mbox_post(&t->from, &io->mail);
    }
    return NULL;
}

static void disk_io_wake(struct mbox *m) {
    struct disk_thread *t = CONTAINER_OF(m, struct disk_thread, from);
    uint64_t one = 1;
    ssize_t r = write(t->fd, &one, sizeof(one));

    (void)r;
}

void disk_thread_init(struct disk_thread *t, bool in_step) {
    *t = (struct disk_thread){.in_step = in_step, .fd = -1};
    list_init(&t->turns);
    mbox_init(&t->to, NULL);
    mbox_init(&t->from, disk_io_wake);
}

int disk_thread_start(struct disk_thread *t, const struct store *store) {
    t->store = store;
    t->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->fd < 0)
        return -errno;
    if (t->in_step)
        return 0;
    int e = thread_start(&t->thread, NULL, disk_io_run, t);
    t->started = e == 0;
    return e;
}

void disk_thread_stop(struct disk_thread *t) {
    struct disk_io stop = {.what = IO_STOP};

    if (!t->started)
        return;
    mbox_post(&t->to, &stop.mail);
    pthread_join(t->thread, NULL);
    t->started = false;
}

void disk_thread_deinit(struct disk_thread *t) {
    assert(!t->started);
    mbox_deinit(&t->to);
    mbox_deinit(&t->from);
    if (t->fd >= 0)
        close(t->fd);
}

void disk_thread_submit(struct disk_thread *t, struct disk_io *io) {
    assert(io->n > 0 && io->n <= DISK_IO_PAGES && !io->now);
    io->n_done = 0;
    io->ns = 0;
    t->used = true;
    if (!t->in_step) {
        mbox_post(&t->to, &io->mail);
        return;
    }
    while (disk_io_advance(t->store, io))
        ;
    mbox_post(&t->from, &io->mail);
}

struct disk_io *disk_thread_receive(struct disk_thread *t) {
    struct mbox_link *mail = mbox_receive(&t->from);

    if (!mail)
        return NULL;
    return CONTAINER_OF(mail, struct disk_io, mail);
}

void disk_thread_clear(struct disk_thread *t) {
    uint64_t count;

    if (!t->used || t->in_step)
        return;
    ssize_t r = read(t->fd, &count, sizeof(count));
    (void)r;
}
