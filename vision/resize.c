#include "vision/resize.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#include "base/mathx.h"

#define PI 3.14159265358979323846
#define BITS 22 /* fractional bits of a weight */

static double bilinear(double x) {
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* Keys' cubic with a = -1/2. */
static double bicubic(double x) {
    const double a = -0.5;

    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x) {
    double s, c;

    if (x == 0)
        return 1;
    mx_sincos(x * PI, &s, &c);
    return s / (x * PI);
}

static double lanczos(double x) {
    return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

static const struct filter {
    double (*weight)(double x);
    double support; /* on each side */
} filters[] = {
    [FILTER_BILINEAR] = {bilinear, 1},
    [FILTER_BICUBIC] = {bicubic, 2},
    [FILTER_LANCZOS] = {lanczos, 3},
};

/* The weights of one axis: place i of the result is made of n[i] values from first[i] on, with the
 * weights from weight[i * most] on. */
struct taps {
    uint32_t most;
    uint32_t *first, *n;
    int32_t *weight;
};

static void taps_deinit(struct taps *t) {
    free(t->first);
    free(t->n);
    free(t->weight);
}

/* Computes the weights of output position @i. */
static void fill_place(struct taps *t, uint32_t i, uint32_t n_in, double scale, double wide,
                       const struct filter *f, double *w) {
    double center = (i + 0.5) * scale, support = f->support * wide, sum = 0;
    double low = center - support + 0.5, high = center + support + 0.5;
    uint32_t first = low < 0 ? 0 : (uint32_t)low, end = MIN(n_in, (uint32_t)high);

    assert(end > first && end - first <= t->most);
    for (uint32_t k = 0; k < end - first; k++) {
        w[k] = f->weight((k + first - center + 0.5) * (1 / wide));
        sum += w[k];
    }
    for (uint32_t k = 0; k < end - first; k++) {
        double v = (sum != 0 ? w[k] / sum : w[k]) * (1 << BITS);

        t->weight[(size_t)i * t->most + k] = (int32_t)(v < 0 ? v - 0.5 : v + 0.5);
    }
    t->first[i] = first;
    t->n[i] = end - first;
}

/* 0 or -ENOMEM; on failure *t is freed. */
static int taps_init(struct taps *t, uint32_t n_in, uint32_t n_out, const struct filter *f) {
    double scale = (double)n_in / n_out, wide = MAX(scale, 1.0);

    t->most = (uint32_t)ceil(f->support * wide) * 2 + 1;
    CLEANUP(freep) double *w = calloc(t->most, sizeof(*w));
    t->first = calloc(n_out, sizeof(*t->first));
    t->n = calloc(n_out, sizeof(*t->n));
    t->weight = calloc((size_t)n_out * t->most, sizeof(*t->weight));
    if (!w || !t->first || !t->n || !t->weight) {
        taps_deinit(t);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < n_out; i++)
        fill_place(t, i, n_in, scale, wide, f, w);
    return 0;
}

static uint8_t clip(int32_t v) {
    v >>= BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* One row of @width pixels from a row of @in. */
static void resize_row(const struct taps *t, const uint8_t *in, uint32_t width, uint8_t *out) {
    for (uint32_t x = 0; x < width; x++) {
        const int32_t *w = t->weight + (size_t)x * t->most;
        const uint8_t *from = in + (size_t)t->first[x] * 3;
        int32_t r = 1 << (BITS - 1), g = r, b = r;

        for (uint32_t k = 0; k < t->n[x]; k++, from += 3) {
            r += from[0] * w[k];
            g += from[1] * w[k];
            b += from[2] * w[k];
        }
        *out++ = clip(r);
        *out++ = clip(g);
        *out++ = clip(b);
    }
}

/* Computes row @y of the result from rows of @in, of @n bytes each. @sum: scratch, @n numbers. */
static void resize_column(const struct taps *t, const uint8_t *in, uint32_t y, size_t n,
                          int32_t *sum, uint8_t *out) {
    const int32_t *w = t->weight + (size_t)y * t->most;

    for (size_t i = 0; i < n; i++)
        sum[i] = 1 << (BITS - 1);
    for (uint32_t k = 0; k < t->n[y]; k++) {
        const uint8_t *row = in + (t->first[y] + k) * n;

        for (size_t i = 0; i < n; i++)
            sum[i] += row[i] * w[k];
    }
    for (size_t i = 0; i < n; i++)
        out[i] = clip(sum[i]);
}

int picture_resize(const struct picture *in, uint32_t width, uint32_t height,
                   enum picture_filter filter, struct picture *out, struct err *err) {
    CLEANUP(taps_deinit) struct taps across = {0};
    CLEANUP(taps_deinit) struct taps down = {0};
    CLEANUP(picture_deinit) struct picture rows = {0};
    CLEANUP(picture_deinit) struct picture p = {0};
    size_t n = (size_t)width * 3;

    assert(in->rgb && filter < ARRAY_SIZE(filters));
    int r = picture_new(&p, width, height, err);
    if (r == 0)
        r = picture_new(&rows, width, in->height, err);
    if (r < 0)
        return r;
    CLEANUP(freep) int32_t *sum = malloc(n * sizeof(*sum));
    if (!sum || taps_init(&across, in->width, width, &filters[filter]) < 0 ||
        taps_init(&down, in->height, height, &filters[filter]) < 0)
        return -ENOMEM;
    for (uint32_t y = 0; y < in->height; y++)
        resize_row(&across, in->rgb + (size_t)y * in->width * 3, width, rows.rgb + y * n);
    for (uint32_t y = 0; y < height; y++)
        resize_column(&down, rows.rgb, y, n, sum, p.rgb + y * n);
    *out = p;
    p = (struct picture){0};
    return 0;
}

int picture_pad(const struct picture *in, uint32_t width, uint32_t height,
                enum picture_filter filter, struct picture *out, struct err *err) {
    float scale = MIN((float)width / (float)in->width, (float)height / (float)in->height);
    uint32_t w = MIN(width, (uint32_t)ceilf((float)in->width * scale));
    uint32_t h = MIN(height, (uint32_t)ceilf((float)in->height * scale));
    CLEANUP(picture_deinit) struct picture small = {0};
    struct picture p;

    int r = picture_new(&p, width, height, err);
    if (r < 0)
        return r;
    r = picture_resize(in, MAX(w, 1u), MAX(h, 1u), filter, &small, err);
    if (r < 0) {
        picture_deinit(&p);
        return r;
    }
    memset(p.rgb, 0, picture_bytes(width, height));
    size_t left = (width - small.width) / 2, top = (height - small.height) / 2;
    for (size_t y = 0; y < small.height; y++)
        memcpy(p.rgb + ((top + y) * width + left) * 3, small.rgb + y * small.width * 3,
               (size_t)small.width * 3);
    *out = p;
    return 0;
}
