#pragma once

/*
 * model_fit - whether and how this machine, as it is now, can serve a model: the arithmetic that
 * weftd makes before it loads anything (engine_fit() with its defaults), and how fast tokens can
 * come at most, from the measured bandwidth of memory.
 */

#include <stdbool.h>
#include <yyjson.h>
#include "base/buf.h"
#include "engine/engine.h"

struct machine {
    uint64_t memory;  /* bytes that may be taken */
    double bandwidth; /* bytes a second that all cores read together; 0: not measured yet */
    char *devices;    /* engine_opts.devices */
    const struct gguf *projector; /* engine_opts.projector */
};

struct model_fit {
    struct engine_fit engine;
    struct err why; /* why the model does not fit, or cannot be served at all */
    bool known;     /* engine is filled */
    bool fits;
    double tokens_per_s, tokens_per_s_full; /* one sequence, at its beginning, with a full context;
                                               0: not known */
};

/* @max_context 0: as much as there is room for. What of @m is 0 is found out, the bandwidth only
 * for a model that fits: that takes half a second. */
void model_fit(struct model_fit *out, const struct gguf *file, struct machine *m,
               uint32_t max_context);

/* "fits: context 8192 of 40960 tokens, ...", in lines. */
int model_fit_show(struct buf *out, const struct model_fit *f, const struct machine *m);
/* Returns the estimate as an object of @d. */
yyjson_mut_val *model_fit_json(yyjson_mut_doc *d, const struct model_fit *f,
                               const struct machine *m);
