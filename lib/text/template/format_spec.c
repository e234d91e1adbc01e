/*
 * format_spec - values in fields: the format of str.format(), `[[fill]align][sign][#][0][width]
 * [grouping][.precision][type]`, and the conversions of printf that the operator % of strings has.
 * Both become one struct field, so that they share how numbers are written and padded.
 *
 * Text keeps the marks of the user, numbers have none. Widths and precisions are bounded by what a
 * text may hold.
 */

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "text/template/render.h"

#define PRECISION_MAX 300 /* most digits behind the point */
#define NUMBER_BYTES 1024 /* the largest float has 309 digits, and grouping adds a third */

/* A field. Members are 0 where the format says nothing; precision then is -1. */
struct field {
    uint32_t fill;
    char align, sign, grouping, type;
    /* '#' */
    bool alternate;
    /* a '0' before the width */
    bool zero;
    size_t width;
    int precision;
};

/* A number as text: what stands before padding with zeros, and behind it. */
struct number_text {
    char prefix[8], digits[NUMBER_BYTES];
};

static int spec_fails(struct render *rd, char type, const char *name) {
    if (type < 0x20 || type > 0x7e)
        return render_fail(rd, "Invalid format specifier");
    return render_fail(rd, "Unknown format code '%c' for object of type '%s'", type, name);
}

static int field_fill(struct render *rd, struct sink *k, uint32_t fill, size_t n) {
    char bytes[4];
    size_t len = tstr_encode(fill, bytes), total;

    if (size_mul(n, len, &total))
        total = SIZE_MAX;
    TRY(sink_reserve(rd, k, total));
    for (; n > 0; n--)
        TRY(sink_add(rd, k, bytes, len, false));
    return 0;
}

/* Writes @prefix and @body, padded to the width. @align: that of a field without one. */
static int field_write(struct render *rd, struct sink *k, const struct field *f, char align,
                       const char *prefix, const struct tstr *body) {
    size_t n = strlen(prefix) + tstr_count(body), pad = f->width > n ? f->width - n : 0;
    uint32_t fill = f->fill ? f->fill : ' ';
    size_t left = pad, inner = 0, right = 0;

    TRY(render_charge_bytes(rd, body->len));
    align = f->align ? f->align : align;
    if (align == '=') {
        inner = pad;
        left = 0;
    } else if (align == '<') {
        right = pad;
        left = 0;
    } else if (align == '^') {
        left = pad / 2;
        right = pad - left;
    }
    if (field_fill(rd, k, fill, left) || sink_add_text(rd, k, prefix) ||
        field_fill(rd, k, fill, inner) || sink_add_str(rd, k, body) ||
        field_fill(rd, k, fill, right))
        return -1;
    return 0;
}

static int number_write(struct render *rd, struct sink *k, const struct field *f, char align,
                        const struct number_text *t) {
    const struct tstr body = {.data = t->digits, .len = strlen(t->digits)};

    return field_write(rd, k, f, align, t->prefix, &body);
}

static int character_write(struct render *rd, struct sink *k, const struct field *f, char align,
                           uint32_t cp) {
    char bytes[4];
    const struct tstr body = {.data = bytes, .len = tstr_encode(cp, bytes)};

    return field_write(rd, k, f, align, "", &body);
}

static void number_sign(struct number_text *t, const struct field *f, bool negative) {
    if (negative)
        strcat(t->prefix, "-");
    else if (f->sign == '+')
        strcat(t->prefix, "+");
    else if (f->sign == ' ')
        strcat(t->prefix, " ");
}

/* Puts @grouping between groups of @size of the digits before the point or exponent. */
static void number_group(char *digits, char grouping, size_t size) {
    size_t whole = strspn(digits, "0123456789abcdefABCDEF");

    if (size == 3)
        whole = strspn(digits, "0123456789");
    for (size_t at = whole; grouping && at > size;) {
        at -= size;
        memmove(digits + at + 1, digits + at, strlen(digits + at) + 1);
        digits[at] = grouping;
    }
}

static uint64_t format_spec_magnitude(wide w) {
    return (uint64_t)(w < 0 ? -w : w);
}

/* Writes an integer with the type d, b, o, x, X or c. */
static int integer_text(struct render *rd, const struct field *f, wide w, struct number_text *t) {
    uint64_t u = format_spec_magnitude(w);
    char type = f->type ? f->type : 'd';
    size_t n = 0;

    number_sign(t, f, w < 0);
    switch (type) {
    case 'd':
    case 'n':
        sprintf(t->digits, "%llu", (unsigned long long)u);
        break;
    case 'o':
        sprintf(t->digits, "%llo", (unsigned long long)u);
        break;
    case 'x':
        sprintf(t->digits, "%llx", (unsigned long long)u);
        break;
    case 'X':
        sprintf(t->digits, "%llX", (unsigned long long)u);
        break;
    case 'b':
        for (int bit = u ? 63 - __builtin_clzll(u) : 0; bit >= 0; bit--)
            t->digits[n++] = (char)('0' + (u >> bit & 1));
        break;
    default:
        return spec_fails(rd, type, "int");
    }
    if (f->alternate && type != 'd' && type != 'n') {
        size_t at = strlen(t->prefix);

        assert(at + 2 < sizeof(t->prefix));
        t->prefix[at] = '0';
        t->prefix[at + 1] = type; /* t is zeroed, so the end stays */
    }
    number_group(t->digits, f->grouping, type == 'd' || type == 'n' ? 3 : 4);
    return 0;
}

/* Drops the zeros at the end of the fraction, and a point without one. */
static void drop_zeros(char *digits) {
    char *exponent = strpbrk(digits, "eE"), *end = exponent ? exponent : digits + strlen(digits);
    char *last = end;

    if (!memchr(digits, '.', (size_t)(end - digits)))
        return;
    while (last[-1] == '0')
        last--;
    if (last[-1] == '.')
        last--;
    memmove(last, end, strlen(end) + 1);
}

/* Writes a float without a type but with a precision: as %g, with a digit behind the point, and an
 * exponent one digit earlier. */
static void short_text(double d, int precision, char *digits) {
    precision = precision ? precision : 1;
    snprintf(digits, NUMBER_BYTES, "%.*e", precision - 1, d);
    int exponent = atoi(strchr(digits, 'e') + 1);

    if (exponent < -4 || exponent >= precision - 1) {
        drop_zeros(digits);
        return;
    }
    snprintf(digits, NUMBER_BYTES, "%.*f", precision - 1 - exponent, d);
    drop_zeros(digits);
    if (!strchr(digits, '.'))
        strcat(digits, ".0");
}

/* Writes a float with the type e, E, f, F, g, G, n or %, or without one. */
static int float_text(struct render *rd, const struct field *f, double d, struct number_text *t) {
    char type = f->type, c[] = "%#.*f", *format = c;
    int precision = f->precision < 0 ? 6 : f->precision;
    double a = fabs(d);

    if (f->precision > PRECISION_MAX)
        return render_fail(rd, "a precision is larger than %d", PRECISION_MAX);
    if (type && !strchr("eEfFgGn%", type))
        return spec_fails(rd, type, "float");
    TRY(render_charge(rd, FLOAT_STEPS));
    number_sign(t, f, signbit(d) && !isnan(d));
    if (!isfinite(d)) {
        const char *name = isnan(d) ? "nan" : "inf";

        if (type == 'E' || type == 'F' || type == 'G')
            name = isnan(d) ? "NAN" : "INF";
        sprintf(t->digits, "%s%s", name, type == '%' ? "%" : "");
        return 0;
    }
    if (!type && f->precision < 0) {
        format_double(a, t->digits);
    } else if (!type) {
        short_text(a, f->precision, t->digits);
    } else {
        c[4] = type;
        if (type == '%')
            c[4] = 'f';
        else if (type == 'n')
            c[4] = 'g';
        if (!f->alternate) { /* without '#' */
            format = c + 1;
            format[0] = '%';
        }
        snprintf(t->digits, NUMBER_BYTES - 400, format, precision, type == '%' ? a * 100 : a);
        if (type == '%')
            strcat(t->digits, "%");
    }
    number_group(t->digits, f->grouping, 3);
    return 0;
}

/* ---- str.format() ---- */

static bool is_align(uint32_t c) {
    return c == '<' || c == '>' || c == '^' || c == '=';
}

/* Reads digits at *@i; a number that is too large is clipped. */
static size_t spec_digits(const struct tstr *s, size_t *i) {
    size_t n = 0;

    for (; *i < s->len && s->data[*i] >= '0' && s->data[*i] <= '9'; ++*i)
        n = MIN(n * 10 + (size_t)(s->data[*i] - '0'), (size_t)1 << 40);
    return n;
}

static bool spec_skip(const struct tstr *s, size_t *i, char c) {
    bool is = *i < s->len && s->data[*i] == c;

    *i += is;
    return is;
}

static int spec_parse(struct render *rd, const struct tstr *s, struct field *f) {
    size_t i = 0, w = 0;
    uint32_t first = s->len ? tstr_decode(s->data, s->len, 0, &w) : 0;

    *f = (struct field){.precision = -1};
    if (s->len > w && is_align((unsigned char)s->data[w])) {
        f->fill = first;
        f->align = s->data[w];
        i = w + 1;
    } else if (s->len && is_align(first)) {
        f->align = s->data[0];
        i = 1;
    }
    if (i < s->len && strchr("+- ", s->data[i]) && s->data[i])
        f->sign = s->data[i++];
    f->alternate = spec_skip(s, &i, '#');
    f->zero = spec_skip(s, &i, '0');
    if (f->zero && !f->fill)
        f->fill = '0';
    f->width = spec_digits(s, &i);
    if (i < s->len && (s->data[i] == ',' || s->data[i] == '_'))
        f->grouping = s->data[i++];
    if (spec_skip(s, &i, '.')) {
        size_t begin = i, digits = spec_digits(s, &i);

        f->precision = (int)MIN(digits, (size_t)1 << 30);
        if (i == begin)
            return render_fail(rd, "Format specifier missing precision");
    }
    if (i < s->len)
        f->type = s->data[i++];
    if (i < s->len)
        return render_fail(rd, "Invalid format specifier");
    return 0;
}

static int spec_string(struct render *rd, struct sink *k, const struct field *f,
                       const struct tstr *s) {
    if (f->type && f->type != 's')
        return spec_fails(rd, f->type, "str");
    if (f->sign)
        return render_fail(rd, "'Sign' not allowed in string format specifier");
    if (f->alternate)
        return render_fail(rd, "'#' not allowed in string format specifier");
    if (f->align == '=' || f->grouping)
        return render_fail(rd, "'=' not allowed in string format specifier");
    if (f->precision >= 0)
        s = tstr_slice(rd, s, 0, tstr_offset(s, (size_t)f->precision));
    if (!s)
        return -1;
    return field_write(rd, k, f, '<', "", s);
}

static int spec_number(struct render *rd, struct sink *k, const struct field *f, struct value v) {
    struct number_text t = {0};
    bool whole = v.type != V_FLOAT && (!f->type || strchr("bcdoxXn", f->type));

    if (v.type != V_FLOAT && f->type && !strchr("bcdoxXneEfFgG%", f->type))
        return spec_fails(rd, f->type, "int");
    if (f->grouping && f->zero)
        return render_fail(rd, "a format with '0' and '%c' is not supported", f->grouping);
    if (whole && f->precision >= 0)
        return render_fail(rd, "Precision not allowed in integer format specifier");
    if (whole && f->type == 'c') {
        if (value_wide(v) < 0 || value_wide(v) >= 0x110000)
            return render_fail(rd, "%%c arg not in range(0x110000)");
        return character_write(rd, k, f, '<', (uint32_t)value_wide(v));
    }
    if (whole)
        TRY(integer_text(rd, f, value_wide(v), &t));
    else
        TRY(float_text(rd, f, value_double(v), &t));
    return number_write(rd, k, f, f->zero ? '=' : '>', &t);
}

int format_spec(struct render *rd, struct sink *k, struct value v, const struct tstr *spec) {
    struct field f;

    if (!spec->len)
        return format_str(rd, k, v);
    if (v.type != V_STR && !value_is_number(v))
        return render_fail(rd, "unsupported format string passed to %s.__format__",
                           value_type_name(v));
    TRY(spec_parse(rd, spec, &f));
    if (v.type == V_STR)
        return spec_string(rd, k, &f, v.s);
    return spec_number(rd, k, &f, v);
}

/* ---- the operator % ---- */

/* The values of `text % values`: a tuple of them, or one value, which fields with a name search. */
struct percent {
    struct value values;
    uint32_t next;
    bool mapping, used;
};

static int percent_next(struct render *rd, struct percent *p, struct value *out) {
    bool tuple = value_is_seq(p->values, SEQ_TUPLE);

    if (tuple ? p->next >= p->values.seq->n : p->used)
        return render_fail(rd, "not enough arguments for format string");
    *out = tuple ? p->values.seq->v[p->next++] : p->values;
    p->used = true;
    return 0;
}

/* Reads a width or precision: digits, or `*` for the next value. */
static int percent_size(struct render *rd, struct percent *p, const struct tstr *s, size_t *i,
                        int64_t *out) {
    struct value v;

    if (!spec_skip(s, i, '*')) {
        *out = (int64_t)spec_digits(s, i);
        return 0;
    }
    TRY(percent_next(rd, p, &v));
    if (!value_is_int(v) || v.type == V_UINT)
        return render_fail(rd, "* wants int");
    *out = MAX(MIN((int64_t)value_wide(v), (int64_t)1 << 40), -((int64_t)1 << 40));
    return 0;
}

/* Reads the flags, the width and the precision of a conversion. */
static int percent_field(struct render *rd, struct percent *p, const struct tstr *s, size_t *i,
                         struct field *f) {
    int64_t n;

    *f = (struct field){.precision = -1, .align = '>'};
    for (; *i < s->len && s->data[*i] && strchr("#0- +", s->data[*i]); ++*i) {
        char c = s->data[*i];

        if (c == '#')
            f->alternate = true;
        else if (c == '0')
            f->zero = true;
        else if (c == '-')
            f->align = '<';
        else if (f->sign != '+')
            f->sign = c;
    }
    TRY(percent_size(rd, p, s, i, &n));
    if (n < 0)
        f->align = '<';
    f->width = (size_t)(n < 0 ? -n : n);
    if (spec_skip(s, i, '.')) {
        TRY(percent_size(rd, p, s, i, &n));
        f->precision = (int)MAX(MIN(n, (int64_t)1 << 30), (int64_t)0);
    }
    *i += *i < s->len && s->data[*i] && strchr("hlL", s->data[*i]) != NULL;
    return 0;
}

/* Makes the text of an integer have at least as many digits as the precision says. */
static int percent_digits(struct render *rd, const struct field *f, struct number_text *t) {
    size_t n = strlen(t->digits);

    if (f->precision > PRECISION_MAX)
        return render_fail(rd, "a precision is larger than %d", PRECISION_MAX);
    if (f->precision <= (int)n)
        return 0;
    size_t more = (size_t)f->precision - n;

    memmove(t->digits + more, t->digits, n + 1);
    memset(t->digits, '0', more);
    return 0;
}

static int percent_number(struct render *rd, struct sink *k, struct field *f, struct value v) {
    struct number_text t = {0};
    bool whole = strchr("diuoxX", f->type) != NULL, decimal = strchr("diu", f->type) != NULL;

    if (!value_is_number(v) && decimal)
        return render_fail(rd, "%%%c format: a real number is required, not %s", f->type,
                           value_type_name(v));
    if (!value_is_number(v))
        return render_fail(rd, "must be real number, not %s", value_type_name(v));
    if (whole && !decimal && v.type == V_FLOAT)
        return render_fail(rd, "%%%c format: an integer is required, not float", f->type);
    if (whole) {
        wide w = 0;

        if (v.type != V_FLOAT)
            w = value_wide(v);
        else if (isfinite(v.f) && fabs(v.f) < 1.8e19)
            w = (wide)v.f;
        else
            return render_fail(rd, "an integer has more than 64 bits");
        f->type = decimal ? 'd' : f->type;
        TRY(integer_text(rd, f, w, &t));
        TRY(percent_digits(rd, f, &t));
    } else {
        TRY(float_text(rd, f, value_double(v), &t));
    }
    if (f->zero && f->align == '>') {
        f->align = '=';
        f->fill = '0';
    }
    return number_write(rd, k, f, '>', &t);
}

/* Writes one conversion of @v. */
static int percent_value(struct render *rd, struct sink *k, struct field *f, struct value v) {
    const struct tstr *s;

    switch (f->type) {
    case 's':
        TRY(format_to_str(rd, v, &s));
        break;
    case 'r': {
        struct sink *text = sink_new(rd);

        if (!text || format_repr(rd, text, v) || !(s = sink_string(rd, text)))
            return -1;
        break;
    }
    case 'c':
        if (v.type == V_STR && tstr_count(v.s) == 1)
            return field_write(rd, k, f, '>', "", v.s);
        if (!value_is_int(v) || value_wide(v) < 0 || value_wide(v) >= 0x110000)
            return render_fail(rd, "%%c requires int or char");
        return character_write(rd, k, f, '>', (uint32_t)value_wide(v));
    default:
        if (!f->type || !strchr("diuoxXeEfFgG", f->type))
            return render_fail(rd, "unsupported format character");
        return percent_number(rd, k, f, v);
    }
    if (f->precision >= 0)
        s = tstr_slice(rd, s, 0, tstr_offset(s, (size_t)f->precision));
    if (!s)
        return -1;
    return field_write(rd, k, f, '>', "", s);
}

/* Reads `(name)` at *@i and finds its value. Returns 1, 0 if there is no name, or negative. */
static int percent_name(struct render *rd, struct percent *p, const struct tstr *s, size_t *i,
                        struct value *out) {
    size_t begin = *i + 1, depth = 1, end = begin;

    if (*i >= s->len || s->data[*i] != '(')
        return 0;
    if (!p->mapping || p->values.type != V_DICT)
        return render_fail(rd, "format requires a mapping");
    for (; end < s->len; end++) {
        depth += s->data[end] == '(';
        if (s->data[end] == ')' && --depth == 0)
            break;
    }
    if (end >= s->len)
        return render_fail(rd, "incomplete format key");
    const struct tstr *name = tstr_slice(rd, s, begin, end);
    int r = name ? dict_get_str(rd, p->values.dict, name, out) : -1;

    if (r == 0)
        return render_fail(rd, "KeyError: '%.*s'", (int)MIN(name->len, (size_t)80), name->data);
    *i = end + 1;
    p->used = true;
    return r;
}

/* Writes the conversion behind the % at *@i, and moves there behind it. */
static int percent_one(struct render *rd, struct sink *k, struct percent *p, const struct tstr *s,
                       size_t *i) {
    struct field f;
    struct value v;
    int named = percent_name(rd, p, s, i, &v);

    if (named < 0 || percent_field(rd, p, s, i, &f))
        return -1;
    if (*i >= s->len)
        return render_fail(rd, "incomplete format");
    f.type = s->data[(*i)++];
    if (f.type == '%')
        return sink_add_text(rd, k, "%");
    if (!named)
        TRY(percent_next(rd, p, &v));
    return percent_value(rd, k, &f, v);
}

int format_percent(struct render *rd, const struct tstr *s, struct value values,
                   struct value *out) {
    bool tuple = value_is_seq(values, SEQ_TUPLE);
    struct percent p = {.values = values,
                        .mapping = values.type == V_DICT || (values.type == V_SEQ && !tuple)};
    struct sink *k = sink_new(rd);
    size_t done = 0;

    if (!k)
        return -1;
    for (size_t i = 0; i < s->len;) {
        const char *mark = memchr(s->data + i, '%', s->len - i);

        if (!mark)
            break;
        i = (size_t)(mark - s->data) + 1;
        if (render_charge(rd, 1) || sink_add_part(rd, k, s, done, i - 1) ||
            percent_one(rd, k, &p, s, &i))
            return -1;
        done = i;
    }
    if (tuple ? p.next < values.seq->n : !p.used && !p.mapping)
        return render_fail(rd, "not all arguments converted during string formatting");
    TRY(sink_add_part(rd, k, s, done, s->len));
    *out = value_str(sink_string(rd, k));
    if (out->s)
        return 0;
    return -1;
}
