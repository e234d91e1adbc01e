#include "engine/arch/apart.h"

#include <errno.h>
#include <string.h>

#include "engine/arch/assistant.h"
#include "engine/arch/dflash.h"
#include "engine/archs.h"
#include "engine/bind/meta.h"

/* Checks that the block in the file of @b belongs to a model of this architecture with as many
 * layers, and sets m->n_mtp. */
static void check_block(struct binder *b, struct model *m, const struct apart_of *of) {
    struct gguf_str name = {0};
    uint32_t n_layer = 0;

    gguf_string(b->file, "general.architecture", &name);
    if ((!of->mtp && !of->own_block) || !meta_is_arch(b->file, of->arch))
        bind_refuse(b, "the block belongs to a model of architecture %.*s, and this one is %s",
                    (int)MIN(name.len, 64u), name.data, of->arch);
    meta_u32(b, "block_count", 1, MODEL_LAYERS_MAX, &n_layer);
    meta_u32(b, "nextn_predict_layers", 1, MODEL_LAYERS_MAX, &m->n_mtp);
    if (b->r == 0 && n_layer != m->shape.n_layer + m->n_mtp)
        bind_refuse(b, "the block belongs to a model of %u layers, and this one has %u",
                    n_layer - MIN(m->n_mtp, n_layer), m->shape.n_layer);
}

/* Binds the MTP block in the file of @b. */
static void apart_bind_block(struct binder *b, struct model *m, const struct apart_of *of) {
    check_block(b, m, of);
    if (b->r < 0)
        return;
    if (of->own_block)
        of->own_block(b, m);
    else
        mtp_bind(b, m, of->decoder, of->mtp, of->norm);
    bind_only_blocks(b, m->shape.n_layer + MAX(m->shape.drafts, 1u));
}

/* An MTP block uses the embedding and the output matrix of the model, even if its file has these
 * tensors too. */
void apart_bind(struct binder *b, struct model *m, const struct apart_of *of,
                const struct gguf *file) {
    bool assistant = assistant_found(file), drafter = dflash_found(file);
    const char *what = "block", *arch = of->arch;
    struct binder own;

    if (assistant) {
        what = "assistant";
        arch = ASSISTANT_ARCH;
    } else if (drafter) {
        what = "block drafter";
        arch = DFLASH_ARCH;
    }
    if (b->r >= 0)
        b->r = m->r;
    if (b->r == 0 && assistant && !of->assisted)
        bind_refuse(b, "the assistant belongs to a gemma4 model, and this one is %s", of->arch);
    if (b->r < 0 || (b->r = bind_init(&own, file, arch, b->err)) < 0)
        return;
    if (assistant)
        assistant_bind(&own, m, of->decoder);
    else if (drafter)
        dflash_bind(&own, m);
    else
        apart_bind_block(&own, m, of);
    bind_rest(&own);
    struct err why = *b->err;
    b->r =
        own.r == -EINVAL ? err_set(b->err, 0, NULL, "the %s's file: %s", what, why.message) : own.r;
    b->weight_bytes += own.weight_bytes;
    b->n_params += own.n_params;
    struct view **last = &b->views;
    while (*last)
        last = &(*last)->next;
    *last = STEAL(own.views);
    bind_deinit(&own);
}
