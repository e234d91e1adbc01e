/* format - writes values as Python's str() and repr() do. */

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/try.h"
#include "text/template/render.h"

/* Adds one to the last digit of "1.234e5": false when it overflows. */
static bool next_digits(char *digits) {
    for (char *p = strchr(digits, 'e') - 1; p >= digits; p--) {
        if (*p >= '0' && *p < '9') {
            ++*p;
            return true;
        }
        if (*p == '9')
            *p = '0';
        else if (*p != '.')
            return false;
    }
    return false;
}

/*
 * Writes the fewest digits, as "1.234e5", that read back as @d. For a normal number that needs at
 * most 15 digits, 15 digits are printed, whose zeros the caller drops. Below a power of two the
 * doubles lie twice as close as above it. So there the shortest decimal that reads back need not be
 * the nearest one of its length, but may be the next larger one.
 */
static int shortest_digits(double d, char digits[32]) {
    int exponent, precision = fabs(d) >= DBL_MIN ? 14 : 0;
    bool power = fabs(frexp(d, &exponent)) == 0.5;

    assert(isfinite(d)); /* other values have other digits */

    for (;; precision++) {
        snprintf(digits, 32, "%.*e", precision, d);
        if (strtod(digits, NULL) == d || precision == 16)
            return precision;
        if (power && next_digits(digits) && strtod(digits, NULL) == d)
            return precision;
    }
}

/* Writes a float in Python's layout: 1.0, 1e-05, 1e+16. */
void format_double(double d, char out[40]) {
    char digits[32];

    if (!isfinite(d)) {
        strcpy(out, d > 0 ? "inf" : "-inf");
        if (isnan(d))
            strcpy(out, "nan");
        return;
    }
    int precision = shortest_digits(d, digits);
    char *e = strchr(digits, 'e');

    assert(e);
    int exponent = atoi(e + 1);

    for (; precision > 0 && e[-1] == '0'; precision--)
        e--;
    if (e[-1] == '.')
        e--;
    if (exponent < -4 || exponent >= 16)
        snprintf(out, 40, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                 abs(exponent));
    else
        snprintf(out, 40, "%.*f", MAX(precision - exponent, 1), d);
}

static int add_int(struct render *rd, struct sink *k, struct value v) {
    char text[32];

    if (v.type == V_UINT)
        snprintf(text, sizeof(text), "%llu", (unsigned long long)v.u);
    else
        snprintf(text, sizeof(text), "%lld", (long long)v.i);
    return sink_add_text(rd, k, text);
}

/* Returns whether repr() leaves @cp unescaped: it is no control, format, separator or unassigned
 * character. */
static bool format_printable(uint32_t cp) {
    static const uint32_t hidden = 1u << UTF8PROC_CATEGORY_CN | 1u << UTF8PROC_CATEGORY_CC |
                                   1u << UTF8PROC_CATEGORY_CF | 1u << UTF8PROC_CATEGORY_CS |
                                   1u << UTF8PROC_CATEGORY_CO | 1u << UTF8PROC_CATEGORY_ZS |
                                   1u << UTF8PROC_CATEGORY_ZL | 1u << UTF8PROC_CATEGORY_ZP;

    if (cp < 0x7f)
        return cp >= 0x20;
    return cp >= 0x110000 || !(hidden >> utf8proc_category((utf8proc_int32_t)cp) & 1);
}

static int add_escape(struct render *rd, struct sink *k, uint32_t cp, bool user) {
    char text[16];

    if (cp == '\\' || cp == '\'')
        snprintf(text, sizeof(text), "\\%c", (int)cp);
    else if (cp == '\n')
        strcpy(text, "\\n");
    else if (cp == '\r')
        strcpy(text, "\\r");
    else if (cp == '\t')
        strcpy(text, "\\t");
    else if (cp < 0x100)
        snprintf(text, sizeof(text), "\\x%02x", cp);
    else
        snprintf(text, sizeof(text), cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    return sink_add(rd, k, text, strlen(text), user);
}

/* Writes the repr() of a string. Python prefers single quotes, unless these would need escapes and
 * double quotes would not. */
static int repr_str(struct render *rd, struct sink *k, const struct tstr *s) {
    bool doubled = memchr(s->data, '\'', s->len) && !memchr(s->data, '"', s->len);
    const char *quote = doubled ? "\"" : "'";
    size_t done = 0, w;

    if (s->safe)
        TRY(sink_add_text(rd, k, "Markup("));
    TRY(sink_add_text(rd, k, quote));
    for (size_t i = 0; i < s->len; i += w) {
        uint32_t cp = tstr_decode(s->data, s->len, i, &w);

        if (format_printable(cp) && cp != '\\' && (cp != '\'' || doubled))
            continue;
        if (sink_add_part(rd, k, s, done, i) || add_escape(rd, k, cp, tstr_user_at(s, i)))
            return -1;
        done = i + w;
    }
    if (sink_add_part(rd, k, s, done, s->len) || sink_add_text(rd, k, quote) ||
        (s->safe && sink_add_text(rd, k, ")")))
        return -1;
    return 0;
}

static int repr_dict(struct render *rd, struct sink *k, const struct dict *d) {
    if (sink_add_text(rd, k, "{"))
        return -1;
    for (uint32_t i = 0; i < d->n; i++) {
        if ((i && sink_add_text(rd, k, ", ")) || format_repr(rd, k, d->e[i].key) ||
            sink_add_text(rd, k, ": ") || format_repr(rd, k, d->e[i].value))
            return -1;
    }
    return sink_add_text(rd, k, "}");
}

static int repr_range(struct render *rd, struct sink *k, const struct seq *s) {
    const struct value *bound = s->v;
    uint32_t n = value_wide(bound[2]) == 1 ? 2 : 3;

    for (uint32_t i = 0; i < n; i++)
        if (sink_add_text(rd, k, i ? ", " : "range(") || format_repr(rd, k, bound[i]))
            return -1;
    return sink_add_text(rd, k, ")");
}

static int repr_seq(struct render *rd, struct sink *k, const struct seq *s) {
    static const char *const open[] = {
        "[", "(", "", "<generator object>", "dict_keys([", "dict_values([", "dict_items(["};
    static const char *const close[] = {"]", ")", "", "", "])", "])", "])"};

    if (s->kind == SEQ_RANGE)
        return repr_range(rd, k, s);
    TRY(sink_add_text(rd, k, open[s->kind]));
    for (uint32_t i = 0; i < s->n && s->kind != SEQ_GENERATOR; i++) {
        if ((i && sink_add_text(rd, k, ", ")) || format_repr(rd, k, s->v[i]))
            return -1;
    }
    if (s->kind == SEQ_TUPLE && s->n == 1 && sink_add_text(rd, k, ","))
        return -1;
    return sink_add_text(rd, k, close[s->kind]);
}

static int repr_namespace(struct render *rd, struct sink *k, const struct dict *d) {
    if (sink_add_text(rd, k, "<Namespace ") || repr_dict(rd, k, d) || sink_add_text(rd, k, ">"))
        return -1;
    return 0;
}

/* Writes the repr() of a list or dict. Brackets and commas of a value that came as a whole from the
 * user are also marked as the user's text (all_user). */
static int repr_container(struct render *rd, struct sink *k, struct value v) {
    bool user = v.type == V_SEQ ? v.seq->user : v.dict->user;

    if (render_enter(rd) || render_charge(rd, 1))
        return -1;
    k->all_user += user;
    int r;
    if (v.type == V_SEQ)
        r = repr_seq(rd, k, v.seq);
    else if (v.type == V_DICT)
        r = repr_dict(rd, k, v.dict);
    else
        r = repr_namespace(rd, k, v.dict);

    k->all_user -= user;
    render_exit(rd);
    return r;
}

int format_repr(struct render *rd, struct sink *k, struct value v) {
    char text[128];

    switch (v.type) {
    case V_UNDEFINED:
        return sink_add_text(rd, k, "Undefined");
    case V_NONE:
        return sink_add_text(rd, k, "None");
    case V_BOOL:
        return sink_add_text(rd, k, v.b ? "True" : "False");
    case V_INT:
    case V_UINT:
        return add_int(rd, k, v);
    case V_FLOAT:
        format_double(v.f, text);
        if (render_charge(rd, FLOAT_STEPS) || sink_add_text(rd, k, text))
            return -1;
        return 0;
    case V_STR:
        return repr_str(rd, k, v.s);
    case V_SEQ:
    case V_DICT:
    case V_NAMESPACE:
        return repr_container(rd, k, v);
    case V_MACRO:
        if (sink_add_text(rd, k, "<Macro '") || sink_add_str(rd, k, v.macro->def->name) ||
            sink_add_text(rd, k, "'>"))
            return -1;
        return 0;
    case V_METHOD:
        snprintf(text, sizeof(text), "<built-in method %s of %s object>", v.method->fn->name,
                 value_type_name(v.method->self));
        return sink_add_text(rd, k, text);
    case V_FUNCTION:
        snprintf(text, sizeof(text), "<function %s>", v.fn->name);
        return sink_add_text(rd, k, text);
    default:
        snprintf(text, sizeof(text), "<LoopContext %u/%u>", v.loop->i + 1, v.loop->n);
        return sink_add_text(rd, k, text);
    }
}

/* Writes str() of a value. It differs from repr() for strings, and for undefined, which is empty.
 * */
int format_str(struct render *rd, struct sink *k, struct value v) {
    if (v.type == V_UNDEFINED)
        return 0;
    if (v.type == V_STR)
        return sink_add_str(rd, k, v.s);
    return format_repr(rd, k, v);
}

/* Returns a string unchanged and formats any other value. */
int format_to_str(struct render *rd, struct value v, const struct tstr **out) {
    if (v.type == V_STR) {
        *out = v.s;
        return 0;
    }
    struct sink *k = sink_new(rd);

    if (!k || format_str(rd, k, v))
        return -1;
    *out = sink_string(rd, k);
    if (!*out)
        return -1;
    return 0;
}
