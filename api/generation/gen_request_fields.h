#pragma once

/* gen_request_fields - what gen_request.c and gen_request_reasoning.c share: a row of the table of fields, and readers of values. */

#include "api/generation/gen_request.h"

struct field {
    const char *name;
    uint8_t kinds; /* enum field_set: where it is known */
    int (*parse)(struct gen_request *r, const struct api *a, const struct field *f, yyjson_val *v,
                 struct err *err);
    size_t at;      /* of the member that is set */
    double lo, hi;  /* integers; unsupported: lo is the value that changes nothing */
    const char *is; /* what a value must be, for messages */
};

#define READER(name)                                                                               \
    int name(struct gen_request *r, const struct api *a, const struct field *f, yyjson_val *v,     \
             struct err *err)

/* A 400: "FIELD must be ...". */
int gen_request_refuse(const struct field *f, struct err *err);
/* A whole number in [lo, hi]. */
int gen_request_whole(const struct field *f, yyjson_val *v, int64_t *out, struct err *err);
READER(gen_request_bool);

/* How much a model may think, under the names that there are for it. */
READER(gen_request_effort);
READER(gen_request_budget);
READER(gen_request_thinking);
READER(gen_request_reasoning);
READER(gen_request_switch);
