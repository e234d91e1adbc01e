/*
 * Writes past calls as the models of a format write them, for templates that leave them out:
 * Liquid's and Granite 3's show an assistant's content alone, so without this a model would see the
 * result of a call that it never made.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/toolcall/scan.h"
#include "api/toolcall/toolcall.h"
#include "base/json_value.h"
#include "base/text.h"

#define NESTING_MAX 32 /* deeper values are written as compact JSON, without recursion */

struct writer {
    struct buf *out;
    struct toolcall_marks *own;
    bool python;
    int error;
};

static void toolcall_put(struct writer *w, const char *s, size_t len) {
    if (w->error == 0)
        w->error = buf_add(w->out, s, len);
}

static void toolcall_put_str(struct writer *w, const char *s) {
    toolcall_put(w, s, strlen(s));
}

static void toolcall_add_mark(struct writer *w, size_t begin) {
    struct toolcall_marks *m = w->own;

    if (w->error || begin == w->out->len)
        return;
    if (!ARRAY_GROW(m->v, m->n, m->cap, 8)) {
        w->error = -ENOMEM;
        return;
    }
    assert(m->n == 0 || m->v[m->n - 1].end <= begin);
    m->v[m->n++] = (struct text_range){begin, w->out->len};
}

/* Writes a literal of the format and records its range: its markers are the model's own. */
static void put_piece(struct writer *w, const char *piece, size_t index) {
    size_t begin = w->out->len;

    for (const char *c = text_or(piece, ""); *c && w->error == 0;) {
        size_t n = strcspn(c, "{");

        if (n) {
            toolcall_put(w, c, n);
        } else if (strncmp(c, "{nl}", n = 4) == 0) {
            toolcall_put_str(w, "\n");
        } else if (strncmp(c, "{index}", n = 7) == 0) {
            w->error = buf_printf(w->out, "%zu", index);
        } else {
            toolcall_put(w, c, n = 1);
        }
        c += n;
    }
    toolcall_add_mark(w, begin);
}

static void toolcall_put_string(struct writer *w, const char *s, size_t len) {
    toolcall_put_str(w, "\"");
    if (w->error == 0)
        w->error = scan_escape(w->out, s, len);
    toolcall_put_str(w, "\"");
}

static void put_plain(struct writer *w, yyjson_mut_val *v) {
    size_t len;
    char *text = yyjson_mut_val_write(v, 0, &len);

    if (text)
        toolcall_put(w, text, len);
    else if (w->error == 0)
        w->error = -ENOMEM;
    free(text);
}

static void toolcall_put_value(struct writer *w, yyjson_mut_val *v, unsigned depth) {
    yyjson_mut_val *key, *item;
    size_t i, n;

    if (yyjson_mut_is_str(v)) {
        toolcall_put_string(w, json_mut_text(v), json_mut_len(v));
    } else if (w->python && yyjson_mut_is_null(v)) {
        toolcall_put_str(w, "None");
    } else if (w->python && yyjson_mut_is_bool(v)) {
        toolcall_put_str(w, yyjson_mut_get_bool(v) ? "True" : "False");
    } else if (yyjson_mut_is_arr(v) && depth < NESTING_MAX) {
        toolcall_put_str(w, "[");
        yyjson_mut_arr_foreach(v, i, n, item) {
            toolcall_put_str(w, i ? ", " : "");
            toolcall_put_value(w, item, depth + 1);
        }
        toolcall_put_str(w, "]");
    } else if (yyjson_mut_is_obj(v) && depth < NESTING_MAX) {
        toolcall_put_str(w, "{");
        yyjson_mut_obj_foreach(v, i, n, key, item) {
            toolcall_put_str(w, i ? ", " : "");
            toolcall_put_string(w, json_mut_text(key), json_mut_len(key));
            toolcall_put_str(w, ": ");
            toolcall_put_value(w, item, depth + 1);
        }
        toolcall_put_str(w, "}");
    } else {
        put_plain(w, v);
    }
}

/* Writes the arguments. Those that are no object were made by a client, and only JSON can express
 * them. */
static void toolcall_put_args(struct writer *w, yyjson_mut_val *args) {
    yyjson_mut_val *key, *item;
    size_t i, n;

    if (!w->python && yyjson_mut_is_str(args))
        toolcall_put(w, json_mut_text(args), json_mut_len(args));
    else if (!w->python)
        toolcall_put_value(w, args, 0);
    if (!w->python || !yyjson_mut_is_obj(args))
        return;
    yyjson_mut_obj_foreach(args, i, n, key, item) {
        toolcall_put_str(w, i ? ", " : "");
        toolcall_put(w, json_mut_text(key), json_mut_len(key));
        toolcall_put_str(w, "=");
        toolcall_put_value(w, item, 0);
    }
}

static void toolcall_put_name(struct writer *w, const struct toolcall_shape *s,
                              yyjson_mut_val *name) {
    if (w->error == 0)
        w->error = toolcall_spell_name(s, json_mut_text(name), json_mut_len(name), w->out);
}

bool toolcall_can_write(const struct toolcall_format *f) {
    const struct toolcall_shape *s = &f->shape;
    const char *const pieces[] = {s->call_begin, s->name_end, s->call_end};

    for (size_t i = 0; i < ARRAY_SIZE(pieces); i++) {
        if (pieces[i] && strstr(pieces[i], "{id}"))
            return false;
    }
    return s->args == ARGS_JSON || s->args == ARGS_PYTHON;
}

int toolcall_write_calls(const struct toolcall_format *f, yyjson_mut_val *calls, struct buf *out,
                         struct toolcall_marks *own) {
    const struct toolcall_shape *s = &f->shape;
    struct writer w = {.out = out, .own = own, .python = s->args == ARGS_PYTHON};
    yyjson_mut_val *call;
    size_t i, n;

    assert(toolcall_can_write(f));
    put_piece(&w, s->section_begin, 0);
    yyjson_mut_arr_foreach(calls, i, n, call) {
        yyjson_mut_val *function = yyjson_mut_obj_get(call, "function");
        yyjson_mut_val *name = yyjson_mut_obj_get(function, "name");

        put_piece(&w, i ? s->separator : NULL, i);
        put_piece(&w, s->call_begin, i);
        toolcall_put_name(&w, s, name);
        put_piece(&w, s->name_end, i);
        toolcall_put_args(&w, yyjson_mut_obj_get(function, "arguments"));
        put_piece(&w, s->call_end, i);
    }
    put_piece(&w, s->section_end, 0);
    return w.error;
}
