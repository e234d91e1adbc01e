#include "engine/engine.h"

#define DRAFT_SHARE 16u /* divisor of a device's free memory, for a draft model's pages */

struct engine_opts engine_draft_opts(const struct engine_opts *model, uint64_t kv_bytes) {
    struct engine_opts o = *model;
    uint64_t of_model = o.kv_bytes;

    if (!o.kv_bytes)
        of_model = o.memory / 4;
    o.n_pages = o.max_context = 0;
    o.host_kv_bytes = 0;
    if (kv_bytes)
        o.kv_bytes = kv_bytes;
    else
        o.kv_bytes = of_model / 4;
    o.memory = 0;
    if (kv_bytes)
        o.device_share = 0;
    else
        o.device_share = DRAFT_SHARE;
    o.host_experts = o.device_layers = 0;
    o.n_devices = 1;
    o.experts_fd = 0;
    o.digest = o.windows = o.drafts = false;
    o.block = NULL;
    o.projector = NULL;
    o.keep_fd = 0;
    return o;
}
