/*
 * classify_like - the token class of a state from that of one near by in its rule: only where the
 * walks from the two part is anything looked at, and the rest is copied.
 */

#include "text/grammar/collect.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define LIKE_WALK 30000 /* nodes in which a class may differ from one like it */
#define LIKE_NEAR 64    /* states around it of which one may be like it */
#define AGREE_LEAST 12  /* characters: longer tokens are a tenth */
#define AGREE_NEAR 1024 /* states */
#define LIKE_TRIES 4    /* so many of them are compared */

static void keep_region(struct walk *w, uint32_t first, uint32_t last, uint32_t depth) {
    struct collector *k = w->arg;

    if (collect_grow(&k->region, k->n_regions, &k->cap_regions, sizeof(*k->region)) < 0)
        k->error = w->m->error = -ENOMEM;
    else
        k->region[k->n_regions++] = (struct region){first, last, depth};
}

/* What goes on behind the end of the rule and was not looked at, as it is in @like. */
static void copy_rest(struct collector *k, const struct token_class *like) {
    for (uint32_t i = 0; i < like->n_rest && !k->error && !k->too_large; i++) {
        uint32_t at = vocab_trie_place(k->g->vocab, (int32_t)like->rest[i].id);
        uint32_t lo = 0, hi = k->n_regions;

        while (lo < hi) { /* the first region that ends behind it */
            uint32_t mid = lo + (hi - lo) / 2;

            if (k->region[mid].last <= at)
                lo = mid + 1;
            else
                hi = mid;
        }
        if (lo < k->n_regions && k->region[lo].first <= at &&
            like->rest_text[i].len >= k->region[lo].depth)
            collect_add_rest(k, like->rest[i].id, like->rest_text[i].len, like->rest[i].n_chars);
    }
}

/* Tokens for which the walks from @q and @r part at the first byte. */
static uint32_t distance(const struct grammar *g, uint32_t q, uint32_t r) {
    const struct trie *t = vocab_trie(g->vocab);
    const struct trie_node *root = &t->node[0];
    uint32_t n = 0;

    for (uint32_t i = root->child; i < root->child + root->n_children; i++) {
        const struct trie_node *c = &t->node[i];
        uint32_t a = state_next(g, &g->state[q], c->byte), b = state_next(g, &g->state[r], c->byte);
        bool both = a != NO_STATE && b != NO_STATE && c->kind < TEXT_KINDS;

        if (a == b || (both && g->runway[a][c->kind] >= c->height &&
                       g->runway[b][c->kind] >= c->height && c->height <= RUNWAY_MAX))
            continue;
        n += (i + 1 < root->child + root->n_children ? c[1].items : t->n_items) - c->items;
    }
    return n;
}

/* A state of the rule of @q whose class is there and much like its own will be; NO_STATE. */
static uint32_t find_like(const struct grammar *g, uint32_t q) {
    const struct auto_rule *rule = &g->rule[g->state[q].rule];
    uint32_t best = NO_STATE, least = vocab_trie(g->vocab)->n_items / 4, n = 0;

    for (uint32_t i = 2; i < 2 * LIKE_NEAR && n < LIKE_TRIES && !rule->loop; i++) {
        uint32_t r = i % 2 ? q + i / 2 : q - i / 2;

        if (r - rule->start >= rule->n_states)
            continue;
        const struct token_class *c = atomic_load_explicit(&g->cls[r], memory_order_acquire);

        if (!c || !c->bits || c->level || c->base)
            continue;
        uint32_t d = distance(g, q, r);

        n++;
        if (d < least) {
            least = d;
            best = r;
        }
    }
    return best;
}

int collect_like(struct collector *k, const struct set *from, uint32_t q) {
    struct machine *m = k->walk.m;
    struct walk *w = &k->walk;
    uint32_t r = find_like(k->g, q);

    if (r == NO_STATE)
        return 1;
    const struct token_class *like = atomic_load(&k->g->cls[r]);
    struct set other = set_open(m);

    memcpy(w->bits, like->bits, grammar_vocab_n_words(k->g->vocab) * sizeof(uint32_t));
    m->config[m->n_configs++] = (struct config){.state = r};
    other.end = m->n_configs;
    w->same = keep_region;
    w->max_visited = k->quick ? SHORT_WALK : LIKE_WALK;
    walk_like(w, from, &other);
    m->n_configs = other.begin;
    if (!k->error && !m->error && !k->too_large && w->n_visited <= w->max_visited)
        copy_rest(k, like);
    if (k->error == -ENOMEM || m->error == -ENOMEM)
        return -ENOMEM;
    if (!k->error && !m->error && !k->too_large && w->n_visited <= w->max_visited)
        return 0;
    collect_begin(k);
    return 1;
}

/* A state of the plain rule of @q whose class is there and agrees with its own for longest, *@n
 * characters; NO_STATE. */
static uint32_t find_agreeing(const struct grammar *g, uint32_t q, int *n) {
    const struct auto_rule *rule = &g->rule[g->state[q].rule];
    uint32_t best = NO_STATE, n_tried = 0;

    *n = AGREE_LEAST - 1;
    for (uint32_t i = 2; i < 2 * AGREE_NEAR && n_tried < LIKE_TRIES && *n < AGREE_MAX; i++) {
        uint32_t r = i % 2 ? q + i / 2 : q - i / 2;

        if (r - rule->start >= rule->n_states)
            continue;
        const struct token_class *c = atomic_load_explicit(&g->cls[r], memory_order_acquire);

        if (!c || !c->bits || c->level || c->base)
            continue;
        int agree = states_agree(g, q, r);

        n_tried += agree > 0;
        if (agree > *n) {
            *n = agree;
            best = r;
        }
    }
    return best;
}

/* Takes the tokens of more than @n characters off the bits, and sets theirs by place in @need. */
static void take_off(struct collector *k, uint32_t n, uint64_t *need) {
    uint32_t n_longer;
    const struct placed *t = vocab_longer(k->g->vocab, n, &n_longer);

    for (uint32_t i = 0; i < n_longer; i++) {
        k->walk.bits[t[i].id / 32] &= ~(1u << (t[i].id % 32));
        need[t[i].at / 64] |= UINT64_C(1) << t[i].at % 64;
    }
}

/* Whether @s has no byte that goes on in a character. */
static bool begins_characters(const struct byte_set *s) {
    return s->w[2] == 0;
}

int collect_agreeing(struct collector *k, const struct set *from, uint32_t q) {
    const struct grammar *g = k->g;
    struct walk *w = &k->walk;
    int n;

    if (!g->rule[g->state[q].rule].plain || k->quick || !begins_characters(k->follow) ||
        g->runway[q][KIND_TEXT] == RUNWAY_MAX)
        return 1;
    uint32_t r = find_agreeing(g, q, &n);

    if (r == NO_STATE)
        return 1;
    const struct token_class *like = atomic_load(&g->cls[r]);
    CLEANUP(freep) uint64_t *need = calloc(w->trie->n_items / 64 + 1, sizeof(*need));

    if (!need)
        return -ENOMEM;
    memcpy(w->bits, like->bits, grammar_vocab_n_words(g->vocab) * sizeof(uint32_t));
    take_off(k, (uint32_t)n, need);
    w->need = need;
    k->beyond = n;
    walk_tables(w, from);
    w->need = NULL;
    k->beyond = -1;
    for (uint32_t i = 0; i < like->n_rest && !k->error; i++) {
        if ((int)vocab_n_chars(g->vocab, (int32_t)like->rest[i].id) <= n)
            collect_add_rest(k, like->rest[i].id, like->rest_text[i].len, like->rest[i].n_chars);
    }
    if (k->error == -ENOMEM || w->m->error == -ENOMEM)
        return -ENOMEM;
    if (!k->error && !w->m->error && !k->too_large)
        return 0;
    collect_begin(k);
    return 1;
}
