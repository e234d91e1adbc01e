#pragma once

/*
 * thread - a thread is complete when it starts. malloc() makes an arena at the first call of a
 * thread, and without memory that call ends the process: so it is made before any request needs it.
 */

#include <pthread.h>

/* Creates a thread as pthread_create() does, and waits until it can allocate. Returns 0 or
 * -errno. */
int thread_start(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg);

/* Makes the arena of the calling thread, which another library has started. Returns 0 or
 * -ENOMEM. */
int thread_make_arena(void);
