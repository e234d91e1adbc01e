#include "api/generation/output_parser.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "text/stops.h"

int output_parser_new(struct output_parser **out, const struct toolcall_opts *opts, size_t max) {
    struct output_parser *s = calloc(1, sizeof(*s));

    if (!s || toolcall_parser_new(&s->parser, opts) < 0) {
        free(s);
        return -ENOMEM;
    }
    s->opts = *opts;
    s->in_reasoning = toolcall_in_reasoning(s->parser);
    for (size_t i = 0; i < OUTPUT_KINDS; i++)
        buf_init(&s->text[i], max);
    *out = s;
    return 0;
}

struct output_parser *output_parser_free(struct output_parser *s) {
    if (!s)
        return NULL;
    toolcall_parser_free(s->parser);
    for (size_t i = 0; i < OUTPUT_KINDS; i++)
        buf_deinit(&s->text[i]);
    free(s->runs);
    free(s->calls);
    free(s);
    return NULL;
}

bool output_parser_wants(const struct output_parser *s, const char *text, size_t len) {
    return toolcall_has_marker(s->opts.format, s->opts.reasoning, text, len);
}

static int add_run(struct output_parser *s, enum output_kind kind, uint32_t call) {
    size_t at = s->text[kind].len;

    assert(!s->n_runs || s->runs[s->n_runs - 1].kind != kind || kind == OUTPUT_CALL);
    if (!ARRAY_GROW(s->runs, s->n_runs, s->cap_runs, 8))
        return -ENOMEM;
    s->runs[s->n_runs++] = (struct output_run){kind, call, at, at};
    return 0;
}

/* Appends to the text of @kind, in the last run if that is of this kind. Arguments need no new run:
 * begin_call() has made it. */
static int output_add_text(struct output_parser *s, enum output_kind kind,
                           const struct toolcall_event *e) {
    const struct output_run *last = s->n_runs ? &s->runs[s->n_runs - 1] : NULL;

    assert(!last || last->end == s->text[last->kind].len);
    assert(kind != OUTPUT_CALL || (last && last->kind == kind && last->call == e->index));
    if ((!last || last->kind != kind) && add_run(s, kind, 0) < 0)
        return -ENOMEM;
    if (buf_add(&s->text[kind], e->data, e->len) < 0)
        return -ENOMEM;
    s->runs[s->n_runs - 1].end = s->text[kind].len;
    return 0;
}

static int begin_call(struct output_parser *s, const struct toolcall_event *e) {
    size_t at = s->text[OUTPUT_CALL].len;

    if (!ARRAY_GROW(s->calls, s->n_calls, s->cap_calls, 8) ||
        add_run(s, OUTPUT_CALL, s->n_calls) < 0)
        return -ENOMEM;
    struct output_call *c = &s->calls[s->n_calls++];
    *c = (struct output_call){.begin = at, .end = at};
    snprintf(c->id, sizeof(c->id), "%s", e->id);
    snprintf(c->name, sizeof(c->name), "%s", e->name);
    return 0;
}

static int output_add_mark(struct output_parser *s, const char *text) {
    const struct toolcall_event e = {.kind = TOOLCALL_CONTENT, .data = text, .len = strlen(text)};

    return output_add_text(s, OUTPUT_CONTENT, &e);
}

/* Adds reasoning to the content, behind its mark where it begins. */
static int add_inlined(struct output_parser *s, const struct toolcall_event *e) {
    const struct toolcall_reasoning *marks = s->opts.reasoning;

    if (!s->inlined)
        TRY(output_add_mark(s, marks ? marks->open : "<think>"));
    s->inlined = true;
    return output_add_text(s, OUTPUT_CONTENT, e);
}

/* Closes reasoning that the content has. */
static int close_inlined(struct output_parser *s) {
    const struct toolcall_reasoning *marks = s->opts.reasoning;

    s->inlined = false;
    TRY(output_add_mark(s, marks ? marks->close : "</think>"));
    return output_add_mark(s, "\n\n");
}

static int output_on_event(void *ctx, const struct toolcall_event *e) {
    struct output_parser *s = ctx;
    int r = 0;

    if (e->kind == TOOLCALL_REASONING && s->opts.inline_reasoning)
        return add_inlined(s, e);
    if (s->inlined && (e->kind == TOOLCALL_CONTENT || e->kind == TOOLCALL_BEGIN))
        TRY(close_inlined(s));

    assert(e->kind == TOOLCALL_CONTENT || e->kind == TOOLCALL_REASONING ||
           e->kind == TOOLCALL_BEGIN || e->index < s->n_calls);

    switch (e->kind) {
    case TOOLCALL_CONTENT:
        return output_add_text(s, OUTPUT_CONTENT, e);
    case TOOLCALL_REASONING:
        return output_add_text(s, OUTPUT_REASONING, e);
    case TOOLCALL_BEGIN:
        return begin_call(s, e);
    case TOOLCALL_ARGS:
        r = output_add_text(s, OUTPUT_CALL, e);
        s->calls[e->index].end = s->text[OUTPUT_CALL].len;
        return r;
    case TOOLCALL_END:
        s->calls[e->index].complete = e->complete;
        return 0;
    }
    return 0;
}

void output_parser_note_token(struct output_parser *s) {
    toolcall_note_token(s->parser);
}

int output_parser_feed(struct output_parser *s, const char *data, size_t len) {
    assert(!s->finished);
    if (!len)
        return 0;
    return toolcall_feed(s->parser, data, len, output_on_event, s);
}

void output_parser_count(struct output_parser *s, size_t token_len) {
    assert(!s->finished);
    bool now = toolcall_in_reasoning(s->parser);

    s->n_reasoning += token_len && now && s->in_reasoning;
    s->in_reasoning = now;
}

int output_parser_finish(struct output_parser *s, bool cut) {
    if (s->finished)
        return 0;
    s->finished = true;
    return toolcall_finish(s->parser, cut, output_on_event, s);
}

bool output_parser_has_call(const struct output_parser *s) {
    for (uint32_t i = 0; i < s->n_calls; i++)
        if (s->calls[i].complete)
            return true;
    return false;
}

/* Returns how many bytes of run @i may be sent: a character is not cut while the rest of it may
 * follow. */
static size_t ready(const struct output_parser *s, uint32_t i) {
    const struct output_run *r = &s->runs[i];
    size_t n = r->end - r->begin;

    assert(r->begin <= r->end && r->end <= s->text[r->kind].len);
    if (n == 0 || s->finished || i + 1 < s->n_runs)
        return n;
    return n - utf8_incomplete_tail(s->text[r->kind].data + r->begin, n);
}

bool output_parser_next(const struct output_parser *s, struct output_at *at, size_t most,
                        struct output_piece *out) {
    assert(at->run <= s->n_runs && most >= 4);
    most = MIN(most, OUTPUT_PIECE_MAX);
    for (; at->run < s->n_runs; *at = (struct output_at){.run = at->run + 1}) {
        const struct output_run *r = &s->runs[at->run];
        size_t n = ready(s, at->run);

        assert(at->sent <= n); /* sent bytes stay ready */

        *out = (struct output_piece){.kind = r->kind, .call = r->call, .text = ""};
        if (r->kind == OUTPUT_CALL && !at->named) {
            at->named = out->begins = true;
            return true;
        }
        if (n > at->sent) {
            out->text = s->text[r->kind].data + r->begin + at->sent;
            out->len = n - at->sent;
            if (out->len > most)
                out->len = most - utf8_incomplete_tail(out->text, most);
            at->sent += out->len;
            return true;
        }
        if (at->run + 1 == s->n_runs)
            break;
    }
    return false;
}
