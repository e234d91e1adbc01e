#include "api/toolcall/parser.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <yyjson.h>

#define SLICE 4096u /* bytes of a feed that are parsed at once */

static const struct tc_state text_only[TC_FIRST] = {{0}};

static const struct tc_state *parser_states(const struct toolcall_parser *p) {
    if (!p->opts.format)
        return text_only;
    return p->opts.format->states;
}

/* Sets what ends the last call of a message in formats with tags. */
static void parser_set_ending(struct toolcall_parser *p, const struct toolcall_shape *s) {
    const char *const parts[] = {s->call_end, s->section_end};
    size_t n = 0;

    for (size_t i = 0; i < ARRAY_SIZE(parts) && s->args == ARGS_TAGGED; i++) {
        for (const char *c = parts[i]; c && *c; c++) {
            assert(n + 1 < sizeof(p->ending)); /* a literal of a table */
            if (!strchr(" \n", *c))
                p->ending[n++] = *c;
        }
    }
    p->last = (struct tc_edge){p->ending, TC_CONTENT, TC_END};
}

static bool has_own(const struct toolcall_opts *opts) {
    return opts->format && opts->format->own.begin;
}

int toolcall_parser_new(struct toolcall_parser **out, const struct toolcall_opts *opts) {
    struct toolcall_parser *p = calloc(1, sizeof(*p));

    if (!p)
        return -ENOMEM;
    p->opts = *opts;
    if (!opts->max_calls || opts->max_calls > TOOLCALL_CALLS_MAX)
        p->opts.max_calls = TOOLCALL_CALLS_MAX;
    if (!opts->max_held)
        p->opts.max_held = TOOLCALL_HELD_MAX;
    if (!opts->max_whole)
        p->opts.max_whole = TOOLCALL_WHOLE_MAX;
    p->calls = opts->format && yyjson_arr_size(opts->tools) > 0;
    if (opts->reasoning && !has_own(opts)) {
        p->reason_open = (struct tc_edge){opts->reasoning->open, TC_REASON, TC_START};
        p->reason_close = (struct tc_edge){opts->reasoning->close, TC_CONTENT, 0};
    }
    if (opts->format)
        parser_set_ending(p, &opts->format->shape);
    size_t most = opts->whole_calls ? p->opts.max_whole : p->opts.max_held;

    buf_init(&p->win, SIZE_MAX / 2);
    buf_init(&p->out, SIZE_MAX / 2);
    buf_init(&p->raw, most);
    /* The limit holds for the input; escapes lengthen it by a factor of at most six. */
    buf_init(&p->args, 8 * most + SLICE);
    buf_init(&p->object.text, 8 * p->opts.max_held + SLICE);
    buf_init(&p->value.text, p->opts.max_held);
    p->state = opts->format ? opts->format->start : TC_CONTENT;
    if (opts->in_reasoning && (p->reason_close.text || has_own(opts)))
        p->state = TC_REASON;
    p->spaced = p->state == TC_REASON;
    *out = p;
    return 0;
}

struct toolcall_parser *toolcall_parser_free(struct toolcall_parser *p) {
    if (!p)
        return NULL;
    buf_deinit(&p->win);
    buf_deinit(&p->out);
    buf_deinit(&p->raw);
    buf_deinit(&p->args);
    buf_deinit(&p->object.text);
    buf_deinit(&p->value.text);
    free(p);
    return NULL;
}

const char *parser_at(const struct toolcall_parser *p, size_t *len) {
    *len = p->win.len - p->pos;
    return p->win.data + p->pos;
}

/* Takes @n bytes of the window. Bytes of a call that have not been reported as arguments are kept,
 * because they may turn out to be text. At the limit exactly the bytes that fit are taken, so the
 * result does not depend on where a feed ended. Returns false if not all fit. */
bool parser_consume(struct toolcall_parser *p, size_t n) {
    bool kept = p->call.open;
    size_t fits = kept ? MIN(n, p->raw.max - p->raw.len) : n;

    assert(n <= p->win.len - p->pos && p->raw.len <= p->raw.max);
    if (kept && p->error == 0)
        p->error = buf_add(&p->raw, p->win.data + p->pos, fits);
    p->pos += fits;
    return fits == n;
}

/* Takes bytes and reports them as arguments at once. */
bool parser_pass(struct toolcall_parser *p, size_t n) {
    if (!p->call.committed)
        return parser_consume(p, n);
    assert(n <= p->win.len - p->pos);
    p->pos += n;
    return true;
}

/* Goes to state @next with the actions @act. */
void parser_go(struct toolcall_parser *p, uint8_t next, unsigned act) {
    if (act & TC_FREE)
        p->call.whole = true;
    if (act & TC_CALL)
        events_name(p);
    if (act & (TC_STRING | TC_JSON)) {
        p->value.forced_string = act & TC_STRING;
        p->value.forced_json = act & TC_JSON;
    }
    if (act & TC_END)
        events_end(p);
    if (next == TC_REASON && p->state != TC_REASON)
        p->reason_gap = p->opts.joined && p->reasoned;
    p->entered = false;
    p->n_text = 0;
    p->state = next;
}

/* Treats the text that was read as content: it is not a call. */
static void parser_treat_as_text(struct toolcall_parser *p) {
    uint8_t back = p->call.open ? p->back : TC_CONTENT;

    events_break(p);
    parser_go(p, back, 0);
}

/* Asserts the invariants of struct toolcall_parser. */
static void parser_check(const struct toolcall_parser *p) {
    const struct tc_call *c = &p->call;

    assert(p->pos <= p->win.len && p->n_space <= sizeof(p->space));
    assert(p->n_calls <= TOOLCALL_CALLS_MAX);
    assert((!c->has_name || c->open) && (!c->committed || c->has_name));
    assert(c->open || (p->raw.len == 0 && p->args.len == 0));
    assert(!c->committed || p->args.len == 0);
    assert(p->out.len == 0 || p->error);
    assert(!c->open || parser_states(p)[p->state].kind != TC_TEXT || p->error);
}

/* Parses everything in the window that can be decided. */
static void parser_run(struct toolcall_parser *p) {
    unsigned idle = 0;

    while (p->error == 0 && p->pos < p->win.len) {
        size_t before = p->pos;
        int r = states_step(p, &parser_states(p)[p->state]);

        if (r < 0) {
            p->error = r;
        } else if (r == TC_BROKEN || p->call.broken || p->state == TC_FAIL) {
            parser_treat_as_text(p);
            r = TC_MOVED;
        }
        parser_check(p);
        if (r == TC_MORE) {
            assert(!p->final || p->pos == p->win.len);
            return;
        }
        idle = p->pos == before ? idle + 1 : 0;
        assert(idle < 32); /* the table must not loop */
    }
}

void toolcall_note_token(struct toolcall_parser *p) {
    if (p->win.len < TC_MARKS)
        p->tokens |= (uint64_t)1 << p->win.len;
}

/* Drops the bytes of the window that were taken. */
static void parser_shift(struct toolcall_parser *p) {
    buf_consume(&p->win, p->pos);
    p->tokens = p->pos < TC_MARKS ? p->tokens >> p->pos : 0;
    p->pos = 0;
}

int toolcall_feed(struct toolcall_parser *p, const char *data, size_t len, toolcall_sink sink,
                  void *ctx) {
    p->sink = sink;
    p->ctx = ctx;
    assert(!p->final);
    while (len && p->error == 0) {
        size_t n = MIN(len, SLICE);
        int r = buf_add(&p->win, data, n);

        if (r < 0)
            p->error = r;
        parser_run(p);
        parser_shift(p);
        data += n;
        len -= n;
    }
    return p->error;
}

/* Returns true if nothing but brackets is missing in the arguments of the open call, and adds
 * them. */
static bool parser_close_arguments(struct toolcall_parser *p, const struct tc_state *s) {
    if (!(s->kind == TC_ARGUMENTS && p->entered) &&
        !((s->kind == TC_OBJECT || s->kind == TC_NAMED) && object_in_arguments(p)))
        return false;
    int r = scan_close(&p->scan, &p->out);

    if (r == SCAN_DONE)
        events_out(p);
    buf_clear(&p->out);
    if (r < 0)
        p->error = r;
    return r == SCAN_DONE;
}

/* Returns true if the open call lacks nothing but its end. What was cut off may lack more. */
static bool parser_may_end(struct toolcall_parser *p, bool cut) {
    const struct tc_state *s = &parser_states(p)[p->state];

    if (object_may_end(p))
        return true;
    if (cut || !p->call.has_name)
        return false;
    for (uint8_t i = 0; i < s->n_edges && s->kind == TC_EXPECT && p->call.n_params; i++)
        if (s->edges[i].act & TC_END)
            return true;
    return parser_close_arguments(p, s);
}

int toolcall_finish(struct toolcall_parser *p, bool cut, toolcall_sink sink, void *ctx) {
    p->sink = sink;
    p->ctx = ctx;
    p->final = true;
    parser_run(p);
    if (p->error == 0 && p->call.open) {
        if (parser_may_end(p, cut))
            events_end(p);
        else
            events_break(p);
    }
    events_flush_space(p);
    return p->error;
}

bool toolcall_in_reasoning(const struct toolcall_parser *p) {
    return p->state == TC_REASON;
}

uint32_t toolcall_n_calls(const struct toolcall_parser *p) {
    return p->n_calls;
}

size_t toolcall_held(const struct toolcall_parser *p) {
    return p->win.cap + p->raw.cap + p->args.cap + p->out.cap + p->object.text.cap +
           p->value.text.cap;
}
