#include "proto/params.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/try.h"

#define NUMBER(field, lo, hi, def)                                                                 \
    { #field, PARAM_NUMBER, lo, hi, def, offsetof(struct sampling, field) }
#define INTEGER(field, lo, hi, def)                                                                \
    { #field, PARAM_INTEGER, lo, hi, def, offsetof(struct sampling, field) }
#define BOOL(field, def)                                                                           \
    { #field, PARAM_BOOL, 0, 1, def, offsetof(struct sampling, field) }

/* Ranges of OpenAI where it has the parameter, otherwise of vLLM or llama.cpp. */
const struct param params_table[] = {
    NUMBER(temperature, 0, 2, 1),
    NUMBER(top_p, 0, 1, 1),
    NUMBER(min_p, 0, 1, 0),
    NUMBER(repetition_penalty, 0.01, 10, 1),
    NUMBER(presence_penalty, -2, 2, 0),
    NUMBER(frequency_penalty, -2, 2, 0),
    NUMBER(typical_p, 0, 1, 1),
    NUMBER(top_n_sigma, -1, 1000, -1),
    NUMBER(xtc_probability, 0, 1, 0),
    NUMBER(xtc_threshold, 0, 1, 0.1),
    NUMBER(dry_multiplier, 0, 1000, 0),
    NUMBER(dry_base, 1, 1000, 1.75),
    INTEGER(dry_allowed_length, 0, 1000000, 2),
    INTEGER(dry_penalty_last_n, -1, INT32_MAX, -1),
    INTEGER(top_k, -1, 1000000, 0),
    INTEGER(min_tokens, 0, 1000000, 0),
    BOOL(ignore_eos, 0),
};
const uint32_t params_count = ARRAY_SIZE(params_table);

static void params_store(struct sampling *s, const struct param *p, double value) {
    char *at = (char *)s + p->offset;

    assert(p->offset <= sizeof(*s) - sizeof(double));

    if (p->type == PARAM_NUMBER) {
        memcpy(at, &value, sizeof(value));
    } else {
        int64_t i = (int64_t)value;

        memcpy(at, &i, sizeof(i));
    }
}

static double params_load(const struct sampling *s, const struct param *p) {
    const char *at = (const char *)s + p->offset;
    double value;
    int64_t i;

    if (p->type == PARAM_NUMBER) {
        memcpy(&value, at, sizeof(value));
        return value;
    }
    memcpy(&i, at, sizeof(i));
    return (double)i;
}

void params_init(struct sampling *s) {
    memset(s, 0, sizeof(*s));
    for (uint32_t i = 0; i < params_count; i++)
        params_store(s, &params_table[i], params_table[i].initial);
}

const struct param *params_find(const char *name) {
    for (uint32_t i = 0; i < params_count; i++)
        if (strcmp(params_table[i].name, name) == 0)
            return &params_table[i];
    return NULL;
}

/* Checks range and type of @value; the comparison is written so that NaN fails. Returns 0 or
 * -EINVAL. */
static int params_check_value(const struct param *p, double value, struct err *err) {
    if (!(value >= p->min && value <= p->max))
        return err_set(err, 400, p->name, "%s must be between %.15g and %.15g", p->name, p->min,
                       p->max);
    if (p->type != PARAM_NUMBER && value != floor(value))
        return err_set(err, 400, p->name, "%s must be an integer", p->name);
    return 0;
}

int params_set(struct sampling *s, const struct param *p, double value, struct err *err) {
    int r = params_check_value(p, value, err);

    if (r == 0)
        params_store(s, p, value);
    return r;
}

int params_check(const struct sampling *s, struct err *err) {
    for (uint32_t i = 0; i < params_count; i++)
        TRY(params_check_value(&params_table[i], params_load(s, &params_table[i]), err));
    return 0;
}
