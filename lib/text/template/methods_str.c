/*
 * methods_str - the methods of strings. Positions and widths count code points. Searching works on
 * bytes: in UTF-8 no match begins inside a character. Calling a method of Python that is not in the
 * table fails with its name.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "text/template/builtin.h"

static int str_case(struct render *rd, const struct call *c, struct value *out) {
    return text_case(rd, c->self.s, (enum case_mode)c->how, out);
}

enum { LEFT = 1, RIGHT = 2 };

static int str_strip(struct render *rd, const struct call *c, struct value *out) {
    return text_strip(rd, c->self.s, c->a[0], c->how & LEFT, c->how & RIGHT, out);
}

static int method_add_slice(struct render *rd, struct seq *list, const struct tstr *s, size_t begin,
                            size_t end) {
    const struct tstr *part = tstr_slice(rd, s, begin, end);

    if (!part || render_charge(rd, 1) || seq_add(rd, list, value_str(part)))
        return -1;
    return 0;
}

/* Splits at runs of white space. The text after @max cuts keeps its inner and trailing white
 * space. */
static int split_words(struct render *rd, const struct tstr *s, int64_t max, struct seq *list) {
    size_t i = 0, w;

    for (;;) {
        while (i < s->len && tstr_is_space(tstr_decode(s->data, s->len, i, &w)))
            i += w;
        if (i >= s->len)
            return 0;
        size_t begin = i;

        if (max-- == 0)
            return method_add_slice(rd, list, s, begin, s->len);
        while (i < s->len && !tstr_is_space(tstr_decode(s->data, s->len, i, &w)))
            i += w;
        TRY(method_add_slice(rd, list, s, begin, i));
    }
}

/* Splits at the separator, at most @max times; negative: everywhere. */
static int split_at(struct render *rd, const struct tstr *s, const struct tstr *sep, int64_t max,
                    struct seq *list) {
    size_t begin = 0, at;

    assert(sep->len > 0); /* the search for an empty separator would not advance */
    while (max-- != 0 && (at = tstr_find(s, sep, begin, s->len)) != SIZE_MAX) {
        TRY(method_add_slice(rd, list, s, begin, at));
        begin = at + sep->len;
    }
    return method_add_slice(rd, list, s, begin, s->len);
}

static int str_split(struct render *rd, const struct call *c, struct value *out) {
    struct seq *list = seq_new(rd, SEQ_LIST, 0);
    const struct tstr *s = c->self.s, *sep;
    int64_t max;

    if (!list || builtin_string(rd, c->a[0], &sep) || builtin_int(rd, c->a[1], -1, &max) ||
        render_charge_bytes(rd, s->len))
        return -1;
    if (sep && !sep->len)
        return render_fail(rd, "empty separator");
    *out = value_seq(list);
    if (sep)
        return split_at(rd, s, sep, max, list);
    return split_words(rd, s, max, list);
}

/* Finds the bytes of s[start:stop]. */
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

/* Implements startswith() and endswith(), which take a string or a tuple of strings. */
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

        TRY(render_charge_bytes(rd, len));
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

    if (builtin_string(rd, c->a[0], &what) || str_has_affix(rd, c, &has))
        return -1;
    size_t n = has.b && what ? what->len : 0;
    const struct tstr *r = tstr_slice(rd, s, end ? 0 : n, s->len - (end ? n : 0));

    *out = value_str(r);
    if (!r)
        return -1;
    return 0;
}

static int str_replace(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *from, *to;
    int64_t count;

    if (builtin_string(rd, c->a[0], &from) || builtin_string(rd, c->a[1], &to) ||
        builtin_int(rd, c->a[2], -1, &count))
        return -1;
    if (!from || !to)
        return render_fail(rd, "replace() wants strings");
    return text_replace(rd, c->self.s, from, to, count, out);
}

/* Implements str.join(): unlike for the filter, all elements must be strings. */
static int str_join(struct render *rd, const struct call *c, struct value *out) {
    struct value *items;
    uint32_t n;

    if (c->a[0].type == V_UNDEFINED || value_items(rd, c->a[0], &items, &n)) {
        if (c->a[0].type == V_UNDEFINED)
            return value_fail_undefined(rd, c->a[0]);
        return -1;
    }
    return text_join(rd, c->self.s, items, n, true, out);
}

static int str_format(struct render *rd, const struct call *c, struct value *out) {
    return format_braces(rd, c->self.s, c->args, out);
}

/* Finds the last @what in bytes [from, to) of @s; *at is SIZE_MAX if there is none. */
static int find_last(struct render *rd, const struct tstr *s, const struct tstr *what, size_t from,
                     size_t to, size_t *at) {
    *at = SIZE_MAX;
    if (from > to || what->len > to - from)
        return 0;
    TRY(render_charge_bytes(rd, to - from));
    for (size_t i = to - what->len + 1; i-- > from;) {
        if (what->len && s->data[i] != what->data[0])
            continue;
        TRY(render_charge_bytes(rd, what->len));
        if (memcmp(s->data + i, what->data, what->len) == 0) {
            *at = i;
            return 0;
        }
    }
    return 0;
}

enum { FIND_LAST = 1, FIND_OR_FAIL = 2 };

/* Implements find(), rfind(), index() and rindex(). */
static int str_find(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s, *what;
    size_t from, to, at;

    if (builtin_string(rd, c->a[0], &what) || window(rd, c, &from, &to) ||
        render_charge_bytes(rd, s->len))
        return -1;
    if (!what)
        return render_fail(rd, "find() wants a string");
    if (c->how & FIND_LAST)
        TRY(find_last(rd, s, what, from, to, &at));
    else
        at = tstr_find(s, what, from, to);
    if (at == SIZE_MAX && c->how & FIND_OR_FAIL)
        return render_fail(rd, "substring not found");
    struct tstr head = {.data = s->data, .len = at};

    *out = value_int(at == SIZE_MAX ? -1 : (int64_t)tstr_count(&head));
    return 0;
}

/* Implements count(): matches that do not overlap; an empty text is found at every place. */
static int str_count(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s = c->self.s, *what;
    size_t from, to, at;
    int64_t n = 0;

    if (builtin_string(rd, c->a[0], &what) || window(rd, c, &from, &to) ||
        render_charge_bytes(rd, s->len))
        return -1;
    if (!what)
        return render_fail(rd, "count() wants a string");
    if (!what->len && from <= to) {
        struct tstr part = {.data = s->data + from, .len = to - from};

        n = (int64_t)tstr_count(&part) + 1;
    }
    for (at = from; what->len && at <= to && (at = tstr_find(s, what, at, to)) != SIZE_MAX;
         at += what->len) {
        n++;
        TRY(render_charge(rd, 1));
    }
    *out = value_int(n);
    return 0;
}

/* Splits at the separator from the right, at most @max times. */
static int rsplit_at(struct render *rd, const struct tstr *s, const struct tstr *sep, int64_t max,
                     struct seq *list) {
    size_t end = s->len, at;

    assert(sep->len > 0);
    while (max-- != 0) {
        TRY(find_last(rd, s, sep, 0, end, &at));
        if (at == SIZE_MAX)
            break;
        TRY(method_add_slice(rd, list, s, at + sep->len, end));
        end = at;
    }
    return method_add_slice(rd, list, s, 0, end);
}

/* Splits at white space from the right. What is left after @max cuts keeps its white space, but for
 * that at its end. */
static int rsplit_words(struct render *rd, const struct tstr *s, int64_t max, struct seq *list) {
    TRY(split_words(rd, s, -1, list));
    if (max < 0 || list->n <= max)
        return 0;
    uint32_t rest = list->n - (uint32_t)max;
    const struct tstr *last = list->v[rest - 1].s;
    const struct tstr *head = tstr_slice(rd, s, 0, (size_t)(last->data - s->data) + last->len);

    if (!head)
        return -1;
    memmove(list->v + 1, list->v + rest, (size_t)max * sizeof(*list->v));
    list->v[0] = value_str(head);
    list->n = (uint32_t)max + 1;
    return 0;
}

static void reverse_list(struct seq *s) {
    for (uint32_t i = 0; i < s->n / 2; i++) {
        struct value v = s->v[i];

        s->v[i] = s->v[s->n - 1 - i];
        s->v[s->n - 1 - i] = v;
    }
}

static int str_rsplit(struct render *rd, const struct call *c, struct value *out) {
    struct seq *list = seq_new(rd, SEQ_LIST, 0);
    const struct tstr *s = c->self.s, *sep;
    int64_t max;

    if (!list || builtin_string(rd, c->a[0], &sep) || builtin_int(rd, c->a[1], -1, &max) ||
        render_charge_bytes(rd, s->len))
        return -1;
    if (sep && !sep->len)
        return render_fail(rd, "empty separator");
    *out = value_seq(list);
    if (!sep)
        return rsplit_words(rd, s, max, list);
    TRY(rsplit_at(rd, s, sep, max, list));
    reverse_list(list);
    return 0;
}

static int str_splitlines(struct render *rd, const struct call *c, struct value *out) {
    struct seq *list = seq_new(rd, SEQ_LIST, 0);
    const struct tstr *s = c->self.s;

    if (!list || render_charge_bytes(rd, s->len))
        return -1;
    for (size_t pos = 0, next; pos < s->len; pos = next) {
        size_t end = text_line_end(s, pos, &next);

        TRY(method_add_slice(rd, list, s, pos, value_truth(c->a[0]) ? next : end));
    }
    *out = value_seq(list);
    return 0;
}

/* Implements partition() and rpartition(): what is before the separator, it, and what is behind. */
static int str_partition(struct render *rd, const struct call *c, struct value *out) {
    struct seq *list = seq_new(rd, SEQ_TUPLE, 3);
    const struct tstr *s = c->self.s, *sep;
    size_t at, end;

    if (!list || builtin_string(rd, c->a[0], &sep) || render_charge_bytes(rd, s->len))
        return -1;
    if (!sep || !sep->len)
        return render_fail(rd, sep ? "empty separator" : "partition() wants a string");
    if (c->how == RIGHT)
        TRY(find_last(rd, s, sep, 0, s->len, &at));
    else
        at = tstr_find(s, sep, 0, s->len);
    if (at == SIZE_MAX)
        at = end = c->how == RIGHT ? 0 : s->len;
    else
        end = at + sep->len;
    *out = value_seq(list);
    if (method_add_slice(rd, list, s, 0, at) || method_add_slice(rd, list, s, at, end) ||
        method_add_slice(rd, list, s, end, s->len))
        return -1;
    return 0;
}

/* Sorted by name. */
static const struct builtin METHODS[] = {
    {"capitalize", "", 0, str_case, CASE_CAPITALIZE, 0},
    {"casefold", "", 0, str_case, CASE_FOLD, 0},
    {"count", "sub start end", 1, str_count, 0, 0},
    {"endswith", "suffix start end", 1, str_has_affix, RIGHT, 0},
    {"find", "sub start end", 1, str_find, 0, 0},
    {"format", "*", 0, str_format, 0, 0},
    {"index", "sub start end", 1, str_find, FIND_OR_FAIL, 0},
    {"join", "iterable", 1, str_join, 0, 0},
    {"lower", "", 0, str_case, CASE_LOWER, 0},
    {"lstrip", "chars", 0, str_strip, LEFT, 0},
    {"partition", "sep", 1, str_partition, LEFT, 0},
    {"removeprefix", "prefix", 1, str_remove_affix, LEFT, 0},
    {"removesuffix", "suffix", 1, str_remove_affix, RIGHT, 0},
    {"replace", "old new count", 2, str_replace, 0, 0},
    {"rfind", "sub start end", 1, str_find, FIND_LAST, 0},
    {"rindex", "sub start end", 1, str_find, FIND_LAST | FIND_OR_FAIL, 0},
    {"rpartition", "sep", 1, str_partition, RIGHT, 0},
    {"rsplit", "sep maxsplit", 0, str_rsplit, 0, 0},
    {"rstrip", "chars", 0, str_strip, RIGHT, 0},
    {"split", "sep maxsplit", 0, str_split, 0, 0},
    {"splitlines", "keepends", 0, str_splitlines, 0, 0},
    {"startswith", "prefix start end", 1, str_has_affix, LEFT, 0},
    {"strip", "chars", 0, str_strip, LEFT | RIGHT, 0},
    {"swapcase", "", 0, str_case, CASE_SWAP, 0},
    {"title", "", 0, str_case, CASE_TITLE, 0},
    {"upper", "", 0, str_case, CASE_UPPER, 0},
};

const struct builtin *method_find_str(const struct tstr *name) {
    const struct builtin *m = builtin_find(METHODS, ARRAY_SIZE(METHODS), name);

    if (m)
        return m;
    return method_find_kind(name);
}
