#include "engine/keep.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sha256.h"
#include "engine/backend.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

static const char magic[8] = "weftkeep";

/* Adds the identity of a file: its metadata in the file system, and samples of its bytes, which
 * together determine the packed weights. The number of threads and the instruction set are left
 * out, since panels do not depend on them. */
static void keep_add_file(struct sha256 *s, const struct gguf *file) {
    uint8_t print[16];

    gguf_fingerprint(file, print);
    sha256_add(s, print, sizeof(print));
    /* The header of a folder is made anew by each daemon; the fingerprint has its bytes. */
    uint32_t first = 0;

    if (gguf_has(file, "weft.tensor.names") && gguf_n_shards(file) > 1)
        first = 1;
    for (uint32_t i = first; i < gguf_n_shards(file); i++) {
        struct stat st = {0};

        fstat(gguf_shard_fd(file, i), &st);
        const uint64_t words[] = {st.st_dev, st.st_ino, (uint64_t)st.st_size,
                                  (uint64_t)st.st_mtim.tv_sec, (uint64_t)st.st_mtim.tv_nsec};

        sha256_add(s, words, sizeof(words));
    }
}

void engine_keep_key(const struct gguf *file, const struct gguf *block,
                     uint8_t out[ENGINE_KEEP_KEY]) {
    struct sha256 s;
    char hex[65];

    sha256_init(&s);
    keep_add_file(&s, file);
    if (block)
        keep_add_file(&s, block);
    sha256_hex(&s, hex);
    memcpy(out, hex, ENGINE_KEEP_KEY);
}

/* Reads the header of a file that is sealed and was written by this engine. Returns 0 or
 * -EINVAL. */
static int read_header(int fd, struct keep_header *h) {
    uint8_t sources[20];
    struct stat st;

    backend_sources(&backend_cpu, NULL, sources);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) < 0 ||
        pread(fd, h, sizeof(*h), 0) != sizeof(*h) || memcmp(h->magic, magic, sizeof(magic)) != 0 ||
        memcmp(h->sources, sources, sizeof(sources)) != 0 || h->n_bytes != (uint64_t)st.st_size)
        return -EINVAL;
    return 0;
}

int engine_keep_read(int fd, uint8_t key[ENGINE_KEEP_KEY], uint64_t *n_bytes) {
    struct keep_header h;
    struct stat st;

    if (read_header(fd, &h) < 0 || fstat(fd, &st) < 0)
        return -EINVAL;
    memcpy(key, h.key, sizeof(h.key));
    *n_bytes = (uint64_t)st.st_blocks * 512;
    return 0;
}

void keep_open(struct keep *k, int fd, const struct gguf *file, const struct gguf *block,
               bool drafts) {
    struct keep_header *h = &k->header;
    struct stat st;
    uint8_t key[ENGINE_KEEP_KEY];

    *k = (struct keep){0};
    if (fd <= 0)
        return;
    engine_keep_key(file, block, key);
    if (read_header(fd, h) == 0 && memcmp(h->key, key, sizeof(key)) == 0 && h->drafts == drafts) {
        k->found = true;
        k->fd = fd;
        return;
    }
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals != 0 || fstat(fd, &st) < 0 || st.st_size != 0)
        return;
    k->fd = fd;
    *h = (struct keep_header){0};
    memcpy(h->magic, magic, sizeof(magic));
    memcpy(h->key, key, sizeof(key));
    h->drafts = drafts;
    backend_sources(&backend_cpu, NULL, h->sources);
}

/* Gives up keeping weights; blocks that exist stay valid. */
static int keep_disable(struct keep *k) {
    int r = -errno;

    k->fd = 0;
    k->found = false;
    if (r == 0)
        return -EINVAL;
    return r;
}

/* The mapping is private, because Linux before 6.7 regards every shared mapping of a sealed file as
 * writable. */
static int map_read_only(const struct keep *k, void *at, size_t size, uint64_t offset) {
    void *p = mmap(at, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, k->fd, (off_t)offset);

    if (p == MAP_FAILED)
        return -errno;
    return 0;
}

int keep_map(struct keep *k, void *at, size_t size) {
    uint64_t end = k->mapped + size;

    assert(k->fd > 0 && size % KEEP_PAGE == 0 && (uintptr_t)at % KEEP_PAGE == 0);
    errno = 0;
    if (k->found && (end > k->header.n_bytes || map_read_only(k, at, size, k->mapped) < 0))
        return keep_disable(k);
    if (!k->found && (ftruncate(k->fd, (off_t)end) < 0 ||
                      mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, k->fd,
                           (off_t)k->mapped) == MAP_FAILED))
        return keep_disable(k);
    k->mapped = end;
    return 0;
}

/* MADV_COLLAPSE makes a huge page even if the settings for memfds, as on most systems, have none;
 * one small page must exist, so little is copied. fallocate() reports missing memory as an error,
 * whereas touching a page without memory would kill the process. */
int keep_back(const struct keep *k, void *at, uint64_t offset) {
    off_t small = sysconf(_SC_PAGESIZE);

    assert(k->fd > 0 && !k->found && offset % KEEP_PAGE == 0);
    if (fallocate(k->fd, 0, (off_t)offset, small) < 0)
        return -ENOMEM;
    if (madvise(at, KEEP_PAGE, MADV_COLLAPSE) == 0)
        return 0;
    if (fallocate(k->fd, 0, (off_t)offset, KEEP_PAGE) < 0)
        return -ENOMEM;
    return 0;
}

void keep_describe(struct keep *k, void *at, uint64_t n_used) {
    assert(k->fd > 0 && !k->found);
    k->header.n_bytes = k->mapped;
    k->header.n_used = n_used;
    memcpy(at, &k->header, sizeof(k->header));
}

int keep_protect(const struct keep *k, void *at, size_t size, uint64_t offset) {
    return map_read_only(k, at, size, offset);
}

bool keep_seal(struct keep *k) {
    assert(!k->found);
    return k->fd > 0 && fcntl(k->fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) == 0;
}
