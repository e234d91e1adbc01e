#pragma once

/* waits - describes why a live generation waits, and for how long it is expected to wait. */

#include <stddef.h>
#include <stdint.h>

struct gen;
struct model;

struct gen_wait {
    /* flight_name()'s words, "place" in the front's queue, or "worker" */
    const char *name;
    /* "waited for pages of the KV cache" */
    const char *text;
    /* until its first token, or in the queue until its turn; < 0: unknown, or it has come */
    int64_t expect_ms;
    /* tokens of its prompt that are computed or cached; a lower bound */
    uint32_t n_done;
};

/* Describes the state of @g by the decisions that its worker's flight recorder still has. */
void gen_waits(const struct gen *g, struct gen_wait *out);
/* Writes a line about the loading of @m, for which a request has waited @waited_ns: "a is loading,
 * 40 %, about 12 s". */
void model_wait_text(const struct model *m, int64_t waited_ns, char *out, size_t size);
/* Writes a line about it: "pages: waited for ...; about 3 s". */
void gen_wait_text(const struct gen *g, const struct gen_wait *w, char *out, size_t size);
