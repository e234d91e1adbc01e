/*
 * test_bounds - rounds the inputs of the reference backend's products to half precision, as a
 * device does, by two scales: that of the row (the power of two of its largest value, as the kernel
 * `pack` computes) and a static one, the power of two of the bound that the weights give
 * (engine/cuda/bounds.h). With static scales a kernel could round its own output, without a
 * reduction over the row. The tests hold that no input exceeds its bound, and what the rounding of
 * rows that are far below it loses.
 *
 * WEFT_MODELS=FILE:FILE... adds files of models; WEFT_BOUNDS_TEXT=FILE is the text that they read.
 */

#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "engine/cuda/bounds.h"
#include "engine/reference/reference.h"
#include "tests/engine/bounds.h"
#include "tests/engine/golden.h"
#include "tests/support/engine_driver.h"
#include "tests/support/few.h"
#include "tests/support/test_data.h"
#include "text/tokenizer.h"

#define PRODUCTS 4096u
#define ROWS 64u
/* A row's largest value is scaled to [2^13, 2^14). */
#define ROW_EXPONENT 13

enum scale { SCALE_NONE, SCALE_ROW, SCALE_STATIC, SCALES };

/* Statistics of the inputs of one kind. */
struct seen {
    uint64_t n_rows, n_unbounded, n_values, n_other;
    /* log2(bound / largest value of the row): the largest, the smallest, the sum over rows */
    double most, least, sum;
    /* Largest error of a row, relative to its length, and largest relation of the errors by the
     * two scales. */
    double error, row_error, worse;
};

static struct {
    struct product {
        const struct tensor *w;
        struct bounds_input bound;
    } product[PRODUCTS];
    uint32_t n_products;
    enum scale scale;
    struct seen seen[BOUNDS_KINDS];
} bounds;

int __real_model_load(struct model *m, const struct be_ops *ops, struct be *be,
                      const struct engine_opts *opts, struct err *err);
int __wrap_model_load(struct model *m, const struct be_ops *ops, struct be *be,
                      const struct engine_opts *opts, struct err *err);
void __real_ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias,
                       const float *x, uint32_t n_rows, float *y);
void __wrap_ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias,
                       const float *x, uint32_t n_rows, float *y);

/* Computes the bounds of all products of a model when its weights are loaded. */
int __wrap_model_load(struct model *m, const struct be_ops *ops, struct be *be,
                      const struct engine_opts *opts, struct err *err) {
    bounds.n_products = 0;
    for (uint32_t i = 0; i < m->n_ops; i++) {
        const struct bounds_input bound = bounds_of(m, i);

        for (int k = 0; k < OP_MATRICES && bound.kind < BOUNDS_KINDS; k++) {
            if (!m->op[i].w[k] || (m->op[i].kind == OP_PROJ && k > 0))
                continue;
            cr_assert(bounds.n_products < PRODUCTS);
            bounds.product[bounds.n_products++] = (struct product){m->op[i].w[k], bound};
        }
    }
    return __real_model_load(m, ops, be, opts, err);
}

/* Returns the bound of the input of the product with @w. The embedding may be the output matrix. */
static struct bounds_input bounds_find(const struct tensor *w) {
    for (uint32_t i = 0; i < bounds.n_products; i++)
        if (bounds.product[i].w == w)
            return bounds.product[i].bound;
    return (struct bounds_input){BOUNDS_KINDS, INFINITY};
}

/* Sets to[i] to x[i], rounded to half precision after a multiplication by 2^@exponent. */
static void bounds_round(const float *x, size_t n, int exponent, float *to) {
    float up = ldexpf(1, exponent), down = ldexpf(1, -exponent);

    for (size_t i = 0; i < n; i++)
        to[i] = mx_half_to_float(mx_float_to_half(x[i] * up)) * down;
}

/* Returns the distance of @y from @x, relative to the length of @x. */
static double bounds_error(const float *x, const float *y, size_t n) {
    double square = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        square += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
        all += (double)x[i] * x[i];
    }
    return sqrt(square / all);
}

/* Compares the two roundings @row and @still of a row @x whose largest value is @max. */
static void bounds_look(const struct bounds_input *bound, const float *x, const float *row,
                        const float *still, size_t n, float max) {
    struct seen *s = &bounds.seen[bound->kind];
    double excess = log2((double)bound->most / max);
    double row_error = bounds_error(x, row, n), error = bounds_error(x, still, n);

    s->most = s->n_rows ? fmax(s->most, excess) : excess;
    s->least = s->n_rows ? fmin(s->least, excess) : excess;
    s->sum += excess;
    s->n_rows++;
    s->n_values += n;
    for (size_t i = 0; i < n; i++)
        s->n_other += row[i] != still[i];
    s->row_error = fmax(s->row_error, row_error);
    s->error = fmax(s->error, error);
    if (row_error > 0)
        s->worse = fmax(s->worse, error / row_error);
}

/* Rounds a row; inputs without a bound, and rows of zeros, keep the scale of the row. */
static void bounds_row(const struct bounds_input *bound, const float *x, size_t n, float *to) {
    float max = 0, *row = malloc(2 * n * sizeof(*row));
    int e = 0;

    cr_assert(row);
    for (size_t i = 0; i < n; i++)
        max = fmaxf(max, fabsf(x[i]));
    if (max > 0)
        frexpf(max, &e); /* max < 2^e <= 2 max */
    bounds_round(x, n, ROW_EXPONENT + 1 - MAX(e, -99), row);
    memcpy(to, row, n * sizeof(*to));
    bool bounded = bound->kind < BOUNDS_KINDS && isfinite(bound->most);
    if (bound->kind < BOUNDS_KINDS)
        bounds.seen[bound->kind].n_unbounded += !bounded;
    if (bounded && max > 0) {
        frexpf(bounds_scale(bound->most), &e);
        bounds_round(x, n, e - 1, row + n);
        bounds_look(bound, x, row, row + n, n, max);
        if (bounds.scale == SCALE_STATIC)
            memcpy(to, row + n, n * sizeof(*to));
    }
    free(row);
}

/* Rounds the input of a product of a model. */
void __wrap_ref_linear(struct be *b, const struct tensor *w, const struct tensor *bias,
                       const float *x, uint32_t n_rows, float *y) {
    size_t n = w->ne[0];
    const struct bounds_input bound = bounds_find(w);

    if (bounds.scale == SCALE_NONE) {
        __real_ref_linear(b, w, bias, x, n_rows, y);
        return;
    }
    float *rounded = malloc(n_rows * n * sizeof(*rounded));
    cr_assert(rounded);
    for (uint32_t r = 0; r < n_rows; r++)
        bounds_row(&bound, x + r * n, n, rounded + r * n);
    __real_ref_linear(b, w, bias, rounded, n_rows, y);
    free(rounded);
}

/* Results of a run: the logits of all wants, one after the other. */
struct logits {
    float *value;
    size_t n, capacity;
    uint32_t n_vocab, n_rows;
};

static void bounds_keep(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                        const float *logits) {
    struct logits *l = ctx;

    cr_assert(logits && l->n_vocab);
    if (l->n + l->n_vocab > l->capacity) {
        l->capacity = 2 * (l->n + l->n_vocab);
        l->value = realloc(l->value, l->capacity * sizeof(*l->value));
        cr_assert(l->value);
    }
    memcpy(l->value + l->n, logits, l->n_vocab * sizeof(*logits));
    l->n += l->n_vocab;
    l->n_rows++;
}

/* Computes @n tokens, with logits of every row, by inputs rounded with @scale. */
static struct logits bounds_run(const char *model, const int32_t *token, uint32_t n,
                                enum scale scale) {
    struct logits l = {0};
    struct driver d;
    struct err err = {0};
    struct driver_opts o = {.path = model,
                            .backend = "reference",
                            .kv_type = kv_both(ENGINE_KV_F16),
                            .n_pages = 512,
                            .max_rows = ROWS,
                            .on_out = bounds_keep,
                            .ctx = &l};

    bounds.scale = scale;
    cr_assert(driver_open(&d, &o, &err) == 0, "%s: %s", model, err.message);
    l.n_vocab = d.info->n_vocab;
    struct driver_seq *s = driver_add(&d, token, n, 1, NULL);
    cr_assert(s, "pages");
    s->every_row = true;
    driver_prefill(&d, s, ROWS);
    driver_drop(&d, s);
    driver_close(&d);
    return l;
}

/* Returns the index of the largest logit of row @r. */
static uint32_t bounds_best(const struct logits *l, uint32_t r) {
    const float *x = l->value + (size_t)r * l->n_vocab;
    uint32_t best = 0;

    for (uint32_t i = 1; i < l->n_vocab; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* Difference of logits from the exact ones: the root of the mean square, and other tokens. */
struct difference {
    double rms;
    uint32_t n_other;
};

static struct difference bounds_difference(const struct logits *a, const struct logits *b) {
    struct difference d = {0};

    cr_assert(a->n == b->n && a->n > 0);
    for (size_t i = 0; i < a->n; i++)
        d.rms += ((double)a->value[i] - b->value[i]) * ((double)a->value[i] - b->value[i]);
    d.rms = sqrt(d.rms / (double)a->n);
    for (uint32_t r = 0; r < a->n_rows; r++)
        d.n_other += bounds_best(a, r) != bounds_best(b, r);
    return d;
}

/* Prints a row of the table of docs/measurements/cuda.md, and judges it. */
static void bounds_report(const char *name, const struct logits l[SCALES]) {
    static const char *const kinds[] = {"norms", "attention", "FFN"};
    struct difference row = bounds_difference(&l[SCALE_NONE], &l[SCALE_ROW]);
    struct difference still = bounds_difference(&l[SCALE_NONE], &l[SCALE_STATIC]);
    struct difference apart = bounds_difference(&l[SCALE_ROW], &l[SCALE_STATIC]);

    for (int k = 0; k < BOUNDS_KINDS; k++) {
        const struct seen *s = &bounds.seen[k];

        if (s->n_unbounded > 0)
            printf("# %s %s: %llu rows without a bound\n", name, kinds[k],
                   (unsigned long long)s->n_unbounded);
        if (s->n_rows == 0)
            continue;
        printf("# %s %s: %llu rows, excess 2^%.1f to 2^%.1f, mean 2^%.1f; %.3g of the values are "
               "others; error of a row up to %.3g (row scale %.3g), %.3f times\n",
               name, kinds[k], (unsigned long long)s->n_rows, s->least, s->most,
               s->sum / (double)s->n_rows, (double)s->n_other / (double)s->n_values, s->error,
               s->row_error, s->worse);
        cr_expect(s->least >= 0, "%s %s: a value exceeds its bound by 2^%g", name, kinds[k],
                  -s->least);
        cr_expect(s->worse < 1.01, "%s %s: a row has %g times the error", name, kinds[k], s->worse);
    }
    printf("# %s logits: rms %.3g by row scales, %.3g by static ones, %.3g apart; other tokens %u, "
           "%u, %u of %u\n",
           name, row.rms, still.rms, apart.rms, row.n_other, still.n_other, apart.n_other,
           l[0].n_rows);
    cr_expect(row.rms > 0 && apart.rms < row.rms / 50, "%s: logits are %g apart of %g", name,
              apart.rms, row.rms);
}

static void bounds_check(const char *model, const char *name, const int32_t *token, uint32_t n) {
    struct logits l[SCALES];

    for (enum scale s = SCALE_NONE; s < SCALES; s++) {
        memset(bounds.seen, 0, sizeof(bounds.seen));
        l[s] = bounds_run(model, token, n, s);
    }
    bounds_report(name, l);
    for (enum scale s = SCALE_NONE; s < SCALES; s++)
        free(l[s].value);
}

/* Checks a model of the test data with its longest prompt and the continuation. */
static void bounds_golden(const char *model, const char *json, const char *name) {
    CLEANUP(golden_freep) struct golden *g = golden_load(json);
    const struct golden_case *c = &g->cases[0];
    int32_t token[1024];
    uint32_t n = 0;

    for (uint32_t i = 1; i < g->n_cases; i++)
        if (g->cases[i].n_prompt > c->n_prompt)
            c = &g->cases[i];
    for (; n < MIN(c->n_prompt, FEWER(500u, 60u)); n++)
        token[n] = c->prompt[n];
    for (uint32_t i = 0; i < c->n_greedy && n == c->n_prompt + i; i++)
        token[n++] = c->greedy[i].id;
    bounds_check(model, name, token, n);
}

Test(bounds, hold_for_every_architecture) {
    char dir[512], model[1024], json[1024], name[256];
    uint32_t n_run = 0;

    snprintf(dir, sizeof(dir), "%s/golden", test_data());
    DIR *list = opendir(dir);
    cr_assert(list != NULL);
    for (struct dirent *e; (e = readdir(list));) {
        CLEANUP(gguf_freep) struct gguf *file = NULL;
        size_t n = strlen(e->d_name);
        struct err err = {0};

        if (n < 6 || strcmp(e->d_name + n - 5, ".json") != 0 || !strncmp(e->d_name, "specs", 5))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)n - 5, e->d_name);
        snprintf(json, sizeof(json), "%s/%s", dir, e->d_name);
        snprintf(model, sizeof(model), "%s/%s.gguf", dir, name);
        if (gguf_open(&file, model, &err) < 0 || engine_check(file, NULL, &err) < 0)
            continue;
        bounds_golden(model, json, name);
        n_run++;
    }
    closedir(list);
    cr_expect(n_run > 20, "%u models", n_run);
}

static void bounds_real(const char *name) {
    char model[TEST_DATA_PATH], json[TEST_DATA_PATH];

    test_data_file(model, "models", name, ".gguf");
    test_data_file(json, "models", name, ".golden.json");
    bounds_golden(model, json, name);
}

Test(bounds, hold_for_real_models) {
    bounds_real("stories260K-f32");
    if (test_data_is_larger()) {
        bounds_real("stories15M-q8_0");
        bounds_real("minimind2-small-q8_0");
    }
}

/* Checks a file with the first @n tokens of the text of WEFT_BOUNDS_TEXT. */
static void bounds_file(const char *model, uint32_t n) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    struct tokens ids = {0};
    struct err err = {0};
    char text[4096];
    const char *path = getenv("WEFT_BOUNDS_TEXT"), *slash = strrchr(model, '/');

    FILE *f = fopen(path ? path : "", "r");
    cr_assert(f, "WEFT_BOUNDS_TEXT must name a file");
    size_t n_text = fread(text, 1, sizeof(text), f);
    fclose(f);
    cr_assert(gguf_open(&file, model, &err) == 0 && tokenizer_new(&t, file, &err) == 0, "%s",
              err.message);
    cr_assert(tokenizer_encode(t, text, n_text, TOKENIZE_BOS, NULL, 0, &ids) == 0);
    bounds_check(model, slash ? slash + 1 : model, ids.id, MIN((uint32_t)ids.n, n));
    tokens_deinit(&ids);
}

Test(bounds, hold_for_given_models) {
    char *list = getenv("WEFT_MODELS"), *rest = NULL;

    if (!list)
        cr_skip_test("WEFT_MODELS names no models");
    list = strdup(list);
    for (char *p = strtok_r(list, ":", &rest); p; p = strtok_r(NULL, ":", &rest))
        bounds_file(p, ROWS);
    free(list);
}
