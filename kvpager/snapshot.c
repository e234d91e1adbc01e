/*
 * snapshot - which snapshots of recurrent states exist, and which pages they belong to.
 *
 * Eviction. When a slot is needed, the snapshot with the least worth is replaced. A snapshot saves
 * computing the tokens between it and the snapshot before it on its chain of pages: n_saves. Its
 * worth is n_saves divided by OLD plus its age, which is counted in uses of any snapshot since its
 * own last one (worth()). Example, a conversation with snapshots behind tokens 2000, 2100 and 2200:
 *
 *     after 2000, the instructions     n_saves 2000     stays, while other sessions begin with it
 *     after 2100, a turn               n_saves 100      goes first; then the next one has 200
 *     after 2200, the latest turn      n_saves 100      younger, so it stays longer
 *
 * Peers. The pager of the device and that of host memory have one array of slots, which is in host
 * memory: slot i is free if neither pager has given it to a page or to a caller. So a prefix that
 * moves from one pager to the other takes its snapshots along, without a byte being copied. Each
 * pager knows the chains of its own pages only; the worth of a slot is the larger of the two, and a
 * replaced slot is dropped in both. Slots for each pager were rejected: they would hold each state
 * twice.
 */

#include <assert.h>
#include <errno.h>

#include "kvpager/private.h"

/* Half-life of the expected benefit of a snapshot, in uses of other snapshots. With room for 16
 * snapshots, 85 % of the prompts of tests/sim/traces/hybrid.trace are cached, and 56 % if the least
 * recently used snapshot is evicted instead. */
#define OLD 10.0

static void snapshot_set_free(struct kv_pager *p, struct kv_snapshot *x) {
    if (x->passing)
        x->passing->passing = KV_NO_SNAPSHOT;
    *x = (struct kv_snapshot){.page = NO_PAGE};
}

/* Returns true if a page of the peer has @snapshot. */
static bool is_of_peer(const struct kv_pager *p, uint32_t snapshot) {
    return p->peer && p->peer->snapshot[snapshot].page != NO_PAGE;
}

/* Returns true if the snapshot is being written or read, so that it must not be replaced. */
static bool is_in_use(const struct kv_snapshot *x) {
    return x->taken || x->n_held > 0;
}

static bool snapshot_is_taken(const struct kv_pager *p, uint32_t snapshot) {
    return is_in_use(&p->snapshot[snapshot]) ||
           (p->peer && is_in_use(&p->peer->snapshot[snapshot]));
}

static void note_use(struct kv_pager *p, uint32_t snapshot) {
    p->snapshot[snapshot].used = ++p->n_snapshot_uses;
    if (p->peer)
        p->peer->n_snapshot_uses = p->n_snapshot_uses;
}

/* Takes the snapshot from its page in @p. The snapshots that follow it on the chain then save its
 * tokens too. */
static void snapshot_unbind(struct kv_pager *p, uint32_t snapshot) {
    struct kv_snapshot *x = &p->snapshot[snapshot];

    assert(x->page != NO_PAGE && !is_in_use(x));
    for (uint32_t i = 0; i < p->opts.n_snapshots; i++) {
        struct kv_snapshot *behind = &p->snapshot[i];

        if (behind->page == NO_PAGE || behind->before != x->id)
            continue;
        behind->before = x->before;
        behind->n_saves += x->n_saves;
    }
    p->pool.page[x->page].snapshot = KV_NO_SNAPSHOT;
    watch_went(&p->ends, x->page);
    p->stats.n_snapshots--;
    snapshot_set_free(p, x);
}

void snapshot_drop(struct kv_pager *p, struct page *page) {
    uint32_t snapshot = page->snapshot;

    if (snapshot == KV_NO_SNAPSHOT)
        return;
    snapshot_unbind(p, snapshot);
    p->stats.n_snapshots_evicted += !is_of_peer(p, snapshot);
}

void snapshot_stop_passing(struct kv_seq *s) {
    if (s->passing != KV_NO_SNAPSHOT)
        s->pager->snapshot[s->passing].passing = NULL;
    s->passing = KV_NO_SNAPSHOT;
}

/* Returns the value of keeping snapshot @i: the expected tokens that it saves. */
static double worth(const struct kv_pager *p, uint32_t i) {
    uint32_t n_saves = p->snapshot[i].n_saves;
    uint64_t used = p->snapshot[i].used;

    if (p->peer) {
        n_saves = MAX(n_saves, p->peer->snapshot[i].n_saves);
        used = MAX(used, p->peer->snapshot[i].used);
    }
    return n_saves / (OLD + (double)(p->n_snapshot_uses - used));
}

/* Returns the snapshot with the least worth; KV_NO_SNAPSHOT: all are taken. */
static uint32_t snapshot_least(const struct kv_pager *p) {
    uint32_t found = KV_NO_SNAPSHOT;

    for (uint32_t i = 0; i < p->opts.n_snapshots; i++)
        if (!snapshot_is_taken(p, i) && (found == KV_NO_SNAPSHOT || worth(p, i) < worth(p, found)))
            found = i;
    return found;
}

uint32_t kv_snapshot_acquire(struct kv_pager *p, struct kv_seq *s) {
    uint32_t i = 0;

    while (i < p->opts.n_snapshots &&
           (snapshot_is_taken(p, i) || p->snapshot[i].page != NO_PAGE || is_of_peer(p, i)))
        i++;
    if (i == p->opts.n_snapshots && s && s->passing != KV_NO_SNAPSHOT) {
        i = s->passing;
        snapshot_unbind(p, i);
    } else if (i == p->opts.n_snapshots) {
        i = snapshot_least(p);
        if (i == KV_NO_SNAPSHOT)
            return i;
        if (p->snapshot[i].page != NO_PAGE)
            snapshot_unbind(p, i);
        if (is_of_peer(p, i))
            snapshot_unbind(p->peer, i);
        p->stats.n_snapshots_evicted++;
    }
    p->snapshot[i].taken = true;
    return i;
}

uint32_t kv_snapshot_untaken(const struct kv_pager *p) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->opts.n_snapshots; i++)
        n += !snapshot_is_taken(p, i);
    return n;
}

void kv_snapshot_hold(struct kv_pager *p, uint32_t snapshot) {
    assert(snapshot < p->opts.n_snapshots && p->snapshot[snapshot].page != NO_PAGE);
    p->snapshot[snapshot].n_held++;
}

void kv_snapshot_release(struct kv_pager *p, uint32_t snapshot) {
    assert(snapshot < p->opts.n_snapshots && p->snapshot[snapshot].n_held > 0);
    p->snapshot[snapshot].n_held--;
}

void kv_snapshot_free(struct kv_pager *p, uint32_t snapshot) {
    assert(snapshot < p->opts.n_snapshots && p->snapshot[snapshot].taken);
    snapshot_set_free(p, &p->snapshot[snapshot]);
}

/* Returns true if @page is one of the @n pages before page @from. */
static bool snapshot_is_before(const struct kv_pager *p, kv_page page, kv_page from, uint32_t n) {
    while (n-- > 0)
        from = p->pool.page[from].parent;
    return from == page;
}

/* Links snapshot @x, before its page points to it, between its neighbours on the chain of pages. */
static void snapshot_enter(struct kv_pager *p, struct kv_snapshot *x) {
    uint32_t t = p->opts.page_tokens;
    kv_page before = p->pool.page[x->page].parent;

    x->n_saves = t;
    for (; before != NO_PAGE && p->pool.page[before].snapshot == KV_NO_SNAPSHOT;
         before = p->pool.page[before].parent)
        x->n_saves += t;
    x->before = before == NO_PAGE ? 0 : p->snapshot[p->pool.page[before].snapshot].id;
    if (p->pool.page[x->page].n_children == 0)
        return;
    for (uint32_t k = 0; k < p->opts.n_snapshots; k++) {
        struct kv_snapshot *o = &p->snapshot[k];

        if (o->page == NO_PAGE || o->before != x->before || o->n_tokens <= x->n_tokens ||
            !snapshot_is_before(p, x->page, o->page, (o->n_tokens - x->n_tokens) / t))
            continue;
        o->before = x->id;
        o->n_saves = o->n_tokens - x->n_tokens;
    }
}

/* Gives slot @snapshot to page @page, which ends before token @n_tokens and has no snapshot. */
static void snapshot_bind(struct kv_pager *p, uint32_t snapshot, kv_page page, uint32_t n_tokens) {
    struct kv_snapshot *x = &p->snapshot[snapshot];

    assert(x->page == NO_PAGE && !is_in_use(x) && !(p->peer && p->peer->snapshot[snapshot].taken));
    x->id = ++p->n_snapshot_ids;
    x->page = page;
    x->n_tokens = n_tokens;
    snapshot_enter(p, x);
    p->pool.page[x->page].snapshot = snapshot;
    watch_came(&p->ends, x->page);
    p->stats.n_snapshots++;
}

static void bind_at(struct kv_seq *s, uint32_t snapshot, uint32_t i) {
    assert(i < s->n_published);
    snapshot_bind(s->pager, snapshot, s->page[i], (i + 1) * s->pager->opts.page_tokens);
}

void kv_seq_attach_snapshot(struct kv_seq *s, uint32_t snapshot, bool passes) {
    struct kv_pager *p = s->pager;

    assert(s->n_published > 0 && s->n_committed == s->n_published * p->opts.page_tokens);
    const struct page *page = &p->pool.page[s->page[s->n_published - 1]];
    kv_snapshot_free(p, snapshot);
    if (s->passing != KV_NO_SNAPSHOT && s->passing != page->snapshot)
        snapshot_unbind(p, s->passing);
    snapshot_stop_passing(s);
    if (page->snapshot == KV_NO_SNAPSHOT) {
        bind_at(s, snapshot, s->n_published - 1);
        p->stats.n_snapshots_made++;
        if (passes) {
            s->passing = snapshot;
            p->snapshot[snapshot].passing = s;
        }
    }
    note_use(p, page->snapshot);
}

int kv_pager_restore_snapshot(struct kv_pager *p, uint32_t snapshot, kv_page page) {
    uint32_t n_tokens = 0;

    if (snapshot >= p->opts.n_snapshots || snapshot_is_taken(p, snapshot) ||
        p->snapshot[snapshot].page != NO_PAGE || is_of_peer(p, snapshot) ||
        page >= p->pool.n_pages || !pool_is_published(&p->pool.page[page]))
        return -EINVAL;
    if (p->pool.page[page].snapshot != KV_NO_SNAPSHOT)
        return -EEXIST;
    for (kv_page i = page; i != NO_PAGE; i = p->pool.page[i].parent)
        n_tokens += p->opts.page_tokens;
    snapshot_bind(p, snapshot, page, n_tokens);
    note_use(p, snapshot);
    return 0;
}

int kv_pager_forget_snapshot(struct kv_pager *p, uint32_t snapshot) {
    assert(snapshot < p->opts.n_snapshots);
    if (snapshot_is_taken(p, snapshot))
        return -EBUSY;
    if (p->snapshot[snapshot].page != NO_PAGE)
        snapshot_unbind(p, snapshot);
    return 0;
}

void kv_seq_share_snapshot(struct kv_seq *s, uint32_t i, kv_page page) {
    struct kv_pager *p = s->pager;
    uint32_t snapshot = p->peer->pool.page[page].snapshot;

    if (snapshot == KV_NO_SNAPSHOT || p->peer->snapshot[snapshot].passing ||
        p->pool.page[s->page[i]].snapshot != KV_NO_SNAPSHOT)
        return;
    bind_at(s, snapshot, i);
    p->snapshot[snapshot].used = p->peer->snapshot[snapshot].used;
}

uint32_t kv_seq_snapshot_at(const struct kv_seq *s, uint32_t i) {
    assert(i < s->n_published);
    return s->pager->pool.page[s->page[i]].snapshot;
}

void kv_seq_attach_snapshot_at(struct kv_seq *s, uint32_t snapshot, uint32_t i) {
    kv_snapshot_free(s->pager, snapshot);
    if (kv_seq_snapshot_at(s, i) == KV_NO_SNAPSHOT)
        bind_at(s, snapshot, i);
    note_use(s->pager, kv_seq_snapshot_at(s, i));
}

uint32_t kv_seq_snapshot(struct kv_seq *s) {
    struct kv_pager *p = s->pager;

    if (s->n_published == 0)
        return KV_NO_SNAPSHOT;
    uint32_t snapshot = p->pool.page[s->page[s->n_published - 1]].snapshot;

    if (snapshot == KV_NO_SNAPSHOT)
        return snapshot;
    if (p->snapshot[snapshot].passing)
        snapshot_stop_passing(p->snapshot[snapshot].passing);
    note_use(p, snapshot);
    p->stats.n_snapshots_used++;
    return snapshot;
}
