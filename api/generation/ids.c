#include "api/generation/ids.h"

#include <stdio.h>
#include <string.h>

void gen_ids_note(struct gen_ids *ids, const char *request_id, uint64_t id, const char *left_out) {
    struct gen_id *r = &ids->list[ids->n++ % GEN_IDS];

    snprintf(r->request_id, sizeof(r->request_id), "%s", request_id);
    snprintf(r->left_out, sizeof(r->left_out), "%s", left_out);
    r->id = id;
}

const char *gen_ids_left_out(const struct gen_ids *ids, uint64_t id) {
    for (uint64_t i = ids->n; i > 0 && i + GEN_IDS > ids->n; i--) {
        if (ids->list[(i - 1) % GEN_IDS].id == id)
            return ids->list[(i - 1) % GEN_IDS].left_out;
    }
    return "";
}

bool gen_ids_find(const struct gen_ids *ids, const char *request_id, uint64_t *id) {
    for (uint64_t i = ids->n; i > 0 && i + GEN_IDS > ids->n; i--) {
        const struct gen_id *r = &ids->list[(i - 1) % GEN_IDS];

        if (strcmp(r->request_id, request_id) == 0) {
            *id = r->id;
            return true;
        }
    }
    return false;
}
