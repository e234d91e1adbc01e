#pragma once

/*
 * gguf_keys - writes keys and values in the binary form of a GGUF header, for models whose
 * metadata come from other files. gguf_meta_parse() reads them; a whole file without tensors is
 * the header of gguf_keys_file().
 *
 * Every function returns 0, -ENOMEM, or -EMSGSIZE: the keys would exceed GGUF's limit of headers.
 */

#include "base/buf.h"
#include "base/gguf.h"

struct gguf_keys {
    /* keys and values, one after another */
    struct buf kv;
    /* number of keys */
    uint32_t n;
};

void gguf_keys_init(struct gguf_keys *k);   /* begins with no keys */
void gguf_keys_deinit(struct gguf_keys *k); /* accepts a zeroed one */

/* Append a key with one value. */
int gguf_keys_u32(struct gguf_keys *k, const char *key, uint32_t v);
int gguf_keys_f32(struct gguf_keys *k, const char *key, float v);
int gguf_keys_bool(struct gguf_keys *k, const char *key, bool v);
int gguf_keys_string(struct gguf_keys *k, const char *key, struct gguf_str v);

/* Begins an array of @n elements, which the caller appends with the functions below. */
int gguf_keys_array(struct gguf_keys *k, const char *key, enum gguf_type type, uint64_t n);
int gguf_keys_add_str(struct gguf_keys *k, const char *data, size_t len);
int gguf_keys_add_u32(struct gguf_keys *k, uint32_t v);
int gguf_keys_add_f32(struct gguf_keys *k, float v);
int gguf_keys_add_u8(struct gguf_keys *k, uint8_t v);

/* Appends a whole GGUF file of version 3 with these keys and no tensors to @out. */
int gguf_keys_file(const struct gguf_keys *k, struct buf *out);
