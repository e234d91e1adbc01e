/*
 * multiple - numbers where `multipleOf`, or its negation, stands beside a range.
 *
 * Joining the divisors. All divisors that a value must have are one number, their least common
 * multiple, `step`. A divisor d that it must not have is replaced by the least common multiple of d
 * and `step`, and left out if another such number implies it. Many alternatives of an allOf turn
 * out to be empty or equal by that alone, without an automaton. Fractions are counted in units of
 * 1 / 10^digits: a multiple of 0.25 is a multiple of 25 hundredths.
 *
 * The automaton reads digits from the left, and its state is the remainder of the digits so far by
 * all divisors at once: remainder r and digit c give (10 r + c) mod n. Example, multiples of 4:
 *
 *     "3" -> 3,  "31" -> (30 + 1) mod 4 = 3,  "312" -> (30 + 2) mod 4 = 0, a multiple
 *
 * It is minimized before it meets the range and the number of digits. Where the remainders would be
 * too many, or more than the whole numbers of the range, there is one automaton for each divisor,
 * and the language of the range and the digits meets them one after the other.
 */

#include <assert.h>
#include <string.h>

#include "base/json_value.h"
#include "base/try.h"
#include "grammar/automaton/lang.h"
#include "grammar/front/schema/schema.h"

#define MULTIPLE_STATES 50000
#define MULTIPLE_DIGITS 8
#define INLINE_MAX 16 /* states: a larger expression becomes a rule */

/* Numbers with so few digits that a JSON reader which rounds to double sees the same fraction. */
#define DOUBLE_EXACT "-?([0-9]{1,15}|[0-9]{1,9}\\.[0-9]{1,6})"

/* Holds the conditions of f->multiple, in units of 1 / 10^digits. */
struct condition {
    uint32_t digits;
    /* values are multiples of `step`; 0: no such condition */
    uint64_t step;
    /* values are not multiples of any of these multiples of step */
    uint64_t no[LANG_MAX];
    /* index in f->multiple of each excluded divisor */
    uint32_t from[LANG_MAX];
    uint32_t n_no;
    /* no value fulfils the conditions */
    bool never;
    /* the divisors exceed 64 bits; only from[] and `digits` are known */
    bool large;
};

/* A rule that was made for numbers with these bounds and multiples; equal conditions share it. */
struct number_rule {
    struct number_rule *next;
    unsigned types;
    struct bound lower, upper;
    struct condition is;
    uint32_t rule;
};

static const uint64_t POWER[MULTIPLE_DIGITS + 1] = {1,      10,      100,      1000,     10000,
                                                    100000, 1000000, 10000000, 100000000};

/* Reads the number at @at as *n / 10^*digits. */
static int read_multiple(struct schema *s, struct place at, uint64_t *n, uint32_t *digits) {
    struct decimal d;

    *n = 0;
    if (decimal_read(&d, json_digits(at.v), json_n_digits(at.v)) < 0 ||
        d.n_int + d.n_frac > MULTIPLE_DIGITS)
        return build_too_complex(s->b, "a multipleOf has more than %d digits", MULTIPLE_DIGITS);
    for (uint32_t i = 0; i < d.n_int; i++)
        *n = *n * 10 + (uint64_t)(d.digit_int[i] - '0');
    for (uint32_t i = 0; i < d.n_frac; i++)
        *n = *n * 10 + (uint64_t)(d.digit_frac[i] - '0');
    *digits = d.n_frac;
    assert(*n > 0); /* add_multiple() has refused 0 */
    return 0;
}

static uint64_t common_divisor(uint64_t x, uint64_t y) {
    while (y) {
        uint64_t rest = x % y;

        x = y;
        y = rest;
    }
    return x;
}

/* Sets *@x to the least common multiple of *@x and @y; an operand of 0 is ignored. Returns false if
 * the result has more than 64 bits. */
static bool multiple_join(uint64_t *x, uint64_t y) {
    if (*x == 0 || y == 0) {
        *x = *x ? *x : y;
        return true;
    }
    return !__builtin_mul_overflow(*x / common_divisor(*x, y), y, x);
}

/* Adds a number whose multiples are excluded. A number that is a multiple of another excluded one
 * adds nothing and is left out. */
static void exclude(struct condition *is, uint64_t no, uint32_t from) {
    uint32_t n = 0;

    assert(no > 0 && is->n_no < LANG_MAX);
    for (uint32_t i = 0; i < is->n_no; i++) {
        if (no % is->no[i] == 0)
            return;
    }
    for (uint32_t i = 0; i < is->n_no; i++) {
        if (is->no[i] % no == 0)
            continue;
        is->no[n] = is->no[i];
        is->from[n++] = is->from[i];
    }
    for (is->n_no = ++n; --n && is->no[n - 1] > no;) { /* keeps no[] sorted */
        is->no[n] = is->no[n - 1];
        is->from[n] = is->from[n - 1];
    }
    is->no[n] = no;
    is->from[n] = from;
}

/* Finds how many digits may stand after the point, and scales the condition to that. A fraction has
 * at most as many digits as each of its divisors; whole values have none. */
static void find_digits(struct condition *is, const struct facets *f, const uint32_t *digits) {
    uint32_t scale = is->digits;

    is->digits = f->types & T_REAL ? scale : 0;
    for (uint32_t i = 0; i < f->n_multiples; i++) {
        if (!f->multiple[i].negated)
            is->digits = MIN(is->digits, digits[i]);
    }
    if (is->step == 0) {
        is->digits = scale;
        return;
    }
    uint64_t unit = POWER[scale - is->digits];

    assert(is->step % unit == 0);
    is->step /= unit;
    for (uint32_t i = 0; i < is->n_no; i++)
        is->no[i] /= unit;
}

static int read_condition(struct schema *s, const struct facets *f, struct condition *is) {
    uint64_t n[LANG_MAX];
    uint32_t digits[LANG_MAX];

    *is = (struct condition){0};
    if (f->n_multiples > LANG_MAX - 4)
        return build_too_complex(s->b, "more than %u multiples for one value", LANG_MAX - 4);
    for (uint32_t i = 0; i < f->n_multiples; i++) {
        TRY(read_multiple(s, f->multiple[i].at, &n[i], &digits[i]));
        is->digits = MAX(is->digits, digits[i]);
    }
    if (!(f->types & T_REAL))
        is->step = POWER[is->digits];
    for (uint32_t i = 0; i < f->n_multiples; i++) {
        n[i] *= POWER[is->digits - digits[i]];
        if (!f->multiple[i].negated && !multiple_join(&is->step, n[i]))
            is->large = true;
    }
    for (uint32_t i = 0; !is->large && i < f->n_multiples; i++) {
        if (!f->multiple[i].negated)
            continue;
        is->large = !multiple_join(&n[i], is->step);
        is->never = is->never || (!is->large && n[i] == is->step);
        if (!is->large)
            exclude(is, n[i], i);
    }
    if (is->large) {
        is->n_no = 0;
        for (uint32_t i = 0; i < f->n_multiples; i++) {
            if (f->multiple[i].negated)
                is->from[is->n_no++] = i;
        }
    } else if (f->n_multiples) {
        find_digits(is, f, digits);
    }
    return build_work(s->b, f->n_multiples * 8ull);
}

/* ---- remainders */

/* The automaton of numbers without an exponent, by their remainder modulo n. The values have k
 * digits after the point; fewer may be written, and with k 0 a single zero. */
struct multiple_maker {
    const struct condition *is;
    uint32_t n, k;
    /* for each remainder: the least equivalent one */
    uint32_t *same;
    struct lang_state *state;
    struct edge *edge;
    uint32_t n_edges;
};

static bool fulfils(const struct condition *is, uint64_t value) {
    bool yes = is->step == 0 || value % is->step == 0;

    for (uint32_t i = 0; yes && i < is->n_no; i++)
        yes = value % is->no[i] != 0;
    return yes;
}

static uint32_t behind(const struct multiple_maker *m, uint32_t r, uint32_t digit) {
    return m->same[(r * UINT64_C(10) + digit) % m->n];
}

static bool alike(const struct multiple_maker *m, uint32_t x, uint32_t y) {
    bool same = fulfils(m->is, x) == fulfils(m->is, y);

    for (uint32_t c = 0; same && c < 10; c++)
        same = behind(m, x, c) == behind(m, y, c);
    return same;
}

/* Finds equivalent remainders, so that the automaton is small before it is minimized. Two
 * remainders that differ by n / gcd(n, 10) lead to the same remainder by every digit, so they are
 * equivalent if both fulfil the condition or neither does; the same argument is repeated with the
 * smaller modulus. Remainders that are not found here may still be equivalent. */
static void multiple_find_same(struct multiple_maker *m) {
    uint32_t apart = m->n;

    for (uint32_t r = 0; r < m->n; r++)
        m->same[r] = r;
    while (common_divisor(apart, 10) > 1) {
        uint32_t next = apart / (uint32_t)common_divisor(apart, 10);

        assert(next < apart && m->n % next == 0);

        for (uint32_t r = next; r < m->n; r++) {
            if (alike(m, r, r % next))
                m->same[r] = r % next;
        }
        for (uint32_t r = next; r < m->n; r++) /* resolves chains of replaced remainders */
            m->same[r] = m->same[m->same[r]];
        apart = next;
    }
}

/* Adds the edges by digits from @first to 9 from remainder @r to the states from @row on. The
 * states of the automaton are: 0 the start, 1 behind the sign, 2 behind a leading zero, 3 + r in
 * the whole digits with remainder r, and then n states for each number of digits after the point, 0
 * to max(k, 1). @last: the digit completes the number, so it must fulfil the condition. */
static void add_digits(struct multiple_maker *m, uint32_t r, uint32_t row, bool last, char first) {
    for (char c = first; c <= '9'; c++) {
        uint32_t to = behind(m, r, (uint32_t)(c - '0'));

        if (!last || fulfils(m->is, to))
            m->edge[m->n_edges++] = (struct edge){(uint16_t)c, (uint16_t)c, row + to};
    }
}

static void add_whole(struct multiple_maker *m, uint32_t r, bool zero) {
    uint32_t whole = 3, frac = whole + m->n;

    if (m->k || fulfils(m->is, r))
        m->edge[m->n_edges++] = (struct edge){'.', '.', frac + r};
    if (!zero)
        add_digits(m, r, whole, false, '0');
}

static void multiple_add_states(struct multiple_maker *m) {
    uint32_t N = m->n, k = m->k, whole = 3, frac = whole + N, total = frac + (MAX(k, 1u) + 1) * N;

    for (uint32_t q = 0; q < total; q++) {
        struct lang_state *st = &m->state[q];
        uint32_t r = q < whole ? 0 : (q - whole) % N, row = q < frac ? 0 : (q - frac) / N;
        uint64_t scaled = r;

        *st = (struct lang_state){.edge = m->n_edges};
        if (m->same[r] != r)
            continue; /* edges lead to m->same[r] instead */
        if (q == 0)
            m->edge[m->n_edges++] = (struct edge){'-', '-', 1};
        if (q < 2) {
            m->edge[m->n_edges++] = (struct edge){'0', '0', 2};
            add_digits(m, 0, whole, false, '1');
        } else if (q < frac) {
            add_whole(m, r, q == 2);
        } else if (row < k) {
            add_digits(m, r, frac + (row + 1) * N, row + 1 == k, '0');
        } else if (row == 0) { /* k is 0: a single zero may follow the point */
            m->edge[m->n_edges++] = (struct edge){'0', '0', frac + N + r};
        }
        for (uint32_t i = row; i < k; i++)
            scaled = scaled * 10 % N;
        st->n_edges = m->n_edges - st->edge;
        st->accepts = q > 1 && fulfils(m->is, scaled) && (q < frac || row > 0);
    }
}

/* Returns the number of remainders that decide whether @is holds, or 0 if they are too many. */
static uint32_t remainders(const struct condition *is) {
    uint64_t n = is->step, rows = MAX(is->digits, 1u) + 1;
    bool fits = !is->large && is->step;

    for (uint32_t i = 0; fits && i < is->n_no; i++)
        fits = multiple_join(&n, is->no[i]);
    if (!fits || n > MULTIPLE_STATES / (rows + 1))
        return 0;
    return (uint32_t)n;
}

/* Makes the language of digits for which @is holds; the remainders are few enough. */
static const struct lang *remainders_lang(struct build *b, const struct condition *is) {
    struct multiple_maker m = {.is = is, .n = remainders(is), .k = is->digits};
    uint32_t total = 3 + m.n * (MAX(m.k, 1u) + 2), n_same = 0;
    struct lang *l = build_alloc(b, 1, sizeof(*l));

    assert(m.n > 0);
    CLEANUP(freep) uint32_t *same = m.same = malloc(m.n * sizeof(*m.same));

    if (!same)
        return failed(build_no_memory(b));
    if (!l || build_work(b, m.n * 40ull) < 0)
        return NULL;
    multiple_find_same(&m);
    for (uint32_t i = 0; i < m.n; i++)
        n_same += same[i] == i;
    size_t most = 36 + n_same * (11 + MAX(m.k, 1u) * 10ull);

    m.state = build_alloc(b, total, sizeof(*m.state));
    m.edge = build_alloc(b, most, sizeof(*m.edge));
    if (!m.state || !m.edge)
        return NULL;
    multiple_add_states(&m);
    assert(m.n_edges <= most);
    *l = (struct lang){total, m.n_edges, m.state, m.edge};
    if (build_work(b, total + most) < 0)
        return NULL;
    return l;
}

static const struct lang *multiple_lang(struct schema *s, struct place at) {
    struct condition is = {0};

    if (read_multiple(s, at, &is.step, &is.digits) < 0)
        return NULL;
    if (remainders(&is))
        return remainders_lang(s->b, &is);
    return failed(build_too_complex(s->b, "a multipleOf is too large"));
}

int multiples_admit(struct schema *s, const struct facets *f, yyjson_val *v) {
    const char *text = json_digits(v);
    bool plain = strcspn(text, "eE") == strlen(text);

    for (uint32_t i = 0; i < f->n_multiples; i++) {
        const struct lang *l = multiple_lang(s, f->multiple[i].at);

        if (!l)
            return s->b->failed;
        if (!plain ||
            lang_matches(l, (const uint8_t *)text, strlen(text)) == f->multiple[i].negated)
            return 0;
    }
    return 1;
}

/* ---- numbers */

/* Returns the numbers that are in all of @in and in none of @not_in. It makes products of two at a
 * time: what a range and few digits leave of one multiple is far smaller than a product of several
 * multiples would be. */
static const struct lang *meet_numbers(struct build *b, const struct lang *const *in, uint32_t n,
                                       const struct lang *const *not_in, uint32_t n_not) {
    const struct lang *pair[2] = {in[0]};

    for (uint32_t i = 1; i < n; i++) {
        pair[1] = in[i];
        pair[0] = lang_meet(b, pair, 2, NULL, 0);
    }
    for (uint32_t i = 0; i < n_not; i++)
        pair[0] = lang_meet(b, pair, 1, &not_in[i], 1);
    return pair[0];
}

/* Returns the numbers in the range of @f with few digits, of the types of @f. */
static const struct lang *exact_numbers(struct schema *s, const struct facets *f,
                                        const struct condition *is) {
    struct build *b = s->b;
    const struct lang *in[2], *not_in[2];
    uint32_t n_not = 0;

    in[0] = lang_of(b, number_range(b, f));
    in[1] = lang_of(b, regex_of(b, DOUBLE_EXACT, CHARS_TEXT));
    if (!(f->types & T_INT))
        not_in[n_not++] = lang_of(b, regex_of(b, "-?[0-9]+(\\.0+)?", CHARS_TEXT));
    /* Leaves out numbers with a zero at the end of a fraction: multiple_lang() does not accept
     * digits beyond those of the divisor, so such a multiple would count as none. */
    if (is->n_no)
        not_in[n_not++] = lang_of(b, regex_of(b, "-?[0-9]+\\.[0-9]*0", CHARS_TEXT));
    return meet_numbers(b, in, 2, not_in, n_not);
}

/* Returns whether the remainders are few compared with the whole numbers of the range. */
static bool multiple_is_wide(const struct facets *f, uint32_t n) {
    uint32_t digits = MAX(f->lower.x.n_int, f->upper.x.n_int);

    return !f->lower.set || !f->upper.set || digits > MULTIPLE_DIGITS || POWER[digits] > n;
}

/* Makes the numbers of @f by a product of automata: multiples within a range, or numbers that are
 * not whole. */
static struct expr *number_product(struct schema *s, const struct facets *f,
                                   const struct condition *is) {
    const struct lang *in[LANG_MAX] = {exact_numbers(s, f, is)}, *not_in[LANG_MAX];
    uint32_t n = 1, n_not = 0;
    bool joined = remainders(is) && multiple_is_wide(f, remainders(is));

    if (joined)
        in[n++] = remainders_lang(s->b, is);
    for (uint32_t i = 0; !s->b->failed && !joined && i < f->n_multiples; i++) {
        if (!f->multiple[i].negated)
            in[n++] = multiple_lang(s, f->multiple[i].at);
    }
    for (uint32_t i = 0; !s->b->failed && !joined && i < is->n_no; i++)
        not_in[n_not++] = multiple_lang(s, f->multiple[is->from[i]].at);
    return lang_expr(s->b, meet_numbers(s->b, in, n, not_in, n_not));
}

static bool same_bound(const struct bound *x, const struct bound *y) {
    return x->set == y->set &&
           (!x->set || (x->strict == y->strict && decimal_compare(&x->x, &y->x) == 0));
}

static bool same_condition(const struct condition *x, const struct condition *y) {
    return !x->large && !y->large && x->digits == y->digits && x->step == y->step &&
           x->n_no == y->n_no && memcmp(x->no, y->no, x->n_no * sizeof(*x->no)) == 0;
}

static const struct number_rule *multiple_find_rule(struct build *b, const struct facets *f,
                                                    const struct condition *is) {
    const struct number_rule *r = b->numbers;

    for (; r && build_work(b, 1) == 0; r = r->next) {
        if (r->types == (f->types & (T_INT | T_REAL)) && same_bound(&r->lower, &f->lower) &&
            same_bound(&r->upper, &f->upper) && same_condition(&r->is, is))
            break;
    }
    return r;
}

/* Makes the rule of these numbers with @body. Returns a call of the rule. */
static struct expr *multiple_add_rule(struct build *b, const struct facets *f,
                                      const struct condition *is, struct expr *body) {
    struct number_rule *r = build_alloc(b, 1, sizeof(*r));
    struct expr *call = r ? expr_rule(b, body) : NULL;

    if (!call)
        return NULL;
    *r = (struct number_rule){.next = b->numbers,
                              .types = f->types & (T_INT | T_REAL),
                              .lower = f->lower,
                              .upper = f->upper,
                              .is = *is,
                              .rule = call->id};
    b->numbers = r;
    return call;
}

struct expr *lower_number(struct schema *s, const struct facets *f) {
    struct build *b = s->b;
    struct condition is;

    if (read_condition(s, f, &is) < 0)
        return NULL;
    const struct number_rule *known = multiple_find_rule(b, f, &is);

    if (known)
        return expr_call(b, known->rule);
    if (is.never)
        return expr_never(b);
    struct expr *e;

    if (f->n_multiples || !(f->types & T_INT))
        e = number_product(s, f, &is);
    else
        e = number_range(b, f);

    if (!e || e->kind == EXPR_CALL || e->size <= INLINE_MAX)
        return e;
    return multiple_add_rule(b, f, &is, e);
}
