#include "model.h"

#include <stdio.h>
#include <string.h>

#define EXPECT(a, b)                                                                               \
    do {                                                                                           \
        uint64_t a_ = (a), b_ = (b);                                                               \
        if (a_ != b_) {                                                                            \
            fprintf(stderr, "%s:%d: %s is %llu, the model says %llu\n", __func__, __LINE__, #a,    \
                    (unsigned long long)a_, (unsigned long long)b_);                               \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static struct kv_isolation share_of(uint8_t n) {
    struct kv_isolation s = {{0}};

    s.key[15] = n;
    return s;
}

void model_init(struct model *m, const struct kv_opts *opts) {
    memset(m, 0, sizeof(*m));
    m->opts = *opts;
    EXPECT(opts->n_pages <= MODEL_MAX_PAGES && opts->max_seqs <= MODEL_MAX_SEQS, true);
    EXPECT(opts->n_windows <= MODEL_MAX_PAGES, true);
    EXPECT(opts->max_seq_tokens <= MODEL_MAX_TOKENS, true);
    memset(m->shadow, 0xEE, sizeof(m->shadow));
    EXPECT(kv_pager_new(&m->pager, opts), 0);
}

void model_deinit(struct model *m) {
    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++)
        kv_seq_free(m->seq[i].real);
    kv_pager_free(m->pager);
}

/* The naive model. */

static bool starts_with(const int32_t *a, const int32_t *b, uint32_t n) {
    return memcmp(a, b, n * sizeof(*a)) == 0;
}

static uint32_t holders_of(const struct model *m, const struct model_entry *e, bool all) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++) {
        const struct model_seq *s = &m->seq[i];

        n += s->real && (all || !s->pinned) && s->share == e->share && s->n_committed >= e->n &&
             starts_with(s->token, e->token, e->n);
    }
    return n;
}

static uint32_t holders(const struct model *m, const struct model_entry *e) {
    return holders_of(m, e, true);
}

/* Pages that only pinned sequences hold. */
static uint32_t n_pinned(const struct model *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_entries; i++)
        n += holders(m, &m->entry[i]) > 0 && holders_of(m, &m->entry[i], false) == 0;
    return n;
}

static const struct model_entry *find(const struct model *m, uint8_t share, const int32_t *token,
                                      uint32_t n) {
    for (uint32_t i = 0; i < m->n_entries; i++) {
        const struct model_entry *e = &m->entry[i];

        if (e->n == n && e->share == share && starts_with(e->token, token, n))
            return e;
    }
    return NULL;
}

static uint32_t n_owned(const struct model *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++)
        n += m->seq[i].n_pages - m->seq[i].n_committed / m->opts.page_tokens;
    return n;
}

static uint32_t n_free(const struct model *m) {
    return m->opts.n_pages - m->n_entries - n_owned(m);
}

static uint32_t n_cached(const struct model *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_entries; i++)
        n += holders(m, &m->entry[i]) == 0;
    return n;
}

uint32_t model_available(const struct model *m) {
    return n_free(m) + n_cached(m);
}

static bool is_leaf(const struct model *m, const struct model_entry *e) {
    for (uint32_t i = 0; i < m->n_entries; i++) {
        const struct model_entry *c = &m->entry[i];

        if (c->n > e->n && c->share == e->share && starts_with(c->token, e->token, e->n))
            return false;
    }
    return true;
}

/* Windows. */

/* Returns the number of pages all of whose keys are too far away for a row at position @n. */
static uint32_t n_passed(const struct model *m, uint32_t n) {
    uint32_t t = m->opts.page_tokens, i = 0;

    while (m->opts.n_windows > 0 && (i + 1) * t - 1 < n && n - ((i + 1) * t - 1) >= m->opts.window)
        i++;
    return i;
}

static uint32_t readers(const struct model *m, const struct model_entry *e) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++) {
        const struct model_seq *s = &m->seq[i];

        n += s->real && !s->pinned && s->share == e->share && s->n_committed >= e->n &&
             e->n / m->opts.page_tokens > s->n_behind && starts_with(s->token, e->token, e->n);
    }
    return n;
}

/* Ends the hold of a reader of the page of @s that ends at @end. */
static void let_go(struct model *m, const struct model_seq *s, uint32_t end, bool ended) {
    struct model_entry *e = (struct model_entry *)find(m, s->share, s->token, end);

    if (m->opts.n_windows == 0)
        return;
    EXPECT(e && e->window, true);
    if (readers(m, e) > 0)
        return;
    e->ended = ended;
    e->idle_since = ++m->now;
}

static void pass(struct model *m, struct model_seq *s, uint32_t n_pages) {
    uint32_t t = m->opts.page_tokens, to = n_passed(m, s->n_committed / t * t);

    while (s->n_behind < to) {
        uint32_t i = s->n_behind++;

        bool found = i < s->n_found / t && i >= n_passed(m, s->n_found);
        bool wanted = i < s->n_wanted / t && i + 2 >= n_passed(m, s->n_wanted);

        if (i < n_pages)
            let_go(m, s, (i + 1) * t, found || wanted);
    }
}

static uint32_t n_idle_windows(const struct model *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_entries; i++)
        n += m->entry[i].window && readers(m, &m->entry[i]) == 0;
    return n;
}

static uint32_t n_free_windows(const struct model *m) {
    uint32_t n = m->opts.n_windows;

    for (uint32_t i = 0; i < m->n_entries; i++)
        n -= m->entry[i].window;
    return m->opts.n_windows ? n - n_owned(m) : 0;
}

static bool goes_before(const struct model_entry *a, const struct model_entry *b) {
    return a->ended != b->ended ? b->ended : a->idle_since < b->idle_since;
}

static void evict_window(struct model *m) {
    struct model_entry *best = NULL;

    for (uint32_t i = 0; i < m->n_entries; i++)
        if (m->entry[i].window && readers(m, &m->entry[i]) == 0 &&
            (!best || goes_before(&m->entry[i], best)))
            best = &m->entry[i];
    EXPECT(best != NULL, true);
    best->window = false;
    m->count.n_windows_evicted++;
}

/* Returns true if a sequence can continue behind the first @n of @token: the keys that it reads
 * exist. */
static bool suffices(const struct model *m, uint8_t share, const int32_t *token, uint32_t n) {
    uint32_t t = m->opts.page_tokens;

    for (uint32_t i = n_passed(m, n); m->opts.n_windows > 0 && i < n / t; i++)
        if (!find(m, share, token, (i + 1) * t)->window)
            return false;
    return true;
}

static void evict(struct model *m) {
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < m->n_entries; i++)
        if (holders(m, &m->entry[i]) == 0 && is_leaf(m, &m->entry[i]) &&
            (best == UINT32_MAX || m->entry[i].given_back < m->entry[best].given_back))
            best = i;
    EXPECT(best != UINT32_MAX, true);
    m->entry[best] = m->entry[--m->n_entries];
    m->count.n_evicted++;
}

/* Sets the committed length of the sequence to @n; pages that no other sequence holds are given
 * back, the longest prefix first. */
static void shorten(struct model *m, struct model_seq *s, uint32_t n) {
    uint32_t t = m->opts.page_tokens;

    for (uint32_t end = s->n_committed / t * t; end > n; end -= t) {
        struct model_entry *e = (struct model_entry *)find(m, s->share, s->token, end);

        EXPECT(e != NULL, true);
        s->n_committed = end - 1;
        if (end / t > s->n_behind)
            let_go(m, s, end, true);
        if (holders(m, e) == 0)
            e->given_back = ++m->now;
    }
    s->n_committed = MIN(s->n_committed, n);
    s->n_behind = MIN(s->n_behind, n_passed(m, s->n_committed / t * t));
}

/* Operations on pager and model. */

/* Returns the number of sequences that are not pinned. If there are state slots, each of them has
 * one, and no other sequence has. */
static uint32_t n_computed(const struct model *m) {
    bool taken[MODEL_MAX_SEQS] = {false};
    uint32_t n = 0;

    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++) {
        if (!m->seq[i].real || m->seq[i].pinned)
            continue;
        n++;
        if (m->opts.n_states == 0)
            continue;
        uint32_t slot = kv_seq_state(m->seq[i].real);
        EXPECT(slot < m->opts.n_states && !taken[slot], true);
        taken[slot] = true;
    }
    return n;
}

bool model_new(struct model *m, uint32_t seq, uint8_t share, const int32_t *token) {
    struct model_seq *s = &m->seq[seq];
    struct kv_isolation key = share_of(share);
    struct kv_seq *made = NULL;
    int r = kv_seq_new(&made, m->pager, &key);

    if (m->count.n_seqs == m->opts.max_seqs ||
        (m->opts.n_states > 0 && n_computed(m) == m->opts.n_states)) {
        EXPECT(r < 0, true);
        return false;
    }
    EXPECT(r, 0);
    s->real = made;
    s->share = share;
    s->n_committed = s->n_pages = s->n_behind = s->n_found = s->n_wanted = 0;
    s->pinned = false;
    memcpy(s->token, token, sizeof(s->token));
    m->count.n_seqs++;
    return true;
}

void model_want(struct model *m, uint32_t seq, uint32_t n_tokens) {
    m->seq[seq].n_wanted = n_tokens;
    kv_seq_want(m->seq[seq].real, n_tokens);
}

void model_free(struct model *m, uint32_t seq) {
    struct model_seq *s = &m->seq[seq];

    shorten(m, s, 0);
    s->n_pages = s->passing = 0;
    s->real = kv_seq_free(s->real);
    m->count.n_seqs--;
}

void model_attach(struct model *m, uint32_t seq, uint32_t n_tokens) {
    struct model_seq *s = &m->seq[seq];
    uint32_t t = m->opts.page_tokens, before = s->n_committed, n = before, n_pages = s->n_pages;

    while (n + t <= n_tokens && find(m, s->share, s->token, n + t)) {
        n += t;
        if (suffices(m, s->share, s->token, n)) {
            s->n_committed = n;
            s->n_pages = n / t;
        }
    }
    pass(m, s, n_pages);
    s->n_found = n > before ? n : s->n_found;
    if (before == 0) {
        m->count.n_lookup_tokens += n_tokens;
        m->count.n_missed_tokens += n - s->n_committed;
    }
    m->count.n_hit_tokens += s->n_committed - before;
    EXPECT(kv_seq_attach(s->real, s->token, n_tokens), s->n_committed);
}

/* Writes drafts and padding at every position that is not committed, as an engine does. */
static void write_drafts(struct model *m, const struct model_seq *s) {
    uint32_t t = m->opts.page_tokens, n;
    const kv_page *page = kv_seq_pages(s->real, &n);
    kv_page window[MODEL_MAX_TOKENS];

    for (uint32_t i = s->n_committed; i < n * t; i++)
        m->shadow[page[i / t]][i % t] = -1 - (int32_t)(s - m->seq);
    if (m->opts.n_windows == 0)
        return;
    kv_seq_windows(s->real, window);
    for (uint32_t i = s->n_committed; i < n * t; i++)
        m->window_shadow[window[i / t]][i % t] = -1 - (int32_t)(s - m->seq);
}

bool model_grow(struct model *m, uint32_t seq, uint32_t n_tokens) {
    struct model_seq *s = &m->seq[seq];
    uint32_t t = m->opts.page_tokens, pages = (n_tokens + t - 1) / t;
    uint32_t need = pages > s->n_pages ? pages - s->n_pages : 0;

    EXPECT(kv_seq_need(s->real, n_tokens), need);
    int r = kv_seq_grow(s->real, n_tokens);
    if (need > model_available(m) ||
        (m->opts.n_windows > 0 && need > n_free_windows(m) + n_idle_windows(m))) {
        EXPECT(r, KV_FULL);
        return false;
    }
    EXPECT(r, 0);
    for (; need > 0; need--) {
        if (n_free(m) == 0)
            evict(m);
        if (m->opts.n_windows > 0 && n_free_windows(m) == 0)
            evict_window(m);
        s->n_pages++;
    }
    write_drafts(m, s);
    return true;
}

void model_commit(struct model *m, uint32_t seq, uint32_t n_tokens) {
    struct model_seq *s = &m->seq[seq];
    uint32_t t = m->opts.page_tokens, n;
    const kv_page *page = kv_seq_pages(s->real, &n);
    kv_page window[MODEL_MAX_TOKENS];
    bool windows = m->opts.n_windows > 0;

    write_drafts(m, s);
    if (windows)
        kv_seq_windows(s->real, window);
    for (uint32_t i = s->n_committed; i < n_tokens; i++) {
        m->shadow[page[i / t]][i % t] = s->token[i];
        if (windows)
            m->window_shadow[window[i / t]][i % t] = s->token[i];
    }
    for (uint32_t end = s->n_committed / t * t + t; end <= n_tokens; end += t) {
        struct model_entry *e = (struct model_entry *)find(m, s->share, s->token, end);

        if (e) {
            m->count.n_deduplicated++;
            e->window = windows;
            continue;
        }
        e = &m->entry[m->n_entries++];
        *e = (struct model_entry){.share = s->share, .n = end, .window = windows};
        memcpy(e->token, s->token, end * sizeof(*e->token));
        m->count.n_published++;
    }
    s->n_committed = n_tokens;
    pass(m, s, s->n_pages);
    kv_seq_commit(s->real, s->token, n_tokens);
}

void model_truncate(struct model *m, uint32_t seq, uint32_t n_tokens) {
    struct model_seq *s = &m->seq[seq];
    uint32_t t = m->opts.page_tokens;

    shorten(m, s, n_tokens);
    s->n_pages = MIN(s->n_pages, (n_tokens + t - 1) / t);
    kv_seq_truncate(s->real, n_tokens);
    write_drafts(m, s);
}

void model_keep(struct model *m, uint32_t seq) {
    struct model_seq *s = &m->seq[seq];

    s->n_pages = s->n_committed / m->opts.page_tokens;
    s->n_committed = s->n_pages * m->opts.page_tokens;
    s->pinned = true;
    for (uint32_t i = s->n_pages; i > s->n_behind; i--)
        let_go(m, s, i * m->opts.page_tokens, true);
    s->n_behind = s->n_pages;
    s->passing = 0;
    kv_seq_pin(s->real);
}

/* Snapshot number @snapshot - 1 is free. */
static void clear_snapshot(struct model *m, uint32_t snapshot) {
    for (uint32_t i = 0; i < m->n_entries; i++)
        if (m->entry[i].snapshot == snapshot)
            m->entry[i].snapshot = 0;
}

/* Ends the passing of the snapshot, whichever sequence it belongs to. */
static void leave_snapshot(struct model *m, uint32_t snapshot) {
    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++)
        if (m->seq[i].passing == snapshot)
            m->seq[i].passing = 0;
}

static uint32_t n_snapshots(const struct model *m) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->n_entries; i++)
        n += m->entry[i].snapshot != 0;
    return n;
}

void model_put_snapshot(struct model *m, uint32_t seq, bool passes) {
    struct model_seq *s = &m->seq[seq];
    uint32_t n = n_snapshots(m), number = kv_snapshot_acquire(m->pager, s->real) + 1;
    struct model_entry *e = (struct model_entry *)find(m, s->share, s->token, s->n_committed);

    EXPECT(number != 0, m->opts.n_snapshots > 0);
    if (number == 0)
        return;
    EXPECT(number <= m->opts.n_snapshots, true);
    /* A snapshot that exists is replaced only if there is no room, and first the passing one of the
     * same sequence. */
    clear_snapshot(m, number);
    EXPECT(n_snapshots(m) < n, n == m->opts.n_snapshots);
    if (n == m->opts.n_snapshots && s->passing)
        EXPECT(number, s->passing);
    leave_snapshot(m, number);
    kv_seq_attach_snapshot(s->real, number - 1, passes);
    if (s->passing && s->passing != e->snapshot)
        clear_snapshot(m, s->passing);
    s->passing = 0;
    if (e->snapshot)
        return;
    e->snapshot = number;
    s->passing = passes ? number : 0;
    m->count.n_snapshots_made++;
}

void model_use_snapshot(struct model *m, uint32_t seq) {
    struct model_seq *s = &m->seq[seq];
    const struct model_entry *e =
        find(m, s->share, s->token, s->n_committed / m->opts.page_tokens * m->opts.page_tokens);

    EXPECT(kv_seq_snapshot(s->real) + 1, e ? e->snapshot : 0);
    if (!e || !e->snapshot)
        return;
    leave_snapshot(m, e->snapshot);
    m->count.n_snapshots_used++;
}

void model_drop_cached(struct model *m) {
    while (n_cached(m) > 0)
        evict(m);
    while (m->opts.n_windows > 0 && n_idle_windows(m) > 0)
        evict_window(m);
    kv_pager_drop_cached(m->pager);
}

void model_match(struct model *m, uint8_t share, const int32_t *token, uint32_t n_tokens) {
    struct kv_isolation key = share_of(share);
    struct kv_match got = kv_pager_match(m->pager, &key, token, n_tokens), want = {0}, use = {0};
    const struct model_entry *e;

    while (want.n_tokens + m->opts.page_tokens <= n_tokens &&
           (e = find(m, share, token, want.n_tokens + m->opts.page_tokens)) != NULL) {
        want.n_tokens = e->n;
        want.n_idle += holders(m, e) == 0;
        if (m->opts.n_snapshots > 0 ? e->snapshot != 0 : suffices(m, share, token, want.n_tokens))
            use = want;
    }
    EXPECT(got.n_tokens, use.n_tokens);
    EXPECT(got.n_idle, use.n_idle);
    EXPECT(got.n_found, want.n_tokens);

    /* Compares the pages themselves, from the middle on, at most four. */
    uint32_t t = m->opts.page_tokens, n = want.n_tokens / t, from = n / 2;
    kv_page page[4];
    EXPECT(kv_pager_find(m->pager, &key, token, n_tokens, from, page, 4), MIN(n - from, 4u));
    for (uint32_t i = from; i < MIN(n, from + 4); i++)
        for (uint32_t k = 0; k < t; k++)
            EXPECT(m->shadow[page[i - from]][k], token[i * t + k]);
}

/* Returns the number of pages that no other sequence holds: its own pages, and published ones of
 * which it is the only holder. */
static uint32_t n_exclusive(const struct model *m, const struct model_seq *s) {
    uint32_t t = m->opts.page_tokens, n = s->n_pages - s->n_committed / t;

    for (uint32_t end = t; end <= s->n_committed; end += t)
        n += holders(m, find(m, s->share, s->token, end)) == 1;
    return n;
}

/* Compares the window pages that the next row and drafts behind it read. */
static void check_windows(const struct model *m, const struct model_seq *s) {
    uint32_t t = m->opts.page_tokens, behind = n_passed(m, s->n_committed / t * t);
    kv_page window[MODEL_MAX_TOKENS];

    EXPECT(s->n_behind, behind);
    kv_seq_windows(s->real, window);
    for (uint32_t i = 0; i < s->n_pages * t; i++)
        if (i / t < behind)
            EXPECT(window[i / t], KV_NO_PAGE);
        else
            EXPECT(m->window_shadow[window[i / t]][i % t],
                   i < s->n_committed ? s->token[i] : -1 - (int32_t)(s - m->seq));
}

static void check_seq(const struct model *m, const struct model_seq *s) {
    uint32_t t = m->opts.page_tokens, n;
    const kv_page *page = kv_seq_pages(s->real, &n);

    EXPECT(n, s->n_pages);
    EXPECT(kv_seq_committed(s->real), s->n_committed);
    EXPECT(kv_seq_exclusive(s->real), n_exclusive(m, s));
    for (uint32_t i = 0; i < s->n_committed; i++)
        EXPECT(m->shadow[page[i / t]][i % t], s->token[i]);
    /* its own drafts: no other sequence wrote here */
    for (uint32_t i = s->n_committed; i < n * t; i++)
        EXPECT(m->shadow[page[i / t]][i % t], -1 - (int32_t)(s - m->seq));
    if (m->opts.n_windows > 0 && !s->pinned)
        check_windows(m, s);
}

void model_check(struct model *m, bool entries) {
    struct kv_stats got, want = m->count;

    kv_pager_check(m->pager);
    want.n_pages = m->opts.n_pages;
    want.n_free = n_free(m);
    want.n_owned = n_owned(m);
    want.n_cached = n_cached(m);
    want.n_shared = m->n_entries - want.n_cached;
    want.n_pinned = n_pinned(m);
    want.n_states = m->opts.n_states > 0 ? n_computed(m) : 0;
    want.n_snapshots = n_snapshots(m);
    want.n_windows_free = n_free_windows(m);
    want.n_windows_idle = m->opts.n_windows > 0 ? n_idle_windows(m) : 0;
    kv_pager_stats(m->pager, &got);
    want.n_snapshots_evicted = got.n_snapshots_evicted;
    EXPECT(got.n_free, want.n_free);
    EXPECT(got.n_owned, want.n_owned);
    EXPECT(got.n_shared, want.n_shared);
    EXPECT(got.n_cached, want.n_cached);
    EXPECT(got.n_pinned, want.n_pinned);
    EXPECT(got.n_published, want.n_published);
    EXPECT(got.n_deduplicated, want.n_deduplicated);
    EXPECT(got.n_evicted, want.n_evicted);
    EXPECT(memcmp(&got, &want, sizeof(got)), 0);
    EXPECT(kv_pager_available(m->pager), want.n_free + want.n_cached);
    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++)
        if (m->seq[i].real)
            check_seq(m, &m->seq[i]);
    for (uint32_t i = 0; entries && i < m->n_entries; i++)
        model_match(m, m->entry[i].share, m->entry[i].token, m->entry[i].n);
}

/* Random operations. The frequency of each is drawn with the seed, so that some seeds never free
 * and others rarely do anything else. */

enum op { NEW, FREE, ATTACH, GROW, COMMIT, REFUSE, PREEMPT, KEEP, MATCH, PUT, USE, DROP, OPS };

struct draw {
    uint32_t alphabet, n_shares, n_programs;
    uint32_t weight[OPS];
    /* common beginnings of prompts */
    int32_t program[4][MODEL_MAX_TOKENS];
};

static void draw_init(struct draw *d, struct rng *r, uint32_t n_snapshots) {
    static const uint32_t usual[OPS] = {8, 6, 8, 24, 24, 4, 4, 2, 4, 16, 4, 0};

    d->alphabet = 1 + rng_below(r, 3);
    d->n_shares = 1 + rng_below(r, 3);
    d->n_programs = 1 + rng_below(r, 4);
    for (uint32_t i = 0; i < ARRAY_SIZE(d->program); i++)
        for (uint32_t j = 0; j < MODEL_MAX_TOKENS; j++)
            d->program[i][j] = (int32_t)rng_below(r, d->alphabet);
    for (uint32_t op = 0; op < OPS; op++)
        d->weight[op] = usual[op] * rng_below(r, 4) + (op == NEW || op == GROW || op == COMMIT);
    d->weight[DROP] = rng_below(r, 8) == 0;
    if (n_snapshots == 0)
        d->weight[PUT] = d->weight[USE] = 0;
}

static void draw_tokens(struct rng *r, const struct draw *d, int32_t *out) {
    const int32_t *program = d->program[rng_below(r, d->n_programs)];
    uint32_t same = rng_below(r, MODEL_MAX_TOKENS + 1);

    for (uint32_t i = 0; i < MODEL_MAX_TOKENS; i++)
        out[i] = i < same ? program[i] : (int32_t)rng_below(r, d->alphabet);
}

static enum op draw_op(struct rng *r, const struct draw *d) {
    uint32_t sum = 0, op = 0;

    for (uint32_t i = 0; i < OPS; i++)
        sum += d->weight[i];
    uint32_t x = rng_below(r, sum);
    while (x >= d->weight[op])
        x -= d->weight[op++];
    return (enum op)op;
}

/* Returns a sequence that exists, or for NEW one that does not; UINT32_MAX: there is none. */
static uint32_t draw_seq(const struct model *m, struct rng *r, enum op op) {
    uint32_t start = rng_below(r, MODEL_MAX_SEQS);

    for (uint32_t i = 0; i < MODEL_MAX_SEQS; i++)
        if (!m->seq[(start + i) % MODEL_MAX_SEQS].real == (op == NEW))
            return (start + i) % MODEL_MAX_SEQS;
    return UINT32_MAX;
}

/* Performs an operation on sequence @i, which exists. */
static void random_seq_op(struct model *m, struct rng *r, enum op op, uint32_t i) {
    struct model_seq *s = &m->seq[i];
    uint32_t t = m->opts.page_tokens, max = m->opts.max_seq_tokens;
    uint32_t room = s->n_pages * t, to;

    /* If nothing can be committed, makes room; if there is no room to make, the sequence has
     * ended. */
    if (op == COMMIT && s->n_committed == MIN(room, max))
        op = GROW;
    if (op == GROW && room >= max && s->n_committed == max)
        op = FREE;
    switch (s->pinned ? FREE : op) {
    case FREE:
        model_free(m, i);
        break;
    case KEEP:
        model_keep(m, i);
        break;
    case ATTACH:
        if (s->n_committed % t == 0 && rng_below(r, 2))
            model_truncate(m, i, s->n_committed);
        if (s->n_pages * t == s->n_committed)
            model_attach(m, i, rng_below(r, max + 1));
        break;
    case GROW:
        to = room + rng_below(r, 2 * t + 1);
        if (!model_grow(m, i, MIN(to, max)) && rng_below(r, 2))
            model_truncate(m, i, 0);
        break;
    case PUT: /* the committed length may end inside a page */
        if (s->n_committed >= t && s->n_committed % t == 0)
            model_put_snapshot(m, i, rng_below(r, 2));
        break;
    case USE:
        model_use_snapshot(m, i);
        break;
    case COMMIT:
        to = MIN(room, max) - s->n_committed;
        model_commit(m, i, s->n_committed + rng_below(r, to + 1));
        break;
    case REFUSE:
        model_truncate(m, i, s->n_committed + rng_below(r, room - s->n_committed + 1));
        break;
    default: /* PREEMPT: to a page's end or inside the page that is not full, mostly to 0 */
        to = rng_below(r, 4) ? 0 : rng_below(r, s->n_committed + 1);
        if (m->opts.n_windows > 0 && to < s->n_committed)
            to = 0;
        model_truncate(m, i, to / t == s->n_committed / t ? to : to / t * t);
        for (to = s->n_committed; to < MODEL_MAX_TOKENS && rng_below(r, 2); to++)
            s->token[to] = 0; /* the sequence continues with other tokens */
        break;
    }
}

static void random_op(struct model *m, struct rng *r, const struct draw *d) {
    enum op op = draw_op(r, d);
    uint32_t i = draw_seq(m, r, op);
    int32_t token[MODEL_MAX_TOKENS];

    draw_tokens(r, d, token);
    if (op == DROP)
        model_drop_cached(m);
    else if (op == MATCH)
        model_match(m, (uint8_t)rng_below(r, d->n_shares), token,
                    rng_below(r, MODEL_MAX_TOKENS + 1));
    else if (op == NEW && i != UINT32_MAX) {
        if (model_new(m, i, (uint8_t)rng_below(r, d->n_shares), token) && rng_below(r, 4) > 0)
            model_attach(m, i, rng_below(r, m->opts.max_seq_tokens + 1));
        if (m->seq[i].real && m->opts.n_windows > 0 && rng_below(r, 2))
            model_want(m, i, rng_below(r, MODEL_MAX_TOKENS));
    } else if (i != UINT32_MAX)
        random_seq_op(m, r, op, i);
}

void model_random(uint64_t seed, uint32_t n_ops, volatile uint64_t *n_done) {
    static struct model m;
    struct rng r = {seed};
    struct draw d;
    struct kv_opts o = {
        .n_pages = 1 + rng_below(&r, rng_below(&r, 2) ? 16 : MODEL_MAX_PAGES),
        .page_tokens = 1u << rng_below(&r, 5),
        .max_seqs = 1 + rng_below(&r, MODEL_MAX_SEQS),
        .max_seq_tokens = rng_below(&r, 8) ? MODEL_MAX_TOKENS : 1 + rng_below(&r, 64),
        .hash_seed = rng_next(&r),
        .hash_bits = rng_below(&r, 3) ? 0 : 1 + rng_below(&r, 4),
    };

    o.n_states = seed % 4 == 3 ? 1 + (uint32_t)(seed / 4 % o.max_seqs) : 0;
    if (o.n_states > 0)
        o.n_snapshots = (uint32_t)(seed / 16 % 12);
    if (seed % 4 == 1) {
        o.n_windows = 1 + (uint32_t)(seed / 4 % MODEL_MAX_PAGES);
        o.window = 1 + (uint32_t)(seed / 16 % (MODEL_MAX_TOKENS / 2));
        o.n_states = seed / 32 % 4 == 3 ? 1 + (uint32_t)(seed / 128 % o.max_seqs) : 0;
    }
    draw_init(&d, &r, o.n_snapshots);
    model_init(&m, &o);
    for (uint32_t i = 0; i < n_ops; i++) {
        random_op(&m, &r, &d);
        model_check(&m, i % 8 == 0);
        if (n_done)
            *n_done = i + 1;
    }
    model_deinit(&m);
}
