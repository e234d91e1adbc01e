/*
 * The wire form of a message is its struct, a span {off, len} for each part that the struct points
 * to, and these parts. A form lists the parts, so that packing and parsing cannot differ. `off`
 * counts from the start of the message and is a multiple of 8, `len` is in bytes; pointers are zero
 * on the wire. The peer is the same executable but may have been corrupted: every span and count is
 * checked here and nowhere else.
 */

#include "proto/messages.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/text.h"
#include "base/try.h"

struct span {
    uint32_t off, len;
};

/* Offset and size of a number in a struct; 0 bytes: there is none. */
struct field {
    uint16_t at, bytes;
};

/* A part: a string, or an array of count * times elements, or of count elements if there is no
 * `times`. */
struct part {
    /* offset of the struct str, or of the pointer to the array */
    uint16_t at;
    /* bytes of an element; 0: a string */
    uint16_t size;
    /* the array may be absent although the counts are not 0 */
    bool optional;
    struct field count, times;
};

struct form {
    /* bytes of the struct, a multiple of 8 */
    size_t size;
    uint32_t n;
    const struct part *part;
};

#define FIELD(type, f)                                                                             \
    { offsetof(struct type, f), sizeof(((struct type *)0)->f) }
#define STRING(type, f)                                                                            \
    { .at = offsetof(struct type, f) }
#define PLACE(type, f) .at = offsetof(struct type, f), .size = sizeof(*((struct type *)0)->f)
#define ARRAY(type, f, n)                                                                          \
    { PLACE(type, f), .count = FIELD(type, n) }
#define MATRIX(type, f, n, k)                                                                      \
    { PLACE(type, f), .count = FIELD(type, n), .times = FIELD(type, k) }
#define OPTIONAL(type, f, n)                                                                       \
    { PLACE(type, f), .optional = true, .count = FIELD(type, n) }
#define OPTIONAL_MATRIX(type, f, n, k)                                                             \
    { PLACE(type, f), .optional = true, .count = FIELD(type, n), .times = FIELD(type, k) }
#define FORM(type, parts)                                                                          \
    { sizeof(struct type), ARRAY_SIZE(parts), parts }
#define PARTS_MAX 32

/* Returns the number of elements of part @p according to the counts in @m. */
static uint64_t n_elements(const struct part *p, const void *m) {
    uint64_t n = 0, k = 0;

    memcpy(&n, (const char *)m + p->count.at, p->count.bytes);
    memcpy(&k, (const char *)m + p->times.at, p->times.bytes);
    if (!p->times.bytes)
        return n;
    return n * k;
}

/* Returns the bytes of part @p of @m that are to be sent. */
static struct str msg_part(const struct part *p, const void *m) {
    struct str s;

    if (p->size == 0) {
        memcpy(&s, (const char *)m + p->at, sizeof(s));
        return s;
    }
    uint64_t bytes = n_elements(p, m) * p->size;
    memcpy(&s.data, (const char *)m + p->at, sizeof(s.data));
    assert(bytes <= UINT32_MAX && (s.data || p->optional || bytes == 0));
    s.len = s.data ? (uint32_t)bytes : 0;
    return s;
}

static int pad8(struct buf *out) {
    static const char zeros[8];

    return buf_add(out, zeros, -out->len % 8);
}

static int add_message(struct buf *out, const struct form *f, const void *m) {
    struct span span[PARTS_MAX] = {{0}};
    size_t start = out->len, n_spans = f->n * sizeof(*span);

    assert(start % 8 == 0 && f->n <= PARTS_MAX);
    TRY(buf_add(out, m, f->size));
    TRY(buf_add(out, span, n_spans));
    for (uint32_t i = 0; i < f->n; i++) {
        const struct part *p = &f->part[i];
        struct str s = msg_part(p, m);

        span[i] = (struct span){(uint32_t)(out->len - start), s.len};
        memset(out->data + start + p->at, 0, p->size ? sizeof(s.data) : sizeof(s));
        if (s.len)
            TRY(buf_add(out, s.data, s.len));
        TRY(pad8(out));
    }
    memcpy(out->data + start + f->size, span, n_spans);
    return 0;
}

/* Appends message @m. Returns 0 or -errno; a failure leaves @out unchanged. */
static int pack(struct buf *out, const struct form *f, const void *m) {
    size_t start = out->len;
    int r = add_message(out, f, m);

    if (r < 0)
        out->len = start;
    return r;
}

/* Reads a message of @len bytes at @data into @m, whose pointers lead into @data. Returns 0 or
 * -EPROTO. A string of no bytes is "", an array of none NULL. */
static int msg_parse(const void *data, uint32_t len, const struct form *f, void *m) {
    if (len < f->size + f->n * sizeof(struct span) || len % 8)
        return -EPROTO;
    memcpy(m, data, f->size);
    for (uint32_t i = 0; i < f->n; i++) {
        const struct part *p = &f->part[i];
        struct span s;

        memcpy(&s, (const char *)data + f->size + i * sizeof(s), sizeof(s));
        if (s.off % 8 || s.off > len || s.len > len - s.off)
            return -EPROTO;
        struct str bytes = {s.len ? (const char *)data + s.off : NULL, s.len};
        if (p->size == 0) {
            bytes.data = text_or(bytes.data, "");
            memcpy((char *)m + p->at, &bytes, sizeof(bytes));
            continue;
        }
        bool absent = p->optional && s.len == 0;
        if (s.len % p->size || (s.len / p->size != n_elements(p, m) && !absent))
            return -EPROTO;
        memcpy((char *)m + p->at, &bytes.data, sizeof(bytes.data));
    }
    return 0;
}

/* ---- OPEN, PROGRESS, READY, CANCEL, TURN_END, PICTURE, BLOCKS ---- */

static const struct part open_parts[] = {STRING(msg_open, options)};
static const struct form open_form = FORM(msg_open, open_parts);

int msg_open_pack(struct buf *out, const struct msg_open *m) {
    return pack(out, &open_form, m);
}

int msg_open_parse(const void *data, uint32_t len, struct msg_open *m) {
    struct msg_open f;

    TRY(msg_parse(data, len, &open_form, &f));
    *m = f;
    return 0;
}

static const struct part progress_parts[] = {STRING(msg_progress, what)};
static const struct form progress_form = FORM(msg_progress, progress_parts);

int msg_progress_pack(struct buf *out, const struct msg_progress *m) {
    assert(m->fraction >= 0 && m->fraction <= 1);
    return pack(out, &progress_form, m);
}

int msg_progress_parse(const void *data, uint32_t len, struct msg_progress *m) {
    struct msg_progress f;

    if (msg_parse(data, len, &progress_form, &f) < 0 || !(f.fraction >= 0 && f.fraction <= 1))
        return -EPROTO;
    *m = f;
    return 0;
}

static const struct part ready_parts[] = {STRING(msg_ready, arch), STRING(msg_ready, backend),
                                          STRING(msg_ready, isa)};
static const struct form ready_form = FORM(msg_ready, ready_parts);

int msg_ready_pack(struct buf *out, const struct msg_ready *m) {
    return pack(out, &ready_form, m);
}

int msg_ready_parse(const void *data, uint32_t len, struct msg_ready *m) {
    struct msg_ready f;

    if (msg_parse(data, len, &ready_form, &f) < 0 || f.weights >= READY_WEIGHTS ||
        f.page_tokens == 0 || f.max_context == 0)
        return -EPROTO;
    *m = f;
    return 0;
}

int msg_cancel_pack(struct buf *out, uint64_t id) {
    return buf_add(out, &id, sizeof(id));
}

int msg_cancel_parse(const void *data, uint32_t len, uint64_t *id) {
    if (len != sizeof(*id))
        return -EPROTO;
    memcpy(id, data, sizeof(*id));
    return 0;
}

int msg_turn_end_pack(struct buf *out, const struct turn_end *m) {
    assert(m->calls <= 1);
    return buf_add(out, m, sizeof(*m));
}

int msg_turn_end_parse(const void *data, uint32_t len, struct turn_end *m) {
    const struct turn_end *f = data;

    if (len != sizeof(*f) || f->calls > 1)
        return -EPROTO;
    *m = *f;
    return 0;
}

int msg_need_picture_pack(struct buf *out, const struct msg_need_picture *m) {
    assert(m->zero == 0);
    return buf_add(out, m, sizeof(*m));
}

int msg_need_picture_parse(const void *data, uint32_t len, struct msg_need_picture *m) {
    const struct msg_need_picture *f = data;

    if (len != sizeof(*f) || f->index >= SUBMIT_PICTURES_MAX || f->zero != 0)
        return -EPROTO;
    *m = *f;
    return 0;
}

static const struct part picture_parts[] = {STRING(msg_picture, rgb), STRING(msg_picture, why),
                                            STRING(msg_picture, code)};
static const struct form picture_form = FORM(msg_picture, picture_parts);

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
    return pack(out, &picture_form, m);
}

int msg_picture_parse(const void *data, uint32_t len, struct msg_picture *m) {
    struct msg_picture f;

    if (msg_parse(data, len, &picture_form, &f) < 0 || !picture_sane(&f))
        return -EPROTO;
    *m = f;
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

static const struct part blocks_parts[] = {
    ARRAY(msg_blocks, gone, n_gone),
    ARRAY(msg_blocks, came, n_came),
    MATRIX(msg_blocks, tokens, n_came, page_tokens),
    ARRAY(msg_blocks, pictures, n_pictures),
};
static const struct form blocks_form = FORM(msg_blocks, blocks_parts);

int msg_blocks_pack(struct buf *out, const struct msg_blocks *m) {
    assert(m->page_tokens > 0 && m->page_tokens <= BLOCKS_MAX_PAGE);
    return pack(out, &blocks_form, m);
}

/* Returns true if the @n pictures are in the order of the @n_came published blocks. */
static bool are_in_order(const struct msg_block_picture *p, uint32_t n, uint32_t n_came) {
    for (uint32_t i = 0; i < n; i++)
        if (p[i].block >= n_came || (i > 0 && p[i].block < p[i - 1].block))
            return false;
    return true;
}

int msg_blocks_parse(const void *data, uint32_t len, struct msg_blocks *m) {
    struct msg_blocks f;

    if (msg_parse(data, len, &blocks_form, &f) < 0 || f.page_tokens == 0 ||
        f.page_tokens > BLOCKS_MAX_PAGE || f.tier >= BLOCK_TIERS || f.kind >= BLOCK_KINDS ||
        !are_in_order(f.pictures, f.n_pictures, f.n_came))
        return -EPROTO;
    *m = f;
    return 0;
}

/* ---- SUBMIT ---- */

#define FOUR_STOPS(i)                                                                              \
    STRING(submit, stops[i]), STRING(submit, stops[i + 1]), STRING(submit, stops[i + 2]),          \
        STRING(submit, stops[i + 3])

static const struct part submit_parts[] = {
    ARRAY(submit, tokens, n_tokens),
    ARRAY(submit, stop_ids, n_stop_ids),
    ARRAY(submit, bias, n_bias),
    FOUR_STOPS(0),
    FOUR_STOPS(4),
    FOUR_STOPS(8),
    FOUR_STOPS(12),
    STRING(submit, grammar),
    STRING(submit, triggers),
    STRING(submit, prediction),
    STRING(submit, allowed),
    STRING(submit, bad_words),
    STRING(submit, breakers),
    STRING(submit, tenant_name),
    ARRAY(submit, pictures, n_pictures),
};
static_assert(SUBMIT_STOPS_MAX == 16, "each stop has a part");
static const struct form submit_form = FORM(submit, submit_parts);

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

/* Checks the limits of a request that involve more than one field. */
static bool submit_sane(const struct submit *m) {
    return m->n_prompt > 0 && m->n_prompt <= m->n_tokens && m->max_new > 0 &&
           m->n_tokens - m->n_prompt <= m->max_new && m->n_stops <= SUBMIT_STOPS_MAX &&
           m->n_top <= SUBMIT_TOP_MAX && m->n_prompt_top <= SUBMIT_TOP_MAX && m->class <= 2 &&
           m->n_pictures <= SUBMIT_PICTURES_MAX && params_check(&m->sampling, NULL) == 0;
}

/* Returns @m without what is not sent of it. */
static struct submit submit_sent(const struct submit *m) {
    struct submit f = *m;

    for (uint32_t i = m->n_stops; i < SUBMIT_STOPS_MAX; i++)
        f.stops[i] = (struct str){0};
    return f;
}

int msg_submit_pack(struct buf *out, const struct submit *m) {
    assert(submit_sane(m) && pictures_sane(m->pictures, m->n_pictures, m->n_prompt));
    struct submit f = submit_sent(m);

    return pack(out, &submit_form, &f);
}

/* ---- SUBMIT_PART ---- */

uint32_t msg_submit_whole = SUBMIT_WHOLE;

/* Writes to *@spans the places of the parts of @m behind its struct. Returns the length of all. */
static uint64_t submit_layout(const struct submit *m, struct span spans[PARTS_MAX]) {
    uint64_t at = submit_form.size + submit_form.n * sizeof(*spans);

    for (uint32_t i = 0; i < submit_form.n; i++) {
        uint32_t len = msg_part(&submit_form.part[i], m).len;

        spans[i] = (struct span){(uint32_t)at, len};
        at += round_up(len, 8);
    }
    assert(at <= MSG_MAX_FRAME);
    return at;
}

uint32_t msg_submit_len(const struct submit *m) {
    struct submit f = submit_sent(m);
    struct span spans[PARTS_MAX];

    return (uint32_t)submit_layout(&f, spans);
}

/* Appends the bytes of [@from, @to) of a message that [@at, @at + @len) of it, which are @data,
 * has; @data NULL: zeros. */
static int submit_add_range(struct buf *out, uint64_t from, uint64_t to, uint64_t at,
                            const void *data, size_t len) {
    static const char zeros[8];
    uint64_t begin = MAX(from, at), end = MIN(to, at + len);

    if (begin >= end)
        return 0;
    assert(data || len <= sizeof(zeros));
    return buf_add(out, (data ? (const char *)data : zeros) + (begin - at), end - begin);
}

/* Appends bytes [@from, @to) of the SUBMIT @f. */
static int add_submit_range(struct buf *out, struct submit *f, uint32_t from, uint32_t to) {
    const struct form *form = &submit_form;
    struct span spans[PARTS_MAX];
    struct str text[PARTS_MAX];

    submit_layout(f, spans);
    for (uint32_t i = 0; i < form->n; i++) {
        const struct part *p = &form->part[i];

        text[i] = msg_part(p, f);
        memset((char *)f + p->at, 0, p->size ? sizeof(text[i].data) : sizeof(text[i]));
    }
    TRY(submit_add_range(out, from, to, 0, f, form->size));
    TRY(submit_add_range(out, from, to, form->size, spans, form->n * sizeof(*spans)));
    for (uint32_t i = 0; i < form->n; i++) {
        uint64_t end = spans[i].off + spans[i].len;

        TRY(submit_add_range(out, from, to, spans[i].off, text[i].data, spans[i].len));
        TRY(submit_add_range(out, from, to, end, NULL, -end % 8));
    }
    return 0;
}

int msg_submit_pack_part(struct buf *out, const struct submit *m, uint32_t at) {
    struct msg_submit_part head = {.id = m->id, .at = at, .total = msg_submit_len(m)};
    uint32_t n = MIN(head.total - at, msg_submit_whole);
    struct submit f = submit_sent(m);
    size_t start = out->len;

    assert(submit_sane(m) && at < head.total);
    TRY(buf_add(out, &head, sizeof(head)));
    int r = add_submit_range(out, &f, at, at + n);
    if (r < 0) {
        out->len = start;
        return r;
    }
    return (int)n;
}

void submit_parts_deinit(struct submit_parts *p) {
    buf_deinit(&p->text);
    *p = (struct submit_parts){0};
}

void msg_submit_drop(struct submit_parts *p, uint64_t id) {
    if (p->total > 0 && p->id == id)
        submit_parts_deinit(p);
}

int msg_submit_add_part(struct submit_parts *p, const void *data, uint32_t len) {
    struct msg_submit_part head;

    if (len <= sizeof(head))
        return -EPROTO;
    memcpy(&head, data, sizeof(head));
    uint32_t n = len - sizeof(head);
    if (head.at == 0) { /* those of a request before it are of no use any more */
        submit_parts_deinit(p);
        p->id = head.id;
        p->total = head.total <= MSG_MAX_FRAME ? head.total : 0;
        buf_init(&p->text, MSG_MAX_FRAME);
    }
    if (p->total == 0 || head.id != p->id || head.total != p->total || head.at != p->text.len ||
        n > SUBMIT_WHOLE || n > p->total - p->text.len)
        return -EPROTO;
    TRY(buf_add(&p->text, (const char *)data + sizeof(head), n));
    return p->text.len == p->total;
}

int msg_submit_parse(const void *data, uint32_t len, struct submit *m) {
    struct submit f;

    if (msg_parse(data, len, &submit_form, &f) < 0 || !submit_sane(&f) ||
        !pictures_sane(f.pictures, f.n_pictures, f.n_prompt))
        return -EPROTO;
    for (uint32_t i = 0; i < SUBMIT_STOPS_MAX; i++)
        if ((f.stops[i].len > 0) != (i < f.n_stops))
            return -EPROTO;
    *m = f;
    return 0;
}

/* ---- EVENTS ---- */

struct wire_event {
    /* length of the whole record in bytes */
    uint32_t bytes, zero;
    struct event e;
};

static const struct part event_parts[] = {
    ARRAY(wire_event, e.tokens, e.n_tokens),
    OPTIONAL(wire_event, e.logprobs, e.n_tokens),
    OPTIONAL_MATRIX(wire_event, e.top, e.n_tokens, e.n_top),
    OPTIONAL(wire_event, e.digests, e.n_tokens),
    ARRAY(wire_event, e.prompt_lp, e.n_prompt_lp),
    OPTIONAL_MATRIX(wire_event, e.prompt_top, e.n_prompt_lp, e.n_prompt_top),
    STRING(wire_event, e.text),
    STRING(wire_event, e.code),
    STRING(wire_event, e.param),
    ARRAY(wire_event, e.vector, e.n_vector),
};
static const struct form event_form = FORM(wire_event, event_parts);

/* Checks the limits of an event that involve more than one field; every packed event meets them. */
static bool event_sane(const struct event *e) {
    return e->kind <= EVENT_FINISH && e->finish <= FINISH_ERROR && e->n_top <= SUBMIT_TOP_MAX &&
           e->n_prompt_top <= SUBMIT_TOP_MAX && e->n_prompt_lp <= MSG_MAX_FRAME / sizeof(float) &&
           e->first_step_ns >= 0 && e->prompt_end_ns >= 0 && e->computed_ns >= 0;
}

int msg_event_pack(struct buf *out, const struct event *e) {
    assert(event_sane(e));
    struct wire_event f = {.e = *e};
    size_t start = out->len;
    int r = pack(out, &event_form, &f);

    if (r == 0) {
        f.bytes = (uint32_t)(out->len - start);
        memcpy(out->data + start, &f.bytes, sizeof(f.bytes));
    }
    return r;
}

void msg_events_begin(struct event_cursor *c, const void *data, uint32_t len) {
    c->at = data;
    c->end = c->at + len;
}

int msg_events_next(struct event_cursor *c, struct event *out) {
    struct wire_event f;
    assert(c->at <= c->end);
    uint32_t left = (uint32_t)(c->end - c->at);

    if (left == 0)
        return 1;
    if (left < sizeof(f))
        return -EPROTO;
    memcpy(&f.bytes, c->at, sizeof(f.bytes));
    if (f.bytes > left || msg_parse(c->at, f.bytes, &event_form, &f) < 0 || !event_sane(&f.e))
        return -EPROTO;
    c->at += f.bytes;
    *out = f.e;
    return 0;
}
