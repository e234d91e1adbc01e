/*
 * tojson - writes JSON as the tojson filter of transformers does, by
 * json.dumps(ensure_ascii=False): ", " and ": ", no HTML escaping, keys in their order. A value
 * that came as a whole from a variable of the user is marked as a whole, with its brackets and
 * commas.
 */

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "text/template/render.h"

struct writer {
    struct render *rd;
    struct sink *k;
    bool ascii, sort, pretty;
    const struct tstr *indent, *comma, *colon;
};

static int add_json_escape(struct writer *w, uint32_t cp, bool user) {
    static const char short_names[] = "btnvfr"; /* names of 8 to 13; \v has none */
    char text[16];

    if (cp == '"' || cp == '\\')
        snprintf(text, sizeof(text), "\\%c", (int)cp);
    else if (cp >= 8 && cp <= 13 && cp != 11)
        snprintf(text, sizeof(text), "\\%c", short_names[cp - 8]);
    else if (cp < 0x10000)
        snprintf(text, sizeof(text), "\\u%04x", cp);
    else
        snprintf(text, sizeof(text), "\\u%04x\\u%04x", 0xd7c0 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
    return sink_add(w->rd, w->k, text, strlen(text), user);
}

/* Writes a string. Runs without escapes are copied with their marks. */
static int write_string(struct writer *w, const struct tstr *s) {
    size_t done = 0, n;

    TRY(sink_add_text(w->rd, w->k, "\""));
    for (size_t i = 0; i < s->len; i += n) {
        unsigned char c = (unsigned char)s->data[i];

        n = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !w->ascii))
            continue;
        uint32_t cp = tstr_decode(s->data, s->len, i, &n);

        TRY(sink_add_part(w->rd, w->k, s, done, i));
        TRY(add_json_escape(w, cp < 0x110000 ? cp : 0xfffd, tstr_user_at(s, i)));
        done = i + n;
    }
    if (sink_add_part(w->rd, w->k, s, done, s->len) || sink_add_text(w->rd, w->k, "\""))
        return -1;
    return 0;
}

/* Writes a float. NaN and Infinity are written as in Python, although they are not JSON. */
static int write_number(struct writer *w, struct value v) {
    char text[40];

    if (v.type != V_FLOAT)
        return format_str(w->rd, w->k, v);
    if (isnan(v.f))
        return sink_add_text(w->rd, w->k, "NaN");
    if (isinf(v.f))
        return sink_add_text(w->rd, w->k, v.f > 0 ? "Infinity" : "-Infinity");
    format_double(v.f, text);
    if (render_charge(w->rd, FLOAT_STEPS) || sink_add_text(w->rd, w->k, text))
        return -1;
    return 0;
}

/* Begins a new line, if there is an indent. */
static int new_line(struct writer *w, uint32_t depth) {
    if (!w->pretty)
        return 0;
    TRY(sink_add_text(w->rd, w->k, "\n"));
    for (uint32_t i = 0; i < depth; i++) {
        TRY(sink_add_str(w->rd, w->k, w->indent));
    }
    return 0;
}

static int write_value(struct writer *w, struct value v, uint32_t depth);

/* Writes a list as an array; also tuples, and generators, which json.dumps() refuses. */
static int write_array(struct writer *w, struct value v, uint32_t depth) {
    struct value *items;
    uint32_t n;

    if (v.seq->kind > SEQ_TUPLE && v.seq->kind != SEQ_GENERATOR)
        return render_fail(w->rd, "Object of type %s is not JSON serializable", value_type_name(v));
    TRY(value_items(w->rd, v, &items, &n));
    if (!n)
        return sink_add_text(w->rd, w->k, "[]");
    TRY(sink_add_text(w->rd, w->k, "["));
    for (uint32_t i = 0; i < n; i++) {
        if ((i && sink_add_str(w->rd, w->k, w->comma)) || new_line(w, depth) ||
            write_value(w, items[i], depth))
            return -1;
    }
    assert(depth > 0);
    if (new_line(w, depth - 1) || sink_add_text(w->rd, w->k, "]"))
        return -1;
    return 0;
}

/* Writes a key. JSON has only strings as keys, so numbers, bools and None are spelled. */
static int tojson_write_key(struct writer *w, struct value key) {
    const struct tstr *s;
    struct writer plain = *w;

    switch (key.type) {
    case V_STR:
        return write_string(w, key.s);
    case V_NONE:
        return sink_add_text(w->rd, w->k, "\"null\"");
    case V_BOOL:
        return sink_add_text(w->rd, w->k, key.b ? "\"true\"" : "\"false\"");
    case V_INT:
    case V_UINT:
    case V_FLOAT:
        plain.k = sink_new(w->rd);
        if (!plain.k || write_number(&plain, key) || !(s = sink_string(w->rd, plain.k)))
            return -1;
        return write_string(w, s);
    default:
        return render_fail(w->rd, "keys must be str, int, float, bool or None, not %s",
                           value_type_name(key));
    }
}

static int write_object(struct writer *w, const struct dict *d, uint32_t depth) {
    struct dict_entry *e = d->e;

    assert(depth > 0);
    if (!d->n)
        return sink_add_text(w->rd, w->k, "{}");
    if (w->sort && !(e = dict_sorted(w->rd, d)))
        return -1;
    if (sink_add_text(w->rd, w->k, "{"))
        return -1;
    for (uint32_t i = 0; i < d->n; i++) {
        if ((i && sink_add_str(w->rd, w->k, w->comma)) || new_line(w, depth) ||
            tojson_write_key(w, e[i].key) || sink_add_str(w->rd, w->k, w->colon) ||
            write_value(w, e[i].value, depth))
            return -1;
    }
    if (new_line(w, depth - 1) || sink_add_text(w->rd, w->k, "}"))
        return -1;
    return 0;
}

static int write_value(struct writer *w, struct value v, uint32_t depth) {
    TRY(render_charge(w->rd, 1));
    switch (v.type) {
    case V_NONE:
        return sink_add_text(w->rd, w->k, "null");
    case V_BOOL:
        return sink_add_text(w->rd, w->k, v.b ? "true" : "false");
    case V_INT:
    case V_UINT:
    case V_FLOAT:
        return write_number(w, v);
    case V_STR:
        return write_string(w, v.s);
    case V_SEQ:
    case V_DICT: {
        bool user = v.type == V_SEQ ? v.seq->user : v.dict->user;

        TRY(render_enter(w->rd));
        w->k->all_user += user;
        int r;

        if (v.type == V_SEQ)
            r = write_array(w, v, depth + 1);
        else
            r = write_object(w, v.dict, depth + 1);

        assert(r || w->k->all_user >= user); /* inner values have undone their increments */
        w->k->all_user -= user;
        render_exit(w->rd);
        return r;
    }
    default:
        return render_fail(w->rd, "Object of type %s is not JSON serializable", value_type_name(v));
    }
}

/* Reads the argument indent: None, a number of blanks, or a string. */
static int set_indent(struct writer *w, struct value v) {
    static const char blanks[] = "                                                                ";

    if (v.type == V_MISSING || v.type == V_NONE)
        return 0;
    w->pretty = true;
    w->comma = TSTR_STATIC(",");
    if (v.type == V_STR) {
        w->indent = v.s;
        return 0;
    }
    if (!value_is_int(v) || value_wide(v) > (wide)sizeof(blanks) - 1)
        return render_fail(w->rd, "tojson: indent must be a small number");
    w->indent = tstr_new(w->rd, blanks, (size_t)MAX(value_wide(v), (wide)0), false);
    if (w->indent)
        return 0;
    return -1;
}

static int set_separators(struct writer *w, struct value v) {
    if (v.type == V_MISSING || v.type == V_NONE)
        return 0;
    if (v.type != V_SEQ || v.seq->n != 2 || v.seq->v[0].type != V_STR || v.seq->v[1].type != V_STR)
        return render_fail(w->rd, "tojson: separators must be two strings");
    w->comma = v.seq->v[0].s;
    w->colon = v.seq->v[1].s;
    return 0;
}

int tojson(struct render *rd, const struct call *c, struct value *out) {
    struct writer w = {.rd = rd,
                       .k = sink_new(rd),
                       .ascii = value_truth(c->a[0]),
                       .sort = value_truth(c->a[3]),
                       .comma = TSTR_STATIC(", "),
                       .colon = TSTR_STATIC(": ")};

    if (!w.k || set_indent(&w, c->a[1]) || set_separators(&w, c->a[2]) ||
        write_value(&w, c->self, 0))
        return -1;
    *out = value_str(sink_string(rd, w.k));
    if (out->s)
        return 0;
    return -1;
}
