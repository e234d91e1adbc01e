#include "daemon/worker/worker.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/chan.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/try.h"
#include "daemon/config/config.h"
#include "daemon/worker/compiler.h"
#include "daemon/worker/device_watch.h"
#include "daemon/worker/handle_frames.h"
#include "daemon/worker/sandbox.h"
#include "daemon/worker/sigbus.h"
#include "engine/engine.h"
#include "proto/flight_tape.h"
#include "proto/messages.h"
#include "scheduler/scheduler.h"
#include "text/tokenizer.h"

#define EVENTS_MAX (16u << 20) /* most bytes of one event batch */
#define STATS_NS 100000000     /* least time between two statistics */
/* Longest time for writing to the disk. FLUSH_NS: when the worker ends; LEAVE_NS: while requests
 * run, before another process gets the file. */
#define FLUSH_NS INT64_C(2000000000)
#define LEAVE_NS INT64_C(5000000000)
#define LAST_WORDS_NS INT64_C(1000000000) /* longest time in which a full channel gets room */
#define WARM_UP_TOKENS 8u
#define CPU_NICE 5 /* nice value of threads that compute; compiling threads have a higher one */
#define OOM_ABOVE_FRONT                                                                            \
    100               /* thousandths of the memory that a worker counts as larger for the kernel */
#define MAX_BYPASS 8u /* times that a waiting request may be overtaken */
/* Host memory for the disk tier if none was configured, but at most the size of the KV cache: pages
 * pass through it on their way to the disk. */
#define STAGING_BYTES (UINT64_C(1) << 30)
#define WATCH_NS INT64_C(5000000000) /* time between two readings of an idle device's state */
/* rows of pictures take at most the machine's memory divided by this */
#define PICTURES_PART 16u
#define GRAMMARS_MAX ((size_t)128 << 20) /* most bytes of compiled grammars kept for later */

/*
 * Parts are opened in this order and freed in reverse: files, tokenizer, engines, compiler,
 * scheduler. crash_page->loading is 1 from the arrival of OPEN to READY.
 */
struct worker {
    struct chan chan;
    /* a large request that is being received */
    struct submit_parts parts;
    /* options of section [engine]; engine and scheduler keep pointers into it */
    struct config config;
    struct crash_page *crash_page;
    struct flight *flight;
    /* draft_file: of the draft model; NULL: there is none */
    struct gguf *file, *draft_file;
    /* NULL: the model takes no pictures */
    struct gguf *projector;
    struct engine *engine, *draft;
    struct tokenizer *tokenizer;
    struct compiler *compiler;
    /* NULL: there is no device of this number, or no NVML */
    struct device_watch *watch[ENGINE_DEVICES];
    /* at least one watch exists */
    bool watches;
    struct sched *sched;
    struct buf out;
    int n_shards;
    /* file of the disk tier, if there is one */
    int disk_fd;
    /* path of that file, perhaps cut off; "": unknown */
    char disk_path[256];
    /* keep_fd in the engine_opts of the draft model */
    int keep_draft_fd;
    /* readable when the compiler or the disk tier has a result */
    int wake_fd;
    /* DISK_LEFT must be sent */
    bool leaves_disk;
    int64_t stats_sent_ns;
    /* statistics have changed since they were sent */
    bool stats_stale;
    /* the last progress of loading that was sent */
    float reported;
};

void worker_build_id(unsigned char out[20]) {
    memset(out, 0, 20);
    static_assert(sizeof(((struct msg_hello *)0)->build_id) == 20, "size of a build id");
    snprintf((char *)out, 20, "%s %zx.%zx", WEFT_VERSION, sizeof(struct submit),
             sizeof(struct event));
}

void worker_environment(char *out[WORKER_ENVIRONMENT_MAX]) {
    static const char *const kept[] = {
        "JOURNAL_STREAM=",       "WEFT_LOG_FORMAT=",   "LD_LIBRARY_PATH=",
        "CUDA_VISIBLE_DEVICES=", "CUDA_DEVICE_ORDER=", "WEFT_CUDA_"};
    uint32_t n = 0;

    out[n++] = log_level_variable();
    for (char **e = environ; *e; e++)
        for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
            if (strncmp(*e, kept[i], strlen(kept[i])) == 0 && n + 1 < WORKER_ENVIRONMENT_MAX)
                out[n++] = *e;
    out[n] = NULL;
}

/* Sends what the channel has queued, in at most LAST_WORDS_NS. Drops what arrives meanwhile, since
 * it would end each wait. */
static void send_queued(struct worker *w) {
    int64_t end = clock_now(clock_monotonic()) + LAST_WORDS_NS;
    struct chan_frame f;

    while (chan_wants_write(&w->chan) && clock_now(clock_monotonic()) < end) {
        if (chan_recv(&w->chan, &f) == 0)
            continue;
        if (chan_wait(&w->chan, LAST_WORDS_NS / 1000000) < 0)
            return;
    }
}

/* Sends the reason @why to the front, which logs it; if that fails, logs it here. @r: the error.
 * Returns the exit code. */
static int worker_refuse(struct worker *w, int r, const char *why) {
    bool is_short = r == -ENOMEM || r == -EMFILE || r == -EAGAIN;
    bool sent = chan_send(&w->chan, MSG_FAILED, why, (uint32_t)strlen(why)) == 0;

    if (sent)
        send_queued(w);
    log_event(sent ? WLOG_DEBUG : WLOG_ERROR, "worker_failed", "reason=%s", quoted(why).s);
    if (is_short)
        return WORKER_SHORT;
    return WORKER_REFUSED;
}

/* Implements engine_opts.progress: reports every hundredth of loading to the front. */
static void worker_on_progress(void *ctx, const char *what, double fraction) {
    struct worker *w = ctx;
    struct msg_progress m = {{what, (uint32_t)strlen(what)}, (float)fraction};

    if (m.fraction < w->reported + 0.01f && m.fraction > w->reported && m.fraction < 1)
        return;
    w->reported = m.fraction;
    buf_clear(&w->out);
    if (msg_progress_pack(&w->out, &m) == 0)
        chan_send(&w->chan, MSG_PROGRESS, w->out.data, (uint32_t)w->out.len);
}

/* Sends HELLO and waits for OPEN. Returns 0 or a negative errno. */
static int handshake(struct worker *w, struct chan_frame *f) {
    struct msg_hello hello = {.magic = MSG_MAGIC, .version = MSG_VERSION};
    int r;

    worker_build_id(hello.build_id);
    chan_send(&w->chan, MSG_HELLO, &hello, sizeof(hello));
    while ((r = chan_recv(&w->chan, f)) == CHAN_EMPTY)
        if ((r = chan_wait(&w->chan, -1)) < 0)
            return r;
    TRY(r);
    if (f->type != MSG_OPEN)
        return -EPROTO;
    return 0;
}

/* Opens the draft model, if there is one. Returns 0 or -errno with @err. */
static int open_draft(struct worker *w, struct err *err) {
    struct engine_opts o = engine_draft_opts(&w->config.engine, w->config.draft_kv_bytes);

    if (!w->draft_file || w->config.engine.block || w->config.sched.no_speculation)
        return 0;
    o.file = w->draft_file;
    o.keep_fd = w->keep_draft_fd;
    TRY(engine_new(&w->draft, &o, err));
    if (engine_info(w->draft)->n_states > 0)
        return err_set(err, 0, "draft-model",
                       "draft-model: %s models cannot be draft models, because rejected tokens "
                       "would stay in their recurrent state",
                       engine_info(w->draft)->arch);
    return 0;
}

static uint64_t draft_bytes(const struct worker *w) {
    if (!w->draft)
        return 0;
    return engine_info(w->draft)->memory_bytes;
}

/* Logs the use of memory in one line; @room: bytes that are free. */
static void log_memory(const struct worker *w, uint64_t room) {
    const struct engine_info *i = engine_info(w->engine);
    uint64_t host = (uint64_t)i->n_host_pages * i->page_bytes;
    uint64_t kv = i->n_pages * i->page_bytes + i->n_windows * i->window_bytes +
                  ((uint64_t)i->n_states + i->n_snapshots) * i->state_bytes;

    assert(i->memory_bytes >= kv + host);
    log_event(WLOG_INFO, "memory",
              "model_mib=%llu host_experts_mib=%llu draft_mib=%llu kv_mib=%llu host_kv_mib=%llu "
              "free_mib=%llu max_context=%u",
              (unsigned long long)(i->memory_bytes - kv - host) >> 20,
              (unsigned long long)(i->host_expert_bytes + i->host_ffn_bytes) >> 20,
              (unsigned long long)draft_bytes(w) >> 20, (unsigned long long)kv >> 20,
              (unsigned long long)host >> 20, (unsigned long long)room >> 20, i->max_context);
}

/* Takes the formats from the options, which name them in the order of enum engine_kv_type, but for
 * the last; separate formats of keys and values override the common one. */
static void read_kv_types(const struct config *c, struct engine_opts *o) {
    const uint32_t n = ENGINE_KV_F32, automatic = n;
    enum engine_kv_type both = ENGINE_KV_F16;

    assert(c->kv_type <= automatic && c->kv_type_k <= n && c->kv_type_v <= n);
    if (c->kv_type != automatic)
        both = (enum engine_kv_type)c->kv_type;
    o->kv_type = kv_both(both);
    if (c->kv_type_k)
        o->kv_type.k = (enum engine_kv_type)(c->kv_type_k - 1);
    if (c->kv_type_v)
        o->kv_type.v = (enum engine_kv_type)(c->kv_type_v - 1);
    o->kv_auto = c->kv_type == automatic && !c->kv_type_k && !c->kv_type_v;
}

bool worker_engine_opts(struct config *c, const struct msg_open *m) {
    struct engine_opts *o = &c->engine;
    bool kv_given = o->kv_bytes != 0;

    read_kv_types(c, o);
    o->max_wants = o->max_rows;
    o->windows = true;
    /* The operator names a draft model, so it is used instead of the model's own block. */
    o->drafts = !c->sched.no_speculation && (!c->draft_model[0] || o->block) &&
                config_drafts_from(c, "mtp");
    o->kv_bytes = kv_given ? o->kv_bytes : m->kv_bytes;
    o->memory = kv_given ? 0 : m->memory_bytes;
    o->device_share = !kv_given;
    if (m->n_projector && m->memory_bytes)
        c->sched.picture_bytes = MIN(c->sched.picture_bytes, m->memory_bytes / PICTURES_PART);
    if (m->n_projector)
        o->memory -= MIN(c->sched.picture_bytes, MAX(o->memory, 1ull) - 1);
    if (m->has_disk && o->host_kv_bytes == 0)
        o->host_kv_bytes = o->kv_bytes ? MIN(o->kv_bytes, STAGING_BYTES) : STAGING_BYTES;
    return !kv_given && o->n_pages == 0;
}

/* Opens the model, with its block in a separate file if there is one, and its draft model, which is
 * opened first if the model takes all remaining memory of a device. Returns 0 or -errno with
 * @err. */
static int open_model(struct worker *w, const struct msg_open *m, struct err *err) {
    struct engine_opts *o = &w->config.engine;

    o->block = w->draft_file && engine_is_block(w->draft_file) ? w->draft_file : NULL;
    bool draft_first = worker_engine_opts(&w->config, m);
    assert(w->file && !w->engine);
    o->file = w->file;
    o->projector = w->projector;
    o->progress = worker_on_progress;
    o->progress_ctx = w;
    o->step_progress = &w->crash_page->step;
    TRY(tokenizer_new(&w->tokenizer, w->file, err));
    if (draft_first)
        TRY(open_draft(w, err));
    if (w->draft)
        o->memory -= MIN(draft_bytes(w), MAX(o->memory, 1ull) - 1);
    TRY(engine_new(&w->engine, o, err));
    if (engine_info(w->engine)->note[0])
        log_event(WLOG_INFO, "backend", "name=%s note=%s", engine_info(w->engine)->backend,
                  quoted(engine_info(w->engine)->note).s);
    log_memory(w, m->memory_bytes);
    if (draft_first)
        return 0;
    return open_draft(w, err);
}

/* Starts to watch the devices; a failure is logged and nothing else depends on it. */
static void watch_devices(struct worker *w) {
    const struct engine_info *i = engine_info(w->engine);
    struct err err = {0};

    for (uint32_t k = 0; k < i->n_devices; k++) {
        if (i->address[k][0] && device_watch_new(&w->watch[k], i->address[k], &err) < 0)
            log_event(WLOG_INFO, "device_watch", "missing=%s", quoted(err.message).s);
        w->watches = w->watches || w->watch[k];
    }
}

/*
 * Gives every thread of the worker a lower priority. A backend that computes on the processor, for
 * all layers or only for experts or pictures, uses every core. The front needs a core for some
 * microseconds at a time; at equal priority the scheduler makes it wait for the next tick (4 ms)
 * whenever it has just used more than its share. The priority counts only among the processes of a
 * service or session, since Linux divides cores between services first.
 */
static void lower_priority(const struct worker *w) {
    int nice = getpriority(PRIO_PROCESS, 0) + CPU_NICE; /* Linux limits it to 19 */
    DIR *threads = NULL;
    struct dirent *t;

    const struct engine_info *i = engine_info(w->engine);

    if (strcmp(i->backend, "cuda") != 0 || i->n_host_layers || i->picture_width)
        threads = opendir("/proc/self/task");
    while (threads && (t = readdir(threads)))
        if (atoi(t->d_name) > 0)
            setpriority(PRIO_PROCESS, (id_t)atoi(t->d_name), nice);
    if (threads)
        closedir(threads);
}

/* Implements sched_disk.note: the disk tier never fails a request; its errors are only logged. */
static void on_disk_note(void *ctx, const char *what, int error) {
    const struct worker *w = ctx;
    struct printable path = quoted(w->disk_path);

    if (error < 0)
        log_event(WLOG_WARN, "kv_disk", "what=%s error=%s path=%s", quoted(what).s,
                  quoted(strerror(-error)).s, path.s);
    else
        log_event(WLOG_WARN, "kv_disk", "what=%s path=%s", quoted(what).s, path.s);
}

/* Notes the path of the file of the disk tier, of which the front passes only a descriptor. */
static void name_disk(struct worker *w) {
    char link[40];

    snprintf(link, sizeof(link), "/proc/self/fd/%d", w->disk_fd);
    ssize_t n = readlink(link, w->disk_path, sizeof(w->disk_path) - 1);
    w->disk_path[MAX(n, 0)] = 0;
}

/* Completes @d for the file behind the shards. Its identity covers the size and time of the model's
 * files and the version. */
static void open_disk(struct worker *w, const struct msg_open *m, struct sched_disk *d) {
    uint32_t n = (uint32_t)w->n_shards - (w->config.engine.block ? 0 : m->n_draft_shards);
    uint64_t h = n;
    struct stat st;

    d->fd = w->disk_fd;
    d->note = on_disk_note;
    d->ctx = w;
    d->waits = m->disk_waits;
    if (m->has_disk)
        name_disk(w);
    else
        d->n_bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        if (fstat(WORKER_FD_MODEL + (int)i, &st) == 0) {
            h = hash_step(h, (uint64_t)st.st_size);
            h = hash_step(h, (uint64_t)st.st_mtim.tv_sec);
            h = hash_step(h, (uint64_t)st.st_mtim.tv_nsec);
        }
    memcpy(d->identity, &h, sizeof(h));
    snprintf((char *)d->identity + sizeof(h), sizeof(d->identity) - sizeof(h), "%s", WEFT_VERSION);
}

static int add_wake(struct worker *w, int fd) {
    struct epoll_event e = {.events = EPOLLIN};

    if (fd >= 0 && epoll_ctl(w->wake_fd, EPOLL_CTL_ADD, fd, &e) != 0)
        return -errno;
    return 0;
}

/* Makes one descriptor for the results of the compiler and of the disk tier. Returns 0 or
 * -errno. */
static int open_wake(struct worker *w) {
    w->wake_fd = epoll_create1(EPOLL_CLOEXEC);
    if (w->wake_fd < 0)
        return -errno;
    TRY(add_wake(w, compiler_fd(w->compiler)));
    return add_wake(w, sched_fd(w->sched));
}

/* Handles DISK_USE. A file that was in use has been closed, which has removed it from wake_fd.
 * Returns 0 or -errno. */
static int use_disk(struct worker *w) {
    bool uses = sched_uses_disk(w->sched);

    w->leaves_disk = false;
    sched_use_disk(w->sched);
    if (uses)
        return 0;
    return add_wake(w, sched_fd(w->sched));
}

/* Handles DISK_LEAVE. */
static void worker_release_disk(struct worker *w) {
    sched_release_disk(w->sched, clock_now(clock_monotonic()) + LEAVE_NS);
    w->leaves_disk = true;
}

/* Sends DISK_LEFT once the file is left; if the channel is full, after the next step. */
static void notify_disk_left(struct worker *w) {
    if (w->leaves_disk && !sched_uses_disk(w->sched) &&
        chan_send(&w->chan, MSG_DISK_LEFT, "", 0) == 0)
        w->leaves_disk = false;
}

/* Completes the options of the scheduler and opens it. Returns 0 or -errno. */
static int new_sched(struct worker *w, const struct msg_open *m) {
    TRY(compiler_new(&w->compiler, w->tokenizer, GRAMMARS_MAX, w->crash_page));
    struct sched_opts *o = &w->config.sched;

    o->max_seqs = w->config.engine.max_seqs;
    o->max_rows = w->config.engine.max_rows;
    o->depth = MIN(o->depth, engine_info(w->engine)->depth);
    o->max_bypass = MAX_BYPASS;
    o->no_sources = config_no_sources(&w->config);
    o->tokenizer = w->tokenizer;
    o->crash_page = w->crash_page;
    o->flight = w->flight;
    o->tape = flight_tape_of(w->flight);
    o->tape_bytes = FLIGHT_TAPE_BYTES;
    o->draft_engine = w->draft;
    o->constraints = compiler_source(w->compiler);
    o->tells_blocks = m->tells_blocks;
    open_disk(w, m, &o->disk);
    memcpy(&o->hash_seed, engine_info(w->engine)->fingerprint, sizeof(o->hash_seed));
    TRY(sched_new(&w->sched, o, w->engine, clock_monotonic()));
    return open_wake(w);
}

/* Computes a few tokens before READY is sent to the front. That touches all weights, and a model
 * that cannot run a step is never served. */
static int warm_up(struct worker *w) {
    int32_t tokens[WARM_UP_TOKENS] = {0};
    struct submit m = {
        .n_prompt = WARM_UP_TOKENS, .max_new = 2, .n_tokens = WARM_UP_TOKENS, .tokens = tokens};

    params_init(&m.sampling);
    int r = sched_submit(w->sched, &m);
    while (r == 0)
        r = sched_step(w->sched);
    if (r < 0)
        return r;
    buf_clear(&w->out);
    if (sched_events(w->sched, &w->out) == 0)
        sched_delivered(w->sched);
    sched_forget_requests(w->sched);
    return 0;
}

/* Makes what was loaded independent of @file, which may be NULL. The reference backend computes
 * from the file's own layout and therefore gets a copy. Returns 0 or -ENOMEM. */
static int copy_from_file(const struct worker *w, struct gguf *file) {
    if (!file)
        return 0;
    if (strcmp(engine_info(w->engine)->backend, "reference") == 0)
        return gguf_copy_data(file);
    gguf_drop_data(file);
    return 0;
}

/* Sends READY. Returns 0 or -errno. */
static int send_ready(struct worker *w) {
    const struct engine_info *i = engine_info(w->engine);

    assert(w->sched && i->page_tokens > 0 && i->n_pages > 0);
    struct msg_ready m = {
        .n_vocab = i->n_vocab,
        .n_embd = i->n_embd,
        .n_layer = i->n_layer,
        .max_context = i->max_context,
        .page_tokens = i->page_tokens,
        .n_pages = i->n_pages,
        .n_threads = i->n_threads,
        .memory_bytes = i->memory_bytes + draft_bytes(w),
        .page_bytes = i->page_bytes,
        .n_params = i->n_params,
        .arch = {i->arch, (uint32_t)strlen(i->arch)},
        .backend = {i->backend, (uint32_t)strlen(i->backend)},
        .isa = {i->isa, (uint32_t)strlen(i->isa)},
        .weights = i->weights,
    };

    memcpy(m.fingerprint, i->fingerprint, sizeof(m.fingerprint));
    for (size_t k = 0; k < sizeof(i->sources); k++)
        m.fingerprint[k % sizeof(m.fingerprint)] ^= i->sources[k];
    m.fingerprint[0] ^= (uint8_t)(i->kv_type.k << 1 | i->kv_type.v << 3 | w->config.engine.digest);
    buf_clear(&w->out);
    TRY(msg_ready_pack(&w->out, &m));
    return chan_send(&w->chan, MSG_READY, w->out.data, (uint32_t)w->out.len);
}

static int submit_parts_joined(struct worker *w) {
    const struct buf *text = &w->parts.text;
    struct submit m;

    TRY(msg_submit_parse(text->data, (uint32_t)text->len, &m));
    return sched_submit(w->sched, &m);
}

/* Takes a part of a request, or the whole with its last part. */
static int worker_receive_part(struct worker *w, const struct chan_frame *f) {
    int r = msg_submit_add_part(&w->parts, f->data, f->len);

    if (r != 1)
        return r;
    r = submit_parts_joined(w);
    submit_parts_deinit(&w->parts);
    return r;
}

static void worker_cancel(struct worker *w, uint64_t id) {
    msg_submit_drop(&w->parts, id);
    sched_cancel(w->sched, id);
}

/* Takes a frame of the front. Returns 0, or a negative errno: the worker cannot go on. */
static int worker_handle(void *ctx, const struct chan_frame *f) {
    struct worker *w = ctx;
    const struct msg_served *served;
    struct msg_picture picture;
    struct turn_end end;
    struct submit m;
    uint64_t id;
    int r = 0, n;

    w->stats_stale |= f->type != MSG_SERVED;
    if (f->type == MSG_SUBMIT && msg_submit_parse(f->data, f->len, &m) == 0)
        r = sched_submit(w->sched, &m);
    else if (f->type == MSG_SUBMIT_PART)
        r = worker_receive_part(w, f);
    else if (f->type == MSG_CANCEL && msg_cancel_parse(f->data, f->len, &id) == 0)
        worker_cancel(w, id);
    else if (f->type == MSG_PICTURE && msg_picture_parse(f->data, f->len, &picture) == 0)
        sched_picture(w->sched, &picture);
    else if (f->type == MSG_TURN_END && msg_turn_end_parse(f->data, f->len, &end) == 0)
        sched_turn_end(w->sched, &end);
    else if (f->type == MSG_SERVED && (n = msg_served_parse(f->data, f->len, &served)) > 0)
        sched_served_elsewhere(w->sched, served, (uint32_t)n);
    else if (f->type == MSG_DISK_USE)
        r = use_disk(w);
    else if (f->type == MSG_DISK_LEAVE)
        worker_release_disk(w);
    else
        r = -EPROTO;
    return MIN(r, 0);
}

/* Sends one event batch. If the channel is full, the batch is left out, because the next one has
 * its events too. */
static void send_events(struct worker *w) {
    buf_clear(&w->out);
    if (sched_events(w->sched, &w->out) == 0 &&
        chan_send(&w->chan, MSG_EVENTS, w->out.data, (uint32_t)w->out.len) == 0)
        sched_delivered(w->sched);
}

/* Asks for pixels of pictures; when the channel is full, the rest waits for the next step. */
static void ask_for_pictures(struct worker *w) {
    struct msg_need_picture m;

    while (sched_need_picture(w->sched, &m)) {
        buf_clear(&w->out);
        if (msg_need_picture_pack(&w->out, &m) < 0 ||
            chan_send(&w->chan, MSG_NEED_PICTURE, w->out.data, (uint32_t)w->out.len) != 0)
            return;
        sched_asked(w->sched, &m);
    }
}

/* Sends one message of changes. Returns 0, 1 (none, or the channel is full) or -errno. */
static int send_some_blocks(struct worker *w) {
    buf_clear(&w->out);
    int r = sched_blocks(w->sched, &w->out);

    if (r != 0)
        return r;
    return chan_send(&w->chan, MSG_BLOCKS, w->out.data, (uint32_t)w->out.len);
}

/* Sends changes of the prefix cache while nothing else waits in the channel; with @all until all
 * are sent. Returns 0 or -errno. */
static int send_blocks(struct worker *w, bool all) {
    int r = 0;

    if (!w->config.sched.tells_blocks)
        return 0;
    do {
        if (chan_wants_write(&w->chan))
            return 0;
        r = send_some_blocks(w);
    } while (r == 0 && all);
    return MIN(r, 0);
}

/* Adds the compiler's counters; the scheduler has filled in the rest. */
static void add_grammars(const struct worker *w, struct msg_stats *s) {
    struct compiler_stats c;

    compiler_stats(w->compiler, &c);
    s->n_grammar_hits = c.n_hits;
    s->n_grammars = c.n_compiled;
    s->n_grammars_refused = c.n_refused;
    s->compile_ns_total = c.ns;
    s->grammar_bytes = c.bytes;
    s->grammar_state_bytes = c.state_bytes;
    s->grammar_shared_bytes = c.shared_bytes;
    s->n_grammar_waiting = c.n_held;
    s->n_compiling = c.n_queued + c.n_away;
}

static void worker_add_devices(const struct worker *w, struct msg_stats *s) {
    static_assert(ENGINE_DEVICES <= MSG_DEVICES, "all are reported");
    for (uint32_t i = 0; i < ENGINE_DEVICES; i++) {
        struct device_state d = device_watch_read(w->watch[i]);

        if (w->watch[i])
            s->device[s->n_devices++] = (struct msg_device){
                .number = engine_info(w->engine)->device[i],
                .memory_bytes = d.memory_bytes,
                .memory_used_bytes = d.memory_used_bytes,
                .energy_mj = d.energy_mj,
                .power_mw = d.power_mw,
                .clock_mhz = d.clock_mhz,
                .celsius = d.celsius,
                .throttled = d.throttled,
            };
    }
}

/* Sends statistics, at most every STATS_NS and when nothing runs; if the channel is full, after the
 * next step. */
static void send_stats(struct worker *w, bool idle) {
    int64_t now = clock_now(clock_monotonic());
    struct msg_stats s;

    if (w->watches && now - w->stats_sent_ns >= WATCH_NS)
        w->stats_stale = true;
    if (!w->stats_stale || (!idle && now - w->stats_sent_ns < STATS_NS))
        return;
    sched_stats(w->sched, &s);
    s.at_ns = now;
    add_grammars(w, &s);
    worker_add_devices(w, &s);
    if (chan_send(&w->chan, MSG_STATS, &s, sizeof(s)) != 0)
        return;
    w->stats_sent_ns = now;
    w->stats_stale = false;
    buf_clear(&w->out);
    if (sched_served(w->sched, &w->out) == 0) /* lost if the channel is full */
        chan_send(&w->chan, MSG_SERVED, w->out.data, (uint32_t)w->out.len);
}

/* Implements compiler_ready_fn: a grammar is ready, or refused for reason @why. */
static bool worker_on_compiled(void *ctx, uint64_t id, const struct constraint *c,
                               const struct err *why) {
    struct worker *w = ctx;

    w->stats_stale = true;
    return sched_constraint_ready(w->sched, id, c, why);
}

/* Returns the ms until the next deadline of the scheduler, for poll(2); -1: there is none. */
static int idle_timeout_ms(struct worker *w) {
    int64_t wake = sched_wake_ns(w->sched);

    if (wake == INT64_MAX) {
        if (!w->watches)
            return -1;
        return (int)(WATCH_NS / 1000000);
    }
    int64_t ms = (wake - clock_now(clock_monotonic())) / 1000000 + 1;
    return (int)MAX(0, MIN(ms, 60000));
}

/*
 * Runs the loop of the worker: takes frames and compiled grammars, runs one step, sends its events.
 * Returns only a negative errno: -EPIPE: the front has closed the channel; -EIO: the device is
 * lost; others: a fault of the channel, or no memory.
 */
static int worker_serve(struct worker *w) {
    assert(w->sched && w->compiler);
    w->stats_stale = true;
    for (;;) {
        int r = handle_frames(&w->chan, clock_monotonic(), HANDLE_FRAMES_NS, worker_handle, w);
        bool more = r == 0;

        if (r < 0)
            return r;
        w->stats_stale |= compiler_deliver(w->compiler, worker_on_compiled, w);
        while (compiler_has_quarantined(w->compiler)) {
            if ((r = sched_settle(w->sched)) < 0)
                return r;
            compiler_run_quarantined(w->compiler, worker_on_compiled, w);
        }
        if ((r = sched_step(w->sched)) < 0)
            return r;
        if (r == 0)
            w->stats_stale = true;
        send_events(w);
        ask_for_pictures(w);
        notify_disk_left(w);
        send_stats(w, r == SCHED_NO_STEP);
        TRY(send_blocks(w, r == SCHED_NO_STEP));
        if (r == SCHED_NO_STEP && !more)
            TRY(chan_wait_or(&w->chan, w->wake_fd, idle_timeout_ms(w)));
        w->stats_stale |=
            sched_fd(w->sched) >= 0; /* the disk tier may have saved or loaded pages */
    }
}

/* Reads the options that the front has sent. Returns 0 or -errno. */
static int worker_read_options(struct worker *w, struct str packed) {
    TRY(config_init(&w->config));
    return config_unpack(&w->config, packed.data, packed.len);
}

/* Takes the files at @fds: @n shards, the last @n_draft of which are the draft model's, then the
 * projector's, if there is one. Returns 0 or -errno, -EPROTO: no shard is the model's. */
static int open_files(struct worker *w, const int *fds, uint32_t n, const struct msg_open *m,
                      struct err *err) {
    uint32_t n_draft = m->n_draft_shards;

    if (n_draft >= n)
        return -EPROTO;
    TRY(gguf_open_fds(&w->file, fds, n - n_draft, err));
    TRY(config_override(&w->config, w->file, err));
    if (n_draft > 0)
        TRY(gguf_open_fds(&w->draft_file, fds + n - n_draft, n_draft, err));
    if (!m->n_projector)
        return 0;
    return gguf_open_fds(&w->projector, fds + n, m->n_projector, err);
}

/* Takes the descriptors behind the shards and the projector. */
static void receive_files(struct worker *w, const struct msg_open *m) {
    int next = WORKER_FD_MODEL + w->n_shards + (int)m->n_projector;

    w->disk_fd = next;
    next += m->has_disk ? 1 : 0;
    w->config.engine.keep_fd = m->keeps ? next++ : 0;
    w->keep_draft_fd = m->keeps_draft ? next++ : 0;
    w->config.engine.experts_fd = m->has_experts ? next : 0;
    w->config.engine.keeps_place = m->keeps_place;
}

static int worker_open_all(struct worker *w, const int *fds, const struct msg_open *open,
                           struct err *err) {
    TRY(open_files(w, fds, (uint32_t)w->n_shards, open, err));
    return open_model(w, open, err);
}

/* Runs the worker from HELLO to the end of serving. Returns the exit code. */
static int worker_run(struct worker *w, int n_shards) {
    int fds[2 * WORKER_SHARDS_MAX];
    struct chan_frame f;
    struct msg_open open;
    struct err err = {0};

    if (n_shards < 1 || n_shards > WORKER_SHARDS_MAX)
        return WORKER_CHANNEL;
    if (handshake(w, &f) < 0 || msg_open_parse(f.data, f.len, &open) < 0 ||
        worker_read_options(w, open.options) < 0)
        return WORKER_CHANNEL;
    if (open.n_projector > WORKER_SHARDS_MAX)
        return WORKER_CHANNEL;
    w->n_shards = n_shards;
    receive_files(w, &open);
    for (int i = 0; i < n_shards + (int)open.n_projector; i++)
        fds[i] = WORKER_FD_MODEL + i;
    w->crash_page->loading = 1;
    int r = worker_open_all(w, fds, &open, &err);
    if (r < 0)
        return worker_refuse(w, r, *err.message ? err.message : strerror(-r));
    watch_devices(w);
    lower_priority(w);
    if (copy_from_file(w, w->file) < 0 || copy_from_file(w, w->draft_file) < 0 ||
        copy_from_file(w, w->projector) < 0)
        return worker_refuse(w, -ENOMEM, "out of memory");
    if ((r = new_sched(w, &open)) < 0)
        return worker_refuse(w, r, strerror(-r));
    if ((r = warm_up(w)) < 0)
        return worker_refuse(w, r, "the model cannot run a step");
    w->crash_page->loading = 0;
    if (send_ready(w) < 0)
        return WORKER_CHANNEL;
    r = worker_serve(w);
    assert(r < 0);
    if (r == -EPIPE) { /* the front has ended, or has closed the channel to end this worker */
        sched_flush(w->sched, clock_now(clock_monotonic()) + FLUSH_NS);
        return WORKER_DONE;
    }
    if (r != -EIO) {
        worker_refuse(w, r, strerror(-r));
        return WORKER_CHANNEL;
    }
    const char *fault = engine_fault(w->engine);
    char why[256];
    snprintf(why, sizeof(why), "the device is lost: %s",
             *fault || !w->draft ? fault : engine_fault(w->draft));
    worker_refuse(w, r, why);
    return WORKER_LOST;
}

/* Offers the worker where the kernel ends a process because memory is short: the front replaces it
 * and continues its streams, which end with the front. */
static void die_before_front(void) {
    FILE *f = fopen("/proc/self/oom_score_adj", "r+e");
    int adj;

    if (!f)
        return;
    if (fscanf(f, "%d", &adj) == 1) {
        rewind(f);
        fprintf(f, "%d", MIN(adj + OOM_ABOVE_FRONT, 1000));
    }
    fclose(f);
}

int worker_main(int argc, char **argv) {
    struct worker w = {0};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, "weft-worker");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, SIG_IGN); /* Ctrl-C is for the front, which drains */
    signal(SIGHUP, SIG_IGN);
    /* with a limit on sizes of files, weights are not kept and the worker continues */
    signal(SIGXFSZ, SIG_IGN);
    sigbus_exit_with(WORKER_CUT_OFF, "");
    die_before_front();
    log_init(log_requested_level(), "worker");
    if (sandbox_worker() < 0)
        log_event(WLOG_WARN, "no_sandbox", "reason=\"this kernel has no system call filters\"");
    chan_init(&w.chan, WORKER_FD_CHANNEL, MSG_MAX_FRAME, MSG_MAX_QUEUED);
    buf_init(&w.out, EVENTS_MAX);
    w.crash_page = mmap(NULL, sizeof(*w.crash_page), PROT_READ | PROT_WRITE, MAP_SHARED,
                        WORKER_FD_CRASH_PAGE, 0);
    w.flight = mmap(NULL, FLIGHT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, WORKER_FD_CRASH_PAGE,
                    FLIGHT_OFFSET);
    if (w.crash_page == MAP_FAILED || w.flight == MAP_FAILED)
        return WORKER_CHANNEL;

    int r = worker_run(&w, argc > 2 ? atoi(argv[2]) : 0);
    /* leaves out the driver's own end, which may wait for a device that does not answer */
    if (r == WORKER_LOST)
        _exit(r);

    sched_free(w.sched);
    compiler_free(w.compiler);
    for (uint32_t i = 0; i < ENGINE_DEVICES; i++)
        device_watch_free(w.watch[i]);
    engine_free(w.draft);
    engine_free(w.engine);
    tokenizer_free(w.tokenizer);
    gguf_free(w.projector);
    gguf_free(w.draft_file);
    gguf_free(w.file);
    config_deinit(&w.config);
    buf_deinit(&w.out);
    submit_parts_deinit(&w.parts);
    chan_deinit(&w.chan);
    munmap(w.crash_page, sizeof(*w.crash_page));
    munmap(w.flight, FLIGHT_BYTES);
    return r;
}
