#pragma once

/*
 * thread - starts threads that can allocate. malloc() makes an arena at the first call of a thread,
 * and if memory is short that call ends the process; so the arena is made before any request needs
 * it.
 */

#include <pthread.h>

/* Creates a thread as pthread_create() does, and waits until it can allocate. Returns 0 or
 * -errno. */
int thread_start(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg);
