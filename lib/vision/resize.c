#include "vision/resize.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#include "base/mathx.h"
#include "base/result.h"
#include "base/try.h"

#define PI 3.14159265358979323846
#define BITS 22 /* fractional bits of a weight */

static double bilinear(double x) {
    x = fabs(x);
    if (x < 1)
        return 1 - x;
    return 0;
}

/* Returns Keys' cubic kernel with a = -1/2. */
static double bicubic(double x) {
    const double a = -0.5;

    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2)
        return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static double sinc(double x) {
    double s, c;

    if (x == 0)
        return 1;
    mx_sincos(x * PI, &s, &c);
    return s / (x * PI);
}

static double lanczos(double x) {
    if (x >= -3 && x < 3)
        return sinc(x) * sinc(x / 3);
    return 0;
}

static const struct filter {
    double (*weight)(double x);
    /* half of the filter's width */
    double support;
} filters[] = {
    [FILTER_BILINEAR] = {bilinear, 1},
    [FILTER_BICUBIC] = {bicubic, 2},
    [FILTER_LANCZOS] = {lanczos, 3},
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

/* Returns 0 or -ENOMEM; taps_deinit() frees *t in any case. An axis of equal length has one weight,
 * 1, at each place, as all filters would give. */
static int taps_init(struct taps *t, uint32_t n_in, uint32_t n_out, const struct filter *f) {
    double scale = (double)n_in / n_out, wide = MAX(scale, 1.0);

    t->most = n_in == n_out ? 1 : (uint32_t)ceil(f->support * wide) * 2 + 1;
    CLEANUP(freep) double *w = calloc(t->most, sizeof(*w));
    t->first = calloc(n_out, sizeof(*t->first));
    t->n = calloc(n_out, sizeof(*t->n));
    t->weight = calloc((size_t)n_out * t->most, sizeof(*t->weight));
    if (!w || !t->first || !t->n || !t->weight)
        return -ENOMEM;
    for (uint32_t i = 0; i < n_out; i++) {
        if (t->most > 1) {
            fill_place(t, i, n_in, scale, wide, f, w);
            continue;
        }
        t->first[i] = i;
        t->n[i] = 1;
    }
    return 0;
}

/* ---- sums, which are integers: the same with and without AVX2 ---- */

static uint8_t clip(int32_t v) {
    v >>= BITS;
    return (uint8_t)MIN(MAX(v, 0), 255);
}

static void plain_row(const struct taps *t, const uint8_t *in, uint32_t width, uint8_t *out) {
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

/* Computes place @i of the axis of the source's rows. */
static void plain_column(const struct resizer *r, uint32_t i, uint8_t *out) {
    const struct taps *t = &r->down;

    for (size_t x = 0; x < r->n_row; x++) {
        int32_t sum = 1 << (BITS - 1);

        for (uint32_t k = 0; k < t->n[i]; k++)
            sum += r->window[(t->first[i] + k) % t->most * r->n_padded + x] *
                   t->weight[(size_t)i * t->most + k];
        out[x] = clip(sum);
    }
}

#ifdef __x86_64__
#define WIDE __attribute__((target("avx2")))

static bool resizer_has_wide(void) {
    return __builtin_cpu_supports("avx2");
}

/* Computes the three colours of a pixel side by side, together with the byte behind them. */
static void WIDE wide_row(const struct taps *t, const uint8_t *in, uint32_t width, uint8_t *out) {
    const __m128i order = _mm_set1_epi32(0x0C080400);

    for (uint32_t x = 0; x < width; x++, out += 3) {
        const int32_t *w = t->weight + (size_t)x * t->most;
        const uint8_t *from = in + (size_t)t->first[x] * 3;
        __m128i sum = _mm_set1_epi32(1 << (BITS - 1));
        int32_t pixel;

        for (uint32_t k = 0; k < t->n[x]; k++, from += 3) {
            memcpy(&pixel, from, sizeof(pixel));
            __m128i colours = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(pixel));
            sum = _mm_add_epi32(sum, _mm_mullo_epi32(colours, _mm_set1_epi32(w[k])));
        }
        sum = _mm_min_epi32(_mm_max_epi32(_mm_srai_epi32(sum, BITS), _mm_setzero_si128()),
                            _mm_set1_epi32(255));
        pixel = _mm_cvtsi128_si32(_mm_shuffle_epi8(sum, order));
        memcpy(out, &pixel, 3);
    }
}

/* Computes eight values side by side. */
static void WIDE wide_column(const struct resizer *r, uint32_t i, uint8_t *out) {
    const struct taps *t = &r->down;
    const int32_t *w = t->weight + (size_t)i * t->most;

    for (size_t x = 0; x < r->n_row; x += 8) {
        __m256i sum = _mm256_set1_epi32(1 << (BITS - 1));

        for (uint32_t k = 0, at = t->first[i] % t->most; k < t->n[i]; k++) {
            const __m128i *from = (const void *)(r->window + at * r->n_padded + x);
            __m256i values = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from));

            sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(values, _mm256_set1_epi32(w[k])));
            at = at + 1 == t->most ? 0 : at + 1;
        }
        sum = _mm256_srai_epi32(sum, BITS);
        sum = _mm256_permute4x64_epi64(_mm256_packus_epi32(sum, sum), 0x08);
        __m128i words = _mm256_castsi256_si128(sum);
        _mm_storel_epi64((__m128i *)(out + x), _mm_packus_epi16(words, words));
    }
}

#else
#define wide_row plain_row
#define wide_column plain_column

static bool resizer_has_wide(void) {
    return false;
}
#endif

static void resize_row(const struct resizer *r, const uint8_t *in, uint8_t *out) {
    if (r->across.most == 1)
        memcpy(out, in, (size_t)r->n_across * 3);
    else
        (r->wide ? wide_row : plain_row)(&r->across, in, r->n_across, out);
}

static void resize_column(const struct resizer *r, uint32_t i, uint8_t *out) {
    if (r->down.most == 1)
        memcpy(out, r->window, r->n_row);
    else
        (r->wide ? wide_column : plain_column)(r, i, out);
}

/* ---- rows of a picture ---- */

int resizer_init(struct resizer *r, uint32_t width, uint32_t height, int orientation,
                 enum picture_filter filter, const struct picture *out, struct picture_place to) {
    /* bit 0: mirror the columns of the result; bit 1: mirror its rows; bit 2: first exchange rows
     * and columns of the source */
    static const uint8_t how[9] = {0, 0, 1, 3, 2, 4, 5, 7, 6};
    uint8_t h = how[orientation];
    bool turns = h & 4;

    assert(orientation >= 1 && orientation <= 8 && filter < ARRAY_SIZE(filters));
    assert(to.left + to.width <= out->width && to.top + to.height <= out->height);
    *r = (struct resizer){.width = width,
                          .height = height,
                          .turns = turns,
                          .mirrors_rows = h & (turns ? 1 : 2),
                          .mirrors_columns = h & (turns ? 2 : 1),
                          .n_across = turns ? to.height : to.width,
                          .n_down = turns ? to.width : to.height,
                          .stride = (size_t)out->width * 3};
    r->to = out->rgb + to.top * r->stride + (size_t)to.left * 3;
    r->wide = resizer_has_wide();
    r->n_row = (size_t)(turns ? width : r->n_across) * 3;
    r->n_padded = (r->n_row + 7) / 8 * 8;
    if (taps_init(&r->across, width, r->n_across, &filters[filter]) < 0 ||
        taps_init(&r->down, height, r->n_down, &filters[filter]) < 0)
        return -ENOMEM;
    r->window = calloc(r->down.most, r->n_padded);
    r->row = calloc(width + 1, 3);
    r->column = calloc(r->n_padded + (size_t)r->n_across * 3, 1);
    return enomem_unless(r->window && r->row && r->column);
}

void resizer_deinit(struct resizer *r) {
    taps_deinit(&r->across);
    taps_deinit(&r->down);
    free(r->window);
    free(r->row);
    free(r->column);
}

/* Writes row @i of the result or, if the orientation turns the picture by 90 degrees, column @i. */
static void write_place(struct resizer *r, uint32_t i) {
    uint8_t *column = r->column + r->n_padded, *to = r->to + (size_t)i * 3;

    resize_column(r, i, r->column);
    if (!r->turns) {
        memcpy(r->to + i * r->stride, r->column, r->n_row);
        return;
    }
    resize_row(r, r->column, column);
    for (uint32_t y = 0; y < r->n_across; y++, to += r->stride)
        memcpy(to, column + (size_t)y * 3, 3);
}

void resizer_add(struct resizer *r, const uint8_t *rgb) {
    const struct taps *t = &r->down;
    uint32_t at = r->mirrors_rows ? r->height - 1 - r->n_seen : r->n_seen;
    uint32_t before = r->mirrors_rows ? at + 1 : at - 1;
    uint8_t *to = r->window + at % t->most * r->n_padded, *row = r->turns ? to : r->row;

    assert(r->n_seen < r->height);
    bool again = r->n_seen > 0 && !r->mirrors_columns && !r->turns &&
                 memcmp(row, rgb, (size_t)r->width * 3) == 0;
    if (!again && !r->mirrors_columns)
        memcpy(row, rgb, (size_t)r->width * 3);
    for (uint32_t x = 0; r->mirrors_columns && x < r->width; x++)
        memcpy(row + (size_t)x * 3, rgb + (size_t)(r->width - 1 - x) * 3, 3);
    if (again) /* most rows of a screenshot equal the one above */
        memmove(to, r->window + before % t->most * r->n_padded, r->n_row);
    else if (!r->turns)
        resize_row(r, row, to);
    r->n_seen++;
    for (; r->n_done < r->n_down; r->n_done++) {
        uint32_t i = r->mirrors_rows ? r->n_down - 1 - r->n_done : r->n_done;

        if (r->mirrors_rows ? at > t->first[i] : at + 1 < t->first[i] + t->n[i])
            return;
        write_place(r, i);
    }
}

/* Allocates @out with the given size and fills its place @to; the rest is black. */
static int resize_into(const struct picture *in, uint32_t width, uint32_t height,
                       struct picture_place to, enum picture_filter filter, struct picture *out,
                       struct err *err) {
    CLEANUP(resizer_deinit) struct resizer r = {0};
    CLEANUP(picture_deinit) struct picture p = {0};

    assert(in->rgb);
    TRY(picture_new(&p, width, height, err));
    TRY(resizer_init(&r, in->width, in->height, 1, filter, &p, to));
    for (uint32_t y = 0; y < in->height; y++)
        resizer_add(&r, in->rgb + (size_t)y * in->width * 3);
    *out = p;
    p = (struct picture){0};
    return 0;
}

int picture_resize(const struct picture *in, uint32_t width, uint32_t height,
                   enum picture_filter filter, struct picture *out, struct err *err) {
    const struct picture_place all = {0, 0, width, height};

    return resize_into(in, width, height, all, filter, out, err);
}

struct picture_place picture_pad_place(uint32_t width, uint32_t height, uint32_t to_width,
                                       uint32_t to_height) {
    float scale = MIN((float)to_width / (float)width, (float)to_height / (float)height);
    uint32_t w = MAX(MIN(to_width, (uint32_t)ceilf((float)width * scale)), 1u);
    uint32_t h = MAX(MIN(to_height, (uint32_t)ceilf((float)height * scale)), 1u);

    return (struct picture_place){(to_width - w) / 2, (to_height - h) / 2, w, h};
}

int picture_pad(const struct picture *in, uint32_t width, uint32_t height,
                enum picture_filter filter, struct picture *out, struct err *err) {
    return resize_into(in, width, height, picture_pad_place(in->width, in->height, width, height),
                       filter, out, err);
}
