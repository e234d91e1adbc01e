/*
 * Languages that are merged: against rounds over all states, which split sets until the states of
 * each accept the same and lead to the same sets.
 */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/automaton/lang.h"

#define STATES_MAX 60
#define LETTERS 3

/* Of state q by letter; NO_STATE: none. */
struct plain {
    uint32_t n, to[STATES_MAX][LETTERS];
    uint64_t accepts[STATES_MAX];
};

static uint32_t seed = 1;

static uint32_t random_below(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* @backward: one edge in so many leads anywhere, the others to later states; 0: none does. */
static void make_random(struct plain *p, uint32_t backward) {
    p->n = 1 + random_below(STATES_MAX);
    for (uint32_t q = 0; q < p->n; q++) {
        p->accepts[q] = random_below(3) == 0 ? 1 + random_below(2) : 0;
        for (uint32_t c = 0; c < LETTERS; c++) {
            bool any = backward && random_below(backward) == 0;
            uint32_t later = p->n - q - 1, near = later < 4 ? later : 4;

            p->to[q][c] = any                                 ? random_below(p->n)
                          : near == 0 || random_below(3) == 0 ? NO_STATE
                                                              : q + 1 + random_below(near);
        }
    }
}

static void make_lang(const struct plain *p, struct lang *l) {
    *l = (struct lang){.n = p->n};
    l->state = calloc(p->n, sizeof(*l->state));
    l->edge = calloc(p->n * LETTERS, sizeof(*l->edge));
    for (uint32_t q = 0; q < p->n; q++) {
        struct lang_state *s = &l->state[q];

        *s = (struct lang_state){.edge = l->n_edges, .accepts = p->accepts[q]};
        for (uint16_t c = 0; c < LETTERS; c++) {
            struct edge *last = l->n_edges > s->edge ? &l->edge[l->n_edges - 1] : NULL;
            uint16_t byte = (uint16_t)('a' + c);

            if (p->to[q][c] == NO_STATE)
                continue;
            if (last && last->to == p->to[q][c] && last->hi + 1 == byte)
                last->hi = byte;
            else
                l->edge[l->n_edges++] = (struct edge){byte, byte, p->to[q][c]};
        }
        s->n_edges = l->n_edges - s->edge;
    }
}

static uint32_t next_of(const struct lang *l, uint32_t q, uint32_t c) {
    for (uint32_t i = l->state[q].edge; i < l->state[q].edge + l->state[q].n_edges; i++) {
        if (l->edge[i].lo <= 'a' + c && 'a' + c <= l->edge[i].hi)
            return l->edge[i].to;
    }
    return NO_STATE;
}

/* The number of sets; a set has the number of its first state. */
static uint32_t split_naively(const struct plain *p, uint32_t *set) {
    uint32_t n = 0, before, now[STATES_MAX];

    memset(set, 0, p->n * sizeof(*set));
    do {
        before = n;
        n = 0;
        for (uint32_t q = 0; q < p->n; q++) {
            uint32_t r = 0;

            for (; r < q; r++) {
                bool same = set[r] == set[q] && p->accepts[r] == p->accepts[q];

                for (uint32_t c = 0; same && c < LETTERS; c++) {
                    uint32_t x = p->to[q][c], y = p->to[r][c];

                    same =
                        (x == NO_STATE) == (y == NO_STATE) && (x == NO_STATE || set[x] == set[y]);
                }
                if (same)
                    break;
            }
            now[q] = r;
            n += r == q;
        }
        memcpy(set, now, p->n * sizeof(*set));
    } while (n != before);
    return n;
}

/* A set's number in the merged language: by the first states. */
static void check_merged(const struct plain *p, const struct lang *l) {
    uint32_t set[STATES_MAX], number[STATES_MAX], n = split_naively(p, set), k = 0;

    cr_assert_eq(l->n, n, "%u states instead of %u", l->n, n);
    for (uint32_t q = 0; q < p->n; q++)
        number[q] = set[q] == q ? k++ : number[set[q]];
    for (uint32_t q = 0; q < p->n; q++) {
        uint32_t merged = number[q];

        cr_assert_eq(l->state[merged].accepts, p->accepts[q]);
        for (uint32_t c = 0; c < LETTERS; c++) {
            uint32_t to = next_of(l, merged, c);

            cr_assert_eq(to, p->to[q][c] == NO_STATE ? NO_STATE : number[p->to[q][c]]);
        }
    }
}

/* Without circles, with few and with many. */
Test(grammar_lang, merged_states_are_those_of_rounds) {
    static const uint32_t BACKWARD[] = {0, 40, 12, 3};
    struct err err;
    struct build b;
    uint32_t n_merged = 0;

    build_init(&b, NULL, NULL, &err);
    for (uint32_t i = 0; i < 4000; i++) {
        struct plain p;
        struct lang l;

        make_random(&p, BACKWARD[i % 4]);
        make_lang(&p, &l);
        cr_assert_eq(lang_merge(&b, &l), 0);
        check_merged(&p, &l);
        n_merged += l.n < p.n;
        free(l.state);
        free(l.edge);
    }
    cr_assert_gt(n_merged, 1000);
    build_deinit(&b);
}
