/*
 * walk_tables - long walks through a trie. A state in the middle of a text reaches most of the
 * vocabulary, a quarter of a million nodes by way of a few sets of configurations. walk_tables()
 * makes the automaton deterministic as it goes: sets are numbered, and what a byte makes of a set
 * is looked up in a table once it has been found out. A walk then costs some 2 ns a node, and fuel
 * only for what is new. Which bytes never lead far from a set that it is often in it finds out,
 * too, and takes what is made of these: a state that lacks a letter reads nothing of a kind as a
 * whole.
 *
 * walk_like() knows what is reached from another set and looks only where the two differ. States of
 * one pattern often differ in a few bytes, behind which most texts lead to the same state again.
 */

#include "text/grammar/kinds.h"
#include "text/grammar/walk_nodes.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define SETS_MAX 4608
#define STAYS_CONFIGS 16  /* in it: a step costs by their number */
#define STAYS_SETS 12     /* that texts of a set's bytes may lead to */
#define STAYS_REACHED 500 /* nodes at which a set was before it is found out */
#define STAYS_MAX 512     /* sets made for it: SETS_MAX without them is 4096 */
#define SETS_FIRST 64

static void clear_items(struct walk *w, uint32_t first, uint32_t last) {
    for (uint32_t i = first; i < last; i++)
        w->bits[w->trie->item[i] / 32] &= ~(1u << (w->trie->item[i] % 32));
}

enum { STEP_UNKNOWN, STEP_DEAD, STEP_SETS }; /* from here on: the number of a set */

/* @run: how far the set reads each kind of text, where that is one row (runway.c); or NULL.
 * @stays: text_bit() of bytes all texts of which are read, however long. */
struct known_set {
    struct set set;
    const uint8_t *run;
    uint64_t stays;
    uint32_t n_reached;
};

struct tables {
    struct walk *w;
    struct known_set *set;
    uint16_t (*next)[256];
    uint32_t n, cap, n_stays; /* n_stays: made by find_stays() */
    uint32_t *slot, mask;     /* hash table: number + 1 */
};

static uint32_t hash_of(const struct machine *m, const struct set *s) {
    uint64_t h = s->can_end + 2ull * s->end_reg;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        h = (h ^ c->state) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 29 ^ c->reg) * 0xC2B2AE3D27D4EB4Fu;
        h = (h ^ h >> 31 ^ c->frame) * 0x165667B19E3779F9u;
        h += c->mark * 0x27D4EB2F165667C5u;
    }
    return (uint32_t)(h >> 32);
}

static bool equal(const struct machine *m, const struct set *x, const struct set *y) {
    return x->can_end == y->can_end && (!x->can_end || x->end_reg == y->end_reg) &&
           x->end - x->begin == y->end - y->begin &&
           memcmp(m->config + x->begin, m->config + y->begin,
                  (x->end - x->begin) * sizeof(*m->config)) == 0;
}

static bool grow(struct tables *t) {
    uint32_t cap = t->cap ? t->cap * 2 : SETS_FIRST;
    struct known_set *set = realloc(t->set, cap * sizeof(*set));

    if (set)
        t->set = set;
    void *next = realloc(t->next, cap * sizeof(*t->next));

    if (next)
        t->next = next;
    uint32_t *slot = calloc(cap * 2ul, sizeof(*slot));

    if (!set || !next || !slot) {
        free(slot);
        t->w->m->error = -ENOMEM;
        return false;
    }
    free(t->slot);
    t->slot = slot;
    t->cap = cap;
    t->mask = cap * 2 - 1;
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t h = hash_of(t->w->m, &t->set[i].set) & t->mask;

        while (slot[h])
            h = (h + 1) & t->mask;
        slot[h] = i + 1;
    }
    return true;
}

static const uint8_t *only_run(const struct machine *m, const struct set *s) {
    if (s->end - s->begin != 1)
        return NULL;
    const struct config *c = &m->config[s->begin];

    return (m->g->state[c->state].flags & STATE_LOOP) && c->frame ? NULL : m->g->runway[c->state];
}

/* The number of @s, which is the last one of the machine and is taken off when it is known. */
static uint32_t number_of(struct tables *t, const struct set *s) {
    struct machine *m = t->w->m;

    if (t->n == SETS_MAX)
        m->error = -E2BIG;
    if (m->error || (t->n == t->cap && !grow(t)))
        return 0;
    uint32_t h = hash_of(m, s) & t->mask;

    for (; t->slot[h]; h = (h + 1) & t->mask) {
        if (equal(m, s, &t->set[t->slot[h] - 1].set)) {
            m->n_configs = s->begin;
            return t->slot[h] - 1;
        }
    }
    memset(t->next[t->n], 0, sizeof(*t->next));
    t->set[t->n] = (struct known_set){.set = *s, .run = only_run(m, s)};
    t->slot[h] = t->n + 1;
    return t->n++;
}

static uint16_t find_step(struct tables *t, uint32_t from, uint8_t byte) {
    struct machine *m = t->w->m;
    struct set s = t->set[from].set, next;
    uint16_t to = STEP_DEAD;

    if (machine_step(m, &s, byte, &next))
        to = (uint16_t)(STEP_SETS + number_of(t, &next));
    else
        m->n_configs = next.begin;
    return t->next[from][byte] = to;
}

static uint16_t step_of(struct tables *t, uint32_t from, uint8_t byte) {
    uint16_t to = t->next[from][byte];

    return to == STEP_UNKNOWN ? find_step(t, from, byte) : to;
}

static bool add_number(uint32_t *v, uint32_t *n, uint32_t cap, uint32_t x) {
    for (uint32_t i = 0; i < *n; i++) {
        if (v[i] == x)
            return true;
    }
    if (*n == cap)
        return false;
    v[(*n)++] = x;
    return true;
}

/* Bytes of which every one leads from the set @k to one of a few sets, and from each of these as
 * well. What has too many sets behind it is left out. Takes no fuel: a walk without it would end
 * at the same place. */
static void find_stays(struct tables *t, uint32_t k) {
    struct machine *m = t->w->m;
    uint32_t at[STAYS_SETS] = {k}, n = 1, before = t->n;
    uint64_t stays = ~TEXT_BIT_NONE, fuel = m->fuel;

    m->fuel = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        for (unsigned c = 0; c < 0x80 && !m->error; c++) {
            uint64_t bit = text_bit(c);

            if (!(stays & bit))
                continue;
            uint16_t to = t->n - before + t->n_stays < STAYS_MAX ? step_of(t, at[i], (uint8_t)c)
                                                                 : t->next[at[i]][c];

            if (m->error == -E2BIG) { /* too many readings, where the walk may never be */
                m->error = 0;
                to = t->next[at[i]][c] = STEP_UNKNOWN;
            }
            if (to < STEP_SETS ||
                t->set[to - STEP_SETS].set.begin == t->set[to - STEP_SETS].set.end ||
                !add_number(at, &n, STAYS_SETS, to - STEP_SETS))
                stays &= ~bit;
        }
    }
    t->n_stays += t->n - before;
    m->fuel = fuel;
    for (uint32_t i = 0; i < n; i++) { /* it holds for them all */
        struct known_set *s = &t->set[at[i]];

        if (i == 0 || s->n_reached < STAYS_REACHED)
            s->stays = stays;
        s->n_reached = MAX(s->n_reached, STAYS_REACHED);
    }
}

/* Whether the set @k, which was reached at @node, reads whatever is below it. */
static bool known_reads_all(struct tables *t, uint32_t k, const struct trie_node *n) {
    struct walk *w = t->w;
    struct known_set *s = &t->set[k];

    if (w->whole && n->n_children) {
        if (++s->n_reached == STAYS_REACHED && s->set.end - s->set.begin <= STAYS_CONFIGS)
            find_stays(t, k);
        if (!(w->trie->below[n - w->trie->node] & ~t->set[k].stays))
            return true;
    }
    s = &t->set[k];
    if (!s->run)
        return reads_all(w, &s->set, n);
    return (w->kinds >> n->kind & 1) && n->height <= RUNWAY_MAX && s->run[n->kind] >= n->height;
}

static void tables_below(struct tables *t, uint32_t node, uint32_t last, uint32_t from,
                         uint32_t depth) {
    struct walk *w = t->w;
    const struct trie_node *n = &w->trie->node[node], *child = &w->trie->node[n->child];

    for (uint32_t i = 0; i < n->n_children; i++, child++) {
        uint16_t to = t->next[from][child->byte];
        uint32_t end = i + 1 < n->n_children ? child[1].items : last;

        if (w->need && is_idle(w, child->items, end))
            continue;
        if (to == STEP_UNKNOWN) {
            to = find_step(t, from, child->byte);
            if (w->m->error)
                return;
        }
        assert(to == STEP_DEAD || (uint32_t)to - STEP_SETS < t->n);
        uint32_t k = to - STEP_SETS;

        if (to == STEP_DEAD) {
            if (w->clears)
                clear_items(w, child->items, end);
        } else if (!reach(w, n->child + i, &t->set[k].set, depth + 1)) {
            if (w->clears)
                clear_items(w, child->items + child->n_items, end);
        } else if (!known_reads_all(t, k, child)) {
            tables_below(t, n->child + i, end, k, depth + 1);
        } else if (!w->clears) {
            take(w, child->items + child->n_items, end, &t->set[k].set, depth + 1);
        }
    }
}

/* Below @node, which the sets @from and @like reach: the bits are those of @like. */
static void differ_below(struct tables *t, uint32_t node, uint32_t last, uint32_t from,
                         uint32_t like, uint32_t depth) {
    struct walk *w = t->w;
    const struct trie_node *n = &w->trie->node[node], *child = &w->trie->node[n->child];

    for (uint32_t i = 0; i < n->n_children && !has_stopped(w); i++, child++) {
        uint16_t to = step_of(t, from, child->byte), beside = step_of(t, like, child->byte);
        uint32_t end = i + 1 < n->n_children ? child[1].items : last;
        uint32_t below = child->items + child->n_items;

        if (w->m->error)
            return;
        if (to == beside) {
            if (to != STEP_DEAD)
                w->same(w, child->items, end, depth + 1);
            continue;
        }
        if (to == STEP_DEAD) {
            clear_items(w, child->items, end);
            continue;
        }
        if (!reach(w, n->child + i, &t->set[to - STEP_SETS].set, depth + 1))
            clear_items(w, below, end);
        else if (known_reads_all(t, to - STEP_SETS, child))
            set_items(w, below, end);
        else if (beside != STEP_DEAD)
            differ_below(t, n->child + i, end, to - STEP_SETS, beside - STEP_SETS, depth + 1);
        else
            tables_below(t, n->child + i, end, to - STEP_SETS, depth + 1);
    }
}

/* The number of a copy of @s. */
static uint32_t number_copy(struct tables *t, const struct set *s) {
    struct machine *m = t->w->m;
    uint32_t n = s->end - s->begin;

    if (machine_reserve(m, n) < 0)
        return 0;
    struct set copy = {.begin = m->n_configs, .end = m->n_configs + n};

    memcpy(m->config + copy.begin, m->config + s->begin, n * sizeof(*m->config));
    m->n_configs += n;
    return number_of(t, &copy);
}

static void tables_free(struct tables *t) {
    free(t->set);
    free(t->next);
    free(t->slot);
}

void walk_tables(struct walk *w, const struct set *from) {
    uint32_t n_configs = w->m->n_configs;
    struct tables t = {.w = w};

    assert(w->m->g->runway || !w->kinds);
    assert(!w->clears || (w->bits && !w->take));
    if (from->end > from->begin)
        number_copy(&t, from);
    if (from->end > from->begin && !w->m->error)
        tables_below(&t, 0, w->trie->n_items, 0, 0);
    tables_free(&t);
    w->m->n_configs = n_configs;
}

void walk_like(struct walk *w, const struct set *from, const struct set *like) {
    uint32_t n_configs = w->m->n_configs;
    struct tables t = {.w = w};

    assert(w->bits && w->same && !w->clears && from->end > from->begin && like->end > like->begin);
    uint32_t a = number_copy(&t, from), b = number_copy(&t, like);

    if (!w->m->error)
        differ_below(&t, 0, w->trie->n_items, a, b, 0);
    tables_free(&t);
    w->m->n_configs = n_configs;
}
