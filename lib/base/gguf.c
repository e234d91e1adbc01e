/*
 * gguf - opens files: descriptors, mappings, shards, and the fingerprint.
 *
 * A file is read through one cursor (gguf_cursor.c) that cannot pass the end of the file nor the
 * limit on headers: metadata first (gguf_meta.c), then the directory of tensors (gguf_tensor.c).
 * Counts are compared with the bytes that remain before anything is allocated for them. Data must
 * lie in the order of the directory, each tensor padded to the alignment: overlap and gaps are then
 * impossible, and only the last end has to be compared with the end of the file.
 *
 * The whole file is mapped. The cursor reads the header into private pages that replace those of
 * the mapping at the same address, so pointers into the header stay valid even if the file changes,
 * and no file that is cut off meanwhile ends the process.
 */

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/gguf_private.h"
#include "base/try.h"

#define HEADER_MIN 24 /* bytes of magic, version and two counts */
/* least bytes of a key: length, one byte of a name, type, one byte of a value */
#define KV_MIN 14
#define TENSOR_MIN 33
#define READ_MIN 65536 /* bytes of a file that are read at once */

/* Maps @fd, which the shard takes over also on failure. */
static int shard_map(struct gguf_shard *s, int fd, struct err *err) {
    struct stat st;

    s->fd = fd;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISDIR(st.st_mode))
        return err_set(err, 0, NULL, "a folder, not a GGUF file");
    if (!S_ISREG(st.st_mode))
        return err_set(err, 0, NULL, "not a regular file");
    if (st.st_size < HEADER_MIN) {
        char magic[4];
        ssize_t n = pread(fd, magic, sizeof(magic), 0);

        if (n > 0 && memcmp(magic, "GGUF", (size_t)n) != 0)
            return err_set(err, 0, NULL, "not a GGUF file");
        return err_set(err, 0, NULL, "offset %lld: the file ends inside the GGUF header" GGUF_WHOLE,
                       (long long)st.st_size);
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

    if (p == MAP_FAILED) {
        int r = -errno;

        err_set(err, 0, NULL, "mapping %lld bytes: %s", (long long)st.st_size, strerror(-r));
        return r;
    }
    s->map = p;
    s->size = s->mapped = (size_t)st.st_size;
    s->changed = st.st_mtim;
    return 0;
}

static size_t page_up(size_t n) {
    return round_up(n, (size_t)sysconf(_SC_PAGESIZE));
}

/* Reads @n bytes of the file from @at. Returns 0, -EAGAIN if the file ends before, or -errno. */
static int read_all(int fd, uint8_t *out, size_t n, size_t at) {
    while (n > 0) {
        ssize_t got = pread(fd, out, n, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return -EAGAIN;
        out += got;
        at += (size_t)got;
        n -= (size_t)got;
    }
    return 0;
}

/* Reads twice as much as is there, so that the header costs few calls and mappings. */
int gguf_shard_read(struct gguf_shard *s, size_t end) {
    if (end <= s->copied)
        return 0;
    size_t from = s->copied, to = MAX(end, MAX(2 * from, (size_t)READ_MIN));
    size_t n = MIN(page_up(to), s->size) - from;
    void *copy = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (copy == MAP_FAILED)
        return -ENOMEM;
    int r = read_all(s->fd, copy, n, from);

    if (r == 0)
        mprotect(copy, n, PROT_READ);
    if (r == 0 && mremap(copy, n, n, MREMAP_MAYMOVE | MREMAP_FIXED,
                         (void *)(uintptr_t)(s->map + from)) == MAP_FAILED)
        r = -ENOMEM;
    if (r < 0) {
        munmap(copy, n);
        return r;
    }
    s->copied = from + n;
    return 0;
}

/* Maps the file again where more of it was read than its first @n bytes. Returns 0 or -ENOMEM. */
static int forget_rest(struct gguf_shard *s, size_t n) {
    size_t keep = MIN(page_up(n), s->size);

    if (keep < s->copied) {
        void *at = (void *)(uintptr_t)(s->map + keep);

        if (mmap(at, s->copied - keep, PROT_READ, MAP_PRIVATE | MAP_FIXED, s->fd, (off_t)keep) ==
            MAP_FAILED)
            return -ENOMEM;
    }
    s->copied = keep;
    return 0;
}

static bool shard_has_changed(const struct gguf_shard *s) {
    struct stat st;

    return fstat(s->fd, &st) < 0 || (size_t)st.st_size != s->size ||
           st.st_mtim.tv_sec != s->changed.tv_sec || st.st_mtim.tv_nsec != s->changed.tv_nsec;
}

/* Fails with a message that tells the kind of the file. Returns -EINVAL. A repository that was
 * cloned without Git LFS has texts of three lines under the names of its models; the address that a
 * browser shows downloads a page. */
static int not_gguf(struct gguf_cursor *c, const uint8_t *magic) {
    if (memcmp(magic, "vers", 4) == 0)
        return gguf_cursor_fail_at(c, 0,
                                   "not a GGUF file but, it seems, a pointer of Git LFS: run git "
                                   "lfs pull in its repository, or download the model itself");
    if (*magic == '<')
        return gguf_cursor_fail_at(c, 0,
                                   "not a GGUF file but, it seems, a web page: download the file "
                                   "that the page links to");
    return gguf_cursor_fail_at(c, 0, "not a GGUF file");
}

/* Parses the first 24 bytes: magic, version, and counts for which the remaining bytes have room. */
static int parse_head(struct gguf_cursor *c, uint32_t *version, uint32_t *n_tensors,
                      uint32_t *n_kv) {
    const uint8_t *magic;
    uint64_t tensors, kvs;

    TRY(gguf_cursor_read(c, 4, &magic, "the magic number"));
    if (memcmp(magic, "GGUF", 4) != 0)
        return not_gguf(c, magic);
    TRY(gguf_cursor_u32(c, version, "the version"));
    if ((*version & 0xFFFF) == 0)
        return gguf_cursor_fail_at(c, 4,
                                   "the file is big-endian; weft reads little-endian GGUF files");
    if (*version != 2 && *version != 3)
        return gguf_cursor_fail_at(c, 4, "GGUF version %u is not supported; versions 2 and 3 are",
                                   *version);
    TRY(gguf_cursor_u64(c, &tensors, "the number of tensors"));
    TRY(gguf_cursor_u64(c, &kvs, "the number of keys"));
    size_t left = gguf_cursor_remaining(c);

    if (tensors > GGUF_TENSORS_MAX || tensors > left / TENSOR_MIN)
        return gguf_cursor_fail_at(c, 8,
                                   "%llu tensors (limit %u) do not fit into %zu bytes" GGUF_WHOLE,
                                   (unsigned long long)tensors, GGUF_TENSORS_MAX, left);
    if (kvs > GGUF_KV_MAX || kvs > left / KV_MIN)
        return gguf_cursor_fail_at(c, 16,
                                   "%llu keys (limit %u) do not fit into %zu bytes" GGUF_WHOLE,
                                   (unsigned long long)kvs, GGUF_KV_MAX, left);
    *n_tensors = (uint32_t)tensors;
    *n_kv = (uint32_t)kvs;
    return 0;
}

/* Reads the number of @key; @def if the file lacks the key. Returns 0 or -EINVAL. */
static int known_key(const struct gguf_cursor *c, const struct gguf_meta *m, const char *key,
                     uint32_t def, uint32_t *out) {
    const struct gguf_kv *kv = gguf_meta_find(m, key);

    *out = def;
    if (!kv || gguf_meta_u32(m, key, out) == 0)
        return 0;
    return gguf_cursor_fail_at(c, (size_t)((const uint8_t *)kv->key.data - c->file->map),
                               "key '%s': must be a number in range", key);
}

/* Checks that the metadata call the file shard c->shard of @n_shards. */
static int check_split(const struct gguf_cursor *c, const struct gguf_meta *m, uint32_t n_shards) {
    uint32_t no, count;

    TRY(known_key(c, m, "split.count", 1, &count));
    TRY(known_key(c, m, "split.no", 0, &no));
    if (MAX(count, 1u) != n_shards)
        return gguf_cursor_fail_at(c, 0, "split.count is %u, but %u files were opened", count,
                                   n_shards);
    if (n_shards > 1 && no != c->shard)
        return gguf_cursor_fail_at(
            c, 0, "split.no is %u where %u is expected; the shards are named in the wrong order",
            no, c->shard);
    return 0;
}

/* Parses the directory of @n tensors that follows the metadata @m. */
static int parse_directory(struct gguf *g, struct gguf_cursor *c, const struct gguf_meta *m,
                           uint32_t n) {
    uint32_t alignment;

    if (!gguf_has_pieces(g) || c->n_shards == 1)
        TRY(check_split(c, m, c->n_shards));
    TRY(known_key(c, m, "general.alignment", 32, &alignment));
    if (alignment < 8 || alignment > 4096 || (alignment & (alignment - 1)))
        return gguf_cursor_fail_at(
            c, 0, "general.alignment is %u; it must be a power of two from 8 to 4096", alignment);
    if (n > GGUF_TENSORS_MAX - g->n_tensors)
        return gguf_cursor_fail_at(c, 8, "more than %u tensors", GGUF_TENSORS_MAX);
    return gguf_tensors_parse(g, c, n, alignment);
}

enum { PART_OF_SPLIT = 1 };

/* Parses the shard at the start of which @c stands into @g and @m. *n_shards = 0: the number is not
 * known yet, because the caller has opened one file. If that file is not a whole model, sets
 * *n_shards and returns PART_OF_SPLIT. */
static int parse_at(struct gguf *g, struct gguf_cursor *c, struct gguf_meta *m,
                    uint32_t *n_shards) {
    uint32_t version = 0, n_tensors = 0, n_kv = 0;

    TRY(parse_head(c, &version, &n_tensors, &n_kv));
    if (c->shard == 0)
        g->version = version;
    TRY(gguf_meta_parse(m, c, n_kv));
    if (*n_shards == 0) {
        TRY(known_key(c, m, "split.count", 1, n_shards));
        *n_shards = c->n_shards = MAX(*n_shards, 1u);
        if (*n_shards > 1)
            return PART_OF_SPLIT;
    }
    TRY(parse_directory(g, c, m, n_tensors));
    TRY(forget_rest(c->file, c->at));
    if (!shard_has_changed(c->file))
        return 0;
    err_set(c->err, 0, NULL, GGUF_CHANGED);
    return -EAGAIN;
}

/* Calls parse_at() for shard @i, whose metadata is kept if it is the first one. */
static int parse_shard(struct gguf *g, uint32_t i, uint32_t *n_shards, struct err *err) {
    struct gguf_shard *s = &g->shard[i];
    struct gguf_meta other = {0}, *m = i == 0 ? &g->meta : &other;
    struct gguf_cursor c = {
        .file = s,
        .end = MIN(s->size, GGUF_HEADER_MAX - g->header_bytes),
        .shard = i,
        .n_shards = *n_shards,
        .err = err,
    };

    assert(g->header_bytes <= GGUF_HEADER_MAX);
    int r = parse_at(g, &c, m, n_shards);
    g->header_bytes += c.at;
    gguf_meta_deinit(&other);
    return r;
}

/* Allocates a model of @n_shards files that are not open yet; NULL: no memory. */
static struct gguf *alloc(uint32_t n_shards) {
    CLEANUP(gguf_freep) struct gguf *g = calloc(1, sizeof(*g));

    if (!g)
        return NULL;
    arena_init(&g->names, (size_t)GGUF_TENSORS_MAX * 128);
    arena_init(&g->pieces, 4 * (size_t)GGUF_HEADER_MAX);
    g->shard = calloc(n_shards, sizeof(*g->shard));
    if (!g->shard)
        return NULL;
    g->n_shards = n_shards;
    for (uint32_t i = 0; i < n_shards; i++)
        g->shard[i].fd = -1;
    return STEAL(g);
}

/* Parses all shards of a model, which are mapped, and builds its index of tensors. */
static int parse_all(struct gguf *g, struct err *err) {
    uint32_t n_tensors;
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < g->n_shards; i++) {
        r = parse_shard(g, i, &g->n_shards, err);
        if (r == 0 && g->n_shards > 1 && gguf_has_pieces(g))
            return gguf_pieces_parse(g, err);
    }
    if (r < 0)
        return r;
    if (g->n_shards > 1) {
        r = gguf_u32(g, "split.tensors.count", &n_tensors);
        if (r == -EINVAL || (r == 0 && n_tensors != g->n_tensors))
            return err_set(err, 0, NULL,
                           "split.tensors.count differs from the %u tensors of the shards",
                           g->n_tensors);
    }
    return 0;
}

int gguf_open_fds(struct gguf **out, const int *fds, uint32_t n_fds, struct err *err) {
    if (n_fds < 1 || n_fds > GGUF_SHARDS_MAX)
        return err_set(err, 0, NULL, "%u files (limit %u)", n_fds, GGUF_SHARDS_MAX);
    CLEANUP(gguf_freep) struct gguf *g = alloc(n_fds);

    if (!g)
        return -ENOMEM;
    for (uint32_t i = 0; i < n_fds; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);

        if (fd < 0)
            return -errno;

        TRY(shard_map(&g->shard[i], fd, err));
    }
    TRY(parse_all(g, err));
    *out = STEAL(g);
    return 0;
}

/* O_NONBLOCK, because opening a FIFO must not wait for its other end */
static int open_map(struct gguf_shard *s, const char *path, struct err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

    if (fd < 0) {
        int r = -errno;

        err_set(err, 0, NULL, "%s: %s", path, strerror(-r));
        return r;
    }
    return shard_map(s, fd, err);
}

/* Opens all @n shards of a model; @path is one of them. Returns as gguf_open(). */
static int open_split(struct gguf **out, const char *path, uint32_t n, struct err *err) {
    char tail[32];
    if (n > GGUF_SHARDS_MAX)
        return err_set(err, 0, NULL, "split.count is %u; the limit is %u", n, GGUF_SHARDS_MAX);
    size_t len = strlen(path), tail_len = strlen("-00001-of-00001.gguf");

    /* "X-00002-of-00003.gguf": all shards have the same prefix */
    snprintf(tail, sizeof(tail), "-of-%05u.gguf", n);
    if (len < tail_len || path[len - tail_len] != '-' ||
        strcmp(path + len - strlen(tail), tail) != 0)
        return err_set(err, 0, NULL,
                       "this is a shard of a split model; its name must end in -NNNNN%s, and the "
                       "other shards must be in the same folder",
                       tail);
    CLEANUP(gguf_freep) struct gguf *g = alloc(n);

    if (!g)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++) {
        CLEANUP(freep) char *name = NULL;

        if (asprintf(&name, "%.*s-%05u%s", (int)(len - tail_len), path, i + 1, tail) < 0)
            return -ENOMEM;

        TRY(open_map(&g->shard[i], name, err));
    }
    TRY(parse_all(g, err));
    *out = STEAL(g);
    return 0;
}

int gguf_open(struct gguf **out, const char *path, struct err *err) {
    CLEANUP(gguf_freep) struct gguf *g = alloc(1);
    uint32_t n_shards = 0;

    if (!g)
        return -ENOMEM;
    TRY(open_map(&g->shard[0], path, err));
    int r = parse_shard(g, 0, &n_shards, err);

    if (r == PART_OF_SPLIT)
        return open_split(out, path, n_shards, err);
    if (r < 0)
        return r;
    *out = STEAL(g);
    return 0;
}

bool gguf_has_changed(const struct gguf *g) {
    bool changed = false;

    for (uint32_t i = 0; i < g->n_shards && !changed; i++)
        changed = shard_has_changed(&g->shard[i]);
    return changed;
}

void gguf_drop_data(struct gguf *g) {
    for (uint32_t i = 0; i < g->n_shards; i++) {
        struct gguf_shard *s = &g->shard[i];

        assert(s->copied <= s->mapped && s->mapped <= s->size);
        if (s->mapped > s->copied)
            munmap((void *)(uintptr_t)(s->map + s->copied), s->mapped - s->copied);
        s->mapped = s->copied;
    }
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        g->tensor[i].data = NULL;
        g->tensor[i].piece = NULL;
    }
}

int gguf_copy_data(struct gguf *g) {
    int r;

    for (uint32_t i = 0; i < g->n_shards; i++)
        if ((r = gguf_shard_read(&g->shard[i], g->shard[i].size)) != 0)
            return r;
    return 0;
}

struct gguf *gguf_free(struct gguf *g) {
    if (!g)
        return NULL;
    for (uint32_t i = 0; g->shard && i < g->n_shards; i++) {
        if (g->shard[i].map && g->shard[i].mapped > 0)
            munmap((void *)(uintptr_t)g->shard[i].map, g->shard[i].mapped);
        if (g->shard[i].fd >= 0)
            close(g->shard[i].fd);
    }
    free(g->shard);
    gguf_meta_deinit(&g->meta);
    free(g->tensor);
    hash_index_deinit(&g->index.items);
    arena_deinit(&g->names);
    arena_deinit(&g->pieces);
    free(g);
    return NULL;
}

uint32_t gguf_version(const struct gguf *g) {
    return g->version;
}

uint32_t gguf_n_shards(const struct gguf *g) {
    return g->n_shards;
}

int gguf_shard_fd(const struct gguf *g, uint32_t shard) {
    assert(shard < g->n_shards);
    return g->shard[shard].fd;
}

uint64_t gguf_bytes(const struct gguf *g) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < g->n_shards; i++)
        sum += g->shard[i].size;
    return sum;
}
