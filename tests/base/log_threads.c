/*
 * The log under the thread sanitizer: threads write, while a reload changes the level and lines are
 * dropped because the pipe is full.
 */

#include <pthread.h>
#include <unistd.h>

#include "base/log.h"

#define THREADS 3
#define LINES 20000

static void *say(void *arg) {
    for (int i = 0; i < LINES; i++)
        log_event(WLOG_INFO, "said", "i=%d", i);
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    int ends[2];

    if (pipe(ends) < 0 || dup2(ends[1], STDERR_FILENO) < 0)
        return 1;
    log_init(WLOG_INFO, "test");
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, say, NULL) != 0)
            return 1;
    for (int i = 0; i < LINES; i++)
        log_set_level(i % 2 ? WLOG_INFO : WLOG_WARN);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
