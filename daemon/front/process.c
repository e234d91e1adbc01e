#include "daemon/front/process.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/thread.h"
#include "base/util.h"

#define POOL_THREADS "4" /* threads of libuv, which read folders and presets and do not compute */
#define POOL_N 4
#define STACK_BYTES ((size_t)256 << 10)

bool process_consume_flag(int *argc, char **argv, const char *flag) {
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], flag) != 0)
            continue;
        memmove(&argv[i], &argv[i + 1], sizeof(*argv) * (size_t)(*argc - i));
        (*argc)--;
        return true;
    }
    return false;
}

/* A limit of 1 and not 0: with 0 Linux still gives the core to the program of kernel.core_pattern,
 * with 1 it does not (do_coredump()). The hard limit stays, so that prlimit(1) can allow one. */
void process_forbid_cores(void) {
    struct rlimit core;

    if (getrlimit(RLIMIT_CORE, &core) < 0)
        return;
    core.rlim_cur = MIN((rlim_t)1, core.rlim_max);
    setrlimit(RLIMIT_CORE, &core);
}

/* A job for each thread of libuv's pool; no job ends before all have begun, so that each thread
 * gets one. */
struct readying {
    uv_work_t work;
    uv_barrier_t *all;
    int result;
};

static void make_arena(uv_work_t *work) {
    struct readying *r = CONTAINER_OF(work, struct readying, work);

    r->result = thread_make_arena();
    uv_barrier_wait(r->all);
}

static void process_on_made(uv_work_t *work, int status) {}

static void *process_pass(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* Starts as many threads as the pool has, and ends them: libuv aborts if it cannot start them.
 * Returns 0 or -errno. */
static int try_threads(void) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread[POOL_N];
    int n = 0, r = 0;

    pthread_mutex_lock(&gate);
    while (n < POOL_N && (r = thread_start(&thread[n], NULL, process_pass, &gate)) == 0)
        n++;
    pthread_mutex_unlock(&gate);
    while (n-- > 0)
        pthread_join(thread[n], NULL);
    return r;
}

/* Touches the stack ahead of time: if the machine is out of memory later, the stack cannot grow and
 * a callback that needs more ends the process. */
static void touch_stack(void) {
    volatile char stack[STACK_BYTES];

    for (size_t i = 0; i < sizeof(stack); i += 1024)
        stack[i] = 0;
}

int process_make_ready(uv_loop_t *loop) {
    struct readying job[POOL_N] = {0};
    uv_barrier_t all;
    int r;

    touch_stack();
    if ((r = try_threads()) < 0)
        return r;
    if (setenv("UV_THREADPOOL_SIZE", POOL_THREADS, 1) < 0 || uv_barrier_init(&all, POOL_N) < 0)
        return -ENOMEM;
    for (int i = 0; i < POOL_N; i++) {
        job[i].all = &all;
        /* fails only if there is no function */
        uv_queue_work(loop, &job[i].work, make_arena, process_on_made);
    }
    uv_run(loop, UV_RUN_DEFAULT);
    uv_barrier_destroy(&all);
    for (int i = 0; i < POOL_N; i++)
        if ((r = job[i].result) != 0)
            return r;
    return 0;
}

int process_name_key(int r, const char *key, struct err *err) {
    struct err e = *err;

    if (r < 0 && strncmp(e.message, key, strlen(key)) != 0)
        err_set(err, 0, key, "%s: %.350s", key, *e.message ? e.message : strerror(-r));
    return r;
}
