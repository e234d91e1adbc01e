#include "api/generation/ids.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

void gen_ids_note(struct gen_ids *ids, uint32_t tenant, const char *request_id, uint64_t id,
                  const char *left_out) {
    struct gen_id *r = &ids->list[ids->n++ % GEN_IDS];

    snprintf(r->request_id, sizeof(r->request_id), "%s", request_id);
    snprintf(r->left_out, sizeof(r->left_out), "%s", left_out);
    r->tenant = tenant;
    r->id = id;
}

const char *gen_ids_left_out(const struct gen_ids *ids, uint64_t id) {
    for (uint64_t i = ids->n; i > 0 && i + GEN_IDS > ids->n; i--) {
        if (ids->list[(i - 1) % GEN_IDS].id == id)
            return ids->list[(i - 1) % GEN_IDS].left_out;
    }
    return "";
}

int gen_ids_find(const struct gen_ids *ids, const char *request_id, uint64_t *id) {
    const struct gen_id *latest = NULL;

    for (uint64_t i = ids->n; i > 0 && i + GEN_IDS > ids->n; i--) {
        const struct gen_id *r = &ids->list[(i - 1) % GEN_IDS];

        if (strcmp(r->request_id, request_id) != 0)
            continue;
        if (latest && latest->tenant != r->tenant)
            return -ENOTUNIQ;
        if (!latest)
            latest = r;
    }
    if (!latest)
        return -ENOENT;
    *id = latest->id;
    return 0;
}
