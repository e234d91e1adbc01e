/* Finds the place at which lanes that diverge at a branch reconverge: the branch's immediate
 * post-dominator, by the algorithm of Cooper, Harvey and Kennedy on basic blocks of the reversed
 * graph. */

#include <stdlib.h>

#include "tests/engine/ptx/core.h"

#define NONE 0xFFFFFFFFu

struct flow {
    struct ptx_kernel *k;
    /* number of blocks; the exit is block n */
    uint32_t n;
    /* first op of each block; n_ops at the end */
    uint32_t *first;
    /* block of each op */
    uint32_t *of;
    uint32_t (*next)[2];
    /* predecessors of each block */
    uint32_t *n_before, *before_at, *before;
    /* postorder of the reversed graph */
    uint32_t *order, *number, n_order;
    uint32_t *dominator;
};

static uint32_t *words(size_t n, uint32_t value) {
    uint32_t *p = malloc((n + 1) * sizeof(*p));

    if (!p)
        abort();
    for (size_t i = 0; i <= n; i++)
        p[i] = value;
    return p;
}

static void find_blocks(struct flow *f) {
    const struct ptx_kernel *k = f->k;
    uint32_t *begins = words(k->n_ops + 1, 0);

    begins[0] = 1;
    for (uint32_t i = 0; i < k->n_ops; i++) {
        if (k->ops[i].kind == OP_BRANCH)
            begins[k->ops[i].target] = 1;
        if (k->ops[i].kind == OP_BRANCH || k->ops[i].kind == OP_EXIT)
            begins[i + 1] = 1;
    }
    f->first = words(k->n_ops + 1, k->n_ops);
    f->of = words(k->n_ops + 1, 0);
    for (uint32_t i = 0; i < k->n_ops; i++) {
        if (begins[i])
            f->first[f->n++] = i;
        f->of[i] = f->n - 1;
    }
    f->of[k->n_ops] = f->n;
    f->first[f->n] = k->n_ops;
    free(begins);
}

static void find_edges(struct flow *f) {
    f->next = malloc((f->n + 1) * sizeof(*f->next));
    f->n_before = words(f->n + 1, 0);
    f->before_at = words(f->n + 2, 0);
    f->before = words(2 * (f->n + 1), 0);
    for (uint32_t b = 0; b < f->n; b++) {
        const struct op *last = &f->k->ops[f->first[b + 1] - 1];
        bool stays = (last->kind != OP_BRANCH && last->kind != OP_EXIT) || last->guard >= 0;

        f->next[b][0] = last->kind == OP_BRANCH ? f->of[last->target]
                        : last->kind == OP_EXIT ? f->n
                                                : b + 1;
        f->next[b][1] = stays ? b + 1 : NONE;
        if (f->next[b][1] == f->next[b][0])
            f->next[b][1] = NONE;
        for (int i = 0; i < 2; i++)
            if (f->next[b][i] != NONE)
                f->n_before[f->next[b][i]]++;
    }
    for (uint32_t b = 0; b <= f->n; b++)
        f->before_at[b + 1] = f->before_at[b] + f->n_before[b];
    uint32_t *at = words(f->n + 1, 0);
    for (uint32_t b = 0; b <= f->n; b++)
        at[b] = f->before_at[b];
    for (uint32_t b = 0; b < f->n; b++)
        for (int i = 0; i < 2; i++)
            if (f->next[b][i] != NONE)
                f->before[at[f->next[b][i]]++] = b;
    free(at);
}

/* Depth-first search from the exit, against the edges. */
static void number_blocks(struct flow *f) {
    uint32_t *stack = words(f->n + 1, 0), *at = words(f->n + 1, 0), n = 1;
    uint32_t *seen = words(f->n + 1, 0);

    f->order = words(f->n + 1, 0);
    f->number = words(f->n + 1, NONE);
    stack[0] = f->n;
    seen[f->n] = 1;
    while (n) {
        uint32_t b = stack[n - 1];

        if (at[b] == f->n_before[b]) {
            f->number[b] = f->n_order;
            f->order[f->n_order++] = b;
            n--;
            continue;
        }
        uint32_t p = f->before[f->before_at[b] + at[b]++];
        if (!seen[p]) {
            seen[p] = 1;
            stack[n++] = p;
        }
    }
    free(stack);
    free(at);
    free(seen);
}

static uint32_t common(const struct flow *f, uint32_t a, uint32_t b) {
    while (a != b) {
        while (f->number[a] < f->number[b])
            a = f->dominator[a];
        while (f->number[b] < f->number[a])
            b = f->dominator[b];
    }
    return a;
}

static void find_dominators(struct flow *f) {
    bool changed;

    f->dominator = words(f->n + 1, NONE);
    f->dominator[f->n] = f->n;
    do {
        changed = false;
        for (uint32_t i = f->n_order; i-- > 0;) {
            uint32_t b = f->order[i], d = NONE;

            if (b == f->n)
                continue;
            for (int j = 0; j < 2; j++) {
                uint32_t s = f->next[b][j];

                if (s != NONE && f->dominator[s] != NONE)
                    d = d == NONE ? s : common(f, d, s);
            }
            changed |= d != f->dominator[b];
            f->dominator[b] = d;
        }
    } while (changed);
}

void find_joins(struct ptx_kernel *k) {
    struct flow f = {.k = k};

    find_blocks(&f);
    find_edges(&f);
    number_blocks(&f);
    find_dominators(&f);
    for (uint32_t i = 0; i < k->n_ops; i++) {
        uint32_t d = f.dominator[f.of[i]];

        k->ops[i].rejoin = d == NONE || d == f.n ? k->n_ops : f.first[d];
    }
    free(f.first);
    free(f.of);
    free(f.next);
    free(f.n_before);
    free(f.before_at);
    free(f.before);
    free(f.order);
    free(f.number);
    free(f.dominator);
}
