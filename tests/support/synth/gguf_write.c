#include "tests/support/synth/gguf_write.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define HEAD_MAX ((size_t)64 << 20)

static void note(struct gguf_write *w, int r) {
    if (r < 0 && !w->error)
        w->error = r;
}

static void put(struct gguf_write *w, struct buf *b, uint64_t v, unsigned bytes) {
    assert(bytes <= sizeof(v));
    v = htole64(v);
    note(w, buf_add(b, &v, bytes));
}

static void put_str(struct gguf_write *w, struct buf *b, const char *s, size_t len) {
    put(w, b, len, 8);
    note(w, buf_add(b, s, len));
}

static void put_key(struct gguf_write *w, const char *key, enum gguf_type type) {
    assert(w->fd < 0 && w->n_items == 0);
    w->n_kv++;
    put_str(w, &w->kv, key, strlen(key));
    put(w, &w->kv, type, 4);
}

void gguf_write_init(struct gguf_write *w) {
    *w = (struct gguf_write){.fd = -1};
    buf_init(&w->kv, HEAD_MAX);
    buf_init(&w->dir, HEAD_MAX);
}

void gguf_write_deinit(struct gguf_write *w) {
    buf_deinit(&w->kv);
    buf_deinit(&w->dir);
}

void gguf_write_u16(struct gguf_write *w, const char *key, uint16_t v) {
    put_key(w, key, GGUF_U16);
    put(w, &w->kv, v, 2);
}

void gguf_write_u32(struct gguf_write *w, const char *key, uint32_t v) {
    put_key(w, key, GGUF_U32);
    put(w, &w->kv, v, 4);
}

void gguf_write_i32(struct gguf_write *w, const char *key, int32_t v) {
    put_key(w, key, GGUF_I32);
    put(w, &w->kv, (uint32_t)v, 4);
}

void gguf_write_f32(struct gguf_write *w, const char *key, float v) {
    uint32_t bits;

    memcpy(&bits, &v, sizeof(bits));
    put_key(w, key, GGUF_F32);
    put(w, &w->kv, bits, 4);
}

void gguf_write_bool(struct gguf_write *w, const char *key, bool v) {
    put_key(w, key, GGUF_BOOL);
    put(w, &w->kv, v, 1);
}

void gguf_write_string(struct gguf_write *w, const char *key, struct gguf_str v) {
    put_key(w, key, GGUF_STRING);
    put_str(w, &w->kv, v.data, v.len);
}

void gguf_write_text(struct gguf_write *w, const char *key, const char *v) {
    gguf_write_string(w, key, (struct gguf_str){v, strlen(v)});
}

void gguf_write_array(struct gguf_write *w, const char *key, enum gguf_type type, uint64_t n) {
    put_key(w, key, GGUF_ARRAY);
    put(w, &w->kv, type, 4);
    put(w, &w->kv, n, 8);
    w->n_items = n;
}

void gguf_write_item(struct gguf_write *w, enum gguf_type type, double v) {
    static const uint8_t bytes[] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_BOOL] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_U64] = 8,  [GGUF_I64] = 8,
    };
    float single = (float)v;
    uint64_t bits = 0;

    assert(w->n_items > 0);
    w->n_items--;
    if (type == GGUF_F32) {
        memcpy(&bits, &single, 4);
        put(w, &w->kv, bits, 4);
    } else if (type == GGUF_F64) {
        memcpy(&bits, &v, 8);
        put(w, &w->kv, bits, 8);
    } else {
        assert(type < ARRAY_SIZE(bytes) && bytes[type]);
        put(w, &w->kv, v < 0 ? (uint64_t)(int64_t)v : (uint64_t)v, bytes[type]);
    }
}

void gguf_write_item_str(struct gguf_write *w, struct gguf_str v) {
    assert(w->n_items > 0);
    w->n_items--;
    put_str(w, &w->kv, v.data, v.len);
}

uint64_t gguf_write_tensor(struct gguf_write *w, const char *name, const struct tensor_format *f,
                           uint32_t n_dims, const uint64_t *ne) {
    uint64_t n = 1;

    assert(n_dims >= 1 && n_dims <= 4 && ne[0] % f->block == 0 && w->fd < 0);
    w->n_tensors++;
    put_str(w, &w->dir, name, strlen(name));
    put(w, &w->dir, n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++) {
        put(w, &w->dir, ne[i], 8);
        n *= ne[i];
    }
    put(w, &w->dir, f->type, 4);
    put(w, &w->dir, w->directory_bytes, 8);
    n = n / f->block * f->block_bytes;
    w->directory_bytes += round_up(n, GGUF_WRITE_ALIGNMENT);
    return n;
}

/* Writes all of @data; the first error stays in w->error, after which nothing is written. */
static void send(struct gguf_write *w, const void *data, size_t len) {
    const char *p = data;

    while (len && !w->error) {
        ssize_t n = write(w->fd, p, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            note(w, n < 0 ? -errno : -EIO);
            return;
        }
        p += n;
        len -= (size_t)n;
    }
}

/* Zeros up to the alignment, @at bytes into the file or the data section. */
static void pad(struct gguf_write *w, uint64_t at) {
    static const char zeros[GGUF_WRITE_ALIGNMENT];

    send(w, zeros, round_up(at, GGUF_WRITE_ALIGNMENT) - at);
}

int gguf_write_start(struct gguf_write *w, int fd) {
    struct buf head;

    assert(w->fd < 0 && fd >= 0 && w->n_items == 0);
    w->fd = fd;
    buf_init(&head, 64);
    note(w, buf_add(&head, "GGUF", 4));
    put(w, &head, 3, 4);
    put(w, &head, w->n_tensors, 8);
    put(w, &head, w->n_kv, 8);
    send(w, head.data, head.len);
    send(w, w->kv.data, w->kv.len);
    send(w, w->dir.data, w->dir.len);
    pad(w, head.len + w->kv.len + w->dir.len);
    buf_deinit(&head);
    return w->error;
}

int gguf_write_data(struct gguf_write *w, const void *data, size_t len) {
    assert(w->fd >= 0);
    send(w, data, len);
    w->data_bytes += len;
    assert(w->data_bytes <= w->directory_bytes);
    return w->error;
}

int gguf_write_tensor_end(struct gguf_write *w) {
    pad(w, w->data_bytes);
    w->data_bytes = round_up(w->data_bytes, GGUF_WRITE_ALIGNMENT);
    return w->error;
}

int gguf_write_finish(struct gguf_write *w) {
    assert(w->error || w->data_bytes == w->directory_bytes);
    return w->error;
}
