#include "base/thread.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>

/* Arguments of a new thread, on the stack of thread_start() until `ready`. */
struct beginning {
    void *(*run)(void *);
    void *arg;
    int result;
    sem_t ready;
};

/* Makes the arena of the calling thread. Returns 0 or -ENOMEM. */
static int thread_make_arena(void) {
    void *volatile p = malloc(1); /* volatile: a compiler may leave out malloc() with free() */
    int r = p ? 0 : -ENOMEM;

    free(p);
    return r;
}

static void *thread_begin(void *arg) {
    struct beginning *b = arg;
    void *(*run)(void *) = b->run;
    void *run_arg = b->arg;
    int r = thread_make_arena();

    b->result = r;
    sem_post(&b->ready);
    if (r < 0)
        return NULL;
    return run(run_arg);
}

int thread_start(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    struct beginning b = {.run = run, .arg = arg};

    sem_init(&b.ready, 0, 0);
    int r = -pthread_create(out, attr, thread_begin, &b);
    if (r == 0) {
        while (sem_wait(&b.ready) < 0 && errno == EINTR)
            ;
        r = b.result;
        if (r < 0)
            pthread_join(*out, NULL);
    }
    sem_destroy(&b.ready);
    return r;
}
