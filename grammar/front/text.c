/*
 * text - any text up to a stop string, by the automaton that searches for it (Knuth, Morris, Pratt)
 * over code points. Rule i is what may follow when the last i code points are the longest start of
 * the stop string; each ends in a call of the next, which needs no stack.
 */

#include "grammar/expr/expr.h"

#include <string.h>

#define STOP_MAX 64 /* code points */

struct searcher {
    uint32_t cp[STOP_MAX];
    uint32_t fail[STOP_MAX]; /* length of the longest border of the first i + 1 */
    uint32_t n;
};

/* Returns how many code points of the stop string are matched when @cp follows @i matched ones. */
static uint32_t advance(const struct searcher *s, uint32_t i, uint32_t cp) {
    while (i && s->cp[i] != cp)
        i = s->fail[i - 1];
    return s->cp[i] == cp ? i + 1 : 0;
}

static int read_stop(struct build *b, struct searcher *s, const char *stop, size_t len) {
    for (size_t i = 0; i < len;) {
        unsigned n = utf8_read(stop + i, len - i, &s->cp[s->n]);

        if (n == 0)
            return build_invalid(b, "a stop text is not valid UTF-8");
        i += n;
        if (++s->n == STOP_MAX && i < len)
            return build_too_complex(b, "a stop text is longer than %d characters", STOP_MAX);
    }
    for (uint32_t i = 1; i < s->n; i++)
        s->fail[i] = advance(s, s->fail[i - 1], s->cp[i]);
    return 0;
}

static struct expr *set_then(struct build *b, struct cp_set *set, uint32_t rule) {
    return expr_seq2(b, expr_chars(b, set, CHARS_TEXT), expr_call(b, rule));
}

static int fill_rule(struct build *b, const struct searcher *s, const uint32_t *rule, uint32_t i) {
    struct cp_set *others = arena_alloc(&b->arena, sizeof(*others));
    struct expr_vec v = {0};
    int r = others ? expr_vec_add(b, &v, expr_empty(b)) : build_no_memory(b);

    for (uint32_t k = 0; r == 0 && k < s->n; k++) {
        uint32_t next = advance(s, i, s->cp[k]);
        struct cp_set *one = arena_alloc(&b->arena, sizeof(*one));

        r = one ? cp_set_add(b, others, s->cp[k], s->cp[k]) : build_no_memory(b);
        if (r == 0 && next < s->n) {
            r = cp_set_add(b, one, s->cp[k], s->cp[k]);
            if (r == 0)
                r = expr_vec_add(b, &v, set_then(b, one, rule[next]));
        }
    }
    if (r == 0)
        r = cp_set_invert(b, others);
    if (r == 0)
        r = expr_vec_add(b, &v, set_then(b, others, rule[0]));
    if (r == 0) {
        b->rule[rule[i]].body = expr_alt(b, v.v, v.n);
        r = b->rule[rule[i]].body ? 0 : build_no_memory(b);
    }
    return r;
}

int text_without(struct build *b, const char *stop, size_t len, struct expr **out) {
    struct searcher s = {.n = 0};
    uint32_t rule[STOP_MAX];
    int r = read_stop(b, &s, stop, len);

    if (r == 0 && s.n == 0) {
        struct cp_set *all = arena_alloc(&b->arena, sizeof(*all));

        r = all ? cp_set_invert(b, all) : build_no_memory(b);
        if (r < 0)
            return r;
        *out = expr_repeat(b, expr_chars(b, all, CHARS_TEXT), 0, NO_MAX);
        return *out ? 0 : build_no_memory(b);
    }
    for (uint32_t i = 0; r == 0 && i < s.n; i++)
        r = build_rule(b, NULL, &rule[i]);
    for (uint32_t i = 0; r == 0 && i < s.n; i++)
        r = fill_rule(b, &s, rule, i);
    if (r < 0)
        return r;
    *out = expr_call(b, rule[0]);
    return *out ? 0 : build_no_memory(b);
}
