/*
 * Methods of strings. Positions and widths count code points, searching works on bytes: UTF-8 finds
 * no match that begins inside of a character. Methods of Python that are not in the table do not
 * exist here: calling one fails with its name.
 */

#include <assert.h>
#include <ctype.h>
#include <string.h>
#include <utf8proc.h>
#include "text/template/builtin.h"

static int str_case(struct render *rd, const struct call *c, struct value *out) {
    return text_case(rd, c->self.s, (enum case_mode)c->how, out);
}

enum { LEFT = 1, RIGHT = 2 };

static int str_strip(struct render *rd, const struct call *c, struct value *out) {
    return text_strip(rd, c->self.s, c->a[0], c->how & LEFT, c->how & RIGHT, out);
}

static int add_slice(struct render *rd, struct seq *list, const struct tstr *s, size_t begin,
                     size_t end) {
    const struct tstr *part = tstr_slice(rd, s, begin, end);

    return !part || render_charge(rd, 1) || seq_add(rd, list, value_str(part)) ? -1 : 0;
}

/* At runs of white space; what is left after @max cuts keeps its inner and trailing white space. */
static int split_words(struct render *rd, const struct tstr *s, int64_t max, struct seq *list) {
    size_t i = 0, w;

    for (;;) {
        while (i < s->len && tstr_is_space(tstr_decode(s->data, s->len, i, &w)))
            i += w;
        if (i >= s->len)
            return 0;
        size_t begin = i;

        if (max-- == 0)
            return add_slice(rd, list, s, begin, s->len);
        while (i < s->len && !tstr_is_space(tstr_decode(s->data, s->len, i, &w)))
            i += w;
        if (add_slice(rd, list, s, begin, i))
            return -1;
    }
}

/* @max < 0: everywhere. */
static int split_at(struct render *rd, const struct tstr *s, const struct tstr *sep, int64_t max,
                    struct seq *list) {
    size_t begin = 0, at;

    assert(sep->len > 0); /* an empty separator would be found for ever */
    while (max-- != 0 && (at = tstr_find(s, sep, begin, s->len)) != SIZE_MAX) {
        if (add_slice(rd, list, s, begin, at))
            return -1;
        begin = at + sep->len;
    }
    return add_slice(rd, list, s, begin, s->len);
}

static int str_split(struct render *rd, const struct call *c, struct value *out) {
    struct seq *list = seq_new(rd, SEQ_LIST, 0);
    const struct tstr *s = c->self.s, *sep;
    int64_t max;

    if (!list || builtin_string(rd, c->a[0], NULL, &sep) || builtin_int(rd, c->a[1], -1, &max) ||
        render_charge_bytes(rd, s->len))
        return -1;
    if (sep && !sep->len)
        return render_fail(rd, "empty separator");
    *out = value_seq(list);
    return sep ? split_at(rd, s, sep, max, list) : split_words(rd, s, max, list);
}

/* Last place of @what in @s before @end. */
static size_t find_last(const struct tstr *s, const struct tstr *what, size_t end) {
    if (what->len > end)
        return SIZE_MAX;
    for (size_t i = end - what->len + 1; i-- > 0;) {
        if (memcmp(s->data + i, what->data, what->len) == 0)
            return i;
    }
    return SIZE_MAX;
}

/* The cost of looking backwards for @what: it compares at every byte. */
static int charge_backwards(struct render *rd, const struct tstr *s, const struct tstr *what) {
    uint64_t steps;

    if (__builtin_mul_overflow((uint64_t)s->len, what->len / 64 + 1, &steps))
        steps = UINT64_MAX;
    return render_charge(rd, steps / 16);
}

/* Collected from the end, then turned around. */
static int str_rsplit(struct render *rd, const struct call *c, struct value *out) {
    struct seq *list = seq_new(rd, SEQ_LIST, 0);
    const struct tstr *s = c->self.s, *sep;
    size_t end = s->len, at;
    int64_t max;

    if (!list || builtin_string(rd, c->a[0], NULL, &sep) || builtin_int(rd, c->a[1], -1, &max))
        return -1;
    if (!sep && max >= 0)
        return render_fail(rd, "rsplit() at white space takes no maxsplit here");
    if (!sep)
        return str_split(rd, c, out);
    if (!sep->len)
        return render_fail(rd, "empty separator");
    if (charge_backwards(rd, s, sep))
        return -1;
    while (max-- != 0 && (at = find_last(s, sep, end)) != SIZE_MAX) {
        if (add_slice(rd, list, s, at + sep->len, end))
            return -1;
        end = at;
    }
    if (add_slice(rd, list, s, 0, end))
        return -1;
    for (uint32_t i = 0, j = list->n - 1; i < j; i++, j--) {
        struct value v = list->v[i];

        list->v[i] = list->v[j];
        list->v[j] = v;
    }
    *out = value_seq(list);
    return 0;
}

static int str_splitlines(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s;
    struct seq *list = seq_new(rd, SEQ_LIST, 0);
    bool keep = value_truth(c->a[0]);
    size_t begin = 0, w;

    if (!list || render_charge_bytes(rd, s->len))
        return -1;
    for (size_t i = 0; i < s->len; i += w) {
        uint32_t cp = tstr_decode(s->data, s->len, i, &w);
        bool ends = (cp >= 10 && cp <= 13) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 ||
                    cp == 0x2028 || cp == 0x2029;

        if (!ends)
            continue;
        if (cp == 13 && i + 1 < s->len && s->data[i + 1] == '\n')
            w = 2;
        if (add_slice(rd, list, s, begin, keep ? i + w : i))
            return -1;
        begin = i + w;
    }
    *out = value_seq(list);
    return begin < s->len ? add_slice(rd, list, s, begin, s->len) : 0;
}

/* The bytes of s[start:stop]. */
static int window(struct render *rd, const struct call *c, size_t *from, size_t *to) {
    const struct tstr *s = c->self.s;
    int64_t n, start, stop;

    *from = 0;
    *to = s->len;
    if (c->a[1].type == V_MISSING && c->a[2].type == V_MISSING)
        return 0;
    n = (int64_t)tstr_count(s);
    if (builtin_int(rd, c->a[1], 0, &start) || builtin_int(rd, c->a[2], n, &stop))
        return -1;
    start = start < 0 ? MAX(start + n, (int64_t)0) : start;
    stop = stop < 0 ? MAX(stop + n, (int64_t)0) : MIN(stop, n);
    *from = start > n ? SIZE_MAX : tstr_offset(s, (size_t)start);
    *to = tstr_offset(s, (size_t)stop);
    assert(*to <= s->len && (*from <= s->len || *from == SIZE_MAX));
    return render_charge_bytes(rd, s->len);
}

/* startswith() and endswith(), with a string or a tuple of them. */
static int str_has_affix(struct render *rd, const struct call *c, struct value *out) {
    bool end = c->how == RIGHT;
    struct value one = c->a[0], *v = &one;
    uint32_t n = 1;
    size_t from, to;

    if (value_is_seq(one, SEQ_TUPLE)) {
        v = one.seq->v;
        n = one.seq->n;
    }
    *out = value_bool(false);
    if (window(rd, c, &from, &to) || render_charge(rd, n))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        if (v[i].type == V_UNDEFINED)
            return value_fail_undefined(rd, v[i]);
        if (v[i].type != V_STR)
            return render_fail(rd, "%s first arg must be str or a tuple of str, not %s",
                               end ? "endswith" : "startswith", value_type_name(v[i]));
        size_t len = v[i].s->len;

        if (render_charge_bytes(rd, len))
            return -1;
        if (from <= to && len <= to - from &&
            memcmp(c->self.s->data + (end ? to - len : from), v[i].s->data, len) == 0)
            *out = value_bool(true);
    }
    return 0;
}

static int str_remove_affix(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s, *what;
    bool end = c->how == RIGHT;
    struct value has;

    if (builtin_string(rd, c->a[0], NULL, &what) || str_has_affix(rd, c, &has))
        return -1;
    size_t n = has.b && what ? what->len : 0;
    const struct tstr *r = tstr_slice(rd, s, end ? 0 : n, s->len - (end ? n : 0));

    *out = value_str(r);
    return r ? 0 : -1;
}

static int str_replace(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *from, *to;
    int64_t count;

    if (builtin_string(rd, c->a[0], NULL, &from) || builtin_string(rd, c->a[1], NULL, &to) ||
        builtin_int(rd, c->a[2], -1, &count))
        return -1;
    if (!from || !to)
        return render_fail(rd, "replace() wants strings");
    return text_replace(rd, c->self.s, from, to, count, out);
}

/* Unlike the filter: all must be strings. */
static int str_join(struct render *rd, const struct call *c, struct value *out) {
    struct value *items;
    uint32_t n;

    if (c->a[0].type == V_UNDEFINED || value_items(rd, c->a[0], &items, &n))
        return c->a[0].type == V_UNDEFINED ? value_fail_undefined(rd, c->a[0]) : -1;
    return text_join(rd, c->self.s, items, n, true, out);
}

static int str_format(struct render *rd, const struct call *c, struct value *out) {
    return format_braces(rd, c->self.s, c->args, out);
}

enum { FIND_LAST = 1, FIND_MUST = 2 };

static int str_find(struct render *rd, const struct call *c, struct value *out) {
    bool last = c->how & FIND_LAST, must = c->how & FIND_MUST;
    const struct tstr *s = c->self.s, *what;
    size_t from, to, at;

    if (builtin_string(rd, c->a[0], NULL, &what) || window(rd, c, &from, &to))
        return -1;
    if (!what)
        return render_fail(rd, "find() wants a string");
    if (last ? charge_backwards(rd, s, what) : render_charge_bytes(rd, s->len))
        return -1;
    at = last ? find_last(s, what, to) : tstr_find(s, what, from, to);
    if (at == SIZE_MAX || at < from) {
        *out = value_int(-1);
        return must ? render_fail(rd, "substring not found") : 0;
    }
    struct tstr head = {.data = s->data, .len = at};

    *out = value_int((int64_t)tstr_count(&head));
    return 0;
}

/* Without overlap. The empty string is between all characters and at both ends. */
static int str_count(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s, *what;
    size_t from, to, at;
    int64_t n = 0;

    if (builtin_string(rd, c->a[0], NULL, &what) || window(rd, c, &from, &to) ||
        render_charge_bytes(rd, s->len))
        return -1;
    if (!what || !what->len) {
        struct tstr part = {.data = s->data + MIN(from, s->len), .len = from > to ? 0 : to - from};

        *out = value_int(what ? (int64_t)tstr_count(&part) + 1 : 0);
        return what ? 0 : render_fail(rd, "count() wants a string");
    }
    for (; (at = tstr_find(s, what, from, to)) != SIZE_MAX; n++)
        from = at + what->len;
    *out = value_int(n);
    return 0;
}

static utf8proc_category_t category(uint32_t cp) {
    return cp < 0x110000 ? utf8proc_category((utf8proc_int32_t)cp) : UTF8PROC_CATEGORY_CN;
}

/* Python's isdigit() also has the superscripts. */
static bool is_digit(uint32_t cp) {
    return category(cp) == UTF8PROC_CATEGORY_ND || cp == 0xb2 || cp == 0xb3 || cp == 0xb9;
}

static bool is_numeric(uint32_t cp) {
    utf8proc_category_t k = category(cp);

    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

static bool is_alpha(uint32_t cp) {
    utf8proc_category_t k = category(cp);

    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

static bool is_alnum(uint32_t cp) {
    return is_alpha(cp) || is_numeric(cp);
}

static bool (*const IS[])(uint32_t cp) = {is_digit, is_alpha, is_alnum, tstr_is_space};
enum { IS_DIGIT, IS_ALPHA, IS_ALNUM, IS_SPACE };

/* isdigit() and its like: whether every code point (at least one) is of a kind. */
static int str_is(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s;
    bool all = s->len > 0;
    size_t w;

    if (render_charge_bytes(rd, s->len))
        return -1;
    for (size_t i = 0; i < s->len && all; i += w)
        all = IS[c->how](tstr_decode(s->data, s->len, i, &w));
    *out = value_bool(all);
    return 0;
}

static int str_is_case(struct render *rd, const struct call *c, struct value *out) {
    const struct args none = {0};
    bool is;

    if (call_test(rd, c->how == CASE_LOWER ? TSTR_STATIC("lower") : TSTR_STATIC("upper"), c->self,
                  &none, &is))
        return -1;
    *out = value_bool(is);
    return 0;
}

/* Sorted by name. */
static const struct builtin METHODS[] = {
    {"capitalize", "", 0, str_case, CASE_CAPITALIZE},
    {"count", "sub start end", 1, str_count, 0},
    {"endswith", "suffix start end", 1, str_has_affix, RIGHT},
    {"find", "sub start end", 1, str_find, 0},
    {"format", "*", 0, str_format, 0},
    {"index", "sub start end", 1, str_find, FIND_MUST},
    {"isalnum", "", 0, str_is, IS_ALNUM},
    {"isalpha", "", 0, str_is, IS_ALPHA},
    {"isdigit", "", 0, str_is, IS_DIGIT},
    {"islower", "", 0, str_is_case, CASE_LOWER},
    {"isspace", "", 0, str_is, IS_SPACE},
    {"isupper", "", 0, str_is_case, CASE_UPPER},
    {"join", "iterable", 1, str_join, 0},
    {"lower", "", 0, str_case, CASE_LOWER},
    {"lstrip", "chars", 0, str_strip, LEFT},
    {"removeprefix", "prefix", 1, str_remove_affix, LEFT},
    {"removesuffix", "suffix", 1, str_remove_affix, RIGHT},
    {"replace", "old new count", 2, str_replace, 0},
    {"rfind", "sub start end", 1, str_find, FIND_LAST},
    {"rsplit", "sep maxsplit", 0, str_rsplit, 0},
    {"rstrip", "chars", 0, str_strip, RIGHT},
    {"split", "sep maxsplit", 0, str_split, 0},
    {"splitlines", "keepends", 0, str_splitlines, 0},
    {"startswith", "prefix start end", 1, str_has_affix, LEFT},
    {"strip", "chars", 0, str_strip, LEFT | RIGHT},
    {"title", "", 0, str_case, CASE_TITLE},
    {"upper", "", 0, str_case, CASE_UPPER},
};

const struct builtin *method_find_str(const struct tstr *name) {
    return builtin_find(METHODS, ARRAY_SIZE(METHODS), name);
}
