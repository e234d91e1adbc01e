/* filters_text - filters on strings and numbers. A value that is not a string is converted by
 * str(), as in Jinja. */

#include <math.h>
#include <yyjson.h>

#include "base/try.h"
#include "text/template/builtin.h"

/* Refuses values that are not strings, for the few filters that need one. */
static int the_string(struct render *rd, const struct call *c, const char *name,
                      const struct tstr **out) {
    if (c->self.type == V_UNDEFINED)
        return value_fail_undefined(rd, c->self);
    if (c->self.type != V_STR)
        return render_fail(rd, "%s wants a string, not '%s'", name, value_type_name(c->self));
    *out = c->self.s;
    return 0;
}

static int filter_case(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;

    if (format_to_str(rd, c->self, &s) || text_case(rd, s, (enum case_mode)c->how, out))
        return -1;
    return 0;
}

static int filter_trim(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;

    if (format_to_str(rd, c->self, &s) || text_strip(rd, s, c->a[0], true, true, out))
        return -1;
    return 0;
}

static int filter_replace(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s, *from, *to;
    int64_t count;

    if (format_to_str(rd, c->self, &s) || format_to_str(rd, c->a[0], &from) ||
        format_to_str(rd, c->a[1], &to) || builtin_int(rd, c->a[2], -1, &count))
        return -1;
    return text_replace(rd, s, from, to, count, out);
}

static int filter_string(struct render *rd, const struct call *c, struct value *out) {
    out->type = V_STR;
    return format_to_str(rd, c->self, &out->s);
}

/* Marks a string as markup. Only `+` uses the mark: it escapes the other side. */
static int filter_safe(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;

    if (format_to_str(rd, c->self, &s) || !(s = tstr_safe(rd, s, true)))
        return -1;
    *out = value_str(s);
    return 0;
}

/* Implements indent(). The first line and empty lines are not changed unless the arguments say
 * so. */
static int filter_indent(struct render *rd, const struct call *c, struct value *out) {
    static const char blanks[] = "                                                                ";
    const struct tstr *s = NULL, *in;
    struct sink *k = sink_new(rd);
    bool first = value_truth(c->a[1]), blank = value_truth(c->a[2]);
    int64_t width;

    if (!k || the_string(rd, c, "indent", &s) || render_charge_bytes(rd, s->len))
        return -1;
    if (c->a[0].type == V_STR) {
        in = c->a[0].s;
    } else {
        TRY(builtin_int(rd, c->a[0], 4, &width));
        if (width > (int64_t)sizeof(blanks) - 1)
            return render_fail(rd, "indent: the width must be at most %zu", sizeof(blanks) - 1);
        in = tstr_new(rd, blanks, (size_t)MAX(width, (int64_t)0), false);
        if (!in)
            return -1;
    }
    /* Jinja appends a newline and splits into lines, so a trailing newline is kept. */
    for (size_t pos = 0, next, line = 0; pos < s->len || line == 0; pos = next, line++) {
        size_t end = text_line_end(s, pos, &next);
        bool wanted = line == 0 ? first : (blank || end > pos);

        if ((line && sink_add_text(rd, k, "\n")) || (wanted && sink_add_str(rd, k, in)) ||
            sink_add_part(rd, k, s, pos, end))
            return -1;
        if (next == s->len && end < s->len) {
            if (sink_add_text(rd, k, "\n") || (blank && sink_add_str(rd, k, in)))
                return -1;
        }
    }
    in = sink_string(rd, k);
    if (in)
        in = tstr_safe(rd, in, s->safe);
    *out = value_str(in);
    if (!in)
        return -1;
    return 0;
}

/* Implements int(). A text that spells no number gives the default, 0. */
static int filter_int(struct render *rd, const struct call *c, struct value *out) {
    struct value v = c->self;
    int64_t base;
    wide n;
    double f;

    *out = c->a[0].type == V_MISSING ? value_int(0) : c->a[0];
    if (v.type == V_UNDEFINED)
        return value_fail_undefined(rd, v);
    TRY(builtin_int(rd, c->a[1], 10, &base));
    if (value_is_int(v))
        return value_from_wide(rd, value_wide(v), out);
    if (v.type == V_STR && base >= 2 && base <= 36 && text_to_int(v.s, (int)base, &n))
        return value_from_wide(rd, n, out);
    if (v.type == V_FLOAT)
        f = v.f;
    else if (v.type != V_STR || !text_to_double(v.s, &f))
        return 0;
    if (!isfinite(f))
        return 0;
    if (fabs(f) >= 1.8e19)
        return render_fail(rd, "an integer has more than 64 bits");
    return value_from_wide(rd, (wide)f, out);
}

/* Implements from_json and fromjson, which transformers does not have, but a few published
 * templates use. */
static int filter_from_json(struct render *rd, const struct call *c, struct value *out) {
    if (c->self.type != V_STR)
        return render_fail(rd, "the JSON object must be str, bytes or bytearray, not %s",
                           value_type_name(c->self));
    size_t len = c->self.s->len, n;
    bool user = c->self.s->n_marks > 0;
    char *text = render_alloc(rd, len + 1, 1);

    if (!text || render_charge_bytes(rd, len))
        return -1;
    memcpy(text, c->self.s->data, len);
    n = yyjson_read_max_memory_usage(len, 0);
    void *pool = render_alloc(rd, n, 1);
    yyjson_alc alc;

    if (!pool || !yyjson_alc_pool_init(&alc, pool, n))
        return render_fail_limit(rd, "the template needs too much memory");
    /* Allocates the document in the arena, since the values point into it. */
    yyjson_doc *doc = yyjson_read_opts(text, len, 0, &alc, NULL);

    if (!doc)
        return render_fail(rd, "from_json: the text is not JSON");
    return render_from_json(rd, yyjson_doc_get_root(doc), user, out);
}

/* Sorted by name. */
const struct builtin FILTERS_TEXT[] = {
    {"capitalize", "", 0, filter_case, CASE_CAPITALIZE, 0},
    {"from_json", "", 0, filter_from_json, 0, 0},
    {"fromjson", "", 0, filter_from_json, 0, 0},
    {"indent", "width first blank", 0, filter_indent, 0, 0},
    {"int", "default base", 0, filter_int, 0, 0},
    {"lower", "", 0, filter_case, CASE_LOWER, 0},
    {"replace", "old new count", 2, filter_replace, 0, 0},
    {"safe", "", 0, filter_safe, 0, 0},
    {"string", "", 0, filter_string, 0, 0},
    {"title", "", 0, filter_case, CASE_WORDS, 0},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, tojson, 0, 0},
    {"trim", "chars", 0, filter_trim, 0, 0},
    {"upper", "", 0, filter_case, CASE_UPPER, 0},
};
const size_t N_FILTERS_TEXT = ARRAY_SIZE(FILTERS_TEXT);
