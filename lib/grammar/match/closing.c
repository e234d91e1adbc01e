/*
 * closing - the shortest completion of a text, and which tokens leave room for it.
 *
 * A request may produce only so many tokens more. Near that limit the mask allows a token only if
 * the text behind it can still be completed. Example: after `{"a": [1, 2` the shortest completion
 * is `]}`, one token if the vocabulary has it and otherwise two. With 4 tokens left, `,` is
 * allowed, because `0`, `]` and `}` fit into the 3 tokens behind it; with 3 left it is masked
 * unless there is a token `]}`.
 *
 * Paths. From every configuration one path leads to the end: by the edge that finish_step() names,
 * then from the configuration with the fewest bytes to go among those that this byte leads to. The
 * length of a path in bytes is known without following it: the bytes to the end of the rule
 * (finish.c), plus those behind each frame of the stack. Its length in tokens is not: the path is
 * followed byte by byte and spelled with as few tokens of the vocabulary as possible, by dynamic
 * programming from its end. The end of a path is the path of the configuration there, so results
 * are stored by configuration (struct node) and shared by all paths that lead there.
 *
 * Guarantee. The distance of a set of configurations is that of its nearest one. A token is allowed
 * if the distance behind it is at most the number of tokens that may come after it. If this held
 * for the last token, some token is allowed now: the first token of the nearest configuration's
 * path leads to a configuration whose path is the rest of it, one token shorter. So a mask is never
 * empty, and the text is complete when the last token has come.
 *
 * Cost. Far from the limit one comparison of bytes decides, since a path of n bytes takes at most n
 * tokens. Tokens of a class are not examined one by one: behind each of them there are at most so
 * many bytes to the end of the rule, which is computed once per state ("reach").
 */

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/result.h"
#include "grammar/mask/walk.h"
#include "grammar/match/finish.h"

#define PATH_BYTES 2048   /* bytes; longer ones are counted in bytes */
#define NODES_MAX 16384   /* configurations whose paths are known in one mask */
#define NODES_ASIDE 4096  /* below this number of nodes, alternative paths are explored, too */
#define PATH_FUEL 2000000 /* steps of all paths of one mask */
#define QUICK_NODES 256   /* NODES_MAX of a quick machine */
#define REACH_FUEL 1000000
#define ESCAPE_MAX 512
#define NO_NODE UINT32_MAX

/* A configuration of a path. Nodes are numbered as they are found. */
struct node {
    struct config at;
    /* NO_NODE: the end */
    uint32_t next;
    uint32_t tokens;
    uint32_t symbol;
};

struct closing {
    struct machine *m;
    const struct finish *f;
    struct set at;
    uint32_t left;
    bool refused, planned;
    /* nesting of bytes_to_differ() */
    uint32_t n_escapes;
    /* for each frame: bytes behind it + 1; 0: unknown */
    uint32_t *behind, n_behind;
    struct node *node;
    uint32_t n_nodes, cap_nodes;
    /* by configuration */
    struct hash_index nodes;
};

int closing_new(struct closing **out) {
    *out = calloc(1, sizeof(**out));
    return enomem_unless(*out);
}

struct closing *closing_free(struct closing *k) {
    if (k) {
        free(k->behind);
        free(k->node);
        hash_index_deinit(&k->nodes);
        free(k);
    }
    return NULL;
}

size_t closing_memory(const struct closing *k) {
    return sizeof(*k) + k->n_behind * sizeof(*k->behind) + k->cap_nodes * sizeof(*k->node) +
           (k->nodes.slot ? k->nodes.mask + 1ul : 0) * sizeof(*k->nodes.slot);
}

/* ---- bytes */

/* Returns the bytes from behind the rule of @frame to the end of the text. */
static uint32_t closing_bytes_behind(struct closing *k, uint32_t frame) {
    struct machine *m = k->m;

    if (frame == 0)
        return 0;
    if (frame >= k->n_behind) {
        uint32_t *v = realloc(k->behind, m->cap_frames * sizeof(*v));

        if (!v)
            return FINISH_NEVER;
        memset(v + k->n_behind, 0, (m->cap_frames - k->n_behind) * sizeof(*v));
        k->behind = v;
        k->n_behind = m->cap_frames;
    }
    if (k->behind[frame])
        return k->behind[frame] - 1;
    const struct frame f = m->frame[frame];
    const struct call_desc *d = desc_of(m, frame), *above = desc_of(m, f.parent);
    uint32_t to = m->g->call[f.call].to, reg = f.count, n = 0;

    if (is_member(d))
        reg = members_add(m, members_of(m->g, to), reg, d->min);
    if (d->kind == CALL_REPEAT) {
        uint32_t more = d->min > f.count + 1 ? d->min - f.count - 1 : 0;

        n = finish_times(more, k->f->path[m->g->rule[d->rule].start].rest);
        reg = 0;
    }
    n = finish_add(n, finish_rest(m, to, reg, above));
    n = finish_add(n, closing_bytes_behind(k, f.parent));
    k->behind[frame] = n + 1;
    return n;
}

static uint32_t closing_nearest(struct closing *k, const struct set *s, struct config *out);

/* Returns the bytes that are left behind one step of @c by @symbol, and sets *@next to the nearest
 * configuration there. 0: the text may end there, and *@next is not set. FINISH_NEVER: there is no
 * path. */
static uint32_t closing_follow(struct closing *k, const struct config *c, unsigned symbol,
                               struct config *next) {
    struct machine *m = k->m;
    uint32_t n_configs = m->n_configs, n = FINISH_NEVER;
    struct set from = set_open(m), to;

    if (machine_reserve(m, 1) < 0)
        return FINISH_NEVER;
    m->config[m->n_configs++] = *c;
    from.end = m->n_configs;
    if (machine_step(m, &from, symbol, &to) && !m->error)
        n = to.can_end ? 0 : closing_nearest(k, &to, next);
    m->n_configs = n_configs;
    return n;
}

/* Returns the bytes from @c to the end of the text if @c is in an item that begins as earlier items
 * do and must become different from them. It tries the bytes with which no earlier item goes on
 * first; only if none of these leads to an end, it goes on as an earlier item does, and differs
 * later. ESCAPE_MAX bounds the recursion: items have fewer forced bytes in common. */
static uint32_t bytes_to_differ(struct closing *k, const struct config *c, unsigned *symbol) {
    const struct grammar *g = k->m->g;
    const struct state *s = &g->state[c->state];
    struct byte_set next = {{0}};
    uint32_t best = FINISH_NEVER;

    distinct_next(k->m, c->frame, c->match, &next);
    for (int with = 0; with < 2 && best >= FINISH_NEVER && k->n_escapes < ESCAPE_MAX; with++) {
        k->n_escapes++;
        for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
            unsigned hi = MIN(g->edge[i].hi, TOKEN_SYMBOL - 1);

            for (unsigned x = MIN(g->edge[i].lo, TOKEN_SYMBOL); (x = k->f->next[x]) <= hi; x++) {
                if (byte_set_has(&next, (uint8_t)x) != with)
                    continue;
                struct config behind;
                uint32_t n = finish_add(closing_follow(k, c, x, &behind), 1);

                *symbol = n < best ? x : *symbol;
                best = MIN(best, n);
                if (!with) /* bytes of one edge lead to the same state */
                    break;
            }
        }
        k->n_escapes--;
    }
    return best;
}

static bool is_list(const struct machine *m, const struct config *c) {
    return (m->g->state[c->state].flags & STATE_MEMBERS) && c->reg &&
           members_of(m->g, c->state)->distinct;
}

/* Returns the bytes to add to a distance inside an item: items that ended in this look-ahead
 * have unknown texts and may use up the shortest ones. 0 if no such item can be equal. */
static uint32_t doubt(const struct closing *k, uint32_t frame) {
    uint32_t n_unknown = 0, longest = 0;

    if (k->m->g->n_texts && frame)
        longest = distinct_longest(k->m, frame, &n_unknown);
    return finish_times(n_unknown, finish_add(longest + 2, finish_times(2, k->f->rest_max)));
}

static uint32_t bytes_from(struct closing *k, const struct config *c, unsigned *symbol) {
    const struct machine *m = k->m;
    uint32_t n = FINISH_NEVER;

    /* Between items a configuration in the next item, or behind the last one, is nearer. */
    if (!is_list(m, c))
        n = finish_step(m, c->state, c->reg, desc_of(m, c->frame), symbol);
    if (n < FINISH_NEVER && c->match)
        n = bytes_to_differ(k, c, symbol);
    else if (n < FINISH_NEVER)
        n = finish_add(n, closing_bytes_behind(k, c->frame));
    if (n >= FINISH_NEVER)
        return FINISH_NEVER;
    return finish_add(n, doubt(k, c->frame));
}

/* Sets *@out to the first configuration of @s with the fewest bytes to its end. Returns these
 * bytes. */
static uint32_t closing_nearest(struct closing *k, const struct set *s, struct config *out) {
    uint32_t best = FINISH_NEVER;
    unsigned symbol;

    for (uint32_t i = s->begin; i < s->end; i++) {
        struct config c = k->m->config[i];
        uint32_t n = bytes_from(k, &c, &symbol);

        if (n < best) {
            best = n;
            *out = c;
        }
    }
    return best;
}

uint32_t closing_bytes(struct closing *k, const struct set *at) {
    struct config c;

    if (at->can_end)
        return 0;
    return closing_nearest(k, at, &c);
}

/* ---- tokens */

static uint32_t closing_hash(const struct config *c) {
    uint64_t h = (c->state * 0x9E3779B97F4A7C15u) ^ (c->reg * 0xC2B2AE3D27D4EB4Fu) ^
                 (c->frame * 0x165667B19E3779F9u) ^ (c->match * 0x27D4EB2F165667C5u);

    return (uint32_t)(h >> 32);
}

/* Returns the node of @c, or NO_NODE. */
static uint32_t closing_find(const struct closing *k, const struct config *c) {
    HASH_INDEX_EACH(k->nodes, closing_hash(c), i) {
        const struct config *at = &k->node[i].at;

        if (at->state == c->state && at->reg == c->reg && at->frame == c->frame &&
            at->match == c->match)
            return i;
    }
    return NO_NODE;
}

static bool add_node(struct closing *k, const struct config *c, unsigned symbol) {
    if (!ARRAY_GROW(k->node, k->n_nodes, k->cap_nodes, 32) ||
        hash_index_add(&k->nodes, closing_hash(c), k->n_nodes) < 0)
        return false;
    k->node[k->n_nodes++] = (struct node){*c, NO_NODE, FINISH_NEVER, symbol};
    return true;
}

/* Returns the number of tokens of the path from @node on, as far as it is known. */
static uint32_t tokens_at(const struct closing *k, uint32_t node) {
    assert(node == NO_NODE || node < k->n_nodes);
    if (node == NO_NODE)
        return 0;
    return k->node[node].tokens;
}

static uint32_t closing_child(const struct trie *t, uint32_t node, unsigned byte) {
    uint32_t lo = t->node[node].child, end = lo + t->node[node].n_children, hi = end;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (t->node[mid].byte < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < end && t->node[lo].byte == byte)
        return lo;
    return 0;
}

/* Calls @each for every token that is a beginning of the path of @node, with the token's node in
 * the trie and the number of tokens that the rest of the path takes. */
static void each_token(struct closing *k, uint32_t node,
                       void (*each)(void *ctx, const struct trie_node *n, uint32_t left),
                       void *ctx) {
    const struct trie *t = &k->m->g->vocab->trie;
    uint32_t at = 0;

    while (node != NO_NODE && k->node[node].symbol < TOKEN_SYMBOL) {
        at = closing_child(t, at, k->node[node].symbol);
        node = k->node[node].next;
        if (!at)
            return;
        if (t->node[at].n_items)
            each(ctx, &t->node[at], tokens_at(k, node));
    }
}

static void fewest(void *ctx, const struct trie_node *n, uint32_t left) {
    uint32_t *best = ctx;

    *best = MIN(*best, finish_add(left, 1));
}

/* Returns the fewest tokens of the path of @c. */
static uint32_t tokens_from(struct closing *k, const struct config *c) {
    uint32_t first = k->n_nodes, next = NO_NODE, rest = 1, known = closing_find(k, c);
    struct config at = *c;
    unsigned symbol;

    if (known != NO_NODE)
        return k->node[known].tokens;
    uint32_t bytes = bytes_from(k, c, &symbol);

    if (bytes > PATH_BYTES || k->n_nodes + bytes > NODES_MAX || doubt(k, c->frame))
        return bytes;
    if (k->m->quick && k->n_nodes + bytes > QUICK_NODES)
        k->m->error = -EAGAIN;
    if (k->m->error)
        return bytes;
    uint64_t fuel = k->m->fuel;

    k->m->fuel = PATH_FUEL;
    for (; rest > 0 && rest < FINISH_NEVER && closing_find(k, &at) == NO_NODE; bytes--) {
        bytes_from(k, &at, &symbol);
        rest =
            bytes && add_node(k, &at, symbol) ? closing_follow(k, &at, symbol, &at) : FINISH_NEVER;
    }
    k->m->fuel = fuel;
    if (k->m->error == -E2BIG)
        k->m->error = 0;
    if (rest > 0 && rest < FINISH_NEVER)
        next = closing_find(k, &at);
    for (uint32_t i = k->n_nodes; i-- > first; next = i) {
        struct node *n = &k->node[i];

        n->next = next;
        if (rest >= FINISH_NEVER)
            continue;
        if (n->symbol >= TOKEN_SYMBOL)
            n->tokens = finish_add(tokens_at(k, next), 1);
        else
            each_token(k, i, fewest, &n->tokens);
    }
    if (k->n_nodes <= first)
        return FINISH_NEVER;
    return k->node[first].tokens;
}

uint32_t closing_distance(struct closing *k, const struct set *at) {
    uint32_t best = FINISH_NEVER;

    for (uint32_t i = at->begin; i < at->end && !at->can_end; i++) {
        struct config c = k->m->config[i];

        best = MIN(best, tokens_from(k, &c));
    }
    if (at->can_end)
        return 0;
    return best;
}

/* Returns the tokens of the path from behind the rule of @frame to the end of the text. */
static uint32_t tokens_behind(struct closing *k, uint32_t frame) {
    struct machine *m = k->m;
    uint32_t n_configs = m->n_configs, n = 0;
    struct set s = set_open(m);
    struct config c;

    machine_return(m, &s, 0, frame, 0);
    if (!s.can_end)
        n = closing_nearest(k, &s, &c) < FINISH_NEVER ? tokens_from(k, &c) : FINISH_NEVER;
    m->n_configs = n_configs;
    return n;
}

/* ---- classes */

struct reach {
    struct closing k;
    uint32_t most;
};

static bool visit_reach(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    struct reach *r = w->arg;

    if (w->trie->node[node].n_items)
        r->most = MAX(r->most, closing_bytes(&r->k, s));
    return true;
}

/* Returns the most bytes from behind any token that state @q reads to the end of its rule. Walks
 * all tokens, which takes a millisecond or more, once for each state. */
static uint32_t walk_reach(const struct grammar *g, uint32_t q) {
    struct machine m;
    struct reach r = {.k = {.m = &m, .f = g->finish}};
    struct walk w = {.m = &m, .trie = &g->vocab->trie, .visit = visit_reach, .arg = &r};

    if (machine_init(&m, g) < 0)
        return FINISH_NEVER;
    struct set s = set_open(&m);

    m.fuel = REACH_FUEL;
    m.config[m.n_configs++] = (struct config){.state = q};
    s.end = m.n_configs;
    walk_tables(&w, &s);
    uint32_t most = m.error ? FINISH_NEVER : r.most;

    free(r.k.behind);
    machine_deinit(&m);
    return most;
}

/* Takes the largest number of bytes from any state of a rule without calls as the bound for all of
 * them, since a token leads to a state of the same rule. Returns false if the rule has calls. */
static bool rule_reach(const struct grammar *g, const struct auto_rule *rule) {
    uint32_t most = 0;

    for (uint32_t q = rule->start; q < rule->start + rule->n_states; q++) {
        if (g->state[q].n_calls)
            return false;
        most = MAX(most, g->finish->path[q].rest);
    }
    for (uint32_t q = rule->start; q < rule->start + rule->n_states; q++)
        atomic_store_explicit(&g->finish->reach[q], 1 + most, memory_order_relaxed);
    return true;
}

/* Returns an upper bound of the bytes from behind a token of the class of @q to the end of its
 * rule. */
static uint32_t reach_of(struct machine *m, uint32_t q) {
    const struct grammar *g = m->g;
    _Atomic uint32_t *known = &g->finish->reach[q];

    if (atomic_load_explicit(known, memory_order_relaxed) == 0 &&
        !rule_reach(g, &g->rule[g->state[q].rule])) {
        assert(!g->rule[g->state[q].rule].loop);
        if (m->quick) {
            m->error = -EAGAIN;
            return FINISH_NEVER;
        }
        atomic_store_explicit(known, 1 + walk_reach(g, q), memory_order_relaxed);
    }
    return atomic_load_explicit(known, memory_order_relaxed) - 1;
}

/* Returns the reach of configuration @c, whatever a token makes of its register. */
static uint32_t reach_from(struct closing *k, const struct config *c) {
    const struct grammar *g = k->m->g;
    const struct state *s = &g->state[c->state];
    const struct call_desc *d = desc_of(k->m, c->frame);
    uint32_t n = reach_of(k->m, c->state);

    if (!(s->flags & STATE_LOOP) || !d)
        return n;
    if (d->kind == CALL_NAMES)
        return finish_add(n, k->f->escape_max[d->names - g->names]);
    uint32_t more = d->min > c->reg ? d->min - c->reg : 0;

    return finish_add(n, finish_times(more, k->f->path[g->rule[s->rule].start].step));
}

/* ---- one mask */

bool closing_begin(struct closing *k, struct machine *m, const struct set *at, uint32_t left) {
    k->m = m;
    k->f = m->g->finish;
    k->at = *at;
    k->left = left;
    k->refused = k->planned = false;
    k->n_nodes = 0;
    hash_index_deinit(&k->nodes);
    if (k->n_behind)
        memset(k->behind, 0, k->n_behind * sizeof(*k->behind));
    return closing_bytes(k, at) < FINISH_NEVER;
}

/* Notes that some token did not fit, so that closing_add_plan() has to add the shortest completion,
 * and finds the paths from the present position. These are made before those behind tokens, so that
 * they always find room among the nodes. */
static void closing_plan(struct closing *k) {
    k->refused = true;
    if (!k->planned)
        closing_distance(k, &k->at);
    k->planned = true;
}

bool closing_fits(struct closing *k, const struct set *s) {
    if (closing_bytes(k, s) <= k->left)
        return true;
    closing_plan(k);
    return k->n_nodes < NODES_ASIDE && closing_distance(k, s) <= k->left;
}

bool closing_fits_inside(struct closing *k, const struct set *s) {
    const struct grammar *g = k->m->g;

    for (uint32_t i = s->begin; i < s->end; i++) {
        struct config c = k->m->config[i];
        const struct call_desc *d = desc_of(k->m, c.frame);
        uint32_t n = finish_add(k->f->rest_max, closing_bytes_behind(k, c.frame));

        if ((g->state[c.state].flags & STATE_LOOP) && d)
            n = finish_add(n, d->kind == CALL_NAMES ? k->f->escape_max[d->names - g->names]
                                                    : finish_call(g, d));
        if (n > k->left || (g->state[c.state].flags & STATE_MEMBERS))
            return false;
    }
    return true;
}

bool closing_class_fits(struct closing *k, const struct config *c) {
    uint32_t reach = reach_from(k, c);

    if (finish_add(reach, closing_bytes_behind(k, c->frame)) <= k->left)
        return true;
    closing_plan(k);
    return finish_add(reach, tokens_behind(k, c->frame)) <= k->left;
}

struct planned {
    const struct trie *trie;
    uint32_t *bits, left;
};

static void allow(void *ctx, const struct trie_node *n, uint32_t left) {
    struct planned *p = ctx;

    for (uint32_t i = n->items; left <= p->left && i < n->items + n->n_items; i++)
        set_bit(p->bits, p->trie->item[i]);
}

/* Allows the first byte of a path that is too long for its tokens to be known. */
static void allow_byte(struct closing *k, const struct config *c, struct planned *p) {
    unsigned symbol;
    uint32_t bytes = bytes_from(k, c, &symbol);

    if (bytes >= FINISH_NEVER || symbol >= TOKEN_SYMBOL)
        return;
    uint32_t at = closing_child(p->trie, 0, symbol);

    if (at)
        allow(p, &p->trie->node[at], bytes - 1);
}

bool closing_add_plan(struct closing *k, uint32_t *bits) {
    const struct grammar *g = k->m->g;
    struct planned p = {&g->vocab->trie, bits, k->left};

    if (!k->refused)
        return false;
    for (uint32_t i = k->at.begin; i < k->at.end; i++) {
        struct config c = k->m->config[i];
        uint32_t node = closing_find(k, &c);

        if (node == NO_NODE) {
            allow_byte(k, &c, &p);
            continue;
        }
        const struct node *n = &k->node[node];

        if (n->symbol < TOKEN_SYMBOL) {
            each_token(k, node, allow, &p);
        } else if (tokens_at(k, n->next) <= k->left) {
            uint32_t token = (uint32_t)g->token[n->symbol - TOKEN_SYMBOL];

            set_bit(bits, (uint32_t)token);
        }
    }
    return true;
}
