#include "base/gguf_build.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/result.h"
#include "base/try.h"

#define ALIGNMENT 32u

void gguf_build_init(struct gguf_build *b, size_t data_max) {
    *b = (struct gguf_build){0};
    gguf_keys_init(&b->keys);
    buf_init(&b->data, data_max);
}

void gguf_build_deinit(struct gguf_build *b) {
    gguf_keys_deinit(&b->keys);
    buf_deinit(&b->data);
    free(b->tensor);
    free(b->piece);
}

static int build_word(struct buf *to, uint32_t v) {
    v = htole32(v);
    return buf_add(to, &v, sizeof(v));
}

static int build_long(struct buf *to, uint64_t v) {
    v = htole64(v);
    return buf_add(to, &v, sizeof(v));
}

/* Makes room for another tensor. Returns 0 or -ENOMEM. */
static int build_reserve(struct gguf_build *b) {
    return enomem_unless(ARRAY_GROW(b->tensor, b->n_tensors, b->tensors_cap, 64));
}

int gguf_build_tensor(struct gguf_build *b, const struct gguf_built *t, size_t n_bytes,
                      uint8_t **data) {
    size_t room = round_up(n_bytes, (size_t)ALIGNMENT);

    TRY(build_reserve(b));
    TRY(buf_reserve(&b->data, room));
    struct gguf_built *own = &b->tensor[b->n_tensors++];
    *own = *t;
    own->n_pieces = 0;
    own->data_at = b->data.len;
    *data = (uint8_t *)b->data.data + b->data.len;
    memset(*data, 0, room + 1);
    b->data.len += room;
    return 0;
}

int gguf_build_scattered(struct gguf_build *b, const struct gguf_built *t,
                         const struct gguf_piece *piece, uint32_t n) {
    assert(n > 0);
    TRY(build_reserve(b));
    struct gguf_built *own = &b->tensor[b->n_tensors++];
    *own = *t;
    own->first_piece = b->n_pieces;
    own->n_pieces = n;
    for (uint32_t i = 0; i < n; i++) {
        if (!ARRAY_GROW(b->piece, b->n_pieces, b->pieces_cap, 256))
            return -ENOMEM;
        b->piece[b->n_pieces++] = piece[i];
    }
    return 0;
}

/* Members of the list of tensors in other files, each an array of keys; see gguf_pieces.c. */
enum build_member {
    MEMBER_TYPE,
    MEMBER_PIECES,
    MEMBER_ROWS,
    MEMBER_INTERLEAVE,
    MEMBER_HALVED,
    N_MEMBERS
};

static uint64_t build_member_of(const struct gguf_built *t, int i) {
    const uint64_t member[N_MEMBERS] = {
        [MEMBER_TYPE] = t->type,       [MEMBER_PIECES] = t->n_pieces,
        [MEMBER_ROWS] = t->piece_rows, [MEMBER_INTERLEAVE] = t->interleave,
        [MEMBER_HALVED] = t->halved,
    };

    return member[i];
}

/* Adds array @key with a number of each tensor in other files, of which there are @n. */
static int build_list(struct gguf_build *b, const char *key, uint64_t n, int member) {
    TRY(gguf_keys_array(&b->keys, key, GGUF_U64, n));
    for (uint32_t i = 0; i < b->n_tensors; i++)
        if (b->tensor[i].n_pieces)
            TRY(build_long(&b->keys.kv, build_member_of(&b->tensor[i], member)));
    return 0;
}

static int build_dims(struct gguf_build *b, uint64_t n) {
    TRY(gguf_keys_array(&b->keys, "weft.tensor.dims", GGUF_U64, 4 * n));
    for (uint32_t i = 0; i < b->n_tensors; i++)
        for (uint32_t d = 0; b->tensor[i].n_pieces && d < 4; d++)
            TRY(build_long(&b->keys.kv, d < b->tensor[i].n_dims ? b->tensor[i].ne[d] : 1));
    return 0;
}

/* Adds the layouts of parts, as REPACK_NUMBERS numbers of each tensor. */
static int build_repacks(struct gguf_build *b, uint64_t n) {
    uint32_t number[REPACK_NUMBERS];

    TRY(gguf_keys_array(&b->keys, "weft.tensor.repack", GGUF_U32, REPACK_NUMBERS * n));
    for (uint32_t i = 0; i < b->n_tensors; i++) {
        memcpy(number, &b->tensor[i].repack, sizeof(number));
        for (uint32_t k = 0; b->tensor[i].n_pieces && k < REPACK_NUMBERS; k++)
            TRY(gguf_keys_add_u32(&b->keys, number[k]));
    }
    return 0;
}

/* Adds the keys that list the tensors in other files. */
static int build_list_scattered(struct gguf_build *b) {
    static const char *const names[N_MEMBERS] = {"weft.tensor.types", "weft.tensor.pieces",
                                                 "weft.tensor.rows", "weft.tensor.interleave",
                                                 "weft.tensor.halved"};
    uint64_t n = 0;

    for (uint32_t i = 0; i < b->n_tensors; i++)
        n += b->tensor[i].n_pieces > 0;
    TRY(gguf_keys_array(&b->keys, "weft.tensor.names", GGUF_STRING, n));
    for (uint32_t i = 0; i < b->n_tensors; i++)
        if (b->tensor[i].n_pieces)
            TRY(gguf_keys_add_str(&b->keys, b->tensor[i].name, strlen(b->tensor[i].name)));
    for (int k = 0; k < N_MEMBERS; k++)
        TRY(build_list(b, names[k], n, k));
    TRY(build_dims(b, n));
    TRY(build_repacks(b, n));
    TRY(gguf_keys_array(&b->keys, "weft.piece.files", GGUF_U32, b->n_pieces));
    for (uint32_t i = 0; i < b->n_pieces; i++)
        TRY(gguf_keys_add_u32(&b->keys, b->piece[i].file));
    TRY(gguf_keys_array(&b->keys, "weft.piece.offsets", GGUF_U64, b->n_pieces));
    for (uint32_t i = 0; i < b->n_pieces; i++)
        TRY(build_long(&b->keys.kv, b->piece[i].offset));
    return 0;
}

/* Adds the directory's entry of a tensor of the file. */
static int build_entry(const struct gguf_built *t, struct buf *out) {
    TRY(build_long(out, strlen(t->name)));
    TRY(buf_add_str(out, t->name));
    TRY(build_word(out, t->n_dims));
    for (uint32_t d = 0; d < t->n_dims; d++)
        TRY(build_long(out, t->ne[d]));
    TRY(build_word(out, t->type));
    return build_long(out, t->data_at);
}

/* Writes header, keys and directory to @out, padded to the alignment. */
static int build_head(const struct gguf_build *b, struct buf *out) {
    static const char padding[ALIGNMENT];
    uint64_t n_own = 0;

    for (uint32_t i = 0; i < b->n_tensors; i++)
        n_own += b->tensor[i].n_pieces == 0;
    TRY(buf_add_str(out, "GGUF"));
    TRY(build_word(out, 3));
    TRY(build_long(out, n_own));
    TRY(build_long(out, b->keys.n));
    TRY(buf_add(out, b->keys.kv.data, b->keys.kv.len));
    for (uint32_t i = 0; i < b->n_tensors; i++)
        if (!b->tensor[i].n_pieces)
            TRY(build_entry(&b->tensor[i], out));
    return buf_add(out, padding, round_up(out->len, (size_t)ALIGNMENT) - out->len);
}

/* Writes all bytes of @of to @fd. Returns 0 or -errno. */
static int build_write(int fd, const struct buf *of) {
    for (size_t at = 0; at < of->len;) {
        ssize_t n = write(fd, of->data + at, of->len - at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n < 0)
                return -errno;
            return -EIO;
        }
        at += (size_t)n;
    }
    return 0;
}

/* Writes the file to @fd, and seals it. Returns 0 or -errno. */
static int build_fill(int fd, const struct buf *head, const struct buf *data) {
    TRY(build_write(fd, head));
    TRY(build_write(fd, data));
    return errno_if_negative(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK));
}

int gguf_build_finish(struct gguf_build *b) {
    CLEANUP(buf_deinit) struct buf head = {.max = SIZE_MAX / 2};

    TRY(build_list_scattered(b));
    TRY(build_head(b, &head));
    int fd = memfd_create("weft-model", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    int r = build_fill(fd, &head, &b->data);
    /* Each daemon makes the file anew: it is the same model if the bytes are the same. */
    if (r == 0 && futimens(fd, (struct timespec[2]){{0}}) < 0)
        r = -errno;
    if (r < 0) {
        close(fd);
        return r;
    }
    return fd;
}
