#include "daemon/worker/worker.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/chan.h"
#include "base/try.h"
#include "proto/flight.h"
#include "proto/flight_tape.h"
#include "scheduler/scheduler.h"
#include "tests/front_sim/model.h"
#include "tests/front_sim/process.h"
#include "tests/front_sim/worker.h"

#define EVENTS_MAX (1u << 20)
#define STATS_NS 100000000

enum worker_state { WORKER_BEGINS, WORKER_WAITS, WORKER_LOADS, WORKER_SERVES, WORKER_HANGS };

struct sim_worker {
    struct actor actor;
    /* workers */
    struct list link;
    struct process *process;
    enum worker_state state;
    /* end of the channel before chan_init() */
    struct sock *held;
    bool has_chan;
    struct chan chan;
    struct submit_parts parts;
    struct gguf *file;
    struct tokenizer *tokenizer;
    struct engine *engine;
    struct sched *sched;
    char *shared;
    struct buf out;
    float loaded;
    int64_t stats_ns;
    /* statistics have changed since they were sent */
    bool is_stale;
    /* number of steps until the process ends; 0: it does not */
    uint32_t dies_in;
    uint32_t n_used;
};

struct worker_faults worker_faults;
uint32_t worker_n_deaths, worker_n_hangs, worker_n_refused, worker_n_ready;
static struct list workers = {&workers, &workers};

static struct crash_page *page_of(const struct sim_worker *w) {
    return (struct crash_page *)w->shared;
}

static void step(struct actor *a);

static void *start(struct process *p, const uv_process_options_t *o) {
    struct sim_worker *w = calloc(1, sizeof(*w));
    struct err err = {0};
    int fd = o->stdio[WORKER_FD_MODEL].data.fd;

    w->process = p;
    w->held = fd_hold(o->stdio[WORKER_FD_CHANNEL].data.fd, &w->actor);
    w->shared = mmap(NULL, FLIGHT_OFFSET + FLIGHT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                     o->stdio[WORKER_FD_CRASH_PAGE].data.fd, 0);
    if (w->shared == MAP_FAILED || gguf_open_fds(&w->file, &fd, 1, &err) < 0)
        sim_fail("SIMULATOR", "a worker cannot be made: %s", err.message);
    buf_init(&w->out, EVENTS_MAX);
    list_push_back(&workers, &w->link);
    actor_start(&w->actor, step, sim_between(100000, 5000000));
    return w;
}

static void worker_free(struct sim_worker *w) {
    actor_stop(&w->actor);
    list_remove(&w->link);
    sched_free(w->sched);
    engine_free(w->engine);
    tokenizer_free(w->tokenizer);
    gguf_free(w->file);
    munmap(w->shared, FLIGHT_OFFSET + FLIGHT_BYTES);
    buf_deinit(&w->out);
    submit_parts_deinit(&w->parts);
    if (w->has_chan)
        chan_deinit(&w->chan);
    else
        sock_close(w->held, false);
    free(w);
}

static void killed(void *program) {
    worker_free(program);
}

const struct program program_worker = {start, killed};

static void end(struct sim_worker *w, int status, int term_signal) {
    struct process *p = w->process;

    worker_free(w);
    process_exit(p, status, term_signal);
}

uint32_t workers_sim_requests(void) {
    uint32_t n = 0;

    LIST_FOREACH(i, &workers) {
        const struct sim_worker *w = LIST_ENTRY(i, const struct sim_worker, link);

        /* requests of a worker that hangs are not counted */
        n += w->state == WORKER_HANGS ? 0 : w->n_used;
    }
    return n;
}

static bool chance(uint32_t one_in) {
    return one_in && sim_one_in(one_in);
}

/* ---- frames to the front ---- */

/* Writes @n extreme or random numbers of one or four bytes over @len bytes at @data. */
static void overwrite(char *data, size_t len, uint32_t n) {
    static const uint32_t extreme[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 4096};

    for (; n > 0 && len >= sizeof(uint32_t); n--) {
        uint32_t v = sim_one_in(3) ? sim_below(UINT32_MAX) : extreme[sim_below(6)];
        size_t at = 4 * (size_t)sim_below((uint32_t)len / 4);

        memcpy(data + at, &v, sim_one_in(2) ? 1 : sizeof(v));
    }
}

/* Damages the memory that is shared with the front: its parts begin with their counters. */
static void overwrite_shared(struct sim_worker *w) {
    struct flight *f = (struct flight *)(w->shared + FLIGHT_OFFSET);

    overwrite(w->shared, sizeof(struct crash_page), sim_below(20));
    overwrite((char *)f, sizeof(*f), sim_below(20));
    overwrite((char *)f, 64, sim_below(3));
    overwrite((char *)flight_tape_of(f), 64, sim_below(5));
    overwrite((char *)flight_tape_of(f), FLIGHT_TAPE_BYTES, sim_below(20));
}

/* Sends a frame with other bytes, another length or another type, or twice, or damages the shared
 * memory. */
static void send_damaged(struct sim_worker *w, uint32_t type, const void *data, uint32_t len) {
    struct buf b = {.max = 1 << 24};
    uint32_t kind = sim_below(7);

    sim_note("frame %u is damaged, kind %u", type, kind);
    sim_event("damage", type, kind);
    buf_add(&b, data, len);
    if (kind < 3)
        overwrite(b.data, b.len, sim_between(1, 4));
    else if (kind == 3)
        b.len = sim_below((uint32_t)b.len + 1);
    else if (kind == 4)
        type = sim_below(MSG_PICTURE + 2);
    else if (kind == 5)
        chan_send(&w->chan, type, b.data, (uint32_t)b.len);
    else
        overwrite_shared(w);
    chan_send(&w->chan, type, b.data, (uint32_t)b.len);
    buf_deinit(&b);
    w->dies_in = kind == 6 ? 1 : sim_between(1, 6); /* its own code relies on that memory */
}

/* Sends a frame to the front. Returns 0 or -errno of chan_send(). */
static int say(struct sim_worker *w, uint32_t type, const void *data, uint32_t len) {
    if (w->dies_in == 0 && chance(worker_faults.damages)) {
        send_damaged(w, type, data, len);
        return 0;
    }
    return chan_send(&w->chan, type, data, len);
}

/* ---- loading ---- */

static void say_hello(struct sim_worker *w) {
    struct msg_hello hello = {.magic = MSG_MAGIC, .version = MSG_VERSION};

    chan_init(&w->chan, fd_of_held(w->held), MSG_MAX_FRAME, MSG_MAX_QUEUED);
    w->has_chan = true;
    worker_build_id(hello.build_id);
    say(w, MSG_HELLO, &hello, sizeof(hello));
    w->state = WORKER_WAITS;
}

/* Opens the model for open_model(). Returns 0 or -errno with @err. */
static int open_parts(struct sim_worker *w, struct err *err) {
    struct engine_opts e = {
        .file = w->file,
        .n_pages = worker_faults.n_pages,
        .page_tokens = MODEL_PAGE_TOKENS,
        .max_context = MODEL_CONTEXT,
        .max_rows = 64,
        .max_seqs = 8,
        .max_wants = 64,
        .digest = true,
    };
    struct sched_opts o = {
        .max_seqs = 8,
        .max_rows = 64,
        .itl_target_ms = 50,
        .max_step_ms = 200,
        .depth = 2,
        .max_bypass = 4,
        .check = true,
        .hash_seed = 1,
        .crash_page = page_of(w),
        .flight = (struct flight *)(w->shared + FLIGHT_OFFSET),
        .tape = flight_tape_of((struct flight *)(w->shared + FLIGHT_OFFSET)),
        .tape_bytes = FLIGHT_TAPE_BYTES,
    };

    model_use(model_of_file(w->file));
    TRY(tokenizer_new(&w->tokenizer, w->file, err));
    o.tokenizer = w->tokenizer;
    TRY(engine_new(&w->engine, &e, err));
    return sched_new(&w->sched, &o, w->engine, clock_monotonic());
}

static void open_model(struct sim_worker *w) {
    struct err err = {0};

    if (open_parts(w, &err) < 0)
        sim_fail("SIMULATOR", "a worker cannot open its model: %s", err.message);
}

static void say_ready(struct sim_worker *w) {
    const struct engine_info *i = engine_info(w->engine);
    struct msg_ready m = {
        .n_vocab = MODEL_VOCAB,
        .n_embd = 8,
        .n_layer = 1,
        .max_context = i->max_context,
        .page_tokens = i->page_tokens,
        .n_pages = i->n_pages,
        .n_threads = 1,
        .memory_bytes = 1 << 20,
        .page_bytes = 1024,
        .n_params = 1000,
        .arch = {"llama", 5},
        .backend = {"cpu", 3},
        .isa = {"avx2", 4},
    };

    m.fingerprint[0] = (uint8_t)model_of_file(w->file);
    buf_clear(&w->out);
    msg_ready_pack(&w->out, &m);
    say(w, MSG_READY, w->out.data, (uint32_t)w->out.len);
    w->state = WORKER_SERVES;
    page_of(w)->loading = 0;
    worker_n_ready++;
}

/* Advances the loading. Returns false if the process has ended. */
static bool load(struct sim_worker *w) {
    struct msg_progress m = {{"weights", 7}, w->loaded};

    if (chance(worker_faults.dies_loading)) {
        worker_n_deaths++;
        end(w, 0, SIGKILL);
        return false;
    }
    if (chance(worker_faults.refuses)) {
        static const char why[] = "simulated: there is not enough memory";

        worker_n_refused++;
        say(w, MSG_FAILED, why, sizeof(why) - 1);
        end(w, WORKER_REFUSED, 0);
        return false;
    }
    w->loaded += 0.4f;
    if (w->loaded >= 1) {
        open_model(w);
        say_ready(w);
        return true;
    }
    buf_clear(&w->out);
    msg_progress_pack(&w->out, &m);
    say(w, MSG_PROGRESS, w->out.data, (uint32_t)w->out.len);
    actor_wake(&w->actor, 1 + sim_below(worker_faults.load_ns));
    return true;
}

/* ---- serving ---- */

/* Takes a part of a request. Returns 0 or -errno. */
static int take_part(struct sim_worker *w, const struct chan_frame *f) {
    int r = msg_submit_add_part(&w->parts, f->data, f->len);
    struct submit m;

    if (r != 1)
        return r;
    r = msg_submit_parse(w->parts.text.data, (uint32_t)w->parts.text.len, &m);
    if (r == 0) {
        sim_event("submit in parts", m.id, m.n_tokens);
        r = sched_submit(w->sched, &m);
    }
    submit_parts_deinit(&w->parts);
    return r;
}

/* Takes frames that have arrived, a random part of them. Returns 0 or -errno. */
static int drain(struct sim_worker *w) {
    const struct msg_served *served;
    struct chan_frame f;
    struct turn_end t;
    struct submit m;
    uint64_t id;
    int r, n;

    while ((r = chan_recv(&w->chan, &f)) == 0) {
        w->is_stale = true;
        if (f.type == MSG_OPEN && w->state == WORKER_WAITS) {
            w->state = WORKER_LOADS;
            page_of(w)->loading = 1;
        } else if (w->state != WORKER_SERVES) {
            sim_fail("PROTOCOL", "frame %u comes to a worker that does not serve", f.type);
        } else if (f.type == MSG_SUBMIT && msg_submit_parse(f.data, f.len, &m) == 0) {
            sim_event("submit", m.id, m.n_tokens);
            r = sched_submit(w->sched, &m);
        } else if (f.type == MSG_SUBMIT_PART) {
            r = take_part(w, &f);
        } else if (f.type == MSG_CANCEL && msg_cancel_parse(f.data, f.len, &id) == 0) {
            sim_event("cancel", id, 0);
            msg_submit_drop(&w->parts, id);
            sched_cancel(w->sched, id);
        } else if (f.type == MSG_TURN_END && msg_turn_end_parse(f.data, f.len, &t) == 0) {
            sched_turn_end(w->sched, &t);
        } else if (f.type == MSG_SERVED && (n = msg_served_parse(f.data, f.len, &served)) > 0) {
            sched_served_elsewhere(w->sched, served, (uint32_t)n);
        } else {
            sim_fail("PROTOCOL", "frame %u of %u bytes cannot be read", f.type, f.len);
        }
        if (r < 0)
            sim_fail("PROTOCOL", "a request is refused: %s", strerror(-r));
    }
    return r < 0 ? r : 0;
}

static void send_events(struct sim_worker *w) {
    buf_clear(&w->out);
    if (sched_events(w->sched, &w->out) == 0 &&
        say(w, MSG_EVENTS, w->out.data, (uint32_t)w->out.len) == 0)
        sched_delivered(w->sched);
}

static void send_stats(struct sim_worker *w, bool idle) {
    struct msg_stats s;

    sched_stats(w->sched, &s);
    w->n_used = s.n_running + s.n_waiting;
    w->is_stale |= !idle;
    if (!w->is_stale || (!idle && sim.ns - w->stats_ns < STATS_NS))
        return;
    w->is_stale = false;
    w->stats_ns = s.at_ns = sim.ns;
    say(w, MSG_STATS, &s, sizeof(s));
    buf_clear(&w->out);
    if (sched_served(w->sched, &w->out) == 0)
        say(w, MSG_SERVED, w->out.data, (uint32_t)w->out.len);
}

/* Runs a step. Returns false if the process has ended. */
static bool serve(struct sim_worker *w) {
    int r = sched_step(w->sched);

    if (r == 0 && chance(worker_faults.hangs)) {
        sim_event("hang", 0, 0);
        worker_n_hangs++;
        w->state = WORKER_HANGS;
        return true;
    }
    if (r == 0 && chance(worker_faults.dies_serving)) {
        worker_n_deaths++;
        end(w, 0, SIGSEGV);
        return false;
    }
    if (r < 0)
        sim_fail("SIMULATOR", "a step fails: %s", strerror(-r));
    send_events(w);
    send_stats(w, r == SCHED_NO_STEP);
    if (r == 0)
        actor_wake(&w->actor, 1000 + sim_below(2 * worker_faults.step_ns));
    else if (sched_wake_ns(w->sched) != INT64_MAX)
        actor_wake(&w->actor, MAX(sched_wake_ns(w->sched) - sim.ns, 1000));
    return true;
}

static void step(struct actor *a) {
    struct sim_worker *w = CONTAINER_OF(a, struct sim_worker, actor);

    sim_event("worker", (uint64_t)process_pid(w->process), w->state);
    if (w->dies_in && --w->dies_in == 0) {
        worker_n_deaths++;
        end(w, 0, SIGSEGV);
        return;
    }
    if (w->state == WORKER_HANGS)
        return;
    if (w->state == WORKER_BEGINS)
        say_hello(w);
    int r = drain(w);
    if (r < 0) { /* the front has closed the channel */
        end(w, WORKER_DONE, 0);
        return;
    }
    if (w->state == WORKER_LOADS && !load(w))
        return;
    if (w->state == WORKER_SERVES && !serve(w))
        return;
    chan_flush(&w->chan);
    if (chan_wants_write(&w->chan) || w->dies_in)
        actor_wake(&w->actor, 200000);
}
