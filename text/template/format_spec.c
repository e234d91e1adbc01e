/* Python's two ways to fill in a string: `%` and str.format(). */

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "text/template/render.h"

/* A conversion as both languages have it. */
struct spec {
    char fill[4];
    uint8_t n_fill;
    char align; /* < > ^ or 0 */
    char sign;  /* + or space or 0 */
    bool alternate, zero, comma;
    int width, precision; /* precision -1: none */
    char type;            /* 0: none */
};

#define WIDTH_MAX 10000

/* Width counts code points. */
static int add_padded(struct render *rd, struct sink *k, const struct tstr *s,
                      const struct spec *spec, char align) {
    size_t n = tstr_count(s), pad = (size_t)spec->width > n ? (size_t)spec->width - n : 0;
    size_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;

    assert(spec->n_fill > 0 && spec->n_fill <= sizeof(spec->fill) && spec->width <= WIDTH_MAX);
    for (size_t i = 0; i < left; i++) {
        if (sink_add(rd, k, spec->fill, spec->n_fill, false))
            return -1;
    }
    if (sink_add_str(rd, k, s))
        return -1;
    for (size_t i = left; i < pad; i++) {
        if (sink_add(rd, k, spec->fill, spec->n_fill, false))
            return -1;
    }
    return 0;
}

/* Puts commas into the integer part; the caller's array has room. */
static void group_thousands(char *text) {
    size_t len = strlen(text), begin = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    size_t end = begin + strspn(text + begin, "0123456789");

    for (size_t i = end; i > begin + 3; i -= 3) {
        memmove(text + i - 2, text + i - 3, len + 1 - (i - 3));
        text[i - 3] = ',';
        len++;
    }
}

/* Digits of a number by @spec: 0, or a failure for a type that does not fit. */
static int number_text(struct render *rd, struct value v, const struct spec *spec, char *text,
                       size_t size) {
    char fmt[16] = "%", *f = fmt + 1;
    char type = spec->type ? spec->type : v.type == V_FLOAT ? 'r' : 'd';

    assert(value_is_number(v));
    if (spec->sign)
        *f++ = spec->sign;
    if (spec->alternate)
        *f++ = '#';
    if (strchr("eEfFgG%", type)) {
        int precision = MIN(spec->precision < 0 ? 6 : spec->precision, 60);

        memcpy(f, ".*", 2);
        f[2] = type == '%' ? 'f' : type;
        snprintf(text, size, fmt, precision, type == '%' ? value_double(v) * 100 : value_double(v));
        if (type == '%')
            strcat(text, "%");
    } else if (type == 'r') {
        format_double(v.f, text);
    } else if (strchr("dixXou", type) && v.type != V_FLOAT) {
        wide w = value_wide(v);
        unsigned long long magnitude = (unsigned long long)(w < 0 ? -w : w);
        char digits[40];

        snprintf(digits, sizeof(digits),
                 type == 'x'   ? "%llx"
                 : type == 'X' ? "%llX"
                 : type == 'o' ? "%llo"
                               : "%llu",
                 magnitude);
        snprintf(text, size, "%s%s%s",
                 w < 0               ? "-"
                 : spec->sign == '+' ? "+"
                 : spec->sign        ? " "
                                     : "",
                 !spec->alternate ? ""
                 : type == 'x'    ? "0x"
                 : type == 'X'    ? "0X"
                 : type == 'o'    ? "0o"
                                  : "",
                 digits);
    } else {
        return render_fail(rd, "unknown format code '%c' for object of type '%s'", type,
                           value_type_name(v));
    }
    if (spec->comma)
        group_thousands(text);
    return 0;
}

/* Zeros go between sign and digits. */
static int add_number(struct render *rd, struct sink *k, struct value v, const struct spec *spec) {
    char text[500];
    size_t sign, len;

    if (number_text(rd, v, spec, text, 420))
        return -1;
    len = strlen(text);
    assert(len < sizeof(text)); /* 420 leave room for commas */
    sign = text[0] == '-' || text[0] == '+' || text[0] == ' ';
    if (spec->zero && !spec->align) {
        if (sink_add(rd, k, text, sign, false))
            return -1;
        for (size_t i = len; i < (size_t)spec->width; i++) {
            if (sink_add_text(rd, k, "0"))
                return -1;
        }
        return sink_add(rd, k, text + sign, len - sign, false);
    }
    struct tstr s = {.data = text, .len = len};

    return add_padded(rd, k, &s, spec, spec->align ? spec->align : '>');
}

static int add_text(struct render *rd, struct sink *k, const struct tstr *s,
                    const struct spec *spec, char align) {
    if (spec->precision >= 0)
        s = tstr_slice(rd, s, 0, tstr_offset(s, (size_t)spec->precision));
    return !s || add_padded(rd, k, s, spec, spec->align ? spec->align : align) ? -1 : 0;
}

/* Stops growing at the limit, which the caller refuses. */
static int read_number(const char *s, size_t len, size_t *i) {
    int n = 0;

    for (; *i < len && s[*i] >= '0' && s[*i] <= '9'; ++*i)
        n = n < WIDTH_MAX ? n * 10 + (s[*i] - '0') : n;
    return MIN(n, WIDTH_MAX);
}

/* One % conversion behind the percent sign at *i. */
static int percent_spec(struct render *rd, const struct tstr *fmt, size_t *i, struct spec *spec) {
    const char *s = fmt->data;

    *spec = (struct spec){.fill = " ", .n_fill = 1, .precision = -1};
    for (; *i < fmt->len && strchr("-+ #0", s[*i]) && s[*i]; ++*i) {
        if (s[*i] == '-')
            spec->align = '<';
        else if (s[*i] == '0')
            spec->zero = true;
        else if (s[*i] == '#')
            spec->alternate = true;
        else if (spec->sign != '+')
            spec->sign = s[*i];
    }
    spec->width = read_number(s, fmt->len, i);
    if (*i < fmt->len && s[*i] == '.') {
        ++*i;
        spec->precision = read_number(s, fmt->len, i);
    }
    if (*i >= fmt->len)
        return render_fail(rd, "incomplete format");
    if (spec->width >= WIDTH_MAX || spec->precision >= WIDTH_MAX)
        return render_fail(rd, "a width of %d or more in a format", WIDTH_MAX);
    spec->type = s[(*i)++];
    return 0;
}

/* %s takes anything; the others want a number. */
static int percent_value(struct render *rd, struct sink *k, struct value v, struct spec *spec) {
    const struct tstr *s;

    if (spec->type == 's') {
        if (format_to_str(rd, v, &s))
            return -1;
        return add_text(rd, k, s, spec, '>');
    }
    if (spec->type == 'r') {
        struct sink *r = sink_new(rd);

        if (!r || format_repr(rd, r, v) || !(s = sink_take(rd, r)))
            return -1;
        return add_text(rd, k, s, spec, '>');
    }
    if (!value_is_number(v))
        return render_fail(rd, "%%%c format: a number is required, not %s", spec->type,
                           value_type_name(v));
    if (strchr("di", spec->type) && v.type == V_FLOAT && fabs(v.f) < 9e18)
        v = value_int((int64_t)v.f);
    return add_number(rd, k, v, spec);
}

/* Finds the argument of the conversion at *i (behind the percent sign): `(name)`, or the next
 * one. */
static int percent_argument(struct render *rd, const struct tstr *fmt, size_t *i, struct value args,
                            uint32_t *next, struct value *v) {
    bool tuple = value_is_seq(args, SEQ_TUPLE);

    *v = args;
    if (*i < fmt->len && fmt->data[*i] == '(') {
        const char *begin = fmt->data + *i + 1, *close = memchr(begin, ')', fmt->len - *i - 1);

        if (!close || args.type != V_DICT)
            return render_fail(rd, "format requires a mapping");
        struct tstr key = {.data = begin, .len = (size_t)(close - begin)};

        if (dict_get_str(rd, args.dict, &key, v) <= 0)
            return render_fail(rd, "a key of the format is missing");
        *i += key.len + 2;
        return 0;
    }
    if (*i < fmt->len && fmt->data[*i] == '%')
        return 0;
    if (*next >= (tuple ? args.seq->n : 1))
        return render_fail(rd, "not enough arguments for format string");
    if (tuple)
        *v = args.seq->v[*next];
    ++*next;
    return 0;
}

/* `fmt % args`. */
int format_percent(struct render *rd, const struct tstr *fmt, struct value args,
                   struct value *out) {
    struct sink *k = sink_new(rd);
    uint32_t next = 0;
    size_t done = 0;

    if (!k)
        return -1;
    for (size_t i = 0; i < fmt->len;) {
        struct spec spec;
        struct value v;

        if (fmt->data[i] != '%') {
            i++;
            continue;
        }
        if (sink_add_part(rd, k, fmt, done, i++) ||
            percent_argument(rd, fmt, &i, args, &next, &v) || percent_spec(rd, fmt, &i, &spec))
            return -1;
        done = i;
        if (spec.type == '%' ? sink_add_text(rd, k, "%") : percent_value(rd, k, v, &spec))
            return -1;
    }
    /* Allows left-over arguments for values with items by key or number, but not for tuples: Python
     * takes those values for dicts. */
    bool mapping = args.type == V_DICT || args.type == V_UNDEFINED ||
                   value_is_seq(args, SEQ_LIST) || value_is_seq(args, SEQ_RANGE);

    if (!mapping && next < (value_is_seq(args, SEQ_TUPLE) ? args.seq->n : 1))
        return render_fail(rd, "not all arguments converted during string formatting");
    if (sink_add_part(rd, k, fmt, done, fmt->len))
        return -1;
    *out = value_str(sink_take(rd, k));
    return out->s ? 0 : -1;
}

/* The part of a replacement field behind its colon. */
static int brace_spec(struct render *rd, const struct tstr *s, struct spec *spec) {
    size_t i = 0, w = 1;

    *spec = (struct spec){.fill = " ", .n_fill = 1, .precision = -1};
    if (s->len)
        tstr_decode(s->data, s->len, 0, &w);
    if (w < s->len && strchr("<>^", s->data[w]) && s->data[w]) {
        memcpy(spec->fill, s->data, w);
        spec->n_fill = (uint8_t)w;
        spec->align = s->data[w];
        i = w + 1;
    } else if (s->len && strchr("<>^", s->data[0]) && s->data[0]) {
        spec->align = s->data[i++];
    }
    if (i < s->len && strchr("+- ", s->data[i]) && s->data[i]) {
        spec->sign = s->data[i] == '-' ? 0 : s->data[i];
        i++;
    }
    spec->alternate = i < s->len && s->data[i] == '#';
    i += spec->alternate;
    spec->zero = i < s->len && s->data[i] == '0';
    spec->width = read_number(s->data, s->len, &i);
    spec->comma = i < s->len && s->data[i] == ',';
    i += spec->comma;
    if (i < s->len && s->data[i] == '.') {
        i++;
        spec->precision = read_number(s->data, s->len, &i);
    }
    if (i < s->len)
        spec->type = s->data[i++];
    if (spec->width >= WIDTH_MAX || spec->precision >= WIDTH_MAX)
        return render_fail(rd, "a width of %d or more in a format", WIDTH_MAX);
    return i < s->len ? render_fail(rd, "invalid format specifier") : 0;
}

/* Numbers go right, everything else left. A bool without a type is text, as in Python. */
static int brace_value(struct render *rd, struct sink *k, struct value v, const struct tstr *fmt,
                       char conversion) {
    struct spec spec;
    const struct tstr *s;

    if (brace_spec(rd, fmt, &spec))
        return -1;
    if (conversion == 'r') {
        struct sink *r = sink_new(rd);

        if (!r || format_repr(rd, r, v) || !(s = sink_take(rd, r)))
            return -1;
        return add_text(rd, k, s, &spec, '<');
    }
    if (value_is_number(v) && conversion != 's' && (v.type != V_BOOL || spec.type) && fmt->len)
        return add_number(rd, k, v, &spec);
    if (spec.type && spec.type != 's')
        return render_fail(rd, "unknown format code '%c' for object of type '%s'", spec.type,
                           value_type_name(v));
    if (format_to_str(rd, v, &s))
        return -1;
    return add_text(rd, k, s, &spec, '<');
}

/* `0.name[key]` of a replacement field. */
static int brace_field(struct render *rd, const struct tstr *name, const struct args *args,
                       uint32_t *next, struct value *v) {
    size_t i = 0, n = 0;

    while (n < name->len && name->data[n] != '.' && name->data[n] != '[')
        n++;
    struct tstr first = {.data = name->data, .len = n};

    if (n == 0 || (first.data[0] >= '0' && first.data[0] <= '9')) {
        uint32_t at = n ? (uint32_t)read_number(first.data, n, &i) : (*next)++;

        if (at >= args->n_pos)
            return render_fail(rd, "Replacement index %u out of range for positional args tuple",
                               at);
        *v = args->pos[at];
    } else {
        uint32_t k = 0;

        while (k < args->n_kw && !tstr_equal(args->kw[k].name, &first))
            k++;
        if (render_charge(rd, k / 8))
            return -1;
        if (k == args->n_kw)
            return render_fail(rd, "format() lacks the argument '%.*s'", (int)MIN(n, (size_t)80),
                               first.data);
        *v = args->kw[k].v;
    }
    for (i = n; i < name->len;) {
        bool item = name->data[i++] == '[';
        size_t len = 0;

        while (i + len < name->len && !strchr(item ? "]" : ".[", name->data[i + len]))
            len++;
        if (len == 0)
            return render_fail(rd, "Empty attribute in format string");
        const struct tstr *key = tstr_slice(rd, name, i, i + len);
        size_t digits = 0;
        int number = key ? read_number(key->data, len, &digits) : 0;

        if (!key)
            return -1;
        if (item ? operator_item(rd, *v, digits == len ? value_int(number) : value_str(key), v)
                 : operator_attr(rd, *v, key, v))
            return -1;
        i += len + item;
    }
    return 0;
}

/* name!conversion:specification */
static int brace_one(struct render *rd, struct sink *k, const struct tstr *field,
                     const struct args *args, uint32_t *next) {
    size_t colon = 0;
    char conversion = 0;
    struct value v;

    while (colon < field->len && field->data[colon] != ':' && field->data[colon] != '!')
        colon++;
    size_t spec = colon;

    if (colon + 1 < field->len && field->data[colon] == '!') {
        conversion = field->data[colon + 1];
        spec = colon + 2;
    }
    const struct tstr *name = tstr_slice(rd, field, 0, colon);
    const struct tstr *fmt = tstr_slice(rd, field, MIN(spec + 1, field->len), field->len);

    if (!name || !fmt || brace_field(rd, name, args, next, &v))
        return -1;
    return brace_value(rd, k, v, fmt, conversion);
}

/* str.format(). Fields inside of a field's specification are not known. */
int format_braces(struct render *rd, const struct tstr *fmt, const struct args *args,
                  struct value *out) {
    struct sink *k = sink_new(rd);
    size_t done = 0;
    uint32_t next = 0;

    if (!k)
        return -1;
    for (size_t i = 0; i < fmt->len; i++) {
        char c = fmt->data[i];

        if (c != '{' && c != '}')
            continue;
        if (i + 1 < fmt->len && fmt->data[i + 1] == c) {
            if (sink_add_part(rd, k, fmt, done, ++i))
                return -1;
            done = i + 1;
            continue;
        }
        const char *close = memchr(fmt->data + i, '}', fmt->len - i);

        if (c == '}' || !close)
            return render_fail(rd, "Single '%c' encountered in format string", c);
        size_t end = (size_t)(close - fmt->data);
        const struct tstr *field = tstr_slice(rd, fmt, i + 1, end);

        if (!field || sink_add_part(rd, k, fmt, done, i) || brace_one(rd, k, field, args, &next))
            return -1;
        i = end;
        done = end + 1;
    }
    if (sink_add_part(rd, k, fmt, done, fmt->len))
        return -1;
    *out = value_str(sink_take(rd, k));
    return out->s ? 0 : -1;
}
