/*
 * Every sequence of operations on a tiny pool, of any length, compared with the naive model.
 *
 * A tiny pool has finitely many states. The search is breadth first: from each state that is found,
 * every possible operation is performed and checked, until no new state appears. Two states are the
 * same if they differ only in the numbers of pages and in the order of the sequences: everything
 * that can follow one of them was or will be tried from the other. The order of the idle pages and
 * the model's own order of eviction are part of a state; the counters are not.
 *
 * A state is stored as the operations that lead to it. To try all operations from it, the bytes of
 * the pager and the model are saved and restored: they are allocated once and never move.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvpager/private.h"
#include "model.h"
#include "tests/support/few.h"

enum { DEPTH_MAX = 48, SEQS = 3, CONTENTS = 3, MAX_OPS = 40, BLOCKS = 8, SAVED = 16384 };

enum kind { NEW, FREE, ATTACH, GROW, COMMIT, TRUNCATE, DROP };

struct op {
    enum kind kind;
    uint8_t seq, arg, share;
};

struct path {
    /* indices into list_ops() */
    uint8_t op[DEPTH_MAX];
};

struct search {
    struct model m;
    struct {
        void *data;
        size_t size;
    } block[BLOCKS];
    uint8_t start[SAVED], state[SAVED];
    /* states of this depth, and of the next */
    struct path *level[2];
    uint32_t n[2], cap[2];
    /* hash set of states; 0: free */
    uint64_t *seen;
    uint32_t seen_cap, n_seen;
    uint64_t n_tried;
};

/* Writes the tokens of sequences, page by page: the second page of 0 and 2 is equal after different
 * first pages, and pages differ in their last token. */
static void content(const struct model *m, uint32_t which, int32_t *token) {
    static const uint8_t page[CONTENTS][4] = {{0, 0, 0, 0}, {0, 1, 0, 0}, {1, 0, 0, 0}};
    uint32_t t = m->opts.page_tokens;

    for (uint32_t i = 0; i < MODEL_MAX_TOKENS; i++)
        token[i] = i % t == t - 1 ? page[which][MIN(i / t, 3)] : 0;
}

static void put(struct op *op, uint32_t *n, enum kind kind, uint32_t seq, uint32_t arg) {
    for (uint32_t i = 0; i < *n; i++)
        if (op[i].kind == kind && op[i].seq == seq && op[i].arg == arg)
            return;
    op[(*n)++] = (struct op){kind, (uint8_t)seq, (uint8_t)arg, 0};
}

static void list_seq_ops(const struct model *m, uint32_t i, struct op *op, uint32_t *n) {
    const struct model_seq *s = &m->seq[i];
    uint32_t t = m->opts.page_tokens, max = m->opts.max_seq_tokens;
    uint32_t room = MIN(s->n_pages * t, max);

    put(op, n, FREE, i, 0);
    if (s->n_pages * t == s->n_committed) {
        put(op, n, ATTACH, i, t);
        put(op, n, ATTACH, i, max - 1); /* of a prompt, without its last token */
        put(op, n, ATTACH, i, max);
    }
    if (room < max) {
        put(op, n, GROW, i, MIN(room + t, max));
        put(op, n, GROW, i, max);
    }
    if (s->n_committed < room) {
        put(op, n, COMMIT, i, s->n_committed + 1);
        put(op, n, COMMIT, i, room);
    }
    if (s->n_pages > 0) {
        put(op, n, TRUNCATE, i, 0);
        put(op, n, TRUNCATE, i, s->n_committed);
        if (s->n_committed > 0 && m->opts.n_windows == 0)
            put(op, n, TRUNCATE, i, (s->n_committed - 1) / t * t);
    }
}

/* Lists the operations that are possible. A new sequence takes the first free place, since all
 * places are alike. */
static uint32_t list_ops(const struct model *m, struct op *op) {
    uint32_t n = 0, place = SEQS;

    for (uint32_t i = SEQS; i-- > 0;)
        if (m->seq[i].real)
            list_seq_ops(m, i, op, &n);
        else
            place = i;
    for (uint32_t c = 0; place < SEQS && c < CONTENTS; c++)
        put(op, &n, NEW, place, c);
    if (place < SEQS)
        op[n++] = (struct op){NEW, (uint8_t)place, 0, 1};
    put(op, &n, DROP, 0, 0);
    cr_assert_leq(n, MAX_OPS);
    return n;
}

static void apply(struct model *m, const struct op *op) {
    int32_t token[MODEL_MAX_TOKENS];

    switch (op->kind) {
    case NEW:
        content(m, op->arg, token);
        model_new(m, op->seq, op->share, token);
        break;
    case FREE:
        model_free(m, op->seq);
        break;
    case ATTACH:
        model_attach(m, op->seq, op->arg);
        break;
    case GROW:
        model_grow(m, op->seq, op->arg);
        break;
    case COMMIT:
        model_commit(m, op->seq, op->arg);
        break;
    case TRUNCATE:
        model_truncate(m, op->seq, op->arg);
        break;
    case DROP:
        model_drop_cached(m);
        break;
    }
}

/* Checks the result of every lookup. */
static void check_lookups(struct model *m) {
    int32_t token[MODEL_MAX_TOKENS];

    for (uint32_t c = 0; c < CONTENTS; c++) {
        content(m, c, token);
        for (uint8_t share = 0; share < 2; share++)
            model_match(m, share, token, m->opts.max_seq_tokens);
    }
}

/* The key of a state. */

static uint64_t mix(uint64_t h, uint64_t v) {
    struct rng r = {h ^ v * 0xD6E8FEB86659FD93u};

    return rng_next(&r);
}

static uint64_t mix_tokens(uint64_t h, const int32_t *token, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        h = mix(h, (uint32_t)token[i]);
    return h;
}

struct names {
    /* number of a page, from 1; 0: not numbered yet */
    uint8_t of[MODEL_MAX_PAGES];
    kv_page page[MODEL_MAX_PAGES];
    uint32_t n;
};

static uint32_t name(struct names *x, kv_page page) {
    if (x->of[page] == 0) {
        x->page[x->n] = page;
        x->of[page] = (uint8_t)++x->n;
    }
    return x->of[page];
}

static uint64_t key_of_seq(const struct model_seq *s, struct names *x) {
    const struct kv_seq *q = s->real;

    if (!q)
        return 1;
    uint64_t h = mix_tokens(mix(2, s->share), s->token, MODEL_MAX_TOKENS);
    h = mix(mix(h, s->n_pages), s->n_committed);
    h = mix(mix(mix(h, q->n_pages), q->n_published), q->n_committed);
    if (q->pager->opts.n_windows > 0)
        h = mix(mix(h, q->n_behind), q->n_found);
    for (uint32_t i = 0; i < q->n_pages; i++)
        h = mix(h, name(x, q->page[i]));
    return h;
}

static uint64_t key_of_page(const struct kv_pager *p, const struct names *x, kv_page number) {
    const struct page *page = &p->pool.page[number];
    uint64_t h = mix(page->state, page->refs);

    if (page->window != NO_PAGE)
        h = mix(h, 1 + p->windows.at[page->window].refs);
    if (page->state == PAGE_OWNED)
        return h;
    h = mix(mix(h, page->n_children), page->parent == NO_PAGE ? 0 : x->of[page->parent]);
    return mix_tokens(mix(h, page->isolation.key[15]), pool_tokens(&p->pool, page),
                      p->opts.page_tokens);
}

/* Adds the idle window pages in their order. */
static uint64_t key_of_windows(uint64_t h, const struct names *x, const struct list *idle) {
    for (const struct list *l = idle->next; l != idle; l = l->next)
        h = mix(h, x->of[LIST_ENTRY(l, const struct window_page, link)->page]);
    return mix(h, 3);
}

/* Returns the key of the state with the sequences in the order @order. */
static uint64_t key_in_order(const struct model *m, const uint8_t *order) {
    const struct kv_pager *p = m->pager;
    struct names x = {0};
    uint64_t h = 0;

    for (uint32_t i = 0; i < SEQS; i++)
        h = mix(h, key_of_seq(&m->seq[order[i]], &x));
    for (const struct list *l = p->evict.idle.next; l != &p->evict.idle; l = l->next)
        name(&x, pool_number(&p->pool, LIST_ENTRY(l, struct page, link)));
    for (uint32_t i = 0; i < x.n; i++)
        h = mix(h, key_of_page(p, &x, x.page[i]));
    h = key_of_windows(h, &x, &p->windows.passed);
    return key_of_windows(h, &x, &p->windows.ended);
}

/* Adds the model's published prefixes and the order in which they were given back. */
static uint64_t key_of_entries(const struct model *m) {
    uint64_t sum = 0;

    for (uint32_t i = 0; i < m->n_entries; i++) {
        const struct model_entry *e = &m->entry[i];
        uint64_t rank = 0;

        for (uint32_t j = 0; j < m->n_entries; j++)
            rank += m->entry[j].given_back < e->given_back;
        sum += mix_tokens(mix(mix(e->share, e->n), rank), e->token, e->n);
    }
    return sum;
}

static uint64_t key_of(const struct model *m) {
    static const uint8_t order[6][SEQS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                           {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < ARRAY_SIZE(order); i++) {
        uint64_t h = key_in_order(m, order[i]);

        least = MIN(least, h);
    }
    least = mix(least, key_of_entries(m));
    return least ? least : 1;
}

/* The search. */

static void save(const struct search *x, uint8_t *to) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        memcpy(to, x->block[i].data, x->block[i].size);
        to += x->block[i].size;
    }
}

static void restore(const struct search *x, const uint8_t *from) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        memcpy(x->block[i].data, from, x->block[i].size);
        from += x->block[i].size;
    }
}

static void search_init(struct search *x, const struct kv_opts *o) {
    size_t size = 0;

    memset(x, 0, sizeof(*x));
    model_init(&x->m, o);
    struct kv_pager *p = x->m.pager;
    x->block[0].data = &x->m, x->block[0].size = sizeof(x->m);
    x->block[1].data = p, x->block[1].size = sizeof(*p);
    x->block[2].data = p->pool.page, x->block[2].size = o->n_pages * sizeof(*p->pool.page);
    x->block[3].data = p->pool.tokens;
    x->block[3].size = (size_t)o->n_pages * o->page_tokens * sizeof(*p->pool.tokens);
    x->block[4].data = p->prefix.bucket;
    x->block[4].size = p->prefix.n_buckets * sizeof(*p->prefix.bucket);
    x->block[5].data = p->seq, x->block[5].size = o->max_seqs * sizeof(*p->seq);
    x->block[6].data = p->tables;
    x->block[6].size = (size_t)o->max_seqs * p->max_seq_pages * sizeof(*p->tables);
    x->block[7].data = p->windows.at, x->block[7].size = o->n_windows * sizeof(*p->windows.at);
    for (uint32_t i = 0; i < BLOCKS; i++)
        size += x->block[i].size;
    cr_assert_leq(size, SAVED);
    save(x, x->start);
    x->seen_cap = 1u << 24;
    x->seen = calloc(x->seen_cap, sizeof(*x->seen));
    cr_assert(x->seen);
}

static void search_deinit(struct search *x) {
    restore(x, x->start);
    model_deinit(&x->m);
    free(x->level[0]);
    free(x->level[1]);
    free(x->seen);
}

/* Adds a state. Returns false if it is known already. */
static bool remember(struct search *x, uint64_t key) {
    uint32_t i = (uint32_t)(key >> 20) & (x->seen_cap - 1);

    while (x->seen[i] != 0) {
        if (x->seen[i] == key)
            return false;
        i = (i + 1) & (x->seen_cap - 1);
    }
    x->seen[i] = key;
    cr_assert_lt(++x->n_seen, x->seen_cap / 2);
    return true;
}

static void push(struct search *x, const struct path *path) {
    if (x->n[1] == x->cap[1]) {
        x->cap[1] = x->cap[1] ? 2 * x->cap[1] : 1024;
        x->level[1] = reallocarray(x->level[1], x->cap[1], sizeof(*path));
        cr_assert(x->level[1]);
    }
    x->level[1][x->n[1]++] = *path;
}

/* Performs every operation from the state that @path leads to. */
static void expand(struct search *x, const struct path *path, uint32_t depth) {
    struct op op[MAX_OPS];
    struct path longer = *path;

    restore(x, x->start);
    for (uint32_t i = 0; i < depth; i++) {
        list_ops(&x->m, op);
        apply(&x->m, &op[path->op[i]]);
    }
    uint32_t n = list_ops(&x->m, op);
    save(x, x->state);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            restore(x, x->state);
        apply(&x->m, &op[i]);
        model_check(&x->m, false);
        check_lookups(&x->m);
        x->n_tried++;
        longer.op[depth] = (uint8_t)i;
        if (remember(x, key_of(&x->m)))
            push(x, &longer);
    }
}

static void next_level(struct search *x) {
    struct path *level = x->level[0];
    uint32_t cap = x->cap[0];

    x->level[0] = x->level[1], x->cap[0] = x->cap[1], x->n[0] = x->n[1];
    x->level[1] = level, x->cap[1] = cap, x->n[1] = 0;
}

static void search(const struct kv_opts *o) {
    static struct search x;
    struct path empty = {{0}};
    uint32_t depth = 0;

    search_init(&x, o);
    push(&x, &empty);
    for (next_level(&x); x.n[0] > 0 && x.n_seen <= FEWER(1u << 31, 10000u);
         next_level(&x), depth++) {
        cr_assert_lt(depth, DEPTH_MAX);
        for (uint32_t i = 0; i < x.n[0]; i++)
            expand(&x, &x.level[0][i], depth);
    }
    printf("# %u pages of %u tokens: %u states up to %u operations away, %llu operations tried\n",
           o->n_pages, o->page_tokens, x.n_seen, depth, (unsigned long long)x.n_tried);
    cr_assert_gt(x.n_seen, 10000);
    search_deinit(&x);
}

#ifndef __SANITIZE_ADDRESS__ /* the other cases run the same code */
Test(kv_pager, every_reachable_state_agrees_with_the_naive_model) {
    const struct kv_opts o = {
        .n_pages = 4, .page_tokens = 2, .max_seqs = SEQS, .max_seq_tokens = 6, .hash_seed = 1};

    search(&o);
}
#endif

/* A row reads three keys, in pages of two. */
Test(kv_pager, every_reachable_state_agrees_with_windows) {
    const struct kv_opts o = {.n_pages = 3,
                              .page_tokens = 2,
                              .max_seqs = 2,
                              .max_seq_tokens = 6,
                              .n_windows = 2,
                              .window = 3,
                              .hash_seed = 1};

    search(&o);
}

/* Sequences one token longer than their pages, one sequence fewer, all hashes alike. */
Test(kv_pager, every_reachable_state_agrees_when_hashes_collide) {
    const struct kv_opts o = {.n_pages = 4,
                              .page_tokens = 2,
                              .max_seqs = 2,
                              .max_seq_tokens = 7,
                              .hash_seed = 1,
                              .hash_bits = 1};

    search(&o);
}
