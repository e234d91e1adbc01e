/*
 * text - makes an expression for any text that does not contain a stop string.
 *
 * It is the automaton of Knuth, Morris and Pratt that searches for the stop string, over code
 * points, without the state in which it has been found. There is a rule for each state: rule i
 * describes what may follow when the last i code points are the longest beginning of the stop
 * string with which the text ends. Each alternative of a rule is a set of code points and then a
 * call of the rule of the next state; since the call comes last, it needs no stack.
 */

#include "base/printable.h"
#include "grammar/expr/expr.h"

#define STOP_MAX 64 /* code points */

struct searcher {
    uint32_t cp[STOP_MAX];
    /* longest proper prefix of cp[0 .. i] that is a suffix of it, too */
    uint32_t fail[STOP_MAX];
    uint32_t n;
};

/* Returns how many code points of the stop string are matched when @cp follows @i matched ones. */
static uint32_t text_advance(const struct searcher *s, uint32_t i, uint32_t cp) {
    while (i && s->cp[i] != cp)
        i = s->fail[i - 1];
    if (s->cp[i] != cp)
        return 0;
    return i + 1;
}

static int read_stop(struct build *b, struct searcher *s, const char *stop, size_t len) {
    for (size_t i = 0; i < len;) {
        size_t n = utf8_sequence(stop + i, len - i, &s->cp[s->n]);

        if (n == 0)
            return build_invalid(b, "a stop text is not valid UTF-8");
        i += n;
        if (++s->n == STOP_MAX && i < len)
            return build_too_complex(b, "a stop text is longer than %d characters", STOP_MAX);
    }
    for (uint32_t i = 1; i < s->n; i++)
        s->fail[i] = text_advance(s, s->fail[i - 1], s->cp[i]);
    return 0;
}

static struct expr *set_then(struct build *b, struct cp_set *set, uint32_t rule) {
    return expr_seq2(b, expr_chars(b, set, CHARS_TEXT), expr_call(b, rule));
}

static void fill_rule(struct build *b, const struct searcher *s, const uint32_t *rule, uint32_t i) {
    struct cp_set *others = build_alloc(b, 1, sizeof(*others));
    struct expr_vec v = {0};

    expr_vec_add(b, &v, expr_empty(b));
    for (uint32_t k = 0; k < s->n && !b->failed; k++) {
        uint32_t next = text_advance(s, i, s->cp[k]);
        struct cp_set *one = build_alloc(b, 1, sizeof(*one));

        cp_set_add(b, others, s->cp[k], s->cp[k]);
        if (next < s->n && one && cp_set_add(b, one, s->cp[k], s->cp[k]) == 0)
            expr_vec_add(b, &v, set_then(b, one, rule[next]));
    }
    if (!b->failed && cp_set_invert(b, others) == 0)
        expr_vec_add(b, &v, set_then(b, others, rule[0]));
    b->rule[rule[i]].body = expr_alt_of(b, &v);
}

struct expr *text_without(struct build *b, const char *stop, size_t len) {
    struct searcher s = {.n = 0};
    uint32_t rule[STOP_MAX];
    int r = read_stop(b, &s, stop, len);

    if (r == 0 && s.n == 0)
        return expr_repeat(b, expr_any_char(b, CHARS_TEXT), 0, NO_MAX);
    for (uint32_t i = 0; r == 0 && i < s.n; i++)
        r = build_rule(b, NULL, &rule[i]);
    for (uint32_t i = 0; r == 0 && i < s.n; i++)
        fill_rule(b, &s, rule, i);
    if (r != 0)
        return NULL;
    return expr_call(b, rule[0]);
}
