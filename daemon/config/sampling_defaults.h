#pragma once

/*
 * sampling_defaults - the sampling parameters of requests that leave them out. The first of these
 * layers that has a value decides it:
 *
 *      the option `sampling`        NAME=VALUE, ...
 *      the model file               general.sampling.*
 *      the model family             values that its makers publish, by architecture and name
 *      weft                         temperature 0.8, top_k 40, top_p 0.95, min_p 0.05
 *
 * `sampling = openai` replaces the last three layers by OpenAI's defaults: temperature 1, without
 * truncation.
 */

#include "base/gguf.h"
#include "proto/params.h"

struct sampling_defaults {
    struct sampling values;
    bool has_seed;
    /* seed from the option, if has_seed; -1 is random */
    uint64_t seed;
    /* first layer above that set a value: "option", "model-file", "family:NAME", "weft" or
     * "openai" */
    char source[48];
};

/* Fills @out for the model in @file, which clients call @name. @option: the items of the option
 * `sampling`; NULL ends the list. Returns 0, or -EINVAL with @err for an item that is not a
 * parameter. */
int sampling_defaults_read(struct sampling_defaults *out, const struct gguf *file, const char *name,
                           char *const *option, struct err *err);
