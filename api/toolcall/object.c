/*
 * A call as a JSON object: {"name": .., "arguments": ..}. The members come in any order; arguments
 * that come before the name are held. "parameters" is as good as "arguments", and an OpenAI-like
 * {"type": "function", "function": {..}} is looked into. Arguments may be an object, null, or a
 * string that holds an object. TC_NAMED is {NAME: arguments}.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/toolcall/parser.h"
#include "base/json_value.h"

enum {
    WANT_KEY,
    IN_KEY,
    WANT_COLON,
    WANT_VALUE,
    /* a name or an id */
    IN_STRING,
    IN_ARGS,
    IN_ARGS_STRING,
    /* any value that does not matter */
    IN_OTHER,
    WANT_NEXT,
};

enum { KEY_OTHER, KEY_NAME, KEY_ARGS, KEY_ID, KEY_FUNCTION };

static int object_key(const char *key) {
    static const struct {
        const char *text;
        int key;
    } keys[] = {
        {"\"name\"", KEY_NAME},
        {"\"tool_name\"", KEY_NAME},
        {"\"arguments\"", KEY_ARGS},
        {"\"parameters\"", KEY_ARGS},
        {"\"id\"", KEY_ID},
        {"\"function\"", KEY_FUNCTION},
        {"\"type\"", KEY_OTHER},
        {"\"tool_call_id\"", KEY_OTHER}, /* a number within the message: no id */
    };

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        if (strcmp(keys[i].text, key) == 0)
            return keys[i].key;
    return -1;
}

/* Decodes the JSON string in `text` into @out. Returns TC_MOVED, TC_BROKEN or -ENOMEM. */
static int object_decode(struct toolcall_parser *p, char *out, size_t max) {
    yyjson_doc *doc;
    int r = json_parse(&doc, p->object.text.data, p->object.text.len, 0);
    yyjson_val *v = yyjson_doc_get_root(doc);
    bool fits = json_is_name(v, max);

    if (fits)
        memcpy(out, json_cstr(v), json_len(v) + 1);
    yyjson_doc_free(doc);
    if (r == -ENOMEM)
        return r;
    if (!fits)
        return TC_BROKEN;
    return TC_MOVED;
}

static int decode_name(struct toolcall_parser *p) {
    if (p->call.has_name)
        return TC_BROKEN;
    return object_decode(p, p->call.name, TOOLCALL_NAME_MAX);
}

static int object_begin(struct toolcall_parser *p, uint8_t step) {
    assert(step == IN_KEY || (step >= IN_STRING && step <= IN_OTHER));
    p->object.step = step;
    p->n_text = 0;
    buf_clear(&p->object.text);
    scan_begin(&p->scan, SCAN_JSON);
    p->scan.mends = step == IN_ARGS;
    return TC_MOVED;
}

/* Feeds the scanner at most @max bytes in all. *done: the value is complete. */
static int scan_more(struct toolcall_parser *p, size_t max, struct buf *out, bool *done) {
    size_t len, there, used;
    const char *at = parser_at(p, &there);
    bool args = out == &p->out;
    /* The first byte of arguments commits the call; from there on nothing needs to be kept. */
    bool one = args && p->call.has_name && !p->call.committed && !p->call.whole;

    assert(p->n_text <= max);
    len = MIN(there, max - p->n_text);
    if (!len)
        return TC_BROKEN;
    int r = scan_feed(&p->scan, at, one ? 1 : len, &used, out);

    if (r < 0)
        return r;
    bool taken;

    if (args)
        taken = parser_pass(p, used);
    else
        taken = parser_consume(p, used);
    if (!taken) {
        buf_clear(&p->out);
        return TC_BROKEN;
    }
    if (args)
        events_out(p);
    p->n_text += used;
    *done = r == SCAN_DONE;
    if (r == SCAN_BAD)
        return TC_BROKEN;
    /* A feed that the limit cut is no error yet: the next step finds the value too long. */
    if (*done || used < there)
        return TC_MOVED;
    return TC_MORE;
}

static int object_end_key(struct toolcall_parser *p, const struct tc_state *s) {
    struct tc_object *o = &p->object;

    if (s->kind == TC_NAMED) {
        int r = decode_name(p);

        if (r != TC_MOVED)
            return r;
        o->key = KEY_ARGS;
        events_name(p);
    } else {
        int key = object_key(o->text.data);

        /* Proves that the object is no call, where any object may be an answer: its first member is
         * unknown. */
        if (key < 0 && p->opts.format->only_known)
            return TC_BROKEN;
        o->key = (uint8_t)MAX(key, KEY_OTHER);
    }
    o->step = WANT_COLON;
    return TC_MOVED;
}

static int end_string(struct toolcall_parser *p) {
    bool id = p->object.key == KEY_ID;
    int r;

    if (id)
        r = object_decode(p, p->call.id, TOOLCALL_ID_MAX);
    else
        r = decode_name(p);

    assert(p->object.key != KEY_ARGS && p->object.key != KEY_OTHER);
    if (r < 0 || (r != TC_MOVED && !id))
        return r;
    if (!id)
        events_name(p);
    else if (r != TC_MOVED)
        p->call.id[0] = 0;
    p->object.step = WANT_NEXT;
    return TC_MOVED;
}

/* Ends arguments that are a string: its text is read once more. */
static int end_args_string(struct toolcall_parser *p) {
    yyjson_doc *doc;
    int e = json_parse(&doc, p->object.text.data, p->object.text.len, 0);
    const char *text = json_text(yyjson_doc_get_root(doc));
    size_t len = json_len(yyjson_doc_get_root(doc)), used = 0;
    int r = e == -ENOMEM ? e : SCAN_BAD;

    while (len && strchr(" \n\t\r", *text) && *text) {
        text++;
        len--;
    }
    scan_begin(&p->scan, SCAN_JSON);
    if (len && *text == '{')
        r = scan_feed(&p->scan, text, len, &used, &p->out);
    else if (text && !len)
        r = SCAN_DONE;
    yyjson_doc_free(doc);
    if (r < 0)
        return r;
    if (r != SCAN_DONE)
        buf_clear(&p->out);
    events_out(p);
    p->object.step = WANT_NEXT;
    if (r != SCAN_DONE)
        return TC_BROKEN;
    return TC_MOVED;
}

static int value_start(struct toolcall_parser *p, char c) {
    struct tc_object *o = &p->object;

    switch (o->key) {
    case KEY_FUNCTION:
        if (c != '{')
            return object_begin(p, c == '"' && !p->call.has_name ? IN_STRING : IN_OTHER);
        assert(o->nested <= 1);
        if (o->nested++ || !parser_consume(p, 1))
            return TC_BROKEN;
        o->step = WANT_KEY;
        return TC_MOVED;
    case KEY_NAME:
        if (c != '"')
            return TC_BROKEN;
        return object_begin(p, IN_STRING);
    case KEY_ID:
        return object_begin(p, c == '"' ? IN_STRING : IN_OTHER);
    case KEY_ARGS:
        if (o->has_args)
            return TC_BROKEN;
        o->has_args = true;
        if (c == '{')
            return object_begin(p, IN_ARGS);
        if (c == '"')
            return object_begin(p, IN_ARGS_STRING);
        if (c != 'n')
            return TC_BROKEN;
        return object_begin(p, IN_OTHER);
    default:
        return object_begin(p, IN_OTHER);
    }
}

/* Handles one byte between values. */
static int punctuation(struct toolcall_parser *p, const struct tc_state *s, char c) {
    struct tc_object *o = &p->object;

    if (o->step == WANT_KEY && c == '"')
        return object_begin(p, IN_KEY);
    if (o->step == WANT_VALUE)
        return value_start(p, c);
    /* A last brace that is missing is no reason to lose a call. */
    if (o->step == WANT_NEXT && c != ',' && c != '}' && object_may_end(p)) {
        parser_go(p, s->next, s->act);
        return TC_MOVED;
    }
    /* Brackets that were mended were only missing if nothing comes behind them. */
    if (o->step == WANT_NEXT && c == ',' && o->mended)
        return TC_BROKEN;
    if (!(o->step == WANT_COLON && c == ':') && !(o->step == WANT_NEXT && (c == ',' || c == '}')) &&
        !(o->step == WANT_KEY && c == '}'))
        return TC_BROKEN;
    if (!parser_consume(p, 1))
        return TC_BROKEN;
    if (c == ':') {
        o->step = WANT_VALUE;
    } else if (c == ',') {
        o->step = WANT_KEY;
    } else if (o->nested) {
        o->nested--;
        o->step = WANT_NEXT;
    } else {
        /* Ends the object: without arguments it is no call, where any object may be an answer. */
        if (p->opts.format->only_known && !o->has_args)
            return TC_BROKEN;
        parser_go(p, s->next, s->act);
    }
    return TC_MOVED;
}

/* Feeds the scanner; what it reads goes where the step wants it: to the client, to the text that
 * is decoded, or nowhere. */
static int object_scan(struct toolcall_parser *p, bool *done) {
    struct tc_object *o = &p->object;

    switch (o->step) {
    case IN_KEY:
    case IN_STRING:
        return scan_more(p, TC_KEY_MAX, &o->text, done);
    case IN_ARGS_STRING:
        return scan_more(p, p->opts.max_held, &o->text, done);
    case IN_ARGS:
        return scan_more(p, SIZE_MAX, &p->out, done);
    default:
        assert(o->step == IN_OTHER);
        return scan_more(p, SIZE_MAX, NULL, done);
    }
}

static int object_inside(struct toolcall_parser *p, const struct tc_state *s) {
    struct tc_object *o = &p->object;
    bool done = false;
    int r = object_scan(p, &done);

    if (r != TC_MOVED || !done)
        return r;
    switch (o->step) {
    case IN_KEY:
        return object_end_key(p, s);
    case IN_STRING:
        return end_string(p);
    case IN_ARGS_STRING:
        return end_args_string(p);
    case IN_ARGS:
        o->mended = p->scan.mended;
        break;
    default:
        break;
    }
    o->step = WANT_NEXT;
    return TC_MOVED;
}

bool object_in_arguments(const struct toolcall_parser *p) {
    return p->entered && p->object.step == IN_ARGS && p->call.has_name &&
           !p->opts.format->only_known;
}

bool object_may_end(const struct toolcall_parser *p) {
    const struct toolcall_format *f = p->opts.format;
    uint8_t kind = f->states[p->state].kind;

    return (kind == TC_OBJECT || kind == TC_NAMED) && p->entered && p->object.step == WANT_NEXT &&
           p->object.has_args && p->call.has_name && !f->only_known;
}

int object_step(struct toolcall_parser *p, const struct tc_state *s) {
    struct tc_object *o = &p->object;
    size_t len, n = 0;

    assert(p->call.open);
    if (!p->entered) {
        p->entered = true;
        o->step = WANT_KEY;
        o->nested = 0;
        o->has_args = false;
        o->mended = false;
    }
    if (o->step >= IN_STRING && o->step <= IN_OTHER)
        return object_inside(p, s);
    if (o->step == IN_KEY)
        return object_inside(p, s);
    const char *at = parser_at(p, &len);

    while (n < len && strchr(" \n\t\r", at[n]) && at[n])
        n++;
    if (n) {
        if (!parser_consume(p, n))
            return TC_BROKEN;
        return TC_MOVED;
    }
    return punctuation(p, s, *at);
}
