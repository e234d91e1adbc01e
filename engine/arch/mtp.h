#pragma once

/*
 * mtp - the block of multi-token prediction behind a model's layers: one layer more, from the
 * hidden state of a position and the embedding of the token after it to the token after that. It
 * drafts (pass 1); the model's own pass computes its keys too.
 */

#include "engine/arch/decoder.h"

/* Adds the attention and the FFN of layer @index. */
typedef void (*block_fn)(struct binder *b, struct model *m, const struct decoder *d,
                         uint32_t index);

/* A block_fn: those of decoder.h. */
void mtp_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);

/* Kinds of final norm of a block; MTP_LATE: an RMS norm, and hidden states are those before it. */
enum mtp_norm { MTP_RMS, MTP_CENTRED, MTP_LATE };

/* Returns true if the file has the first block. */
bool mtp_found(const struct binder *b, const struct model *m);
/* Puts a KEEP in front of the last op of @m, LOGITS. The hidden state is what the final norm gives,
 * and LOGITS has none, or with @late the norm stays with LOGITS. */
void mtp_keep(struct model *m, bool late);
/* Adds its ops behind those of @m, whose last is LOGITS, and divides both into passes. */
void mtp_bind(struct binder *b, struct model *m, const struct decoder *d, block_fn block,
              enum mtp_norm norm);
