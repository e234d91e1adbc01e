#include "daemon/workers/kept.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/log.h"

/* Invariants: an empty file has users; a file without users stays only if it was inherited; `kept`
 * is set once; a bad file gets no further users. */
struct kept_file {
    struct kept *of;
    /* in kept.files */
    struct list link;
    int fd;
    /* name at the service manager */
    char name[KEPT_NAME_MAX];
    uint8_t key[ENGINE_KEEP_KEY];
    uint64_t n_bytes;
    uint32_t n_users;
    /* kept: sealed, and stored at the service manager */
    bool kept, bad;
    /* passed to the next daemon in an upgrade */
    bool passed;
};

struct kept {
    struct kept_opts opts;
    struct list files;
    /* held: files are stored at the service manager by kept_announce() */
    bool leaving, held;
    /* held: names to be forgotten then, each ended by NUL */
    struct buf forgotten;
};

int kept_new(struct kept **out, const struct kept_opts *o) {
    struct kept *k = calloc(1, sizeof(*k));

    if (!k)
        return -ENOMEM;
    k->opts = *o;
    list_init(&k->files);
    buf_init(&k->forgotten, 65536);
    *out = k;
    return 0;
}

static void kept_drop(struct kept_file *f) {
    struct kept *k = f->of;

    assert(f->n_users == 0 || k->leaving);
    if (f->kept && k->held)
        /* without memory the file stays too long */
        buf_add(&k->forgotten, f->name, strlen(f->name) + 1);
    else if (f->kept && !k->leaving)
        k->opts.forget(f->name);
    list_remove(&f->link);
    close(f->fd);
    free(f);
}

struct kept *kept_free(struct kept *k) {
    if (!k)
        return NULL;
    k->leaving = true;
    LIST_FOREACH(i, &k->files)
    kept_drop(LIST_ENTRY(i, struct kept_file, link));
    buf_deinit(&k->forgotten);
    free(k);
    return NULL;
}

/* Appends a file for @fd, which it takes over. Returns NULL, with @fd closed, if memory is
 * short. */
static struct kept_file *kept_append(struct kept *k, int fd) {
    struct kept_file *f = calloc(1, sizeof(*f));

    if (!f) {
        close(fd);
        return NULL;
    }
    f->of = k;
    f->fd = fd;
    list_push_back(&k->files, &f->link);
    return f;
}

void kept_inherit(struct kept *k, int fd, const char *name) {
    struct kept_file *f = kept_append(k, fd);

    if (!f)
        return;
    snprintf(f->name, sizeof(f->name), "%s", name);
    f->kept = true;
    if (engine_keep_read(fd, f->key, &f->n_bytes) < 0)
        kept_drop(f);
}

struct kept_file *kept_claim(struct kept *k, const uint8_t key[ENGINE_KEEP_KEY]) {
    LIST_FOREACH_ENTRY(f, &k->files, struct kept_file, link) {
        if (!f->kept || f->bad || memcmp(f->key, key, sizeof(f->key)) != 0)
            continue;
        f->n_users++;
        return f;
    }
    struct stat st = {0};
    int fd = memfd_create("weft-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct kept_file *f = fd < 0 ? NULL : kept_append(k, fd);

    if (!f) {
        log_event(WLOG_WARN, "weights_not_kept", "error=\"%s\"", strerror(errno));
        return NULL;
    }
    fstat(fd, &st);
    snprintf(f->name, sizeof(f->name), KEPT_PREFIX "%llu", (unsigned long long)st.st_ino);
    memcpy(f->key, key, sizeof(f->key));
    f->n_users = 1;
    return f;
}

int kept_fd(const struct kept_file *f) {
    return f->fd;
}

bool kept_confirm(struct kept_file *f) {
    uint8_t key[ENGINE_KEEP_KEY];

    assert(f->n_users > 0);
    if (f->kept)
        return true;
    if (engine_keep_read(f->fd, key, &f->n_bytes) < 0 || memcmp(key, f->key, sizeof(key)) != 0)
        return false;
    f->kept = true;
    if (!f->of->held)
        f->of->opts.store(f->fd, f->name);
    return true;
}

void kept_release(struct kept_file *f, bool bad) {
    if (!f)
        return;
    assert(f->n_users > 0);
    f->bad |= bad;
    if (--f->n_users == 0)
        kept_drop(f);
}

static bool is_unclaimed(const struct kept_file *f, const uint8_t *but) {
    return f->n_users == 0 && !(but && memcmp(f->key, but, sizeof(f->key)) == 0);
}

uint64_t kept_unclaimed(const struct kept *k, const uint8_t *but) {
    uint64_t sum = 0;

    LIST_FOREACH_ENTRY(f, &k->files, const struct kept_file, link) {
        sum += is_unclaimed(f, but) ? f->n_bytes : 0;
    }
    return sum;
}

void kept_drop_unclaimed(struct kept *k, const uint8_t *but) {
    LIST_FOREACH(i, &k->files)
    if (is_unclaimed(LIST_ENTRY(i, struct kept_file, link), but))
        kept_drop(LIST_ENTRY(i, struct kept_file, link));
}

void kept_stop_passing(struct kept *k) {
    k->leaving = true;
}

int kept_pass(struct kept *k, int (*add)(void *ctx, int fd, const char *name), void *ctx) {
    int r = 0;

    LIST_FOREACH_ENTRY(f, &k->files, struct kept_file, link) {
        if (f->kept && !f->bad && r == 0)
            r = add(ctx, f->fd, f->name);
        f->passed = f->kept && !f->bad && r == 0;
    }
    return r;
}

void kept_hand_over(struct kept *k) {
    assert(!k->held); /* this process is the service's main process until then */
    LIST_FOREACH_ENTRY(f, &k->files, struct kept_file, link) {
        if (f->kept && !f->passed)
            k->opts.forget(f->name);
    }
    k->leaving = true;
}

void kept_hold(struct kept *k) {
    assert(k->forgotten.len == 0);
    k->held = true;
}

void kept_announce(struct kept *k) {
    k->held = false;
    for (size_t at = 0; at < k->forgotten.len; at += strlen(k->forgotten.data + at) + 1)
        k->opts.forget(k->forgotten.data + at);
    LIST_FOREACH_ENTRY(f, &k->files, const struct kept_file, link) {
        if (f->kept)
            k->opts.store(f->fd, f->name); /* has no effect for a file that is stored already */
    }
}
