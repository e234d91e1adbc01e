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
/* Opens the encoder on device @be, where it is verified (vision/prove.c), or on the host with the
 * threads and instruction set of @o. *out NULL: there is no projector. *why: why the encoder is not
 * on the device although there is one; else NULL. Returns 0 or -errno. */
int pictures_open(struct image_encoder **out, const struct be_ops *ops, struct be *be,
                  const struct engine_opts *o, const char **why, struct err *err);
/* Fills in the picture members of the info, and mixes the projector into the fingerprint. */
void pictures_describe(const struct gguf *projector, const struct engine_opts *o,
                       const struct model_shape *s, struct engine_info *out);
