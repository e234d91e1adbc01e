#pragma once

/*
 * mtp - the blocks of multi-token prediction behind a model's layers: each is one more layer, which
 * predicts the token after the next from the hidden state of a position and the embedding of the
 * next token. The blocks draft (passes 1 and on); the model's own pass computes their keys, too.
 */

#include "engine/arch/decoder.h"

/* Adds the attention and the FFN of layer @index. */
typedef void (*block_fn)(struct binder *b, struct model *m, const struct decoder *d,
                         uint32_t index);

/* Implements block_fn with the layers of decoder.h. */
void mtp_block(struct binder *b, struct model *m, const struct decoder *d, uint32_t index);

/* Kinds of final norm of a block. MTP_LATE: an RMS norm; hidden states are taken before it.
 * MTP_NAMED: an RMS norm, layer_output_norm, which the block must have. */
enum mtp_norm { MTP_RMS, MTP_CENTRED, MTP_LATE, MTP_NAMED };

/* Returns the number of blocks that the file has. */
uint32_t mtp_found(const struct binder *b, const struct model *m);
/* Inserts a KEEP before the last op of @m, LOGITS. The hidden state is the output of the final
 * norm, which moves from LOGITS to KEEP; with @late the norm stays with LOGITS. */
void mtp_keep(struct model *m, bool late);
/* Adds the beginning of block @k: the embedding, its own or the model's, and the product of its
 * norm and the hidden state's: x, or with @streams each of the residual streams. */
void mtp_begin(struct binder *b, struct model *m, uint32_t k, bool streams);
/* Adds the blocks' ops behind those of @m, whose last is LOGITS, and divides all into passes. Sets
 * -EINVAL in @b if the first block is missing. */
void mtp_bind(struct binder *b, struct model *m, const struct decoder *d, block_fn block,
              enum mtp_norm norm);
