/*
 * walk_tables - long walks through the trie of the vocabulary: which of its 150,000 tokens can be
 * read from a set of configurations.
 *
 * The tokens are sorted into a trie, so that `"the`, `"then` and `"there` share the steps for
 * `"the`. A short walk (walk_steps.c) moves the machine along every node. From a state in the
 * middle of a string, which can read nearly everything, that would be a quarter of a million steps
 * of the machine. But these walks meet few different sets of configurations: inside a string it is
 * one set at nearly every node. So walk_tables() determinizes lazily, as regular expression engines
 * do:
 *
 *     set 0 = { string: between characters }         next[0][byte]:
 *     set 1 = { string: behind a backslash }         a..z -> 0    \ -> 1    " -> 2
 *     set 2 = { behind the string }                  0x00..0x1f -> dead
 *
 * Sets are numbered as they are found. The first time that a byte is read from a set, the machine
 * computes the successor (find_step()) and the table next[set][byte] remembers it, for all bytes
 * that take the same edges at once (tables_find_range()). From then on a node costs one look-up,
 * some 2 ns, and fuel is spent only on new sets. In a rule that calls no other (plain_rule()) a set
 * is a single state, and states number themselves without hashing.
 *
 * Two shortcuts avoid most of the nodes:
 *
 * - Subtrees of one kind. Each node knows the kind of text below it (digits, letters, UTF-8 without
 *   control characters, ...) and its height. A set that reads all texts of that kind up to that
 *   height takes the subtree as a whole (known_reads_all()).
 * - Results are collected in the order of the texts: all items are assumed to be reached, and what
 *   is not reached is cleared in ranges (subtract_out()), because from such a set most are reached.
 *   set_reached() translates positions in the trie to token ids at the end.
 *
 * A walk waits mostly for memory, so the children of a node are adjacent, and tables_below() keeps
 * its stack and its working set in locals and leaves rare cases to other functions.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "grammar/mask/class.h"
#include "grammar/mask/walk_nodes.h"

#define SETS_MAX 4096
#define SETS_FIRST 64
#define PLAIN_STATES (4 * SETS_MAX) /* each walk clears of_state[]: more states take too long */

enum { STEP_UNKNOWN, STEP_DEAD, STEP_SETS }; /* from here on: the number of a set */

/* A numbered set and what is known of it. @free_chars: for each kind, the length up to which all
 * texts of the kind are read. @visit_bytes: text_bit() of the bytes for which visit() is called
 * where they occur below a node. @watched: a node that this set reaches needs reach_place(), since
 * visit() or node_accept() may have to be called, or nothing is read from the set. */
struct known_set {
    struct set set;
    uint64_t visit_bytes;
    bool watched;
    uint8_t free_chars[KIND_NONE + 1];
};

/* The numbered sets: n of them, with room for cap. A set is found by the hash table, in a plain
 * rule by of_state[]. */
struct tables {
    struct walk *w;
    struct known_set *set;
    uint16_t (*next)[256];
    uint32_t n, cap;
    struct hash_index numbers;
    /* plain rule: by state, counted from its start: number + 1; or NULL */
    uint16_t *of_state;
    /* bits by item, of the current walk; NULL without bits */
    uint64_t *reached;
};

static uint32_t tables_hash(const struct machine *m, const struct set *s) {
    uint64_t h = s->can_end;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];

        h = (h ^ c->state) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 29 ^ c->reg) * 0xC2B2AE3D27D4EB4Fu;
        h = (h ^ h >> 31 ^ c->frame) * 0x165667B19E3779F9u;
        h += c->match * 0x27D4EB2F165667C5u;
    }
    return (uint32_t)(h >> 32);
}

static bool tables_equal(const struct machine *m, const struct set *x, const struct set *y) {
    return x->can_end == y->can_end && x->end - x->begin == y->end - y->begin &&
           memcmp(m->config + x->begin, m->config + y->begin,
                  (x->end - x->begin) * sizeof(*m->config)) == 0;
}

static bool tables_grow(struct tables *t) {
    uint32_t cap = t->cap ? t->cap * 2 : SETS_FIRST;

    if (!array_resize(&t->set, cap, sizeof(*t->set)) ||
        !array_resize(&t->next, cap, sizeof(*t->next))) {
        t->w->m->error = -ENOMEM;
        return false;
    }
    t->cap = cap;
    return true;
}

static void tables_find_free(const struct walk *w, struct known_set *known) {
    const struct machine *m = w->m;
    uint32_t before = NO_STATE; /* state of the preceding configuration, unless its stack matters */

    for (uint32_t i = known->set.begin; i < known->set.end; i++) {
        const struct config *c = &m->config[i];
        uint32_t most = FREE_CHARS_MAX;
        bool counts = m->g->state[c->state].flags & (STATE_LOOP | STATE_WITHIN);

        if (c->state == before)
            continue;
        before = counts ? NO_STATE : c->state;
        const struct register_kind *k = register_at(m, c);

        if (k && k->n_free)
            most = MIN(most, k->n_free(m->g, desc_of(m, c->frame), c->state, c->reg));
        for (unsigned kind = 0; w->kinds && kind < TEXT_KINDS; kind++) {
            uint32_t run = w->kinds >> kind & 1 ? MIN(m->g->free_chars[c->state][kind], most) : 0;

            known->free_chars[kind] = (uint8_t)MAX(known->free_chars[kind], run);
        }
    }
}

/* Returns whether there is room for one more set; otherwise sets the machine's error. */
static bool tables_has_room(struct tables *t) {
    if (t->n == SETS_MAX)
        t->w->m->error = -E2BIG;
    return !t->w->m->error && (t->n < t->cap || tables_grow(t));
}

static uint32_t add_set(struct tables *t, const struct set *s) {
    static_assert(SETS_MAX + STEP_SETS <= UINT16_MAX, "a step names each set");
    assert(t->n < t->cap && t->n < SETS_MAX && s->end <= t->w->m->n_configs);
    memset(t->next[t->n], 0, sizeof(*t->next));
    t->set[t->n] = (struct known_set){.set = *s,
                                      .visit_bytes = s->can_end && t->w->visit ? t->w->ends : 0,
                                      .watched = t->w->accept || (t->w->visit && !t->w->ends) ||
                                                 s->begin == s->end};
    tables_find_free(t->w, &t->set[t->n]);
    return t->n++;
}

/* Returns the number of @s, the last set of the machine, which is removed there if it is known. */
static uint32_t tables_number(struct tables *t, const struct set *s) {
    struct machine *m = t->w->m;

    if (!tables_has_room(t))
        return 0;
    uint32_t hash = tables_hash(m, s);

    HASH_INDEX_EACH(t->numbers, hash, i) {
        if (tables_equal(m, s, &t->set[i].set)) {
            m->n_configs = s->begin;
            return i;
        }
    }
    if (hash_index_add(&t->numbers, hash, t->n) < 0) {
        m->error = -ENOMEM;
        return 0;
    }
    return add_set(t, s);
}

/* Returns the number of the set that is @state alone, in a plain rule and with frame 0. */
static uint32_t number_of_state(struct tables *t, uint32_t state) {
    struct machine *m = t->w->m;
    const struct state *s = &m->g->state[state];
    uint16_t *number = &t->of_state[state - m->g->rule[s->rule].start];
    struct set one = set_open(m);

    if (*number)
        return *number - 1u;
    if (!tables_has_room(t) || machine_reserve(m, 1) < 0)
        return 0;
    if (s->n_edges)
        m->config[m->n_configs++] = (struct config){.state = state};
    one.end = m->n_configs;
    one.can_end = s->flags & STATE_ACCEPT;
    *number = (uint16_t)(t->n + 1);
    return add_set(t, &one);
}

/* Sets *@lo and *@hi to a range around @byte whose bytes all lead from @s to the same set. */
static void tables_find_range(const struct machine *m, const struct set *s, uint8_t byte,
                              unsigned *lo, unsigned *hi) {
    uint32_t before = NO_STATE;

    *lo = m->g->n_texts ? byte : 0;
    *hi = m->g->n_texts ? byte : 255;
    for (uint32_t i = s->begin; i < s->end && *lo < *hi; i++) {
        const struct config *c = &m->config[i];
        const struct state *q = &m->g->state[c->state];
        const struct edge *e = m->g->edge + q->edge, *end = e + q->n_edges;
        bool loops = (q->flags & STATE_LOOP) && c->frame;

        if (c->state == before && !loops)
            continue;
        before = c->state;
        if (loops && m->g->desc[m->g->call[m->frame[c->frame].call].desc].kind == CALL_NAMES)
            *lo = *hi = byte;
        for (; e < end && e->hi < byte; e++)
            *lo = MAX(*lo, e->hi + 1u);
        if (e < end && e->lo <= byte) {
            *lo = MAX(*lo, e->lo);
            *hi = MIN(*hi, e->hi);
        } else if (e < end) {
            *hi = MIN(*hi, e->lo - 1u);
        }
    }
}

static uint16_t find_step(struct tables *t, uint32_t from, uint8_t byte) {
    struct machine *m = t->w->m;
    struct set s = t->set[from].set, next;
    uint32_t plain = t->of_state && s.begin < s.end ? m->config[s.begin].state : NO_STATE;
    uint16_t to = STEP_DEAD;
    unsigned lo, hi;

    tables_find_range(m, &s, byte, &lo, &hi);
    if (plain != NO_STATE) {
        uint32_t state = state_next(m->g, &m->g->state[plain], byte);

        if (state != NO_STATE)
            to = (uint16_t)(STEP_SETS + number_of_state(t, state));
    } else if (machine_step(m, &s, byte, &next)) {
        to = (uint16_t)(STEP_SETS + tables_number(t, &next));
    } else {
        m->n_configs = next.begin;
    }
    for (unsigned c = lo; c <= hi && !m->error; c++)
        t->next[from][c] = to;
    return to;
}

/* A node that a walk is at: its items and those below it are [n->items, end). */
struct place {
    const struct trie_node *n;
    /* text_bit() of the bytes below it */
    uint64_t below;
    uint32_t end, depth;
};

/* Returns the end of the items at and below child @i of a node; @end is behind its last sibling,
 * whose items end at @last. */
static inline uint32_t tables_end(const struct trie *t, uint32_t i, uint32_t end, uint32_t last) {
    if (i + 1 >= end)
        return last;
    return t->node[i + 1].items;
}

/* Returns whether @s is known to read all that is below @n. */
static inline bool known_reads_all(const struct known_set *s, const struct trie_node *n) {
    return n->height <= s->free_chars[n->kind];
}

static void subtract_out(struct tables *t, uint32_t first, uint32_t last) {
    if (!t->reached || first == last)
        return;
    uint32_t i = first / 64, end = (last - 1) / 64;
    uint64_t head = UINT64_MAX << first % 64, tail = UINT64_MAX >> (63 - (last - 1) % 64);

    if (i == end) {
        t->reached[i] &= ~(head & tail);
        return;
    }
    t->reached[i++] &= ~head;
    memset(t->reached + i, 0, (end - i) * sizeof(*t->reached));
    t->reached[end] &= ~tail;
}

/* Calls visit() at @p, which the set @k has reached, if the set needs that call. Returns false if
 * the walk does not go on below @p. */
static bool visit_place(struct tables *t, const struct place *p, size_t k) {
    struct walk *w = t->w;
    const struct known_set *s = &t->set[k];

    return !w->visit || (w->ends && !(p->below & s->visit_bytes)) ||
           w->visit(w, (uint32_t)(p->n - w->trie->node), &s->set, p->depth);
}

/* Visits @p, which the set @k has reached. Returns whether to look below it. */
static bool reach_place(struct tables *t, const struct place *p, size_t k) {
    struct walk *w = t->w;
    uint32_t first = p->n->items + p->n->n_items;

    if (!visit_place(t, p, k) || t->set[k].set.begin == t->set[k].set.end) {
        subtract_out(t, first, p->end);
        return false;
    }
    if (!known_reads_all(&t->set[k], p->n))
        return true;
    if (w->accept && first < p->end)
        w->accept(w, first, p->end, &t->set[k].set, p->depth);
    return false;
}

/* Children [i, end) of a node that the set @set has reached, which the walk has not yet read. */
struct siblings {
    /* last: the end of their items */
    uint32_t i, end, last;
    uint16_t set, depth;
};

/* Clears in t->reached what is not reached below node @root, whose items end at @last, from the set
 * @from. The loop runs for nearly every node of a vocabulary, so its state is in locals and rare
 * cases are in other functions. */
static void tables_below(struct tables *t, uint32_t root, uint32_t last, uint32_t from,
                         uint32_t depth) {
    struct walk *w = t->w;
    const struct trie *trie = w->trie;
    const struct trie_node *node = trie->node;
    const uint64_t *below = trie->below;
    struct siblings stack[TRIE_MAX_LEN + 1];
    uint16_t *next = t->next[from];
    uint32_t i = node[root].child, end = i + node[root].n_children, n_visited = 0, n_stack = 0;
    bool needs = w->need;

    for (depth++; i < end || n_stack > 0;) {
        if (i == end) {
            i = stack[--n_stack].i;
            end = stack[n_stack].end;
            last = stack[n_stack].last;
            from = stack[n_stack].set;
            depth = stack[n_stack].depth;
            next = t->next[from];
            continue;
        }
        uint32_t at = i++, to = next[node[at].byte];

        if (needs && node_is_idle(w, node[at].items, tables_end(trie, at, end, last)))
            continue;
        if (to < STEP_SETS) {
            if (to == STEP_UNKNOWN)
                to = find_step(t, from, node[at].byte);
            next = t->next[from];
            if (w->m->error)
                break;
            if (to == STEP_DEAD) {
                subtract_out(t, node[at].items, tables_end(trie, at, end, last));
                continue;
            }
        }
        const struct known_set *s = &t->set[to - STEP_SETS];
        bool on = !known_reads_all(s, &node[at]);

        n_visited++;
        if (s->watched || (below[at] & s->visit_bytes)) {
            struct place p = {&node[at], below[at], tables_end(trie, at, end, last), depth};

            on = reach_place(t, &p, to - STEP_SETS);
            next = t->next[from];
        }
        if (!on)
            continue;
        uint32_t on_last = tables_end(trie, at, end, last);

        assert(n_stack < ARRAY_SIZE(stack));
        if (i < end)
            stack[n_stack++] = (struct siblings){i, end, last, (uint16_t)from, (uint16_t)depth};
        i = node[at].child;
        end = i + node[at].n_children;
        last = on_last;
        from = to - STEP_SETS;
        next = t->next[from];
        depth++;
    }
    w->n_visited += n_visited;
}

/* Sets the items [@first, @last) that are reached. Where these are most of a vocabulary, of which
 * none was set, the others are cleared, which are fewer. */
static void set_reached(struct tables *t, uint32_t first, uint32_t last) {
    struct walk *w = t->w;
    const uint32_t *item = w->trie->item;
    uint32_t n = w->trie->n_items;
    bool clears = false;

    if (w->empty && first == 0 && last == n) {
        const struct grammar_vocab *v = w->m->g->vocab;

        w->n_set = bits_count((const uint32_t *)t->reached, (n + 63) / 64 * 2);
        clears = w->n_set > n / 2;
        if (clears)
            memcpy(w->bits, v->text, grammar_vocab_n_words(v) * sizeof(*w->bits));
    }
    for (uint32_t k = first / 64; first < last && k <= (last - 1) / 64; k++) {
        uint64_t left = clears ? ~t->reached[k] : t->reached[k];

        left &= k == first / 64 ? UINT64_MAX << first % 64 : UINT64_MAX;
        left &= k == (last - 1) / 64 ? UINT64_MAX >> (63 - (last - 1) % 64) : UINT64_MAX;
        left &= w->need ? w->need[k] : UINT64_MAX;
        for (; left; left &= left - 1) {
            uint32_t id = item[k * 64 + (uint32_t)__builtin_ctzll(left)], bit = 1u << (id % 32);

            w->n_set += !w->empty && !(w->bits[id / 32] & bit);
            w->bits[id / 32] ^= clears || !(w->bits[id / 32] & bit) ? bit : 0;
        }
    }
}

/* Walks below node @root, whose items end at @last, from the set @from, and sets what is
 * reached. */
static void walk_below(struct tables *t, uint32_t root, uint32_t last, uint32_t from,
                       uint32_t depth) {
    const struct trie_node *n = &t->w->trie->node[root];
    uint32_t first = n->items + n->n_items;

    if (t->reached && first < last)
        memset(t->reached + first / 64, 0xff,
               ((last - 1) / 64 - first / 64 + 1ul) * sizeof(uint64_t));
    if (t->reached && last % 64 && last == t->w->trie->n_items)
        t->reached[last / 64] = UINT64_MAX >> (64 - last % 64);
    tables_below(t, root, last, from, depth);
    if (t->reached && !t->w->m->error)
        set_reached(t, first, last);
}

/* Returns the number of a copy of @s. */
static uint32_t number_copy(struct tables *t, const struct set *s) {
    struct machine *m = t->w->m;
    uint32_t n = s->end - s->begin;

    if (t->of_state)
        return number_of_state(t, m->config[s->begin].state);
    if (machine_reserve(m, n) < 0)
        return 0;
    struct set copy = {.begin = m->n_configs, .end = m->n_configs + n};

    memcpy(m->config + copy.begin, m->config + s->begin, n * sizeof(*m->config));
    m->n_configs += n;
    return tables_number(t, &copy);
}

/* Returns the rule in which every set reached from @from is a single state, or NULL. The rule has
 * at most PLAIN_STATES. */
static const struct auto_rule *plain_rule(const struct machine *m, const struct set *from) {
    const struct config *c = &m->config[from->begin];
    const struct auto_rule *r = &m->g->rule[m->g->state[c->state].rule];

    if (from->end - from->begin != 1 || !r->plain || c->frame || c->match)
        return NULL;
    if (r->n_states > PLAIN_STATES)
        return NULL;
    return r;
}

/* Prepares walks from @from. Returns false with the machine's error if there is no memory. */
static bool tables_init(struct tables *t, struct walk *w, const struct set *from) {
    const struct auto_rule *plain = plain_rule(w->m, from);

    *t = (struct tables){.w = w};
    assert(w->trie->below);
    if (plain)
        t->of_state = calloc(plain->n_states, sizeof(*t->of_state));
    if (plain && !t->of_state)
        w->m->error = -ENOMEM;
    if (w->bits)
        t->reached = malloc((w->trie->n_items / 64 + 1ul) * sizeof(*t->reached));
    if (w->bits && !t->reached)
        w->m->error = -ENOMEM;
    return !w->m->error;
}

static void tables_free(struct tables *t) {
    free(t->set);
    free(t->next);
    hash_index_deinit(&t->numbers);
    free(t->reached);
    free(t->of_state);
}

void walk_tables(struct walk *w, const struct set *from) {
    uint32_t n_configs = w->m->n_configs;
    struct tables t;

    assert(w->m->g->free_chars || !w->kinds);
    assert(w->bits || (!w->empty && !w->need));
    if (from->begin == from->end)
        return;
    if (tables_init(&t, w, from))
        number_copy(&t, from);
    if (!w->m->error)
        walk_below(&t, 0, w->trie->n_items, 0, 0);
    tables_free(&t);
    w->m->n_configs = n_configs;
}
