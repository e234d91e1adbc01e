#include "daemon/models/guests.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/try.h"
#include "daemon/workers/worker_chan.h"

/* Invariants: answered implies asked; requests exist only if the other front was answered and its
 * channel is open. */
struct guests {
    struct guests_opts opts;
    struct worker_chan chan;
    bool asked, answered;
    struct submit_parts parts;
    /* the READY message of the other front's worker */
    struct buf theirs;
    struct api_guest **list;
    uint32_t n, cap;
    struct buf out;
};

/* Returns the request's index in the list, or n. */
static uint32_t guests_find(const struct guests *g, uint64_t id) {
    uint32_t i = 0;

    while (i < g->n && api_guest_id(g->list[i]) != id)
        i++;
    return i;
}

static void guests_forget(struct guests *g, uint32_t i) {
    assert(i < g->n);
    g->list[i] = g->list[--g->n];
}

/* Sends an event; a callback of api_guest_new(). A frame that does not fit into the channel cannot
 * be left out, because its content is not sent again; so the channel is closed, and the other front
 * starts over. */
static void guests_on_news(void *ctx, struct api_guest *guest, const struct event *e) {
    struct guests *g = ctx;

    if (e->kind == EVENT_REJECTED || e->kind == EVENT_FINISH)
        guests_forget(g, guests_find(g, api_guest_id(guest)));
    buf_clear(&g->out);
    if (msg_event_pack(&g->out, e) < 0 || worker_chan_send(&g->chan, MSG_EVENTS, &g->out) != 0)
        shutdown(g->chan.chan.fd,
                 SHUT_RDWR); /* guests_on_frame() sees the end in the next iteration */
}

/* Asks the other front, which has the pictures of its requests, for one; a callback of
 * api_guest_new(). */
static void on_need(void *ctx, struct api_guest *guest, uint32_t index) {
    const struct msg_need_picture m = {.id = api_guest_id(guest), .index = index};
    struct guests *g = ctx;

    buf_clear(&g->out);
    if (msg_need_picture_pack(&g->out, &m) < 0 ||
        worker_chan_send(&g->chan, MSG_NEED_PICTURE, &g->out) != 0)
        shutdown(g->chan.chan.fd, SHUT_RDWR);
}

/* Takes a part of a requested picture. */
static int picture(struct guests *g, const struct chan_frame *f) {
    struct msg_picture m;
    int r = msg_picture_parse(f->data, f->len, &m);
    uint32_t i = r < 0 ? g->n : guests_find(g, m.id);

    if (i < g->n && !api_guest_picture(g->list[i], &m))
        return -EPROTO;
    return r;
}

/* Adds a request, whose @payload may be taken over. Returns 0 or an error. Prewarms are not
 * accepted, because the next turn is sent to another daemon. */
static int guests_submit(struct guests *g, struct buf *payload) {
    struct submit s;
    int r = msg_submit_parse(payload->data, (uint32_t)payload->len, &s);

    if (r < 0 || s.flags & SUBMIT_PREWARM)
        return r;
    if (guests_find(g, s.id) < g->n)
        return -EPROTO;
    if (!ARRAY_GROW(g->list, g->n, g->cap, 64))
        return -ENOMEM;
    r = api_guest_new(&g->list[g->n], g->opts.model, payload, guests_on_news, on_need, g);
    g->n += r == 0;
    return r;
}

/* Takes a request in one frame. */
static int guests_receive_whole(struct guests *g, const struct chan_frame *f) {
    CLEANUP(buf_deinit) struct buf payload = {.max = MSG_MAX_FRAME};

    TRY(buf_add(&payload, f->data, f->len));
    return guests_submit(g, &payload);
}

/* Takes a part of a request. */
static int guests_receive_part(struct guests *g, const struct chan_frame *f) {
    int r = msg_submit_add_part(&g->parts, f->data, f->len);

    if (r != 1)
        return r;
    r = guests_submit(g, &g->parts.text);
    submit_parts_deinit(&g->parts);
    return r;
}

static void guests_cancel(struct guests *g, uint64_t id) {
    uint32_t i = guests_find(g, id);

    msg_submit_drop(&g->parts, id);

    if (i < g->n) { /* a request that has ended is not in the list */
        struct api_guest *guest = g->list[i];

        guests_forget(g, i);
        api_guest_free(guest);
    }
}

/* Implements worker_chan_opts.frame; no frame has parts. */
static bool guests_on_frame(void *ctx, const struct chan_frame *f) {
    struct guests *g = ctx;
    struct turn_end end;
    uint64_t id;
    int r = -EPROTO;

    assert((g->asked || !g->answered) && (g->answered || g->n == 0));
    if (f->type == MSG_READY && !g->asked) {
        g->asked = true;
        r = buf_add(&g->theirs, f->data, f->len);
        if (r == 0)
            g->opts.asked(g->opts.ctx);
    } else if (f->type == MSG_SUBMIT && g->answered) {
        r = guests_receive_whole(g, f);
    } else if (f->type == MSG_SUBMIT_PART && g->answered) {
        r = guests_receive_part(g, f);
    } else if (f->type == MSG_PICTURE && g->answered) {
        r = picture(g, f);
    } else if (f->type == MSG_CANCEL && g->answered) {
        r = msg_cancel_parse(f->data, f->len, &id);
        if (r == 0)
            guests_cancel(g, id);
    } else if (f->type == MSG_TURN_END && g->answered) {
        r = msg_turn_end_parse(f->data, f->len, &end);
        if (r == 0) /* keeps no pages, since the next turn comes under another key */
            guests_cancel(g, end.id);
    }
    if (r < 0)
        guests_close(g);
    return false;
}

static void guests_on_ended(void *ctx) {
    guests_close(ctx);
}

int guests_new(struct guests **out, const struct guests_opts *o, int fd) {
    struct guests *g = calloc(1, sizeof(*g));
    const struct worker_chan_opts c = {.loop = o->loop,
                                       .clock = o->clock,
                                       .ctx = g,
                                       .frame = guests_on_frame,
                                       .ended = guests_on_ended};

    if (!g) {
        close(fd);
        return -ENOMEM;
    }
    g->opts = *o;
    buf_init(&g->theirs, MSG_MAX_FRAME);
    buf_init(&g->out, MSG_MAX_FRAME);
    worker_chan_open(&g->chan, fd, &c);
    *out = g;
    return 0;
}

bool guests_ask(const struct guests *g) {
    return g->asked && !g->answered && g->chan.open;
}

/* Returns true if a worker that describes itself as @own can continue the requests of one that
 * described itself as @theirs. */
static bool guests_goes_on(const struct buf *theirs, const struct buf *own) {
    struct msg_ready a, b;

    return msg_ready_parse(theirs->data, (uint32_t)theirs->len, &a) == 0 &&
           msg_ready_parse(own->data, (uint32_t)own->len, &b) == 0 &&
           memcmp(a.fingerprint, b.fingerprint, sizeof(a.fingerprint)) == 0 &&
           a.backend.len == b.backend.len &&
           memcmp(a.backend.data, b.backend.data, a.backend.len) == 0 && a.n_vocab == b.n_vocab &&
           a.max_context <= b.max_context;
}

void guests_answer(struct guests *g, const struct buf *ready) {
    assert(guests_ask(g));
    g->answered = guests_goes_on(&g->theirs, ready);
    if (!g->answered || worker_chan_send(&g->chan, MSG_READY, ready) != 0)
        guests_close(g);
}

void guests_close(struct guests *g) {
    while (g->n > 0)
        api_guest_free(g->list[--g->n]);
    worker_chan_close(&g->chan);
}

struct guests *guests_free(struct guests *g) {
    if (!g)
        return NULL;
    assert(!g->chan.open && g->n == 0);
    submit_parts_deinit(&g->parts);
    buf_deinit(&g->theirs);
    buf_deinit(&g->out);
    free(g->list);
    free(g);
    return NULL;
}
