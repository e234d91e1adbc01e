#include "base/splices.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/try.h"
#include "base/util.h"

int splices_add(struct splices *s, struct blob *b, size_t from, size_t len, size_t at) {
    assert(from <= b->text.len && len <= b->text.len - from);
    assert(s->n == 0 || s->part[s->n - 1].at <= at);
    if (len == 0)
        return 0;
    if (!ARRAY_GROW(s->part, s->n, s->cap, 4))
        return -ENOMEM;
    s->part[s->n++] = (struct splice){.blob = blob_ref(b), .from = from, .len = len, .at = at};
    s->len += len;
    return 0;
}

int splices_copy(struct splices *s, const struct splices *from, size_t begin, size_t end) {
    for (uint32_t i = 0; i < from->n; i++) {
        const struct splice *p = &from->part[i];

        if (p->at >= begin && p->at < end)
            TRY(splices_add(s, p->blob, p->from, p->len, p->at - begin));
    }
    return 0;
}

void splices_deinit(struct splices *s) {
    for (uint32_t i = 0; i < s->n; i++)
        blob_unref(s->part[i].blob);
    free(s->part);
    *s = (struct splices){0};
}

void spliced_deinit(struct spliced *r) {
    r->text = blob_unref(r->text);
    splices_deinit(&r->in);
}

int spliced_copy(struct spliced *out, const struct spliced *r) {
    struct spliced copy = {.text = blob_ref(r->text)};

    if (splices_copy(&copy.in, &r->in, 0, SIZE_MAX) < 0) {
        spliced_deinit(&copy);
        return -ENOMEM;
    }
    *out = copy;
    return 0;
}

size_t spliced_len(const struct spliced *r) {
    return (r->text ? r->text->text.len : 0) + r->in.len;
}

size_t spliced_bytes(const struct spliced *r) {
    return blob_bytes(r->text) + r->in.cap * sizeof(*r->in.part) + r->in.len;
}

struct splice spliced_part(const struct spliced *r, size_t at) {
    size_t before = 0; /* bytes before part i */
    size_t told = 0;   /* of them, those of the text itself */

    assert(at < spliced_len(r));
    for (uint32_t i = 0; i < r->in.n; i++) {
        const struct splice *p = &r->in.part[i];
        size_t begin = before + (p->at - told);

        if (at < begin)
            return (struct splice){.blob = r->text, .from = told + at - before, .len = begin - at};
        if (at < begin + p->len)
            return (struct splice){
                .blob = p->blob, .from = p->from + at - begin, .len = begin + p->len - at};
        before = begin + p->len;
        told = p->at;
    }
    return (struct splice){.blob = r->text,
                           .from = told + at - before,
                           .len = r->text->text.len - told - (at - before)};
}

int spliced_read(const struct spliced *r, size_t from, size_t len, struct buf *out) {
    assert(from <= spliced_len(r) && len <= spliced_len(r) - from);
    while (len > 0) {
        struct splice p = spliced_part(r, from);
        size_t n = MIN(p.len, len);

        TRY(buf_add(out, p.blob->text.data + p.from, n));
        from += n;
        len -= n;
    }
    return 0;
}
