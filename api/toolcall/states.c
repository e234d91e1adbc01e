/*
 * One step of each kind of state. A step decides on the bytes at the window's start and takes them,
 * or returns TC_MORE. Bytes are always taken exactly up to the place of a decision.
 */

#include <assert.h>
#include <string.h>

#include "api/toolcall/parser.h"

enum match { NONE, PARTIAL, FULL };

static bool states_is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static enum match match_text(const struct toolcall_parser *p, const char *text, const char *at,
                             size_t len) {
    size_t n = strlen(text);

    if (memcmp(text, at, MIN(n, len)) != 0)
        return NONE;
    if (len >= n)
        return FULL;
    if (p->final)
        return NONE;
    return PARTIAL;
}

/* Matches the text behind a closing literal: white space, then one of @follow, or the end of the
 * text. */
static enum match match_follow(const struct toolcall_parser *p, const char *const *follow,
                               const char *at, size_t len) {
    size_t n = 0;
    enum match best = NONE;

    while (n < len && n < TC_SPACE_MAX && states_is_space(at[n]))
        n++;
    if (n == len) {
        if (p->final)
            return FULL;
        return PARTIAL;
    }
    for (; *follow && best != FULL; follow++)
        best = MAX(best, match_text(p, *follow, at + n, len - n));
    return best;
}

static bool may_open(const struct toolcall_parser *p) {
    return p->calls && p->n_calls < p->opts.max_calls;
}

/* Returns the number of bytes at @at before white space. */
static size_t word_length(const char *at, size_t len) {
    size_t n = 0;

    while (n < len && !states_is_space(at[n]))
        n++;
    return n;
}

/* Matches the name of an offered tool, up to TC_SPACE_MAX blanks and @text. */
static enum match match_tool(const struct toolcall_parser *p, const char *text, const char *at,
                             size_t len) {
    size_t n = word_length(at, len), end = n;
    char name[TOOLCALL_NAME_MAX + 1];

    if (n > TOOLCALL_NAME_MAX || !value_may_know(p->opts.tools, at, n))
        return NONE;
    memcpy(name, at, n);
    name[n] = 0;
    if (n < len && !value_knows(p->opts.tools, name))
        return NONE;
    while (end < len && end - n < TC_SPACE_MAX && at[end] == ' ')
        end++;
    return match_text(p, text, at + end, len - end);
}

static enum match match_edge(const struct toolcall_parser *p, const struct tc_edge *e,
                             const char *at, size_t len) {
    if (e->act & TC_TOOL)
        return match_tool(p, e->text, at, len);
    if (*e->text != *at)
        return NONE;
    return match_text(p, e->text, at, len);
}

/* Finds the first edge in the table's order that matches at @at, or that may match when there is
 * more text. */
static enum match match_edges(const struct toolcall_parser *p, const struct tc_state *s,
                              const char *at, size_t len, bool seen, unsigned need,
                              const struct tc_edge **out) {
    for (uint8_t i = 0; i < s->n_edges; i++) {
        const struct tc_edge *e = &s->edges[i];

        if (((e->act & TC_START) && seen) || (e->act & need) != need ||
            ((e->act & TC_OPEN) && !may_open(p)))
            continue;
        enum match m = match_edge(p, e, at, len);

        if (m == FULL && s->follow)
            m = match_follow(p, s->follow, at + strlen(e->text), len - strlen(e->text));
        if (m != NONE) {
            *out = e;
            return m;
        }
    }
    return NONE;
}

/* Takes the name of a tool and the blanks behind it. */
static bool consume_tool(struct toolcall_parser *p) {
    size_t len;
    const char *at = parser_at(p, &len);
    size_t n = word_length(at, len), end = n;

    assert(n <= TOOLCALL_NAME_MAX);
    memcpy(p->call.name, at, n);
    p->call.name[n] = 0;
    while (at[end] == ' ')
        end++;
    return parser_consume(p, end);
}

static int state_follow_edge(struct toolcall_parser *p, const struct tc_state *s,
                             const struct tc_edge *e) {
    assert(*e->text); /* an empty edge would not advance */
    if (e->act & TC_OPEN) {
        events_open(p);
        p->back = s->kind == TC_TEXT ? p->state : TC_CONTENT;
    }
    if ((e->act & TC_TOOL) && !consume_tool(p))
        return TC_BROKEN;
    if (!(e->act & TC_PEEK) && !parser_consume(p, strlen(e->text)))
        return TC_BROKEN;
    if (e == &p->reason_open && p->seen)
        events_interrupt(p);
    else if (s->kind == TC_TEXT && !(e->act & TC_OPEN) && e->next != p->state)
        events_segment(p);
    parser_go(p, e->next, e->act);
    return TC_MOVED;
}

/* ---- text ---- */

/* Content before a byte of the window: @lines are those before byte @n. seen: it has more than
 * white space. */
struct ahead {
    struct tc_lines lines;
    size_t n;
    bool seen;
};

/*
 * Matches the marker of reasoning at byte @i behind content. Models also write about such markers:
 * so it has to be what opts.mark says, and unless it is a control token no blank may follow it, as
 * in "<think> is a tag".
 */
static enum match match_late(struct toolcall_parser *p, struct ahead *a, const char *at, size_t len,
                             size_t i) {
    size_t n = strlen(p->reason_open.text);
    enum match m = match_text(p, p->reason_open.text, at + i, len - i);
    bool token = p->pos + i < TC_MARKS && p->tokens >> (p->pos + i) & 1;

    if (m == NONE)
        return NONE;
    if (p->opts.mark == MARK_CONTROL && token && !p->opts.unbroken)
        return m;
    for (; a->n < i; a->n++)
        events_line(&a->lines, at[a->n]);
    bool fits = !p->opts.unbroken && !a->lines.begun && !a->lines.fence &&
                (p->opts.mark == MARK_TEXT || (p->opts.mark == MARK_TOKEN && token));

    if (fits && m == FULL && len - i == n) {
        if (p->final)
            return FULL;
        return PARTIAL;
    }
    if (fits && (m == PARTIAL || at[i + n] != ' '))
        return m;
    p->mentioned |= m == FULL;
    if (m == PARTIAL)
        return PARTIAL;
    return NONE; /* it is decided as a whole, however it is cut */
}

/* Matches the markers that count in text at byte @i: those of the format and those of reasoning. */
static enum match match_marker(struct toolcall_parser *p, const struct tc_state *s, struct ahead *a,
                               const char *at, size_t len, size_t i, const struct tc_edge **out) {
    const struct tc_edge *own = NULL;
    enum match m = match_edges(p, s, at + i, len - i, a->seen, 0, out);

    if (p->state == TC_CONTENT)
        own = &p->reason_open;
    else if (p->state == TC_REASON)
        own = &p->reason_close;
    if (m == NONE && p->state == TC_REASON && p->opts.format && p->opts.format->ends_reasoning)
        m = match_edges(p, &p->opts.format->states[TC_CONTENT], at + i, len - i, p->seen, TC_OPEN,
                        out);
    if (m == NONE && own && own->text) {
        if ((own->act & TC_START) && p->seen)
            m = match_late(p, a, at, len, i);
        else
            m = match_text(p, own->text, at + i, len - i);
        *out = own;
    }
    return m;
}

static int text_step(struct toolcall_parser *p, const struct tc_state *s) {
    struct ahead ahead = {.lines = p->lines, .seen = p->seen};
    const struct tc_edge *e = NULL;
    size_t len, i;
    const char *at = parser_at(p, &len);
    enum match m = NONE;

    assert(!p->call.open);
    /* A marker behind text is matched again in the next step, when the text has been reported and
     * `seen` is set. */
    for (i = 0; i < len; i++) {
        m = match_marker(p, s, &ahead, at, len, i, &e);
        if (m != NONE)
            break;
        ahead.seen |= !states_is_space(at[i]);
    }
    if (i) {
        events_text(p, p->state == TC_REASON, at, i);
        parser_consume(p, i);
        if (m == NONE)
            return TC_MORE;
        return TC_MOVED;
    }
    if (m == PARTIAL)
        return TC_MORE;
    return state_follow_edge(p, s, e);
}

/* ---- between the parts of a call ---- */

/* Takes white space. Returns TC_MOVED if there was some, TC_MORE if there was none. */
static int states_skip_space(struct toolcall_parser *p) {
    size_t len, n = 0;
    const char *at = parser_at(p, &len);

    while (n < len && states_is_space(at[n]))
        n++;
    if (n && !parser_consume(p, n))
        return TC_BROKEN;
    if (n)
        return TC_MOVED;
    return TC_MORE;
}

/* Goes to the state for text that none of the edges is. With TC_OPEN a call may begin with it. */
static void expect_other(struct toolcall_parser *p, const struct tc_state *s) {
    bool opens = s->act & TC_OPEN;

    if (opens && !may_open(p)) {
        parser_go(p, TC_CONTENT, 0);
        return;
    }
    if (opens) {
        events_open(p);
        p->back = TC_CONTENT;
    }
    parser_go(p, s->other, 0);
}

static int expect_step(struct toolcall_parser *p, const struct tc_state *s) {
    const struct tc_edge *e;
    int r = states_skip_space(p);

    if (r != TC_MORE)
        return r;
    size_t len;
    const char *at = parser_at(p, &len);
    enum match m = match_edges(p, s, at, len, p->seen, 0, &e);

    if (m == FULL)
        return state_follow_edge(p, s, e);
    if (m == PARTIAL)
        return TC_MORE;
    expect_other(p, s);
    return TC_MOVED;
}

/* Matches what ends a call, or the beginning of it, as the rest of the text: the value before it
 * has no end of its own. */
static enum match match_ending(const struct toolcall_parser *p, const char *at, size_t len) {
    size_t n = 0, n_space = 0;

    if (!*p->ending || (*at != '<' && *at != '\n'))
        return NONE;
    for (size_t i = 0; i < len; i++) {
        bool space = states_is_space(at[i]);

        if (space && ++n_space > TC_SPACE_MAX)
            return NONE;
        if (!space && (!p->ending[n] || at[i] != p->ending[n]))
            return NONE;
        n += !space;
    }
    if (!p->final)
        return PARTIAL;
    if (n && p->ending[n - 1] == '>')
        return FULL;
    return NONE;
}

/* Matches an edge of the state, or for a value the end of the call. */
static enum match match_end(const struct toolcall_parser *p, const struct tc_state *s,
                            const char *at, size_t len, const struct tc_edge **out) {
    enum match m = match_edges(p, s, at, len, true, 0, out);

    if (m != NONE || s->kind != TC_VALUE)
        return m;
    *out = &p->last;
    return match_ending(p, at, len);
}

/* Returns the number of bytes before one of the state's literals. Sets *edge if that is
 * complete. */
static size_t find_edge(struct toolcall_parser *p, const struct tc_state *s, size_t max,
                        const struct tc_edge **edge) {
    size_t len, i;
    const char *at = parser_at(p, &len);

    *edge = NULL;
    for (i = 0; i < len && i < max; i++) {
        const struct tc_edge *e;
        enum match m = match_end(p, s, at + i, len - i, &e);

        if (m == FULL)
            *edge = e;
        if (m != NONE)
            break;
    }
    return i;
}

static bool is_bad(const struct tc_state *s, char c) {
    if (s->kind == TC_NAME)
        return ((unsigned char)c < 0x20 && !states_is_space(c)) || strchr("<>{}()[]\"'`,;", c);
    return (unsigned char)c < 0x20;
}

/* Completes a collected text: trims white space around it; a name must have none inside. */
static bool states_settle(struct toolcall_parser *p, const struct tc_state *s, char *text,
                          const struct tc_edge *e) {
    while (p->n_text && states_is_space(text[p->n_text - 1]))
        p->n_text--;
    text[p->n_text] = 0;
    if (s->kind == TC_NAME)
        return !strpbrk(text, " \n\t\r");
    if (!(e->act & TC_NAME_IN_ID))
        return true;
    const char *name = strncmp(text, "functions.", 10) == 0 ? text + 10 : text;
    size_t n = strcspn(name, ":");

    if (n > TOOLCALL_NAME_MAX)
        return false;
    memcpy(p->call.name, name, n);
    p->call.name[n] = 0;
    if (!name[n])
        text[0] = 0; /* without an index it is no id */
    return true;
}

/* Collects a name, an id or a key. */
static int collect_step(struct toolcall_parser *p, const struct tc_state *s) {
    char *text = p->key;
    size_t max = TC_KEY_MAX;
    const struct tc_edge *e;
    size_t n = find_edge(p, s, SIZE_MAX, &e), i, len;
    const char *at = parser_at(p, &len);

    if (s->kind == TC_NAME) {
        text = p->call.name;
        max = TOOLCALL_NAME_MAX;
    } else if (s->kind == TC_ID) {
        text = p->call.id;
        max = TOOLCALL_ID_MAX;
    }
    assert(p->call.open && p->n_text <= max && n <= len);
    for (i = 0; i < n && p->n_text < max && !is_bad(s, at[i]); i++) {
        if (p->n_text || !states_is_space(at[i]))
            text[p->n_text++] = at[i];
    }
    if (!parser_consume(p, i) || i < n)
        return TC_BROKEN;
    if (!e)
        return TC_MORE;
    if (!states_settle(p, s, text, e))
        return TC_BROKEN;
    return state_follow_edge(p, s, e);
}

static int skip_step(struct toolcall_parser *p, const struct tc_state *s) {
    assert(p->n_text < TC_SKIP_MAX);
    const struct tc_edge *e;
    size_t n = find_edge(p, s, TC_SKIP_MAX - p->n_text, &e);

    if (!parser_consume(p, n))
        return TC_BROKEN;
    p->n_text += n;
    if (e)
        return state_follow_edge(p, s, e);
    if (p->n_text == TC_SKIP_MAX)
        return TC_BROKEN;
    return TC_MORE;
}

/* ---- arguments ---- */

/*
 * A value that is JSON, or a Python literal, may have the closing tag in one of its strings: such a
 * tag counts only if the string never ends. A string never ends if it has a control character,
 * reaches the end of the text, or has more than TC_QUOTED_MAX bytes.
 */
static void quotes_feed(struct tc_quotes *q, char c) {
    if (q->state == QUOTES_BEGIN && !states_is_space(c)) {
        q->state = c == '{' || c == '[' || c == '"' ? QUOTES_ON : QUOTES_OFF;
        q->one = c == '"';
    }
    if (q->state != QUOTES_ON)
        return;
    if (!q->quote) {
        q->quote = c == '"' || c == '\'' ? c : 0;
    } else if ((unsigned char)c < 0x20) {
        q->state = QUOTES_OFF;
    } else if (q->escape || c == '\\') {
        q->escape = !q->escape;
    } else if (c == q->quote) {
        q->quote = 0;
        q->state = q->one ? QUOTES_OFF : QUOTES_ON;
    }
}

static bool in_quotes(const struct tc_quotes *q) {
    return q->state == QUOTES_ON && q->quote;
}

/* Matches if the string ends behind a tag at @at. */
static enum match match_quote(const struct toolcall_parser *p, struct tc_quotes q, const char *at,
                              size_t len) {
    for (size_t i = 0; i < MIN(len, (size_t)TC_QUOTED_MAX); i++) {
        quotes_feed(&q, at[i]);
        if (!in_quotes(&q)) {
            if ((unsigned char)at[i] < 0x20)
                return NONE;
            return FULL;
        }
    }
    if (len < TC_QUOTED_MAX && !p->final)
        return PARTIAL;
    return NONE;
}

/* Finds the edge like find_edge(), outside strings. Moves the tracker over the bytes before the
 * edge. */
static size_t find_end(struct toolcall_parser *p, const struct tc_state *s, size_t max,
                       const struct tc_edge **edge) {
    struct tc_quotes *q = &p->value.quotes;
    size_t len, i;
    const char *at = parser_at(p, &len);

    *edge = NULL;
    for (i = 0; i < len && i < max; i++) {
        const struct tc_edge *e;
        enum match m = match_end(p, s, at + i, len - i, &e), quoted = NONE;

        if (m == FULL && in_quotes(q))
            quoted = match_quote(p, *q, at + i, len - i);
        if (m == FULL && quoted == NONE)
            *edge = e;
        if (m != NONE && quoted != FULL)
            break;
        quotes_feed(q, at[i]);
    }
    return i;
}

static int value_step(struct toolcall_parser *p, const struct tc_state *s) {
    const struct tc_edge *e;
    size_t len;

    assert(p->call.has_name);
    if (!p->entered) {
        p->entered = true;
        value_begin(p);
    }
    bool held = !p->value.string;
    size_t room = held ? p->value.text.max - p->value.text.len : SIZE_MAX;
    const char *at = parser_at(p, &len);
    bool taken;
    size_t n;

    if (held) {
        n = find_end(p, s, room, &e);
        taken = parser_consume(p, n);
    } else {
        n = find_edge(p, s, room, &e);
        taken = parser_pass(p, n);
    }
    if (!taken)
        return TC_BROKEN;
    value_feed(p, at, n);
    if (!e) {
        if (held && n == room)
            return TC_BROKEN;
        return TC_MORE;
    }
    if (!parser_consume(p, e == &p->last ? p->win.len - p->pos : strlen(e->text)))
        return TC_BROKEN;
    value_end(p);
    parser_go(p, e->next, e->act);
    return TC_MOVED;
}

/* Reads a value with the scanner. */
static int scan_step(struct toolcall_parser *p, const struct tc_state *s) {
    size_t len, used;
    const char *at = parser_at(p, &len);
    /* The first byte commits the call; from there on nothing needs to be kept. */
    bool one = !p->call.committed && !p->call.whole;

    assert(p->call.has_name && p->out.len == 0);
    int r = scan_feed(&p->scan, at, one ? 1 : len, &used, &p->out);

    if (r < 0)
        return r;
    if (!parser_pass(p, used)) {
        buf_clear(&p->out);
        return TC_BROKEN;
    }
    events_out(p);
    if (r == SCAN_MORE) {
        if (used < len)
            return TC_MOVED;
        return TC_MORE;
    }
    if (r == SCAN_BAD)
        return TC_BROKEN;
    parser_go(p, s->next, s->act);
    return TC_MOVED;
}

static int literal_step(struct toolcall_parser *p, const struct tc_state *s) {
    if (!p->entered) {
        p->entered = true;
        value_key(p);
        scan_begin(&p->scan, s->mode);
    }
    return scan_step(p, s);
}

static int arguments_step(struct toolcall_parser *p, const struct tc_state *s) {
    size_t len;

    if (!p->entered) {
        int r = states_skip_space(p);

        if (r != TC_MORE)
            return r;
        if (*parser_at(p, &len) != '{') {
            parser_go(p, s->other, 0);
            return TC_MOVED;
        }
        p->entered = true;
        scan_begin(&p->scan, s->mode);
    }
    return scan_step(p, s);
}

int states_step(struct toolcall_parser *p, const struct tc_state *s) {
    switch (s->kind) {
    case TC_TEXT:
        return text_step(p, s);
    case TC_EXPECT:
        return expect_step(p, s);
    case TC_NAME:
    case TC_ID:
    case TC_KEY:
        return collect_step(p, s);
    case TC_SKIP:
        return skip_step(p, s);
    case TC_VALUE:
        return value_step(p, s);
    case TC_LITERAL:
        return literal_step(p, s);
    case TC_ARGUMENTS:
        return arguments_step(p, s);
    default:
        assert(s->kind == TC_OBJECT || s->kind == TC_NAMED);
        return object_step(p, s);
    }
}
