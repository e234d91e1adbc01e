#pragma once

/*
 * apart - binds the parts that draft for a model and come in a separate file: a block of
 * multi-token prediction, an assistant (assistant.h), a block drafter (dflash.h).
 */

#include "engine/arch/mtp.h"

/* Model to which the drafting part must belong. */
struct apart_of {
    const char *arch;
    const struct decoder *decoder;
    block_fn mtp;
    enum mtp_norm norm;
    /* Binds the block instead of mtp_bind(); both NULL: models of this architecture have no
     * block. */
    void (*own_block)(struct binder *b, struct model *m);
    bool assisted; /* models that may have assistants */
};

/* Adds pass 1 of @m, whose ops @b has bound, from @file. Sets -EINVAL in @b if the file belongs to
 * another model or is malformed. */
void apart_bind(struct binder *b, struct model *m, const struct apart_of *of,
                const struct gguf *file);
