#pragma once

/*
 * pictures - the image encoder of an engine: checks that a projector file fits the model, computes
 * its memory, and opens it beside the backend.
 */

#include "engine/model.h"
#include "engine/vision/encoder.h"

/* Checks that the projector of @o fits the model; fills in o->picture_rows, and the encoder's bytes
 * in @m. Returns 0, also without a projector, or -errno with the mismatch in @err. */
int pictures_fit(struct model *m, const struct be_ops *ops, struct engine_opts *o, struct err *err);
/* Opens the encoder on the opened device @be, which is proved, or on the threads and with the
 * instruction set of @o; NULL: no projector. *why: why it is not on the device that there is, in
 * words, or NULL. Returns 0 or -errno. */
int pictures_open(struct image_encoder **out, const struct be_ops *ops, struct be *be,
                  const struct engine_opts *o, const char **why, struct err *err);
/* Fills in the picture members of the info, and mixes the projector into the fingerprint. */
void pictures_tell(const struct gguf *projector, const struct engine_opts *o,
                   const struct model_shape *s, struct engine_info *out);
