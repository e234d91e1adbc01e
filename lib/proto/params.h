#pragma once

/*
 * params - the sampling parameters of a request: one row each (name, type, range, default). The API
 * reads requests by this table, the worker checks frames with it. A new parameter needs a row here
 * and a stage in engine/sampler.c.
 */

#include <stdint.h>

#include "base/err.h"

/* Sampling parameters of a request. docs/reference/chat-completions.md describes each;
 * engine/sampler.c implements them. */
struct sampling {
    double temperature, top_p, min_p;
    double repetition_penalty, presence_penalty, frequency_penalty;
    /* typical_p 1, top_n_sigma 0 or less: off */
    double typical_p, top_n_sigma;
    /* xtc_probability 0: off */
    double xtc_probability, xtc_threshold;
    /* dry_multiplier 0: off */
    double dry_multiplier, dry_base;
    /* tokens that may be repeated without a penalty */
    int64_t dry_allowed_length;
    /* number of last tokens that are searched; -1: all; 0: off */
    int64_t dry_penalty_last_n;
    /* top_k 0 or -1: off */
    int64_t top_k;
    /* number of output tokens before which end tokens and stop ids are banned */
    int64_t min_tokens;
    /* 0 or 1 */
    int64_t ignore_eos;
};

/* Type of a parameter: NUMBER is a double of struct sampling, INTEGER and BOOL are an int64_t. */
enum param_type { PARAM_NUMBER, PARAM_INTEGER, PARAM_BOOL };

/* A row of the table; min <= initial <= max. */
struct param {
    const char *name;
    enum param_type type;
    /* a value is allowed if it is finite and min <= value <= max */
    double min, max, initial;
    /* offset of the double or int64_t in struct sampling */
    size_t offset;
};

extern const struct param params_table[];
extern const uint32_t params_count;

/* Sets every parameter to its default. */
void params_init(struct sampling *s);
/* Returns the row called @name, or NULL. */
const struct param *params_find(const char *name);
/* Stores @value after checking type and range. Returns 0, or -EINVAL with @err: status 400,
 * @err->param = name. */
int params_set(struct sampling *s, const struct param *p, double value, struct err *err);
/* Checks all parameters of a struct that came in a frame. Returns 0, or -EINVAL with @err set as by
 * params_set(). */
int params_check(const struct sampling *s, struct err *err);
