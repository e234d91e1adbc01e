/*
 * Files may be added and removed while the daemon runs. The folders are scanned when a client asks
 * for an unknown name or for the list. A thread of file_work.h scans, since a folder may lie
 * behind a network; the request waits at most SCAN_LIMIT_MS. The scan has a copy of the options,
 * because a reload may change those of the daemon meanwhile.
 *
 * Models are compared by name. New requests do not find a model whose file is gone, and its worker
 * ends after its last request. A model whose file was replaced is swapped when it is next loaded
 * (models.c). A preset that cannot be read is named in the log, in /v1/models and on the admin
 * socket; if it was served before, it is served with its former options.
 */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <uv.h>

#include "base/log.h"
#include "base/printable.h"
#include "base/result.h"
#include "daemon/models/models_find.h"
#include "daemon/models/models_private.h"
#include "daemon/models/projector_file.h"

#define PAUSE_MS 2000      /* least time from the end of one scan to the next */
#define SCAN_LIMIT_MS 5000 /* time after which requests that wait for a scan continue without it */

/* The header of a file in this state; zeroed if it cannot be read. */
struct known_header {
    struct model_file file;
    struct model_header header;
};

/* A model that the scan has found; each name is found once. */
struct found {
    struct config config;
    char *name;
    uint64_t bytes;
    struct known_header header;
    /* a projector lies beside it */
    bool sees;
};

struct model_file models_file_state(const char *path) {
    struct stat st;
    uint64_t h = 1;

    if (stat(path, &st) < 0)
        return (struct model_file){0};
    for (const char *p = path; *p; p++)
        h = hash_step(h, (unsigned char)*p);
    h = hash_step(hash_step(h, (uint64_t)st.st_dev), (uint64_t)st.st_ino);
    h = hash_step(hash_step(h, (uint64_t)st.st_size), (uint64_t)st.st_mtim.tv_sec);
    h = hash_step(h, (uint64_t)st.st_mtim.tv_nsec);
    return (struct model_file){h, st.st_mtime};
}

/* ---- functions on a thread ---- */

/* Returns the header of the file at @path, which is read unless the last scan has read it. */
static struct known_header header_of(const struct models_scan *s, const char *path) {
    struct known_header h = {.file = models_file_state(path)};

    for (size_t i = 0; i < s->n_known; i++)
        if (s->known[i].file.id == h.file.id)
            return s->known[i];
    model_header_open(&h.header, path);
    return h;
}

/* Implements models_find_cb. */
static int models_rescan_collect(void *ctx, struct config *c, const char *name,
                                 uint64_t file_bytes) {
    struct models_scan *s = ctx;

    if (!array_resize(&s->found, s->n + 1, sizeof(*s->found)))
        return -ENOMEM;
    struct found *f = &s->found[s->n];
    *f = (struct found){.bytes = file_bytes};
    if (!(f->name = strdup(name)))
        return -ENOMEM;
    f->config = *c;
    memset(c, 0, sizeof(*c)); /* taken over */
    f->header = header_of(s, f->config.model);
    f->sees = projector_file_is_there(&f->config, &s->folder);
    s->n++;
    return 0;
}

/* Implements models_bad_cb. */
static int collect_bad(void *ctx, const char *name, const struct err *why) {
    struct models_scan *s = ctx;

    if (!array_resize(&s->bad, s->n_bad + 1, sizeof(*s->bad)))
        return -ENOMEM;
    struct bad_preset *b = &s->bad[s->n_bad++];
    *b = (struct bad_preset){strdup(name), strdup(why->message)};
    return enomem_unless(b->name && b->why);
}

static void models_rescan_on_thread(struct file_work *w) {
    struct models_scan *s = CONTAINER_OF(w, struct models_scan, work);

    s->result = models_find_all(&s->config, models_rescan_collect, collect_bad, s, &s->err);
    projector_folder_deinit(&s->folder);
}

/* ---- functions on the loop's thread ---- */

static bool is_live(const struct served *s) {
    return !s->old && !s->retired;
}

static struct served *models_rescan_find_live(const struct models *m, const char *name) {
    for (uint32_t i = 0; i < m->n; i++)
        if (is_live(m->served[i]) && strcmp(m->served[i]->name, name) == 0)
            return m->served[i];
    return NULL;
}

static bool models_rescan_is_found(const struct models_scan *s, const char *name) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->found[i].name, name) == 0)
            return true;
    return false;
}

/* ---- presets that cannot be read ---- */

static const struct bad_preset *models_rescan_find_bad(const struct bad_preset *bad, size_t n,
                                                       const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(bad[i].name, name) == 0)
            return &bad[i];
    return NULL;
}

static void free_bad(struct bad_preset *bad, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(bad[i].name);
        free(bad[i].why);
    }
    free(bad);
}

/* Takes over the scan's reasons for bad files; each reason is logged once. */
static void note_bad_files(struct models *m) {
    struct models_scan *s = &m->scan;
    const char **names = s->n_bad ? calloc(s->n_bad + 1, sizeof(*names)) : NULL;

    for (size_t i = 0; i < s->n_bad; i++) {
        const struct bad_preset *was = models_rescan_find_bad(m->bad, m->n_bad, s->bad[i].name);

        if (!was || strcmp(was->why, s->bad[i].why) != 0)
            log_event(WLOG_WARN, "preset_not_read", "model=%s reason=%s", quoted(s->bad[i].name).s,
                      quoted(s->bad[i].why).s);
        if (names)
            names[i] = s->bad[i].name;
    }
    api_set_bad_presets(m->api, names);
    free(m->bad_names);
    m->bad_names = names;
    free_bad(m->bad, m->n_bad);
    m->bad = s->bad;
    m->n_bad = s->n_bad;
    s->bad = NULL;
    s->n_bad = 0;
}

void models_rescan_deinit(struct models *m) {
    assert(!m->scan.running);
    free(m->scan.known);
    free_bad(m->bad, m->n_bad);
    free(m->bad_names);
}

/* ---- new and removed models ---- */

uint32_t models_n_live(const struct models *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n; i++)
        n += is_live(m->served[i]);
    return n;
}

/* Returns true if the model may be removed now; otherwise a load or change is under way, after
 * which a scan tries again. */
static bool may_go(const struct served *s) {
    return !s->next && !s->wanted &&
           (s->state == SERVED_ABSENT || s->state == SERVED_FAILED || s->state == SERVED_READY);
}

/* Hides the model from new requests; decide() removes it later. */
static void withdraw(struct served *s) {
    struct models *m = s->of;
    uint32_t i = 0;

    assert(is_live(s) && may_go(s));
    api_withdraw_model(s->model);
    s->retired = true;
    /* The api's model stays READY for requests whose prompts are being made. */
    if (s->state == SERVED_READY)
        models_set_state(s, SERVED_LEAVING);
    while (m->served[i] != s)
        i++;
    memmove(&m->served[i], &m->served[i + 1], (m->n - i - 1) * sizeof(*m->served));
    m->served[m->n - 1] = s; /* replaced and removed models are at the end of the list */
}

/* Adds a model to the list behind the served models, before replaced and removed ones. Returns 0 or
 * -errno with @err. */
static int add_found(struct models *m, struct found *f, struct err *err) {
    int r = models_add(m, &f->config, f->name, f->bytes, f->header.file);

    if (r < 0)
        return r;
    struct served *s = m->served[m->n - 1];
    s->found = true;
    s->stale = m->scan.again; /* the scan may have read the file before the change */
    s->wanted = s->config.pinned;
    if ((r = models_bring(s, api_add_model, err)) < 0)
        return r;
    uint32_t at = models_n_live(m) - 1;
    memmove(&m->served[at + 1], &m->served[at], (m->n - 1 - at) * sizeof(*m->served));
    m->served[at] = s;
    log_event(WLOG_INFO, "model_found", "model=%s file=%s", quoted(s->name).s,
              quoted(s->config.model).s);
    return 0;
}

/* Returns true if the model came from a file that the scan has not found, or found changed. */
static bool is_gone(const struct models *m, const struct served *s) {
    if (!is_live(s) || !s->found || models_rescan_find_bad(m->bad, m->n_bad, s->name))
        return false;
    return s->stale || !models_rescan_is_found(&m->scan, s->name);
}

/* Withdraws models whose files do not exist any more; the last one that is served stays. Those that
 * may not go yet are marked. */
static void remove_gone(struct models *m) {
    for (uint32_t i = 0; i < m->n; i++) {
        struct served *s = m->served[i];

        s->goes = is_gone(m, s) && models_n_live(m) > 1;
        if (!s->goes || !may_go(s))
            continue;
        log_event(WLOG_INFO, "model_gone", "model=%s file=%s", quoted(s->name).s,
                  quoted(s->config.model).s);
        withdraw(s);
        i--; /* the next model has this index now */
    }
}

/* Describes a model that was not opened to clients, by the header of its file. */
static void describe_by_header(struct served *s, const struct found *f) {
    const struct model_header *h = &f->header.header;

    if (s->front)
        return;
    s->header = *h;
    s->info.arch = *s->header.arch ? s->header.arch : NULL;
    s->info.max_context = model_header_context(h, &s->config);
    s->info.n_ctx_train = h->n_ctx_train;
    s->info.n_embd = h->n_embd;
    s->info.n_vocab = h->n_vocab;
    s->info.vocab_type = h->vocab_type;
    s->info.reasons = h->reasons && !*s->config.chat_template;
    s->info.sees = f->sees;
    s->info.n_params = h->n_params;
    s->info.tensor_bytes = h->tensor_bytes;
}

/* Keeps the headers that were read for the next scan. Without memory it reads them again. */
static void retain_headers(struct models_scan *s) {
    struct known_header *all = s->n ? calloc(s->n, sizeof(*all)) : NULL;

    free(s->known);
    s->known = all;
    s->n_known = all ? s->n : 0;
    for (size_t i = 0; i < s->n_known; i++)
        all[i] = s->found[i].header;
}

static void apply(struct models *m) {
    struct models_scan *s = &m->scan;
    int r = s->result;

    assert(s->running);
    if (r == 0) {
        note_bad_files(m);
        remove_gone(m);
    }
    for (size_t i = 0; i < s->n && r == 0; i++)
        if (!models_rescan_find_live(m, s->found[i].name))
            r = add_found(m, &s->found[i], &s->err);
    for (size_t i = 0; i < s->n && r == 0; i++) {
        struct served *live = models_rescan_find_live(m, s->found[i].name);

        if (live && live->found)
            describe_by_header(live, &s->found[i]);
    }
    retain_headers(s);
    if (r < 0)
        log_event(WLOG_WARN, "models_not_read", "reason=%s",
                  quoted(*s->err.message ? s->err.message : strerror(-r)).s);
}

static void models_rescan_release(struct models *m) {
    struct list *node;

    /* Each iteration ends the wait of one request. Requests that its answer causes do not wait,
     * because the scan has just ended. */
    while ((node = list_pop_front(&m->scan.waiting))) {
        struct api_rescan *w = LIST_ENTRY(node, struct api_rescan, link);

        w->over(w);
    }
}

static void on_scanned(struct file_work *w);

static bool start_scan(struct models *m) {
    struct models_scan *s = &m->scan;

    assert(!s->running);
    memset(&s->err, 0, sizeof(s->err));
    s->again = false;
    if (config_clone(&s->config, m->opts.config) < 0) {
        config_deinit(&s->config);
        return false;
    }
    s->work =
        (struct file_work){.run = models_rescan_on_thread, .done = on_scanned, .kind = FILE_SCAN};
    file_work_submit(&s->work, m->opts.loop);
    s->running = true;
    s->at_ns = models_now_ns(m);
    return true;
}

static void on_scanned(struct file_work *w) {
    struct models *m = CONTAINER_OF(w, struct models, scan.work);
    struct models_scan *s = &m->scan;

    api_mark_loop("a scan of the models");
    if (!m->stopping)
        apply(m);
    for (size_t i = 0; i < s->n; i++) {
        config_deinit(&s->found[i].config);
        free(s->found[i].name);
    }
    free(s->found);
    s->found = NULL;
    s->n = 0;
    free_bad(s->bad, s->n_bad);
    s->bad = NULL;
    s->n_bad = 0;
    config_deinit(&s->config);
    assert(s->running);
    s->running = false;
    s->at_ns = models_now_ns(m);
    if (m->stopping)
        return;
    if (s->again && start_scan(m))
        return; /* waiting requests wait for that scan */
    s->again = false;
    models_rescan_release(m);
    models_decide_soon(m);
}

bool models_rescan(void *ctx, struct api_rescan *wait) {
    struct models *m = ctx;
    struct models_scan *s = &m->scan;
    int64_t now = models_now_ns(m);
    bool late = now - s->at_ns >= (s->running ? SCAN_LIMIT_MS : PAUSE_MS) * INT64_C(1000000);

    if (!m->several || m->stopping || late == s->running)
        return false; /* there is no folder, the last scan has just ended, or none can be started */
    if (!s->running && !start_scan(m))
        return false;
    if (wait)
        list_push_back(&s->waiting, &wait->link);
    return true;
}

bool models_rescan_now(struct models *m, struct api_rescan *wait) {
    struct models_scan *s = &m->scan;

    if (s->running)
        s->again = true;
    else if (!start_scan(m))
        return false;
    if (wait)
        list_push_back(&s->waiting, &wait->link);
    return true;
}

/* Returns true if a model that the last scan could not remove may go now. */
static bool may_one_go(const struct models *m) {
    for (uint32_t i = 0; i < m->n; i++) {
        const struct served *s = m->served[i];

        if (s->goes && is_live(s) && may_go(s))
            return true;
    }
    return false;
}

void models_rescan_tick(struct models *m) {
    const struct models_scan *s = &m->scan;

    if (s->running && models_now_ns(m) - s->at_ns >= SCAN_LIMIT_MS * INT64_C(1000000))
        models_rescan_release(m);
    if (!s->running && !m->stopping && may_one_go(m))
        start_scan(m);
}
