#include "cmd/bench_stats.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/try.h"
#include "cmd/cli.h"

void samples_deinit(struct samples *s) {
    free(s->v);
    *s = (struct samples){0};
}

int samples_add(struct samples *s, double v) {
    assert(s->n <= s->cap && !isnan(v));
    if (!ARRAY_GROW(s->v, s->n, s->cap, 64))
        return -ENOMEM;
    s->v[s->n++] = v;
    return 0;
}

int samples_add_all(struct samples *s, const struct samples *from) {
    for (size_t i = 0; i < from->n; i++)
        TRY(samples_add(s, from->v[i]));
    return 0;
}

double stats_quantile(const double *sorted, size_t n, double q) {
    assert(n > 0 && q >= 0 && q <= 1);
    double at = q * (double)(n - 1);
    size_t i = (size_t)at;

    if (i + 1 >= n)
        return sorted[n - 1];
    assert(sorted[i] <= sorted[i + 1]);
    return sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]);
}

static int stats_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct summary samples_summary(struct samples *s) {
    struct summary out = {.n = s->n};
    double square = 0;

    if (s->n == 0)
        return out;
    qsort(s->v, s->n, sizeof(*s->v), stats_compare);
    for (size_t i = 0; i < s->n; i++)
        out.mean += s->v[i] / (double)s->n;
    for (size_t i = 0; i < s->n; i++)
        square += (s->v[i] - out.mean) * (s->v[i] - out.mean);
    if (s->n > 1)
        out.sd = sqrt(square / (double)(s->n - 1));
    out.min = s->v[0];
    out.p50 = stats_quantile(s->v, s->n, 0.5);
    out.p90 = stats_quantile(s->v, s->n, 0.9);
    out.p99 = stats_quantile(s->v, s->n, 0.99);
    out.max = s->v[s->n - 1];
    return out;
}

/* Parses A,B,C. Returns 0 or -EINVAL. @text is modified. */
static int parse_choices(struct dist *d, char *text) {
    char *part;

    d->kind = DIST_CHOICE;
    while ((part = strsep(&text, ",")))
        if (d->n == DIST_CHOICES || !cli_u32(part, 1, LENGTH_MAX, &d->choice[d->n++]))
            return -EINVAL;
    return 0;
}

/* Parses a named distribution. @tail: the text after the name and a colon. */
static int parse_named(struct dist *d, const char *name, char *tail) {
    char *sigma = strchr(tail, ':');

    if (strcmp(name, "exp") == 0) {
        d->kind = DIST_EXP;
        if (!cli_double(tail, 1, LENGTH_MAX, &d->a))
            return -EINVAL;
        return 0;
    }
    if (strcmp(name, "lognormal") != 0 || !sigma)
        return -EINVAL;
    *sigma++ = 0;
    d->kind = DIST_LOGNORMAL;
    if (!cli_double(tail, 1, LENGTH_MAX, &d->a) || !cli_double(sigma, 0, 10, &d->b))
        return -EINVAL;
    return 0;
}

static int stats_parse_range(struct dist *d, const char *from, const char *to) {
    uint32_t a, b;

    if (!cli_u32(from, 1, LENGTH_MAX, &a) || !cli_u32(to, a, LENGTH_MAX, &b))
        return -EINVAL;
    *d = (struct dist){.kind = a == b ? DIST_FIXED : DIST_UNIFORM, .a = a, .b = b};
    return 0;
}

int dist_parse(struct dist *d, const char *text, struct err *err) {
    CLEANUP(freep) char *copy = strdup(text);
    struct dist out = {0};
    char *mark;
    int r;

    if (!copy)
        return -ENOMEM;
    if ((mark = strchr(copy, ':'))) {
        *mark = 0;
        r = parse_named(&out, copy, mark + 1);
    } else if ((mark = strchr(copy, '-'))) {
        *mark = 0;
        r = stats_parse_range(&out, copy, mark + 1);
    } else if (strchr(copy, ',')) {
        r = parse_choices(&out, copy);
    } else {
        r = stats_parse_range(&out, copy, copy);
    }
    if (r < 0)
        return err_set(err, 0, NULL,
                       "\"%s\" is not N, A-B, A,B,C, exp:MEAN or lognormal:MEDIAN:SIGMA", text);
    *d = out;
    return 0;
}

double stats_exponential(struct rng *r) {
    return -log1p(-rng_unit(r));
}

static double draw_normal(struct rng *r) {
    double radius = sqrt(2 * stats_exponential(r));

    return radius * cos(2 * M_PI * rng_unit(r));
}

uint32_t dist_draw(const struct dist *d, struct rng *r) {
    double v = d->a;

    assert(d->kind == DIST_CHOICE ? d->n > 0 : d->a >= 1);
    switch (d->kind) {
    case DIST_FIXED:
        break;
    case DIST_UNIFORM:
        assert(d->a < d->b && d->b <= LENGTH_MAX);
        return (uint32_t)d->a + rng_below(r, (uint32_t)(d->b - d->a) + 1);
    case DIST_CHOICE:
        return d->choice[rng_below(r, d->n)];
    case DIST_EXP:
        v = d->a * stats_exponential(r);
        break;
    case DIST_LOGNORMAL:
        v = d->a * exp(d->b * draw_normal(r));
        break;
    }
    return (uint32_t)MAX(1.0, MIN(v + 0.5, (double)LENGTH_MAX));
}
