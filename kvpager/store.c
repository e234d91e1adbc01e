/*
 * store - the file:
 *
 *   0       struct file_head, then zeros up to BLOCK
 *   BLOCK   group 0: the slot of a state, then the slots of the fewest pages that are together at
 *                    least as large
 *           group 1, ...
 *
 * A slot is a block with struct slot_head, which has a page's tokens and pictures, then the bytes
 * of the page or state, up to a multiple of BLOCK. Where a slot lies does not depend on the size of
 * the file, which may change. Files of models without states have none of these slots; behind
 * STORE_STATES_MAX groups there are pages only.
 *
 * Numbers are in this machine's byte order, which is part of the identity. The file is sparse: a
 * slot of zeros is free.
 *
 * Writes are not forced to the disk, and their order does not matter. A slot's head has a checksum
 * of itself, keyed by the file's identity, and one of the page's bytes. If a crash or a faulty disk
 * leaves other bytes, a checksum is wrong and the slot counts as free. The bytes are written before
 * the head, so that a process that is killed in between leaves a slot whose head does not fit. The
 * checksums (XXH3) guard against accidents, not attacks: a process that may write the file may
 * write anything into it, and runs as the service's own user.
 */

#include "kvpager/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/try.h"

#define BLOCK 4096u
#define MAGIC UINT64_C(0x3330564B74666577) /* bytes "weftKV03" of the file as a number */
#define MAX_TOKENS 256u                    /* most tokens of a page */

/* The first block of the file. */
struct file_head {
    uint64_t magic, slot_bytes, page_bytes, page_tokens, state_bytes;
    XXH128_hash_t identity;
    /* checksum of the preceding members */
    uint64_t sum;
};

/* Describes a slot in the file; it takes one block, as the layout above shows. */
struct slot_head {
    uint64_t magic;
    /* checksum of the following members */
    uint64_t sum;
    XXH128_hash_t bytes;
    struct store_head head;
    /* n_tokens: tokens of the page, 0 for a state */
    uint32_t n_tokens, n_media;
    /* token ids, or negative numbers of pictures >= -n_media */
    int32_t tokens[MAX_TOKENS];
    struct kv_medium media[STORE_MEDIA];
};

static_assert(sizeof(struct slot_head) <= BLOCK, "a head fits in its block");
static_assert(sizeof(struct store_head) ==
                  2 * sizeof(struct store_id) + 2 * sizeof(uint64_t) + sizeof(struct kv_isolation),
              "no padding, which would be written as it is");

/* Immutable after store_open(), so threads may read it without a lock. */
struct store {
    int fd;
    uint32_t n_slots, n_states, page_tokens;
    /* number of pages of a group */
    uint32_t group;
    uint64_t page_bytes, slot_bytes;
    /* 0: the model has no states */
    uint64_t state_bytes, state_slot_bytes;
    XXH128_hash_t identity;
    /* the file had a name at the start, unlike one in memory */
    bool named;
};

/* Reads @n bytes at @at. Returns 0 or -errno; bytes beyond the end of the file read as zeros. */
static int store_read_all(int fd, void *out, size_t n, uint64_t at) {
    uint8_t *p = out;

    while (n > 0) {
        ssize_t r = pread(fd, p, n, (off_t)at);

        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0) {
            memset(p, 0, n);
            return 0;
        }
        p += r;
        at += (uint64_t)r;
        n -= (size_t)r;
    }
    return 0;
}

static int write_all(int fd, const void *data, size_t n, uint64_t at) {
    const uint8_t *p = data;

    while (n > 0) {
        ssize_t r = pwrite(fd, p, n, (off_t)at);

        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0) {
            if (r < 0)
                return -errno;
            return -EIO;
        }
        p += r;
        at += (uint64_t)r;
        n -= (size_t)r;
    }
    return 0;
}

static uint64_t store_group_bytes(const struct store *s) {
    return s->state_slot_bytes + s->group * s->slot_bytes;
}

/* Returns the offset in the file of slot @i, which holds a page or a state. */
static uint64_t store_offset(const struct store *s, uint32_t i) {
    if (i >= s->n_slots)
        return BLOCK + (i - s->n_slots) * store_group_bytes(s);
    uint64_t n_groups = MIN(i / s->group + 1, STORE_STATES_MAX);
    return BLOCK + n_groups * s->state_slot_bytes + i * s->slot_bytes;
}

static uint64_t store_bytes(const struct store *s, uint32_t i) {
    if (i < s->n_slots)
        return s->page_bytes;
    return s->state_bytes;
}

/* Computes the numbers of slots that fit into the @n_bytes behind the first block. */
static void store_count_slots(struct store *s, uint64_t n_bytes) {
    uint64_t n_groups = MIN(n_bytes / store_group_bytes(s), STORE_STATES_MAX);
    uint64_t rest = n_bytes - n_groups * store_group_bytes(s), n = n_groups * s->group;

    if (n_groups == STORE_STATES_MAX)
        n += rest / s->slot_bytes;
    else if (rest > s->state_slot_bytes)
        n += (rest - s->state_slot_bytes) / s->slot_bytes;
    s->n_slots = (uint32_t)MIN(n, STORE_SLOTS_MAX);
    if (s->state_bytes)
        s->n_states = MIN((s->n_slots + s->group - 1) / s->group, STORE_STATES_MAX);
}

/* ---- opening ---- */

static void make_file_head(const struct store *s, struct file_head *h) {
    *h = (struct file_head){
        .magic = MAGIC,
        .slot_bytes = s->slot_bytes,
        .page_bytes = s->page_bytes,
        .page_tokens = s->page_tokens,
        .state_bytes = s->state_bytes,
        .identity = s->identity,
    };
    h->sum = XXH3_64bits(h, offsetof(struct file_head, sum));
}

/* Gives the file its size, and empties it if it has another identity. Returns as store_open(). */
static int claim_file(struct store *s) {
    struct file_head is, should;
    struct stat st;

    make_file_head(s, &should);
    if (fstat(s->fd, &st) < 0)
        return -errno;
    s->named = st.st_nlink > 0;
    TRY(store_read_all(s->fd, &is, sizeof(is), 0));
    bool same = memcmp(&is, &should, sizeof(is)) == 0;
    if (!same && ftruncate(s->fd, 0) < 0)
        return -errno;
    if (ftruncate(s->fd, (off_t)(store_offset(s, s->n_slots - 1) + s->slot_bytes)) < 0)
        return -errno;
    if (same)
        return 0;
    TRY(write_all(s->fd, &should, sizeof(should), 0));
    if (st.st_size == 0)
        return STORE_NEW;
    return STORE_CLEARED;
}

int store_open(struct store **out, const struct store_opts *o) {
    CLEANUP(store_freep) struct store *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    if (o->page_tokens == 0 || o->page_tokens > MAX_TOKENS || o->page_bytes == 0)
        return -EINVAL;
    s->fd = o->fd;
    s->page_tokens = o->page_tokens;
    s->page_bytes = o->page_bytes;
    s->slot_bytes = BLOCK + round_up(o->page_bytes, BLOCK);
    s->state_bytes = o->state_bytes;
    s->state_slot_bytes = o->state_bytes ? BLOCK + round_up(o->state_bytes, BLOCK) : 0;
    s->group = (uint32_t)MAX((s->state_slot_bytes + s->slot_bytes - 1) / s->slot_bytes, 1);
    s->identity = XXH3_128bits(o->identity, o->n_identity);
    store_count_slots(s, o->n_bytes - MIN(o->n_bytes, BLOCK));
    if (s->n_slots == 0)
        return -ENOSPC;
    int r = claim_file(s);
    if (r < 0)
        return r;
    *out = STEAL(s);
    return r;
}

struct store *store_free(struct store *s) {
    free(s);
    return NULL;
}

uint32_t store_n_slots(const struct store *s) {
    return s->n_slots;
}

uint32_t store_n_states(const struct store *s) {
    return s->n_states;
}

bool store_is_deleted(const struct store *s) {
    struct stat st;

    return s->named && fstat(s->fd, &st) == 0 && st.st_nlink == 0;
}

uint64_t store_slot_bytes(const struct store *s, uint32_t i) {
    if (i < s->n_slots)
        return s->slot_bytes;
    return s->state_slot_bytes;
}

/* ---- slots ---- */

/* Returns the checksum of a slot head from `bytes` on. The file's identity is part of it, so that a
 * slot of another file does not pass. */
static uint64_t store_sum(const struct store *s, const struct slot_head *h) {
    size_t from = offsetof(struct slot_head, bytes);

    return XXH3_64bits_withSeed((const uint8_t *)h + from, sizeof(*h) - from,
                                s->identity.low64 ^ s->identity.high64);
}

static uint32_t store_slot_tokens(const struct store *s, uint32_t i) {
    if (i < s->n_slots)
        return s->page_tokens;
    return 0;
}

static bool is_none(const struct store_id *id) {
    return id->run == 0 && id->n == 0;
}

/* Returns whether each row of a picture in the head is one of its pictures. */
static bool knows_media(const struct slot_head *h) {
    bool ok = h->n_media <= STORE_MEDIA;

    for (uint32_t i = 0; ok && i < h->n_tokens; i++)
        ok = h->tokens[i] >= -(int32_t)h->n_media;
    return ok;
}

/* Reads the head of a slot. Returns 0, STORE_FREE, STORE_BAD or -errno. */
static int read_slot_head(const struct store *s, uint32_t i, struct slot_head *h) {
    assert(i < s->n_slots + s->n_states);
    TRY(store_read_all(s->fd, h, sizeof(*h), store_offset(s, i)));
    if (h->magic == 0 && h->sum == 0)
        return STORE_FREE;
    bool good = h->magic == MAGIC && h->sum == store_sum(s, h) &&
                h->n_tokens == store_slot_tokens(s, i) && !is_none(&h->head.id) && knows_media(h);
    if (!good)
        return STORE_BAD;
    return 0;
}

int store_read_head(const struct store *s, uint32_t i, struct store_head *out, int32_t *tokens,
                    struct kv_medium media[static STORE_MEDIA]) {
    struct slot_head h;
    int r = read_slot_head(s, i, &h);

    if (r != 0)
        return r;
    *out = h.head;
    memcpy(media, h.media, h.n_media * sizeof(*media));
    if (i < s->n_slots)
        memcpy(tokens, h.tokens, s->page_tokens * sizeof(*tokens));
    return 0;
}

/* ---- bytes of pages and states ---- */

/* A slot that is being read or written. Invariants: either `to` or `from` is set; done <= the bytes
 * of the slot. */
struct store_io {
    const struct store *store;
    uint32_t slot;
    /* number of bytes that were read or written, and hashed */
    uint64_t done;
    /* to: memory for the bytes that are read; from: bytes to be written */
    void *to;
    const void *from;
    XXH3_state_t *hash;
    /* head that is written after the bytes, or that was read */
    struct slot_head head;
};

struct store_io *store_io_free(struct store_io *io) {
    if (!io)
        return NULL;
    XXH3_freeState(io->hash);
    free(io);
    return NULL;
}

static int new_io(struct store_io **out, const struct store *s, uint32_t i) {
    struct store_io *io = calloc(1, sizeof(*io));

    assert(i < s->n_slots + s->n_states);
    if (!io || !(io->hash = XXH3_createState())) {
        store_io_free(io);
        return -ENOMEM;
    }
    XXH3_128bits_reset(io->hash);
    io->store = s;
    io->slot = i;
    *out = io;
    return 0;
}

int store_read(struct store_io **out, const struct store *s, uint32_t i, const struct store_id *id,
               void *bytes) {
    struct store_io *io;

    TRY(new_io(&io, s, i));
    io->to = bytes;
    int r = read_slot_head(s, i, &io->head);
    if (r == 0 && memcmp(&io->head.head.id, id, sizeof(*id)) != 0)
        r = STORE_BAD;
    *out = r == 0 ? io : store_io_free(io);
    return r;
}

/* Puts a page's tokens into @h, with pictures numbered from the first picture of the page on. */
static void store_copy_tokens(struct slot_head *h, const int32_t *tokens,
                              const struct kv_medium *media) {
    int32_t first = 0;

    for (uint32_t i = 0; i < h->n_tokens; i++) {
        h->tokens[i] = tokens[i];
        if (tokens[i] >= 0)
            continue;
        first = h->n_media ? first : -1 - tokens[i];
        h->tokens[i] += first;
        assert(h->tokens[i] < 0 && h->tokens[i] >= -(int32_t)STORE_MEDIA);
        h->n_media = (uint32_t)-h->tokens[i];
    }
    if (h->n_media)
        memcpy(h->media, media + first, h->n_media * sizeof(*media));
}

int store_write(struct store_io **out, const struct store *s, uint32_t i,
                const struct store_head *head, const int32_t *tokens, const struct kv_medium *media,
                const void *bytes) {
    struct store_io *io;
    int r = new_io(&io, s, i);

    assert(!is_none(&head->id));
    if (r < 0)
        return r;
    io->from = bytes;
    io->head.magic = MAGIC; /* the other members are zero; there is no padding */
    io->head.head = *head;
    io->head.n_tokens = store_slot_tokens(s, i);
    store_copy_tokens(&io->head, tokens, media);
    *out = io;
    return 0;
}

/* Ends reading or writing after the last piece: checks the sum of the bytes, or writes the head. */
static int end_io(struct store_io *io) {
    XXH128_hash_t sum = XXH3_128bits_digest(io->hash);

    if (io->to) {
        if (!XXH128_isEqual(sum, io->head.bytes))
            return STORE_BAD;
        return 0;
    }
    io->head.bytes = sum;
    io->head.sum = store_sum(io->store, &io->head);
    return write_all(io->store->fd, &io->head, sizeof(io->head), store_offset(io->store, io->slot));
}

int store_go_on(struct store_io *io) {
    const struct store *s = io->store;
    uint64_t n = MIN(store_bytes(s, io->slot) - io->done, s->page_bytes);
    uint64_t at = store_offset(s, io->slot) + BLOCK + io->done;
    const uint8_t *bytes = (const uint8_t *)(io->to ? io->to : io->from) + io->done;

    if (io->to)
        TRY(store_read_all(s->fd, (uint8_t *)io->to + io->done, n, at));
    else
        TRY(write_all(s->fd, bytes, n, at));
    XXH3_128bits_update(io->hash, bytes, n);
    io->done += n;
    if (io->done < store_bytes(s, io->slot))
        return STORE_MORE;
    return end_io(io);
}
