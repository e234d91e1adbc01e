#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/gguf_private.h"
#include "base/try.h"

int gguf_cursor_fail_at(const struct gguf_cursor *c, size_t at, const char *fmt, ...) {
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (c->n_shards > 1)
        return err_set(c->err, 0, NULL, "shard %u of %u: offset %zu: %s", c->shard + 1, c->n_shards,
                       at, text);
    return err_set(c->err, 0, NULL, "offset %zu: %s", at, text);
}

int gguf_cursor_read(struct gguf_cursor *c, size_t n, const uint8_t **out, const char *what) {
    assert(c->at <= c->end && c->end <= c->file->size);
    if (n > gguf_cursor_remaining(c)) {
        if (c->end < c->file->size)
            return gguf_cursor_fail_at(c, c->at,
                                       "%s makes the header larger than its limit of %u MiB", what,
                                       GGUF_HEADER_MAX >> 20);
        return gguf_cursor_fail_at(c, c->at, "%s needs %zu bytes, the file has %zu more" GGUF_WHOLE,
                                   what, n, gguf_cursor_remaining(c));
    }
    int r = gguf_shard_read(c->file, c->at + n);

    if (r < 0) {
        err_set(c->err, 0, NULL, "%s", r == -EAGAIN ? GGUF_CHANGED : strerror(-r));
        return r;
    }
    *out = c->file->map + c->at;
    c->at += n;
    return 0;
}

int gguf_cursor_u32(struct gguf_cursor *c, uint32_t *out, const char *what) {
    const uint8_t *p;
    uint32_t v;

    TRY(gguf_cursor_read(c, sizeof(v), &p, what));
    memcpy(&v, p, sizeof(v));
    *out = le32toh(v);
    return 0;
}

int gguf_cursor_u64(struct gguf_cursor *c, uint64_t *out, const char *what) {
    const uint8_t *p;
    uint64_t v;

    TRY(gguf_cursor_read(c, sizeof(v), &p, what));
    memcpy(&v, p, sizeof(v));
    *out = le64toh(v);
    return 0;
}

int gguf_cursor_str(struct gguf_cursor *c, struct gguf_str *out, const char *what) {
    size_t at = c->at;
    const uint8_t *p;
    uint64_t len;

    TRY(gguf_cursor_u64(c, &len, what));
    if (len > gguf_cursor_remaining(c))
        return gguf_cursor_fail_at(c, at,
                                   "%s should have %llu bytes, but only %zu are left" GGUF_WHOLE,
                                   what, (unsigned long long)len, gguf_cursor_remaining(c));
    TRY(gguf_cursor_read(c, (size_t)len, &p, what));
    *out = (struct gguf_str){(const char *)p, (size_t)len};
    return 0;
}

int gguf_cursor_name(struct gguf_cursor *c, size_t max, struct gguf_str *out, const char *what) {
    size_t at = c->at;
    struct gguf_str s;

    TRY(gguf_cursor_str(c, &s, what));
    if (s.len == 0)
        return gguf_cursor_fail_at(c, at, "%s is empty", what);
    if (s.len > max)
        return gguf_cursor_fail_at(c, at, "%s is %zu bytes long, at most %zu are allowed", what,
                                   s.len, max);
    for (size_t i = 0; i < s.len; i++)
        if (s.data[i] < 0x20 || s.data[i] > 0x7E)
            return gguf_cursor_fail_at(c, at, "%s contains the byte 0x%02x", what,
                                       (unsigned)(uint8_t)s.data[i]);
    *out = s;
    return 0;
}

/* Returns @a * @b folded to 64 bits: the xor of both halves of the product. */
static uint64_t gguf_cursor_fold(uint64_t a, uint64_t b) {
    __extension__ unsigned __int128 p = (unsigned __int128)a * b;

    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Returns the hash of @s, keyed by the index's seed, so that a file cannot choose names that
 * collide. */
static uint32_t gguf_cursor_hash_name(const struct gguf_index *x, struct gguf_str s) {
    uint64_t h = x->seed[0] ^ s.len;

    for (size_t i = 0; i < s.len; i += 8) {
        uint64_t w = 0;

        memcpy(&w, s.data + i, MIN(s.len - i, 8u));
        h = gguf_cursor_fold(h ^ w, x->seed[1]) + x->seed[0];
    }
    return (uint32_t)gguf_cursor_fold(h, 0x9E3779B97F4A7C15u);
}

int gguf_index_reserve(struct gguf_index *x, uint32_t n) {
    if (!x->seed[1] && getrandom(x->seed, sizeof(x->seed), GRND_NONBLOCK) != sizeof(x->seed))
        x->seed[0] = (uint64_t)(uintptr_t)&n, x->seed[1] = (uint64_t)(uintptr_t)x;
    x->seed[1] |= 1;
    return hash_index_reserve(&x->items, n);
}

int64_t gguf_index_find(const struct gguf_index *x, const void *owner, struct gguf_str name) {
    HASH_INDEX_EACH(x->items, gguf_cursor_hash_name(x, name), i) {
        struct gguf_str s = x->name(owner, i);

        if (s.len == name.len && memcmp(s.data, name.data, s.len) == 0)
            return i;
    }
    return -1;
}

int gguf_index_add(struct gguf_index *x, struct gguf_str name, uint32_t item) {
    return hash_index_add(&x->items, gguf_cursor_hash_name(x, name), item);
}
