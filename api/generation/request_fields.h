#pragma once

/* request_fields - what request.c and request_reasoning.c share: a row of the table of fields, and readers of values. */

#include "api/generation/request.h"

struct field {
    const char *name;
    uint8_t kinds;
    int (*parse)(struct request *r, const struct api *a, const struct field *f, yyjson_val *v,
                 struct err *err);
    size_t at;      /* of the member that is set */
    double lo, hi;  /* integers; unsupported: lo is the value that changes nothing */
    const char *is; /* what a value must be, for messages */
};

#define READER(name)                                                                               \
    int name(struct request *r, const struct api *a, const struct field *f, yyjson_val *v,         \
             struct err *err)

/* A 400: "FIELD must be ...". */
int request_refuse(const struct field *f, struct err *err);
/* A whole number in [lo, hi]. */
int request_whole(const struct field *f, yyjson_val *v, int64_t *out, struct err *err);
READER(request_bool);

/* How much a model may think, under the names that there are for it. */
READER(request_effort);
READER(request_budget);
READER(request_thinking);
READER(request_reasoning);
READER(request_switch);
