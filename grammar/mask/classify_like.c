/*
 * classify_like - makes the class of a state that reads much of the vocabulary without looking at
 * every token.
 *
 * A pattern beside a maxLength has a copy of each of its states for each count, and each copy may
 * need a class of its own, at up to a millisecond. But what most of them read is known without a
 * walk, in two ways.
 *
 * Short texts (collect_shorts()). Texts of few characters without quotes, backslashes and controls
 * (KIND_TEXT) are most of a vocabulary. Two numbers say what the state makes of them:
 *
 *     from     it reads all of them with at most so many characters (free_chars.c), or the same of
 *              them as a state that has a class (states_agree(), agree.c)
 *     to       it reads none with more characters than this (state_reach(), agree.c)
 *
 * Example: a state that may read at most 7 further characters of any kind has from = to = 7. The
 * short texts with at most `from` characters come from bit maps, those with more than `to` are out,
 * and only those between are read one by one. The other tokens, which are few, are walked as usual.
 * This is given up if more than an eighth of the short texts lie between.
 *
 * Copying (collect_like()). States of one pattern often differ in a few bytes, behind which both
 * lead to the same state again. walk_like() walks from this state and from a similar one that has a
 * class at the same time. Where both lead to the same set, all that is below a node is copied:
 * `region` lists these parts of the trie, so that copy_rest() can copy the tokens that end the rule
 * there, too.
 *
 * Both ways look for a similar state with find_like(): among the neighbours by number, since the
 * copies of a state for counts that differ by one get numbers that are not far apart.
 */

#include "grammar/mask/collect.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define LIKE_WALK 30000 /* nodes in which a class may differ from one like it */
#define LIKE_SHARE 16   /* states are too different if more than n_items / this start differently */
#define LIKE_NEAR 64    /* neighbouring states that are tried as similar */
#define SHORTS_SHARE 8  /* at most this share of the short texts is read one by one */
#define AGREE_NEAR 1024 /* LIKE_NEAR for a rule that calls no other */
#define LIKE_TRIES 4    /* number of these states that are compared */
#define LIKE_LOOKS 100000 /* edges that all comparisons may look at: takes as long as a walk */

static void keep_region(struct walk *w, uint32_t first, uint32_t last, uint32_t depth) {
    struct collector *k = w->arg;

    assert(k->n_regions == 0 || k->region[k->n_regions - 1].last <= first);
    if (!ARRAY_GROW(k->region, k->n_regions, k->cap_regions, 256))
        k->error = w->m->error = -ENOMEM;
    else
        k->region[k->n_regions++] = (struct region){first, last, depth};
}

/* Copies from @like the tokens that end the rule and go on, where the walk was skipped. */
static void copy_rest(struct collector *k, const struct token_class *like) {
    for (uint32_t i = 0; i < like->n_rest && !k->error && !k->too_large; i++) {
        uint32_t at = vocab_trie_place(k->g->vocab, (int32_t)like->rest[i].id);
        uint32_t lo = 0, hi = k->n_regions;

        while (lo < hi) { /* finds the first region that ends behind the token */
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

/* Returns the number of tokens on which @q and @r go to different states at the first byte. */
static uint32_t distance(const struct grammar *g, uint32_t q, uint32_t r) {
    const struct trie *t = vocab_trie(g->vocab);
    const struct trie_node *root = &t->node[0];
    uint32_t n = 0;

    for (uint32_t i = root->child; i < root->child + root->n_children; i++) {
        const struct trie_node *c = &t->node[i];
        uint32_t a = state_next(g, &g->state[q], c->byte), b = state_next(g, &g->state[r], c->byte);
        bool both = a != NO_STATE && b != NO_STATE && c->kind < TEXT_KINDS;

        if (a == b || (both && g->free_chars[a][c->kind] >= c->height &&
                       g->free_chars[b][c->kind] >= c->height && c->height <= FREE_CHARS_MAX))
            continue;
        n += (i + 1 < root->child + root->n_children ? c[1].items : t->n_items) - c->items;
    }
    return n;
}

/* Rates how similar @r is to @q; negative: its class is no help. Adds the edges that were looked at
 * to *@n_looked. */
typedef int64_t likeness(const struct grammar *g, uint32_t q, uint32_t r, uint64_t *n_looked);

static int64_t bytes_alike(const struct grammar *g, uint32_t q, uint32_t r, uint64_t *n_looked) {
    *n_looked += vocab_trie(g->vocab)->node[0].n_children / 4; /* takes as long as so many edges */
    return (int64_t)(vocab_trie(g->vocab)->n_items / LIKE_SHARE) - distance(g, q, r);
}

/* Moves *@e behind the run of edges whose ranges adjoin. Returns the last byte of the run. */
static unsigned run_end(const struct edge **e, const struct edge *end) {
    unsigned hi = (*e)->hi;

    for (++*e; *e < end && (*e)->lo == hi + 1; ++*e)
        hi = (*e)->hi;
    return hi;
}

/* Returns whether @q and @r read the same bytes first. Most neighbours do not, which shows sooner
 * here than in states_agree(). */
static bool begin_alike(const struct grammar *g, uint32_t q, uint32_t r, uint64_t *n_looked) {
    const struct state *s = &g->state[q], *t = &g->state[r];
    const struct edge *e = g->edge + s->edge, *e_end = e + s->n_edges;
    const struct edge *f = g->edge + t->edge, *f_end = f + t->n_edges;

    *n_looked += (uint64_t)s->n_edges + t->n_edges;
    while (e < e_end && f < f_end) {
        if (e->lo != f->lo || run_end(&e, e_end) != run_end(&f, f_end))
            return false;
    }
    return e == e_end && f == f_end;
}

static int64_t chars_alike(const struct grammar *g, uint32_t q, uint32_t r, uint64_t *n_looked) {
    return begin_alike(g, q, r, n_looked) ? states_agree(g, q, r, n_looked) : -1;
}

/* Returns the state of the rule of @k->state, at most @near states away, that has a class and the
 * highest rating by @alike above *@best, and sets *@best to the rating; NO_STATE if there is
 * none. Stops at a rating of @enough. */
static uint32_t find_like(struct collector *k, uint32_t near, likeness *alike, int64_t enough,
                          int64_t *best) {
    const struct grammar *g = k->g;
    const struct auto_rule *rule = &g->rule[g->state[k->state].rule];
    uint32_t like = NO_STATE, n_tried = 0, q = k->state;
    uint64_t n_looked = near / 4; /* the loop itself */

    for (uint32_t i = 2;
         i < 2 * near && n_tried < LIKE_TRIES && *best < enough && n_looked < LIKE_LOOKS; i++) {
        uint32_t r = i % 2 ? q + i / 2 : q - i / 2;

        if (r - rule->start >= rule->n_states)
            continue;
        const struct token_class *c = atomic_load_explicit(&g->cls[r], memory_order_acquire);

        if (!c || !c->bits || c->level || c->base)
            continue;
        int64_t n = alike(g, q, r, &n_looked);

        n_tried += n > 0;
        if (n > *best) {
            *best = n;
            like = r;
        }
    }
    k->n_looked += n_looked;
    return like;
}

int collect_like(struct collector *k, const struct set *from) {
    struct machine *m = k->walk.m;
    struct walk *w = &k->walk;
    uint32_t q = k->state;
    int64_t alike = 0;
    uint32_t r = k->g->rule[k->g->state[q].rule].loop
                     ? NO_STATE
                     : find_like(k, LIKE_NEAR, bytes_alike, INT64_MAX, &alike);

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
    w->same = NULL; /* other walks follow where this one is given up */
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

bool collect_shorts(struct collector *k) {
    const struct grammar *g = k->g;
    const struct grammar_vocab *v = g->vocab;
    uint32_t q = k->state;
    const struct auto_rule *rule = &g->rule[g->state[q].rule];
    const struct shorts *s = vocab_shorts(v);
    int64_t from = g->free_chars[q][KIND_TEXT];
    uint32_t like = NO_STATE, to = FREE_CHARS_MAX, n_words = grammar_vocab_n_words(v);
    bool ends = true; /* the rule may end inside a short text, so a token may go on behind it */

    if (k->keeps || k->quick)
        return false;
    if (rule->plain && from < FREE_CHARS_MAX)
        to = MIN(state_reach(g, q, &ends, &k->n_looked), (uint32_t)FREE_CHARS_MAX);
    if (ends && (from < FREE_CHARS_MAX || k->counts) &&
        !(kinds_without(k->follow) >> KIND_TEXT & 1))
        return false;
    if (rule->plain && from < to)
        like = find_like(k, AGREE_NEAR, chars_alike, to, &from);
    from = MIN(from, (int64_t)to);
    if (to > from &&
        s->first[to + 1] - s->first[from + 1] > s->first[FREE_CHARS_MAX + 1] / SHORTS_SHARE)
        return false;
    const uint32_t *all = like == NO_STATE ? NULL : atomic_load(&g->cls[like])->bits;
    const uint32_t *is_short = vocab_short_bits(v), *at_most = vocab_at_most(v, (uint32_t)from);

    for (uint32_t w = 0; w < n_words; w++)
        k->walk.bits[w] = is_short[w] & at_most[w] & (all ? all[w] : UINT32_MAX);
    assert(k->walk.n_visited == 0);
    k->walk.n_set = bits_count(k->walk.bits, n_words);
    k->walk.short_from = (uint32_t)from + 1;
    k->walk.short_to = to;
    k->walk.trie = vocab_odd_trie(v);
    return true;
}
