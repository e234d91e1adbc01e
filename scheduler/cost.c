#include "scheduler/cost.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/util.h"

#define COPIES 6          /* which feature they are */
#define KNEE 16           /* rows up to here share the reading of the weights */
#define TILE 8u           /* beyond it, backends work in tiles of rows, the last of 1, 2, 4 or 8 */
#define TRUSTED_MIN 32    /* rows that may be tried without experience */
#define FORGET 0.03       /* by how much a coefficient may change from step to step */
#define NOISE 0.01        /* variance of the relative error that is taken for noise */
#define CLIP 0.5          /* a step that takes longer than 1 / (1 - CLIP) times is an outlier */
#define MARGIN 3.0        /* of the mean underestimate, added by cost_bound_ns() */
#define MIN_MS 0.001      /* no step is shorter */
#define UNSURE 4.0        /* standard deviation of a coefficient before data, in coefficients */
#define ERROR_MEMORY 0.95 /* of the running mean underestimate */

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

/* What a coefficient is may have changed since the last step, if this step has anything to say
 * about it: a direction without news keeps both its value and its uncertainty. */
static void forget(struct cost *c, const double x[COST_FEATURES]) {
    for (int i = 0; i < COST_FEATURES; i++) {
        double drift = FORGET * fmax(c->a[i], sqrt(c->cap[i]) * 0.01);

        if (x[i] > 0)
            c->p[i][i] = fmin(c->p[i][i] + drift * drift, c->cap[i]);
    }
}

/* One step of recursive least squares: x . a should be 1 (x is divided by the measured time). Only
 * a step that took longer than expected may be an outlier: none is faster than the machine. */
static void update(struct cost *c, const double x[COST_FEATURES]) {
    double px[COST_FEATURES], e = fmin(1 - dot(c->a, x), CLIP);

    for (int i = 0; i < COST_FEATURES; i++)
        px[i] = dot(c->p[i], x);
    double scale = 1 / (NOISE + dot(px, x));
    for (int i = 0; i < COST_FEATURES; i++) {
        c->a[i] = fmax(c->a[i] + px[i] * scale * e, 0);
        for (int j = 0; j < COST_FEATURES; j++)
            c->p[i][j] -= px[i] * px[j] * scale;
    }
    /* Rounding may not make it asymmetric or negative. */
    for (int i = 0; i < COST_FEATURES; i++) {
        c->p[i][i] = fmax(c->p[i][i], c->cap[i] * 1e-9);
        for (int j = 0; j < i; j++)
            c->p[i][j] = c->p[j][i] = (c->p[i][j] + c->p[j][i]) / 2;
    }
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
    double error = fmax(ms - dot(c->a, x), 0) / ms;
    for (int i = 0; i < COST_FEATURES; i++)
        x[i] /= ms;
    forget(c, x);
    update(c, x);
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
