#pragma once

/*
 * apart - binds a drafting part that is in a separate file (draft-model): a block of multi-token
 * prediction, an assistant (assistant.h) or a block drafter (dflash.h).
 */

#include "engine/arch/mtp.h"

/* Properties of the model to which the drafting part must belong. */
struct apart_of {
    const char *arch;
    const struct decoder *decoder;
    /* for mtp_bind(), like norm; NULL: blocks are bound by own_block() */
    block_fn mtp;
    enum mtp_norm norm;
    /* binds the block instead of mtp_bind(); NULL, and mtp too: the architecture has no blocks */
    void (*own_block)(struct binder *b, struct model *m);
    /* the model may have an assistant */
    bool assisted;
};

/* Adds pass 1 of @m, whose ops @b has bound, from @file. Sets -EINVAL in @b if the file belongs to
 * another model or is malformed. */
void apart_bind(struct binder *b, struct model *m, const struct apart_of *of,
                const struct gguf *file);
