/*
 * finish - the shortest path from every state to the end of its rule, in bytes; computed when a
 * grammar is compiled.
 *
 * closing.c completes a text before its limit of tokens with these paths. Example, the rule
 * array = "[" digit ("," digit)* "]" with its states and the `rest` of each:
 *
 *     0 --[--> 1 --digit--> 2 --]--> 3          rest: 3, 2, 1, 0
 *                           2 --,--> 1          from 2 by `]` 1 byte, by `,` 3 bytes
 *
 * `rest` is the length of the shortest path; `step` is the length of the shortest one that begins
 * with an edge, and `symbol` is that edge's byte. They differ where the rule may end at once or
 * where a call is the shorter way.
 *
 * Every byte of a path must be a token of the vocabulary. Then a path of n bytes can be written
 * with at most n tokens, whatever other tokens there are. The lengths are upper bounds that can be
 * followed: from a state with n bytes to go, an edge, a call or a return leads to one with at most
 * n - 1. closing.c needs only this, not that paths are shortest. They are shortest except in rules
 * with members in any order, and where characters are counted: there they have the fewest
 * characters.
 *
 * The algorithm is relaxation, as Bellman and Ford's: all states are visited, last ones first,
 * until nothing changes. The states of a rule are numbered from its start on, so one pass settles
 * nearly all of a rule, and each level of calls takes one more. If PASSES are not enough, the paths
 * found so far can be followed all the same.
 *
 * Where a rule has a register, its value decides how much is missing, so finish_rest() computes
 * that part when it is asked:
 *
 *     counted loop        the characters missing to the minimum, times the bytes of one
 *     loop beside names   the bytes until the key is none of the names (find_escapes())
 *     members             the missing required members with the bytes between them
 *                         (members_rest())
 */

#include "grammar/match/finish.h"

#include <stdlib.h>
#include <string.h>

#include "base/try.h"

#define PASSES 100

/* Sets f->next[] from the tokens that are a single byte. */
static void finish_find_bytes(struct finish *f, const struct trie *t) {
    const struct trie_node *root = &t->node[0];
    struct byte_set is = {{0}};

    for (uint32_t i = root->child; i < root->child + root->n_children; i++) {
        if (t->node[i].n_items)
            byte_set_add(&is, t->node[i].byte);
    }
    f->next[256] = 256;
    for (int c = 255; c >= 0; c--)
        f->next[c] = byte_set_has(&is, (uint8_t)c) ? (uint16_t)c : f->next[c + 1];
}

/* Finds a symbol of the edge that is a token. Returns false if the edge has no such symbol. */
static bool symbol_of(const struct finish *f, const struct edge *e, unsigned *out) {
    *out = e->lo >= TOKEN_SYMBOL ? e->lo : f->next[e->lo];
    return *out <= e->hi && (e->lo >= TOKEN_SYMBOL || *out < TOKEN_SYMBOL);
}

/* Returns the bytes of member @i from the beginning of its key to its end. */
static uint32_t member_bytes(const struct grammar *g, const struct members_path *k, uint32_t i) {
    uint32_t callee = k->callee[i];

    if (callee == NO_RULE)
        return FINISH_NEVER;
    return finish_add(k->key[i], g->finish->path[g->rule[callee].start].rest);
}

/* Returns the bytes of the shortest member of the span of @q that is not in the set @reg. */
static uint32_t shortest_member(const struct grammar *g, const struct machine *m, uint32_t q,
                                uint32_t reg) {
    uint32_t number = g->rule[g->state[q].rule].members, best = FINISH_NEVER;
    const struct members *k = &g->members[number];

    for (uint32_t i = g->span[q].lo; i < g->span[q].hi; i++) {
        if (!(members_word(m, k, reg, i / 32) >> i % 32 & 1))
            best = MIN(best, member_bytes(g, &g->finish->members[number], i));
    }
    return best;
}

/* Returns the bytes from state @q of a rule with members to its end: the required members that are
 * missing are written one after the other. If @q leads to none of these, the shortest member that
 * it leads to comes first. @m NULL: no member has been written. */
static uint32_t members_rest(const struct grammar *g, const struct machine *m, uint32_t q,
                             uint32_t reg) {
    const struct finish *f = g->finish;
    uint32_t number = g->rule[g->state[q].rule].members, n_missing = 0;
    const struct members_path *path = &f->members[number];
    const struct members *k = &g->members[number];
    bool here = false;
    uint64_t n = path->tail;

    for (uint32_t w = 0; w * 32 < k->n; w++) {
        uint32_t missing = k->must[w] & ~members_word(m, k, reg, w);

        for (; missing; missing &= missing - 1, n_missing++) {
            uint32_t i = w * 32 + (uint32_t)__builtin_ctz(missing);

            here = here || (i >= g->span[q].lo && i < g->span[q].hi);
            n += (n_missing ? path->gap : 0) + member_bytes(g, path, i);
        }
    }
    if (n_missing && !here)
        n += path->gap;
    if (!here)
        n += shortest_member(g, m, q, reg);
    n = n >= FINISH_NEVER || f->slot[q] >= (int32_t)FINISH_NEVER
            ? FINISH_NEVER
            : (uint64_t)((int64_t)n + f->slot[q]);
    return (uint32_t)MIN(n, n_missing ? FINISH_NEVER : f->path[q].rest);
}

uint32_t finish_call(const struct grammar *g, const struct call_desc *d) {
    const struct finish *f = g->finish;
    const struct path *start = &f->path[g->rule[d->rule].start];

    switch ((enum call_kind)d->kind) {
    case CALL_REPEAT:
        return finish_times(MAX(d->min, 1u), start->rest);
    case CALL_COUNTED:
        return finish_times(MAX(d->min, 1u), start->step);
    case CALL_NAMES:
        return f->escape[d->names - g->names][0];
    case CALL_MEMBERS:
        return members_rest(g, NULL, g->rule[d->rule].start, 0);
    case CALL_PLAIN:
    case CALL_ONCE:
    case CALL_WITHIN:
        break;
    }
    return start->rest;
}

/* Returns the node of the names that @reg becomes on the path from state @q to the border. */
static uint32_t names_at_border(const struct grammar *g, uint32_t q, uint32_t reg,
                                const struct names *names) {
    const struct state *s = &g->state[q];

    while (!(s->flags & STATE_BORDER)) {
        unsigned symbol = g->finish->path[q].symbol;

        reg = names_step(names, reg, (uint8_t)symbol);
        q = state_next(g, s, symbol);
        s = &g->state[q];
    }
    return reg;
}

static uint32_t escape_of(const struct grammar *g, const struct names *names, uint32_t reg) {
    if (reg == NAMES_NONE)
        return 0;
    return g->finish->escape[names - g->names][reg];
}

uint32_t finish_rest(const struct machine *m, uint32_t q, uint32_t reg, const struct call_desc *d) {
    const struct grammar *g = m->g;
    const struct state *s = &g->state[q];
    uint32_t rest = g->finish->path[q].rest;

    if (s->flags & STATE_MEMBERS)
        return members_rest(g, m, q, reg);
    if (!(s->flags & STATE_LOOP) || !d || rest >= FINISH_NEVER)
        return rest;
    if (d->kind == CALL_COUNTED) {
        uint32_t missing = d->min > reg ? d->min - reg : 0;

        return finish_add(rest,
                          finish_times(missing, g->finish->path[g->rule[s->rule].start].step));
    }
    return finish_add(rest, escape_of(g, d->names, names_at_border(g, q, reg, d->names)));
}

/* Returns the byte of a one-byte character that leads soonest to a key outside @names. */
static uint32_t names_step_of(const struct grammar *g, const struct names *names, uint32_t border,
                              uint32_t reg, unsigned *symbol) {
    const struct finish *f = g->finish;
    const struct state *s = &g->state[border];
    uint32_t best = FINISH_NEVER;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges && best > 1; i++) {
        for (unsigned c = g->edge[i].lo; c <= g->edge[i].hi && best > 1; c++) {
            if (g->edge[i].to != border || c >= TOKEN_SYMBOL || f->next[c] != c)
                continue;
            uint32_t to = names_step(names, reg, (uint8_t)c);
            uint32_t n = finish_add(1, escape_of(g, names, to));

            if (n < best) {
                best = n;
                *symbol = c;
            }
        }
    }
    return best;
}

static uint32_t members_step(const struct machine *m, uint32_t q, uint32_t reg, unsigned *symbol) {
    const struct grammar *g = m->g;
    const struct state *s = &g->state[q];
    uint32_t best = FINISH_NEVER;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        uint32_t n = finish_add(1, members_rest(g, m, g->edge[i].to, reg));
        unsigned c;

        if (n < best && symbol_of(g->finish, &g->edge[i], &c)) {
            best = n;
            *symbol = c;
        }
    }
    return best;
}

/* Returns the characters that an edge takes plus the fewest behind it. */
static uint32_t edge_need(const struct grammar *g, const struct edge *e) {
    return g->need[e->to] + ((g->state[e->to].flags & STATE_BORDER) != 0);
}

/* Returns the fewest characters to the end from @s by one of its edges. */
static uint32_t step_need(const struct grammar *g, const struct state *s) {
    uint32_t least = UINT32_MAX;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++)
        least = MIN(least, edge_need(g, &g->edge[i]));
    return least;
}

uint32_t finish_step(const struct machine *m, uint32_t q, uint32_t reg, const struct call_desc *d,
                     unsigned *symbol) {
    const struct grammar *g = m->g;
    const struct state *s = &g->state[q];
    const struct path *path = &g->finish->path[q];

    *symbol = path->symbol;
    if (s->flags & STATE_MEMBERS)
        return members_step(m, q, reg, symbol);
    if ((s->flags & STATE_WITHIN) && d && path->step < FINISH_NEVER) {
        if (within_step(g, d, state_next(g, s, path->symbol), &reg))
            return path->step;
        return FINISH_NEVER;
    }
    if ((s->flags & STATE_WITHIN) || !(s->flags & STATE_BORDER) || !d) {
        if (!(s->flags & STATE_LOOP))
            return path->step;
        return finish_rest(m, q, reg, d);
    }
    if (d->kind == CALL_NAMES) {
        if (reg == NAMES_NONE)
            return path->step;
        return names_step_of(g, d->names, q, reg, symbol);
    }
    if (reg >= d->max)
        return FINISH_NEVER;
    return finish_times(MAX(d->min > reg ? d->min - reg : 0, 1u), path->step);
}

/* ---- at compile time */

/* Relaxes f->slot[@q] (finish.h). The key of a member is read by edges, and the member is called
 * behind it, so a call stands for minus the bytes of the key. Returns whether the slot changed. */
static bool relax_slot(struct grammar *g, uint32_t q) {
    struct finish *f = g->finish;
    const struct state *s = &g->state[q];
    int64_t slot = f->slot[q];

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++)
        slot = MIN(slot, 1 + (int64_t)f->slot[g->edge[i].to]);
    for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
        const struct call_desc *d = &g->desc[g->call[i].desc];
        int64_t n =
            is_member(d) ? -(int64_t)d->max : (int64_t)finish_call(g, d) + f->slot[g->call[i].to];

        slot = MIN(slot, n);
    }
    bool changed = slot < f->slot[q];

    f->slot[q] = (int32_t)slot;
    return changed;
}

/* Relaxes the paths of state @q. Returns whether one has become shorter. */
static bool finish_relax(struct grammar *g, uint32_t q) {
    struct finish *f = g->finish;
    const struct state *s = &g->state[q];
    struct path *w = &f->path[q];
    bool accept = (s->flags & STATE_ACCEPT) != 0, changed = false;
    uint32_t need = s->flags & STATE_WITHIN ? step_need(g, s) : 0;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        uint32_t n = 1 + f->path[g->edge[i].to].rest;
        unsigned symbol;

        if ((s->flags & STATE_WITHIN) && edge_need(g, &g->edge[i]) > need)
            continue;
        if (n < w->step && symbol_of(f, &g->edge[i], &symbol)) {
            w->step = n;
            w->symbol = (uint16_t)symbol;
            changed = true;
        }
    }
    uint32_t rest = accept ? 0 : w->step;

    for (uint32_t i = s->call; !accept && i < s->call + s->n_calls; i++) {
        const struct call_desc *d = &g->desc[g->call[i].desc];

        if (!is_member(d))
            rest = MIN(rest, finish_add(finish_call(g, d), f->path[g->call[i].to].rest));
    }
    changed |= rest < w->rest;
    w->rest = MIN(w->rest, rest);
    return (s->flags & STATE_MEMBERS ? relax_slot(g, q) : false) || changed;
}

/* Measures the paths behind the members of a rule, as far as these paths are known. */
static void look_behind(struct grammar *g, struct members_path *k) {
    const struct auto_rule *rule = &g->rule[k->rule];
    struct finish *f = g->finish;

    k->gap = k->tail = 0;
    for (uint32_t q = rule->start; q < rule->start + rule->n_states; q++) {
        const struct state *s = &g->state[q];

        for (uint32_t i = s->call; i < s->call + s->n_calls; i++) {
            const struct call_desc *d = &g->desc[g->call[i].desc];
            uint32_t to = g->call[i].to;

            if (!is_member(d))
                continue;
            k->key[d->min] = d->max;
            k->callee[d->min] = d->rule;
            k->gap = MAX(k->gap, (uint32_t)MAX(f->slot[to], 0));
            k->tail = MAX(k->tail, f->path[to].rest);
        }
    }
}

static int find_members(struct build *b, struct grammar *g) {
    struct finish *f = g->finish;

    if (g->n_members == 0)
        return 0;
    f->members = calloc(g->n_members, sizeof(*f->members));
    f->slot = malloc(g->n_states * sizeof(*f->slot));
    if (!f->members || !f->slot)
        return build_no_memory(b);
    f->n_members = g->n_members;
    for (uint32_t q = 0; q < g->n_states; q++)
        f->slot[q] = (int32_t)FINISH_NEVER;
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (!(g->state[g->rule[i].start].flags & STATE_MEMBERS))
            continue;
        struct members_path *k = &f->members[g->rule[i].members];
        size_t size = g->members[g->rule[i].members].n * sizeof(*k->key);

        *k = (struct members_path){.rule = i,
                                   .key = calloc(1, MAX(size, (size_t)1)),
                                   .callee = malloc(MAX(size, (size_t)1))};
        if (!k->key || !k->callee)
            return build_no_memory(b);
        memset(k->callee, 0xff, size);
        f->bytes += 2 * size;
    }
    f->bytes += f->n_members * sizeof(*f->members) + g->n_states * sizeof(*f->slot);
    return 0;
}

/* Finds f->escape[] for the names of each call. Children of a node have larger numbers, so going
 * backwards finds them done. */
static int find_escapes(struct build *b, struct grammar *g) {
    struct finish *f = g->finish;
    uint64_t work = 0;

    f->escape = calloc(MAX(g->n_names, 1u), sizeof(*f->escape));
    f->escape_max = calloc(MAX(g->n_names, 1u), sizeof(*f->escape_max));
    if (!f->escape || !f->escape_max)
        return build_no_memory(b);
    f->n_names = g->n_names;
    for (uint32_t i = 0; i < g->n_descs; i++) {
        if (g->desc[i].kind != CALL_NAMES)
            continue;
        const struct names *names = g->desc[i].names;
        uint32_t k = (uint32_t)(names - g->names), border = g->rule[g->desc[i].rule].start;
        unsigned symbol;

        f->escape[k] = malloc(names->n * sizeof(**f->escape));
        if (!f->escape[k])
            return build_no_memory(b);
        f->bytes += names->n * sizeof(**f->escape);
        for (uint32_t node = names->n; node-- > 0;) {
            bool stays = node == 0 || names->node[node].end;
            uint32_t n = stays ? names_step_of(g, names, border, node, &symbol) : 0;

            f->escape[k][node] = n;
            f->escape_max[k] = MAX(f->escape_max[k], n);
            work += stays ? 16 : 1;
        }
    }
    return build_work(b, work);
}

static int find_paths(struct build *b, struct grammar *g) {
    bool changed = true;
    int r = 0;

    for (int pass = 0; r == 0 && changed && pass < PASSES; pass++) {
        changed = false;
        for (uint32_t i = 0; i < g->n_members; i++)
            look_behind(g, &g->finish->members[i]);
        for (uint32_t q = g->n_states; q-- > 0;)
            changed |= finish_relax(g, q);
        r = build_work(b, (g->n_states + g->n_edges + g->n_calls) / 4);
    }
    for (uint32_t i = 0; i < g->n_members; i++)
        look_behind(g, &g->finish->members[i]);
    return r;
}

int finish_new(struct build *b, struct grammar *g) {
    struct finish *f = g->finish = calloc(1, sizeof(*f));

    if (!f)
        return build_no_memory(b);
    f->path = malloc(MAX(g->n_states, 1u) * sizeof(*f->path));
    f->reach = calloc(MAX(g->n_states, 1u), sizeof(*f->reach));
    if (!f->path || !f->reach)
        return build_no_memory(b);
    for (uint32_t q = 0; q < g->n_states; q++)
        f->path[q] = (struct path){FINISH_NEVER, FINISH_NEVER, 0};
    finish_find_bytes(f, &b->vocab->trie);
    TRY(find_members(b, g));
    TRY(find_escapes(b, g));
    TRY(find_paths(b, g));
    for (uint32_t q = 0; q < g->n_states; q++)
        f->rest_max = MAX(f->rest_max, f->path[q].rest);
    f->bytes += sizeof(*f) + g->n_states * (sizeof(*f->path) + sizeof(*f->reach));
    g->bytes += f->bytes;
    return 0;
}

struct finish *finish_free(struct finish *f) {
    if (!f)
        return NULL;
    for (uint32_t i = 0; i < f->n_names; i++)
        free(f->escape[i]);
    free(f->escape);
    free(f->escape_max);
    for (uint32_t i = 0; i < f->n_members; i++) {
        free(f->members[i].key);
        free(f->members[i].callee);
    }
    free(f->members);
    free(f->slot);
    free((void *)f->reach);
    free(f->path);
    free(f);
    return NULL;
}
