/*
 * Messages of a worker are not trusted: it has read a model file and requests, and either may have
 * compromised it. Every frame is parsed with its bounds, a frame that does not fit the state ends
 * the worker, and numbers from shared memory are limited to the size of their arrays.
 *
 * Only the end of a process ends its state. When a channel breaks or a frame is wrong, the process
 * is just killed; on its exit the front reads its remaining frames and closes the handle, and then
 * the next process starts. So there are never two processes, and a death counts once.
 */

#include "daemon/workers/workers.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/probe.h"
#include "base/try.h"
#include "daemon/worker/worker.h"
#include "daemon/workers/workers_private.h"
#include "proto/flight_file.h"

/* unsent bytes above which pictures wait, so that they do not delay requests */
#define PICTURES_BACKLOG (32u << 10)
/* bytes of requests and pictures that are sent in one iteration of the loop */
#define TURN_BYTES (1u << 20)
/* bytes that take as long as the system call of a request */
#define SUBMIT_COST (8u << 10)
#define LINGER_MS 3000 /* time for a worker that stops to write pages to the disk */
#define WATCH_MS 250
#define BACKOFF_MAX_MS 60000
#define SETTLED_MS 5000 /* a worker that has served for this long has not died early */
/* Deaths in a row of workers that died early whose next worker is started at once. A request that
 * ends each of its workers is refused before (FAULTS_MAX in gen.c). */
#define EARLY_DEATHS 4
#define EARLY_BACKOFF_MAX_MS 5000
/* Time in which every worker died early, after which the waiting requests are refused. */
#define EARLY_WAIT_MS 120000
#define FAILED_AFTER_MS 2000 /* shortest wait of requests for a worker that cannot load */
#define LOAD_TRIES 3         /* failed starts after which requests are refused */
#define RETRY_MIN_MS 1000    /* shortest Retry-After for clients, in ms */
#define SHARED_BYTES (FLIGHT_OFFSET + FLIGHT_BYTES) /* size of the crash page's file */
#define FILE_CHANGED "its file was changed after weftd had read it"

static_assert(sizeof(struct crash_page) <= FLIGHT_OFFSET, "they do not overlap");

void workers_set_state(struct workers *w, enum workers_state next) {
    enum { DOWN = 1, LOADING = 2, SERVING = 4, IDLE = 8, AWAY = 16, STOPPED = 32 };
    static const int legal[WORKERS_STOPPED + 1] = {
        [WORKERS_DOWN] = LOADING | IDLE | AWAY | STOPPED,
        [WORKERS_LOADING] = SERVING | DOWN | IDLE | AWAY | STOPPED,
        [WORKERS_SERVING] = DOWN | IDLE | AWAY | STOPPED,
        [WORKERS_IDLE] = LOADING | STOPPED,
        [WORKERS_AWAY] = DOWN | IDLE | STOPPED,
    };

    assert(legal[w->state] >> next & 1);
    w->state = next;
}

/* Asserts the invariants of struct workers, which hold between two events of the loop. */
static void workers_check(const struct workers *w) {
    bool runs = w->state == WORKERS_LOADING || w->state == WORKERS_SERVING;
    bool next = w->next == NEXT_OFFERED || w->next == NEXT_ACCEPTED || w->next == NEXT_TAKEN;

    assert(!w->chan.open || w->process_open);
    assert(!runs || w->chan.open);
    assert(w->state != WORKERS_SERVING || (w->was_ready && w->served && w->open_sent));
    assert(w->state != WORKERS_LOADING || !w->was_ready);
    assert(w->next_chan.open == next);
    assert(w->next != NEXT_TAKEN || (w->state == WORKERS_AWAY && !w->process_open));
}

static struct workers *of_port(struct api_port *p) {
    return CONTAINER_OF(p, struct workers, port);
}

/* ---- the channel ---- */

/* Returns the channel for requests; NULL: requests have to wait. */
static struct worker_chan *way(struct workers *w) {
    if (w->state == WORKERS_SERVING)
        return &w->chan;
    if (w->next != NEXT_TAKEN)
        return NULL;
    return &w->next_chan;
}

/* Sends the message in w->out and clears it. @packed: result of packing; an error is returned and
 * nothing is sent. Otherwise returns as chan_send(). */
static int send_out(struct workers *w, struct worker_chan *c, uint16_t type, int packed) {
    int r = packed;

    if (packed >= 0)
        r = worker_chan_send(c, type, &w->out);
    buf_clear(&w->out);
    return r;
}

/* Sends a message whose loss costs only wasted work or a poorer decision. Returns false if it is
 * lost although there is a worker. */
static bool workers_notify(struct workers *w, uint16_t type, int packed) {
    struct worker_chan *c = w->chan.open && w->open_sent ? &w->chan : way(w);
    bool sent = !c || send_out(w, c, type, packed) == 0;

    buf_clear(&w->out);
    return sent;
}

/* Returns true if others have their turn before more is sent over @c. */
static bool workers_are_over(struct workers *w, struct worker_chan *c) {
    if (w->n_turn < TURN_BYTES)
        return false;
    worker_chan_want_room(c);
    return true;
}

/* Sends the part of @m that begins at *@sent. Returns as api_port.submit. */
static int send_part(struct workers *w, struct worker_chan *c, const struct submit *m,
                     uint32_t *sent) {
    int n = msg_submit_pack_part(&w->out, m, *sent);
    int r = send_out(w, c, MSG_SUBMIT_PART, n);

    if (r != 0) {
        if (r == CHAN_FULL || r == -EPIPE)
            return -EAGAIN;
        return r;
    }
    w->n_turn += (size_t)n;
    *sent += (uint32_t)n;
    return *sent < msg_submit_len(m);
}

/* Implements api_port.submit. Returns -EAGAIN if there is no worker, or its socket is full: then
 * requests wait in the api, which sends them in the order of their tenants' shares and forgets
 * those whose client leaves. The channel knows only the order of arrival. */
static int port_submit(struct api_port *p, const struct submit *m, uint32_t *sent) {
    struct workers *w = of_port(p);
    struct worker_chan *c = way(w);
    bool at_once = m->flags & SUBMIT_PREWARM && *sent > 0; /* the rest is not sent later */

    if (!c || (worker_chan_queued(c) > 0 && !at_once) || workers_are_over(w, c))
        return -EAGAIN;
    uint32_t len = msg_submit_len(m);
    if (len > msg_submit_whole)
        return send_part(w, c, m, sent);
    w->n_turn += SUBMIT_COST + len;
    int r = send_out(w, c, MSG_SUBMIT, msg_submit_pack(&w->out, m));
    if (r == CHAN_FULL || r == -EPIPE)
        return -EAGAIN;
    return r;
}

/* Implements api_port.cancel. */
static void port_cancel(struct api_port *p, uint64_t id) {
    struct workers *w = of_port(p);

    workers_notify(w, MSG_CANCEL, msg_cancel_pack(&w->out, id));
}

/* Implements api_port.picture. Returns -EAGAIN if so much is unsent that a request would have to
 * wait. */
static int port_picture(struct api_port *p, const struct msg_picture *m) {
    struct workers *w = of_port(p);
    struct worker_chan *c = way(w);

    if (!c)
        return -EPIPE;
    if (worker_chan_queued(c) > PICTURES_BACKLOG || workers_are_over(w, c))
        return -EAGAIN;
    w->n_turn += m->rgb.len;
    int r = send_out(w, c, MSG_PICTURE, msg_picture_pack(&w->out, m));
    if (r == CHAN_FULL)
        return -EAGAIN;
    return r;
}

/* Implements api_port.turn_end. */
static void port_turn_end(struct api_port *p, const struct turn_end *m) {
    struct workers *w = of_port(p);

    workers_notify(w, MSG_TURN_END, msg_turn_end_pack(&w->out, m));
}

void workers_report_served(struct workers *w, const struct msg_served *m, uint32_t n) {
    if (w->state == WORKERS_SERVING)
        workers_notify(w, MSG_SERVED, buf_add(&w->out, m, n * sizeof(*m)));
}

/* Implements api_port.story. */
static uint32_t port_story(struct api_port *p, uint64_t id, struct flight_record *out,
                           uint32_t max) {
    return flight_story(of_port(p)->flight, id, out, max);
}

/* Implements api_port.want. */
static void port_want(struct api_port *p) {
    of_port(p)->opts.want(of_port(p)->opts.ctx);
}

/* Implements api_port.use. */
static void port_use(struct api_port *p, uint32_t tenant, double weight) {
    of_port(p)->opts.use(of_port(p)->opts.ctx, tenant, weight);
}

uint32_t workers_n_faults(struct api_port *p, uint64_t id) {
    return faults_of(&of_port(p)->faults, id);
}

/* Sends SIGKILL; workers_on_process_exit() completes the rest. */
static void kill_worker(struct workers *w, const char *why) {
    if (!w->process_open)
        return;
    log_event(WLOG_WARN, "worker_killed", "pid=%d reason=%s", w->process.pid, quoted(why).s);
    w->killed = true;
    uv_process_kill(&w->process, SIGKILL);
}

static void send_open(struct workers *w) {
    if (send_out(w, &w->chan, MSG_OPEN, workers_pack_open(w, &w->out)) < 0)
        kill_worker(w, "its options cannot be sent");
    w->open_sent = true;
}

/* Handles the first frame. Messages have no versions of their own: both sides must be the same
 * build. */
static void on_hello(struct workers *w, const struct chan_frame *f) {
    struct msg_hello h;
    uint8_t id[20];

    worker_build_id(id);
    if (f->len == sizeof(h))
        memcpy(&h, f->data, sizeof(h));
    if (f->len != sizeof(h) || h.magic != MSG_MAGIC || h.version != MSG_VERSION ||
        memcmp(h.build_id, id, sizeof(id)) != 0)
        kill_worker(w, "the worker is of another build of weftd");
    else
        send_open(w);
}

/* Returns true if the model's files have changed since the front read them. */
static bool file_has_changed(const struct workers *w) {
    return (w->opts.file && gguf_has_changed(w->opts.file)) ||
           (w->opts.draft && gguf_has_changed(w->opts.draft)) ||
           (w->opts.projector && gguf_has_changed(w->opts.projector));
}

static void forget_failures(struct workers *w) {
    w->backoff_ms = 0;
    w->n_failed = 0;
    *w->failure = 0;
}

/* Handles READY: the worker serves. Submits all waiting requests before it returns. */
static void workers_on_ready(struct workers *w, const struct msg_ready *m) {
    static const char *const where[READY_WEIGHTS] = {"own", "packed", "kept"};

    assert(w->model);
    if (file_has_changed(w)) { /* the worker may have loaded bytes of both versions */
        kill_worker(w, "the model's file was changed while it was loaded");
        return;
    }
    workers_set_state(w, WORKERS_SERVING);
    forget_failures(w);
    w->progress_ns = clock_now(w->opts.clock);
    w->ready_ns = w->progress_ns;
    w->weights = where[m->weights];
    workers_confirm_weights(w);
    log_event(WLOG_INFO, "worker_ready",
              "pid=%d arch=%.*s backend=%.*s isa=%.*s threads=%u pages=%u page_tokens=%u "
              "max_context=%u weights=%s load_ms=%lld",
              w->process.pid, (int)m->arch.len, m->arch.data, (int)m->backend.len, m->backend.data,
              (int)m->isa.len, m->isa.data, m->n_threads, m->n_pages, m->page_tokens,
              m->max_context, w->weights, (long long)(w->progress_ns - w->started_ns) / 1000000);
    if (!w->served)
        w->opts.on_ready(w->opts.ctx, m);
    w->served = true;
    w->was_ready = true;
    w->placed = true;
    if (w->opts.on_blocks)
        w->opts.on_blocks(w->opts.ctx, NULL);
    snprintf(w->backend, sizeof(w->backend), "%.*s", (int)m->backend.len, m->backend.data);
    api_worker_up(w->model, workers_n_faults);
}

int workers_next_event(struct workers *w) {
    struct event e;
    int r = msg_events_next(&w->events, &e);

    if (r == 0)
        api_on_event(w->model, &e);
    return r;
}

void workers_on_room(void *ctx) {
    struct workers *w = ctx;

    w->n_turn = 0;
    if (way(w))
        api_worker_room(w->model);
}

/* Implements worker_chan_opts.part. */
static bool workers_on_part(void *ctx) {
    int r = workers_next_event(ctx);

    if (r < 0)
        kill_worker(ctx, "malformed events");
    return r == 0;
}

/* Ends the wait for the disk tier: no process uses its file any more. */
static void workers_end_leaving(struct workers *w) {
    if (w->leaving_disk)
        w->opts.on_disk_left(w->opts.ctx);
    w->leaving_disk = false;
}

/* Handles a frame of the worker. A frame that does not fit its state, or cannot be parsed, ends the
 * worker. Returns whether the frame has events. */
static bool workers_on_frame(void *ctx, const struct chan_frame *f) {
    struct workers *w = ctx;
    const struct msg_served *served;
    struct msg_ready ready;
    struct msg_progress p;
    struct msg_need_picture need;
    struct msg_blocks blocks;
    int n;

    workers_check(w);
    if (f->type == MSG_HELLO && w->state == WORKERS_LOADING && !w->open_sent) {
        on_hello(w, f);
    } else if (f->type == MSG_PROGRESS && msg_progress_parse(f->data, f->len, &p) == 0) {
        log_event(WLOG_DEBUG, "worker_loading", "what=\"%.*s\" percent=%d", (int)p.what.len,
                  p.what.data, (int)(p.fraction * 100));
        w->opts.on_progress(w->opts.ctx, p.fraction);
    } else if (f->type == MSG_READY && w->state == WORKERS_LOADING && w->open_sent &&
               msg_ready_parse(f->data, f->len, &ready) == 0) {
        buf_clear(&w->ready);
        if (buf_add(&w->ready, f->data, f->len) <
            0) /* without memory no requests are offered to the next daemon */
            buf_clear(&w->ready);
        workers_on_ready(w, &ready);
    } else if (f->type == MSG_FAILED) {
        snprintf(w->refusal, sizeof(w->refusal), "%.*s", (int)MIN(f->len, 399u),
                 (const char *)f->data);
    } else if (f->type == MSG_EVENTS && w->state == WORKERS_SERVING) {
        msg_events_begin(&w->events, f->data, f->len);
        return true;
    } else if (f->type == MSG_NEED_PICTURE && w->state == WORKERS_SERVING &&
               msg_need_picture_parse(f->data, f->len, &need) == 0) {
        api_on_need_picture(w->model, &need);
    } else if (f->type == MSG_DISK_LEFT) {
        workers_end_leaving(w);
    } else if (f->type == MSG_STATS && f->len == sizeof(w->last)) {
        memcpy(&w->last, f->data, sizeof(w->last));
        w->has_stats = true;
        api_on_stats(w->model, &w->last);
    } else if (f->type == MSG_SERVED && (n = msg_served_parse(f->data, f->len, &served)) > 0) {
        w->opts.on_served(w->opts.ctx, served, (uint32_t)n);
    } else if (f->type == MSG_BLOCKS && w->opts.on_blocks &&
               msg_blocks_parse(f->data, f->len, &blocks) == 0) {
        w->opts.on_blocks(w->opts.ctx, &blocks);
    } else {
        kill_worker(w, "unexpected frame");
    }
    return false;
}

/* ---- the process ---- */

static void on_timers_closed(uv_handle_t *h) {
    struct workers *w = CONTAINER_OF((uv_timer_t *)h, struct workers, restart);

    w->opts.on_closed(w->opts.ctx);
}

/* Closes the timers, in the reverse order of their creation. */
static void close_timers(struct workers *w) {
    if (uv_is_closing((uv_handle_t *)&w->restart))
        return;
    uv_close((uv_handle_t *)&w->restart, on_timers_closed);
    uv_close((uv_handle_t *)&w->watch, NULL);
}

/* Handles a failed start while no other is under way: fails the waiting requests once the tries
 * are used up, and tries again later. */
static void on_failed_start(struct workers *w) {
    int64_t waited_ns = clock_now(w->opts.clock) - w->down_ns;
    bool changed = file_has_changed(w);

    assert(w->state == WORKERS_DOWN && !w->process_open);
    w->n_failed++;
    if (changed)
        snprintf(w->refusal, sizeof(w->refusal),
                 FILE_CHANGED ": weftd must be restarted to serve the new one");
    else if (!*w->refusal)
        snprintf(w->refusal, sizeof(w->refusal), "%u workers in a row ended while loading it",
                 w->n_failed);
    if (changed || (w->n_failed >= LOAD_TRIES && waited_ns >= FAILED_AFTER_MS * INT64_C(1000000))) {
        if (strcmp(w->failure, w->refusal) != 0)
            log_event(WLOG_ERROR, "model_failed", "tries=%u reason=%s", w->n_failed,
                      quoted(w->refusal).s);
        memcpy(w->failure, w->refusal, sizeof(w->failure));
        api_worker_failed(w->model, w->failure, MAX(w->backoff_ms, RETRY_MIN_MS));
    }
    workers_schedule_restart(w);
}

static void workers_on_process_closed(uv_handle_t *h) {
    struct workers *w = CONTAINER_OF((uv_process_t *)h, struct workers, process);

    assert(w->process_open && !w->chan.open);
    w->process_open = false;
    uv_timer_stop(&w->restart); /* it would kill the next worker */
    if (w->state == WORKERS_DOWN && w->was_ready)
        workers_schedule_restart(w);
    else if (w->state == WORKERS_DOWN)
        on_failed_start(w);
    else if (w->state == WORKERS_IDLE)
        w->opts.on_unloaded(w->opts.ctx);
    else if (w->state == WORKERS_AWAY)
        workers_gone(w);
    else if (w->state == WORKERS_STOPPED)
        close_timers(w);
}

/* Refuses the model if it cannot be loaded: at once for a reason of the worker, or after LOAD_TRIES
 * deaths. @is_short: memory or descriptors are short, so it may succeed later. */
static void workers_refuse_model(struct workers *w, int signal, bool is_short) {
    if (file_has_changed(w)) {
        w->opts.on_refused(w->opts.ctx, FILE_CHANGED, -EAGAIN);
    } else if (*w->refusal) {
        w->opts.on_refused(w->opts.ctx, w->refusal, is_short ? -ENOMEM : -EINVAL);
    } else if (w->n_failed + 1 == LOAD_TRIES) {
        snprintf(w->refusal, sizeof(w->refusal), "the worker died %d times while loading it%s",
                 LOAD_TRIES, signal == SIGKILL ? " (killed: is there enough memory?)" : "");
        w->opts.on_refused(w->opts.ctx, w->refusal, -EAGAIN);
    }
}

/* Writes the decisions before the worker's death to a file, while they are known. */
static void dump_fault(struct workers *w, char *path, size_t size) {
    CLEANUP(buf_deinit) struct buf record = {.max = FLIGHT_FILE_MAX};
    if (workers_dump(w, &record) == 0)
        faults_write(&w->faults, w->opts.loop, &record, w->opts.config->fault_dir, w->n_deaths,
                     path, size);
}

/* Sets the pause before the next worker, where this one has served: what ends workers as soon as
 * they compute, such as a limit of memory, may last, and each start costs a load. */
static void note_age(struct workers *w) {
    int64_t now_ns = clock_now(w->opts.clock);

    w->backoff_ms = 0;
    if (now_ns - w->ready_ns < SETTLED_MS * INT64_C(1000000))
        w->n_early++;
    else
        w->n_early = 0;
    if (w->n_early <= 1)
        w->early_ns = now_ns;
    if (w->n_early > EARLY_DEATHS)
        w->backoff_ms = MIN(100u << MIN(w->n_early - EARLY_DEATHS - 1, 10u), EARLY_BACKOFF_MAX_MS);
}

/* Refuses the waiting requests if all workers of EARLY_WAIT_MS died early: what ends them lasts,
 * and a client may know another server. Requests that come later have as long again. */
static void workers_refuse_early(struct workers *w) {
    int64_t now_ns = clock_now(w->opts.clock);

    if (w->n_early <= EARLY_DEATHS || now_ns - w->early_ns < EARLY_WAIT_MS * INT64_C(1000000))
        return;
    w->early_ns = now_ns;
    snprintf(w->failure, sizeof(w->failure), "%u workers in a row ended within %d s of their start",
             w->n_early, SETTLED_MS / 1000);
    log_event(WLOG_ERROR, "model_failed", "tries=%u reason=%s", w->n_early, quoted(w->failure).s);
    api_worker_failed(w->model, w->failure, MAX(w->backoff_ms, RETRY_MIN_MS));
}

/* Handles the end of the worker. Its requests are submitted again when the next one serves. */
static void workers_on_process_exit(uv_process_t *p, int64_t status, int signal) {
    struct workers *w = CONTAINER_OF(p, struct workers, process);
    char path[256] = "";

    api_mark_loop("the end of a worker");
    PROBE3(worker__death, p->pid, status, signal);
    worker_chan_drain(&w->chan); /* takes the frames that it sent before its death */
    worker_chan_close(&w->chan);
    bool served = w->state == WORKERS_SERVING;
    expert_file_save(&w->experts);
    /* If it died while it loaded, the next worker packs the weights again, since the kept ones may
     * be the cause. */
    if (!w->was_ready)
        workers_release_weights(w, w->state == WORKERS_LOADING);
    if (status == WORKER_CUT_OFF)
        snprintf(w->refusal, sizeof(w->refusal), "its file ended while it was read");
    /* of others than this front: mostly the kernel, which needs memory */
    bool is_short = status == WORKER_SHORT || (signal == SIGKILL && !w->killed);
    if (w->served && is_short && signal == SIGKILL)
        snprintf(w->refusal, sizeof(w->refusal), "killed: is there enough memory?");
    if (served) {
        w->down_ns = clock_now(w->opts.clock);
        note_age(w);
    }
    if (w->state == WORKERS_LOADING || w->state == WORKERS_SERVING) {
        workers_set_state(w, WORKERS_DOWN);
        w->n_deaths++;
        faults_note(&w->faults, w->crash_page, is_short);
        if (served)
            dump_fault(w, path, sizeof(path));
        /* main.c reports the reason why no worker ever served, as the last line of the front. */
        log_event(!w->served && *w->refusal ? WLOG_DEBUG : WLOG_ERROR, "worker_died",
                  "pid=%d status=%lld signal=%d hang=%d in_flight=%u%s%s%s%s", p->pid,
                  (long long)status, signal, w->killed_for_hang, w->crash_page->n,
                  *path ? " flight=" : "", *path ? quoted(path).s : "",
                  *w->refusal ? " reason=" : "", *w->refusal ? quoted(w->refusal).s : "");
        if (served) {
            api_worker_down(w->model);
            workers_refuse_early(w);
        }
    }
    uv_close((uv_handle_t *)p, workers_on_process_closed);
    workers_end_leaving(w);
    if (w->state == WORKERS_DOWN && !w->served)
        workers_refuse_model(w, signal, status == WORKER_SHORT);
}

/* Starts the process with its descriptors in the order of enum worker_fd and opens the channel. The
 * program is /proc/self/exe, because its path may have changed, and a descriptor's number may be
 * one of those in use. Returns 0 or -errno; with process_open set workers_on_process_closed() will
 * be called, also after an error. */
static int workers_spawn(struct workers *w) {
    struct workers_fds fds;
    char shards[16];
    char *args[] = {(char *)"weftd", (char *)WORKER_FLAG, shards, NULL};
    char *env[WORKER_ENVIRONMENT_MAX];
    uv_process_options_t o = {.exit_cb = workers_on_process_exit,
                              .file = "/proc/self/exe",
                              .args = args,
                              .env = env,
                              .cwd = "/",
                              .stdio = fds.stdio};
    struct worker_chan_opts chan = {.loop = w->opts.loop,
                                    .clock = w->opts.clock,
                                    .ctx = w,
                                    .frame = workers_on_frame,
                                    .part = workers_on_part,
                                    .room = workers_on_room};
    int pair[2];

    assert(w->opts.file && !w->chan.open);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return -errno;
    int r = workers_list_fds(w, pair[1], &fds);
    if (r < 0) {
        close(pair[0]);
        close(pair[1]);
        return r;
    }
    snprintf(shards, sizeof(shards), "%u", fds.n_shards);
    worker_environment(env);
    o.stdio_count = (int)fds.n;
    r = uv_spawn(w->opts.loop, &w->process, &o);
    close(pair[1]);
    w->process_open = true;
    if (r < 0) {
        close(pair[0]);
        uv_close((uv_handle_t *)&w->process, workers_on_process_closed);
        return r;
    }
    worker_chan_open(&w->chan, pair[0], &chan);
    return 0;
}

int workers_start(struct workers *w) {
    assert(w->state == WORKERS_DOWN || w->state == WORKERS_IDLE);
    assert(!w->process_open && w->model);
    memset(w->crash_page, 0, sizeof(*w->crash_page));
    *w->refusal = 0;
    w->was_ready = false;
    w->killed = false;
    w->killed_for_hang = false;
    w->open_sent = false;
    w->progress_step = 0;
    w->watched_ns = 0;
    w->started_ns = clock_now(w->opts.clock);
    w->progress_ns = w->started_ns;
    workers_set_state(w, WORKERS_LOADING);
    int r = workers_spawn(w);
    if (r < 0) {
        workers_set_state(w, WORKERS_DOWN);
        return r;
    }
    w->n_started++;
    PROBE2(worker__start, w->process.pid, w->n_started);
    log_event(WLOG_INFO, "worker_started", "pid=%d", w->process.pid);
    return 0;
}

/* Starts a worker after the pause. */
static void on_restart(uv_timer_t *t) {
    struct workers *w = CONTAINER_OF(t, struct workers, restart);

    api_mark_loop("the start of a worker");
    if (w->state != WORKERS_DOWN || w->process_open)
        return;
    if (file_has_changed(w)) {
        on_failed_start(w);
        return;
    }
    int r = workers_start(w);
    if (r < 0) {
        log_event(WLOG_ERROR, "worker_spawn", "error=\"%s\"", uv_strerror(r));
        snprintf(w->refusal, sizeof(w->refusal), "no worker can be started: %s", uv_strerror(r));
    }
    if (r < 0 && !w->process_open) /* otherwise workers_on_process_closed() does it */
        on_failed_start(w);
}

/* Starts a worker at once after one that served, and with growing pauses while none serves or each
 * dies early. */
void workers_schedule_restart(struct workers *w) {
    uint32_t ms = w->backoff_ms;

    assert(w->state == WORKERS_DOWN && !w->process_open);
    w->backoff_ms = MIN(MAX(2 * ms, 100u), BACKOFF_MAX_MS);
    uv_timer_start(&w->restart, on_restart, ms, 0);
}

/* Logs that the file was changed. A worker that serves continues, because it computes with its own
 * copy. */
static void note_change(struct workers *w) {
    if (w->file_changed || !file_has_changed(w))
        return;
    w->file_changed = true;
    log_event(WLOG_WARN, "model_changed",
              "model=%s reason=\"" FILE_CHANGED
              ": it is served from memory until the worker ends\"",
              quoted(w->opts.config->model).s);
}

/* Kills a worker that hangs: loading takes too long, or requests run and for hang-timeout-ms no
 * operation of a step ends. A whole step may take longer than that on a machine that other programs
 * use. The watchdog of the front itself is in service.c. */
static void workers_on_watch(uv_timer_t *t) {
    struct workers *w = CONTAINER_OF(t, struct workers, watch);
    const struct config *c = w->opts.config;
    int64_t now = clock_now(w->opts.clock);

    api_mark_loop("a look at a worker");
    workers_check(w);
    note_change(w);
    if (!w->process_open || w->killed_for_hang)
        return;
    expert_file_save_due(&w->experts, w->last.n_picks, now);
    /* If the front itself was late, as on a machine that was paused, that time does not count
     * against the worker. */
    int64_t late_ns = w->watched_ns ? now - w->watched_ns - WATCH_MS * INT64_C(1000000) : 0;
    w->watched_ns = now;
    if (late_ns > WATCH_MS * INT64_C(1000000)) {
        w->started_ns += late_ns;
        w->progress_ns += late_ns;
    }
    /* api_busy() would also count slow clients, for which the worker is not responsible. */
    if (w->crash_page->step != w->progress_step || api_model_use(w->model).n_running == 0) {
        w->progress_step = w->crash_page->step;
        w->progress_ns = now;
    }
    bool hangs = w->state == WORKERS_LOADING
                     ? now - w->started_ns > (int64_t)c->load_timeout_ms * 1000000
                     : now - w->progress_ns > (int64_t)c->hang_timeout_ms * 1000000;
    if (!hangs)
        return;
    w->killed_for_hang = true;
    w->n_hangs++;
    kill_worker(w, w->state == WORKERS_LOADING ? "loading exceeded load-timeout-ms"
                                               : "nothing was computed for hang-timeout-ms");
}

/* ---- life ---- */

int workers_new(struct workers **out, const struct workers_opts *o, struct err *err) {
    CLEANUP(freep) struct workers *w = calloc(1, sizeof(*w));
    char *shared = MAP_FAILED;

    if (!w)
        return -ENOMEM;
    w->opts = *o;
    w->port = (struct api_port){.submit = port_submit,
                                .cancel = port_cancel,
                                .turn_end = port_turn_end,
                                .picture = port_picture,
                                .story = port_story};
    buf_init(&w->out, MSG_MAX_FRAME);
    buf_init(&w->ready, MSG_MAX_FRAME);
    w->crash_page_fd = memfd_create("weft-crash-page", MFD_CLOEXEC);
    if (w->crash_page_fd >= 0 && ftruncate(w->crash_page_fd, SHARED_BYTES) == 0)
        shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, w->crash_page_fd, 0);
    if (shared == MAP_FAILED) {
        int e = errno;

        if (w->crash_page_fd >= 0)
            close(w->crash_page_fd);
        err_set(err, 0, "", "cannot prepare the worker: %s", strerror(e));
        return -e;
    }
    w->crash_page = (struct crash_page *)shared;
    w->flight = (struct flight *)(shared + FLIGHT_OFFSET);
    w->weights = "";
    w->experts.loop = o->loop;
    uv_timer_init(o->loop, &w->watch);
    uv_timer_init(o->loop, &w->restart);
    *out = STEAL(w);
    return 0;
}

struct api_port *workers_port(struct workers *w) {
    return &w->port;
}

void workers_attach(struct workers *w, struct model *model) {
    assert(!w->model && model);
    w->model = model;
    uv_timer_start(&w->watch, workers_on_watch, WATCH_MS, WATCH_MS);
}

/* Ends a worker that had LINGER_MS to finish writing to its disk tier. */
static void on_linger_end(uv_timer_t *t) {
    struct workers *w = CONTAINER_OF(t, struct workers, restart);

    api_mark_loop("a look at a worker");
    if (w->process_open && uv_is_active((uv_handle_t *)&w->process))
        kill_worker(w, "it did not exit in time");
}

/* Ends the worker: closes its channel and kills it, or, if it has pages to write to the disk,
 * lets it exit within LINGER_MS. */
void workers_end_process(struct workers *w, bool served) {
    worker_chan_close(&w->chan);
    uv_timer_stop(&w->restart);
    if (!w->process_open)
        return;
    if (served && w->opts.disk_fd >= 0)
        uv_timer_start(&w->restart, on_linger_end, LINGER_MS, 0);
    else if (uv_is_active((uv_handle_t *)&w->process))
        uv_process_kill(&w->process, SIGKILL);
}

void workers_stop(struct workers *w) {
    bool served = w->state == WORKERS_SERVING;

    if (w->state == WORKERS_STOPPED)
        return;
    workers_set_state(w, WORKERS_STOPPED);
    workers_detach_next(w);
    uv_timer_stop(&w->watch);
    workers_end_process(w, served);
    if (!w->process_open)
        close_timers(w);
}

void workers_set_files(struct workers *w, const struct gguf *file, const struct gguf *draft,
                       const struct gguf *projector, uint8_t (*keys)[ENGINE_KEEP_KEY],
                       const uint8_t print[16], int experts_fd) {
    assert(file && !w->process_open);
    w->keys = keys;
    expert_file_set(&w->experts, print, experts_fd);
    w->opts.file = file;
    w->opts.draft = draft;
    w->opts.projector = projector;
}

void workers_set_disk(struct workers *w, int fd) {
    assert(!w->process_open);
    w->opts.disk_fd = fd;
    w->opts.disk_waits = true;
}

bool workers_use_disk(struct workers *w) {
    w->leaving_disk = false;
    if (w->opts.disk_fd >= 0 && w->opts.disk_waits && !workers_notify(w, MSG_DISK_USE, 0))
        return false;
    w->opts.disk_waits = false;
    return true;
}

bool workers_release_disk(struct workers *w) {
    bool used = !w->opts.disk_waits && w->opts.disk_fd >= 0 && w->process_open &&
                (w->open_sent || !w->chan.open);

    w->opts.disk_waits = true;
    /* A worker without OPEN does not have the file yet; one without a channel is about to end. */
    w->leaving_disk = used;
    if (used)
        workers_notify(w, MSG_DISK_LEAVE, 0);
    return used;
}

void workers_on_demand(struct workers *w) {
    w->port.want = port_want;
    w->port.use = port_use;
}

void workers_unload(struct workers *w) {
    bool served = w->state == WORKERS_SERVING, asked = w->next == NEXT_OFFERED;

    assert(w->opts.on_unloaded && api_model_use(w->model).n_running == 0);
    if (w->state == WORKERS_IDLE || w->state == WORKERS_STOPPED)
        return;
    workers_set_state(w, WORKERS_IDLE);
    workers_detach_next(w);
    w->served = false;
    w->has_stats = false;
    w->file_changed = false;
    w->placed = false;
    forget_failures(w);
    api_worker_stopped(w->model);
    workers_release_weights(w, false); /* the memory is free when the process has ended */
    log_event(WLOG_INFO, "worker_unloaded", "pid=%d", w->process_open ? w->process.pid : 0);
    workers_end_process(w, served);
    if (!w->process_open)
        w->opts.on_unloaded(w->opts.ctx);
    if (asked) /* the answer is not needed any more */
        w->opts.on_answer(w->opts.ctx);
}

struct workers *workers_free(struct workers *w) {
    if (!w)
        return NULL;
    assert(!w->process_open && !w->chan.open && !w->next_chan.open);
    workers_release_weights(w, false);
    munmap(w->crash_page, SHARED_BYTES);
    close(w->crash_page_fd);
    expert_file_close(&w->experts);
    buf_deinit(&w->out);
    buf_deinit(&w->ready);
    free(w);
    return NULL;
}

const struct flight *workers_flight(const struct workers *w) {
    return w->flight;
}

int workers_dump(const struct workers *w, struct buf *out) {
    return flight_file_write(out, w->flight, FLIGHT_TAPE_BYTES, WEFT_VERSION,
                             clock_now(w->opts.clock));
}

const struct buf *workers_ready(const struct workers *w) {
    return &w->ready;
}

bool workers_run(const struct workers *w) {
    return w->process_open;
}

bool workers_on_device(const struct workers *w) {
    return strcmp(w->backend, "cuda") == 0;
}

void workers_stats(const struct workers *w, struct workers_stats *out) {
    static const char *const names[] = {"down",     "loading", "serving",
                                        "unloaded", "away",    "stopped"};

    *out = (struct workers_stats){
        .state = names[w->state],
        .n_started = w->n_started,
        .n_deaths = w->n_deaths,
        .n_hangs = w->n_hangs,
        .pid = w->process_open ? w->process.pid : 0,
        .weights = w->weights,
        .failure = w->failure,
        .stats_age_ms = w->has_stats ? (clock_now(w->opts.clock) - w->last.at_ns) / 1000000 : -1,
        .last = w->last,
    };
}
