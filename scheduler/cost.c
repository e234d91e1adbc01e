#include "scheduler/cost.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/util.h"

#define COPIES 6          /* which feature they are */
#define KNEE 16           /* rows up to here share the reading of the weights */
#define TILE 8u           /* beyond it, backends work in tiles of rows, the last of 1, 2, 4 or 8 */
#define TRUSTED_MIN 32    /* rows that may be tried without experience */
#define DRIFT 0.03        /* relative change of one coefficient from step to step */
#define TOGETHER 0.05     /* relative change of all coefficients at once: a busy machine */
#define NOISE 0.01        /* least variance of the relative error */
#define CLIP 1.0          /* a step that takes longer than 1 + CLIP times counts as that */
#define MARGIN 3.0        /* of the mean underestimate, added by cost_bound_ns() */
#define MIN_MS 0.001      /* no step is shorter */
#define UNSURE 4.0        /* standard deviation of a coefficient before data, in coefficients */
#define ERROR_MEMORY 0.95 /* of the running mean underestimate */
#define NOISE_MEMORY 0.98 /* of the running variance */

/* ms for one unit of each feature (below) as long as nothing is known: 1 ms a row. */
static const double PRIOR[COST_FEATURES] = {5, 16, 128, 8, 8, 2, 8};

static uint32_t in_tiles(uint32_t rows) {
    uint32_t last = rows % TILE, width = 1;

    while (width < last)
        width *= 2;
    return last == 0 ? rows : rows - last + width;
}

static void features(const struct cost_shape *s, double x[COST_FEATURES]) {
    uint32_t low = MIN(s->rows, KNEE), high = s->rows - low;

    x[0] = 1;
    x[1] = low / (double)KNEE;
    x[2] = in_tiles(high) / 128.0;
    x[3] = (double)s->context / 16384;
    x[4] = (double)s->pairs / (1 << 20);
    x[5] = s->seqs / 16.0;
    x[COPIES] = s->copies / 16.0;
}

static void set_scale(struct cost *c, double scale) {
    memset(c->p, 0, sizeof(c->p));
    for (int i = 0; i < COST_FEATURES; i++) {
        c->a[i] = PRIOR[i] * scale;
        c->p[i][i] = c->cap[i] = UNSURE * UNSURE * c->a[i] * c->a[i];
    }
}

void cost_init(struct cost *c) {
    *c = (struct cost){.error = 0.1};
    set_scale(c, 1);
}

static double dot(const double a[COST_FEATURES], const double b[COST_FEATURES]) {
    double sum = 0;

    for (int i = 0; i < COST_FEATURES; i++)
        sum += a[i] * b[i];
    return sum;
}

/*
 * Adds to the uncertainty what may have changed since the last step: each coefficient that the step
 * says something about, and all of them by the same factor. The second is much the larger: when
 * other programs take the processor every kind of work takes longer, so a change of speed moves all
 * coefficients together and leaves their ratios.
 */
static void forget(struct cost *c, const double x[COST_FEATURES]) {
    for (int i = 0; i < COST_FEATURES; i++) {
        double drift = x[i] > 0 ? DRIFT * fmax(c->a[i], sqrt(c->cap[i]) * 0.01) : 0;

        for (int j = 0; j < COST_FEATURES; j++)
            c->p[i][j] += TOGETHER * TOGETHER * c->a[i] * c->a[j];
        c->p[i][i] += drift * drift;
    }
    for (int i = 0; i < COST_FEATURES; i++) {
        double shrink = c->p[i][i] > c->cap[i] ? sqrt(c->cap[i] / c->p[i][i]) : 1;

        for (int j = 0; j < COST_FEATURES && shrink < 1; j++)
            c->p[i][j] = c->p[j][i] *= i == j ? shrink * shrink : shrink;
    }
}

/* Raises coefficient @i to 0, and takes from the others what stood against it. */
static void keep_positive(struct cost *c, int i) {
    double lack = -c->a[i] / c->p[i][i];

    for (int j = 0; j < COST_FEATURES && lack > 0; j++)
        c->a[j] += c->p[i][j] * lack;
}

/* One step of a Kalman filter. @x and @error, of the measured time less the expected one, are
 * divided by the expected time. */
static void update(struct cost *c, const double x[COST_FEATURES], double error) {
    double px[COST_FEATURES], e = fmin(error, CLIP);

    for (int i = 0; i < COST_FEATURES; i++)
        px[i] = dot(c->p[i], x);
    double sure = dot(px, x), scale = 1 / (fmax(c->noise, NOISE) + sure);
    /* Of the difference, so that an estimate that is wrong in one direction is no noise. */
    double jump = e - c->last;
    c->noise = c->noise * NOISE_MEMORY + jump * jump / 2 * (1 - NOISE_MEMORY);
    c->last = e;
    for (int i = 0; i < COST_FEATURES; i++) {
        c->a[i] += px[i] * scale * e;
        for (int j = 0; j < COST_FEATURES; j++)
            c->p[i][j] -= px[i] * px[j] * scale;
    }
    /* Rounding may not make it asymmetric or negative. */
    for (int i = 0; i < COST_FEATURES; i++) {
        c->p[i][i] = fmax(c->p[i][i], c->cap[i] * 1e-9);
        for (int j = 0; j < i; j++)
            c->p[i][j] = c->p[j][i] = (c->p[i][j] + c->p[j][i]) / 2;
    }
    for (int i = 0; i < COST_FEATURES; i++)
        keep_positive(c, i);
    for (int i = 0; i < COST_FEATURES; i++)
        c->a[i] = fmax(c->a[i], 0);
    /* A row beyond the knee costs no more than one of a step up to it, also before one was seen. */
    c->a[2] = fmin(c->a[2], 128.0 / KNEE * (c->a[0] + c->a[1]));
}

/* A device may be as much faster or slower at copying as it likes: the first copies set their
 * scale. */
static void set_copy_scale(struct cost *c, const double x[COST_FEATURES], double ms) {
    double rest = dot(c->a, x) - c->a[COPIES] * x[COPIES];

    if (ms > rest)
        c->a[COPIES] = (ms - rest) / x[COPIES];
    c->p[COPIES][COPIES] = c->cap[COPIES] = UNSURE * UNSURE * c->a[COPIES] * c->a[COPIES];
    c->has_copied = true;
}

void cost_learn(struct cost *c, const struct cost_shape *s, int64_t ns) {
    double x[COST_FEATURES], ms = fmax((double)ns / 1e6, MIN_MS);

    features(s, x);
    /* The first step sets the scale: a laptop and a data-centre card are a factor of 1000 apart. */
    if (c->n_seen == 0)
        set_scale(c, ms / dot(c->a, x));
    if (s->copies > 0 && !c->has_copied)
        set_copy_scale(c, x, ms);
    double expect = fmax(dot(c->a, x), MIN_MS), error = fmax(ms - expect, 0) / ms;
    forget(c, x);
    for (int i = 0; i < COST_FEATURES; i++)
        x[i] /= expect;
    update(c, x, ms / expect - 1);
    if (c->n_seen > 0)
        c->error = c->error * ERROR_MEMORY + error * (1 - ERROR_MEMORY);
    c->n_seen++;
    c->max_rows = MAX(c->max_rows, s->rows);
}

int64_t cost_expect_ns(const struct cost *c, const struct cost_shape *s) {
    double x[COST_FEATURES];

    features(s, x);
    return (int64_t)(fmin(dot(c->a, x), 1e9) * 1e6);
}

int64_t cost_bound_ns(const struct cost *c, const struct cost_shape *s) {
    return (int64_t)((double)cost_expect_ns(c, s) * (1 + MARGIN * c->error));
}

int64_t cost_copies_ns(const struct cost *c, uint32_t n) {
    return (int64_t)(c->a[COPIES] * n / 16.0 * 1e6);
}

double cost_part_ms(const struct cost *c, const struct cost_shape *all,
                    const struct cost_shape *own) {
    double x[COST_FEATURES];

    features(all, x);
    double rows = own->rows / (double)MAX(all->rows, 1u), seqs = own->seqs;
    double ms = c->a[0] * seqs / MAX(all->seqs, 1u) + (c->a[1] * x[1] + c->a[2] * x[2]) * rows;
    return ms + c->a[3] * (double)own->context / 16384 + c->a[4] * (double)own->pairs / (1 << 20) +
           c->a[5] * seqs / 16.0;
}

uint32_t cost_trusted_rows(const struct cost *c) {
    return MAX(TRUSTED_MIN, c->max_rows > UINT32_MAX / 2 ? UINT32_MAX : 2 * c->max_rows);
}

/* n rows from p on have p + 1, p + 2, .. p + n positions to look at. */
static uint64_t pairs_of(uint32_t pos0, uint32_t n_rows) {
    return n_rows < 2 ? 0 : (uint64_t)n_rows * pos0 + (uint64_t)n_rows * (n_rows + 1) / 2;
}

void cost_add(struct cost_shape *s, uint32_t pos0, uint32_t n_rows) {
    s->rows += n_rows;
    s->seqs++;
    s->context += pos0 + n_rows;
    s->pairs += pairs_of(pos0, n_rows);
}

void cost_remove(struct cost_shape *s, uint32_t pos0, uint32_t n_rows) {
    assert(s->rows >= n_rows && s->seqs > 0);
    s->rows -= n_rows;
    s->seqs--;
    s->context -= pos0 + n_rows;
    s->pairs -= pairs_of(pos0, n_rows);
}
