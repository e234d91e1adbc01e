/*
 * tstr - strings, and sinks to which text is appended.
 *
 * Concatenation is what templates do most, often as `ns.text = ns.text + part` over a whole
 * conversation. A string that was taken from a sink refers to it (tail). If it is still the whole
 * content of the sink, the next part is appended in place: the new string has the same first byte
 * and is longer, the old one is unchanged, since it knows its own length. If other text was
 * appended meanwhile, or the sink has moved to a larger block, the bytes are copied. Marks are
 * shared in the same way; the last one may have grown beyond the older string's end, which is why
 * readers clip.
 */

#include "text/template/tstr.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "base/try.h"
#include "text/template/budget.h"
#include "text/unicode.h"

const struct tstr *tstr_new(struct render *rd, const char *data, size_t len, bool user) {
    struct {
        struct tstr s;
        struct text_range whole;
    } *p = render_alloc(rd, 1, user && len ? sizeof(*p) : sizeof(struct tstr));

    if (!p)
        return NULL;
    p->s = (struct tstr){.data = data, .len = len};
    if (user && len) {
        p->whole = (struct text_range){0, len};
        p->s.marks = &p->whole;
        p->s.n_marks = 1;
    }
    return &p->s;
}

/* Returns the first mark of @s that ends after @pos. */
static uint32_t first_mark(const struct tstr *s, size_t pos) {
    uint32_t lo = 0, hi = s->n_marks;

    assert(hi == 0 || s->marks);
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (s->marks[mid].end > pos)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

bool tstr_user_at(const struct tstr *s, size_t pos) {
    uint32_t i = first_mark(s, pos);

    return i < s->n_marks && s->marks[i].begin <= pos;
}

/* Makes a part of a string, which shares the bytes; only the marks of the part are copied. */
const struct tstr *tstr_slice(struct render *rd, const struct tstr *s, size_t begin, size_t end) {
    assert(end <= s->len);
    if (begin >= end)
        begin = end;
    if (begin == 0 && end == s->len)
        return s;
    uint32_t first = first_mark(s, begin), n = 0;

    while (first + n < s->n_marks && s->marks[first + n].begin < end)
        n++;
    struct tstr *p = render_alloc(rd, 1, sizeof(*p) + n * sizeof(struct text_range));

    if (!p || render_charge(rd, n))
        return NULL;
    struct text_range *marks = (struct text_range *)(p + 1);

    for (uint32_t i = 0; i < n; i++) {
        marks[i].begin = MAX(s->marks[first + i].begin, begin) - begin;
        marks[i].end = MIN(s->marks[first + i].end, end) - begin;
    }
    *p = (struct tstr){.data = s->data + begin,
                       .len = end - begin,
                       .marks = n ? marks : NULL,
                       .n_marks = n,
                       .safe = s->safe};
    return p;
}

const struct tstr *tstr_safe(struct render *rd, const struct tstr *s, bool safe) {
    if (s->safe == safe)
        return s;
    struct tstr *p = render_alloc(rd, 1, sizeof(*p));

    if (p) {
        *p = *s;
        p->safe = safe;
    }
    return p;
}

/* Returns whether @s is the whole content of its sink, so that it can grow in place. */
static bool tstr_continues(const struct tstr *s) {
    const struct sink *k = s->tail;

    assert(!k || k->data != s->data || k->len >= s->len); /* a sink only grows */
    return k && k->data == s->data && k->len == s->len && k->n_marks == s->n_marks;
}

/* Concatenates a safe and a plain string: the plain one is escaped, the result is safe. */
const struct tstr *tstr_concat(struct render *rd, const struct tstr *a, const struct tstr *b) {
    if (a->safe != b->safe) {
        if (!a->safe)
            a = tstr_escape(rd, a);
        else
            b = tstr_escape(rd, b);
        if (!a || !b)
            return NULL;
    }
    bool safe = a->safe && b->safe;
    struct sink *k = a->tail;

    if (!b->len && a->safe == safe)
        return a;
    if (!tstr_continues(a)) {
        k = sink_new(rd);
        if (!k || sink_reserve(rd, k, a->len + b->len) || sink_add_str(rd, k, a))
            return NULL;
    }
    if (sink_add_str(rd, k, b))
        return NULL;
    const struct tstr *s = sink_string(rd, k);

    if (!s || !safe)
        return s;
    return tstr_safe(rd, s, true);
}

const struct tstr *tstr_escape(struct render *rd, const struct tstr *s) {
    struct sink *k = sink_new(rd);
    size_t done = 0;

    if (!k || sink_reserve(rd, k, s->len))
        return NULL;
    for (size_t i = 0; i < s->len; i++) {
        const char *to;

        switch (s->data[i]) {
        case '&':
            to = "&amp;";
            break;
        case '<':
            to = "&lt;";
            break;
        case '>':
            to = "&gt;";
            break;
        case '\'':
            to = "&#39;";
            break;
        case '"':
            to = "&#34;";
            break;
        default:
            continue;
        }
        if (sink_add_part(rd, k, s, done, i) || sink_add(rd, k, to, strlen(to), tstr_user_at(s, i)))
            return NULL;
        done = i + 1;
    }
    if (sink_add_part(rd, k, s, done, s->len))
        return NULL;
    const struct tstr *out = sink_string(rd, k);

    if (!out)
        return NULL;
    return tstr_safe(rd, out, true);
}

bool tstr_equal(const struct tstr *a, const struct tstr *b) {
    return a->len == b->len && (a->data == b->data || memcmp(a->data, b->data, a->len) == 0);
}

bool tstr_is(const struct tstr *s, const char *text) {
    return strlen(text) == s->len && memcmp(s->data, text, s->len) == 0;
}

/* Compares strings. The bytes of UTF-8 sort as its code points do. */
int tstr_compare(const struct tstr *a, const struct tstr *b) {
    int c = memcmp(a->data, b->data, MIN(a->len, b->len));

    if (c)
        return c;
    return (a->len > b->len) - (a->len < b->len);
}

uint32_t tstr_decode(const char *data, size_t len, size_t pos, size_t *n) {
    assert(pos < len);
    uint32_t cp;

    *n = unicode_decode(data + pos, data + len, &cp);
    if (cp != UNICODE_INVALID)
        return cp;
    return 0x110000u + (uint8_t)data[pos];
}

size_t tstr_encode(uint32_t cp, char out[4]) {
    if (cp < 0x110000)
        return unicode_encode(cp, out);
    assert(cp - 0x110000 <= UINT8_MAX);
    out[0] = (char)(cp - 0x110000);
    return 1;
}

size_t tstr_count(const struct tstr *s) {
    size_t n = 0, w;

    for (size_t i = 0; i < s->len; i += w, n++)
        tstr_decode(s->data, s->len, i, &w);
    return n;
}

size_t tstr_offset(const struct tstr *s, size_t index) {
    size_t i = 0, w;

    for (; i < s->len && index; i += w, index--)
        tstr_decode(s->data, s->len, i, &w);
    return i;
}

bool tstr_is_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

void tstr_trim(const struct tstr *s, bool left, bool right, size_t *begin, size_t *end) {
    size_t b = 0, e = s->len, w;

    while (left && b < e && tstr_is_space(tstr_decode(s->data, s->len, b, &w)))
        b += w;
    while (right && e > b) {
        size_t last = e - 1;

        while (last > b && ((unsigned char)s->data[last] & 0xc0) == 0x80 && e - last < 4)
            last--;
        if (!tstr_is_space(tstr_decode(s->data, e, last, &w)) || last + w != e)
            break;
        e = last;
    }
    assert(b <= e && e <= s->len);
    *begin = b;
    *end = e;
}

size_t tstr_find(const struct tstr *s, const struct tstr *what, size_t from, size_t to) {
    assert(to <= s->len);
    if (from > to)
        return SIZE_MAX;
    const char *p = memmem(s->data + from, to - from, what->data, what->len);

    if (!p)
        return SIZE_MAX;
    return (size_t)(p - s->data);
}

struct sink *sink_new(struct render *rd) {
    return render_alloc(rd, 1, sizeof(struct sink));
}

/* Makes room in a sink. It grows by half, so that the blocks which growing leaves behind in the
 * arena are at most twice as large as the result. */
int sink_reserve(struct render *rd, struct sink *k, size_t extra) {
    size_t need, cap;

    assert(k->len <= k->cap && (!k->max || k->len <= k->max));
    if (size_add(k->len, extra, &need) || (k->max && need > k->max))
        return render_fail_limit(rd, "the text becomes too long");
    if (need <= k->cap)
        return 0;
    if (size_add(need, need / 2 + 32, &cap))
        return render_fail_limit(rd, "the text becomes too long");
    char *p = render_alloc_text(rd, cap);

    if (!p || render_charge_bytes(rd, k->len))
        return -1;
    if (k->len)
        memcpy(p, k->data, k->len);
    k->data = p;
    k->cap = cap;
    return 0;
}

/* Adds a mark; marks that touch become one. */
static int tstr_add_mark(struct render *rd, struct sink *k, size_t begin, size_t end) {
    assert(begin < end && k->n_marks <= k->cap_marks);
    assert(!k->n_marks || begin >= k->marks[k->n_marks - 1].begin);
    if (k->n_marks && k->marks[k->n_marks - 1].end >= begin) {
        k->marks[k->n_marks - 1].end = end;
        return 0;
    }
    if (k->n_marks == k->cap_marks) {
        uint32_t cap = k->cap_marks ? k->cap_marks * 2 : 4;
        struct text_range *p = render_alloc(rd, cap, sizeof(*p));

        if (!p)
            return -1;
        if (k->n_marks)
            memcpy(p, k->marks, k->n_marks * sizeof(*p));
        k->marks = p;
        k->cap_marks = cap;
    }
    k->marks[k->n_marks++] = (struct text_range){begin, end};
    return 0;
}

int sink_add(struct render *rd, struct sink *k, const char *data, size_t len, bool user) {
    if (!len)
        return 0;
    if (sink_reserve(rd, k, len) || render_charge_bytes(rd, len))
        return -1;
    if ((user || k->all_user) && tstr_add_mark(rd, k, k->len, k->len + len))
        return -1;
    assert(k->cap - k->len >= len);
    memcpy(k->data + k->len, data, len);
    k->len += len;
    return 0;
}

int sink_add_text(struct render *rd, struct sink *k, const char *text) {
    return sink_add(rd, k, text, strlen(text), false);
}

/* Copies bytes and their marks, shifted to their new place. */
int sink_add_part(struct render *rd, struct sink *k, const struct tstr *s, size_t begin,
                  size_t end) {
    assert(end <= s->len);
    if (begin >= end)
        return 0;
    if (sink_reserve(rd, k, end - begin) || render_charge_bytes(rd, end - begin))
        return -1;
    size_t at = k->len;

    for (uint32_t i = first_mark(s, begin); i < s->n_marks && s->marks[i].begin < end; i++) {
        size_t from = MAX(s->marks[i].begin, begin), to = MIN(s->marks[i].end, end);

        TRY(tstr_add_mark(rd, k, at + from - begin, at + to - begin));
    }
    if (k->all_user && tstr_add_mark(rd, k, at, at + end - begin))
        return -1;
    memcpy(k->data + at, s->data + begin, end - begin);
    k->len += end - begin;
    return 0;
}

int sink_add_str(struct render *rd, struct sink *k, const struct tstr *s) {
    return sink_add_part(rd, k, s, 0, s->len);
}

int sink_add_cp(struct render *rd, struct sink *k, uint32_t cp, bool user) {
    char bytes[4];

    return sink_add(rd, k, bytes, tstr_encode(cp, bytes), user);
}

/* Makes a string of the content of the sink. More may be appended later, through the string or
 * directly. */
const struct tstr *sink_string(struct render *rd, struct sink *k) {
    assert(!k->n_marks || k->marks[k->n_marks - 1].end <= k->len);
    struct tstr *s = render_alloc(rd, 1, sizeof(*s));

    if (s)
        *s = (struct tstr){
            .data = k->data, .len = k->len, .marks = k->marks, .n_marks = k->n_marks, .tail = k};
    if (s && !s->data)
        s->data = "";
    return s;
}
