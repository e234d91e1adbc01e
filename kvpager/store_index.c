/* store_index - reads the index of a file when a worker begins: reads the heads of all slots and
 * enters the pages whose parents are there into the slots' pager, parents first. */

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kvpager/private.h"
#include "kvpager/store.h"

/* A slot of the file whose head is valid. */
struct found {
    struct store_head head;
    /* parent: index among the pages; n: it has none in the file */
    uint32_t slot, parent;
    /* greatest stamp of this page and of the pages that follow it */
    uint64_t recent;
    bool restored;
};

/* Holds the pages and states of the file while they are entered. */
struct index {
    const struct store *store;
    struct kv_pager *slots;
    /* NULL: pages with pictures are left out */
    struct kv_media *media;
    /* as for store_enter() */
    struct store_id *id;
    bool *written;
    struct found *page, *state;
    /* [n_slots][page_tokens] tokens of the pages */
    int32_t *tokens;
    uint32_t n, n_states, *order, page_tokens;
};

static int compare_ids(const struct store_id *a, const struct store_id *b) {
    if (a->run != b->run) {
        if (a->run < b->run)
            return -1;
        return 1;
    }
    if (a->n < b->n)
        return -1;
    return a->n > b->n;
}

static int store_index_by_id(const void *a, const void *b) {
    return compare_ids(&((const struct found *)a)->head.id, &((const struct found *)b)->head.id);
}

static int by_stamp(const void *a, const void *b) {
    const struct found *x = a, *y = b;

    if (x->head.stamp < y->head.stamp)
        return -1;
    return x->head.stamp > y->head.stamp;
}

static int deepest_first(const void *a, const void *b, void *all) {
    const struct found *x = (const struct found *)all + *(const uint32_t *)a;
    const struct found *y = (const struct found *)all + *(const uint32_t *)b;

    if (x->head.depth > y->head.depth)
        return -1;
    return x->head.depth < y->head.depth;
}

/* Orders pages by their last use, the latest first. Parents come before their children, since no
 * child is more recent than its parent. */
static int latest_first(const void *a, const void *b, void *all) {
    const struct found *x = (const struct found *)all + *(const uint32_t *)a;
    const struct found *y = (const struct found *)all + *(const uint32_t *)b;

    if (x->recent != y->recent) {
        if (x->recent > y->recent)
            return -1;
        return 1;
    }
    if (x->head.depth < y->head.depth)
        return -1;
    return x->head.depth > y->head.depth;
}

/* Returns the index of the page that @f, a page or a state, names as its parent, if that page has
 * @depth pages before it; x->n if there is none. */
static uint32_t parent_of(const struct index *x, const struct found *f, uint32_t depth) {
    struct found key = {.head.id = f->head.parent};
    const struct found *p = bsearch(&key, x->page, x->n, sizeof(key), store_index_by_id);

    if (!p || p->head.depth != depth ||
        memcmp(&p->head.isolation, &f->head.isolation, sizeof(f->head.isolation)) != 0)
        return x->n;
    return (uint32_t)(p - x->page);
}

/* Puts the numbers that pictures have in this worker into the tokens of a page. Returns false if a
 * picture has none. */
static bool number_media(const struct index *x, int32_t *tokens, const struct kv_medium *media) {
    int32_t number[STORE_MEDIA] = {0};

    for (uint32_t i = 0; i < x->page_tokens; i++) {
        if (tokens[i] >= 0)
            continue;
        int32_t *n = &number[-1 - tokens[i]];
        if (*n == 0 && x->media)
            *n = kv_media_number(x->media, &media[-1 - tokens[i]]);
        if (*n == 0)
            return false;
        tokens[i] = *n;
    }
    return true;
}

/* Reads the heads of slots [@from, @to) and stores the valid ones in @out. Returns their number. */
static uint32_t read_heads(const struct index *x, struct found *out, uint32_t from, uint32_t to,
                           uint64_t *stamp, uint64_t *n_bad) {
    struct kv_medium media[STORE_MEDIA];
    uint32_t n = 0;

    for (uint32_t i = from; i < to; i++) {
        struct found *f = &out[n];
        int32_t *tokens = x->tokens + (size_t)(i - from) * x->page_tokens;
        int r = store_read_head(x->store, i, &f->head, tokens, media);

        *n_bad += r != 0 && r != STORE_FREE;
        if (r != 0 || (i < store_n_slots(x->store) && !number_media(x, tokens, media)))
            continue;
        f->slot = i;
        f->recent = f->head.stamp;
        *stamp = MAX(*stamp, f->head.stamp);
        n++;
    }
    return n;
}

static void store_index_enter(const struct index *x, const struct found *f) {
    assert(!x->written[f->slot]);
    x->id[f->slot] = f->head.id;
    x->written[f->slot] = true;
}

/* Connects pages with their parents and states with their pages, and orders both by time. */
static void connect(struct index *x) {
    qsort(x->page, x->n, sizeof(*x->page), store_index_by_id);
    qsort(x->state, x->n_states, sizeof(*x->state), by_stamp);
    for (uint32_t i = 0; i < x->n; i++) {
        struct found *f = &x->page[i];

        x->order[i] = i;
        f->parent = f->head.depth > 0 ? parent_of(x, f, f->head.depth - 1) : x->n;
    }
    for (uint32_t i = 0; i < x->n_states; i++) {
        struct found *f = &x->state[i];

        f->parent = parent_of(x, f, f->head.depth);
        if (f->parent < x->n)
            x->page[f->parent].recent = MAX(x->page[f->parent].recent, f->recent);
    }
    qsort_r(x->order, x->n, sizeof(*x->order), deepest_first, x->page);
    for (uint32_t i = 0; i < x->n; i++) {
        const struct found *f = &x->page[x->order[i]];

        if (f->parent < x->n)
            x->page[f->parent].recent = MAX(x->page[f->parent].recent, f->recent);
    }
}

static void restore_pages(struct index *x) {
    qsort_r(x->order, x->n, sizeof(*x->order), latest_first, x->page);
    for (uint32_t i = 0; i < x->n; i++) {
        struct found *f = &x->page[x->order[i]], *p = f->parent < x->n ? &x->page[f->parent] : NULL;

        if (f->head.depth > 0 && (!p || !p->restored))
            continue; /* the parent is not in the file */
        f->restored =
            kv_pager_restore(x->slots, f->slot, f->head.depth > 0 ? p->slot : KV_NO_PAGE,
                             &f->head.isolation, x->tokens + (size_t)f->slot * x->page_tokens) == 0;
        if (f->restored)
            store_index_enter(x, f);
    }
}

static void restore_states(const struct index *x) {
    for (uint32_t i = 0; i < x->n_states; i++) {
        const struct found *f = &x->state[i];

        if (f->parent < x->n && x->page[f->parent].restored &&
            kv_pager_restore_snapshot(x->slots, f->slot - store_n_slots(x->store),
                                      x->page[f->parent].slot) == 0)
            store_index_enter(x, f);
    }
}

int store_enter(const struct store *s, struct kv_pager *slots, struct kv_media *media,
                struct store_id *id, bool *written, uint64_t *stamp, uint64_t *n_bad) {
    uint32_t n = store_n_slots(s), n_states = store_n_states(s);
    struct index x = {.store = s,
                      .slots = slots,
                      .media = media,
                      .id = id,
                      .written = written,
                      .page_tokens = slots->opts.page_tokens};
    struct kv_stats kv;

    kv_pager_stats(slots, &kv);
    assert(kv.n_pages == n && kv.n_free == n && kv.n_snapshots == 0);
    CLEANUP(freep) struct found *page = x.page = calloc(n, sizeof(*page));
    CLEANUP(freep) struct found *state = x.state = calloc(MAX(n_states, 1u), sizeof(*state));
    CLEANUP(freep)
    int32_t *tokens = x.tokens = calloc(n, (size_t)x.page_tokens * sizeof(*tokens));
    CLEANUP(freep) uint32_t *order = x.order = calloc(n, sizeof(*order));
    if (!page || !state || !tokens || !order)
        return -ENOMEM;
    x.n = read_heads(&x, page, 0, n, stamp, n_bad);
    x.n_states = read_heads(&x, state, n, n + n_states, stamp, n_bad);
    connect(&x);
    restore_pages(&x);
    restore_states(&x);
    return 0;
}
