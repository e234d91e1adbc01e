/*
 * format_braces - str.format(): `{field!conversion:spec}`. A field begins with nothing, a number or
 * a name, and may go on with .attribute and [key]. A spec may have fields itself, one level deep.
 */

#include <string.h>

#include "base/try.h"
#include "text/template/render.h"

/* State of one call: how many fields without a name were seen. */
struct braces {
    struct render *rd;
    const struct args *args;
    uint32_t next;
    /* fields without a name, with a number */
    bool counted, numbered;
};

/* Reads a number that @name consists of. */
static bool whole_number(const struct tstr *name, uint32_t *out) {
    size_t n = 0;

    for (*out = 0; n < name->len && name->data[n] >= '0' && name->data[n] <= '9'; n++)
        *out = MIN(*out * 10 + (uint32_t)(name->data[n] - '0'), 100000u);
    return n == name->len;
}

/* Finds the argument that the beginning of a field names: "" is the next one, digits are its place,
 * other texts are a keyword. */
static int field_value(struct braces *b, const struct tstr *name, struct value *v) {
    const struct args *args = b->args;
    uint32_t at, k = 0;

    if (whole_number(name, &at)) {
        b->counted |= !name->len;
        b->numbered |= name->len > 0;
        if (b->counted && b->numbered)
            return render_fail(b->rd, "cannot switch between manual field specification and "
                                      "automatic field numbering");
        at = name->len ? at : b->next++;
        if (at >= args->n_pos)
            return render_fail(b->rd, "Replacement index %u out of range for positional args tuple",
                               at);
        *v = args->pos[at];
        return 0;
    }
    while (k < args->n_kw && !tstr_equal(args->kw[k].name, name))
        k++;
    TRY(render_charge(b->rd, k / 8));
    if (k == args->n_kw)
        return render_fail(b->rd, "format() lacks the argument '%.*s'",
                           (int)MIN(name->len, (size_t)80), name->data);
    *v = args->kw[k].v;
    return 0;
}

/* Follows one .attribute or [key] at *@i. */
static int field_step(struct braces *b, const struct tstr *field, size_t *i, struct value *v) {
    bool item = field->data[*i] == '[';
    size_t begin = *i + 1, end = begin;
    uint32_t number;

    while (end < field->len &&
           (item ? field->data[end] != ']' : field->data[end] != '.' && field->data[end] != '['))
        end++;
    if (end == begin || (item && end == field->len))
        return render_fail(b->rd, "Empty attribute in format string");
    const struct tstr *name = tstr_slice(b->rd, field, begin, end);

    if (!name)
        return -1;
    *i = end + item;
    if (!item)
        return operator_attr(b->rd, *v, name, v);
    struct value key = value_str(name);

    if (whole_number(name, &number))
        key = value_int(number);
    return operator_item(b->rd, *v, key, v);
}

/* Evaluates the field [begin, end) of @fmt. */
static int field_get(struct braces *b, const struct tstr *fmt, size_t begin, size_t end,
                     struct value *v) {
    const struct tstr *field = tstr_slice(b->rd, fmt, begin, end);
    size_t i = 0;

    if (!field)
        return -1;
    while (i < field->len && field->data[i] != '.' && field->data[i] != '[')
        i++;
    const struct tstr *name = tstr_slice(b->rd, field, 0, i);

    if (!name || field_value(b, name, v))
        return -1;
    while (i < field->len) {
        if (field->data[i] != '.' && field->data[i] != '[')
            return render_fail(b->rd, "Only '.' or '[' may follow ']' in format field specifier");
        TRY(field_step(b, field, &i, v));
    }
    return 0;
}

/* Applies !s or !r. */
static int field_convert(struct braces *b, char how, struct value *v) {
    const struct tstr *s;

    if (how == 's') {
        TRY(format_to_str(b->rd, *v, &s));
    } else if (how == 'r') {
        struct sink *k = sink_new(b->rd);

        if (!k || format_repr(b->rd, k, *v) || !(s = sink_string(b->rd, k)))
            return -1;
    } else {
        return render_fail(b->rd, "Unknown conversion specifier");
    }
    *v = value_str(s);
    return 0;
}

static int braces_write(struct braces *b, struct sink *k, const struct tstr *fmt, int depth);

/* Writes the field [begin, end) of @fmt, with its conversion and spec. */
static int field_format(struct braces *b, struct sink *k, const struct tstr *fmt, size_t begin,
                        size_t end, int depth) {
    const struct tstr *spec = TSTR_STATIC("");
    size_t stop = begin;
    bool bracket = false;
    char how = 0;
    struct value v;

    for (; stop < end; stop++) { /* inside [ ] any character is part of the key */
        bracket = bracket ? fmt->data[stop] != ']' : fmt->data[stop] == '[';
        if (!bracket && (fmt->data[stop] == '!' || fmt->data[stop] == ':'))
            break;
    }
    size_t rest = stop;

    TRY(field_get(b, fmt, begin, stop, &v));
    if (rest < end && fmt->data[rest] == '!') {
        if (rest + 1 >= end || (rest + 2 < end && fmt->data[rest + 2] != ':'))
            return render_fail(b->rd, "expected ':' after conversion specifier");
        how = fmt->data[rest + 1];
        rest += 2;
        TRY(field_convert(b, how, &v));
    }
    if (rest < end) {
        struct sink *text = sink_new(b->rd);

        spec = tstr_slice(b->rd, fmt, rest + 1, end);
        if (!text || !spec || braces_write(b, text, spec, depth + 1) ||
            !(spec = sink_string(b->rd, text)))
            return -1;
    }
    return format_spec(b->rd, k, v, spec);
}

/* Returns the end of the field that begins at @pos: the `}` that closes it; SIZE_MAX: none. */
static size_t field_end(const struct tstr *fmt, size_t pos) {
    for (size_t depth = 1; pos < fmt->len; pos++) {
        depth += fmt->data[pos] == '{';
        if (fmt->data[pos] == '}' && --depth == 0)
            return pos;
    }
    return SIZE_MAX;
}

static int braces_write(struct braces *b, struct sink *k, const struct tstr *fmt, int depth) {
    size_t done = 0;

    if (depth > 1)
        return render_fail(b->rd, "Max string recursion exceeded");
    for (size_t i = 0; i < fmt->len; i++) {
        char c = fmt->data[i];

        if (c != '{' && c != '}')
            continue;
        TRY(render_charge(b->rd, 1));
        if (!depth && i + 1 < fmt->len && fmt->data[i + 1] == c) {
            TRY(sink_add_part(b->rd, k, fmt, done, ++i));
            done = i + 1;
            continue;
        }
        size_t end = c == '{' ? field_end(fmt, i + 1) : SIZE_MAX;

        if (end == SIZE_MAX)
            return render_fail(b->rd, "Single '%c' encountered in format string", c);
        if (sink_add_part(b->rd, k, fmt, done, i) || field_format(b, k, fmt, i + 1, end, depth))
            return -1;
        i = end;
        done = end + 1;
    }
    return sink_add_part(b->rd, k, fmt, done, fmt->len);
}

int format_braces(struct render *rd, const struct tstr *fmt, const struct args *args,
                  struct value *out) {
    struct braces b = {.rd = rd, .args = args};
    struct sink *k = sink_new(rd);

    if (!k || render_charge_bytes(rd, fmt->len) || braces_write(&b, k, fmt, 0))
        return -1;
    *out = value_str(sink_string(rd, k));
    if (out->s)
        return 0;
    return -1;
}
