#pragma once

/*
 * rope - the frequencies of the rotary position embedding, including the scaling that the file
 * requires. Everything is computed in double by mathx: the same bits on every machine.
 */

#include "engine/backend.h"
#include "engine/meta.h"

/* Defaults of a set of rotary positions: the number of values that turn unless rope.dimension_count
 * (with suffix @suffix) gives another of at most @dim; context and base if the file has none; and
 * whether the file's scaling applies to the set. */
struct rope_defaults {
    uint32_t dim, context;
    double base;
    const char *suffix;       /* suffix of the keys dimension_count and freq_base: "" or "_swa" */
    bool scores_scaled;       /* YaRN with a log multiplier scales scores, not the rotation */
    bool long_rope;           /* scaling may be by divisors that the caller chose */
    bool half;                /* half of the values turn, by divisors of the first pairs */
    bool scaled, fixed_betas; /* fixed_betas: YaRN with 32 and 1, whatever the file says */
};

/* Fills *out; its freq is malloc'd and the caller's, also on failure. @divisors: the tensor
 * rope_freqs.weight, or NULL; n_rot / 2 values, checked here. Errors go to @m. */
void rope_read(struct meta *m, const struct rope_defaults *d, const struct tensor *divisors,
               struct rope_set *out);

/* Sections of rotary positions: the axes that pairs turn by (picture_rows.h). Plain: the first
 * pairs have the first axis, those behind them the next. Interleaved: in turns, as far as an axis
 * has pairs. */
enum rope_sections { SECTIONS_NONE, SECTIONS_PLAIN, SECTIONS_INTERLEAVED };

/* Fills s->axis, malloc'd and the caller's, by rope.dimension_sections; a file without has none. A
 * pair beyond all sections turns by the first axis: with real files its angle is below 1e-6 a
 * position. Errors go to @m. */
void rope_read_sections(struct meta *m, enum rope_sections kind, struct rope_set *s);
