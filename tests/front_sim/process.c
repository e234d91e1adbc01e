#include "tests/front_sim/process.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/worker.h"
#include "tests/front_sim/loop.h"

/* A process of uv_spawn(), until its end was reported or its handle closed. */
struct process {
    struct list link;
    /* NULL: the handle is closed */
    struct sim_handle *handle;
    const struct program *program;
    void *state;
    int pid;
    /* SIGKILL was sent */
    bool dying;
    struct actor death;
};

static struct list processes = {&processes, &processes};
static int next_pid = 100;
uint32_t process_spawn_fails;

static void drop(struct process *p) {
    actor_stop(&p->death);
    list_remove(&p->link);
    free(p);
}

void process_exit(struct process *p, int status, int term_signal) {
    struct sim_handle *h = p->handle;

    sim_event("process ends", (uint64_t)status, (uint64_t)term_signal);
    if (h && !h->closing) {
        h->exited = true;
        h->status = status;
        h->term_signal = term_signal;
        h->program = NULL;
    }
    drop(p);
}

int process_pid(const struct process *p) {
    return p->pid;
}

uint32_t processes_n(void) {
    uint32_t n = 0;

    LIST_FOREACH(i, &processes)
    n++;
    return n;
}

static void die(struct actor *a) {
    struct process *p = CONTAINER_OF(a, struct process, death);

    p->program->killed(p->state);
    process_exit(p, 0, SIGKILL);
}

bool process_kill(int pid, int signum) {
    LIST_FOREACH(i, &processes) {
        struct process *p = LIST_ENTRY(i, struct process, link);

        if (p->pid != pid)
            continue;
        if (signum == SIGKILL && !p->dying) {
            p->dying = true;
            actor_start(&p->death, die, sim_between(1000, 3000000));
        }
        return true;
    }
    return false;
}

static const struct program *program_of(const uv_process_options_t *o) {
    if (o->args[1] && strcmp(o->args[1], WORKER_FLAG) == 0)
        return &program_worker;
    return NULL;
}

int uv_spawn(uv_loop_t *loop, uv_process_t *h, const uv_process_options_t *o) {
    struct sim_handle *s = handle_new(loop, h, UV_PROCESS);
    bool was = sim_enter();
    const struct program *program = program_of(o);

    if (!program || (process_spawn_fails && sim_one_in(process_spawn_fails))) {
        sim_event("spawn fails", 0, 0);
        sim_leave(was);
        return program ? UV_EAGAIN : UV_ENOENT;
    }
    struct process *p = calloc(1, sizeof(*p));
    p->handle = s;
    p->program = program;
    p->pid = h->pid = next_pid++;
    list_push_back(&processes, &p->link);
    s->cb.exit = o->exit_cb;
    s->active = true;
    s->program = p;
    sim_event("spawn", (uint64_t)p->pid, 0);
    p->state = program->start(p, o);
    sim_leave(was);
    return 0;
}

int uv_process_kill(uv_process_t *h, int signum) {
    bool was = sim_enter();
    int r = process_kill(h->pid, signum) ? 0 : UV_ESRCH;

    sim_leave(was);
    return r;
}

void process_tell(struct sim_handle *s) {
    s->active = false;
    s->exited = false;
    sim_event("exit told", (uint64_t)s->status, (uint64_t)s->term_signal);
    IN_FRONT(s->cb.exit((uv_process_t *)s->h, s->status, s->term_signal));
}

void process_closing(struct sim_handle *s) {
    struct process *p = s->h->type == UV_PROCESS ? s->program : NULL;

    if (p)
        p->handle = NULL;
}
