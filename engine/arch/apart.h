#pragma once

/*
 * apart - what drafts for a model and comes in a file of its own: a block of multi-token
 * prediction, an assistant (assistant.h), a block drafter (dflash.h).
 */

#include "engine/arch/mtp.h"

/* The model that it must belong to. */
struct apart_of {
    const char *arch;
    const struct decoder *decoder;
    block_fn mtp;
    enum mtp_norm norm;
    /* Binds the block in place of mtp_bind(); both NULL: models of this architecture have none. */
    void (*own_block)(struct binder *b, struct model *m);
    bool assisted; /* they may have assistants */
};

/* Adds pass 1 of @m, whose ops @b has bound, from @file. -EINVAL in @b: it is of another model, or
 * not as it should be. */
void apart_bind(struct binder *b, struct model *m, const struct apart_of *of,
                const struct gguf *file);
