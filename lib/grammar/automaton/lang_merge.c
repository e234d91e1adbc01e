/*
 * lang_merge - minimizes an automaton: states from which the same texts are accepted become one.
 *
 * Products of counts and multiples shrink a hundredfold, and so does all that is made of them.
 * Example: in "xa" | "ya" the states behind x and y are equal, and so are those behind a.
 *
 * The algorithm is Hopcroft's partition refinement in the form of Valmari and Lehtinen ("Efficient
 * minimization of DFAs with partial transition functions", 2008). It begins with the coarsest
 * partition and splits what cannot stay together. There are two partitions: of the states into
 * blocks, and of the steps, each of which is a state, a symbol and a target, into cords. At the end
 *
 * - the states of a block accept the same languages,
 * - the steps of a cord have one symbol and lead to one block,
 * - of the states of a block, either all or none begin a step of a given cord.
 *
 * refine() establishes this alternately: a new block splits the cords by whether their steps lead
 * to it, a new cord splits the blocks by whether their states begin one of its steps. A split
 * (mark(), lang_merge_split()) makes the smaller part the new set, so a step is looked at again
 * only when its set has at most half the size: the work is n log n in the number of steps n.
 * Moore's simpler algorithm, which splits all states in rounds, takes as many rounds as the longest
 * text that is needed to tell two states apart: a thousand for a maxLength of a thousand.
 *
 * Bytes that no edge tells apart are one symbol (find_symbols()), which makes the steps few.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "grammar/automaton/lang.h"

#define STEPS_MAX (1u << 20) /* an automaton with more is not minimized: that takes 44 MB */

/* A partition of the numbers below n into sets. The elements of set s are elem[first[s]] to
 * elem[past[s] - 1], the marked ones before the others. */
struct partition {
    uint32_t n_sets, n_touched;
    /* at: the place in elem[] */
    uint32_t *elem, *at, *set;
    /* own: the sets with marked elements */
    uint32_t *first, *past, *marked, *own;
};

struct merger {
    struct partition block, cord;
    uint32_t n, n_steps;
    /* by step: its state */
    uint32_t *from;
    /* steps to state q: into[into_n[q]] to into[into_n[q + 1] - 1] */
    uint32_t *into, *into_n;
    /* by byte */
    uint16_t symbol[257];
};

static void partition_init(struct partition *p, uint32_t **room, uint32_t n) {
    uint32_t **array[] = {&p->elem, &p->at, &p->set, &p->first, &p->past, &p->marked, &p->own};

    *p = (struct partition){.n_sets = n > 0};
    for (size_t i = 0; i < ARRAY_SIZE(array); i++, *room += n)
        *array[i] = *room;
    memset(p->marked, 0, n * sizeof(*p->marked));
    memset(p->set, 0, n * sizeof(*p->set));
    for (uint32_t i = 0; i < n; i++)
        p->elem[i] = p->at[i] = i;
    if (n) {
        p->first[0] = 0;
        p->past[0] = n;
    }
}

static void mark(struct partition *p, uint32_t e) {
    uint32_t s = p->set[e], i = p->at[e], k = p->first[s] + p->marked[s];

    assert(i >= k && i < p->past[s]); /* not twice */
    p->elem[i] = p->elem[k];
    p->at[p->elem[i]] = i;
    p->elem[k] = e;
    p->at[e] = k;
    if (p->marked[s]++ == 0)
        p->own[p->n_touched++] = s;
}

/* Splits each set into its marked and unmarked elements; the smaller part becomes a new set. */
static void lang_merge_split(struct partition *p) {
    while (p->n_touched) {
        uint32_t s = p->own[--p->n_touched], k = p->first[s] + p->marked[s], made = p->n_sets;

        p->marked[s] = 0;
        if (k == p->past[s])
            continue;
        if (k - p->first[s] <= p->past[s] - k) {
            p->first[made] = p->first[s];
            p->past[made] = p->first[s] = k;
        } else {
            p->first[made] = k;
            p->past[made] = p->past[s];
            p->past[s] = k;
        }
        p->marked[made] = 0;
        for (uint32_t i = p->first[made]; i < p->past[made]; i++)
            p->set[p->elem[i]] = made;
        p->n_sets++;
    }
}

/* Numbers the symbols, ranges of bytes that no edge tells apart, and counts the steps. Returns
 * whether they are few enough. */
static bool find_symbols(struct merger *m, const struct lang *l) {
    bool cut[258] = {false};
    uint64_t n = 0;

    for (uint32_t i = 0; i < l->n_edges; i++)
        cut[l->edge[i].lo] = cut[l->edge[i].hi + 1] = true;
    for (unsigned c = 1; c < 257; c++)
        m->symbol[c] = (uint16_t)(m->symbol[c - 1] + cut[c]);
    for (uint32_t i = 0; i < l->n_edges; i++)
        n += m->symbol[l->edge[i].hi] - m->symbol[l->edge[i].lo] + 1u;
    m->n_steps = (uint32_t)n; /* unused if there are too many */
    return n <= STEPS_MAX;
}

/* Lists the steps in the order of their symbols, with one cord for each symbol to begin with, and
 * the steps into each state. */
static void list_steps(struct merger *m, const struct lang *l) {
    struct partition *p = &m->cord;
    uint32_t begin[258] = {0};

    for (uint32_t i = 0; i < l->n_edges; i++) {
        for (unsigned s = m->symbol[l->edge[i].lo]; s <= m->symbol[l->edge[i].hi]; s++) {
            begin[s + 1]++;
            m->into_n[l->edge[i].to]++;
        }
    }
    p->n_sets = 0;
    for (unsigned s = 0; s < 257; s++) {
        if (begin[s + 1]) {
            p->first[p->n_sets] = begin[s];
            p->past[p->n_sets++] = begin[s] + begin[s + 1];
        }
        begin[s + 1] += begin[s];
    }
    for (uint32_t s = 0; s < p->n_sets; s++) {
        for (uint32_t i = p->first[s]; i < p->past[s]; i++)
            p->set[i] = s;
    }
    for (uint32_t q = 0; q < m->n; q++)
        m->into_n[q + 1] += m->into_n[q];
    for (uint32_t q = 0; q < m->n; q++) {
        const struct lang_state *s = &l->state[q];

        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
            for (unsigned k = m->symbol[l->edge[i].lo]; k <= m->symbol[l->edge[i].hi]; k++) {
                uint32_t step = begin[k]++;

                m->from[step] = q;
                m->into[--m->into_n[l->edge[i].to]] = step; /* down to its first step */
            }
        }
    }
}

static void refine(struct merger *m, const struct lang *l) {
    uint64_t bits = 0;
    uint32_t b = 1, c = 0;

    for (uint32_t q = 0; q < m->n; q++)
        bits |= l->state[q].accepts;
    for (; bits; bits &= bits - 1) {
        uint64_t bit = bits & -bits;

        for (uint32_t q = 0; q < m->n; q++) {
            if (l->state[q].accepts & bit)
                mark(&m->block, q);
        }
        lang_merge_split(&m->block);
    }
    for (; c < m->cord.n_sets; c++) {
        for (uint32_t i = m->cord.first[c]; i < m->cord.past[c]; i++)
            mark(&m->block, m->from[m->cord.elem[i]]);
        lang_merge_split(&m->block);
        for (; b < m->block.n_sets; b++) {
            for (uint32_t i = m->block.first[b]; i < m->block.past[b]; i++) {
                uint32_t q = m->block.elem[i];

                for (uint32_t k = m->into_n[q]; k < m->into_n[q + 1]; k++)
                    mark(&m->cord, m->into[k]);
            }
            lang_merge_split(&m->cord);
        }
    }
}

/* Finds the sets of equal states: each state for itself if there are too many steps. */
static int find_sets(struct build *b, const struct lang *l, uint32_t *set, uint32_t *n_sets) {
    struct merger m = {.n = l->n};

    if (!find_symbols(&m, l)) {
        for (uint32_t q = 0; q < l->n; q++)
            set[q] = q;
        *n_sets = l->n;
        return 0;
    }
    CLEANUP(freep) uint32_t *memory = malloc((8ull * m.n + 1 + 9ull * m.n_steps) * sizeof(*memory));
    uint32_t *room = memory;

    if (!memory)
        return build_no_memory(b);
    partition_init(&m.block, &room, m.n);
    partition_init(&m.cord, &room, m.n_steps);
    m.from = room;
    m.into = m.from + m.n_steps;
    m.into_n = m.into + m.n_steps;
    assert(m.into_n + m.n + 1 == memory + 8ull * m.n + 1 + 9ull * m.n_steps);
    memset(m.into_n, 0, (m.n + 1ull) * sizeof(*m.into_n));
    list_steps(&m, l);
    refine(&m, l);
    memcpy(set, m.block.set, m.n * sizeof(*set));
    *n_sets = m.block.n_sets;
    return build_work(b, m.n + 4ull * m.n_steps);
}

/* Keeps the first state of each set, so that the start stays the first state. Edges lead to sets,
 * and adjacent ranges of bytes that lead to one set are one edge. */
static void merge_sets(struct lang *l, const uint32_t *set, uint32_t *number, uint32_t n_sets) {
    uint32_t n = 0, n_edges = 0;

    memset(number, 0xff, n_sets * sizeof(*number));
    for (uint32_t q = 0; q < l->n; q++) {
        if (number[set[q]] == NO_STATE) {
            number[set[q]] = n;
            l->state[n++] = l->state[q];
        }
    }
    assert(n == n_sets);
    for (uint32_t q = 0; q < n; q++) {
        struct lang_state *state = &l->state[q];
        uint32_t from = state->edge, first = n_edges;

        assert(first <= from); /* edges lie in the order of their states */
        for (uint32_t i = from; i < from + state->n_edges; i++) {
            struct edge e = l->edge[i];

            e.to = number[set[e.to]];
            if (n_edges > first && l->edge[n_edges - 1].to == e.to &&
                l->edge[n_edges - 1].hi + 1u == e.lo)
                l->edge[n_edges - 1].hi = e.hi;
            else
                l->edge[n_edges++] = e;
        }
        state->edge = first;
        state->n_edges = n_edges - first;
    }
    l->n = n;
    l->n_edges = n_edges;
}

int lang_merge(struct build *b, struct lang *l) {
    uint32_t n_sets;

    TRY(build_work(b, l->n + (uint64_t)l->n_edges));
    if (l->n < 2)
        return 0;
    CLEANUP(freep) uint32_t *set = malloc(2ull * l->n * sizeof(*set));
    if (!set)
        return build_no_memory(b);
    TRY(find_sets(b, l, set, &n_sets));
    merge_sets(l, set, set + l->n, n_sets);
    return 0;
}
