/*
 * Reports the events of a parser: text without the white space around markers, and calls. White
 * space at the end of a piece of text is held until it is clear whether text or a marker follows.
 */

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/toolcall/parser.h"

#define FENCE_MIN 3 /* characters of a fence of code */

static bool events_is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void events_notify(struct toolcall_parser *p, const struct toolcall_event *e) {
    if (p->error == 0)
        p->error = p->sink(p->ctx, e);
}

static void notify_text(struct toolcall_parser *p, bool reasoning, const char *data, size_t len) {
    if (len && (reasoning || !p->opts.only_calls))
        events_notify(
            p, &(struct toolcall_event){.kind = reasoning ? TOOLCALL_REASONING : TOOLCALL_CONTENT,
                                        .data = data,
                                        .len = len});
}

void events_drop_space(struct toolcall_parser *p) {
    p->n_space = 0;
}

void events_flush_space(struct toolcall_parser *p) {
    notify_text(p, p->space_is_reasoning, p->space, p->n_space);
    p->n_space = 0;
}

void events_segment(struct toolcall_parser *p) {
    p->n_space = 0;
    p->seen = false;
    p->spaced = true;
    p->lines = (struct tc_lines){0};
}

void events_interrupt(struct toolcall_parser *p) {
    if (p->opts.joined) {
        memcpy(p->gap, p->space, p->n_space);
        p->n_gap = p->n_space;
    }
    events_segment(p);
}

/* Opens or closes a block of code with the fence that the line may be. */
static void events_end_line(struct tc_lines *l) {
    bool fence = l->n_first >= FENCE_MIN;

    if (fence && !l->fence && !(l->first == '`' && l->again)) {
        l->fence = l->first;
        l->n_fence = l->n_first;
    } else if (fence && l->fence == l->first && l->n_first >= l->n_fence && !l->more) {
        l->fence = 0;
    }
    *l = (struct tc_lines){.fence = l->fence, .n_fence = l->n_fence};
}

void events_line(struct tc_lines *l, char c) {
    if (c == '\n') {
        events_end_line(l);
        return;
    }
    if (events_is_space(c) && !l->begun)
        return;
    if (!l->begun)
        l->first = c == '`' || c == '~' ? c : 0;
    l->begun = true;
    l->closed |= c != l->first;
    if (!l->closed) {
        l->n_first++;
        return;
    }
    l->more |= !events_is_space(c);
    l->again |= c == l->first;
}

static void hold_space(struct toolcall_parser *p, const char *data, size_t len) {
    while (len) {
        assert(p->n_space < sizeof(p->space)); /* the space is flushed when it is full */
        size_t n = MIN(len, sizeof(p->space) - p->n_space);

        memcpy(p->space + p->n_space, data, n);
        p->n_space += n;
        data += n;
        len -= n;
        if (p->n_space == sizeof(p->space))
            events_flush_space(p);
    }
}

/* Tells what separates text from an earlier piece of its kind. */
static void events_gap(struct toolcall_parser *p, bool reasoning) {
    if (!reasoning) {
        notify_text(p, false, p->gap, p->n_gap);
        p->n_gap = 0;
        return;
    }
    if (p->reason_gap)
        notify_text(p, true, "\n", 1);
    p->reason_gap = false;
    p->reasoned = true;
}

void events_text(struct toolcall_parser *p, bool reasoning, const char *data, size_t len) {
    size_t end = len;

    assert(!p->call.open); /* bytes inside a call are not text yet */
    for (size_t i = 0; i < len && !reasoning && p->reason_open.text; i++)
        events_line(&p->lines, data[i]);
    while (p->spaced && len && events_is_space(*data)) {
        data++;
        end--;
        len--;
    }
    while (end && events_is_space(data[end - 1]))
        end--;
    if (end)
        events_gap(p, reasoning);
    p->space_is_reasoning = reasoning;
    if (end) {
        events_flush_space(p);
        notify_text(p, reasoning, data, end);
        p->seen = true;
        p->spaced = false;
    }
    hold_space(p, data + end, len - end);
}

/* ---- calls ---- */

/* Mixes the bits of @x as splitmix64 does. An id needs no more than a good function of (seed,
 * index, i). */
static uint64_t events_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void events_make_id(struct toolcall_parser *p) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    bool is_short = p->opts.format->short_ids;
    uint64_t state = events_mix(p->opts.seed) ^ events_mix(p->n_calls + 1);
    char *at = p->call.id + sprintf(p->call.id, "%s", is_short ? "" : "call_");

    for (int i = is_short ? 9 : 24; i > 0; i--) {
        state = events_mix(state);
        *at++ = digits[state % 62];
    }
    assert(at < p->call.id + sizeof(p->call.id));
    *at = 0;
}

/* Makes sure that the call has an id that no other call of the message has. */
static void settle_id(struct toolcall_parser *p) {
    uint64_t hash = 0;

    for (const char *c = p->call.id; *c; c++)
        hash = events_mix(hash ^ (unsigned char)*c);
    bool known = hash == 0;

    for (uint32_t i = 0; i < p->n_calls && !known; i++)
        known = p->ids[i] == hash;
    if (known)
        events_make_id(p);
    assert(p->n_calls < ARRAY_SIZE(p->ids));
    p->ids[p->n_calls] = known ? 0 : hash;
}

void events_open(struct toolcall_parser *p) {
    assert(!p->call.open);
    p->call = (struct tc_call){.open = true, .whole = p->opts.whole_calls || p->mentioned};
    buf_clear(&p->raw);
    buf_clear(&p->args);
}

static void notify_args(struct toolcall_parser *p, const char *data, size_t len) {
    assert(p->call.committed && p->n_calls > 0);
    if (len)
        events_notify(
            p, &(struct toolcall_event){
                   .kind = TOOLCALL_ARGS, .index = p->n_calls - 1, .data = data, .len = len});
}

/* Reports the call. From now on it cannot turn out to be text. */
static void commit(struct toolcall_parser *p) {
    assert(p->call.open && p->call.has_name && p->n_calls < TOOLCALL_CALLS_MAX);
    p->call.committed = true;
    p->n_gap = 0;
    events_drop_space(p);
    settle_id(p);
    events_notify(p, &(struct toolcall_event){.kind = TOOLCALL_BEGIN,
                                              .index = p->n_calls++,
                                              .id = p->call.id,
                                              .name = p->call.name});
    notify_args(p, p->args.data, p->args.len);
    buf_clear(&p->args);
    buf_clear(&p->raw);
}

void events_name(struct toolcall_parser *p) {
    struct tc_call *c = &p->call;

    c->has_name = true;
    if (!c->name[0] || (p->opts.format->only_known && !value_knows(p->opts.tools, c->name)))
        c->broken = true;
    else if (!c->whole && p->args.len)
        commit(p); /* the arguments came first */
}

void events_args(struct toolcall_parser *p, const char *data, size_t len) {
    struct tc_call *c = &p->call;

    if (!c->open || c->broken || !len || p->error)
        return;
    c->has_args = true;
    if (c->committed) {
        notify_args(p, data, len);
        buf_clear(&p->raw);
        return;
    }
    p->error = buf_add(&p->args, data, len);
    if (!c->whole && c->has_name)
        commit(p);
}

void events_out(struct toolcall_parser *p) {
    events_args(p, p->out.data, p->out.len);
    buf_clear(&p->out);
}

static void events_end_stream(struct toolcall_parser *p, bool complete) {
    assert(p->call.committed && p->n_calls > 0); /* only a call that was reported is ended */
    events_notify(p, &(struct toolcall_event){
                         .kind = TOOLCALL_END, .index = p->n_calls - 1, .complete = complete});
    p->call = (struct tc_call){0};
    events_segment(p);
}

void events_end(struct toolcall_parser *p) {
    struct tc_call *c = &p->call;

    if (!c->open)
        return;
    if (!c->has_name || c->broken) {
        c->broken = true;
        return;
    }
    if (c->n_params)
        events_args(p, "}", 1);
    else if (!c->has_args)
        events_args(p, "{}", 2);
    if (!c->committed)
        commit(p);
    events_end_stream(p, true);
    buf_clear(&p->raw);
}

/* Breaks the open call off. If it was not reported yet, its bytes are text; else it ends as an
 * incomplete call. */
void events_break(struct toolcall_parser *p) {
    if (!p->call.open)
        return;
    if (p->call.committed)
        events_end_stream(p, false);
    p->call = (struct tc_call){0};
    events_text(p, p->back == TC_REASON, p->raw.data, p->raw.len);
    buf_clear(&p->raw);
    buf_clear(&p->args);
}
