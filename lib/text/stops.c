/*
 * stops - an Aho-Corasick automaton. Its states are the prefixes of the stop strings; `fail` leads
 * to the longest proper suffix of a state that is a state too, `out` to the longest stop string
 * that a state ends with. The transitions of a state are a list of at most STOPS_MAX; feeding is
 * linear because the depth falls whenever a fail link is followed.
 *
 * The depth of the state is also the number of bytes that must be held back: the longest end of the
 * stream that begins some stop string.
 */

#include "text/stops.h"

#include <assert.h>
#include <errno.h>

#define STATES_MAX (STOPS_MAX * STOPS_LEN_MAX + 1)

struct state {
    /* 0: none; children are a list */
    uint16_t child, sibling;
    uint16_t fail, depth;
    /* byte on the edge from the parent */
    uint8_t byte;
    /* index of the longest stop string that ends here; -1: none */
    int8_t out;
};

/* Invariants: at < n; depth of `at` <= n_fed; once done, match stays. Fail links lead to states of
 * less depth. */
struct stops {
    uint16_t at, n;
    bool done;
    uint64_t n_fed;
    struct stops_match match;
    uint16_t len[STOPS_MAX];
    /* [0]: the root */
    struct state state[];
};

static_assert(STATES_MAX <= UINT16_MAX, "states are numbered with 16 bits");

static uint16_t stops_child(const struct stops *s, uint16_t at, uint8_t byte) {
    uint16_t c = s->state[at].child;

    while (c && s->state[c].byte != byte)
        c = s->state[c].sibling;
    return c;
}

static uint16_t stops_step(const struct stops *s, uint16_t at, uint8_t byte) {
    for (;;) {
        uint16_t c = stops_child(s, at, byte);

        if (c || at == 0)
            return c;
        at = s->state[at].fail;
    }
}

static void stops_insert(struct stops *s, uint32_t index, const struct stop_string *str) {
    uint16_t at = 0;

    for (size_t i = 0; i < str->len; i++) {
        uint8_t byte = (uint8_t)str->data[i];
        uint16_t c = stops_child(s, at, byte);

        if (!c) {
            c = s->n++;
            s->state[c] = (struct state){.byte = byte,
                                         .out = -1,
                                         .depth = (uint16_t)(s->state[at].depth + 1),
                                         .sibling = s->state[at].child};
            s->state[at].child = c;
        }
        at = c;
    }
    if (s->state[at].out < 0) /* keeps the first of two equal strings */
        s->state[at].out = (int8_t)index;
    s->len[index] = (uint16_t)str->len;
}

/* Sets fail and out of the states in order of depth. @queue has room for all states. */
static void link_states(struct stops *s, uint16_t *queue) {
    size_t head = 0, tail = 0;

    queue[tail++] = 0;
    while (head < tail) {
        uint16_t at = queue[head++];

        for (uint16_t c = s->state[at].child; c; c = s->state[c].sibling) {
            struct state *st = &s->state[c];

            st->fail = at ? stops_step(s, s->state[at].fail, st->byte) : 0;
            assert(s->state[st->fail].depth < st->depth); /* ensures that stops_step() ends */
            if (st->out < 0)
                st->out = s->state[st->fail].out;
            queue[tail++] = c;
        }
    }
    assert(tail == s->n); /* the states are a tree, so each one was visited once */
}

int stops_new(struct stops **out, const struct stop_string *str, uint32_t n) {
    CLEANUP(stops_freep) struct stops *s = NULL;
    CLEANUP(freep) uint16_t *queue = NULL;
    size_t n_states = 1;

    if (n > STOPS_MAX)
        return -EINVAL;
    for (uint32_t i = 0; i < n; i++) {
        if (str[i].len == 0 || str[i].len > STOPS_LEN_MAX)
            return -EINVAL;
        n_states += str[i].len;
    }
    s = calloc(1, sizeof(*s) + n_states * sizeof(*s->state));
    queue = reallocarray(NULL, n_states, sizeof(*queue));
    if (!s || !queue)
        return -ENOMEM;
    s->n = 1;
    s->state[0].out = -1;
    for (uint32_t i = 0; i < n; i++)
        stops_insert(s, i, &str[i]);
    assert(s->n <= n_states);
    link_states(s, queue);
    *out = STEAL(s);
    return 0;
}

struct stops *stops_free(struct stops *s) {
    free(s);
    return NULL;
}

bool stops_feed(struct stops *s, const char *bytes, size_t len, struct stops_match *m) {
    for (size_t i = 0; i < len && !s->done; i++) {
        s->at = stops_step(s, s->at, (uint8_t)bytes[i]);
        s->n_fed++;
        if (s->state[s->at].out >= 0) {
            s->match.index = (uint32_t)s->state[s->at].out;
            assert(s->len[s->match.index] <= s->n_fed);
            s->match.begin = s->n_fed - s->len[s->match.index];
            s->done = true;
        }
    }
    if (s->done)
        *m = s->match;
    return s->done;
}

size_t stops_held(const struct stops *s) {
    assert(s->at < s->n && s->state[s->at].depth <= s->n_fed);
    return s->state[s->at].depth;
}
