/*
 * number - numbers in ranges, digit by digit.
 *
 * A range is cut into pieces in which every digit is free or fixed. Example, 25 to 310:
 *
 *     two digits:    2 [5-9]  |  [3-9] [0-9]
 *     three digits:  [1-2] [0-9] [0-9]  |  3 (0 [0-9] | 1 0)
 *
 * number_between() does that for numbers of equal length, whole_range() for all lengths. Fractions
 * go on behind the point as long as the digits equal those of a bound (fraction_from()). Below zero
 * the same is done with the bounds exchanged.
 *
 * Integers are exact up to DECIMAL_DIGITS digits. Other numbers with a bound are written without
 * exponent. Beside an exclusive bound they have so few digits that a JSON reader which rounds to
 * double does not arrive at the bound itself.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "grammar/front/schema/schema.h"

#define INT_DIGITS 20    /* most digits of an integer without an upper bound */
#define DOUBLE_DIGITS 15 /* digits that a double keeps */
#define FRACTION_DIGITS 17u

/* ---- decimals */

/* Writes the @n digits of a mantissa to @d. @point: number of digits before the decimal point, as
 * the exponent moves it. */
static int place_digits(struct decimal *d, const char *digits, int n, long point) {
    for (int i = 0; i < n || i < point; i++) {
        char c = i < n ? digits[i] : '0';

        if (i < point) {
            if (d->n_int == 0 && c == '0')
                continue;
            if (d->n_int == DECIMAL_DIGITS)
                return -ERANGE;
            d->digit_int[d->n_int++] = c;
        }
    }
    for (long i = MIN(point, 0L); i < n; i++) {
        if (i < point)
            continue;
        if (d->n_frac == DECIMAL_DIGITS)
            return -ERANGE;
        d->digit_frac[d->n_frac++] = i < 0 ? '0' : digits[i];
    }
    while (d->n_frac && d->digit_frac[d->n_frac - 1] == '0')
        d->n_frac--;
    assert(d->n_int == 0 || d->digit_int[0] != '0'); /* no needless zeros */
    return 0;
}

int decimal_read(struct decimal *d, const char *s, size_t len) {
    char digits[2 * DECIMAL_DIGITS];
    long point = -1, exponent = 0;
    int n = 0;
    size_t i = 0;
    bool negative = false, zero = true;

    *d = (struct decimal){0};
    if (i < len && s[i] == '-') {
        negative = true;
        i++;
    }
    for (; i < len && s[i] != 'e' && s[i] != 'E'; i++) {
        if (s[i] == '.') {
            point = n;
            continue;
        }
        if (n == (int)sizeof(digits))
            return -ERANGE;
        zero = zero && s[i] == '0';
        digits[n++] = s[i];
    }
    if (point < 0)
        point = n;
    if (zero)
        return 0;
    if (i < len) {
        bool minus = ++i < len && s[i] == '-';

        for (i += i < len && (s[i] == '-' || s[i] == '+'); i < len; i++) {
            exponent = exponent * 10 + (s[i] - '0');
            if (exponent > 2 * DECIMAL_DIGITS)
                return -ERANGE;
        }
        point += minus ? -exponent : exponent;
    }
    d->negative = negative;
    return place_digits(d, digits, n, point);
}

static int compare_magnitude(const struct decimal *x, const struct decimal *y) {
    if (x->n_int != y->n_int) {
        if (x->n_int < y->n_int)
            return -1;
        return 1;
    }
    int c = memcmp(x->digit_int, y->digit_int, x->n_int);

    if (c == 0)
        c = memcmp(x->digit_frac, y->digit_frac, MIN(x->n_frac, y->n_frac));
    if (c)
        return c;
    return (x->n_frac > y->n_frac) - (x->n_frac < y->n_frac);
}

int decimal_compare(const struct decimal *x, const struct decimal *y) {
    if (x->negative != y->negative) {
        if (x->negative)
            return -1;
        return 1;
    }
    if (x->negative)
        return -compare_magnitude(x, y);
    return compare_magnitude(x, y);
}

/* ---- expressions of digits */

static struct expr *number_digits(struct build *b, char lo, char hi) {
    struct cp_set *set = build_alloc(b, 1, sizeof(*set));

    if (lo > hi)
        return expr_never(b);
    if (!set || cp_set_add(b, set, (uint8_t)lo, (uint8_t)hi) < 0)
        return NULL;
    struct expr *e = expr_chars(b, set, CHARS_TEXT);

    if (e)
        e->atom = false; /* repetitions become copies and no counted loops: they are short */
    return e;
}

static struct expr *any_digits(struct build *b, uint32_t min, uint32_t max) {
    return expr_repeat(b, number_digits(b, '0', '9'), min, max);
}

/* Returns an expression for the strings of @n digits from @lo to @hi. NULL: there is no such
 * bound. */
static struct expr *number_between(struct build *b, const char *lo, const char *hi, uint32_t n) {
    if (n == 0 || (!lo && !hi))
        return any_digits(b, n, n);
    assert(!lo || !hi || memcmp(lo, hi, n) <= 0);
    char a = lo ? lo[0] : '0', z = hi ? hi[0] : '9';

    if (lo && hi && a == z)
        return expr_seq2(b, number_digits(b, a, a), number_between(b, lo + 1, hi + 1, n - 1));
    struct expr *low, *high;

    if (lo)
        low = expr_seq2(b, number_digits(b, a, a), number_between(b, lo + 1, NULL, n - 1));
    else
        low = expr_never(b);
    if (hi)
        high = expr_seq2(b, number_digits(b, z, z), number_between(b, NULL, hi + 1, n - 1));
    else
        high = expr_never(b);
    struct expr *middle =
        expr_seq2(b, number_digits(b, (char)(a + (lo != NULL)), (char)(z - (hi != NULL))),
                  any_digits(b, n - 1, n - 1));

    return expr_alt(b, (struct expr *[]){low, middle, high}, 3);
}

/* A whole number from 0 on, as digits without a sign. Zero has no digits. */
struct whole {
    uint32_t n;
    char digit[DECIMAL_DIGITS + 2];
};

static void add_one(struct whole *w) {
    uint32_t i = w->n;

    while (i && w->digit[i - 1] == '9')
        w->digit[--i] = '0';
    if (i) {
        w->digit[i - 1]++;
        return;
    }
    assert(w->n < sizeof(w->digit));
    memmove(w->digit + 1, w->digit, w->n++);
    w->digit[0] = '1';
}

/* Subtracts one; @w must not be zero. */
static void number_decrement(struct whole *w) {
    uint32_t i = w->n;

    assert(w->n > 0);
    while (w->digit[i - 1] == '0')
        w->digit[--i] = '9';
    w->digit[i - 1]--;
    if (w->digit[0] == '0') {
        w->n--;
        memmove(w->digit, w->digit + 1, w->n);
    }
}

static int compare_whole(const struct whole *x, const struct whole *y) {
    if (x->n != y->n) {
        if (x->n < y->n)
            return -1;
        return 1;
    }
    return memcmp(x->digit, y->digit, x->n);
}

/* Returns an expression for the whole numbers from @lo to @hi. NULL: numbers have up to INT_DIGITS
 * digits, or one more than @lo has if that is longer. */
static struct expr *whole_range(struct build *b, const struct whole *lo, const struct whole *hi) {
    uint32_t most = hi ? hi->n : MAX((uint32_t)INT_DIGITS, lo->n + 1);
    struct expr_vec v = {0};

    if (hi && compare_whole(lo, hi) > 0)
        return expr_never(b);
    if (lo->n == 0 && expr_vec_add(b, &v, expr_str(b, "0")) < 0)
        return NULL;
    for (uint32_t n = MAX(lo->n, 1u); n <= most; n++) {
        char least[DECIMAL_DIGITS + 2];

        memset(least, '0', sizeof(least));
        least[0] = '1';
        const char *from = n == lo->n ? lo->digit : least;

        if (expr_vec_add(b, &v, number_between(b, from, hi && n == hi->n ? hi->digit : NULL, n)) <
            0)
            return NULL;
    }
    return expr_alt(b, v.v, v.n);
}

static struct whole whole_of(const struct decimal *d) {
    struct whole w = {.n = d->n_int};

    assert(d->n_int <= DECIMAL_DIGITS);

    memcpy(w.digit, d->digit_int, d->n_int);
    return w;
}

/* A bound of magnitudes, numbers without their sign; strict: the value itself is excluded. */
struct limit {
    bool set, strict;
    struct decimal x;
};

/* ---- integers */

static struct expr *integers(struct build *b, const struct limit *lo, const struct limit *hi) {
    struct whole from = whole_of(&lo->x), to = whole_of(&hi->x);

    if (lo->x.n_frac || lo->strict)
        add_one(&from);
    if (hi->set && hi->x.n_frac == 0 && hi->strict) {
        if (to.n == 0)
            return expr_never(b);
        number_decrement(&to);
    }
    return whole_range(b, &from, hi->set ? &to : NULL);
}

/* ---- other numbers */

struct fraction {
    struct build *b;
    const struct limit *lo, *hi;
};

/* Returns the most digits after the point. Rounding to double never moves a number across a bound,
 * only onto it. So beside inclusive bounds there are as many digits as any number has; beside an
 * exclusive bound only as many as a double keeps next to the larger bound's whole digits. In either
 * case there are at least as many as the bounds have. */
static uint32_t fraction_max(const struct limit *lo, const struct limit *hi) {
    uint32_t n_int = MAX(lo->x.n_int, hi->x.n_int), n = MAX(lo->x.n_frac, hi->x.n_frac);

    if (!lo->strict && !hi->strict)
        return MAX(n, FRACTION_DIGITS);
    return MAX(n_int < DOUBLE_DIGITS ? DOUBLE_DIGITS - n_int : 1, MAX(n, 1u));
}

/* Returns the digits after the point from position @i on. @at_lo, @at_hi: all digits before equal
 * those of that bound. */
static struct expr *fraction_from(const struct fraction *f, uint32_t i, bool at_lo, bool at_hi) {
    struct build *b = f->b;
    uint32_t n_lo = f->lo->x.n_frac, n_hi = f->hi->x.n_frac, most = fraction_max(f->lo, f->hi);

    if (!at_lo && !at_hi)
        return any_digits(b, i == 0, most - MIN(i, most));
    if (i > most)
        return expr_never(b);
    char a = at_lo && i < n_lo ? f->lo->x.digit_frac[i] : '0';
    char z = at_hi ? '0' : '9';
    if (at_hi && i < n_hi)
        z = f->hi->x.digit_frac[i];
    bool may_stop = i > 0 && (!at_lo || (i >= n_lo && !f->lo->strict)) &&
                    (!at_hi || i < n_hi || !f->hi->strict);
    struct expr_vec v = {0};

    if (may_stop && expr_vec_add(b, &v, expr_empty(b)) < 0)
        return NULL;
    if (at_lo && at_hi && a == z) {
        if (expr_vec_add(
                b, &v, expr_seq2(b, number_digits(b, a, a), fraction_from(f, i + 1, true, true))) <
            0)
            return NULL;
        return expr_alt(b, v.v, v.n);
    }
    if (a <= z || !at_lo || !at_hi) {
        struct expr *low, *high;

        if (at_lo)
            low = expr_seq2(b, number_digits(b, a, a), fraction_from(f, i + 1, true, false));
        else
            low = expr_never(b);
        if (at_hi)
            high = expr_seq2(b, number_digits(b, z, z), fraction_from(f, i + 1, false, true));
        else
            high = expr_never(b);
        struct expr *middle = expr_seq2(b, number_digits(b, (char)(a + at_lo), (char)(z - at_hi)),
                                        any_digits(b, 0, most - MIN(i + 1, most)));

        if (expr_vec_add(b, &v, low) < 0 || expr_vec_add(b, &v, middle) < 0 ||
            expr_vec_add(b, &v, high) < 0)
            return NULL;
    }
    return expr_alt(b, v.v, v.n);
}

/* Makes the fraction: nothing, or a point and digits, after a whole part that equals that of @lo
 * (@at_lo) or @hi, or lies between. */
static struct expr *fraction(struct build *b, const struct limit *lo, const struct limit *hi,
                             bool at_lo, bool at_hi) {
    struct fraction f = {b, lo, hi};
    bool may_be_whole = (!at_lo || (lo->x.n_frac == 0 && !lo->strict)) &&
                        (!at_hi || hi->x.n_frac > 0 || !hi->strict);
    struct expr *digits_after = expr_seq2(b, expr_str(b, "."), fraction_from(&f, 0, at_lo, at_hi));

    if (!may_be_whole)
        return digits_after;
    return expr_optional(b, digits_after);
}

static struct expr *reals(struct build *b, const struct limit *lo, const struct limit *hi) {
    struct whole from = whole_of(&lo->x), to = whole_of(&hi->x);

    if (hi->set && decimal_compare(&lo->x, &hi->x) > 0)
        return expr_never(b);
    if (hi->set && compare_whole(&from, &to) == 0)
        return expr_seq2(b, whole_range(b, &from, &from), fraction(b, lo, hi, true, true));
    struct expr *first =
        expr_seq2(b, whole_range(b, &from, &from), fraction(b, lo, hi, true, false));
    struct expr *last;

    if (hi->set)
        last = expr_seq2(b, whole_range(b, &to, &to), fraction(b, lo, hi, false, true));
    else
        last = expr_never(b);

    add_one(&from);
    if (hi->set)
        number_decrement(&to);
    struct expr *middle = expr_seq2(b, whole_range(b, &from, hi->set ? &to : NULL),
                                    fraction(b, lo, hi, false, false));

    return expr_alt(b, (struct expr *[]){first, middle, last}, 3);
}

/* ---- both signs */

static struct limit number_magnitude(const struct bound *x) {
    struct limit l = {.set = x->set, .strict = x->strict, .x = x->x};

    l.x.negative = false;
    return l;
}

struct expr *number_range(struct build *b, const struct facets *f) {
    bool whole = !(f->types & T_REAL);
    struct limit zero = {.set = true}, none = {0}, lo = number_magnitude(&f->lower),
                 hi = number_magnitude(&f->upper);
    struct expr *(*range)(struct build *, const struct limit *, const struct limit *) =
        whole ? integers : reals;

    if (!f->lower.set && !f->upper.set && whole)
        return json_integer(b);
    if (!f->lower.set && !f->upper.set)
        return json_number(b);
    bool lo_below = !lo.set || f->lower.x.negative, hi_below = hi.set && f->upper.x.negative;
    struct expr *minus = expr_never(b), *plus = expr_never(b);

    /* The magnitudes of negative numbers lie between that of the upper bound and that of the lower
     * one. */
    if (lo_below)
        minus =
            expr_seq2(b, expr_str(b, "-"), range(b, hi_below ? &hi : &zero, lo.set ? &lo : &none));
    if (!hi_below)
        plus = range(b, lo_below ? &zero : &lo, hi.set ? &hi : &none);
    /* An upper bound of an exclusive 0 excludes -0, too. */
    if (lo_below && hi.set && !hi_below && hi.strict && hi.x.n_int == 0 && hi.x.n_frac == 0) {
        zero.strict = true;
        minus = expr_seq2(b, expr_str(b, "-"), range(b, &zero, lo.set ? &lo : &none));
    }
    return expr_alt2(b, minus, plus);
}
