/* Branches, barriers, fences, and exchange among the lanes of a warp. */

#include "tests/engine/ptx/lanes.h"
#include "tests/engine/ptx/parse.h"

/* ---- barriers and fences ---- */

/* r[0]: barrier, r[1]: number of threads; both are equal in all lanes. */
static void bar_sync(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *id = place(w, o->r[0]), *n = place(w, o->r[1]);
    struct block *b = w->block;

    (void)m;
    if (id[0] >= MAX_BARRIERS || n[0] % LANES)
        fail(o, "barrier %u of %u threads", id[0], n[0]);
    if (b->arrived[id[0]] && b->expected[id[0]] != n[0])
        fail(o, "barrier %u with other numbers of threads", id[0]);
    b->expected[id[0]] = n[0];
    b->arrived[id[0]] += LANES;
    w->barrier = id[0];
    if (!o->flags) /* set for bar.arrive, which does not wait */
        w->state = AT_BARRIER;
}

static void bar_warp(struct warp *w, const struct op *o, uint32_t m) {
    const uint32_t *named = place(w, o->r[0]);

    for (uint32_t l = 0; l < LANES; l++)
        if (m >> l & 1 && (named[l] & w->live) != m)
            fail(o, "lanes %08X where %08X are named", m, named[l]);
}

static void nothing(struct warp *w, const struct op *o, uint32_t m) {
    (void)w;
    (void)o;
    (void)m;
}

/* Arrivals and waits of a warp at its cluster's barrier must alternate. */
static void cluster_arrive(struct warp *w, const struct op *o, uint32_t m) {
    (void)m;
    if (w->meeting != APART)
        fail(o, "a second arrival at the cluster's barrier without a wait");
    w->meeting = ARRIVED;
}

static void cluster_wait(struct warp *w, const struct op *o, uint32_t m) {
    (void)m;
    if (w->meeting == APART)
        fail(o, "a wait at the cluster's barrier without an arrival");
    if (w->meeting == ARRIVED)
        w->state = AT_CLUSTER;
    else
        w->meeting = APART;
}

static void decode_cluster_barrier(struct instruction *in) {
    struct op *o = in->op;

    o->kind = OP_BARRIER;
    if (has(in, "arrive")) {
        has(in, "release");
        o->run = cluster_arrive;
    } else if (has(in, "wait")) {
        has(in, "acquire");
        o->run = cluster_wait;
    }
    if (!o->run || !has(in, "aligned") || in->n_operands)
        refuse(in, "an unknown form of the instruction");
}

/* mapa. r: d, a, b: converts address a of this block's shared memory to the same place in that of
 * block b. */
static void mapa(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t *d = place(w, o->r[0]);
    const uint32_t *a = place(w, o->r[1]), *b = place(w, o->r[2]);

    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        if (b[l] >= w->block->n_ranks || a[l] >= CLUSTER_WINDOW)
            fail(o, "block %u of %u, address %#x", b[l], w->block->n_ranks, a[l]);
        d[l] = (b[l] + 1) * CLUSTER_WINDOW + a[l];
    }
}

void decode_mapa(struct instruction *in) {
    struct op *o = in->op;

    if (!has(in, "shared::cluster") || !has(in, "u32") || in->n_operands != 3)
        refuse(in, "an unknown form of the instruction");
    o->r[0] = target(in, 0, 4);
    o->r[1] = source(in, 1, 4);
    o->r[2] = source(in, 2, 4);
    o->run = mapa;
}

enum { ONLY_SHARED = 1, ONLY_GLOBAL };

/* Orders earlier accesses of threads to shared memory before later ones through the async proxy. */
static void fence_proxy(struct warp *w, const struct op *o, uint32_t m) {
    struct block *b = w->block;

    (void)m;
    for (uint32_t g = 0; b->kernel->proxies && o->flags != ONLY_GLOBAL && g <= b->shared_end / 16;
         g++)
        b->dirty[g] &= COMING;
}

static void grid_wait(struct warp *w, const struct op *o, uint32_t m) {
    (void)o;
    (void)m;
    w->waited = true;
}

static void decode_barrier(struct instruction *in) {
    struct op *o = in->op;

    if (has(in, "cluster")) {
        decode_cluster_barrier(in);
        return;
    }
    bool cta = strcmp(in->part[0], "bar") == 0 || has(in, "aligned");
    if (has(in, "warp") && has(in, "sync")) {
        o->run = bar_warp;
        o->r[0] = source(in, 0, 4);
        return;
    }
    has(in, "cta");
    o->flags = has(in, "arrive");
    if (!cta || (!o->flags && !has(in, "sync")) || in->n_operands < 1u + o->flags)
        refuse(in, "an unknown form of the instruction");
    struct operand none = {.kind = IMMEDIATE, .second = -1};
    o->kind = OP_BARRIER;
    o->run = bar_sync;
    o->r[0] = source(in, 0, 4);
    o->r[1] = in->n_operands > 1 ? source(in, 1, 4) : source_of(in, &none, 4);
}

static void decode_fence(struct instruction *in) {
    struct op *o = in->op;

    o->run = nothing;
    if (strcmp(in->part[0], "membar") == 0) {
        if (!has(in, "gl") && !has(in, "sys") && !has(in, "cta"))
            refuse(in, "an unknown form of the instruction");
    } else if (has(in, "mbarrier_init")) {
        if (!has(in, "release") || !has(in, "cluster"))
            refuse(in, "an unknown form of the instruction");
    } else if (has(in, "proxy")) {
        if (!has(in, "async"))
            refuse(in, "an unknown form of the instruction");
        o->flags = has(in, "global") ? ONLY_GLOBAL : has(in, "shared::cta") ? ONLY_SHARED : 0;
        o->run = fence_proxy;
    } else {
        if (!has(in, "acq_rel"))
            has(in, "sc");
        if (!has(in, "gpu") && !has(in, "sys") && !has(in, "cta"))
            refuse(in, "an unknown form of the instruction");
    }
}

/* Registers are not limited here; simt.cc looks at their sum. */
static void decode_registers(struct instruction *in) {
    bool known = has(in, "inc") || has(in, "dec");
    int64_t n;

    if (!known || !has(in, "sync") || !has(in, "aligned") || !has(in, "u32"))
        refuse(in, "an unknown form of the instruction");
    n = immediate(in, 0);
    if (n < 24 || n > 256 || n % 8)
        refuse(in, "a number of registers that there is not");
    in->op->run = nothing;
}

void decode_sync(struct instruction *in) {
    struct op *o = in->op;
    const char *name = in->part[0];

    if (name[0] == 'b' && name[1] == 'r') {
        has(in, "uni");
        if (in->n_operands != 1 || in->operand[0].kind != LABEL)
            refuse(in, "a branch without a label");
        o->kind = OP_BRANCH;
        use_label(in, in->operand[0].label);
    } else if (strcmp(name, "ret") == 0 || strcmp(name, "exit") == 0) {
        has(in, "uni");
        o->kind = OP_EXIT;
        if (name[0] == 'r' && in_call(in)) {
            o->kind = OP_BRANCH;
            use_label(in, "(return)");
        }
    } else if (strcmp(name, "setmaxnreg") == 0) {
        decode_registers(in);
    } else if (strcmp(name, "griddepcontrol") == 0) {
        o->run = nothing;
        if (has(in, "wait"))
            o->run = grid_wait;
        else if (!has(in, "launch_dependents"))
            refuse(in, "an unknown form of the instruction");
    } else if (name[0] == 'b') {
        decode_barrier(in);
    } else {
        decode_fence(in);
    }
}

/* ---- shfl ---- */

enum { UP, DOWN, BFLY, IDX };

/* r: d, p (or -1), a, b, c, mask. Follows the pseudocode of the ISA. */
static void shfl(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t *d = place(w, o->r[0]), v[LANES], in_range = 0;
    const uint32_t *a = place(w, o->r[2]), *b = place(w, o->r[3]), *c = place(w, o->r[4]);
    const uint32_t *named = place(w, o->r[5]);

    memcpy(v, a, sizeof(v));
    for (uint32_t l = 0; l < LANES; l++) {
        if (!(m >> l & 1))
            continue;
        if ((named[l] & w->live) != m)
            fail(o, "lanes %08X where %08X are named", m, named[l]);
        uint32_t bval = b[l] & 31, cval = c[l] & 31, seg = c[l] >> 8 & 31;
        int32_t most = (int32_t)((l & seg) | (cval & ~seg)), j;
        bool p;

        if (o->form[0] == UP) {
            j = (int32_t)l - (int32_t)bval;
            p = j >= most;
        } else if (o->form[0] == DOWN) {
            j = (int32_t)(l + bval);
            p = j <= most;
        } else {
            j = (int32_t)(o->form[0] == BFLY ? l ^ bval : (l & seg) | (bval & ~seg));
            p = j <= most;
        }
        j = p ? j : (int32_t)l;
        if (!(m >> j & 1))
            fail(o, "lane %u reads lane %d, which is not here", l, j);
        d[l] = v[j];
        in_range |= (uint32_t)p << l;
    }
    if (o->r[1] >= 0)
        w->preds[o->r[1]] = (w->preds[o->r[1]] & ~m) | in_range;
}

void decode_shfl(struct instruction *in) {
    struct op *o = in->op;

    o->form[0] = (uint8_t)(has(in, "up")     ? UP
                           : has(in, "down") ? DOWN
                           : has(in, "bfly") ? BFLY
                           : has(in, "idx")  ? IDX
                                             : 9);
    if (!has(in, "sync") || !has(in, "b32") || o->form[0] == 9 || in->n_operands != 5)
        refuse(in, "an unknown form of the instruction");
    o->run = shfl;
    o->r[0] = target(in, 0, 4);
    o->r[1] = in->operand[0].second;
    for (uint32_t i = 1; i < 5; i++)
        o->r[i + 1] = source(in, i, 4);
}

/* ---- vote, redux, activemask ---- */

static void look_named(const struct warp *w, const struct op *o, uint32_t m,
                       const uint32_t *named) {
    uint32_t l = (uint32_t)__builtin_ctz(m);

    if ((named[l] & w->live) != m)
        fail(o, "lanes %08X where %08X are named", m, named[l]);
}

enum { ANY, EVERY, UNI, BALLOT };

static void vote(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t a = w->preds[o->r[1]] & m;

    a = o->flags ? ~a & m : a;
    look_named(w, o, m, place(w, o->r[2]));
    if (o->form[0] == BALLOT) {
        uint32_t *d = place(w, o->r[0]);
        EACH_LANE(m, d[l] = a);
        return;
    }
    bool yes = o->form[0] == ANY ? a != 0 : o->form[0] == EVERY ? a == m : a == 0 || a == m;
    w->preds[o->r[0]] = (w->preds[o->r[0]] & ~m) | (yes ? m : 0);
}

enum { ADD, MIN, MAX, MIN_SIGNED, MAX_SIGNED, AND, OR, XOR };

static void redux(struct warp *w, const struct op *o, uint32_t m) {
    uint32_t *d = place(w, o->r[0]), sum = 0;
    const uint32_t *a = place(w, o->r[1]);
    bool first = true;

    look_named(w, o, m, place(w, o->r[2]));
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t v = a[l], s = sum;

        if (!(m >> l & 1))
            continue;
        switch (o->form[0]) {
        case ADD:
            s = v + s;
            break;
        case MIN:
            s = v < s ? v : s;
            break;
        case MAX:
            s = v > s ? v : s;
            break;
        case MIN_SIGNED:
            s = (int32_t)v < (int32_t)s ? v : s;
            break;
        case MAX_SIGNED:
            s = (int32_t)v > (int32_t)s ? v : s;
            break;
        case AND:
            s &= v;
            break;
        case OR:
            s |= v;
            break;
        default:
            s ^= v;
            break;
        }
        sum = first ? v : s;
        first = false;
    }
    EACH_LANE(m, d[l] = sum);
}

static void decode_redux(struct instruction *in) {
    struct op *o = in->op;
    bool is_signed = has(in, "s32");

    if (!has(in, "sync") || (!is_signed && !has(in, "u32") && !has(in, "b32")))
        refuse(in, "an unknown form of the instruction");
    o->form[0] = (uint8_t)(has(in, "add")   ? ADD
                           : has(in, "min") ? (is_signed ? MIN_SIGNED : MIN)
                           : has(in, "max") ? (is_signed ? MAX_SIGNED : MAX)
                           : has(in, "and") ? AND
                           : has(in, "or")  ? OR
                           : has(in, "xor") ? XOR
                                            : 99);
    if (o->form[0] == 99 || in->n_operands != 3)
        refuse(in, "an unknown form of the instruction");
    o->run = redux;
    o->r[0] = target(in, 0, 4);
    o->r[1] = source(in, 1, 4);
    o->r[2] = source(in, 2, 4);
}

void decode_vote(struct instruction *in) {
    struct op *o = in->op;

    if (strcmp(in->part[0], "redux") == 0) {
        decode_redux(in);
        return;
    }
    if (strcmp(in->part[0], "vote") != 0 || !has(in, "sync") || in->n_operands != 3)
        refuse(in, "an unknown form of the instruction");
    o->form[0] = (uint8_t)(has(in, "any")   ? ANY
                           : has(in, "all") ? EVERY
                           : has(in, "uni") ? UNI
                                            : BALLOT);
    if (o->form[0] == BALLOT ? !has(in, "ballot") || !has(in, "b32") : !has(in, "pred"))
        refuse(in, "an unknown form of the instruction");
    o->run = vote;
    o->r[0] = o->form[0] == BALLOT ? target(in, 0, 4) : predicate(in, 0);
    o->flags = in->operand[1].negated;
    in->operand[1].negated = false;
    o->r[1] = predicate(in, 1);
    o->r[2] = source(in, 2, 4);
}
