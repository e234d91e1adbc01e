/*
 * The blocks that a reader of kv_pager_next_change() knows after random operations, with any number
 * of reads in between, compared with the published pages.
 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "kvpager/private.h"

#define N_PAGES 48
#define T 4
#define N_SEQS 6
#define MAX_TOKENS 40

/* A block that the reader knows, the one before it, and its tokens. */
struct known {
    uint64_t block, parent;
    int32_t tokens[T];
};

static struct known known[N_PAGES + 1];
static uint32_t n_known;
static uint64_t ends[N_PAGES + 1]; /* blocks behind which a sequence can continue */
static uint32_t n_ends;

static struct known *find(uint64_t block) {
    for (uint32_t i = 0; i < n_known; i++)
        if (known[i].block == block)
            return &known[i];
    return NULL;
}

/* Applies one change, as a router does. */
static bool read_one(struct kv_pager *p) {
    struct kv_change c;

    if (!kv_pager_next_change(p, false, &c))
        return false;
    struct known *k = find(c.block);
    cr_assert(c.block != 0);
    if (!c.tokens) {
        cr_assert(k, "gone, but never told");
        *k = known[--n_known];
        return true;
    }
    cr_assert(!k, "told twice");
    cr_assert(c.parent == 0 || find(c.parent), "told before its parent");
    cr_assert(n_known < N_PAGES, "more than there are pages");
    known[n_known] = (struct known){.block = c.block, .parent = c.parent};
    memcpy(known[n_known++].tokens, c.tokens, sizeof(known[0].tokens));
    return true;
}

/* Applies all changes of snapshots and windows, after the other changes. */
static void read_ends(struct kv_pager *p) {
    struct kv_change c;

    while (kv_pager_next_change(p, true, &c)) {
        uint32_t i = 0;

        while (i < n_ends && ends[i] != c.block)
            i++;
        cr_assert((i == n_ends) == (c.tokens != NULL), "gone without having been told, or twice");
        cr_assert(n_ends < N_PAGES && (!c.tokens || find(c.block)));
        if (c.tokens)
            ends[n_ends++] = c.block;
        else
            ends[i] = ends[--n_ends];
    }
}

static void compare_ends(const struct kv_pager *p) {
    uint32_t n = 0;

    for (kv_page i = 0; i < N_PAGES; i++) {
        const struct page *page = &p->pool.page[i];
        bool can = page->snapshot != KV_NO_SNAPSHOT || page->window != NO_PAGE, told = false;

        if (page->state != PAGE_SHARED && page->state != PAGE_CACHED)
            continue;
        for (uint32_t k = 0; k < n_ends; k++)
            told |= ends[k] == page->key.low64;
        cr_assert_eq(can, told);
        n += can;
    }
    cr_assert_eq(n, n_ends);
}

static void compare(struct kv_pager *p) {
    uint32_t n = 0;

    for (kv_page i = 0; i < N_PAGES; i++) {
        const struct page *page = &p->pool.page[i];

        if (page->state != PAGE_SHARED && page->state != PAGE_CACHED)
            continue;
        const struct known *k = find(page->key.low64);
        cr_assert(k, "a published page that the reader does not know");
        cr_assert(k->parent ==
                  (page->parent == NO_PAGE ? 0 : p->pool.page[page->parent].key.low64));
        cr_assert(memcmp(k->tokens, pool_tokens(&p->pool, page), sizeof(k->tokens)) == 0);
        n++;
    }
    cr_assert_eq(n, n_known, "%u pages, the reader knows %u", n, n_known);
}

enum { PLAIN, WINDOWS, STATES };

static struct kv_pager *make(int kind) {
    struct kv_opts o = {.n_pages = N_PAGES, .page_tokens = T, .max_seqs = N_SEQS, .watch = true};
    struct kv_pager *p = NULL;

    o.max_seq_tokens = MAX_TOKENS;
    o.window = kind == WINDOWS ? T : 0;
    o.n_windows = kind == WINDOWS ? N_SEQS / 2 * 4 + MAX_TOKENS / T : 0;
    o.n_states = kind == STATES ? N_SEQS : 0;
    o.n_snapshots = kind == STATES ? 7 : 0;
    n_known = n_ends = 0;
    cr_assert(kv_pager_new(&p, &o) == 0);
    return p;
}

/* Runs a sequence over @tokens, as far as there are pages. Returns NULL if there were none. */
static struct kv_seq *run(struct kv_pager *p, const struct kv_isolation *who, const int32_t *tokens,
                          uint32_t n) {
    struct kv_seq *s = NULL;

    cr_assert(kv_seq_new(&s, p, who) == 0);
    kv_seq_attach(s, tokens, n - 1);
    if (kv_seq_grow(s, n) == KV_FULL)
        return kv_seq_free(s);
    kv_seq_commit(s, tokens, n);
    if (p->opts.n_snapshots && n % T == 0) {
        uint32_t snapshot = kv_snapshot_acquire(p, s);

        if (snapshot != KV_NO_SNAPSHOT)
            kv_seq_attach_snapshot(s, snapshot, n % 2);
    }
    return s;
}

Test(kvpager_watch, a_reader_knows_what_is_published_however_seldom_it_reads) {
    for (uint32_t seed = 0; seed < 90; seed++) {
        struct kv_pager *p = make((int)seed % 3);
        uint32_t n_seqs = p->opts.n_windows ? N_SEQS / 2 : N_SEQS;
        struct kv_seq *seq[N_SEQS] = {0};
        struct kv_isolation who[2] = {{{1}}, {{2}}};

        srand(seed);
        for (uint32_t step = 0; step < 400; step++) {
            uint32_t i = (uint32_t)rand() % n_seqs, n = 1 + (uint32_t)rand() % MAX_TOKENS;
            int32_t tokens[MAX_TOKENS];

            for (uint32_t k = 0; k < n; k++) /* few different tokens, so that prefixes are shared */
                tokens[k] = rand() % (k % T == 0 ? 3 : 1);
            seq[i] = kv_seq_free(seq[i]);
            if (rand() % 4)
                seq[i] = run(p, &who[rand() % 2], tokens, n);
            if (rand() % 50 == 0)
                kv_pager_drop_cached(p);
            for (uint32_t k = (uint32_t)rand() % (seed % 6 + 1); k > 0; k--)
                read_one(p);
            if (rand() % 20 == 0) {
                while (read_one(p))
                    ;
                compare(p);
                read_ends(p);
                compare_ends(p);
            }
            kv_pager_check(p);
        }
        for (uint32_t i = 0; i < N_SEQS; i++)
            seq[i] = kv_seq_free(seq[i]);
        kv_pager_drop_cached(p);
        while (read_one(p))
            ;
        read_ends(p);
        cr_assert(n_known == 0 && n_ends == 0);
        kv_pager_free(p);
    }
}

Test(kvpager_watch, what_came_and_went_between_two_reads_is_not_told) {
    struct kv_pager *p = make(PLAIN);
    struct kv_isolation who = {{0}};
    int32_t tokens[T * 2] = {1, 2, 3, 4, 5, 6, 7, 8};

    kv_seq_free(run(p, &who, tokens, T * 2));
    kv_pager_drop_cached(p);
    cr_assert_not(read_one(p));
    kv_seq_free(run(p, &who, tokens, T * 2));
    cr_assert(read_one(p) && read_one(p) && !read_one(p));
    uint64_t first = known[0].block;
    kv_pager_drop_cached(p); /* publishes the same pages again: the net change is none */
    kv_seq_free(run(p, &who, tokens, T));
    while (read_one(p))
        ;
    cr_assert(n_known == 1 && known[0].block == first, "the same content has the same name");
    kv_pager_free(p);
}

Test(kvpager_watch, rows_of_a_picture_before_a_page_are_counted) {
    struct kv_pager *p = make(PLAIN);
    struct kv_isolation who = {{3}};
    int32_t tokens[T * 4] = {1, 2, -5, -5, -5, -5, -5, -5, -5, 7, -5, -5, -5, -6, 8, 9};
    const uint32_t before[] = {0, 2, 6, 2};
    struct kv_change c;

    struct kv_seq *s = run(p, &who, tokens, T * 4);
    for (uint32_t i = 0; i < ARRAY_SIZE(before); i++) {
        cr_assert(kv_pager_next_change(p, false, &c));
        cr_expect_eq(c.n_before, before[i], "page %u: %u", i, c.n_before);
        cr_expect(memcmp(c.isolation, &who, sizeof(who)) == 0);
    }
    kv_seq_free(s);
    kv_pager_free(p);
}
