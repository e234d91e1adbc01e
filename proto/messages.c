#include "proto/messages.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * The wire form of a message is a fixed struct followed by its arrays; a span {off, len} of the
 * fixed struct gives each array's place, counted from the start of the message, 8-byte aligned,
 * `len` in bytes. The peer is the same executable but may have been corrupted: every span and
 * count is checked here and nowhere else.
 */

struct span {
    uint32_t off, len;
};

/* ---- writing ---- */

/* A message under construction: it starts at @start of @out. */
struct writer {
    struct buf *out;
    size_t start;
    int error;
};

/* Appends the fixed part, whose spans are set by end(). */
static struct writer begin(struct buf *out, const void *fixed, size_t size) {
    struct writer w = {out, out->len, 0};

    assert(out->len % 8 == 0); /* spans are aligned from the beginning of the frame */
    w.error = buf_add(out, fixed, size);
    return w;
}

static void pad8(struct writer *w) {
    static const char zeros[8];
    size_t n = (w->out->len - w->start) % 8;

    if (n && !w->error)
        w->error = buf_add(w->out, zeros, 8 - n);
}

/* Appends an array; after an error it does nothing, end() tells. */
static struct span put(struct writer *w, const void *data, size_t bytes) {
    assert(bytes <= UINT32_MAX && (data || bytes == 0));
    pad8(w);
    struct span s = {(uint32_t)(w->out->len - w->start), (uint32_t)bytes};
    if (!w->error && bytes)
        w->error = buf_add(w->out, data, bytes);
    return s;
}

static struct span put_str(struct writer *w, struct str s) {
    return put(w, s.data, s.len);
}

/* Writes the fixed part again, now with its spans; takes everything back on failure. */
static int end(struct writer *w, const void *fixed, size_t size) {
    assert(w->start <= w->out->len);
    pad8(w);
    if (w->error) {
        w->out->len = w->start;
        return w->error;
    }
    assert(w->out->len - w->start >= size && (w->out->len - w->start) % 8 == 0);
    memcpy(w->out->data + w->start, fixed, size);
    return 0;
}

/* ---- reading ---- */

/* Copies the fixed part. Every message is padded to a multiple of 8 bytes. */
static int fixed_part(const void *data, uint32_t len, void *fixed, size_t size) {
    if (len < size || len % 8)
        return -EPROTO;
    memcpy(fixed, data, size);
    return 0;
}

/* The array of span @s with elements of @size bytes: its count in @n. */
static int get(const void *data, uint32_t len, struct span s, size_t size, const void **p,
               uint32_t *n) {
    if (s.off % 8 || s.off > len || s.len > len - s.off || s.len % size)
        return -EPROTO;
    *n = s.len / (uint32_t)size;
    *p = *n ? (const char *)data + s.off : NULL;
    return 0;
}

static int get_str(const void *data, uint32_t len, struct span s, struct str *out) {
    const void *p;
    int r = get(data, len, s, 1, &p, &out->len);

    if (r == 0)
        out->data = p ? p : "";
    return r;
}

/* ---- OPEN, PROGRESS, READY, CANCEL, TURN_END, PICTURE, BLOCKS ---- */

struct wire_open {
    struct msg_open m;
    struct span options;
};

int msg_open_pack(struct buf *out, const struct msg_open *m) {
    struct wire_open f = {.m = *m};
    struct writer w = begin(out, &f, sizeof(f));

    f.m.options = (struct str){0};
    f.options = put_str(&w, m->options);
    return end(&w, &f, sizeof(f));
}

int msg_open_parse(const void *data, uint32_t len, struct msg_open *m) {
    struct wire_open f;

    if (fixed_part(data, len, &f, sizeof(f)) < 0 ||
        get_str(data, len, f.options, &f.m.options) < 0 || f.m.has_projector > 1)
        return -EPROTO;
    *m = f.m;
    return 0;
}

struct wire_progress {
    float fraction;
    struct span what;
};

int msg_progress_pack(struct buf *out, const struct msg_progress *m) {
    assert(m->fraction >= 0 && m->fraction <= 1);
    struct wire_progress f = {.fraction = m->fraction};
    struct writer w = begin(out, &f, sizeof(f));

    f.what = put_str(&w, m->what);
    return end(&w, &f, sizeof(f));
}

int msg_progress_parse(const void *data, uint32_t len, struct msg_progress *m) {
    struct wire_progress f;
    struct str what;

    if (fixed_part(data, len, &f, sizeof(f)) < 0 || get_str(data, len, f.what, &what) < 0 ||
        !(f.fraction >= 0 && f.fraction <= 1))
        return -EPROTO;
    *m = (struct msg_progress){what, f.fraction};
    return 0;
}

struct wire_ready {
    struct msg_ready m;
    struct span arch, backend, isa;
};

int msg_ready_pack(struct buf *out, const struct msg_ready *m) {
    struct wire_ready f = {.m = *m};
    struct writer w = begin(out, &f, sizeof(f));

    f.m.arch = f.m.backend = f.m.isa = (struct str){0};
    f.arch = put_str(&w, m->arch);
    f.backend = put_str(&w, m->backend);
    f.isa = put_str(&w, m->isa);
    return end(&w, &f, sizeof(f));
}

int msg_ready_parse(const void *data, uint32_t len, struct msg_ready *m) {
    struct wire_ready f;

    if (fixed_part(data, len, &f, sizeof(f)) < 0 || get_str(data, len, f.arch, &f.m.arch) < 0 ||
        get_str(data, len, f.backend, &f.m.backend) < 0 ||
        get_str(data, len, f.isa, &f.m.isa) < 0 || f.m.weights >= READY_WEIGHTS)
        return -EPROTO;
    *m = f.m;
    return 0;
}

int msg_cancel_pack(struct buf *out, uint64_t id) {
    return buf_add(out, &id, sizeof(id));
}

int msg_cancel_parse(const void *data, uint32_t len, uint64_t *id) {
    return len == sizeof(*id) ? fixed_part(data, len, id, sizeof(*id)) : -EPROTO;
}

int msg_turn_end_pack(struct buf *out, const struct turn_end *m) {
    assert(m->calls <= 1);
    return buf_add(out, m, sizeof(*m));
}

int msg_turn_end_parse(const void *data, uint32_t len, struct turn_end *m) {
    struct turn_end f;

    if (len != sizeof(f) || fixed_part(data, len, &f, sizeof(f)) < 0 || f.calls > 1)
        return -EPROTO;
    *m = f;
    return 0;
}

int msg_need_picture_pack(struct buf *out, const struct msg_need_picture *m) {
    assert(m->zero == 0);
    return buf_add(out, m, sizeof(*m));
}

int msg_need_picture_parse(const void *data, uint32_t len, struct msg_need_picture *m) {
    struct msg_need_picture f;

    if (len != sizeof(f) || fixed_part(data, len, &f, sizeof(f)) < 0 ||
        f.index >= SUBMIT_PICTURES_MAX || f.zero != 0)
        return -EPROTO;
    *m = f;
    return 0;
}

struct wire_picture {
    struct msg_picture m; /* its pointers are zero on the wire */
    struct span rgb, why, code;
};

/* Checks that @m has a part of the pixels, or the reason why there are none. */
static bool picture_sane(const struct msg_picture *m) {
    if (m->index >= SUBMIT_PICTURES_MAX || m->total > PICTURE_BYTES_MAX)
        return false;
    if (m->total == 0)
        return m->offset == 0 && m->rgb.len == 0 && m->status >= 400 && m->status <= 599;
    return m->status == 0 && m->rgb.len > 0 && m->rgb.len <= PICTURE_PART && m->offset < m->total &&
           m->rgb.len <= m->total - m->offset;
}

int msg_picture_pack(struct buf *out, const struct msg_picture *m) {
    assert(picture_sane(m));
    struct wire_picture f = {.m = *m};
    struct writer w = begin(out, &f, sizeof(f));

    f.m.rgb = f.m.why = f.m.code = (struct str){0};
    f.rgb = put_str(&w, m->rgb);
    f.why = put_str(&w, m->why);
    f.code = put_str(&w, m->code);
    return end(&w, &f, sizeof(f));
}

int msg_picture_parse(const void *data, uint32_t len, struct msg_picture *m) {
    struct wire_picture f;

    if (fixed_part(data, len, &f, sizeof(f)) < 0 || get_str(data, len, f.rgb, &f.m.rgb) < 0 ||
        get_str(data, len, f.why, &f.m.why) < 0 || get_str(data, len, f.code, &f.m.code) < 0 ||
        !picture_sane(&f.m))
        return -EPROTO;
    *m = f.m;
    return 0;
}

int msg_served_parse(const void *data, uint32_t len, const struct msg_served **out) {
    const struct msg_served *m = data;
    uint32_t n = len / sizeof(*m);

    if (len % sizeof(*m) != 0 || n == 0 || n > SERVED_MAX)
        return -EPROTO;
    for (uint32_t i = 0; i < n; i++)
        if (m[i].zero != 0)
            return -EPROTO;
    *out = m;
    return (int)n;
}

struct wire_blocks {
    uint64_t page_tokens;
    uint32_t tier, kind, window, zero;
    struct span gone, came, tokens, pictures;
};

int msg_blocks_pack(struct buf *out, const struct msg_blocks *m) {
    assert(m->page_tokens > 0 && m->page_tokens <= BLOCKS_MAX_PAGE);
    struct wire_blocks f = {
        .page_tokens = m->page_tokens, .tier = m->tier, .kind = m->kind, .window = m->window};
    struct writer w = begin(out, &f, sizeof(f));
    size_t n_tokens = (size_t)m->n_came * m->page_tokens;

    f.gone = put(&w, m->gone, m->n_gone * sizeof(*m->gone));
    f.came = put(&w, m->came, m->n_came * sizeof(*m->came));
    f.tokens = put(&w, m->tokens, n_tokens * sizeof(*m->tokens));
    f.pictures = put(&w, m->pictures, m->n_pictures * sizeof(*m->pictures));
    return end(&w, &f, sizeof(f));
}

/* Returns true if the @n pictures are in the order of the blocks, of which there are @n_came. */
static bool are_in_order(const struct msg_block_picture *p, uint32_t n, uint32_t n_came) {
    for (uint32_t i = 0; i < n; i++)
        if (p[i].block >= n_came || (i > 0 && p[i].block < p[i - 1].block))
            return false;
    return true;
}

int msg_blocks_parse(const void *data, uint32_t len, struct msg_blocks *m) {
    struct wire_blocks f;
    const void *gone, *came, *tokens, *pictures;
    uint32_t n_gone, n_came, n_tokens, n_pictures;

    if (fixed_part(data, len, &f, sizeof(f)) < 0 ||
        get(data, len, f.gone, sizeof(*m->gone), &gone, &n_gone) < 0 ||
        get(data, len, f.came, sizeof(*m->came), &came, &n_came) < 0 ||
        get(data, len, f.tokens, sizeof(*m->tokens), &tokens, &n_tokens) < 0 ||
        get(data, len, f.pictures, sizeof(*m->pictures), &pictures, &n_pictures) < 0)
        return -EPROTO;
    if (f.page_tokens == 0 || f.page_tokens > BLOCKS_MAX_PAGE || n_tokens != n_came * f.page_tokens)
        return -EPROTO;
    if (f.tier >= BLOCK_TIERS || f.kind >= BLOCK_KINDS || f.zero != 0 ||
        !are_in_order(pictures, n_pictures, n_came))
        return -EPROTO;
    *m = (struct msg_blocks){(uint32_t)f.page_tokens,
                             f.tier,
                             f.kind,
                             f.window,
                             n_gone,
                             n_came,
                             n_pictures,
                             gone,
                             came,
                             tokens,
                             pictures};
    return 0;
}

/* ---- SUBMIT ---- */

struct wire_submit {
    struct submit m; /* pointers are zero on the wire */
    struct span tokens, stop_ids, bias, stops[SUBMIT_STOPS_MAX];
    struct span grammar, triggers, prediction, allowed, bad_words, breakers, tenant_name;
    struct span pictures;
};

static void clear_pointers(struct submit *m) {
    m->tokens = m->stop_ids = NULL;
    m->bias = NULL;
    memset(m->stops, 0, sizeof(m->stops));
    m->grammar = m->triggers = m->prediction = (struct str){0};
    m->allowed = m->bad_words = m->breakers = m->tenant_name = (struct str){0};
    m->pictures = NULL;
}

/* Checks that pictures lie in the prompt one behind the other, and that what is computed from their
 * numbers does not overflow. */
static bool pictures_sane(const struct submit_picture *p, uint32_t n, uint32_t n_prompt) {
    uint32_t end = 0;

    for (uint32_t i = 0; i < n; i++, p++) {
        if (p->at < end || p->at > n_prompt || p->n_rows == 0 || p->n_rows > n_prompt - p->at)
            return false;
        if (p->n_columns == 0 || p->n_lines == 0 || (uint64_t)p->n_columns * p->n_lines > p->n_rows)
            return false;
        if (p->n_positions == 0 || p->n_positions > p->n_rows || p->width == 0 || p->height == 0 ||
            (uint64_t)p->width * p->height > PICTURE_BYTES_MAX / 3)
            return false;
        end = p->at + p->n_rows;
    }
    return true;
}

/* Checks the limits that a request must meet beyond those of its single fields. */
static bool submit_sane(const struct submit *m) {
    return m->n_prompt > 0 && m->n_prompt <= m->n_tokens && m->max_new > 0 &&
           m->n_tokens - m->n_prompt <= m->max_new && m->n_stops <= SUBMIT_STOPS_MAX &&
           m->n_top <= SUBMIT_TOP_MAX && m->n_prompt_top <= SUBMIT_TOP_MAX && m->class <= 2 &&
           m->n_pictures <= SUBMIT_PICTURES_MAX && params_check(&m->sampling, NULL) == 0;
}

int msg_submit_pack(struct buf *out, const struct submit *m) {
    assert(submit_sane(m) && pictures_sane(m->pictures, m->n_pictures, m->n_prompt));
    struct wire_submit f = {.m = *m};
    struct writer w = begin(out, &f, sizeof(f));

    clear_pointers(&f.m);
    f.tokens = put(&w, m->tokens, m->n_tokens * sizeof(*m->tokens));
    f.stop_ids = put(&w, m->stop_ids, m->n_stop_ids * sizeof(*m->stop_ids));
    f.bias = put(&w, m->bias, m->n_bias * sizeof(*m->bias));
    for (uint32_t i = 0; i < m->n_stops; i++)
        f.stops[i] = put_str(&w, m->stops[i]);
    f.grammar = put_str(&w, m->grammar);
    f.triggers = put_str(&w, m->triggers);
    f.prediction = put_str(&w, m->prediction);
    f.allowed = put_str(&w, m->allowed);
    f.bad_words = put_str(&w, m->bad_words);
    f.breakers = put_str(&w, m->breakers);
    f.tenant_name = put_str(&w, m->tenant_name);
    f.pictures = put(&w, m->pictures, m->n_pictures * sizeof(*m->pictures));
    return end(&w, &f, sizeof(f));
}

int msg_submit_parse(const void *data, uint32_t len, struct submit *m) {
    struct wire_submit f;
    const void *tokens, *stop_ids, *bias, *pictures;
    uint32_t n_tokens, n_stop_ids, n_bias, n_pictures;

    if (fixed_part(data, len, &f, sizeof(f)) < 0)
        return -EPROTO;
    clear_pointers(&f.m);
    if (get(data, len, f.tokens, sizeof(*f.m.tokens), &tokens, &n_tokens) < 0 ||
        get(data, len, f.stop_ids, sizeof(*f.m.stop_ids), &stop_ids, &n_stop_ids) < 0 ||
        get(data, len, f.bias, sizeof(*f.m.bias), &bias, &n_bias) < 0 ||
        get_str(data, len, f.grammar, &f.m.grammar) < 0 ||
        get_str(data, len, f.triggers, &f.m.triggers) < 0 ||
        get_str(data, len, f.prediction, &f.m.prediction) < 0 ||
        get_str(data, len, f.allowed, &f.m.allowed) < 0 ||
        get_str(data, len, f.bad_words, &f.m.bad_words) < 0 ||
        get_str(data, len, f.breakers, &f.m.breakers) < 0 ||
        get_str(data, len, f.tenant_name, &f.m.tenant_name) < 0 ||
        get(data, len, f.pictures, sizeof(*f.m.pictures), &pictures, &n_pictures) < 0)
        return -EPROTO;
    if (n_tokens != f.m.n_tokens || n_stop_ids != f.m.n_stop_ids || n_bias != f.m.n_bias ||
        n_pictures != f.m.n_pictures || !submit_sane(&f.m) ||
        !pictures_sane(pictures, n_pictures, f.m.n_prompt))
        return -EPROTO;
    for (uint32_t i = 0; i < f.m.n_stops; i++)
        if (get_str(data, len, f.stops[i], &f.m.stops[i]) < 0 || f.m.stops[i].len == 0)
            return -EPROTO;
    f.m.tokens = tokens;
    f.m.stop_ids = stop_ids;
    f.m.bias = bias;
    f.m.pictures = pictures;
    *m = f.m;
    return 0;
}

/* ---- EVENTS ---- */

struct wire_event {
    uint32_t bytes, zero; /* bytes of the whole record */
    struct event e;       /* pointers are zero on the wire */
    struct span tokens, logprobs, top, digests, prompt_lp, prompt_top, text, code, param, vector;
};

static void clear_event_pointers(struct event *e) {
    e->tokens = NULL;
    e->logprobs = e->prompt_lp = e->vector = NULL;
    e->top = e->prompt_top = NULL;
    e->digests = NULL;
    e->text = e->code = e->param = (struct str){0};
}

/* Checks the limits that an event must meet beyond those of its single fields; every packed event
 * meets them. */
static bool event_sane(const struct event *e) {
    return e->kind <= EVENT_FINISH && e->finish <= FINISH_ERROR && e->n_top <= SUBMIT_TOP_MAX &&
           e->n_prompt_top <= SUBMIT_TOP_MAX && e->n_prompt_lp <= MSG_MAX_FRAME / sizeof(float);
}

int msg_event_pack(struct buf *out, const struct event *e) {
    assert(event_sane(e));
    struct wire_event f = {.e = *e};
    struct writer w = begin(out, &f, sizeof(f));
    size_t n = e->n_tokens;

    clear_event_pointers(&f.e);
    f.tokens = put(&w, e->tokens, n * sizeof(*e->tokens));
    f.logprobs = put(&w, e->logprobs, e->logprobs ? n * sizeof(*e->logprobs) : 0);
    f.top = put(&w, e->top, e->top ? n * e->n_top * sizeof(*e->top) : 0);
    f.digests = put(&w, e->digests, e->digests ? n * sizeof(*e->digests) : 0);
    f.prompt_lp = put(&w, e->prompt_lp, e->n_prompt_lp * sizeof(*e->prompt_lp));
    f.prompt_top =
        put(&w, e->prompt_top,
            e->prompt_top ? (size_t)e->n_prompt_lp * e->n_prompt_top * sizeof(*e->top) : 0);
    f.text = put_str(&w, e->text);
    f.code = put_str(&w, e->code);
    f.param = put_str(&w, e->param);
    f.vector = put(&w, e->vector, e->n_vector * sizeof(*e->vector));
    pad8(&w);
    f.bytes = (uint32_t)(out->len - w.start);
    return end(&w, &f, sizeof(f));
}

void msg_events_begin(struct event_cursor *c, const void *data, uint32_t len) {
    c->at = data;
    c->end = c->at + len;
}

/* An array that is absent or has one element for each of @want. */
static int get_optional(const void *data, uint32_t len, struct span s, size_t size, uint32_t want,
                        const void **p) {
    uint32_t n;
    int r = get(data, len, s, size, p, &n);

    return r < 0 || (n && n != want) ? -EPROTO : 0;
}

int msg_events_next(struct event_cursor *c, struct event *out) {
    struct wire_event f;
    assert(c->at <= c->end);
    uint32_t left = (uint32_t)(c->end - c->at), n_tokens;
    const void *tokens, *logprobs, *top, *digests, *prompt_lp, *prompt_top, *vector;

    if (left == 0)
        return 1;
    if (fixed_part(c->at, left, &f, sizeof(f)) < 0 || f.bytes < sizeof(f) || f.bytes % 8 ||
        f.bytes > left || !event_sane(&f.e))
        return -EPROTO;
    clear_event_pointers(&f.e);
    if (get(c->at, f.bytes, f.tokens, sizeof(int32_t), &tokens, &n_tokens) < 0 ||
        n_tokens != f.e.n_tokens)
        return -EPROTO;
    if (get_optional(c->at, f.bytes, f.logprobs, sizeof(float), n_tokens, &logprobs) < 0 ||
        get_optional(c->at, f.bytes, f.top, sizeof(struct event_top), n_tokens * f.e.n_top, &top) <
            0 ||
        get_optional(c->at, f.bytes, f.digests, sizeof(uint64_t), n_tokens, &digests) < 0 ||
        get_optional(c->at, f.bytes, f.prompt_lp, sizeof(float), f.e.n_prompt_lp, &prompt_lp) < 0 ||
        get_optional(c->at, f.bytes, f.prompt_top, sizeof(struct event_top),
                     f.e.n_prompt_lp * f.e.n_prompt_top, &prompt_top) < 0 ||
        get_optional(c->at, f.bytes, f.vector, sizeof(float), f.e.n_vector, &vector) < 0 ||
        get_str(c->at, f.bytes, f.text, &f.e.text) < 0 ||
        get_str(c->at, f.bytes, f.code, &f.e.code) < 0 ||
        get_str(c->at, f.bytes, f.param, &f.e.param) < 0 || (f.e.n_vector && !vector) ||
        (f.e.n_prompt_lp && !prompt_lp))
        return -EPROTO;
    f.e.tokens = tokens;
    f.e.logprobs = logprobs;
    f.e.top = top;
    f.e.digests = digests;
    f.e.prompt_lp = prompt_lp;
    f.e.prompt_top = prompt_top;
    f.e.vector = vector;
    c->at += f.bytes;
    *out = f.e;
    return 0;
}
