/* expr - makers of expressions. They simplify trivial cases: a sequence with a part that matches
 * nothing (EXPR_NEVER) is EXPR_NEVER, and empty parts are left out. */

#include "grammar/expr/expr.h"

#include <assert.h>
#include <string.h>

#include "grammar/expr/lang_types.h"

static struct expr *expr_make(struct build *b, enum expr_kind kind) {
    struct expr *e = arena_alloc(&b->arena, sizeof(*e));

    if (!e || b->failed || build_work(b, 1) < 0)
        return failed(build_no_memory(b));
    e->kind = (uint8_t)kind;
    e->size = 1;
    return e;
}

static uint32_t sum(uint32_t a, uint32_t b) {
    if (a > UINT32_MAX - b)
        return UINT32_MAX;
    return a + b;
}

static uint32_t repeated_size(const struct expr *x, uint32_t min, uint32_t max) {
    uint64_t n = (uint64_t)x->size * (max == NO_MAX ? (uint64_t)min + 1 : max);

    if (n > UINT32_MAX)
        return UINT32_MAX;
    return (uint32_t)n;
}

struct expr *expr_empty(struct build *b) {
    return expr_make(b, EXPR_EMPTY);
}

struct expr *expr_never(struct build *b) {
    return expr_make(b, EXPR_NEVER);
}

struct expr *expr_bytes(struct build *b, const void *bytes, size_t n) {
    if (n == 0)
        return expr_empty(b);
    struct expr *e = expr_make(b, EXPR_BYTES);
    uint8_t *copy = e ? (uint8_t *)arena_strndup(&b->arena, bytes, n) : NULL;

    if (!copy)
        return failed(build_no_memory(b));
    e->bytes = copy;
    e->n = e->size = (uint32_t)n;
    return e;
}

struct expr *expr_str(struct build *b, const char *s) {
    return expr_bytes(b, s, strlen(s));
}

struct expr *expr_anchor(struct build *b, char which) {
    struct expr *e = expr_make(b, EXPR_ANCHOR);

    if (e)
        e->id = (uint32_t)which;
    return e;
}

struct expr *expr_chars(struct build *b, const struct cp_set *set, enum char_mode mode) {
    if (set->n == 0)
        return expr_never(b);
    struct expr *e = expr_make(b, EXPR_CHARS);

    if (e) {
        e->set = set;
        e->size = set->n;
        e->mode = (uint8_t)mode;
        e->atom = true;
    }
    return e;
}

struct expr *expr_any_char(struct build *b, enum char_mode mode) {
    struct cp_set *all = build_alloc(b, 1, sizeof(*all));

    if (!all || cp_set_invert(b, all) != 0)
        return NULL;
    return expr_chars(b, all, mode);
}

/* Makes a sequence or alternatives of @child[0, @n). Children of kind @none are left out; a child
 * of kind @all (-1: there is no such kind) is the result alone. */
static struct expr *expr_join(struct build *b, enum expr_kind kind, enum expr_kind none, int all,
                              struct expr *const *child, uint32_t n) {
    uint32_t n_kept = 0;
    struct expr *one = NULL;

    for (uint32_t i = 0; i < n; i++) {
        if (!child[i] || child[i]->kind == all)
            return child[i];
        if (child[i]->kind != none) {
            one = child[i];
            n_kept++;
        }
    }
    if (n_kept < 2) {
        if (n_kept)
            return one;
        return expr_make(b, none);
    }
    struct expr *e = expr_make(b, kind);

    if (!e)
        return NULL;
    assert(!e->child && e->n == 0);
    e->child = build_alloc(b, n_kept, sizeof(struct expr *));
    if (!e->child)
        return NULL;
    for (uint32_t i = 0; i < n; i++) {
        if (child[i]->kind == none)
            continue;
        e->child[e->n++] = child[i];
        e->size = sum(e->size, child[i]->size);
    }
    return e;
}

struct expr *expr_seq(struct build *b, struct expr *const *child, uint32_t n) {
    return expr_join(b, EXPR_SEQ, EXPR_EMPTY, EXPR_NEVER, child, n);
}

struct expr *expr_seq2(struct build *b, struct expr *x, struct expr *y) {
    return expr_seq(b, (struct expr *[]){x, y}, 2);
}

struct expr *expr_seq3(struct build *b, struct expr *x, struct expr *y, struct expr *z) {
    return expr_seq(b, (struct expr *[]){x, y, z}, 3);
}

struct expr *expr_alt(struct build *b, struct expr *const *child, uint32_t n) {
    return expr_join(b, EXPR_ALT, EXPR_NEVER, -1, child, n);
}

struct expr *expr_alt2(struct build *b, struct expr *x, struct expr *y) {
    return expr_alt(b, (struct expr *[]){x, y}, 2);
}

struct expr *expr_repeat(struct build *b, struct expr *x, uint32_t min, uint32_t max) {
    if (!x)
        return NULL;
    if (min > max)
        return expr_never(b);
    if (max == 0 || x->kind == EXPR_EMPTY)
        return expr_empty(b);
    if (x->kind == EXPR_NEVER) {
        if (min)
            return x;
        return expr_empty(b);
    }
    if (min == 1 && max == 1)
        return x;
    struct expr *e = expr_make(b, EXPR_REPEAT);

    if (!e || !(e->child = build_alloc(b, 1, sizeof(struct expr *))))
        return NULL;
    assert(min <= max && max > 0);
    e->child[0] = x;
    e->n = 1;
    e->min = min;
    e->max = max;
    e->size = repeated_size(x, min, max);
    return e;
}

struct expr *expr_optional(struct build *b, struct expr *x) {
    return expr_repeat(b, x, 0, 1);
}

struct expr *expr_call(struct build *b, uint32_t rule) {
    struct expr *e = expr_make(b, EXPR_CALL);

    assert(rule < b->n_rules);
    if (e)
        e->id = rule;
    return e;
}

struct expr *expr_rule(struct build *b, struct expr *body) {
    uint32_t rule;

    if (!body || build_rule(b, NULL, &rule) < 0)
        return NULL;
    b->rule[rule].body = body;
    return expr_call(b, rule);
}

struct expr *expr_within(struct build *b, uint32_t rule, uint32_t max) {
    struct expr *e = expr_make(b, EXPR_WITHIN);

    assert(rule < b->n_rules && b->rule[rule].need);
    if (e) {
        e->id = rule;
        e->max = max;
    }
    return e;
}

struct expr *expr_token(struct build *b, int32_t token) {
    struct expr *e = expr_make(b, EXPR_TOKEN);

    assert(token >= 0);
    if (e)
        e->id = (uint32_t)token;
    return e;
}

int expr_vec_add(struct build *b, struct expr_vec *v, struct expr *e) {
    if (!e)
        return build_no_memory(b);
    int r = build_grow(b, &v->v, v->n, &v->cap, 8, sizeof(*v->v));

    if (r == 0)
        v->v[v->n++] = e;
    return r;
}

struct expr *expr_seq_of(struct build *b, const struct expr_vec *v) {
    if (b->failed)
        return NULL;
    return expr_seq(b, v->v, v->n);
}

struct expr *expr_alt_of(struct build *b, const struct expr_vec *v) {
    if (b->failed)
        return NULL;
    return expr_alt(b, v->v, v->n);
}

bool list_nullable(const struct expr_list *l) {
    if (l->min > 0)
        return false;
    for (uint32_t i = 0; i < l->n; i++) {
        if (!l->optional[i])
            return false;
    }
    return true;
}

bool expr_nullable(const struct build *b, const struct expr *e) {
    switch ((enum expr_kind)e->kind) {
    case EXPR_EMPTY:
    case EXPR_ANCHOR:
        return true;
    case EXPR_NEVER:
    case EXPR_BYTES:
    case EXPR_CHARS:
    case EXPR_TOKEN:
        return false;
    case EXPR_SEQ:
        for (uint32_t i = 0; i < e->n; i++) {
            if (!expr_nullable(b, e->child[i]))
                return false;
        }
        return true;
    case EXPR_ALT:
        for (uint32_t i = 0; i < e->n; i++) {
            if (expr_nullable(b, e->child[i]))
                return true;
        }
        return false;
    case EXPR_REPEAT:
        return e->min == 0 || expr_nullable(b, e->child[0]);
    case EXPR_CALL:
        return b->rule[e->id].nullable;
    case EXPR_LIST:
        return list_nullable(e->list);
    case EXPR_NAMES:
        return !e->names->node[0].end;
    case EXPR_ONCE:
    case EXPR_MEMBERS:
        return false;
    case EXPR_WITHIN:
        return expr_nullable(b, b->rule[e->id].body);
    case EXPR_LANG:
        return e->lang->n && (e->lang->state[0].accepts & 1);
    }
    return false;
}

bool names_equal(const struct names *x, const struct names *y) {
    bool same = x->n == y->n;

    for (uint32_t i = 0; same && i < x->n; i++) {
        const struct name_node *p = &x->node[i], *q = &y->node[i];

        same = p->child == q->child && p->sibling == q->sibling && p->byte == q->byte &&
               p->end == q->end;
    }
    return same;
}

/* Minimal automata of one language are the same but for the numbers of their states, and here these
 * follow from the order in which texts reach the states. So comparing the arrays suffices. */
bool lang_equal(const struct lang *x, const struct lang *y) {
    bool same = x->n == y->n && x->n_edges == y->n_edges;

    for (uint32_t q = 0; same && q < x->n; q++) {
        const struct lang_state *s = &x->state[q], *t = &y->state[q];

        same = s->edge == t->edge && s->n_edges == t->n_edges && s->accepts == t->accepts;
    }
    return same &&
           (x->n_edges == 0 || memcmp(x->edge, y->edge, x->n_edges * sizeof(*x->edge)) == 0);
}

static bool same_list(const struct expr_list *x, const struct expr_list *y) {
    bool same = x->n == y->n && x->min == y->min && x->max == y->max && x->n_needs == y->n_needs &&
                !x->rest == !y->rest && expr_same(x->separator, y->separator) &&
                expr_same(x->after, y->after) && (!x->rest || expr_same(x->rest, y->rest));

    for (uint32_t i = 0; same && i < x->n; i++)
        same = x->optional[i] == y->optional[i] && expr_same(x->member[i], y->member[i]);
    return same;
}

bool expr_same(const struct expr *x, const struct expr *y) {
    if (x == y)
        return true;
    if (x->kind != y->kind || x->mode != y->mode || x->atom != y->atom || x->open != y->open ||
        x->n != y->n || x->size != y->size || x->id != y->id || x->min != y->min ||
        x->max != y->max)
        return false;
    switch ((enum expr_kind)x->kind) {
    case EXPR_BYTES:
        return memcmp(x->bytes, y->bytes, x->n) == 0;
    case EXPR_CHARS:
        return expr_same_chars(x, y);
    case EXPR_SEQ:
    case EXPR_ALT:
    case EXPR_REPEAT:
        for (uint32_t i = 0; i < x->n; i++) {
            if (!expr_same(x->child[i], y->child[i]))
                return false;
        }
        return true;
    case EXPR_LIST:
        return same_list(x->list, y->list);
    case EXPR_NAMES:
        return names_equal(x->names, y->names);
    case EXPR_LANG:
        return lang_equal(x->lang, y->lang);
    case EXPR_EMPTY:
    case EXPR_NEVER:
    case EXPR_CALL:
    case EXPR_TOKEN:
    case EXPR_ANCHOR:
    case EXPR_ONCE:
    case EXPR_MEMBERS:
    case EXPR_WITHIN:
        return true; /* the fields compared above are all that these kinds have */
    }
    return false;
}

bool expr_same_chars(const struct expr *x, const struct expr *y) {
    return x->kind == EXPR_CHARS && y->kind == EXPR_CHARS && x->mode == y->mode &&
           x->set->n == y->set->n &&
           memcmp(x->set->range, y->set->range, x->set->n * sizeof(*x->set->range)) == 0;
}
