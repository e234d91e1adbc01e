#pragma once

/* model_fit - estimates whether, and with which context and speed, this machine can serve a model
 * now: the sizes that weftd computes before it loads a model (engine_fit() with its defaults), and
 * an upper bound of tokens per second from the measured memory bandwidth. */

#include <stdbool.h>

#include "base/buf.h"
#include "base/lib_types.h"
#include "engine/engine.h"

struct machine {
    /* bytes that may be used */
    uint64_t memory;
    /* bytes per second that all cores read together; 0: not measured yet */
    double bandwidth;
    /* engine_opts.devices */
    char *devices;
    /* engine_opts.fetches_experts */
    bool fetches_experts;
    /* engine_opts.projector */
    const struct gguf *projector;
    /* file of the option draft-model, a whole model or a block of the model's own; NULL: none */
    const struct gguf *drafter;
    /* engine_opts.kv_type; zeroed: f16 */
    struct kv_formats kv_type;
};

struct model_fit {
    struct engine_fit engine;
    /* reason why the model does not fit, or cannot be served at all */
    struct err why;
    /* `engine` is filled */
    bool known;
    bool fits;
    /* memory of a draft model in bytes; blocks are part of the engine's sizes */
    uint64_t draft_bytes;
    /* tokens per second of one sequence, at its beginning and with a full context; 0: not known, or
     * memory does not limit them */
    double tokens_per_s, tokens_per_s_full;
};

/* Estimates @file on @m. @max_context 0: the longest context that fits. Members of @m that are 0
 * are measured; the bandwidth, which takes half a second, only for a model that fits and that the
 * processor reads from memory: neither on a device nor so small that a cache may hold it. */
void model_fit(struct model_fit *out, const struct gguf *file, struct machine *m,
               uint32_t max_context);

/* Writes the estimate as lines: "fits: context 8192 of 40960 tokens, ...". */
int model_fit_show(struct buf *out, const struct model_fit *f, const struct machine *m);
/* Returns the estimate as an object of @d. */
yyjson_mut_val *model_fit_json(yyjson_mut_doc *d, const struct model_fit *f,
                               const struct machine *m);
