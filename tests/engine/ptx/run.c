/* Execution of launches. Clusters run one after the other. The warps of a cluster's blocks take
 * turns; a turn ends where the warp must wait. Without clusters, each block is a cluster. Lanes of
 * a warp that diverge at a branch reconverge at its immediate post-dominator. */

#include "tests/engine/ptx/parser.h"

/* most instructions of a warp without a wait, to end infinite loops */
#define MOST_STEPS 300000000ull

static struct block blocks[MAX_CLUSTER]; /* blocks of the running cluster */

static void push(struct warp *w, uint32_t pc, uint32_t rejoin, uint32_t mask) {
    w->parts = grown(w->parts, w->n_parts, &w->max_parts, sizeof(*w->parts));
    w->parts[w->n_parts++] = (struct part){pc, rejoin, mask};
}

static void branch(struct warp *w, const struct op *o, uint32_t taken) {
    struct part *p = &w->parts[w->n_parts - 1];
    uint32_t stays = p->mask & ~taken, pc = p->pc + 1, rejoin = o->rejoin;

    if (!stays) {
        p->pc = o->target;
        return;
    }
    if (!taken) {
        p->pc = pc;
        return;
    }
    if (p->rejoin == rejoin && w->n_parts > 1)
        w->n_parts--; /* both parts reconverge where this part does anyway */
    else
        p->pc = rejoin;
    if (pc != rejoin)
        push(w, pc, rejoin, stays);
    if (o->target != rejoin)
        push(w, o->target, rejoin, taken);
}

/* Removes lanes that have ended from all parts. */
static void leave(struct warp *w, uint32_t mask) {
    uint32_t n = 0;

    w->live &= ~mask;
    for (uint32_t i = 0; i < w->n_parts; i++) {
        struct part p = w->parts[i];

        p.mask &= ~mask;
        if (p.mask)
            w->parts[n++] = p;
    }
    w->n_parts = n;
}

static void end_lanes(struct warp *w, const struct op *o, uint32_t mask) {
    struct part *p = &w->parts[w->n_parts - 1];

    if (w->must_wait && !w->waited)
        fail(o, "the end of a kernel that did not wait for the one before");
    if (p->mask != mask)
        p->pc++;
    leave(w, mask);
    if (!w->live && (w->n_copies || w->n_products))
        fail(o, "the end of a warp whose copies or products were not waited for");
}

/* Runs a warp until it waits, yields or ends. Returns the number of instructions. */
static uint64_t run_warp(struct warp *w) {
    struct ptx_kernel *k = w->block->kernel;
    uint64_t n = 0;

    w->state = RUNNING;
    while (w->state == RUNNING) {
        if (!w->live) {
            w->state = DONE;
            break;
        }
        struct part *p = &w->parts[w->n_parts - 1];
        if (p->pc == p->rejoin && w->n_parts > 1) {
            w->n_parts--;
            continue;
        }
        if (p->pc >= k->n_ops)
            fail(NULL, "a function without a return");
        const struct op *o = &k->ops[p->pc];
        uint32_t mask = p->mask;
        if (o->guard >= 0)
            mask &= o->negated ? ~w->preds[o->guard] : w->preds[o->guard];
        k->ran[p->pc] |= mask != 0;
        w->op = o;
        if (++n == MOST_STEPS)
            fail(o, "a warp that does not end");
        switch (o->kind) {
        case OP_PLAIN:
            if (mask)
                o->run(w, o, mask);
            p->pc++;
            break;
        case OP_BRANCH:
            branch(w, o, mask);
            break;
        case OP_EXIT:
            if (mask)
                end_lanes(w, o, mask);
            else
                p->pc++;
            break;
        default:
            if (mask && mask != w->live)
                fail(o, "a barrier that not all lanes of the warp come to");
            p->pc++;
            if (mask)
                o->run(w, o, mask);
            break;
        }
    }
    return n;
}

/* Releases warps whose barrier is complete. Returns true if there were any. */
static bool release(struct block *b) {
    bool any = false;

    for (uint32_t i = 0; i < MAX_BARRIERS; i++) {
        uint32_t n = 0;

        if (!b->arrived[i])
            continue;
        for (uint32_t j = 0; j < b->n_warps; j++)
            n += b->warp[j].state == DONE ? 0 : LANES;
        if (b->arrived[i] < (b->expected[i] ? b->expected[i] : n))
            continue;
        b->arrived[i] = b->expected[i] = 0;
        for (uint32_t j = 0; j < b->n_warps; j++)
            if (b->warp[j].state == AT_BARRIER && b->warp[j].barrier == i)
                b->warp[j].state = RUNNING;
        any = true;
    }
    return any;
}

bool has_ended(const struct block *b) {
    for (uint32_t i = 0; i < b->n_warps; i++)
        if (b->warp[i].state != DONE)
            return false;
    return true;
}

/* Releases the warps at their cluster's barrier once all that are running have arrived. */
static bool release_cluster(uint32_t n) {
    bool any = false;

    for (uint32_t i = 0; i < n * blocks->n_warps; i++) {
        struct warp *w = &blocks[i / blocks->n_warps].warp[i % blocks->n_warps];

        if (w->state != DONE && w->meeting != ARRIVED)
            return false;
        any |= w->state == AT_CLUSTER;
    }
    for (uint32_t i = 0; i < n * blocks->n_warps; i++) {
        struct warp *w = &blocks[i / blocks->n_warps].warp[i % blocks->n_warps];

        w->meeting = w->state == AT_CLUSTER ? APART : MET;
        w->state = w->state == AT_CLUSTER ? RUNNING : w->state;
    }
    return any;
}

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Fills @order with a permutation of 0 .. n - 1; ascending for seed 0. */
static void shuffle(uint32_t *order, uint32_t n, uint64_t seed) {
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; seed && i-- > 1;) {
        uint32_t j = (uint32_t)(mixed(seed + i) % (i + 1)), t = order[i];

        order[i] = order[j];
        order[j] = t;
    }
}

static void set_special(struct warp *w, enum special s, uint32_t first, uint32_t step) {
    uint32_t *r = (uint32_t *)(w->regs + SPECIAL_PLACE(s));

    for (uint32_t i = 0; i < LANES; i++)
        r[i] = first + i * step;
}

static void start_warp(struct block *b, uint32_t i, uint32_t x, uint32_t y) {
    struct warp *w = &b->warp[i];
    const struct ptx_launch *l = b->launch;
    uint32_t n = l->n_threads - i * LANES;
    uint64_t *local = (uint64_t *)(w->regs + SPECIAL_PLACE(S_LOCAL));

    w->block = b;
    w->consts = b->kernel->consts;
    w->live = n >= LANES ? ALL : (1u << n) - 1;
    w->n_parts = 0;
    push(w, 0, b->kernel->n_ops, w->live);
    w->state = RUNNING;
    w->meeting = APART;
    w->waited = w->fenced = false;
    w->must_wait = l->early && x + y == 0;
    w->n_copies = w->n_products = w->products_committed = 0;
    w->last = (struct range){0, 0};
    w->asked = 0;
    memset(w->committed, 0, sizeof(w->committed));
    w->preds[0] = 0;
    w->preds[1] = ALL;
    set_special(w, S_TID_X, i * LANES, 1);
    for (enum special s = S_TID_Y; s < N_SPECIAL; s++)
        set_special(w, s, 0, 0);
    set_special(w, S_NTID_X, l->n_threads, 0);
    set_special(w, S_NTID_Y, 1, 0);
    set_special(w, S_NTID_Z, 1, 0);
    set_special(w, S_CTAID_X, x, 0);
    set_special(w, S_CTAID_Y, y, 0);
    set_special(w, S_NCTAID_X, l->grid_x, 0);
    set_special(w, S_NCTAID_Y, l->grid_y, 0);
    set_special(w, S_NCTAID_Z, 1, 0);
    set_special(w, S_CLUSTER_RANK, b->rank, 0);
    set_special(w, S_CLUSTER_SIZE, b->n_ranks, 0);
    set_special(w, S_LANEID, 0, 1);
    set_special(w, S_WARPID, i, 0);
    for (uint32_t j = 0; j < LANES; j++) {
        ((uint32_t *)(w->regs + SPECIAL_PLACE(S_LANEMASK_LT)))[j] = (1u << j) - 1;
        local[j] = (uint64_t)(uintptr_t)(w->local + j * b->kernel->local_bytes);
    }
}

static void start_block(struct block *b, uint32_t x, uint32_t y) {
    /* A pattern that is neither zero nor left by an earlier block, so that a read before the first
     * write has an effect. */
    memset(b->shared + SHARED_BASE, 0xFF, b->shared_end - SHARED_BASE);
    memset(b->dirty, 0, b->shared_end / 16 + 1);
    memset(b->arrived, 0, sizeof(b->arrived));
    memset(b->expected, 0, sizeof(b->expected));
    b->n_bulk = 0;
    for (uint32_t i = 0; i < b->n_warps; i++)
        start_warp(b, i, x, y);
}

#define MOST_OF_A_TRY 24u /* instructions between two tries of an mbarrier */
#define PATIENCE 3u /* turns of the block ahead without progress, after which the others run */

/* Runs the @n_ranks blocks from column @x of row @y on. One of them usually runs far ahead, to
 * expose accesses to another block's shared memory that come too early. */
static void run_cluster(uint32_t n_ranks, uint32_t x, uint32_t y, uint64_t seed) {
    uint32_t order[MAX_CLUSTER * MAX_WARPS], idle = 0, n_warps = blocks->n_warps;
    uint32_t ahead = seed ? (uint32_t)(mixed(seed) % (n_ranks + 1)) : 0, still = 0;
    uint64_t n = 0;

    for (uint32_t r = 0; r < n_ranks; r++)
        start_block(&blocks[r], x + r, y);
    for (;;) {
        bool any = false, ran = false,
             others = n_ranks == 1 || ahead == n_ranks || still >= PATIENCE;

        shuffle(order, n_ranks * n_warps, seed ? mixed(seed + n) | 1 : 0);
        for (uint32_t i = 0; i < n_ranks * n_warps; i++) {
            struct warp *w = &blocks[order[i] / n_warps].warp[order[i] % n_warps];

            any |= w->state != DONE;
            if ((w->state != RUNNING && w->state != YIELDED) ||
                !(others || w->block->rank == ahead))
                continue;
            bool yielded = w->state == YIELDED;
            uint64_t steps = run_warp(w);
            n += steps;
            ran |= !yielded || w->state != YIELDED || steps > MOST_OF_A_TRY;
        }
        if (!any)
            break;
        for (uint32_t r = 0; r < n_ranks; r++)
            ran |= release(&blocks[r]);
        ran |= release_cluster(n_ranks);
        still = ran || others ? 0 : still + 1;
        idle = ran ? 0 : idle + 1;
        if (idle == 1000)
            fail(blocks->warp[0].op, "no warp of the block can go on");
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        if (blocks[r].n_bulk)
            fail(NULL, "the end of a block whose copies in bulk were not waited for");
    blocks->kernel->n_executed += n;
}

/* Allocates a kernel's registers. They keep the values of earlier kernels, so that reads of
 * unwritten registers show. */
static void set_up_warp(struct warp *w, const struct ptx_kernel *k) {
    if (w->reg_bytes < k->reg_bytes) {
        free(w->regs);
        w->reg_bytes = (k->reg_bytes + 63) / 64 * 64;
        w->regs = aligned_alloc(64, w->reg_bytes);
        if (!w->regs)
            abort();
        memset(w->regs, 0xFF, w->reg_bytes);
    }
    if (w->n_preds < k->n_preds) {
        free(w->preds);
        w->n_preds = k->n_preds;
        w->preds = calloc(w->n_preds, sizeof(*w->preds));
    }
    if (w->local_bytes < k->local_bytes) {
        free(w->local);
        w->local_bytes = k->local_bytes;
        w->local = aligned_alloc(64, LANES * w->local_bytes);
    }
    if (!w->preds || (w->local_bytes && !w->local))
        abort();
}

/* Returns the number of blocks of a cluster. */
static uint32_t ranks_of(const struct ptx_kernel *k, const struct ptx_launch *l) {
    return l->cluster ? l->cluster : k->cluster ? k->cluster : 1;
}

static void set_up(struct block *b, struct ptx_kernel *k, const struct ptx_launch *l) {
    if (!b->shared) {
        b->shared = aligned_alloc(4096, SHARED_MAX + 4096);
        b->dirty = malloc(SHARED_MAX / 16 + 1);
    }
    b->cluster = blocks;
    b->rank = (uint32_t)(b - blocks);
    b->n_ranks = ranks_of(k, l);
    b->kernel = k;
    b->launch = l;
    b->n_warps = (l->n_threads + LANES - 1) / LANES;
    b->shared_end = SHARED_BASE + (uint32_t)k->shared_bytes + l->shared_bytes;
    if (b->n_warps > MAX_WARPS || b->shared_end > SHARED_MAX)
        fail(NULL, "a launch of too many threads or bytes of shared memory");
    for (uint32_t i = 0; i < b->n_warps; i++)
        set_up_warp(&b->warp[i], k);
}

void ptx_run(struct ptx_kernel *k, const struct ptx_launch *l) {
    uint32_t n_ranks = ranks_of(k, l), columns = l->grid_x / n_ranks;
    uint64_t seed = l->order ? mixed(l->order) : 0, n = (uint64_t)columns * l->grid_y;

    ptx_set_running(k);
    if (l->args_bytes != k->param_bytes)
        fail(NULL, "an argument of %zu bytes where the kernel takes %zu", l->args_bytes,
             k->param_bytes);
    if (k->max_threads && l->n_threads > k->max_threads)
        fail(NULL, "a launch of more threads than the kernel is compiled for");
    if (n_ranks > MAX_CLUSTER || l->grid_x % n_ranks)
        fail(NULL, "a grid of %u blocks in clusters of %u", l->grid_x, n_ranks);
    memcpy(k->params, l->args, l->args_bytes);
    for (uint32_t r = 0; r < n_ranks; r++)
        set_up(&blocks[r], k, l);
    uint32_t n_warps = blocks->n_warps;
    ptx_memory_add(k->params, 4096);
    for (uint32_t i = 0; k->local_bytes && i < n_ranks * n_warps; i++)
        ptx_memory_add(blocks[i / n_warps].warp[i % n_warps].local, LANES * k->local_bytes);
    k->n_launches++;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = seed % 2 ? n - 1 - i : i;

        run_cluster(n_ranks, (uint32_t)(at % columns) * n_ranks, (uint32_t)(at / columns),
                    seed ? seed + at : 0);
    }
    for (uint32_t i = 0; k->local_bytes && i < n_ranks * n_warps; i++)
        ptx_memory_drop(blocks[i / n_warps].warp[i % n_warps].local);
    ptx_memory_drop(k->params);
    ptx_set_running(NULL);
}
