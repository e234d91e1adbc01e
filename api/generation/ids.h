#pragma once

/* ids - the ids of recent requests, so that the operator can ask about one by the name that its
 * client knows. */

#include <stdbool.h>
#include <stdint.h>

#define GEN_IDS 512u
#define GEN_LEFT_OUT_MAX 256u

/* The last GEN_IDS requests, each with its first generation, in a ring. */
struct gen_ids {
    struct gen_id {
        char request_id[64];
        uint64_t id;
        char left_out[GEN_LEFT_OUT_MAX]; /* parts of tools' schemas: loosened_text() */
    } list[GEN_IDS];                     /* [n % GEN_IDS] is the next */
    uint64_t n;
};

/* Notes that the first generation of the request is @id, and what was left out of the schemas of
 * its tools. */
void gen_ids_note(struct gen_ids *ids, const char *request_id, uint64_t id, const char *left_out);
/* Returns what was left out for generation @id; "" also if it is not among the last. */
const char *gen_ids_left_out(const struct gen_ids *ids, uint64_t id);
/* Finds the latest request with this x-request-id; false: it is not among the last. */
bool gen_ids_find(const struct gen_ids *ids, const char *request_id, uint64_t *id);
