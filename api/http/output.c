#include "api/http/output.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/try.h"

#define PIECE_GROWS_TO (64u << 10) /* a larger piece would be copied when it grows */
#define REFER_FROM 4096u           /* fewer bytes are cheaper to copy than to refer to */

struct output_piece {
    struct list link;
    /* NULL: the bytes are in `own` */
    struct blob *blob;
    struct buf own;
    /* the bytes that are still to be sent */
    size_t at, end;
    /* share of output.charged */
    size_t charge;
    /* a part was handed out: it does not grow */
    bool sealed;
};

void output_init(struct output *o, size_t max) {
    *o = (struct output){.max = max};
    list_init(&o->pieces);
}

static void piece_free(struct output_piece *p) {
    if (!p)
        return;
    blob_unref(p->blob);
    buf_deinit(&p->own);
    free(p);
}

void output_rest(struct output *o) {
    piece_free(o->idle);
    o->idle = NULL;
}

static struct output_piece *output_head(const struct output *o) {
    return LIST_ENTRY(o->pieces.next, struct output_piece, link);
}

static struct output_piece *output_tail(const struct output *o) {
    if (list_empty(&o->pieces))
        return NULL;
    return LIST_ENTRY(o->pieces.prev, struct output_piece, link);
}

/* Removes @p, whose bytes are sent or dropped. A piece with a small buffer is kept for the next
 * bytes, so that a stream of short events allocates nothing. */
static void output_remove(struct output *o, struct output_piece *p) {
    assert(o->charged >= p->charge);
    o->charged -= p->charge;
    list_remove(&p->link);
    if (o->idle || p->blob || p->own.cap > PIECE_GROWS_TO) {
        piece_free(p);
        return;
    }
    buf_clear(&p->own);
    *p = (struct output_piece){.own = p->own};
    list_init(&p->link);
    o->idle = p;
}

void output_deinit(struct output *o) {
    output_cut(o, 0);
    output_rest(o);
    assert(o->len == 0 && o->charged == 0);
}

/* Adds an empty piece; NULL: no memory. */
static struct output_piece *output_begin(struct output *o) {
    struct output_piece *p = o->idle;

    o->idle = NULL;
    if (!p && !(p = calloc(1, sizeof(*p))))
        return NULL;
    p->own.max = SIZE_MAX / 2;
    list_push_back(&o->pieces, &p->link);
    return p;
}

/* Counts @n bytes that were added to @p. */
static void output_grow(struct output *o, struct output_piece *p, size_t n) {
    p->end += n;
    p->charge += n;
    o->len += n;
    o->charged += n;
}

int output_add(struct output *o, const void *data, size_t len) {
    struct output_piece *p = output_tail(o);

    if (len > o->max - o->len)
        return -EMSGSIZE;
    if (len == 0)
        return 0;
    if (!p || p->blob || p->sealed || p->own.len + len > PIECE_GROWS_TO)
        p = output_begin(o);
    if (!p)
        return -ENOMEM;
    int r = buf_add(&p->own, data, len);
    if (r < 0 && p->end == 0)
        output_remove(o, p);
    if (r == 0)
        output_grow(o, p, len);
    return r;
}

int output_refer(struct output *o, struct blob *blob, size_t from, size_t len) {
    assert(from <= blob->text.len && len <= blob->text.len - from);
    if (len < REFER_FROM)
        return output_add(o, blob->text.data + from, len);
    if (len > o->max - o->len)
        return -EMSGSIZE;
    output_rest(o);
    struct output_piece *p = output_begin(o);
    if (!p)
        return -ENOMEM;
    p->blob = blob_ref(blob);
    p->at = p->end = from;
    output_grow(o, p, len);
    return 0;
}

unsigned output_first(struct output *o, size_t most, uv_buf_t parts[OUTPUT_PIECES], size_t *n) {
    unsigned n_parts = 0;

    *n = 0;
    for (struct list *l = o->pieces.next; l != &o->pieces && n_parts < OUTPUT_PIECES && *n < most;
         l = l->next) {
        struct output_piece *p = LIST_ENTRY(l, struct output_piece, link);
        char *data = p->blob ? p->blob->text.data : p->own.data;
        size_t len = MIN(p->end - p->at, most - *n);

        p->sealed = true;
        parts[n_parts++] = uv_buf_init(data + p->at, (unsigned)len);
        *n += len;
    }
    return n_parts;
}

void output_consume(struct output *o, size_t n) {
    assert(n <= o->len);
    o->len -= n;
    while (n > 0) {
        struct output_piece *p = output_head(o);
        size_t len = MIN(n, p->end - p->at);

        p->at += len;
        n -= len;
        if (p->at == p->end)
            output_remove(o, p);
    }
}

void output_cut(struct output *o, size_t n) {
    size_t kept = 0;

    assert(n <= o->len);
    LIST_FOREACH_ENTRY(p, &o->pieces, struct output_piece, link) {
        size_t len = MIN(p->end - p->at, n - kept);

        p->end = p->at + len;
        kept += len;
        if (len == 0)
            output_remove(o, p);
    }
    o->len = n;
}
