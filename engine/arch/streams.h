#pragma once

/*
 * streams - residual streams whose weights Sinkhorn iterations make (HC_IN), and the op that adds
 * branches to streams of any kind (HC_OUT).
 */

#include "engine/bind/bind.h"
#include "engine/model.h"

/* Reads the number of streams, and how their weights are computed. */
void streams_read(struct binder *b, struct stream_shape *t);
/* Adds an HC_IN of layer @l with the tensors whose names begin with @name. @ends: the last HC_IN,
 * before the logits, which has no weights for HC_OUT. */
void streams_add_in(struct binder *b, struct model *m, uint32_t l, const char *name, bool ends);
/* Adds the HC_IN before branch @what, "attn" or "ffn", of layer @l. */
void streams_add_branch(struct binder *b, struct model *m, uint32_t l, const char *what);
/* Adds an HC_OUT, which adds the preceding branch to the streams, or (@begins) sets them to x. */
void streams_add_out(struct model *m, uint32_t l, bool begins);
