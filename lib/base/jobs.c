#include "base/jobs.h"

#include <assert.h>
#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"

#define STACK_BYTES ((size_t)8 << 20) /* templates and schemas are read recursively */

/* A thread of the pool. */
struct thread {
    pthread_t id;
    /* signalled when it gets a job, its paused job may continue, or the pool stops */
    pthread_cond_t woken;
    struct jobs *pool;
    /* guarded by the mutex */
    struct job *job;
};

/*
 * The mutex guards everything except `opts`, `out` and n_out. A thread without a job, or with a
 * paused job, waits on its `woken`.
 */
struct jobs {
    struct jobs_opts opts;
    pthread_mutex_t mutex;
    /* also of jobs that are to be delivered */
    struct fairq queue;
    /* [n_threads] */
    struct thread *thread;
    uint32_t n_threads;
    /* job.link: jobs that were put and not delivered; for the owner's thread, as n_out */
    struct list out;
    uint32_t n_out;
    uint64_t n_done, busy_ns;
    bool stopping;
};

static _Thread_local struct job *current;

static struct job *job_of(struct fairq_item *i) {
    return CONTAINER_OF(i, struct job, item);
}

/* ---- turns, under the mutex ---- */

/* Returns a thread without a job; NULL: all have one. */
static struct thread *idle_thread(struct jobs *p) {
    for (uint32_t i = 0; i < p->n_threads; i++)
        if (!p->thread[i].job)
            return &p->thread[i];
    return NULL;
}

/* Gives every free place to the job whose turn it is. */
static void jobs_dispatch(struct jobs *p) {
    struct fairq_item *i;

    while ((i = fairq_next(&p->queue))) {
        struct job *j = job_of(i);

        j->slice_ns = clock_now(p->opts.clock);
        if (j->state == JOB_WAITING) {
            struct thread *t = idle_thread(p);

            assert(t); /* each job that has begun has a thread, and there are as many as slots */
            t->job = j;
            j->resumed = &t->woken;
            j->state = JOB_BEGUN;
        }
        pthread_cond_signal(j->resumed);
    }
}

/* Wakes the owner for @j, which the queue lists as ended. */
static void jobs_end(struct jobs *p, struct job *j) {
    assert(j->state == JOB_WAITING || j->state == JOB_BEGUN);
    assert(j->item.ended);
    j->state = JOB_ENDED;
    p->opts.wake(p->opts.ctx);
}

/* Charges @j for its time from slice_ns to @now, where its next slice begins. */
static void jobs_charge(struct jobs *p, struct job *j, int64_t now) {
    int64_t ns = MAX(now - j->slice_ns, 0);

    assert(j->state == JOB_BEGUN);
    fairq_charge(&p->queue, &j->item, ns);
    p->busy_ns += (uint64_t)ns;
    j->slice_ns = now;
}

/* Calls opts.turn() for @j if it holds a place. */
static void notify_turn(struct jobs *p, struct job *j, bool has) {
    if (p->opts.turn && j->item.running)
        p->opts.turn(p->opts.ctx, j, has);
}

/* Waits for the next turn of @j. A job that is abandoned in the meantime continues without a turn,
 * because it only has to unwind. */
static int wait_for_turn(struct jobs *p, struct job *j, int64_t now) {
    pthread_mutex_lock(&p->mutex);
    jobs_charge(p, j, now);
    if (j->item.running) {
        notify_turn(p, j, false);
        fairq_pause(&p->queue, &j->item);
        jobs_dispatch(p);
        while (!j->item.running && !atomic_load(&j->abandoned))
            pthread_cond_wait(j->resumed, &p->mutex);
        if (!j->item.running)
            fairq_withdraw(&p->queue, &j->item);
        notify_turn(p, j, true);
        j->slice_ns = clock_now(p->opts.clock);
    }
    pthread_mutex_unlock(&p->mutex);
    if (atomic_load(&j->abandoned))
        return -ECANCELED;
    return 0;
}

int job_pause(void) {
    struct job *j = current;

    if (!j)
        return 0;
    if (atomic_load_explicit(&j->abandoned, memory_order_relaxed))
        return -ECANCELED;
    int64_t now = clock_now(j->jobs->opts.clock);
    if (now - j->slice_ns < JOBS_SLICE_NS)
        return 0;
    return wait_for_turn(j->jobs, j, now);
}

/* ---- threads ---- */

static void jobs_run(struct jobs *p, struct thread *t) {
    struct job *j = t->job;

    current = j;
    notify_turn(p, j, true);
    if (!atomic_load(&j->abandoned))
        j->run(j);
    current = NULL;
    pthread_mutex_lock(&p->mutex);
    notify_turn(p, j, false);
    jobs_charge(p, j, clock_now(p->opts.clock));
    fairq_end(&p->queue, &j->item);
    t->job = NULL;
    p->n_done++;
    jobs_end(p, j);
    jobs_dispatch(p);
    pthread_mutex_unlock(&p->mutex);
}

static void *jobs_serve(void *arg) {
    struct thread *t = arg;
    struct jobs *p = t->pool;
    id_t thread = (id_t)syscall(SYS_gettid); /* gettid() came with glibc 2.30 */

    prctl(PR_SET_NAME, p->opts.name);
    setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, 0) + p->opts.nice);
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        while (!t->job && !p->stopping)
            pthread_cond_wait(&t->woken, &p->mutex);
        if (!t->job)
            break;
        pthread_mutex_unlock(&p->mutex);
        jobs_run(p, t);
        pthread_mutex_lock(&p->mutex);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* Makes the threads; those that were made before a failure stay, for jobs_free(). Returns 0 or
 * -errno. */
static int jobs_start(struct jobs *p) {
    pthread_attr_t attr;
    int r = 0;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    while (p->n_threads < p->opts.n_threads && r == 0) {
        struct thread *t = &p->thread[p->n_threads];

        t->pool = p;
        pthread_cond_init(&t->woken, NULL);
        r = thread_start(&t->id, &attr, jobs_serve, t);
        if (r < 0)
            pthread_cond_destroy(&t->woken);
        else
            p->n_threads++;
    }
    pthread_attr_destroy(&attr);
    return r;
}

/* ---- functions of the owner ---- */

int jobs_new(struct jobs **out, const struct jobs_opts *opts) {
    CLEANUP(jobs_freep) struct jobs *p = calloc(1, sizeof(*p));

    assert(opts->n_running > 0 && opts->n_running <= opts->n_threads);
    if (!p)
        return -ENOMEM;
    p->opts = *opts;
    list_init(&p->out);
    pthread_mutex_init(&p->mutex, NULL);
    fairq_init(&p->queue, opts->n_running, opts->n_threads);
    p->thread = calloc(opts->n_threads, sizeof(*p->thread));
    int r = p->thread ? jobs_start(p) : -ENOMEM;

    if (r < 0)
        return r;
    *out = STEAL(p);
    return 0;
}

struct jobs *jobs_free(struct jobs *p) {
    if (!p)
        return NULL;
    assert(p->n_out == 0);
    pthread_mutex_lock(&p->mutex);
    p->stopping = true;
    for (uint32_t i = 0; i < p->n_threads; i++)
        pthread_cond_signal(&p->thread[i].woken);
    pthread_mutex_unlock(&p->mutex);
    for (uint32_t i = 0; i < p->n_threads; i++) {
        pthread_join(p->thread[i].id, NULL);
        pthread_cond_destroy(&p->thread[i].woken);
    }
    fairq_deinit(&p->queue);
    pthread_mutex_destroy(&p->mutex);
    free(p->thread);
    free(p);
    return NULL;
}

int jobs_submit(struct jobs *p, struct job *j) {
    assert(j->run && j->done && (j->state == JOB_IDLE || j->state == JOB_DONE));
    j->jobs = p;
    j->item = (struct fairq_item){.background = j->background};
    atomic_store(&j->abandoned, false);
    pthread_mutex_lock(&p->mutex);
    int r = fairq_add(&p->queue, &j->item, j->tenant, j->weight);

    if (r == 0) {
        j->state = JOB_WAITING;
        jobs_dispatch(p);
    }
    pthread_mutex_unlock(&p->mutex);
    if (r == 0) {
        list_push_back(&p->out, &j->link);
        p->n_out++;
    }
    return r;
}

void jobs_abandon(struct jobs *p, struct job *j) {
    pthread_mutex_lock(&p->mutex);
    bool waits = j->state == JOB_WAITING;

    assert(j->jobs == p && j->state != JOB_IDLE);
    atomic_store(&j->abandoned, true);
    if (waits) {
        fairq_withdraw(&p->queue, &j->item);
        jobs_end(p, j);
    } else if (j->item.begun && !j->item.running) {
        pthread_cond_signal(j->resumed);
    }
    pthread_mutex_unlock(&p->mutex);
}

void jobs_abandon_all(struct jobs *p) {
    LIST_FOREACH(node, &p->out) {
        jobs_abandon(p, LIST_ENTRY(node, struct job, link));
    }
}

/* Returns the job to be delivered next; NULL: none has ended. */
static struct job *jobs_next_ended(struct jobs *p) {
    pthread_mutex_lock(&p->mutex);
    struct fairq_item *i = fairq_next_ended(&p->queue);
    pthread_mutex_unlock(&p->mutex);
    return i ? job_of(i) : NULL;
}

/* Delivers @j and charges its tenant, whose account @paid stands in for the job: done() may free
 * it. */
static void jobs_deliver_one(struct jobs *p, struct job *j) {
    int64_t began = clock_now(p->opts.clock);

    assert(p->n_out > 0 && j->state == JOB_ENDED);
    struct fairq_item paid = j->item;
    p->n_out--;
    list_remove(&j->link);
    j->item.flow = NULL;
    j->state = JOB_DONE;
    j->done(j);
    pthread_mutex_lock(&p->mutex);
    fairq_charge(&p->queue, &paid, MAX(clock_now(p->opts.clock) - began, 0));
    fairq_remove(&p->queue, &paid);
    pthread_mutex_unlock(&p->mutex);
}

bool jobs_deliver(struct jobs *p, int64_t budget_ns) {
    int64_t began = clock_now(p->opts.clock);
    struct job *j;

    while ((j = jobs_next_ended(p))) {
        jobs_deliver_one(p, j);
        if (clock_now(p->opts.clock) - began >= budget_ns)
            break;
    }
    pthread_mutex_lock(&p->mutex);
    bool more = p->queue.n_ended > 0;
    pthread_mutex_unlock(&p->mutex);
    return more;
}

uint32_t jobs_n(const struct jobs *p) {
    return p->n_out;
}

void jobs_stats(struct jobs *p, struct jobs_stats *out) {
    pthread_mutex_lock(&p->mutex);
    *out = (struct jobs_stats){.n_waiting = p->queue.n_items - p->queue.n_begun - p->queue.n_ended,
                               .n_begun = p->queue.n_begun,
                               .n_done = p->n_done,
                               .busy_ns = p->busy_ns};
    pthread_mutex_unlock(&p->mutex);
}
