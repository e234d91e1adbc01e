#pragma once

/*
 * rope - the frequencies of the rotary position embedding, including the scaling that the file
 * requires. Everything is computed in double by mathx: the same bits on every machine.
 */

#include "engine/backend.h"
#include "engine/bind/meta.h"

/* Defaults of a set of rotary frequencies. rope.dimension_count (with suffix @suffix) may replace
 * @dim, the number of rotary values, by a smaller one. */
struct rope_defaults {
    uint32_t dim, context;
    double base;
    /* suffix of the keys dimension_count and freq_base: "" or "_swa" */
    const char *suffix;
    /* YaRN with a log multiplier scales scores, not the rotation */
    bool scores_scaled;
    /* LongRoPE: scaling may be by divisors that the caller chose */
    bool long_rope;
    /* half of the values are rotary, with the divisors of the first pairs */
    bool half;
    /* fixed_betas: YaRN with 32 and 1, whatever the file says */
    bool scaled, fixed_betas;
    /* rope.scaling.alpha enlarges the base (NTK-aware scaling) */
    bool alpha;
};

/* Fills *out; out->freq is malloc'd and the caller's, also on failure. @divisors: n_rot / 2 values
 * of the tensor rope_freqs.weight, checked here, or NULL. Errors go to @b. */
void rope_read(struct binder *b, const struct rope_defaults *d, const struct tensor *divisors,
               struct rope_set *out);

/* M-RoPE: how pairs are assigned to the axes of picture_rows.h. Plain: the first pairs turn by the
 * first axis, the next by the second, and so on. Interleaved: the axes take turns, as far as each
 * has pairs. XD: four sections, by time, column, line and picture. */
enum rope_sections { SECTIONS_NONE, SECTIONS_PLAIN, SECTIONS_INTERLEAVED, SECTIONS_XD };

/* Fills s->axis (malloc'd, the caller's) and s->places from rope.dimension_sections; NULL if the
 * file does not have it. A pair beyond all sections turns by the first axis; in real files its
 * angle is below 1e-6 per position. Errors go to @b. */
void rope_read_sections(struct binder *b, enum rope_sections kind, struct rope_set *s);
