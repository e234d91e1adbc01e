#include "engine/fuse.h"

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "engine/op_table.h"

static_assert(OP_KINDS <= 64, "sets of kinds have a bit for each");

/* State of a walk over the ops of a pass. */
struct fusing {
    const struct model_shape *shape;
    const struct be_ops *ops;
    uint32_t pass;
    /* of the run of consecutive ops; last NULL: there is none yet */
    struct model_op *begin, *last;
    /* of the layer */
    uint32_t device;
    /* heads that attention's work list was made for; n 0: none; for ops with op_links.from */
    struct heads listed;
    bool listed_from;
    /* LIST_HEADS was made */
    bool heads_listed;
    /* DRAFT_IN, KEEP have come */
    bool paired, kept;
};

/* Returns true if devices that divide the layers begin a step of their own at @op: at the first op
 * of a device, and after the layers, which they may compute in parts. */
static bool fuse_begins(const struct fusing *f, const struct model_op *op) {
    if (f->shape->cut[1] == 0 || op->kind == OP_EMBED)
        return false;
    if (op->kind == OP_KEEP || op->kind == OP_LOGITS)
        return true;
    return device_of_layer(f->shape, op->layer) != f->device;
}

/* Returns the buffer whose rows an op of @kind computes for a PROJ; ACT_ROLES: none. */
static enum act_role fuse_role(enum op_kind kind) {
    switch (kind) {
    case OP_ATTEND:
    case OP_GATE:
        return ACT_O;
    case OP_GATE_UP:
    case OP_GATE_IN:
        return ACT_H;
    case OP_DELTA:
    case OP_KDA:
    case OP_MAMBA:
    case OP_MLA_OUT:
        return ACT_D;
    default:
        return ACT_ROLES;
    }
}

/* Returns true if @op can take the result of @from before that is complete. Gates from a matrix of
 * their own are applied by GATE itself. Packed rows, rows that attention leaves for a PROJ, and
 * keys that a QKV leaves for attention are those of the op right before. */
static bool fuse_accepts(const struct fusing *f, const struct model_op *op,
                         const struct model_op *from) {
    enum act_role role = fuse_role(from->kind);

    if (!(f->ops->op[op->kind]->takes & OP_BIT(from->kind)))
        return false;
    if (from->kind == OP_GATE && from->w[0])
        return false;
    if ((role == ACT_D || from->kind == OP_ATTEND) && from != op - 1)
        return false;
    if (from->kind == OP_QKV && from != op - 1)
        return false;
    return op->kind != OP_PROJ || role == ACT_ROLES || role == op->in;
}

/* Links @op to the nearest op of its layer whose result it takes. */
static void fuse_from(const struct fusing *f, struct model_op *op) {
    for (struct model_op *from = op; from > f->begin;) {
        from--;
        if (from != op - 1 && from->layer != op->layer)
            return;
        if (!fuse_accepts(f, op, from))
            continue;
        op->links.from = from;
        from->links.into = op;
        return;
    }
}

/* Links @op to the op before, if that leaves its addition to x. An op with @branch adds nothing
 * to x. */
static void fuse_adds(const struct fusing *f, struct model_op *op) {
    struct model_op *last = f->last;

    if (!last || last->branch || !(f->ops->op[op->kind]->adds & OP_BIT(last->kind)))
        return;
    if (last->kind == OP_DEEP && !last->links.adds)
        return;
    op->links.adds = last;
    last->links.into = op;
}

/* Decides whether @op makes a work list in this pass. */
static void fuse_lists(struct fusing *f, struct model_op *op) {
    enum op_list list = f->ops->op[op->kind]->list;

    if (list == LIST_HEADS) {
        op->links.first |= !f->heads_listed << f->pass;
        f->heads_listed = true;
    }
    if (list != LIST_KEYS || op->attn.sparse)
        return;
    bool other = memcmp(&f->listed, &op->heads, sizeof(op->heads)) != 0;
    other |= f->listed_from != (op->links.from != NULL);
    op->links.first |= other << f->pass;
    f->listed = op->heads;
    f->listed_from = op->links.from != NULL;
}

static void fuse_op(struct fusing *f, struct model_op *op) {
    if (fuse_begins(f, op)) {
        f->last = NULL;
        f->listed = (struct heads){0};
        f->heads_listed = false;
    }
    if (op->kind != OP_EMBED)
        f->device = device_of_layer(f->shape, op->layer);
    fuse_adds(f, op);
    fuse_from(f, op);
    fuse_lists(f, op);
    f->paired |= op->kind == OP_DRAFT_IN;
    f->kept |= op->kind == OP_KEEP;
    if (op->kind == OP_KEEP)
        op->links.paired = f->paired;
    if (op->kind == OP_LOGITS)
        op->links.kept = f->kept;
    f->last = op;
}

/* Walks over a run of ops. A second run may continue the layer of the first one, whose last op may
 * also be the last of another pass and leaves nothing. */
static void fuse_run(struct fusing *f, struct model_op *begin, struct model_op *end) {
    if (!f->last || f->last + 1 != begin)
        f->begin = begin;
    f->last = NULL;
    for (struct model_op *op = begin; op < end; op++)
        fuse_op(f, op);
}

/* Returns true if the op computes each row from the row's activations alone, wherever they lie. A
 * GATE without a matrix reads what QKV left, and a table of picks the row's token. */
static bool fuse_is_by_row(const struct model_op *op) {
    switch (op->kind) {
    case OP_GATE:
        return op->w[0] != NULL;
    case OP_ROUTE:
        return op->picks == NULL;
    case OP_NORM:
    case OP_MLA_OUT:
    case OP_PROJ:
    case OP_JOIN:
    case OP_GATE_UP:
    case OP_EXPERTS:
    case OP_SHARED:
    case OP_LOGITS:
        return true;
    default:
        return false;
    }
}

/* Returns true if one of @n ops uses experts that an op before them has picked. */
static bool fuse_has_picks(const struct model_op *op, uint32_t n) {
    for (uint32_t i = 0; i < n && op[i].kind != OP_ROUTE; i++)
        if (op[i].kind == OP_EXPERTS || op[i].kind == OP_SHARED)
            return true;
    return false;
}

/* Returns true if a pass other than the model's has ops: drafts read hidden states of all rows. */
static bool fuse_drafts(const struct model *m) {
    for (uint32_t p = 0; p < PASSES; p++)
        if (p != PASS_MODEL && m->pass[p].run[0].begin < m->pass[p].run[0].end)
            return true;
    return false;
}

/* Marks the first op behind the last one that mixes rows, which is the attention of the last layer
 * in most models. */
static void fuse_narrow(struct model *m) {
    const struct op_run *all = &m->pass[PASS_MODEL].run[0];
    uint32_t first = all->end;

    while (first > all->begin && fuse_is_by_row(&m->op[first - 1]))
        first--;
    uint32_t n = all->end - first;
    if (n < 2 || fuse_drafts(m) || fuse_has_picks(m->op + first, n))
        return;
    m->op[first].links.narrows = true;
}

void fuse_model(struct model *m, const struct be_ops *ops) {
    for (uint32_t i = 0; i < m->n_ops; i++)
        m->op[i].links = (struct op_links){0};
    for (uint32_t p = 0; p < PASSES; p++) {
        struct fusing f = {.shape = &m->shape, .ops = ops, .pass = p};

        for (int k = 0; k < 2; k++)
            fuse_run(&f, m->op + m->pass[p].run[k].begin, m->op + m->pass[p].run[k].end);
    }
    if (ops->narrow)
        fuse_narrow(m);
}

void fuse_list(struct model_op *op, uint32_t n, const struct model_shape *shape,
               const struct be_ops *ops) {
    struct fusing f = {.shape = shape, .ops = ops};

    for (uint32_t i = 0; i < n; i++)
        op[i].links = (struct op_links){0};
    fuse_run(&f, op, op + n);
}

/* Adds " WHAT NUMBER KIND" for a linked op, with a comma before it unless it is the first. */
static int fuse_print_link(const struct model *m, struct buf *out, const char *what,
                           const struct model_op *to, bool *any) {
    if (!to)
        return 0;
    const char *sep = ":";

    if (*any)
        sep = ",";
    *any = true;
    return buf_printf(out, "%s %s %td %s", sep, what, to - m->op, op_name(to->kind));
}

static int fuse_print_op(const struct model *m, struct buf *out, const struct model_op *op,
                         uint32_t pass) {
    bool any = false;

    TRY(buf_printf(out, "%5td %s %u", op - m->op, op_name(op->kind), op->layer));
    TRY(fuse_print_link(m, out, "adds", op->links.adds, &any));
    TRY(fuse_print_link(m, out, "completes", op->links.from, &any));
    if (op->links.first >> pass & 1)
        TRY(buf_printf(out, "%s lists", any ? "," : ":"));
    if (op->links.narrows)
        TRY(buf_printf(out, ": wanted rows"));
    return buf_add_char(out, '\n');
}

int fuse_print(const struct model *m, struct buf *out) {
    for (uint32_t p = 0; p < PASSES; p++) {
        if (m->pass[p].run[0].end == m->pass[p].run[0].begin)
            continue;
        TRY(buf_printf(out, "pass %u\n", p));
        for (int k = 0; k < 2; k++)
            for (uint32_t i = m->pass[p].run[k].begin; i < m->pass[p].run[k].end; i++)
                TRY(fuse_print_op(m, out, &m->op[i], p));
    }
    return 0;
}
