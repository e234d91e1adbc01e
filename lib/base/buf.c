#include "base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/loop_bytes.h"
#include "base/try.h"

void buf_init(struct buf *b, size_t max) {
    *b = (struct buf){.max = max};
}

void buf_deinit(struct buf *b) {
    free(b->data);
    *b = (struct buf){.max = b->max};
}

int buf_reserve(struct buf *b, size_t extra) {
    assert(b->len <= b->max && (!b->data || b->len < b->cap));
    if (extra > b->max - b->len)
        return -EMSGSIZE;
    size_t need = b->len + extra + 1;
    if (need <= b->cap)
        return 0;

    size_t cap = MAX(b->cap + b->cap / 2, (size_t)64);
    cap = MAX(cap, need);
    char *data = realloc(b->data, cap);
    if (!data)
        return -ENOMEM;
    b->data = data;
    b->cap = cap;
    b->data[b->len] = 0;
    return 0;
}

int buf_add(struct buf *b, const void *data, size_t len) {
    TRY(buf_reserve(b, len));
    loop_bytes(len);
    assert(data || len == 0);
    if (len)
        memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = 0;
    return 0;
}

int buf_add_str(struct buf *b, const char *s) {
    return buf_add(b, s, strlen(s));
}

int buf_add_char(struct buf *b, char c) {
    return buf_add(b, &c, 1);
}

int buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
    va_list again;

    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    int r = n < 0 ? -EINVAL : buf_reserve(b, (size_t)n);
    if (r == 0) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return r;
}

int buf_printf(struct buf *b, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    int r = buf_vprintf(b, fmt, ap);
    va_end(ap);
    return r;
}

void buf_consume(struct buf *b, size_t n) {
    assert(n <= b->len);
    if (n == 0)
        return;
    b->len -= n;
    loop_bytes(b->len);
    if (b->data)
        memmove(b->data, b->data + n, b->len + 1);
}

void buf_clear(struct buf *b) {
    assert(b->data || b->len == 0);
    b->len = 0;
    if (b->data)
        b->data[0] = 0;
}
