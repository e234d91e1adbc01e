/*
 * disk - copies prefixes between host memory and a file. docs/design/prefix-tiers.md, "The disk",
 * describes which ones.
 *
 *   device  <-- copies of a step -->  host memory  <-- this thread -->  file
 *
 * The file is a store of slots (kvpager/store.h). The slots have a pager of their own, as the pages
 * of host memory have: page i is slot i, and its snapshots are the states in the file.
 *
 * A thread reads and writes; the step thread never touches the file after the start. A job's memory
 * stays valid until the thread gives the job back: a sequence of the host's pager holds the pages,
 * and one of the slots' pager the slots. Copies of steps are ordered with the thread's work: a page
 * is written to the file when the step that copies it from the device has ended, and read into host
 * memory when the steps that may still copy from that page have ended. One prefix is written at a
 * time.
 *
 * The snapshot of a page is written after the page, and held in host memory meanwhile. A request
 * gets the pages up to the last snapshot, then the snapshot, for which one in host memory is taken
 * before.
 */

#include "kvpager/disk.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/list.h"
#include "base/try.h"
#include "kvpager/disk_io.h"
#include "kvpager/disk_room.h"
#include "kvpager/store.h"

#define FIRST_BYTES_PER_NS 1.0 /* rate of reading before anything was read */
/* Weight of the time of one job, up to 8 pages, in the running mean: one job that is ten times as
 * slow, because the disk was busy, does not triple the mean; after a dozen jobs the mean is that of
 * a disk whose speed has changed. */
#define LEARN 0.2
/* Part of the way back to the first estimate for each prefix that is left in the file: reading that
 * takes ten times as long as computing is tried again after a hundred prefixes or more, and reading
 * that takes a little longer after a few. */
#define FORGET 0.02
/* least time between two notes that the file cannot be written */
#define NOTE_NS INT64_C(3600000000000)

struct job {
    /* in disk.saves or disk.loads */
    struct list link;
    /* load: request that waits for the pages */
    uint64_t id;
    /* step that must end before the job begins */
    uint64_t after;
    bool active, under_way, cancelled;
    struct kv_seq *host, *slots;
    struct kv_isolation share;
    int32_t *tokens;
    uint32_t n_tokens;
    /* save: tokens of the pages under way, in the form of the file */
    int32_t *stored;
    /* save: pictures of the pages under way */
    struct kv_medium *media;
    /* Snapshots of the host's and of the slots' pager, or both KV_NO_SNAPSHOT. The source of the
     * copy is held, its destination is taken. */
    uint32_t state, state_slot;
    /* save: number of first pages whose snapshots were searched in the file */
    uint32_t n_looked;
    struct disk_io io;
};

struct disk {
    struct disk_opts opts;
    struct store *store;
    struct kv_pager *slots;
    /* [n_slots + n_states] ids of published pages, then of their snapshots */
    struct store_id *id;
    /* id for the next page or state */
    struct store_id next;
    /* size of a state in pages; 0: no state */
    uint32_t state_pages;
    uint64_t stamp;
    /* job.link */
    struct list saves, loads;
    uint32_t n_saves;
    struct disk_room room;
    bool told_lost;
    /* time of the last note that the file cannot be written; 0: never */
    int64_t told_ns;
    /* running mean of the time to read a page */
    double read_ns;
    struct disk_thread thread;
};

static void disk_submit(struct disk *d, struct job *j) {
    assert(!j->under_way);
    j->under_way = true;
    j->io.page_tokens = d->opts.pager.page_tokens;
    disk_thread_submit(&d->thread, &j->io);
}

static void disk_note(const struct disk *d, const char *what, int error) {
    if (d->opts.note)
        d->opts.note(d->opts.note_ctx, what, error);
}

static void *disk_page_bytes(const struct disk *d, uint32_t page) {
    return d->opts.memory.page(d->opts.memory.ctx, page);
}

static void *disk_snapshot_bytes(const struct disk *d, uint32_t snapshot) {
    return d->opts.memory.snapshot(d->opts.memory.ctx, snapshot);
}

/* ---- life ---- */

static int disk_read_index(struct disk *d) {
    uint64_t n_bad = 0;
    int e =
        store_enter(d->store, d->slots, d->opts.media, d->id, d->room.written, &d->stamp, &n_bad);

    d->opts.counts->n_bad += n_bad;
    if (n_bad > 0)
        disk_note(d, "some slots of the file are damaged and count as free", 0);
    return e;
}

static int init_room(struct disk *d, const struct kv_opts *k) {
    uint64_t page = store_slot_bytes(d->store, 0);
    uint64_t state = store_slot_bytes(d->store, k->n_pages);
    struct disk_room_opts o = {
        .slots = d->slots,
        .clock = d->opts.clock,
        .n_slots = k->n_pages,
        .n_states = k->n_snapshots,
        .page_tokens = k->page_tokens,
        .max_seq_tokens = k->max_seq_tokens,
        .slot_bytes = MAX(page, state),
        .daily_bytes = d->opts.file.daily_bytes,
    };

    return disk_room_init(&d->room, &o);
}

static int disk_init(struct disk *d) {
    const struct kv_memory *m = &d->opts.memory;
    struct store_opts s = {
        .fd = d->opts.file.fd,
        .n_bytes = d->opts.file.n_bytes,
        .page_tokens = d->opts.pager.page_tokens,
        .page_bytes = m->page_bytes,
        .state_bytes = m->state_bytes,
        .identity = d->opts.file.identity,
        .n_identity = d->opts.file.n_identity,
    };
    struct kv_opts k = d->opts.pager;

    if (!d->opts.host || !disk_page_bytes(d, 0) ||
        (m->state_bytes > 0 && !disk_snapshot_bytes(d, 0)))
        return -EOPNOTSUPP;
    int r = store_open(&d->store, &s);
    if (r < 0)
        return r;
    if (r == STORE_CLEARED)
        disk_note(
            d, "the file was of another model, backend or version, or damaged, and begins anew", 0);
    k.n_pages = store_n_slots(d->store);
    k.n_snapshots = store_n_states(d->store);
    d->state_pages = (uint32_t)((m->state_bytes + m->page_bytes - 1) / m->page_bytes);
    k.max_seqs =
        DISK_SAVES + DISK_LOADS + 2 * disk_room_seqs(k.n_pages, k.page_tokens, k.max_seq_tokens);
    d->id = calloc((size_t)k.n_pages + k.n_snapshots, sizeof(*d->id));
    if (!d->id)
        return -ENOMEM;
    TRY(kv_pager_new(&d->slots, &k));
    TRY(init_room(d, &k));
    if (r == 0)
        TRY(disk_read_index(d));
    if (getrandom(&d->next.run, sizeof(d->next.run), 0) != sizeof(d->next.run))
        return -EIO;
    d->next.run |= 1;
    return disk_thread_start(&d->thread, d->store);
}

static double first_read_ns(const struct disk *d) {
    return (double)d->opts.memory.page_bytes / FIRST_BYTES_PER_NS;
}

int disk_new(struct disk **out, const struct disk_opts *o) {
    struct disk *d = calloc(1, sizeof(*d));

    if (!d)
        return -ENOMEM;
    d->opts = *o;
    d->read_ns = first_read_ns(d);
    list_init(&d->saves);
    list_init(&d->loads);
    disk_thread_init(&d->thread, o->file.in_step);
    int r = disk_init(d);
    if (r < 0) {
        disk_free(d);
        return r;
    }
    *out = d;
    return 0;
}

static struct job *new_job(bool reads) {
    struct job *j = calloc(1, sizeof(*j));

    if (!j)
        return NULL;
    j->io.what = reads ? IO_READ : IO_WRITE;
    j->state = j->state_slot = KV_NO_SNAPSHOT;
    return j;
}

/* Gives back the snapshots of @j, which no thread uses any more. */
static void release_states(struct disk *d, struct job *j) {
    if (j->state == KV_NO_SNAPSHOT)
        return;
    if (j->io.what == IO_WRITE) {
        kv_snapshot_release(d->opts.host, j->state);
        kv_snapshot_free(d->slots, j->state_slot);
    } else {
        kv_snapshot_free(d->opts.host, j->state);
        kv_snapshot_release(d->slots, j->state_slot);
    }
    j->state = j->state_slot = KV_NO_SNAPSHOT;
}

static void disk_end_job(struct disk *d, struct job *j) {
    assert(!j->under_way);
    release_states(d, j);
    d->n_saves -= j->io.what == IO_WRITE;
    list_remove(&j->link);
    kv_seq_free(j->host);
    kv_seq_free(j->slots);
    free(j->tokens);
    free(j->stored);
    free(j->media);
    free(j);
}

static void end_all(struct disk *d, struct list *l) {
    LIST_FOREACH_ENTRY(j, l, struct job, link) {
        disk_end_job(d, j);
    }
}

struct disk *disk_free(struct disk *d) {
    struct disk_io *io;

    if (!d)
        return NULL;
    disk_thread_stop(&d->thread);
    while ((io = disk_thread_receive(&d->thread)))
        CONTAINER_OF(io, struct job, io)->under_way = false;
    end_all(d, &d->saves);
    end_all(d, &d->loads);
    disk_thread_deinit(&d->thread);
    disk_room_deinit(&d->room);
    kv_pager_free(d->slots);
    store_free(d->store);
    free(d->id);
    free(d);
    return NULL;
}

struct kv_pager *disk_pages(const struct disk *d) {
    if (!d)
        return NULL;
    return d->slots;
}

/* ---- to the file ---- */

void disk_save(struct disk *d, struct kv_seq *host, int32_t *tokens, uint32_t n_tokens,
               uint64_t after) {
    struct job *j = d->n_saves == DISK_SAVES ? NULL : new_job(false);

    if (!j) {
        kv_seq_free(host);
        free(tokens);
        return;
    }
    j->after = after;
    j->host = host;
    j->share = *kv_seq_isolation(host);
    j->tokens = tokens;
    j->n_tokens = MIN(n_tokens, kv_seq_committed(host));
    list_push_back(&d->saves, &j->link);
    d->n_saves++;
}

/* Returns the head for slot @slot, which holds page @k of @j or the snapshot after it; @parent: the
 * slot of the page before. */
static struct store_head disk_head(struct disk *d, const struct job *j, uint32_t slot, uint32_t k,
                                   uint32_t parent) {
    d->next.n++;
    d->id[slot] = d->next;
    return (struct store_head){
        .id = d->next,
        .parent = parent == KV_NO_PAGE ? (struct store_id){0} : d->id[parent],
        .isolation = j->share,
        .depth = k,
        .stamp = ++d->stamp,
    };
}

/* Returns whether a page of @j in the file, from j->n_looked on, has a snapshot that the file
 * lacks; j->n_looked is then its index. */
static bool lacks_state(const struct disk *d, struct job *j) {
    uint32_t n = d->state_pages ? kv_seq_committed(j->slots) / d->opts.pager.page_tokens : 0;

    while (j->n_looked < n && (kv_seq_snapshot_at(j->host, j->n_looked) == KV_NO_SNAPSHOT ||
                               kv_seq_snapshot_at(j->slots, j->n_looked) != KV_NO_SNAPSHOT))
        j->n_looked++;
    return j->n_looked < n;
}

/* Gives the snapshot of page j->n_looked to the thread. Returns false if there is no room. */
static bool write_state(struct disk *d, struct job *j) {
    uint32_t k = j->n_looked, n_slots = store_n_slots(d->store), n_pages;
    uint64_t bytes = store_slot_bytes(d->store, n_slots);
    uint32_t to =
        disk_room_for(&d->room, 1, bytes) ? kv_snapshot_acquire(d->slots, NULL) : KV_NO_SNAPSHOT;

    if (to == KV_NO_SNAPSHOT)
        return false;
    disk_room_spend(&d->room, bytes);
    j->state = kv_seq_snapshot_at(j->host, k);
    j->state_slot = to;
    kv_snapshot_hold(d->opts.host, j->state);
    j->io.slot[0] = n_slots + to;
    j->io.bytes[0] = disk_snapshot_bytes(d, j->state);
    j->io.head[0] = disk_head(d, j, n_slots + to, k, kv_seq_pages(j->slots, &n_pages)[k]);
    j->io.n = 1;
    j->io.tokens = j->tokens;
    disk_submit(d, j);
    return true;
}

/* Puts the tokens of @n pages of @j from page @from on into j->stored, in the form of the file, and
 * their pictures into j->media. Returns the number of pages that can be written: the pages before
 * one that has too many pictures or a picture whose content is forgotten. */
static uint32_t store_tokens(const struct disk *d, struct job *j, uint32_t from, uint32_t n) {
    uint32_t t = d->opts.pager.page_tokens, n_media = 0, n_here = 0;
    const int32_t *in = j->tokens + (size_t)from * t;

    free(j->stored);
    free(j->media);
    j->media = NULL;
    j->stored = malloc((size_t)n * t * sizeof(*j->stored));
    for (uint32_t i = 0; j->stored && i < n * t; i++) {
        bool begins = in[i] < 0 && (i == 0 || in[i] != in[i - 1]);
        const struct kv_medium *of = begins ? kv_media_find(d->opts.media, in[i]) : NULL;

        n_here = i % t == 0 ? in[i] < 0 && !begins : n_here;
        n_here += begins;
        if ((begins && (!of || !array_resize(&j->media, n_media + 1, sizeof(*j->media)))) ||
            n_here > STORE_MEDIA)
            return i / t;
        if (begins)
            j->media[n_media++] = *of;
        j->stored[i] = in[i] < 0 ? -(int32_t)n_media : in[i];
    }
    if (j->stored)
        return n;
    return 0;
}

/* Gives the next pages of @j, or a snapshot of earlier ones, to the thread. Returns false if all is
 * written or there is no room. */
static bool write_more(struct disk *d, struct job *j) {
    uint32_t t = d->opts.pager.page_tokens, n_pages;

    if (!j->slots) {
        if (kv_seq_new(&j->slots, d->slots, &j->share) < 0)
            return false;
        kv_seq_attach(j->slots, j->tokens, j->n_tokens);
    }
    if (lacks_state(d, j))
        return write_state(d, j);
    uint32_t from = kv_seq_committed(j->slots) / t, end = j->n_tokens / t;
    uint64_t bytes = store_slot_bytes(d->store, 0);
    uint32_t n = disk_room_for(&d->room, MIN(end - from, DISK_IO_PAGES), bytes);
    n = store_tokens(d, j, from, n);
    if (n == 0 || kv_seq_grow(j->slots, (from + n) * t) == KV_FULL)
        return false;
    disk_room_spend(&d->room, n * bytes);
    const kv_page *slot = kv_seq_pages(j->slots, &n_pages);
    const kv_page *page = kv_seq_pages(j->host, &n_pages);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = from + i;

        j->io.slot[i] = slot[k];
        j->io.bytes[i] = disk_page_bytes(d, page[k]);
        j->io.head[i] = disk_head(d, j, slot[k], k, k > 0 ? slot[k - 1] : KV_NO_PAGE);
    }
    j->io.n = n;
    j->io.tokens = j->stored;
    j->io.media = j->media;
    disk_submit(d, j);
    return true;
}

static void disk_report(struct disk *d, int error) {
    int64_t now = clock_now(d->opts.clock);

    if (d->told_ns && now - d->told_ns < NOTE_NS)
        return;
    d->told_ns = now;
    disk_note(d, "the file cannot be written; it is tried again later", error);
}

static void finish_written_state(struct disk *d, struct job *j) {
    if (j->io.answer == 0) {
        kv_snapshot_release(d->opts.host, j->state);
        kv_seq_attach_snapshot_at(j->slots, j->state_slot, j->n_looked);
        j->state = j->state_slot = KV_NO_SNAPSHOT;
        d->opts.counts->n_saved_snapshots++;
    }
    release_states(d, j);
}

static void finish_written_pages(struct disk *d, struct job *j) {
    uint32_t from = kv_seq_committed(j->slots);
    uint32_t n_tokens = from + j->io.n_done * d->opts.pager.page_tokens;

    kv_seq_truncate(j->slots, n_tokens);
    kv_seq_commit(j->slots, j->tokens, n_tokens);
    d->opts.counts->n_saved_tokens += n_tokens - from;
}

/* Without its name the file can be written as before, so no error tells that it is lost. */
static void report_lost(struct disk *d) {
    if (!d->told_lost)
        disk_note(d, "the file was deleted: the next start will not find its pages", 0);
    d->told_lost = true;
}

/* Takes written pages from the thread. Returns false when the job is finished. */
static bool finish_written(struct disk *d, struct job *j) {
    for (uint32_t i = 0; i < j->io.n_done; i++)
        disk_room_written(&d->room, j->io.slot[i]);
    if (j->state != KV_NO_SNAPSHOT)
        finish_written_state(d, j);
    else
        finish_written_pages(d, j);
    if (j->io.lost)
        report_lost(d);
    if (j->io.answer == 0)
        return true;
    disk_report(d, j->io.answer);
    return disk_room_failed(&d->room, j->io.slot[j->io.n_done], j->io.answer);
}

/* ---- from the file ---- */

uint32_t disk_has(const struct disk *d, const struct kv_isolation *share, const int32_t *tokens,
                  uint32_t n_tokens) {
    return kv_pager_match(d->slots, share, tokens, n_tokens).n_tokens;
}

double disk_read_ns(const struct disk *d, uint32_t n_pages) {
    uint32_t t = d->opts.pager.page_tokens;

    n_pages += d->state_pages;
    LIST_FOREACH_ENTRY(j, &d->loads, struct job, link) {
        n_pages += j->n_tokens / t + d->state_pages;
    }
    return d->read_ns * n_pages;
}

void disk_left(struct disk *d) {
    double first = first_read_ns(d);

    if (d->read_ns > first)
        d->read_ns += FORGET * (first - d->read_ns);
}

int disk_load(struct disk *d, uint64_t id, const struct kv_isolation *share, const int32_t *tokens,
              uint32_t n_tokens) {
    struct job *j = new_job(true);

    n_tokens -= n_tokens % d->opts.pager.page_tokens;
    if (!j)
        return -ENOMEM;
    j->tokens = malloc(n_tokens * sizeof(*tokens));
    if (!j->tokens) {
        free(j);
        return -ENOMEM;
    }
    memcpy(j->tokens, tokens, n_tokens * sizeof(*tokens));
    j->n_tokens = n_tokens;
    j->id = id;
    j->share = *share;
    list_push_back(&d->loads, &j->link);
    return 0;
}

void disk_cancel(struct disk *d, uint64_t id) {
    LIST_FOREACH_ENTRY(j, &d->loads, struct job, link) {
        if (j->id != id || j->cancelled)
            continue;
        j->cancelled = true;
        if (!j->under_way)
            disk_end_job(d, j);
        return;
    }
}

/* Takes a snapshot of host memory for the snapshot of the last page of j->slots. Returns false if
 * there is none. */
static bool disk_open_state(struct disk *d, struct job *j) {
    uint32_t from = kv_seq_snapshot(j->slots);
    uint32_t to = from == KV_NO_SNAPSHOT ? from : kv_snapshot_acquire(d->opts.host, NULL);

    if (to == KV_NO_SNAPSHOT)
        return false;
    kv_snapshot_hold(d->slots, from);
    j->state = to;
    j->state_slot = from;
    return true;
}

/* Takes pages of both pagers and the snapshots after them. Returns false if nothing is to be
 * read. */
static bool open_load(struct disk *d, struct job *j) {
    uint32_t t = d->opts.pager.page_tokens;

    j->active = true;
    j->n_tokens = disk_has(d, &j->share, j->tokens, j->n_tokens);
    if (kv_seq_new(&j->slots, d->slots, &j->share) < 0 ||
        kv_seq_new(&j->host, d->opts.host, &j->share) < 0)
        return false;
    uint32_t end = kv_seq_attach(j->slots, j->tokens, j->n_tokens) / t;
    uint32_t from = kv_seq_attach(j->host, j->tokens, end * t) / t;
    bool whole = d->state_pages > 0;
    if (whole &&
        (end == 0 || (end == from && kv_seq_snapshot_at(j->host, end - 1) != KV_NO_SNAPSHOT)))
        return false;
    end = MIN(end, from + kv_pager_available(d->opts.host));
    if (whole && (end * t < j->n_tokens || !disk_open_state(d, j)))
        return false;
    j->n_tokens = end * t;
    return (whole || end > from) && kv_seq_grow(j->host, end * t) == 0;
}

/* Gives the snapshot behind the last page of @j to the thread. */
static void read_state(struct disk *d, struct job *j) {
    j->io.slot[0] = store_n_slots(d->store) + j->state_slot;
    j->io.bytes[0] = disk_snapshot_bytes(d, j->state);
    j->io.head[0].id = d->id[j->io.slot[0]];
    j->io.n = 1;
    disk_submit(d, j);
}

/* Gives the next pages of @j, or the snapshot after them, to the thread. Returns false if all is
 * read. */
static bool read_more(struct disk *d, struct job *j) {
    uint32_t t = d->opts.pager.page_tokens, n_pages;
    uint32_t from = kv_seq_committed(j->host) / t, end = j->n_tokens / t;
    const kv_page *slot = kv_seq_pages(j->slots, &n_pages);
    const kv_page *page = kv_seq_pages(j->host, &n_pages);

    if (from >= end && j->state != KV_NO_SNAPSHOT) {
        read_state(d, j);
        return true;
    }
    if (from >= end)
        return false;
    j->io.n = MIN(end - from, DISK_IO_PAGES);
    for (uint32_t i = 0; i < j->io.n; i++) {
        j->io.slot[i] = slot[from + i];
        j->io.bytes[i] = disk_page_bytes(d, page[from + i]);
        j->io.head[i].id = d->id[slot[from + i]];
    }
    disk_submit(d, j);
    return true;
}

static void disk_learn(struct disk *d, const struct disk_io *io, uint32_t n_pages) {
    if (io->ns > 0 && n_pages > 0)
        d->read_ns += LEARN * ((double)io->ns / n_pages - d->read_ns);
}

/* Reads another state for @j, whose state is damaged: the last one in the file after at most
 * @n_tokens tokens whose pages were read, unless host memory has a state of at least that position.
 * Returns false if there is none. */
static bool fall_back(struct disk *d, struct job *j, uint32_t n_tokens) {
    uint32_t n = j->cancelled ? 0 : disk_has(d, &j->share, j->tokens, n_tokens);

    if (d->state_pages == 0 ||
        n <= kv_pager_match(d->opts.host, &j->share, j->tokens, n_tokens).n_tokens)
        return false;
    kv_seq_truncate(j->slots, n);
    j->n_tokens = n;
    return disk_open_state(d, j);
}

/* Takes a state from the thread; it is the end of the job unless it is damaged. Returns false when
 * the job is finished. */
static bool finish_read_state(struct disk *d, struct job *j) {
    uint32_t slot = j->state_slot, state = j->state;

    disk_learn(d, &j->io, j->io.n_done * d->state_pages);
    if (j->io.answer == 0) {
        d->opts.memory.set_snapshot(d->opts.memory.ctx, state, j->n_tokens);
        kv_snapshot_release(d->slots, slot);
        kv_seq_attach_snapshot_at(j->host, state, j->n_tokens / d->opts.pager.page_tokens - 1);
        j->state = j->state_slot = KV_NO_SNAPSHOT;
        d->opts.counts->n_loaded_snapshots++;
        return false;
    }
    d->opts.counts->n_bad++;
    disk_note(d, "a state in the file is damaged and is computed again", MIN(j->io.answer, 0));
    release_states(d, j);
    kv_pager_forget_snapshot(d->slots, slot); /* other jobs that read it will find the damage too */
    return fall_back(d, j, j->n_tokens - 1);
}

/* Takes read pages from the thread. Returns false when the job is finished. */
static bool finish_read(struct disk *d, struct job *j) {
    uint32_t t = d->opts.pager.page_tokens, from = kv_seq_committed(j->host);
    uint32_t n_tokens = from + j->io.n_done * t;

    if (from >= j->n_tokens)
        return finish_read_state(d, j);
    kv_seq_commit(j->host, j->tokens, n_tokens);
    d->opts.counts->n_loaded_tokens += n_tokens - from;
    disk_learn(d, &j->io, j->io.n_done);
    if (j->io.answer == 0)
        return !j->cancelled;
    d->opts.counts->n_bad++;
    disk_note(d, "a page of the file is damaged and is computed again", MIN(j->io.answer, 0));
    kv_page bad = j->io.slot[j->io.n_done];
    release_states(d, j);
    kv_seq_truncate(j->slots, n_tokens);
    kv_pager_forget(d->slots, bad); /* other jobs that read it will find the damage too */
    return fall_back(d, j, n_tokens);
}

static void end_load(struct disk *d, struct job *j) {
    uint64_t id = j->id;
    bool cancelled = j->cancelled;

    disk_end_job(d, j);
    if (!cancelled)
        d->opts.loaded(d->opts.ctx, id);
}

/* ---- steps of jobs ---- */

static bool handle_mail(struct disk *d) {
    struct disk_io *io = disk_thread_receive(&d->thread);

    if (!io)
        return false;
    struct job *j = CONTAINER_OF(io, struct job, io);
    assert(j->under_way && j->io.n_done <= j->io.n);
    j->under_way = false;
    if (j->io.what == IO_WRITE && (!finish_written(d, j) || !write_more(d, j)))
        disk_end_job(d, j);
    else if (j->io.what == IO_READ && (!finish_read(d, j) || !read_more(d, j)))
        end_load(d, j);
    return true;
}

static void begin_loads(struct disk *d, uint64_t decided, uint64_t waited) {
    uint32_t n = 0;

    LIST_FOREACH_ENTRY(j, &d->loads, struct job, link) {
        if (n++ == DISK_LOADS)
            return;
        if (j->under_way)
            continue;
        bool opened = j->active || open_load(d, j);
        if (opened && !j->io.n && j->after == 0)
            j->after = decided; /* steps decided so far may still copy from the pages just taken */
        if (!opened || (j->after <= waited && !read_more(d, j)))
            end_load(d, j);
    }
}

static void begin_save(struct disk *d, uint64_t waited) {
    while (!list_empty(&d->saves)) {
        struct job *j = LIST_ENTRY(d->saves.next, struct job, link);

        if (j->under_way || j->after > waited)
            return;
        if (write_more(d, j))
            return;
        disk_end_job(d, j);
    }
}

void disk_step(struct disk *d, uint64_t decided, uint64_t waited) {
    disk_thread_clear(&d->thread);
    do {
        while (handle_mail(d))
            ;
        begin_loads(d, decided, waited);
        begin_save(d, waited);
    } while (d->opts.file.in_step && handle_mail(d));
}

bool disk_is_saving(const struct disk *d) {
    return !list_empty(&d->saves);
}

void disk_sleep(const struct disk *d, int ms) {
    struct pollfd p = {.fd = d->thread.fd, .events = POLLIN};

    poll(&p, 1, ms);
}

int disk_fd(const struct disk *d) {
    return d->thread.fd;
}

uint32_t disk_n_pages(const struct disk *d) {
    return store_n_slots(d->store) - disk_room_withheld(&d->room);
}

uint32_t disk_held(const struct disk *d, bool states) {
    const struct list *jobs[] = {&d->saves, &d->loads};
    uint32_t n = 0;

    for (uint32_t i = 0; i < ARRAY_SIZE(jobs); i++)
        LIST_FOREACH_ENTRY(j, jobs[i], const struct job, link) {
            n += states ? j->state != KV_NO_SNAPSHOT : j->host != NULL;
        }
    return n;
}
