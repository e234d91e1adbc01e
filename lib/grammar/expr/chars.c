/* Sets of code points as sorted ranges, and tries of names. Everything lives in the arena of
 * the build. */

#include <assert.h>

#include "base/try.h"
#include "grammar/expr/expr.h"

int cp_set_add(struct build *b, struct cp_set *s, uint32_t lo, uint32_t hi) {
    TRY(build_grow(b, &s->range, s->n, &s->cap, 8, sizeof(*s->range)));
    assert(lo <= hi && hi <= 0x10ffff && s->n < s->cap);
    s->range[s->n++] = (struct cp_range){lo, hi};
    return build_work(b, 1);
}

static int by_lo(const void *x, const void *y) {
    uint32_t a = ((const struct cp_range *)x)->lo, b = ((const struct cp_range *)y)->lo;

    return (a > b) - (a < b);
}

void cp_set_normalize(struct cp_set *s) {
    uint32_t n = 0;

    if (s->n)
        qsort(s->range, s->n, sizeof(*s->range), by_lo);
    for (uint32_t i = 0; i < s->n; i++) {
        struct cp_range r = s->range[i];

        if (n && r.lo <= s->range[n - 1].hi + 1)
            s->range[n - 1].hi = MAX(s->range[n - 1].hi, r.hi);
        else
            s->range[n++] = r;
    }
    s->n = n;
}

int cp_set_invert(struct build *b, struct cp_set *s) {
    struct cp_set out = {0};
    uint32_t next = 0;

    TRY(cp_set_add(b, s, 0xd800, 0xdfff));
    cp_set_normalize(s);
    for (uint32_t i = 0; i < s->n; i++) {
        assert(i == 0 || s->range[i].lo > next); /* sorted, and joined */
        if (s->range[i].lo > next)
            TRY(cp_set_add(b, &out, next, s->range[i].lo - 1));
        next = s->range[i].hi + 1;
    }
    if (next <= 0x10ffff)
        TRY(cp_set_add(b, &out, next, 0x10ffff));
    *s = out;
    return 0;
}

uint32_t names_step(const struct names *t, uint32_t node, uint8_t byte) {
    if (node == NAMES_NONE)
        return NAMES_NONE;
    assert(node < t->n);
    uint32_t c = t->node[node].child;

    while (c && t->node[c].byte != byte)
        c = t->node[c].sibling;
    if (c)
        return c;
    return NAMES_NONE;
}
