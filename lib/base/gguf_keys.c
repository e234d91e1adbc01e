#include "base/gguf_keys.h"

#include <endian.h>
#include <string.h>

#include "base/gguf_private.h"
#include "base/try.h"

#define FILE_HEAD_BYTES 64u /* more than magic, version, counts and padding of a file */

void gguf_keys_init(struct gguf_keys *k) {
    k->n = 0;
    buf_init(&k->kv, GGUF_HEADER_MAX - FILE_HEAD_BYTES);
}

void gguf_keys_deinit(struct gguf_keys *k) {
    buf_deinit(&k->kv);
    k->n = 0;
}

static int keys_u64(struct buf *b, uint64_t v) {
    v = htole64(v);
    return buf_add(b, &v, sizeof(v));
}

static int keys_u32(struct buf *b, uint32_t v) {
    v = htole32(v);
    return buf_add(b, &v, sizeof(v));
}

static int keys_begin(struct gguf_keys *k, const char *key, enum gguf_type type) {
    TRY(gguf_keys_add_str(k, key, strlen(key)));
    k->n++;
    return keys_u32(&k->kv, type);
}

int gguf_keys_u32(struct gguf_keys *k, const char *key, uint32_t v) {
    TRY(keys_begin(k, key, GGUF_U32));
    return keys_u32(&k->kv, v);
}

int gguf_keys_f32(struct gguf_keys *k, const char *key, float v) {
    TRY(keys_begin(k, key, GGUF_F32));
    return gguf_keys_add_f32(k, v);
}

int gguf_keys_bool(struct gguf_keys *k, const char *key, bool v) {
    TRY(keys_begin(k, key, GGUF_BOOL));
    return buf_add_char(&k->kv, v);
}

int gguf_keys_string(struct gguf_keys *k, const char *key, struct gguf_str v) {
    TRY(keys_begin(k, key, GGUF_STRING));
    return gguf_keys_add_str(k, v.data, v.len);
}

int gguf_keys_array(struct gguf_keys *k, const char *key, enum gguf_type type, uint64_t n) {
    TRY(keys_begin(k, key, GGUF_ARRAY));
    TRY(keys_u32(&k->kv, type));
    return keys_u64(&k->kv, n);
}

int gguf_keys_add_str(struct gguf_keys *k, const char *data, size_t len) {
    TRY(keys_u64(&k->kv, len));
    return buf_add(&k->kv, data, len);
}

int gguf_keys_add_u32(struct gguf_keys *k, uint32_t v) {
    return keys_u32(&k->kv, v);
}

int gguf_keys_add_f32(struct gguf_keys *k, float v) {
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    return keys_u32(&k->kv, bits);
}

int gguf_keys_add_u8(struct gguf_keys *k, uint8_t v) {
    return buf_add_char(&k->kv, (char)v);
}

int gguf_keys_file(const struct gguf_keys *k, struct buf *out) {
    static const char padding[32];

    TRY(buf_add_str(out, "GGUF"));
    TRY(keys_u32(out, 3));
    TRY(keys_u64(out, 0));
    TRY(keys_u64(out, k->n));
    TRY(buf_add(out, k->kv.data, k->kv.len));
    return buf_add(out, padding, (32 - out->len % 32) % 32);
}
