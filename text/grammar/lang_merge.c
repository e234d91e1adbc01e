/*
 * lang_merge - states of a language from which the same texts are accepted become one.
 *
 * Hopcroft's partition refinement as Valmari and Lehtinen do it for partial automata ("Efficient
 * minimization of DFAs with partial transition functions", 2008): states are split into blocks,
 * steps (a state, a byte and where it leads) into cords, until the steps of a cord have one byte
 * and lead to one block, and the states of a block begin steps of the same cords. Each time a set
 * is split its smaller part is the new one, so that the work is that of the steps times the
 * logarithm of their number, whatever the longest way; rounds over all states are as many as the
 * longest way, which for a length is thousands.
 *
 * Bytes that no edge tells apart are one symbol. Products of counts and multiples shrink a
 * hundredfold, and everything that is made of them with them.
 */

#include "text/grammar/lang.h"

#include <assert.h>
#include <string.h>

#define STEPS_MAX (1u << 20) /* a language with more stays as it is: 44 MB while it is done */

/* Sets of the numbers below n. Those of set s are elem[first[s]] to elem[past[s] - 1], the marked
 * ones before the others. */
struct partition {
    uint32_t n_sets, n_touched;
    uint32_t *elem, *at, *set;             /* at: the place in elem[] */
    uint32_t *first, *past, *marked, *own; /* own: the sets with marked elements */
};

struct merger {
    struct partition block, cord;
    uint32_t n, n_steps;
    uint32_t *from;          /* by step: its state */
    uint32_t *into, *into_n; /* steps to state q: into[into_n[q]] to into[into_n[q + 1] - 1] */
    uint16_t symbol[257];    /* by byte */
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

/* Marked elements get sets of their own, or the others do where those are fewer. */
static void split(struct partition *p) {
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

/* The symbols, and how many steps there are; 0: too many. */
static uint32_t find_symbols(struct merger *m, const struct lang *l) {
    bool cut[258] = {false};
    uint64_t n = 0;

    for (uint32_t i = 0; i < l->n_edges; i++)
        cut[l->edge[i].lo] = cut[l->edge[i].hi + 1] = true;
    for (unsigned c = 1; c < 257; c++)
        m->symbol[c] = (uint16_t)(m->symbol[c - 1] + cut[c]);
    for (uint32_t i = 0; i < l->n_edges; i++)
        n += m->symbol[l->edge[i].hi] - m->symbol[l->edge[i].lo] + 1u;
    return n <= STEPS_MAX ? (uint32_t)n : 0;
}

/* The steps in the order of their symbols, each symbol a cord; and those into each state. */
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
                m->into[--m->into_n[l->edge[i].to]] = step; /* it becomes where they begin */
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
        split(&m->block);
    }
    for (; c < m->cord.n_sets; c++) {
        for (uint32_t i = m->cord.first[c]; i < m->cord.past[c]; i++)
            mark(&m->block, m->from[m->cord.elem[i]]);
        split(&m->block);
        for (; b < m->block.n_sets; b++) {
            for (uint32_t i = m->block.first[b]; i < m->block.past[b]; i++) {
                uint32_t q = m->block.elem[i];

                for (uint32_t k = m->into_n[q]; k < m->into_n[q + 1]; k++)
                    mark(&m->cord, m->into[k]);
            }
            split(&m->cord);
        }
    }
}

/* The first state of each block stays; the start is the first of all. */
static void keep_blocks(const struct merger *m, struct lang *l) {
    uint32_t *number = m->block.first; /* of a block: no longer needed as what it was */
    uint32_t n = 0, n_edges = 0;

    for (uint32_t s = 0; s < m->block.n_sets; s++)
        number[s] = NO_STATE;
    for (uint32_t q = 0; q < m->n; q++) {
        if (number[m->block.set[q]] == NO_STATE) {
            number[m->block.set[q]] = n;
            l->state[n++] = l->state[q];
        }
    }
    for (uint32_t q = 0; q < n; q++) {
        struct lang_state *s = &l->state[q];
        uint32_t from = s->edge, begin = n_edges;

        assert(n_edges <= from); /* edges lie in the order of their states */
        for (uint32_t i = from; i < from + s->n_edges; i++) {
            struct edge e = l->edge[i], *last = n_edges > begin ? &l->edge[n_edges - 1] : NULL;

            e.to = number[m->block.set[e.to]];
            if (last && last->to == e.to && last->hi + 1u == e.lo)
                last->hi = e.hi;
            else
                l->edge[n_edges++] = e;
        }
        s->edge = begin;
        s->n_edges = n_edges - begin;
    }
    l->n = n;
    l->n_edges = n_edges;
}

int lang_merge(struct build *b, struct lang *l) {
    struct merger m = {.n = l->n};

    m.n_steps = find_symbols(&m, l);
    if (m.n < 2 || m.n_steps == 0)
        return 0;
    uint32_t *memory = malloc((8ull * m.n + 1 + 9ull * m.n_steps) * sizeof(*memory));
    uint32_t *room = memory;

    if (!memory)
        return build_no_memory(b);
    partition_init(&m.block, &room, m.n);
    partition_init(&m.cord, &room, m.n_steps);
    m.from = room;
    m.into = m.from + m.n_steps;
    m.into_n = m.into + m.n_steps;
    memset(m.into_n, 0, (m.n + 1ull) * sizeof(*m.into_n));
    list_steps(&m, l);
    refine(&m, l);
    keep_blocks(&m, l);
    free(memory);
    return build_work(b, m.n + 4ull * m.n_steps);
}
