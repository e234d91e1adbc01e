/* filters_more - the filters of Jinja2 that few chat templates use: words and fields of text,
 * numbers, and groups of values. */

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "text/template/builtin.h"

/* ---- text ---- */

static int filter_center(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;
    int64_t width;

    if (format_to_str(rd, c->self, &s) || builtin_int(rd, c->a[0], 80, &width))
        return -1;
    return text_pad(rd, s, width, ' ', PAD_CENTER, out);
}

static int filter_wordcount(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;
    int64_t n = 0;
    bool inside = false;
    size_t w;

    if (format_to_str(rd, c->self, &s) || render_charge_bytes(rd, s->len * 2))
        return -1;
    for (size_t i = 0; i < s->len; i += w) {
        uint32_t cp = tstr_decode(s->data, s->len, i, &w);
        bool word = cp == '_' || text_is_kind(cp, KIND_ALNUM);

        n += word && !inside;
        inside = word;
    }
    *out = value_int(n);
    return 0;
}

/* Implements truncate(): cuts a text that is longer than `length` by more than `leeway`, at a blank
 * unless `killwords`, and appends `end`. */
static int filter_truncate(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s, *end, *part;
    int64_t length, leeway, n_end;

    if (builtin_string(rd, c->self, &s) || builtin_int(rd, c->a[0], 255, &length) ||
        builtin_string(rd, c->a[2], &end) || builtin_int(rd, c->a[3], 5, &leeway))
        return -1;
    if (!s)
        return render_fail(rd, "truncate wants a string");
    end = end ? end : TSTR_STATIC("...");
    n_end = (int64_t)tstr_count(end);
    if (length < n_end || leeway < 0)
        return render_fail(rd, "expected length >= %lld", (long long)n_end);
    TRY(render_charge_bytes(rd, s->len));
    *out = c->self;
    if ((int64_t)tstr_count(s) <= length + MIN(leeway, (int64_t)1 << 40))
        return 0;
    size_t cut = tstr_offset(s, (size_t)(length - n_end));
    const char *blank = value_truth(c->a[1]) ? NULL : memrchr(s->data, ' ', cut);

    part = tstr_slice(rd, s, 0, blank ? (size_t)(blank - s->data) : cut);
    part = part ? tstr_concat(rd, part, end) : NULL;
    *out = value_str(part);
    if (!part)
        return -1;
    return 0;
}

/* Writes @s with the bytes escaped that an address must not have. @query: as a part of a query. */
static int url_quote(struct render *rd, struct sink *k, const struct tstr *s, bool query) {
    size_t done = 0;

    for (size_t i = 0; i < s->len; i++) {
        unsigned char c = (unsigned char)s->data[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        char text[4] = "+";

        if (plain)
            continue;
        if (c != ' ' || !query)
            snprintf(text, sizeof(text), "%%%02X", c);
        if (sink_add_part(rd, k, s, done, i) ||
            sink_add(rd, k, text, strlen(text), tstr_user_at(s, i)))
            return -1;
        done = i + 1;
    }
    return sink_add_part(rd, k, s, done, s->len);
}

static int url_quote_value(struct render *rd, struct sink *k, struct value v) {
    const struct tstr *s;

    if (format_to_str(rd, v, &s) || url_quote(rd, k, s, true))
        return -1;
    return 0;
}

/* Implements urlencode() of a text, or of the pairs of a dict or list as a query. */
static int filter_urlencode(struct render *rd, const struct call *c, struct value *out) {
    struct sink *k = sink_new(rd);
    const struct tstr *s;
    struct value v = c->self, *items;
    uint32_t n;

    if (!k)
        return -1;
    if (v.type != V_DICT && v.type != V_SEQ) {
        if (format_to_str(rd, v, &s) || url_quote(rd, k, s, false))
            return -1;
    } else {
        if (v.type == V_DICT)
            TRY(call_named(rd, "filter", filter_find(TSTR_STATIC("items")), TSTR_STATIC("items"), v,
                           &(struct args){0}, &v));
        TRY(value_items(rd, v, &items, &n));
        for (uint32_t i = 0; i < n; i++) {
            if (items[i].type != V_SEQ || items[i].seq->n != 2)
                return render_fail(rd, "urlencode wants pairs");
            if ((i && sink_add_text(rd, k, "&")) ||
                url_quote_value(rd, k, seq_at(items[i].seq, 0)) || sink_add_text(rd, k, "=") ||
                url_quote_value(rd, k, seq_at(items[i].seq, 1)))
                return -1;
        }
    }
    *out = value_str(sink_string(rd, k));
    if (out->s)
        return 0;
    return -1;
}

/* Implements escape() and, with `how`, forceescape(), which escapes markup, too. */
static int filter_escape(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;

    TRY(format_to_str(rd, c->self, &s));
    if (!s->safe || c->how)
        s = tstr_escape(rd, s);
    *out = value_str(s);
    if (!s)
        return -1;
    return 0;
}

/* Implements format(), the operator % as a filter. */
static int filter_format(struct render *rd, const struct call *c, struct value *out) {
    const struct args *args = c->args;
    const struct tstr *s;
    struct value values;

    TRY(format_to_str(rd, c->self, &s));
    if (args->n_pos && args->n_kw)
        return render_fail(rd, "can't handle positional and keyword arguments at the same time");
    if (args->n_kw) {
        struct dict *d = dict_new(rd, args->n_kw);

        if (!d || dict_fill(rd, d, args))
            return -1;
        values = value_dict(d);
    } else {
        struct seq *list = seq_new(rd, SEQ_TUPLE, args->n_pos);

        for (uint32_t i = 0; list && i < args->n_pos; i++)
            list->v[list->n++] = args->pos[i];
        if (!list)
            return -1;
        values = value_seq(list);
    }
    return format_percent(rd, s, values, out);
}

/* ---- numbers ---- */

static int filter_abs(struct render *rd, const struct call *c, struct value *out) {
    struct value v = c->self;

    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    if (!value_is_number(v))
        return render_fail(rd, "bad operand type for abs(): '%s'", value_type_name(v));
    if (v.type == V_FLOAT) {
        *out = value_float(fabs(v.f));
        return 0;
    }
    wide w = value_wide(v);

    return value_from_wide(rd, w < 0 ? -w : w, out);
}

static int filter_float(struct render *rd, const struct call *c, struct value *out) {
    struct value v = c->self;
    double f;

    *out = c->a[0].type == V_MISSING ? value_float(0) : c->a[0];
    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    if (value_is_number(v))
        *out = value_float(value_double(v));
    else if (v.type == V_STR && text_to_double(v.s, &f))
        *out = value_float(f);
    return 0;
}

/* Rounds to the nearest number with @digits behind the point; halves to an even digit, as Python's
 * round(). A negative number of digits rounds before the point. */
static double round_common(double d, int64_t digits) {
    char text[800];

    if (!isfinite(d) || digits > 340)
        return d;
    if (digits < -310)
        return copysign(0, d);
    if (digits < 0) {
        double unit = pow(10, (double)-digits);

        return rint(d / unit) * unit;
    }
    snprintf(text, sizeof(text), "%.*f", (int)digits, d);
    return strtod(text, NULL);
}

/* Rounds an integer to a multiple of 10 ** digits. */
static int round_integer(struct render *rd, wide w, int64_t digits, struct value *out) {
    wide unit = 1;

    for (; digits > 0 && unit < (wide)1 << 100; digits--)
        unit *= 10;
    wide rest = w % unit, half = rest < 0 ? -rest * 2 : rest * 2, q = w / unit;

    if (half > unit || (half == unit && q % 2))
        q += w < 0 ? -1 : 1;
    return value_from_wide(rd, q * unit, out);
}

/* Implements round(precision, method). */
static int filter_round(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *method;
    struct value v = c->self;
    int64_t digits;

    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    if (builtin_int(rd, c->a[0], 0, &digits) || builtin_string(rd, c->a[1], &method) ||
        render_charge(rd, FLOAT_STEPS))
        return -1;
    if (!value_is_number(v))
        return render_fail(rd, "type %s doesn't define __round__ method", value_type_name(v));
    if (!method || tstr_is(method, "common")) {
        if (v.type != V_FLOAT)
            return round_integer(rd, value_wide(v), digits < 0 ? MIN(-digits, (int64_t)40) : 0,
                                 out);
        *out = value_float(round_common(v.f, digits));
        return 0;
    }
    bool up = tstr_is(method, "ceil");

    if (!up && !tstr_is(method, "floor"))
        return render_fail(rd, "method must be common, ceil or floor");
    double unit = pow(10, (double)digits), scaled = value_double(v) * unit;

    if (!isfinite(scaled) || unit == 0 || !isfinite(unit))
        return render_fail(rd, "cannot convert float infinity to integer");
    double (*to_whole)(double) = up ? ceil : floor;

    *out = value_float(to_whole(scaled) / unit);
    return 0;
}

/* ---- groups ---- */

static int group_items(struct render *rd, const struct call *c, struct value **v, uint32_t *n) {
    if (value_items(rd, c->self, v, n) || render_charge(rd, *n))
        return -1;
    return 0;
}

/* Implements sum(attribute, start). */
static int filter_sum(struct render *rd, const struct call *c, struct value *out) {
    struct value *items, v, sum = c->a[1].type == V_MISSING ? value_int(0) : c->a[1];
    uint32_t n;

    if (sum.type == V_STR)
        return render_fail(rd, "sum() can't sum strings [use ''.join(seq) instead]");
    TRY(group_items(rd, c, &items, &n));
    for (uint32_t i = 0; i < n; i++) {
        TRY(builtin_attribute(rd, items[i], c->a[0], &v));
        TRY(operator_binary(rd, OP_ADD, sum, v, &sum));
    }
    *out = sum;
    return 0;
}

/* Implements unique(): the first one of equal values; text regardless of case. */
static int filter_unique(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = seq_new(rd, SEQ_GENERATOR, 0);
    struct dict *seen = dict_new(rd, 0);
    struct value *items, *keys;
    uint32_t n;

    if (!s || !seen || group_items(rd, c, &items, &n) ||
        builtin_keys(rd, items, n, c->a[1], value_truth(c->a[0]), &keys))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = seen->n;

        TRY(dict_set(rd, seen, keys[i], value_none()));
        if (seen->n > before)
            TRY(seq_build(rd, s, items[i]));
    }
    *out = value_seq(s);
    return 0;
}

/* Makes a list of @n values and then of @more times @fill. */
static int group_list(struct render *rd, const struct value *v, uint32_t n, uint32_t more,
                      struct value fill, struct value *out) {
    struct seq *s = seq_new(rd, SEQ_LIST, n + more);

    if (!s || render_charge(rd, more))
        return -1;
    if (n)
        memcpy(s->v, v, n * sizeof(*v));
    for (s->n = n; s->n < n + more;)
        s->v[s->n++] = fill;
    *out = value_seq(s);
    return 0;
}

static bool is_fill(struct value v) {
    return v.type != V_MISSING && v.type != V_NONE;
}

/* Implements batch(linecount, fill_with): lists of that many values. */
static int filter_batch(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = seq_new(rd, SEQ_GENERATOR, 0);
    struct value *items, list;
    int64_t size;
    uint32_t n;

    if (!s || builtin_int(rd, c->a[0], 0, &size) || group_items(rd, c, &items, &n))
        return -1;
    bool fills = is_fill(c->a[1]) && size > 0;

    if (fills && size > UINT32_MAX / 4)
        return render_fail_limit(rd, "a list becomes too long");
    if (size < 1 || size > n) /* all in one */
        size = fills ? size : n;
    for (uint32_t i = 0; i < n;) {
        uint32_t some = (uint32_t)MIN(size, (int64_t)(n - i));
        uint32_t more = fills ? (uint32_t)size - some : 0;

        TRY(group_list(rd, items + i, some, more, c->a[1], &list));
        TRY(seq_build(rd, s, list));
        i += some;
    }
    *out = value_seq(s);
    return 0;
}

/* Implements slice(slices, fill_with): that many lists of almost the same length. */
static int filter_slice(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = seq_new(rd, SEQ_GENERATOR, 0);
    struct value *items, list;
    int64_t slices;
    uint32_t n, at = 0;

    if (!s || builtin_int(rd, c->a[0], 0, &slices) || group_items(rd, c, &items, &n))
        return -1;
    if (slices == 0)
        return render_fail(rd, "integer division or modulo by zero");
    for (int64_t i = 0; i < slices; i++) {
        uint32_t some = (uint32_t)(n / slices + (i < n % slices));

        TRY(render_charge(rd, 1));
        TRY(group_list(rd, some ? items + at : NULL, some, is_fill(c->a[1]) && i >= n % slices,
                       c->a[1], &list));
        TRY(seq_build(rd, s, list));
        at += some;
    }
    *out = value_seq(s);
    return 0;
}

/* Makes the pair (grouper, list) of equal keys [begin, end). */
static int group_pair(struct render *rd, struct value key, const struct value *v, uint32_t n,
                      struct value *out) {
    struct value list;

    if (group_list(rd, v, n, 0, value_none(), &list) || value_pair(rd, key, list, out))
        return -1;
    out->seq->group = true;
    return 0;
}

/* Sets keys[i] to the attribute of each value, or the default. */
static int group_keys(struct render *rd, const struct call *c, const struct value *v, uint32_t n,
                      bool sensitive, struct value **out) {
    struct value def = c->a[1];

    TRY(builtin_keys(rd, v, n, c->a[0], sensitive, out));
    for (uint32_t i = 0; i < n; i++) {
        if ((*out)[i].type != V_UNDEFINED)
            continue;
        if (is_fill(def))
            (*out)[i] = def;
        else if (n > 1)
            return value_fail_undefined(rd, (*out)[i]);
    }
    return 0;
}

/* Implements groupby(attribute, default, case_sensitive). */
static int filter_groupby(struct render *rd, const struct call *c, struct value *out) {
    struct seq *s = seq_new(rd, SEQ_LIST, 0);
    bool sensitive = value_truth(c->a[2]), same;
    struct value *items, *sorted, *keys, *names, pair;
    uint32_t n;

    if (!s || group_items(rd, c, &items, &n) || group_list(rd, items, n, 0, value_none(), &pair))
        return -1;
    sorted = pair.seq->v;
    if (group_keys(rd, c, sorted, n, sensitive, &keys) || value_sort(rd, sorted, keys, n, false) ||
        group_keys(rd, c, sorted, n, sensitive, &keys) ||
        group_keys(rd, c, sorted, n, true, &names))
        return -1;
    for (uint32_t i = 0, begin = 0; i < n; i++) {
        same = false;
        if (i + 1 < n)
            TRY(value_equal(rd, keys[i], keys[i + 1], &same));
        if (same)
            continue;
        TRY(group_pair(rd, names[begin], sorted + begin, i + 1 - begin, &pair));
        TRY(seq_build(rd, s, pair));
        begin = i + 1;
    }
    *out = value_seq(s);
    return 0;
}

/* Implements attr(): an attribute, never an item. */
static int filter_attr(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *name;

    TRY(format_to_str(rd, c->a[0], &name));
    if (c->self.type == V_DICT && !method_find(c->self, name)) {
        *out = value_undefined(name, V_DICT);
        return 0;
    }
    return operator_attr(rd, c->self, name, out);
}

/* Sorted by name. */
static const struct builtin FILTERS_MORE[] = {
    {"abs", "", 0, filter_abs, 0, 0},
    {"attr", "name", 1, filter_attr, 0, 0},
    {"batch", "linecount fill_with", 1, filter_batch, 0, BUILTIN_MAKES_SEQ},
    {"center", "width", 0, filter_center, 0, 0},
    {"e", "", 0, filter_escape, 0, 0},
    {"escape", "", 0, filter_escape, 0, 0},
    {"float", "default", 0, filter_float, 0, 0},
    {"forceescape", "", 0, filter_escape, 1, 0},
    {"format", "*", 0, filter_format, 0, 0},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby, 0, BUILTIN_MAKES_SEQ},
    {"round", "precision method", 0, filter_round, 0, 0},
    {"slice", "slices fill_with", 1, filter_slice, 0, BUILTIN_MAKES_SEQ},
    {"sum", "attribute start", 0, filter_sum, 0, 0},
    {"truncate", "length killwords end leeway", 0, filter_truncate, 0, 0},
    {"unique", "case_sensitive attribute", 0, filter_unique, 0, BUILTIN_MAKES_SEQ},
    {"urlencode", "", 0, filter_urlencode, 0, 0},
    {"wordcount", "", 0, filter_wordcount, 0, 0},
};

const struct builtin *filter_find_more(const struct tstr *name) {
    return builtin_find(FILTERS_MORE, ARRAY_SIZE(FILTERS_MORE), name);
}
