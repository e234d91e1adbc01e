/*
 * regex_anchor - takes `^` and `$` inside a regular expression out of it.
 *
 * Whether an anchor holds depends on what stands before and behind it in the whole text. So
 * anchor_resolve() makes four versions of a part: with its beginning at the beginning of the text
 * or not (@begin), and its end at the end of the text or not (@end). `^` is the empty text in one
 * and matches nothing in the other; a part without anchors is the same in all four.
 *
 * Example: a?^b at the beginning of the text. The sequence x y with x = a? and y = ^b has these
 * alternatives (resolve_seq()):
 *
 *     x, then y, which does not begin the text     nothing, since ^ matches nothing there
 *     x is empty, so y begins the text             b
 *
 * and correspondingly where y is empty and x ends the text. A part matches no less where it stands
 * at an end of the text than where it does not. So the alternatives may overlap, and together they
 * are complete.
 */

#include <assert.h>

#include "grammar/expr/expr.h"

struct context {
    struct build *b;
    /* an anchor is inside a repetition with counts, which is not supported */
    bool counted;
};

static bool has_anchor(const struct expr *e) {
    if (e->kind == EXPR_ANCHOR)
        return true;
    if (e->kind != EXPR_SEQ && e->kind != EXPR_ALT && e->kind != EXPR_REPEAT)
        return false;
    for (uint32_t i = 0; i < (e->kind == EXPR_REPEAT ? 1 : e->n); i++) {
        if (has_anchor(e->child[i]))
            return true;
    }
    return false;
}

/* Returns whether @e matches the empty text; @begin and @end: whether the text begins and ends
 * there. */
static bool nullable(const struct build *b, const struct expr *e, bool begin, bool end) {
    bool any = false, all = true;

    assert(e->kind != EXPR_ANCHOR || e->id == '^' || e->id == '$');
    if (e->kind == EXPR_ANCHOR) {
        if (e->id == '^')
            return begin;
        return end;
    }
    if (e->kind == EXPR_REPEAT)
        return e->min == 0 || nullable(b, e->child[0], begin, end);
    if (e->kind != EXPR_SEQ && e->kind != EXPR_ALT)
        return expr_nullable(b, e);
    for (uint32_t i = 0; i < e->n; i++) {
        bool is = nullable(b, e->child[i], begin, end);

        any |= is;
        all &= is;
    }
    if (e->kind == EXPR_SEQ)
        return all;
    return any;
}

static struct expr *anchor_resolve(struct context *c, struct expr *e, bool begin, bool end);

static struct expr *resolve_seq(struct context *c, struct expr *const *child, uint32_t n,
                                bool begin, bool end) {
    struct build *b = c->b;

    if (n == 0)
        return expr_empty(b);
    if (n == 1)
        return anchor_resolve(c, child[0], begin, end);
    struct expr *x = child[0], *y = expr_seq(b, child + 1, n - 1);

    if (!y || build_work(b, (uint64_t)x->size + y->size + n) < 0)
        return NULL;
    struct expr_vec v = {0};
    bool x_plain = !has_anchor(x), y_plain = !has_anchor(y);
    struct expr *first = anchor_resolve(c, x, begin, false);

    expr_vec_add(b, &v, expr_seq2(b, first, resolve_seq(c, child + 1, n - 1, false, end)));
    if (!y_plain && nullable(b, x, begin, false))
        expr_vec_add(b, &v, resolve_seq(c, child + 1, n - 1, begin, end));
    if (!x_plain && nullable(b, y, false, end))
        expr_vec_add(b, &v, anchor_resolve(c, x, begin, end));
    if (nullable(b, x, begin, end) && nullable(b, y, begin, end))
        expr_vec_add(b, &v, expr_empty(b));
    return expr_alt_of(b, &v);
}

/* Resolves the anchors of x+ or x*. x+ is one x that both begins and ends here, or a first one, any
 * number between, and a last one. */
static struct expr *resolve_repeat(struct context *c, const struct expr *e, bool begin, bool end) {
    struct build *b = c->b;
    struct expr *x = e->child[0];

    if (e->min > 1 || e->max != NO_MAX) {
        c->counted = true;
        return expr_never(b);
    }
    struct expr *one = anchor_resolve(c, x, begin, end),
                *first = anchor_resolve(c, x, begin, false);
    struct expr *more = expr_repeat(b, anchor_resolve(c, x, false, false), 0, NO_MAX);
    struct expr *some = expr_seq3(b, first, more, anchor_resolve(c, x, false, end));

    some = expr_alt2(b, one, some);
    if (e->min)
        return some;
    return expr_optional(b, some);
}

static struct expr *anchor_resolve(struct context *c, struct expr *e, bool begin, bool end) {
    struct build *b = c->b;
    struct expr_vec v = {0};

    if (b->failed || build_work(b, 4 + (uint64_t)e->size) < 0)
        return NULL;
    if (e->kind == EXPR_ANCHOR) {
        bool holds = e->id == '^' ? begin : end;

        if (holds)
            return expr_empty(b);
        return expr_never(b);
    }
    if (!has_anchor(e))
        return e;
    if (e->kind == EXPR_SEQ)
        return resolve_seq(c, e->child, e->n, begin, end);
    if (e->kind == EXPR_REPEAT && e->max == 1)
        return expr_optional(b, anchor_resolve(c, e->child[0], begin, end));
    if (e->kind == EXPR_REPEAT)
        return resolve_repeat(c, e, begin, end);
    for (uint32_t i = 0; i < e->n; i++)
        expr_vec_add(b, &v, anchor_resolve(c, e->child[i], begin, end));
    return expr_alt_of(b, &v);
}

struct expr *regex_resolve_anchors(struct build *b, struct expr *e, bool *counted) {
    struct context c = {.b = b};
    struct expr *x = e ? anchor_resolve(&c, e, true, true) : NULL;

    assert(!x || c.counted || !has_anchor(x));
    *counted = c.counted;
    return x;
}
