#include "scheduler/cost.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/util.h"

#define CONTEXT 3 /* index of the feature that counts keys read */
#define PAIRS 4   /* index of the feature that counts attention's arithmetic */
#define COPIES 6  /* index of the feature that counts copied pages */
/* standard deviation of the price of copies from step to step, relative */
#define COPIES_FORGET 0.15
/* share of copies in a step beyond which nothing else is learnt from it */
#define COPIES_MOST 0.7
#define KNEE 16 /* rows of a step up to which they share the reading of the weights */
/* backends compute the rows beyond KNEE in tiles; the last tile has 1, 2, 4 or 8 rows */
#define TILE 8u
#define TRUSTED_MIN 32 /* rows that may be tried without experience */
#define DISTRUST 0.5   /* part of a step's time that was not expected */
#define FORGET 0.01    /* standard deviation of a coefficient from step to step, relative */
#define NOISE 0.01     /* least variance of the relative error on a shared processor */
/* least variance where no other program uses the processor: equal steps take equal times */
#define OWN_NOISE 0.001
#define NOISE_MEMORY 0.9 /* weight of the old value in the running variance */
#define CLIP 1.0         /* a longer step counts as one of 1 + CLIP times the expected time */
#define BLOCK 128        /* steps of a block; the sums of successive blocks are compared */
/* Relative variance of a block's time: the variance of a step's time divided by BLOCK_MEANS,
 * because errors of successive steps are alike, but at least BLOCK_NOISE, because the speed of a
 * machine drifts. */
#define BLOCK_MEANS 16
#define BLOCK_NOISE 0.001
/* Standard deviations beyond which a block's time does not change the shape, and a step's time
 * counts less. */
#define SURPRISE 3.0
#define MEAN_MEMORY 0.95  /* weight of the old value in the running means of learn_shape() */
#define MARGIN 3.0        /* cost_bound_ns() adds this many times the mean underestimate */
#define MIN_MS 0.001      /* least time of a step */
#define UNSURE 4.0        /* standard deviation of a coefficient before data, in coefficients */
#define ERROR_MEMORY 0.95 /* weight of the old value in the running mean underestimate */
#define SURE 0.08         /* mean underestimate below which the model is sure */
#define BALANCE 16.0      /* prior: operations in the time of reading one byte */
#define EFFICIENT 0.9     /* part of the best rate that an efficient chunk reaches */

/* Coefficients before any data, in ms per unit of each feature: 1 ms a row, 8 ms to read the
 * weights. */
static const double PRIOR[COST_FEATURES] = {8, 16, 128, 8, 8, 2, 8};

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
        c->a[i] *= scale;
        c->p[i][i] = c->cap[i] = UNSURE * UNSURE * c->a[i] * c->a[i];
    }
}

void cost_init(struct cost *c) {
    *c = (struct cost){.error = 0.1, .noise = NOISE, .least_noise = NOISE, .speed = 1};
    memcpy(c->a, PRIOR, sizeof(c->a));
    set_scale(c, 1);
}

void cost_init_for(struct cost *c, const struct cost_model *m) {
    double row = m->n_params, byte = BALANCE / row;

    cost_init(c);
    if (m->own_processor) /* c->noise still begins at NOISE: the first errors come from the prior */
        c->least_noise = OWN_NOISE;
    if (m->n_params < 1000) /* the sizes of the model are not known */
        return;
    c->a[0] = fmin(fmax(m->weight_bytes * byte, PRIOR[0] / 2), PRIOR[0] * 8);
    c->a[CONTEXT] = fmin(m->key_bytes * byte * 16384, PRIOR[CONTEXT] * 16);
    c->a[PAIRS] = fmin(m->pair_ops / row * (1 << 20), PRIOR[PAIRS] * 32);
    set_scale(c, 1);
}

static double cost_dot(const double a[COST_FEATURES], const double b[COST_FEATURES]) {
    double sum = 0;

    for (int i = 0; i < COST_FEATURES; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Returns how many ms a step of features @x takes without its copies, at speed 1. */
static double work_ms(const struct cost *c, const double x[COST_FEATURES]) {
    return fmax(cost_dot(c->a, x) - c->a[COPIES] * x[COPIES], MIN_MS);
}

static double expect_ms(const struct cost *c, const double x[COST_FEATURES]) {
    return c->speed * work_ms(c, x) + c->a[COPIES] * x[COPIES];
}

/* ---- speed ---- */

static double median_speed(const struct cost *c) {
    double sorted[COST_SPEEDS];
    uint32_t n = (uint32_t)MIN(c->n_speeds, (uint64_t)COST_SPEEDS);

    assert(n > 0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i;

        for (; k > 0 && sorted[k - 1] > c->recent[i]; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = c->recent[i];
    }
    return sorted[n / 2];
}

/* Takes the speed of a step that took @ms into the median. */
static void learn_speed(struct cost *c, const double x[COST_FEATURES], double ms) {
    uint64_t at = c->n_speeds++ % COST_SPEEDS;

    c->recent[at] = ms / work_ms(c, x);
    c->decodes = (c->decodes & ~(1ull << at)) | (uint64_t)(x[PAIRS] == 0) << at;
    c->speed = median_speed(c);
}

/* ---- shape ---- */

/* Adds the expected drift since the last step to the variance of the coefficients in which this
 * step differs from the ones before. So hours of decode change neither the price of prefill nor its
 * certainty. */
static void cost_forget(struct cost *c, const double g[COST_FEATURES]) {
    for (int i = 0; i < COST_FEATURES; i++) {
        double drift = FORGET * c->a[i];

        if (fabs(g[i]) * c->a[i] > FORGET)
            c->p[i][i] = fmin(c->p[i][i] + drift * drift, c->cap[i]);
    }
}

/* Raises coefficient @i to 0, since more work is never cheaper, and corrects the others by their
 * covariance with it. */
static void raise_to_zero(struct cost *c, int i) {
    double lack = -c->a[i] / c->p[i][i];

    for (int j = 0; j < COST_FEATURES && lack > 0; j++)
        c->a[j] += c->p[i][j] * lack;
}

/* Updates the variance of noise by one step of expectation maximisation. @unsure is the part of the
 * error's variance that the uncertainty of the coefficients explains. */
static void learn_noise(struct cost *c, double error, double unsure) {
    double part = c->noise / (c->noise + unsure);
    double seen = part * part * error * error + part * unsure;

    c->noise = fmax(c->noise * NOISE_MEMORY + seen * (1 - NOISE_MEMORY), c->least_noise);
}

/* Returns the variance of a relative time of derivative @g that the uncertainty of the coefficients
 * explains. */
static double unsure_of(const struct cost *c, const double g[COST_FEATURES]) {
    double sum = 0;

    for (int i = 0; i < COST_FEATURES; i++)
        sum += g[i] * cost_dot(c->p[i], g);
    return sum;
}

/* Moves the coefficients by one step of a Kalman filter. @g: derivative of the step's relative time
 * with respect to each coefficient, less the mean of the last steps. @noise: variance of @error. */
static void update(struct cost *c, const double g[COST_FEATURES], double error, double noise) {
    double pg[COST_FEATURES];

    for (int i = 0; i < COST_FEATURES; i++)
        pg[i] = cost_dot(c->p[i], g);
    double scale = 1 / (noise + cost_dot(pg, g));
    for (int i = 0; i < COST_FEATURES; i++) {
        c->a[i] += pg[i] * scale * error;
        for (int j = 0; j < COST_FEATURES; j++)
            c->p[i][j] -= pg[i] * pg[j] * scale;
    }
    /* Rounding errors must not make the covariance asymmetric or negative. */
    for (int i = 0; i < COST_FEATURES; i++) {
        c->p[i][i] = fmax(c->p[i][i], c->cap[i] * 1e-9);
        for (int j = 0; j < i; j++)
            c->p[i][j] = c->p[j][i] = (c->p[i][j] + c->p[j][i]) / 2;
    }
    for (int i = 0; i < COST_FEATURES; i++)
        raise_to_zero(c, i);
    for (int i = 0; i < COST_FEATURES; i++)
        c->a[i] = fmax(c->a[i], 0);
    /* A row beyond the knee costs no more than one of a step up to it. */
    c->a[2] = fmin(c->a[2], 128.0 / KNEE * (c->a[0] + c->a[1]));
}

/* Learns from a difference of features @g, per ms of work, and of relative time @error with
 * variance @noise. The cost of features @mean does not change. */
static void learn_difference(struct cost *c, const double g[COST_FEATURES], double error,
                             double noise, const double mean[COST_FEATURES]) {
    double before = cost_dot(c->a, mean);

    update(c, g, fmin(error, CLIP), noise);
    double after = cost_dot(c->a, mean);
    for (int i = 0; i < COPIES; i++)
        c->a[i] *= after > before / 4 ? before / after : 1;
}

/*
 * Learns the shape from what distinguishes this step from the last ones: the means over the last
 * steps are subtracted from its features and its time, so that steps of one size do not affect
 * other sizes, even if the machine was slow meanwhile.
 */
static void learn_shape(struct cost *c, const double x[COST_FEATURES], double ms) {
    double work = work_ms(c, x), g[COST_FEATURES] = {0};
    double all = fmin(ms / (work * c->speed) - 1, CLIP), error = all - c->mean_error;

    for (int i = 0; i < COPIES; i++) {
        if (c->n_seen < 2)
            c->mean[i] = x[i] / work;
        g[i] = x[i] / work - c->mean[i];
    }
    cost_forget(c, g);
    double noise = c->noise, unsure = unsure_of(c, g);
    /* Such a step shows that other work runs on the dedicated processor after all, so it counts as
     * little as on a shared one. */
    if (error * error > SURPRISE * SURPRISE * (noise + unsure))
        noise = fmax(noise, NOISE);
    learn_noise(c, error, unsure);
    learn_difference(c, g, error, noise, c->mean);
    for (int i = 0; i < COPIES; i++)
        c->mean[i] = c->mean[i] * MEAN_MEMORY + x[i] / work * (1 - MEAN_MEMORY);
    c->mean_error = c->mean_error * MEAN_MEMORY + all * (1 - MEAN_MEMORY);
}

/* Learns the shape from what distinguishes a block of steps from the one before. */
static void learn_block(struct cost *c, const double x[COST_FEATURES], double ms) {
    struct cost_block *b = &c->block, *last = &c->last;
    double g[COST_FEATURES] = {0};

    for (int i = 0; i < COPIES; i++)
        b->x[i] += x[i];
    b->ms += fmin(ms, (1 + CLIP) * c->speed * work_ms(c, x));
    if (++b->n < BLOCK)
        return;
    if (last->n > 0) {
        double work = work_ms(c, b->x), work_last = work_ms(c, last->x);
        double noise = fmax(c->noise / BLOCK_MEANS, BLOCK_NOISE);
        double grown = b->ms / last->ms, expected = work / work_last;

        for (int i = 0; i < COPIES; i++)
            g[i] = b->x[i] / work - last->x[i] / work_last;
        double sure = SURPRISE * sqrt(noise + unsure_of(c, g));
        /* A ratio outside the range between 1 (no change) and the expected ratio does not come from
         * the features: other programs took the processor or released it. */
        if (grown > fmin(expected, 1) - sure && grown < fmax(expected, 1) + sure)
            learn_difference(c, g, grown / expected - 1, noise, b->x);
    }
    *last = *b;
    *b = (struct cost_block){0};
}

/* ---- copies ---- */

/* Learns the price of a copy from a step that took @ms, by a Kalman filter of one value. No prior
 * tells the speed of copies, so the first copies set the price, and half of the time of their step
 * is its uncertainty. */
static void learn_copies(struct cost *c, const double x[COST_FEATURES], double ms) {
    double *a = &c->a[COPIES], *p = &c->p[COPIES][COPIES], all = ms / x[COPIES];
    double seen = fmax(all - c->speed * work_ms(c, x) / x[COPIES], 0);
    double gain = c->has_copied ? *p / (*p + NOISE * all * all) : 1;

    *p = c->has_copied ? *p * (1 - gain) : all * all / 4;
    *a += gain * (seen - *a);
    *p += COPIES_FORGET * COPIES_FORGET * *a * *a;
    c->has_copied = true;
}

void cost_learn(struct cost *c, const struct cost_shape *s, int64_t ns) {
    double x[COST_FEATURES], ms = fmax((double)ns / 1e6, MIN_MS);

    features(s, x);
    /* The first step sets the scale: a laptop and a data-centre card are a factor of 1000 apart.
     * The second sets it again, since the first pays for memory that was never touched. */
    if (c->n_seen < 2) {
        set_scale(c, ms / cost_dot(c->a, x));
        c->n_speeds = c->decodes = 0;
    }
    double error = fmax(ms - expect_ms(c, x), 0) / ms;
    if (s->copies > 0)
        learn_copies(c, x, ms);
    double copies = c->a[COPIES] * x[COPIES], rest = fmax(ms - copies, MIN_MS);
    if (copies < COPIES_MOST * ms) {
        learn_shape(c, x, rest);
        learn_block(c, x, rest);
        learn_speed(c, x, rest);
    }
    if (c->n_seen > 0)
        c->error = c->error * ERROR_MEMORY + error * (1 - ERROR_MEMORY);
    c->n_seen++;
    /* The chunk took far longer than expected, so the price of rows is wrong, and larger steps
     * would take longer still. */
    bool surprises = error > DISTRUST && s->pairs > 0 && s->rows >= TRUSTED_MIN;
    c->max_rows = surprises ? s->rows / 2 : MAX(c->max_rows, s->rows);
}

/* ---- answers ---- */

int64_t cost_expect_ns(const struct cost *c, const struct cost_shape *s) {
    double x[COST_FEATURES];

    features(s, x);
    return (int64_t)(fmin(expect_ms(c, x), 1e9) * 1e6);
}

int64_t cost_bound_ns(const struct cost *c, const struct cost_shape *s) {
    return (int64_t)((double)cost_expect_ns(c, s) * (1 + MARGIN * c->error));
}

bool cost_is_of_decode(const struct cost *c) {
    return c->least_noise >= NOISE && __builtin_popcountll(c->decodes) > COST_SPEEDS / 2;
}

bool cost_is_sure(const struct cost *c) {
    return c->error < SURE;
}

int64_t cost_copies_ns(const struct cost *c, uint32_t n) {
    return (int64_t)(c->a[COPIES] * n / 16.0 * 1e6);
}

int64_t cost_row_ns(const struct cost *c) {
    return (int64_t)(c->speed * c->a[2] / 128 * 1e6);
}

double cost_part_ms(const struct cost *c, const struct cost_shape *all,
                    const struct cost_shape *own) {
    double x[COST_FEATURES];

    features(all, x);
    double rows = own->rows / (double)MAX(all->rows, 1u), seqs = own->seqs;
    double ms = c->a[0] * seqs / MAX(all->seqs, 1u) + (c->a[1] * x[1] + c->a[2] * x[2]) * rows;
    return c->speed * (ms + c->a[3] * (double)own->context / 16384 +
                       c->a[4] * (double)own->pairs / (1 << 20) + c->a[5] * seqs / 16.0);
}

/* Returns the rate, in rows per ns, of a step of one chunk of @n rows from position @pos0 on. */
static double rate_of(const struct cost *c, uint32_t pos0, uint32_t n) {
    struct cost_shape s = {0};

    cost_add(&s, pos0, n);
    return n / (double)MAX(cost_expect_ns(c, &s), 1);
}

uint32_t cost_efficient_rows(const struct cost *c, uint32_t pos0, uint32_t max_rows) {
    double best = 0;
    uint32_t low = 1, high = 1;

    assert(max_rows > 0);
    for (uint32_t n = 1;; n = MIN(2 * n, max_rows)) {
        double rate = rate_of(c, pos0, n);

        if (rate > best)
            best = rate, high = n;
        if (n == max_rows)
            break;
    }
    while (low < high) { /* below the best size, the rate grows with the chunk */
        uint32_t mid = low + (high - low) / 2;

        if (rate_of(c, pos0, mid) >= EFFICIENT * best)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

uint32_t cost_trusted_rows(const struct cost *c) {
    return MAX(TRUSTED_MIN, c->max_rows > UINT32_MAX / 2 ? UINT32_MAX : 2 * c->max_rows);
}

/* Returns the sum of the contexts of @n_rows rows: p + 1, p + 2, .. p + n positions. A single row
 * counts as decode and adds none. */
static uint64_t cost_pairs(uint32_t pos0, uint32_t n_rows) {
    return n_rows < 2 ? 0 : (uint64_t)n_rows * pos0 + (uint64_t)n_rows * (n_rows + 1) / 2;
}

void cost_add(struct cost_shape *s, uint32_t pos0, uint32_t n_rows) {
    s->rows += n_rows;
    s->seqs++;
    s->context += pos0 + n_rows;
    s->pairs += cost_pairs(pos0, n_rows);
}

void cost_remove(struct cost_shape *s, uint32_t pos0, uint32_t n_rows) {
    assert(s->rows >= n_rows && s->seqs > 0);
    s->rows -= n_rows;
    s->seqs--;
    s->context -= pos0 + n_rows;
    s->pairs -= cost_pairs(pos0, n_rows);
}
