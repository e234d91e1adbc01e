/*
 * merges - byte pair encoding: while two neighbours of a word form a pair of the table, the pair
 * with the lowest rank (the leftmost of equal ones) becomes one symbol.
 *
 *     l o w e r     ranks: lo 2, er 1          er is merged first
 *     l o w er      ranks: lo 2, wer 4         then lo
 *     lo w er       ranks: low 3, wer 4        then low; if lower is no token, the word is low er
 *
 * Nearly all words are short: after every merge all their ranks are searched again. Long words, as
 * in hostile or unusual text, use a heap of (rank, position), which takes n log n steps. An entry
 * is stale when the symbol at its position has another rank by now; it is skipped when it is taken
 * from the heap, so entries are never searched for. One number holds both parts of an entry, so
 * that comparing entries also breaks ties to the left.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/jobs.h"
#include "base/try.h"
#include "text/tokenizer_private.h"

#define SHORT_WORD 32
#define NO_PAIR UINT64_MAX
#define NIL UINT32_MAX
#define PAUSE_MERGES 256u

static uint64_t merges_pair(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

static uint32_t merges_slot(const struct pairs *p, uint64_t pair) {
    return (uint32_t)hash_mix(pair ^ p->key.k[0], p->key.k[1]) & (p->n_slots - 1);
}

int pairs_init(struct pairs *p, struct hash_key key, size_t n) {
    size_t n_slots = 16;

    while (n_slots / 3 * 2 < n)
        n_slots *= 2;
    if (n_slots > UINT32_MAX / 2)
        return -ENOMEM;
    *p = (struct pairs){.key = key, .n_slots = (uint32_t)n_slots};
    p->slot = reallocarray(NULL, n_slots, sizeof(*p->slot));
    if (!p->slot)
        return -ENOMEM;
    memset(p->slot, 0xFF, n_slots * sizeof(*p->slot));
    return 0;
}

void pairs_add(struct pairs *p, uint32_t left, uint32_t right, uint32_t rank, uint32_t made) {
    uint64_t pair = merges_pair(left, right);
    uint32_t i = merges_slot(p, pair);

    assert(left != TOKEN_NONE && right != TOKEN_NONE && rank != RANK_NONE);

    while (p->slot[i].pair != NO_PAIR && p->slot[i].pair != pair)
        i = (i + 1) & (p->n_slots - 1);
    if (p->slot[i].pair == pair)
        return;
    p->slot[i] = (struct pair_slot){pair, rank, made};
    p->n++;
    assert(p->n < p->n_slots); /* a search ends at a free slot */
}

int pairs_grow(struct pairs *p, size_t n) {
    struct pairs bigger;

    if (p->n + n <= p->n_slots / 3 * 2)
        return 0;
    TRY(pairs_init(&bigger, p->key, MAX(p->n + n, (size_t)p->n * 2)));
    for (uint32_t i = 0; i < p->n_slots; i++) {
        const struct pair_slot *s = &p->slot[i];

        if (s->pair != NO_PAIR)
            pairs_add(&bigger, (uint32_t)(s->pair >> 32), (uint32_t)s->pair, s->rank, s->made);
    }
    free(p->slot);
    *p = bigger;
    return 0;
}

/* Sets rank and `made` of @a for the pair of @a and @b. */
static void merges_look_up(const struct pairs *p, struct symbol *a, const struct symbol *b) {
    uint64_t pair = merges_pair(a->id, b->id);

    a->rank = RANK_NONE;
    if (a->id == TOKEN_NONE || b->id == TOKEN_NONE)
        return;
    for (uint32_t i = merges_slot(p, pair);; i = (i + 1) & (p->n_slots - 1)) {
        const struct pair_slot *s = &p->slot[i];

        if (s->pair == pair) {
            a->rank = s->rank;
            a->made = s->made;
            return;
        }
        if (s->pair == NO_PAIR)
            return;
    }
}

void merger_deinit(struct merger *m) {
    free(m->sym);
    free(m->link);
    free(m->heap);
}

int merger_reserve(struct merger *m, size_t n) {
    struct symbol *p;

    if (n <= m->cap)
        return 0;
    p = reallocarray(NULL, n, sizeof(*p));
    if (!p)
        return -ENOMEM;
    free(m->sym);
    m->sym = p;
    m->cap = n;
    return 0;
}

static void merge_short(struct merger *m, const struct pairs *p) {
    struct symbol *s = m->sym;
    size_t n = m->n;

    while (n > 1) {
        uint32_t best = RANK_NONE;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            if (s[i].rank < best) {
                best = s[i].rank;
                at = i;
            }
        }
        if (best == RANK_NONE)
            break;
        s[at].id = s[at].made;
        s[at].len += s[at + 1].len;
        n--;
        memmove(&s[at + 1], &s[at + 2], (n - at - 1) * sizeof(*s));
        if (at + 1 < n)
            merges_look_up(p, &s[at], &s[at + 1]);
        if (at > 0)
            merges_look_up(p, &s[at - 1], &s[at]);
    }
    m->n = n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t v = heap[i];

    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        c += c + 1 < n && heap[c + 1] < heap[c];
        if (heap[c] >= v)
            break;
        heap[i] = heap[c];
    }
    heap[i] = v;
}

static void merges_push(struct merger *m, uint32_t rank, uint32_t at) {
    uint64_t v = (uint64_t)rank << 32 | at;
    size_t i = m->n_heap++;

    assert(m->n_heap <= 2 * m->long_cap);

    for (; i > 0 && m->heap[(i - 1) / 2] > v; i = (i - 1) / 2)
        m->heap[i] = m->heap[(i - 1) / 2];
    m->heap[i] = v;
}

static uint64_t pop(struct merger *m) {
    assert(m->n_heap > 0);
    uint64_t v = m->heap[0];

    m->heap[0] = m->heap[--m->n_heap];
    if (m->n_heap)
        sift_down(m->heap, m->n_heap, 0);
    return v;
}

/* Makes room for a long word: at first every symbol has an entry for its pair, and a merge takes
 * one entry and adds two. */
static int reserve_long(struct merger *m, size_t n) {
    if (n <= m->long_cap)
        return 0;
    free(m->link);
    free(m->heap);
    m->long_cap = 0;
    m->link = reallocarray(NULL, n, 2 * sizeof(*m->link));
    m->heap = reallocarray(NULL, n, 2 * sizeof(*m->heap));
    if (!m->link || !m->heap)
        return -ENOMEM;
    m->long_cap = n;
    return 0;
}

static int merge_long(struct merger *m, const struct pairs *p) {
    struct symbol *s = m->sym;
    uint32_t n = (uint32_t)m->n, *next, *prev;

    TRY(reserve_long(m, n));
    next = m->link;
    prev = m->link + m->n;
    m->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        next[i] = i + 1 < n ? i + 1 : NIL;
        prev[i] = i ? i - 1 : NIL;
        if (i + 1 < n && s[i].rank != RANK_NONE)
            m->heap[m->n_heap++] = (uint64_t)s[i].rank << 32 | i;
    }
    for (size_t i = m->n_heap / 2; i-- > 0;)
        sift_down(m->heap, m->n_heap, i);
    for (uint32_t k = 1; m->n_heap; k++) {
        uint64_t top = pop(m);
        uint32_t at = (uint32_t)top, gone, before;

        if (k % PAUSE_MERGES == 0)
            TRY(job_pause());
        if (s[at].rank != top >> 32)
            continue;
        gone = next[at];
        before = prev[at];
        assert(gone != NIL); /* a symbol with a rank has a next one */
        s[at].id = s[at].made;
        s[at].len += s[gone].len;
        s[gone].rank = RANK_NONE;
        s[at].rank = RANK_NONE;
        next[at] = next[gone];
        if (next[at] != NIL) {
            prev[next[at]] = at;
            merges_look_up(p, &s[at], &s[next[at]]);
            if (s[at].rank != RANK_NONE)
                merges_push(m, s[at].rank, at);
        }
        if (before != NIL) {
            merges_look_up(p, &s[before], &s[at]);
            if (s[before].rank != RANK_NONE)
                merges_push(m, s[before].rank, before);
        }
    }
    m->n = 0;
    for (uint32_t i = 0; i != NIL; i = next[i])
        s[m->n++] = s[i];
    return 0;
}

int merger_run(struct merger *m, const struct pairs *p) {
    assert(m->n <= m->cap);
    if (m->n < 2)
        return 0;
    for (size_t i = 0; i + 1 < m->n; i++)
        merges_look_up(p, &m->sym[i], &m->sym[i + 1]);
    m->sym[m->n - 1].rank = RANK_NONE;
    if (m->n > SHORT_WORD)
        return merge_long(m, p);
    merge_short(m, p);
    return 0;
}
