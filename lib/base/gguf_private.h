#pragma once

/*
 * gguf_private - shared by the parts of the GGUF reader: the cursor through which every byte of a
 * header is read, the index of names, and the structures behind gguf.h.
 */

#include <time.h>

#include "base/arena.h"
#include "base/gguf.h"
#include "base/hash_index.h"

/* Limits the header bytes of all shards together. The largest vocabularies known take 16 MiB. This
 * one number bounds the memory and the time that a hostile file can cost: strings, arrays and
 * counts lie inside it, and the index of a string array takes at most half of the bytes that it
 * indexes. */
/* End of messages about files that are shorter than their headers claim. */
#define GGUF_WHOLE ": was it copied or downloaded whole?"
#define GGUF_CHANGED "the file was changed while it was read"

#define GGUF_HEADER_MAX (32u << 20)
#define GGUF_KV_MAX 65536u
#define GGUF_TENSORS_MAX 65536u
#define GGUF_SHARDS_MAX 512u
#define GGUF_NAME_MAX 63u /* most bytes of a tensor's name */
#define GGUF_KEY_MAX 1024u

/* A file of the model. Invariants: copied <= mapped <= size; copied is a multiple of the page size,
 * or the size. A file of another format (gguf_pieces.c) has no header: copied is 0. */
struct gguf_shard {
    int fd;
    /* the first `copied` bytes are private, the rest is mapped from the file */
    const uint8_t *map;
    /* bytes of the file; mapped bytes; mapped bytes in private memory */
    size_t size, mapped, copied;
    /* time of the file's last change when it was opened */
    struct timespec changed;
    /* offsets of the end of the directory and of the begin of the tensors' data */
    size_t header_end, data_start;
};

/* Makes at least the first @end bytes private. They are read from the file and not through its
 * mapping, so that a file that is cut off meanwhile is an error and no signal. Returns 0, -EAGAIN
 * if the file has become shorter, or -errno. */
int gguf_shard_read(struct gguf_shard *s, size_t end);

/* Reads the header of @file, never past @end. The offset in a message is @at, the position in the
 * file. An @end before the file's own is the limit on headers. */
struct gguf_cursor {
    struct gguf_shard *file;
    size_t at, end;
    /* the file's number in the model */
    uint32_t shard, n_shards;
    struct err *err;
};

/* Returns the bytes between the cursor and its end. */
static inline size_t gguf_cursor_remaining(const struct gguf_cursor *c) {
    return c->end - c->at;
}

/* Returns -EINVAL with err "offset @at: ..." and the number of the shard. */
int gguf_cursor_fail_at(const struct gguf_cursor *c, size_t at, const char *fmt, ...) PRINTF(3, 4);

/* The functions below read at the cursor and advance it. They return 0, -EINVAL, or an error of
 * gguf_shard_read(), with the cursor's err filled and *out unchanged. @what names the item for the
 * message. gguf_cursor_read() returns a pointer to @n bytes of the file, which are private. */
int gguf_cursor_read(struct gguf_cursor *c, size_t n, const uint8_t **out, const char *what);
int gguf_cursor_u32(struct gguf_cursor *c, uint32_t *out, const char *what);
int gguf_cursor_u64(struct gguf_cursor *c, uint64_t *out, const char *what);
int gguf_cursor_str(struct gguf_cursor *c, struct gguf_str *out, const char *what);
/* Reads the name of a key or tensor: not empty, at most @max bytes, printable ASCII (because it
 * will be printed). */
int gguf_cursor_name(struct gguf_cursor *c, size_t max, struct gguf_str *out, const char *what);

/* Index of names by a keyed hash, so that no choice of names makes it slow.
 * Items are numbers; @name gives the name of one. */
struct gguf_index {
    uint64_t seed[2];
    struct hash_index items;
    struct gguf_str (*name)(const void *owner, uint32_t item);
};

/* Makes room for @n items, and the key. Returns 0 or -ENOMEM. */
int gguf_index_reserve(struct gguf_index *x, uint32_t n);
/* Returns the item called @name, or -1 if there is none; @owner is passed to name(). */
int64_t gguf_index_find(const struct gguf_index *x, const void *owner, struct gguf_str name);
/* Enters a name that is not in the index yet, after gguf_index_reserve(). Returns 0 or -ENOMEM. */
int gguf_index_add(struct gguf_index *x, struct gguf_str name, uint32_t item);

/* An array value: @data points into the header. */
struct gguf_array {
    enum gguf_type type;
    uint64_t n;
    const uint8_t *data;
    /* Arrays of strings: n + 1 offsets of the length fields from data; NULL for other types.
     * Lengths are read from here and not from the mapping, which other processes can change. */
    uint32_t *offset;
};

/* A key and its value: `value` points to a scalar (else NULL), `str` and `array` are set by
 * type. */
struct gguf_kv {
    struct gguf_str key;
    enum gguf_type type;
    const uint8_t *value;
    struct gguf_str str;
    struct gguf_array array;
    /* the operator has given the value (gguf_override.h) */
    bool overridden;
};

/* Invariant: the index has kv[0 .. n), and no key twice. */
struct gguf_meta {
    struct gguf_kv *kv;
    uint32_t n;
    struct gguf_index index;
};

/* Reads @n_kv keys and values at the cursor to @m, which is zeroed. Returns 0, -ENOMEM, or
 * -EINVAL. */
int gguf_meta_parse(struct gguf_meta *m, struct gguf_cursor *c, uint32_t n_kv);
void gguf_meta_deinit(struct gguf_meta *m);
/* Returns the key and its value; NULL: there is no such key. */
const struct gguf_kv *gguf_meta_find(const struct gguf_meta *m, const char *key);
/* Returns the bytes of one value of @type; 0: the type is not a scalar of fixed size. */
size_t gguf_scalar_bytes(uint32_t type);
/* Reads the number of @type at @p as type @as into @out. Returns false, with @out undefined, where
 * gguf_array_read() ends. */
bool gguf_number_read(enum gguf_type type, const uint8_t *p, enum gguf_type as, void *out);
/* Reads a number like gguf_u32(). */
int gguf_meta_u32(const struct gguf_meta *m, const char *key, uint32_t *out);

/* Invariants: header_bytes <= GGUF_HEADER_MAX; the index has tensor[0 .. n_tensors), whose data lie
 * inside their shards. */
struct gguf {
    uint32_t version, n_shards, n_tensors;
    struct gguf_shard *shard;
    /* metadata of the first shard */
    struct gguf_meta meta;
    struct tensor *tensor;
    /* finds tensors by name */
    struct gguf_index index;
    /* pieces: arrays of tensor.piece */
    struct arena names, pieces;
    /* bytes of headers of all shards that were read so far */
    size_t header_bytes;
};

/* Appends the @n tensors of the shard whose directory starts at the cursor. Returns 0, -ENOMEM, or
 * -EINVAL with the cursor's err; after a failure only gguf_free() is allowed. */
int gguf_tensors_parse(struct gguf *g, struct gguf_cursor *c, uint32_t n, uint32_t alignment);

/* Returns true if the metadata list tensors whose rows lie in files of another format. */
bool gguf_has_pieces(const struct gguf *g);
/* Appends the tensors of that list, whose files are the shards behind the first. Returns 0,
 * -ENOMEM, or -EINVAL with @err; after a failure only gguf_free() is allowed. */
int gguf_pieces_parse(struct gguf *g, struct err *err);
