#include "engine/rope.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mathx.h"
#include "engine/picture_rows.h"

#define TWO_PI 6.283185307179586476925
#define GRID_AXES 3u /* axes of PLACES_GRID */

/* Parameters of the file that scale RoPE's frequencies. */
struct scaling {
    char type[16];
    /* alpha 0: the base is not enlarged */
    double base, alpha, factor, attn_factor, beta_fast, beta_slow, log_multiplier;
    uint32_t original_context;
};

/* Reads the parameters; without keys there is no scaling. */
static void read_scaling(struct binder *b, const struct rope_defaults *d, struct scaling *out) {
    double betas[2] = {32, 1};
    char key[32];

    *out = (struct scaling){
        .base = d->base, .factor = 1, .attn_factor = 1, .original_context = d->context};
    snprintf(key, sizeof(key), "rope.freq_base%s", d->suffix);
    meta_f32_opt(b, key, 1.5, 1e12, &out->base);
    if (!d->scaled)
        return;
    if (d->alpha)
        meta_f32_opt(b, "rope.scaling.alpha", 0, 1e6, &out->alpha);
    meta_string(b, "rope.scaling.type", out->type, sizeof(out->type));
    meta_f32_opt(b, "rope.scale_linear", 1e-3, 1e6, &out->factor); /* files of 2023 */
    meta_f32_opt(b, "rope.scaling.factor", 1e-3, 1e6, &out->factor);
    meta_f32_opt(b, "rope.scaling.attn_factor", 1e-3, 1e3, &out->attn_factor);
    meta_f32_opt(b, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &betas[0]);
    meta_f32_opt(b, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &betas[1]);
    out->beta_fast = betas[0];
    out->beta_slow = betas[1];
    if (d->fixed_betas) {
        out->beta_fast = 32;
        out->beta_slow = 1;
    }
    meta_f32_opt(b, "rope.scaling.yarn_log_multiplier", -1e3, 1e3, &out->log_multiplier);
    meta_u32_opt(b, "rope.scaling.original_context_length", 1, 1u << 30, &out->original_context);
    if (b->r == 0 && out->type[0] && strcmp(out->type, "none") != 0 &&
        strcmp(out->type, "linear") != 0 && strcmp(out->type, "yarn") != 0 &&
        !(d->long_rope && strcmp(out->type, "longrope") == 0))
        bind_refuse(b, "RoPE scaling '%s' is not supported (known: none, linear, yarn%s)",
                    out->type, d->long_rope ? ", longrope" : "");
}

/* YaRN (Peng et al. 2023): pairs that turn often within the original context keep their frequency,
 * pairs that turn rarely are interpolated, and between them the weight is linear in the pair's
 * index. */
static void scale_yarn(const struct scaling *y, struct rope_set *s, double *freq) {
    double turns[2] = {y->beta_fast, y->beta_slow}, pair[2];

    for (int i = 0; i < 2; i++) /* the pair that makes turns[i] turns in the original context */
        pair[i] =
            s->n_rot * mx_log(y->original_context / (turns[i] * TWO_PI)) / (2 * mx_log(y->base));
    double low = MAX(0.0, floor(pair[0])), high = MIN(s->n_rot - 1.0, ceil(pair[1]));

    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        double ramp = MIN(MAX((i - low) / MAX(0.001, high - low), 0.0), 1.0);

        freq[i] = freq[i] / y->factor * ramp + freq[i] * (1.0 - ramp);
    }
    double mscale = 1.0 + 0.1 * mx_log(y->factor);
    if (y->log_multiplier != 0)
        mscale /= 1.0 + 0.1 * y->log_multiplier * mx_log(y->factor);
    s->mscale = (float)(mscale * y->attn_factor);
}

float temper_at(const struct temper *t, uint32_t pos) {
    assert(t->span > 0);
    return (float)(1.0 + (double)t->slope * mx_log(1.0 + (double)((pos + t->ahead) / t->span)));
}

/* Checks that the tensor has @n floats from 1e-6 to 1e30; else -EINVAL in @b. */
static void check_divisors(struct binder *b, const struct tensor *t, uint32_t n) {
    if (t->format->type != TENSOR_F32 || t->ne[0] != n || t->n_dims != 1) {
        bind_refuse(b, "tensor '%s': %u values of type F32 are needed", t->name, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float d;

        memcpy(&d, t->data + 4 * i, 4);
        if (!(d >= 1e-6f && d <= 1e30f))
            bind_refuse(b, "tensor '%s': value %u is %g", t->name, i, (double)d);
    }
}

/* The frequency of pair i is base^(-2i / n_rot), divided by its divisor, then scaled as the file
 * says. NTK-aware scaling multiplies the base by alpha^(n_rot / (n_rot - 2)), so that the last pair
 * turns alpha times slower. */
void rope_read(struct binder *b, const struct rope_defaults *d, const struct tensor *divisors,
               struct rope_set *s) {
    struct scaling y;
    char key[40];

    assert(b->r < 0 || (d->dim > 0 && d->context > 0));
    *s = (struct rope_set){.n_rot = d->dim, .mscale = 1};
    snprintf(key, sizeof(key), "rope.dimension_count%s", d->suffix);
    meta_u32_opt(b, key, 2, d->dim, &s->n_rot);
    if (d->half)
        s->n_rot /= 2;
    read_scaling(b, d, &y);
    if (b->r == 0 && s->n_rot % 2)
        bind_refuse(b, "RoPE over %u values; their number must be even", s->n_rot);
    if (b->r == 0 && divisors)
        check_divisors(b, divisors,
                       d->half && divisors->ne[0] > s->n_rot / 2 ? s->n_rot : s->n_rot / 2);
    if (b->r < 0)
        return;
    double *freq = malloc(MAX(s->n_rot / 2, 1) * sizeof(*freq));
    if (!freq) {
        b->r = -ENOMEM;
        return;
    }
    s->freq = freq;
    if (y.alpha > 0 && s->n_rot > 2)
        y.base *= mx_pow(y.alpha, s->n_rot / (s->n_rot - 2.0));
    for (uint32_t i = 0; i < s->n_rot / 2; i++) {
        float d = 1;

        if (divisors)
            memcpy(&d, divisors->data + 4 * i, 4);
        freq[i] = mx_pow(y.base, -2.0 * i / s->n_rot) / (double)d;
    }
    if (strcmp(y.type, "yarn") == 0) {
        scale_yarn(&y, s, freq);
        if (d->scores_scaled && y.log_multiplier != 0)
            s->mscale = (float)y.attn_factor;
        return;
    }
    s->mscale = (float)y.attn_factor; /* files of 2024 have one for longrope, but no type */
    if (strcmp(y.type, "longrope") == 0 || strcmp(y.type, "none") == 0)
        return; /* longrope scales by the divisors */
    for (uint32_t i = 0; i < s->n_rot / 2; i++)
        freq[i] /= y.factor; /* "linear", or a file with only a factor */
}

/* Returns the axis of pair @i; n: number of pairs of each section. */
static uint8_t axis_of(enum rope_sections kind, const uint32_t n[ROPE_AXES], uint32_t i) {
    static const uint8_t orders[][ROPE_AXES] = {
        [SECTIONS_PLAIN] = {ROPE_TIME, ROPE_LINE, ROPE_COLUMN, ROPE_PICTURE},
        [SECTIONS_XD] = {ROPE_TIME, ROPE_COLUMN, ROPE_LINE, ROPE_PICTURE},
    };
    uint32_t end = 0;

    if (kind == SECTIONS_INTERLEAVED)
        return i % GRID_AXES != 0 && i < GRID_AXES * n[i % GRID_AXES] ? (uint8_t)(i % GRID_AXES)
                                                                      : ROPE_TIME;
    for (int k = 0; k < ROPE_AXES; k++)
        if (i < (end += n[k]))
            return orders[kind][k];
    return ROPE_TIME;
}

void rope_read_sections(struct binder *b, enum rope_sections kind, struct rope_set *s) {
    const char *should = "three numbers of pairs, and a zero";
    uint32_t n[ROPE_AXES] = {0}, least = GRID_AXES;
    char key[96];

    snprintf(key, sizeof(key), "%s.rope.dimension_sections", b->arch);
    const struct gguf_array *a = gguf_array(b->file, key);
    if (b->r < 0 || !a || kind == SECTIONS_NONE)
        return;
    s->places = PLACES_GRID;
    if (kind == SECTIONS_XD) {
        s->places = PLACES_FRAMED;
        should = "four numbers of pairs";
        least = ROPE_AXES;
    }
    uint64_t n_most = MIN(gguf_array_n(a), (uint64_t)ROPE_AXES);
    bool fits = n_most >= least && gguf_array_read(a, GGUF_U32, 0, n_most, n) == n_most &&
                (kind == SECTIONS_XD || n[GRID_AXES] == 0);
    for (uint64_t i = 0; fits && i < ROPE_AXES; i++)
        fits = n[i] <= 1024;
    if (!fits) {
        bind_refuse(b, "'%s' must be %s", key, should);
        return;
    }
    uint8_t *axis = malloc(MAX(s->n_rot / 2, 1u));
    if (!axis) {
        b->r = -ENOMEM;
        return;
    }
    for (uint32_t i = 0; i < s->n_rot / 2; i++)
        axis[i] = axis_of(kind, n, i);
    s->axis = axis;
}
