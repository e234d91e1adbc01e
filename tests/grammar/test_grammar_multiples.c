/*
 * Numbers beside several `multipleOf` and their contraries: against arithmetic, for random lists of
 * them. Written without needless zeros, and within what a double keeps, all that fit are there.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"
#include "tests/support/few.h"

#define UNIT 1000 /* values are whole numbers of 1 / 1000 */
#define MANY 6
#define ROUNDS FEWEST(250, 75)

struct list {
    /* in units; negative: not of it */
    int64_t of[MANY];
    uint32_t n;
    bool whole;
    int64_t min;
};

static const struct {
    const char *text;
    int64_t units;
} STEPS[] = {{"2", 2000},     {"3", 3000},     {"4", 4000},       {"5", 5000},   {"6", 6000},
             {"8", 8000},     {"12", 12000},   {"13", 13000},     {"20", 20000}, {"33", 33000},
             {"77", 77000},   {"100", 100000}, {"1001", 1001000}, {"0.5", 500},  {"0.25", 250},
             {"0.125", 125},  {"0.1", 100},    {"0.75", 750},     {"2.5", 2500}, {"0.01", 10},
             {"37.5", 37500}, {"1", 1000},     {"997", 997000},   {"0.003", 3}};

static void random_list(struct list *l, struct rng *r, char *schema, size_t cap) {
    int n = snprintf(schema, cap, R"({"type":"%s","allOf":[)",
                     (l->whole = rng_below(r, 3) == 0) ? "integer" : "number");

    l->n = 1 + (uint32_t)rng_below(r, MANY - 1);
    for (uint32_t i = 0; i < l->n; i++) {
        size_t k = rng_below(r, ARRAY_SIZE(STEPS));
        bool not = rng_below(r, 2);

        l->of[i] = not ? -STEPS[k].units : STEPS[k].units;
        n += snprintf(schema + n, cap - (size_t)n,
                      not ? R"(%s{"not":{"multipleOf":%s}})" : R"(%s{"multipleOf":%s})",
                      i ? "," : "", STEPS[k].text);
    }
    l->min = rng_below(r, 2) ? INT64_MIN : -25 * UNIT;
    snprintf(schema + n, cap - (size_t)n, l->min == INT64_MIN ? "]}" : R"(],"minimum":-25})");
}

static bool fits(const struct list *l, int64_t units) {
    bool yes = units >= l->min && (!l->whole || units % UNIT == 0);

    for (uint32_t i = 0; i < l->n; i++)
        yes = yes && (units % llabs(l->of[i]) == 0) == (l->of[i] > 0);
    return yes;
}

static void write_number(int64_t units, char *out, size_t cap) {
    int64_t rest = llabs(units) % UNIT;
    int n = snprintf(out, cap, "%s%lld", units < 0 ? "-" : "", llabs(units) / UNIT);

    if (rest)
        n += snprintf(out + n, cap - (size_t)n, ".%03lld", (long long)rest);
    while (rest && out[n - 1] == '0')
        out[--n] = '\0';
}

Test(grammar_multiples, are_those_of_arithmetic) {
    struct rng r = {20261122};
    uint32_t n_fit = 0, n_empty = 0;

    for (int round = 0; round < ROUNDS; round++) {
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        char schema[512], text[64];
        struct err err = {0};
        struct list l;

        random_list(&l, &r, schema, sizeof(schema));
        struct grammar_source src = {
            .kind = GRAMMAR_JSON_SCHEMA, .text = schema, .len = strlen(schema)};
        int e = grammar_compile(&g, test_vocab(), &src, NULL, &err);

        if (e < 0 && strcmp(err.code, "grammar_too_complex") == 0)
            continue;
        cr_assert(e == 0 || strstr(err.message, "no text satisfies"), "%s: %s", schema,
                  err.message);
        n_empty += e < 0;
        for (int i = 0; i < 400; i++) {
            int64_t spread = i < 200 ? 40 : 900000000, step = i % 4 ? UNIT : i % 8 ? 1 : 25;
            int64_t units = ((int64_t)rng_below(&r, 2 * (uint64_t)spread) - spread) * step;

            if (i % 2) /* near one that is likely to fit */
                units -= units % (l.of[0] > 0 ? l.of[0] : 1);
            write_number(units, text, sizeof(text));
            bool is = g && test_fits(g, text, strlen(text));

            cr_assert_eq(is, fits(&l, units), "%s: %s", schema, text);
            n_fit += is;
        }
    }
    cr_assert_gt(n_fit, 20 * ROUNDS);
    cr_assert_gt(n_empty, ROUNDS / 25);
}
