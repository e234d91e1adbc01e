/*
 * crossing - finds the tokens that complete a trigger and go on behind it with bytes that the
 * grammar refuses.
 *
 * For a trigger "</think>" and the grammar of a JSON object, "\n</think>{" may come and
 * "</think>Well" may not. Whether a token is refused depends on how much of a trigger the output
 * ends with, a node of the trigger automaton (triggers.c), and on nothing else, since the grammar
 * begins anew behind each trigger. So the refused tokens are found once for each node when the
 * constraint is compiled. While the output is free, a mask is then a table look-up, or not needed
 * at all.
 *
 * There may be thousands of nodes, and reading the whole vocabulary from each would take too long.
 * So every token is read from the root of the trigger automaton (crossing_find_root()). From
 * another node only those tokens are looked at that are read differently (differ()): the
 * vocabulary's trie is walked from both nodes at once, and where the two readings come to the same
 * node before either has completed a trigger, they are one from there on. Nearly all meet after one
 * byte: only bytes that go on with a part of a trigger lead elsewhere than from the root
 * (find_ahead()).
 *
 * The other tokens that complete a trigger are kept as well (`done`): near a limit of tokens they
 * must not come if the text that the grammar then requires is too long (ending.c).
 */

#include <assert.h>
#include <errno.h>

#include "base/jobs.h"
#include "base/try.h"
#include "grammar/constraint/private.h"
#include "grammar/match/finish.h"

#define CROSSING_MAX (1u << 20) /* ids in all */
#define TRIED_MAX (1u << 22)    /* tokens looked at */
#define PAUSE_TRIED 256

/* Invariants: refused and done have the tokens of the nodes that were searched before, in the order
 * of the nodes, and then those of the present node; `state` is at the start of the grammar whenever
 * no token is being tried. */
struct search {
    const struct constraint *c;
    /* at the start of the grammar */
    struct grammar_state *state;
    const struct trie *trie;
    struct ids {
        int32_t *id;
        uint32_t n, cap;
    } refused, done, root, special; /* root: those that complete a trigger when read from root_node;
                                       special: all special tokens */
    uint32_t n_tried;
    /* bytes to an end, behind a token of done */
    uint32_t longest;
    /* written into the constraint at the end */
    uint32_t *first, *first_done;
    uint32_t root_node;
    int error;
};

static int crossing_add(struct search *s, struct ids *v, int32_t id) {
    if (!ARRAY_GROW(v->id, v->n, v->cap, 256))
        return s->error = -ENOMEM;
    if (v->n >= CROSSING_MAX)
        return s->error = -E2BIG;
    v->id[v->n++] = id;
    return 0;
}

/* Reads token @id from @node. If it completes a trigger, adds it to `refused` or `done`, depending
 * on whether the grammar refuses the rest of it. */
static void try(struct search *s, uint32_t node, int32_t id) {
    size_t len;
    const uint8_t *bytes = vocab_bytes(s->c->vocab, id, &len);
    const struct trigger_node *found;
    size_t n = triggers_feed(s->c->triggers, &node, bytes, len, &found);

    if (s->n_tried++ == TRIED_MAX)
        s->error = -E2BIG;
    if (s->n_tried % PAUSE_TRIED == 0 && !s->error)
        s->error = job_pause();
    if (!found || vocab_is_end(s->c->vocab, id) || s->error)
        return;
    int r = triggers_hold(s->c->triggers, found, s->state, bytes + n, len - n);

    if (r == 0) {
        s->longest = MAX(s->longest, grammar_bytes_left(s->state));
        grammar_rollback(s->state, 1);
        crossing_add(s, &s->done, id);
    } else if (r != -EINVAL) {
        s->error = r;
    } else {
        crossing_add(s, &s->refused, id);
    }
}

static void try_below(struct search *s, uint32_t node, const struct trie_node *at) {
    for (uint32_t i = at->items; i < at->items + at->n_items; i++)
        try(s, node, (int32_t)s->trie->item[i]);
    for (uint32_t i = at->child; i < at->child + at->n_children && !s->error; i++)
        try_below(s, node, &s->trie->node[i]);
}

/* Finds the bytes that may lead from @a elsewhere than from @b: those that go on from @a, or from a
 * shorter suffix of it that is longer than @b. They are all bytes if @b is no suffix of @a. */
static struct byte_set find_ahead(const struct triggers *t, uint32_t a, uint32_t b) {
    struct byte_set ahead = {0};

    for (; a != b; a = t->node[a].fail) {
        if (t->node[a].fail == a) {
            byte_set_add_range(&ahead, 0, 255);
            break;
        }
        for (uint32_t c = t->node[a].child; c; c = t->node[c].next)
            byte_set_add(&ahead, t->node[c].byte);
    }
    return ahead;
}

/* Tries the tokens below @at that @node and the root read differently. The bytes that lead to @at
 * lead from @node to @a, and from the root to @b. */
static void differ(struct search *s, uint32_t node, const struct trie_node *at, uint32_t a,
                   uint32_t b) {
    const struct triggers *t = s->c->triggers;
    struct byte_set ahead = find_ahead(t, a, b);

    for (uint32_t i = at->child; i < at->child + at->n_children && !s->error; i++) {
        const struct trie_node *child = &s->trie->node[i];

        if (!byte_set_has(&ahead, child->byte))
            continue;
        uint32_t x = triggers_step(t, a, child->byte), y = triggers_step(t, b, child->byte);

        assert(x < t->n && y < t->n);
        if (t->node[x].end)
            try_below(s, node, child);
        else if (x != y)
            differ(s, node, child, x, y);
    }
}

/* Finds the tokens that complete a trigger when they are read from @root. */
static void crossing_find_root(struct search *s, uint32_t root) {
    uint32_t n = s->c->vocab->n;

    s->root_node = root;
    s->root.n = 0;
    for (uint32_t id = 0; id < n && !s->error; id++) {
        size_t len;
        const uint8_t *bytes = vocab_bytes(s->c->vocab, (int32_t)id, &len);
        uint32_t node = root;
        const struct trigger_node *found;

        triggers_feed(s->c->triggers, &node, bytes, len, &found);
        if (found)
            crossing_add(s, &s->root, (int32_t)id);
    }
}

/* Tries the special tokens, which the vocabulary's trie does not have, that @node and the root read
 * differently. */
static void try_special(struct search *s, uint32_t node) {
    struct byte_set ahead = find_ahead(s->c->triggers, node, s->root_node);

    for (uint32_t i = 0; i < s->special.n && !s->error; i++) {
        size_t len;
        const uint8_t *bytes = vocab_bytes(s->c->vocab, s->special.id[i], &len);

        if (len && byte_set_has(&ahead, bytes[0]))
            try(s, node, s->special.id[i]);
    }
}

static void find_special(struct search *s) {
    for (uint32_t id = 0; id < s->c->vocab->n && !s->error; id++) {
        if (s->c->vocab->is_special[id])
            crossing_add(s, &s->special, (int32_t)id);
    }
}

static int crossing_by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

/* Sorts the ids from place @from on and removes duplicates. */
static void sort_unique(struct ids *v, uint32_t from) {
    uint32_t n = from;

    assert(from <= v->n && v->n <= v->cap);
    if (v->n > from)
        qsort(v->id + from, v->n - from, sizeof(*v->id), crossing_by_id);
    for (uint32_t i = from; i < v->n; i++) {
        if (n == from || v->id[n - 1] != v->id[i])
            v->id[n++] = v->id[i];
    }
    v->n = n;
}

static void crossing_search(struct search *s, uint32_t node) {
    uint32_t refused = s->refused.n, done = s->done.n;

    for (uint32_t i = 0; i < s->root.n && !s->error; i++)
        try(s, node, s->root.id[i]);
    if (node != s->root_node) {
        differ(s, node, &s->trie->node[0], node, s->root_node);
        try_special(s, node);
    }
    sort_unique(&s->refused, refused);
    sort_unique(&s->done, done);
}

/* Finds the tokens of the nodes in [@first, @end), a trie of triggers whose root is @root. (The
 * trie at `open` falls back to that of node 0, so node 0 counts as its root.) */
static void find_all(struct search *s, uint32_t first, uint32_t end, uint32_t root) {
    const struct trigger_node *node = s->c->triggers->node;

    if (first < end)
        crossing_find_root(s, root);
    for (uint32_t i = first; i < end && !s->error; i++) {
        assert(grammar_n_accepted(s->state) == 0); /* every trial was rolled back */
        s->first[i] = s->refused.n;
        s->first_done[i] = s->done.n;
        if (!node[i].end && node[i].becomes == i) /* the output never rests at other nodes */
            crossing_search(s, i);
    }
}

int crossing_find(struct constraint *c, struct err *err) {
    CLEANUP(grammar_state_freep) struct grammar_state *state = NULL;

    TRY(grammar_state_new(&state, c->grammar));
    struct search s = {.c = c, .state = state, .trie = &c->vocab->trie};

    s.first = c->first = calloc(c->triggers->n + 1, sizeof(*c->first));
    s.first_done = c->first_done = calloc(c->triggers->n + 1, sizeof(*c->first_done));
    if (!c->first || !c->first_done)
        return -ENOMEM;
    const struct triggers *t = c->triggers;

    assert(triggers_n_everywhere(t) <= t->n && t->quiet <= t->open && t->open < t->n);
    find_special(&s);
    find_all(&s, 0, triggers_n_everywhere(t), 0);
    if (t->quiet)
        find_all(&s, t->quiet, t->open, t->quiet);
    if (t->open)
        find_all(&s, t->open, t->n, 0);
    c->first[t->n] = s.refused.n;
    c->first_done[t->n] = s.done.n;
    free(s.root.id);
    free(s.special.id);
    c->crossing = s.refused.id;
    c->done = s.done.id;
    c->longest = s.longest;
    if (s.error == -E2BIG)
        return err_set_code(
            err, 400, "grammar_too_complex", NULL,
            "too many tokens of this vocabulary complete a trigger and go on behind it");
    return s.error;
}
