/* Asynchronous copies to shared memory: cp.async with groups, cp.async.bulk with barriers in shared
 * memory (mbarrier). A copy is executed when it is waited for, or immediately if the order of the
 * launch is odd. */

#include <stdlib.h>

#include "tests/engine/ptx/lanes.h"
#include "tests/engine/ptx/parse.h"
#include "tests/engine/ptx/parser.h"

static bool at_once(const struct warp *w) {
    return w->block->launch->order % 2;
}

static uint64_t address_of(const struct warp *w, const struct address *a, uint32_t lane) {
    const void *p = place(w, a->place);

    return (a->wide ? ((const uint64_t *)p)[lane] : ((const uint32_t *)p)[lane]) + (uint64_t)a->imm;
}

/* ---- cp.async ---- */

static void copy_now(const struct copying *c) {
    memcpy(c->to, c->from, c->n_from);
    memset(c->to + c->n_from, 0, c->n - c->n_from);
}

/* Executes the copies of the lanes of @mask, except those of the last @most groups. */
static void copies_wait(struct warp *w, uint32_t mask, uint32_t most) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->n_copies; i++) {
        struct copying c = w->copies[i];

        if (mask >> c.lane & 1 && c.group + most < w->committed[c.lane])
            copy_now(&c);
        else
            w->copies[n++] = c;
    }
    w->n_copies = n;
}

static void cp_async(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *n_from = o->r[2] ? place(w, o->r[2]) : NULL;

    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        uint64_t from = address_of(w, &o->at[1], l);
        struct copying c = {.group = w->committed[l], .n = o->size, .lane = (uint8_t)l, .op = o};

        c.to = shared_at(w, address_of(w, &o->at[0], l), o->size, o->size, DIRTY_WRITTEN);
        c.n_from = n_from ? n_from[l] : o->size;
        if (c.n_from > o->size || from % o->size)
            fail(o, "a copy of %u bytes from %#lx", c.n_from, (unsigned long)from);
        if (c.n_from)
            check_range(w, (uintptr_t)from, c.n_from);
        c.from = (const uint8_t *)(uintptr_t)from; // NOLINT
        if (at_once(w)) {
            copy_now(&c);
            continue;
        }
        w->copies = grown(w->copies, w->n_copies, &w->max_copies, sizeof(c));
        w->copies[w->n_copies++] = c;
    }
}

static void cp_commit(struct warp *w, const struct op *o, uint32_t m) {
    (void)o;
    for (uint32_t l = 0; l < LANES; l++)
        w->committed[l] += m >> l & 1;
}

static void cp_wait(struct warp *w, const struct op *o, uint32_t m) {
    copies_wait(w, m, (uint32_t)o->imm);
}

static void cp_wait_all(struct warp *w, const struct op *o, uint32_t m) {
    cp_commit(w, o, m);
    copies_wait(w, m, 0);
}

/* ---- mbarrier: pending arrivals, arrivals of a phase, phase, pending bytes ---- */

enum { MADE = 42 }; /* differs from 0 and from the fill pattern of unwritten memory */

struct barrier {
    uint32_t pending : 12, count : 12, phase : 1, made : 7;
    int32_t bytes;
};

static struct barrier *barrier_of(struct warp *w, struct block *b, uint64_t address) {
    struct barrier *bar = (struct barrier *)(void *)shared_of(w, b, address, 8, 8);

    if (bar->made != MADE)
        fail(w->op, "a barrier that is not initialised");
    return bar;
}

static struct barrier *barrier_at(struct warp *w, uint64_t address) {
    return barrier_of(w, w->block, address);
}

static void look_complete(struct barrier *b) {
    if (b->pending || b->bytes)
        return;
    b->phase = !b->phase;
    b->pending = b->count & 0xFFF;
}

static void bar_init(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *n = place(w, o->r[0]);

    for (uint32_t l = 0; l < LANES; l++)
        if (m >> l & 1) {
            if (n[l] == 0 || n[l] > 4095)
                fail(o, "a barrier of %u arrivals", n[l]);
            *(struct barrier *)(void *)shared_at(w, address_of(w, &o->at[0], l), 8, 8, 0) =
                (struct barrier){.pending = n[l] & 0xFFF, .count = n[l] & 0xFFF, .made = MADE};
        }
}

static void bar_arrive(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *bytes = o->flags ? place(w, o->r[0]) : NULL;

    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        struct barrier *b = barrier_at(w, address_of(w, &o->at[0], l));
        if (!b->pending)
            fail(o, "more arrivals than the barrier has");
        b->bytes += bytes ? (int32_t)bytes[l] : 0;
        b->pending--;
        look_complete(b);
    }
}

/* Arrives at a barrier of any block of the cluster. */
static void bar_arrive_far(struct warp *w, const struct op *o, uint32_t m) {
    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        uint64_t at = address_of(w, &o->at[0], l);
        struct block *there = block_of(w, &at);
        struct barrier *b = barrier_of(w, there, at);

        if (!b->pending)
            fail(o, "more arrivals than the barrier has");
        b->pending--;
        look_complete(b);
    }
}

static void mark_coming(struct block *b, const struct bulk *c, bool coming) {
    uint8_t *g = b->dirty + (c->to - b->shared) / 16;

    for (uint32_t i = 0; i < c->n / 16; i++)
        g[i] = (uint8_t)((g[i] & ~COMING) | (coming ? COMING : 0));
}

static void bulk_now(struct warp *w, struct block *to, const struct bulk *c) {
    struct barrier *b = barrier_of(w, to, c->barrier);

    memcpy(c->to, c->from, c->n);
    mark_coming(to, c, false);
    b->bytes -= (int32_t)c->n;
    look_complete(b);
}

/* Executes the bulk copies that a barrier counts when a warp tries the barrier for the second
 * time. */
static void bulk_arrives(struct warp *w, uint64_t barrier) {
    struct block *b = w->block;
    uint32_t n = 0;

    if (w->asked != barrier) {
        w->asked = barrier;
        return;
    }
    for (uint32_t i = 0; i < b->n_bulk; i++) {
        struct bulk c = b->bulk[i];

        if (c.barrier == barrier)
            bulk_now(w, b, &c);
        else
            b->bulk[n++] = c;
    }
    b->n_bulk = n;
}

static void bar_try(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *parity = place(w, o->r[1]);
    uint32_t done = 0;
    uint64_t waits = 0;

    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        uint64_t at = address_of(w, &o->at[0], l);
        if (barrier_at(w, at)->phase != (parity[l] & 1))
            done |= 1u << l;
        else
            waits = at;
    }
    w->preds[o->r[0]] = (w->preds[o->r[0]] & ~m) | done;
    if (waits) {
        bulk_arrives(w, waits);
        w->state = YIELDED;
    } else {
        w->asked = 0;
    }
}

/* ---- cp.async.bulk ---- */

static void look_clean(const struct block *b, const struct op *o, uint64_t address, uint32_t n) {
    for (uint64_t g = address / 16; g < (address + n) / 16; g++)
        if (b->dirty[g])
            fail(o,
                 b->dirty[g] & COMING
                     ? "a copy in bulk to %#lx, where another one is on its way"
                     : "no fence.proxy.async between a thread's access of %#lx and this",
                 (unsigned long)(g * 16));
    look_unread(b, o, address, n);
}

/* Starts one copy to @b's shared memory, counted by a barrier of @b. */
static void bulk_to(struct warp *w, struct block *b, const struct op *o, struct bulk c,
                    uint64_t to) {
    c.to = shared_of(w, b, to, c.n, 16);
    barrier_of(w, b, c.barrier);
    look_clean(b, o, to, c.n);
    if (at_once(w)) {
        bulk_now(w, b, &c);
        return;
    }
    mark_coming(b, &c, true);
    b->bulk = grown(b->bulk, b->n_bulk, &b->max_bulk, sizeof(c));
    b->bulk[b->n_bulk++] = c;
}

/* r[0]: bytes. r[1]: mask of the cluster's blocks to which the data is copied, each to the same
 * place in its shared memory and counted by its own barrier; 0 if the instruction has no mask. */
static void bulk_copy(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *n = place(w, o->r[0]);
    const uint16_t *mask = o->r[1] ? place(w, o->r[1]) : NULL;
    struct block *b = w->block;

    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        uint64_t to = address_of(w, &o->at[0], l), from = address_of(w, &o->at[1], l);
        uint64_t barrier = address_of(w, &o->at[2], l);
        if (n[l] % 16 || n[l] == 0 || from % 16)
            fail(o, "a copy of %u bytes from %#lx", n[l], (unsigned long)from);
        check_range(w, (uintptr_t)from, n[l]);
        struct bulk c = {.from = (const uint8_t *)(uintptr_t)from, .n = n[l]}; // NOLINT
        c.barrier = (uint32_t)barrier;
        if (!mask)
            bulk_to(w, b, o, c, to);
        else if (mask[l] == 0 || mask[l] >> b->n_ranks)
            fail(o, "a copy to blocks %#x of %u", mask[l], b->n_ranks);
        for (uint32_t r = 0; mask && r < b->n_ranks; r++)
            if (mask[l] >> r & 1) {
                if (has_ended(&b->cluster[r]))
                    fail(o, "a copy to a block that has ended");
                bulk_to(w, &b->cluster[r], o, c, to);
            }
    }
}

static void bulk_prefetch(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *n = place(w, o->r[0]);

    for (uint32_t l = 0; l < LANES; l++)
        if (m >> l & 1) {
            uint64_t from = address_of(w, &o->at[0], l);
            if (n[l] % 16 || from % 16)
                fail(o, "a prefetch of %u bytes at %#lx", n[l], (unsigned long)from);
            check_range(w, (uintptr_t)from, n[l]);
        }
}

/* ---- decoders ---- */

static void read_address(struct instruction *in, uint32_t operand, uint32_t to, enum space space) {
    struct op *o = in->op;

    if (!o->at)
        o->at = calloc(3, sizeof(*o->at));
    o->space = space;
    address(in, operand, 5);
    o->at[to] = (struct address){o->imm, o->r[5], o->wide, o->space};
}

static void decode_bulk(struct instruction *in) {
    struct op *o = in->op;
    bool many = false;

    if (has(in, "prefetch")) {
        if (!has(in, "L2") || !has(in, "global") || in->n_operands != 2)
            refuse(in, "an unknown form of the instruction");
        read_address(in, 0, 0, GLOBAL);
        o->r[0] = source(in, 1, 4);
        o->run = bulk_prefetch;
        return;
    }
    if ((!has(in, "shared::cluster") && !has(in, "shared::cta")) || !has(in, "global") ||
        !has(in, "mbarrier::complete_tx::bytes") ||
        in->n_operands != 4u + (many = has(in, "multicast::cluster")))
        refuse(in, "an unknown form of the instruction");
    read_address(in, 0, 0, SHARED);
    read_address(in, 1, 1, GLOBAL);
    read_address(in, 3, 2, SHARED);
    o->r[0] = source(in, 2, 4);
    o->r[1] = many ? source(in, 4, 2) : 0;
    o->run = bulk_copy;
    note_proxies(in);
}

void decode_copy(struct instruction *in) {
    struct op *o = in->op;
    bool ca = false, cg = false;

    if (!has(in, "async"))
        refuse(in, "an unknown form of the instruction");
    if (has(in, "bulk")) {
        decode_bulk(in);
    } else if (has(in, "commit_group")) {
        o->run = cp_commit;
    } else if (has(in, "wait_group")) {
        o->run = cp_wait;
        o->imm = immediate(in, 0);
    } else if (has(in, "wait_all")) {
        o->run = cp_wait_all;
    } else {
        ca = has(in, "ca");
        cg = has(in, "cg");
        if (!has(in, "L2::64B") && !has(in, "L2::128B"))
            has(in, "L2::256B");
        if (!(ca || cg) || (!has(in, "shared") && !has(in, "shared::cta")) || !has(in, "global") ||
            in->n_operands < 3 || in->n_operands > 4)
            refuse(in, "an unknown form of the instruction");
        o->size = (uint8_t)immediate(in, 2);
        if (o->size != 16 && (cg || (o->size != 4 && o->size != 8)))
            refuse(in, "a copy of a size that there is not");
        read_address(in, 0, 0, SHARED);
        read_address(in, 1, 1, GLOBAL);
        o->r[2] = in->n_operands == 4 ? source(in, 3, 4) : 0;
        o->run = cp_async;
    }
}

void decode_mbarrier(struct instruction *in) {
    struct op *o = in->op;
    uint32_t at = 0;

    if (has(in, "shared::cluster")) {
        if (!has(in, "arrive") || !(has(in, "release") || has(in, "relaxed")) ||
            !has(in, "cluster") || !has(in, "b64") || in->n_operands != 2 ||
            in->operand[0].kind != SINK)
            refuse(in, "an unknown form of the instruction");
        o->run = bar_arrive_far;
        read_address(in, 1, 0, SHARED);
        return;
    }
    if ((!has(in, "shared::cta") && !has(in, "shared")) || !has(in, "b64"))
        refuse(in, "an unknown form of the instruction");
    if (has(in, "init")) {
        o->r[0] = source(in, 1, 4);
        o->run = bar_init;
    } else if (has(in, "arrive") && in->operand[0].kind == SINK) {
        at = 1;
        o->flags = has(in, "expect_tx");
        o->r[0] = o->flags ? source(in, 2, 4) : 0;
        o->run = bar_arrive;
    } else if (has(in, "parity") && (has(in, "try_wait") || has(in, "test_wait"))) {
        at = 1;
        if (has(in, "acquire") && !has(in, "cluster"))
            refuse(in, "an unknown form of the instruction");
        o->r[0] = predicate(in, 0);
        o->r[1] = source(in, 2, 4);
        o->run = bar_try;
    } else {
        refuse(in, "an unknown form of the instruction");
    }
    read_address(in, at, 0, SHARED);
}
