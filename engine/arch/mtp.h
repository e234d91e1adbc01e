#pragma once

/*
 * mtp - blocks of multi-token prediction (MTP, DeepSeek-V3). A block is one more layer after the
 * model's own; from the hidden state of a position and the embedding of the next token it predicts
 * the token after that. Blocks draft in passes 1 and on, while pass 0 computes their keys as well.
 */

#include "engine/arch/decoder.h"

/* Adds the attention and the FFN of layer @index. */
typedef void (*block_fn)(struct binder *b, struct model *m, const struct decoder *d,
                         uint32_t index);

/* Implements block_fn with the layers of decoder.h. */
void mtp_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);

/* Does the same with a dense FFN, in models whose last layers have experts. */
void mtp_dense_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);

/* Kinds of a block's final norm: an RMS norm; a layer norm without bias (MTP_CENTRED); an RMS norm
 * after the hidden state is taken, of either name (MTP_LATE); the RMS norm layer_output_norm, which
 * the block must have (MTP_NAMED). */
enum mtp_norm { MTP_RMS, MTP_CENTRED, MTP_LATE, MTP_NAMED };

/* Returns the number of blocks that the file has. */
uint32_t mtp_found(const struct binder *b, const struct model *m);
/* Inserts a KEEP before the last op of @m, LOGITS. The hidden state is the output of the final
 * norm, which moves from LOGITS to KEEP; with @late the norm stays with LOGITS. */
void mtp_keep(struct model *m, bool late);
/* Adds the beginning of block @k: EMBED, with the block's embedding or else the model's, and
 * DRAFT_IN, whose member streams is @streams. */
void mtp_begin(struct binder *b, struct model *m, uint32_t k, bool streams);
/* Adds the ops of the blocks after the ops of @m, which end with LOGITS, and divides all ops into
 * passes. Errors are kept in b->r or m->r: -EINVAL if the first block is missing or malformed,
 * -ENOMEM. */
void mtp_bind(struct binder *b, struct model *m, const struct decoder *d, block_fn block,
              enum mtp_norm norm);
