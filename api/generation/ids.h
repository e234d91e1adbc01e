#pragma once

/* ids - the ids of recent requests, so that the operator can ask about one by the name that its
 * client knows. Clients choose these names, so two tenants may use the same. */

#include <stdint.h>

#define GEN_IDS 512u
#define GEN_LEFT_OUT_MAX 256u

/* The last GEN_IDS requests, each with its first generation, in a ring. */
struct gen_ids {
    struct gen_id {
        char request_id[64];
        uint32_t tenant;
        uint64_t id;
        /* parts of tools' schemas: loosened_text() */
        char left_out[GEN_LEFT_OUT_MAX];
    } list[GEN_IDS]; /* [n % GEN_IDS] is the next */
    uint64_t n;
};

/* Notes that the first generation of the request of @tenant is @id, and what was left out of the
 * schemas of its tools. */
void gen_ids_note(struct gen_ids *ids, uint32_t tenant, const char *request_id, uint64_t id,
                  const char *left_out);
/* Returns what was left out for generation @id; "" also if it is not among the last. */
const char *gen_ids_left_out(const struct gen_ids *ids, uint64_t id);
/* Finds the latest request with this x-request-id. Returns 0, -ENOENT: it is not among the last, or
 * -ENOTUNIQ: several tenants have used it. */
int gen_ids_find(const struct gen_ids *ids, const char *request_id, uint64_t *id);
