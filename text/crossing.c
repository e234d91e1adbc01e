/*
 * crossing - the tokens that reach beyond a trigger with bytes that the grammar refuses.
 *
 * For a trigger "</think>" and the grammar of a JSON object, "\n</think>{" may come and
 * "</think>Well" may not. Which tokens these are depends on how much of a trigger the output ends
 * with (a node of the automaton), and on nothing else, since the grammar always begins anew: so
 * they are found once, and while the output is free a mask is a table look-up, or not needed at
 * all.
 *
 * Every token is read from the root. From another node, only those are looked at whose reading
 * differs: two readings that meet before either is complete go on as one, and in a trie nearly all
 * of them meet at once.
 */

#include "text/constraint_private.h"

#include <errno.h>
#include <string.h>
#include "text/grammar/trie.h"

#define CROSSING_MAX (1u << 20) /* ids in all */
#define TRIED_MAX (1u << 22)    /* tokens looked at */

struct search {
    const struct constraint *c;
    struct grammar_state *state; /* at the start of the grammar */
    const struct trie *trie;
    int32_t *id, *root; /* root: those that complete a trigger when read from root_node */
    uint32_t n, cap, n_root, cap_root, n_tried;
    uint32_t *first; /* of the constraint */
    uint16_t root_node;
    int error;
};

static int add(struct search *s, int32_t **v, uint32_t *n, uint32_t *cap, int32_t id) {
    if (*n == *cap) {
        uint32_t bigger = *cap ? *cap * 2 : 256;
        int32_t *p = realloc(*v, bigger * sizeof(*p));

        if (!p)
            return s->error = -ENOMEM;
        *v = p;
        *cap = bigger;
    }
    if (*n >= CROSSING_MAX)
        return s->error = -E2BIG;
    (*v)[(*n)++] = id;
    return 0;
}

/* Token @id, read from @node: if it completes a trigger and the grammar refuses the rest, it is
 * one. */
static void try(struct search *s, uint16_t node, int32_t id) {
    size_t len;
    const uint8_t *bytes = vocab_bytes(s->c->vocab, id, &len);
    bool found;
    size_t n = triggers_feed(s->c->triggers, &node, bytes, len, &found);

    if (s->n_tried++ == TRIED_MAX)
        s->error = -E2BIG;
    if (!found || n == len || vocab_is_end(s->c->vocab, id) || s->error)
        return;
    int r = grammar_restart(s->state, bytes + n, len - n);

    if (r == 0)
        grammar_rollback(s->state, 1);
    else if (r != -EINVAL)
        s->error = r;
    else
        add(s, &s->id, &s->n, &s->cap, id);
}

static void try_below(struct search *s, uint16_t node, const struct trie_node *at) {
    for (uint32_t i = at->items; i < at->items + at->n_items; i++)
        try(s, node, (int32_t)s->trie->item[i]);
    for (uint32_t i = at->child; i < at->child + at->n_children && !s->error; i++)
        try_below(s, node, &s->trie->node[i]);
}

/* Tokens below @at, to which @a leads from @node and @b from its root. */
static void differ(struct search *s, uint16_t node, const struct trie_node *at, uint16_t a,
                   uint16_t b) {
    const struct triggers *t = s->c->triggers;

    for (uint32_t i = at->child; i < at->child + at->n_children && !s->error; i++) {
        const struct trie_node *child = &s->trie->node[i];
        uint16_t x = triggers_step(t, a, child->byte), y = triggers_step(t, b, child->byte);

        if (t->node[x].end)
            try_below(s, node, child);
        else if (x != y)
            differ(s, node, child, x, y);
    }
}

/* What completes a trigger when read from @root. */
static void find_root(struct search *s, uint16_t root) {
    uint32_t n = vocab_n_tokens(s->c->vocab);

    s->root_node = root;
    s->n_root = 0;
    for (uint32_t id = 0; id < n && !s->error; id++) {
        size_t len;
        const uint8_t *bytes = vocab_bytes(s->c->vocab, (int32_t)id, &len);
        uint16_t node = root;
        bool found;

        triggers_feed(s->c->triggers, &node, bytes, len, &found);
        if (found)
            add(s, &s->root, &s->n_root, &s->cap_root, (int32_t)id);
    }
}

/* Special tokens are in no trie that could be walked here; there are few. */
static void try_special(struct search *s, uint16_t node) {
    uint32_t n = vocab_n_tokens(s->c->vocab);

    for (uint32_t id = 0; id < n; id++) {
        if (vocab_is_special(s->c->vocab, (int32_t)id))
            try(s, node, (int32_t)id);
    }
}

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

static void find(struct search *s, uint16_t node) {
    uint32_t from = s->n, n = from;

    for (uint32_t i = 0; i < s->n_root && !s->error; i++)
        try(s, node, s->root[i]);
    if (node != s->root_node) {
        differ(s, node, &s->trie->node[0], node, s->root_node);
        try_special(s, node);
    }
    if (s->n > from)
        qsort(s->id + from, s->n - from, sizeof(*s->id), by_id);
    for (uint32_t i = from; i < s->n; i++) {
        if (n == from || s->id[n - 1] != s->id[i])
            s->id[n++] = s->id[i];
    }
    s->n = n;
}

/* The nodes in [@first, @end): they read as @root does, but for what the output ends with
 * already. */
static void find_all(struct search *s, uint32_t first, uint32_t end, uint16_t root) {
    const struct trigger_node *node = s->c->triggers->node;

    if (first < end)
        find_root(s, root);
    for (uint32_t i = first; i < end && !s->error; i++) {
        s->first[i] = s->n;
        if (!node[i].end && node[i].becomes == i) /* else the output is never there */
            find(s, (uint16_t)i);
    }
}

int crossing_find(struct constraint *c, struct err *err) {
    CLEANUP(grammar_state_freep) struct grammar_state *state = NULL;
    int r = grammar_state_new(&state, c->grammar);

    if (r < 0)
        return r;
    struct search s = {.c = c, .state = state, .trie = vocab_trie(c->vocab)};

    c->first = calloc(c->triggers->n + 1, sizeof(*c->first));
    if (!c->first)
        return -ENOMEM;
    s.first = c->first;
    const struct triggers *t = c->triggers;
    uint32_t quiet = t->quiet ? t->quiet : t->n, open = t->quiet ? t->open : t->n;

    find_all(&s, 0, quiet, 0);
    find_all(&s, quiet, open, t->quiet);
    find_all(&s, open, t->n, 0);
    c->first[t->n] = s.n;
    free(s.root);
    c->crossing = s.id;
    if (s.error == -E2BIG)
        return err_set_code(err, 400, "grammar_too_complex", NULL,
                            "too many tokens cross the border of the triggers");
    return s.error;
}
