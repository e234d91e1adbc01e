#pragma once

/*
 * lmstudio - the dialect of LM Studio's own REST API: chats, completions and embeddings as OpenAI
 * has them, with the figures of the generation and what the model is (lmstudio.c), and its lists of
 * models, which it also loads and unloads (models.c).
 */

#include "api/http/dialect.h"

struct endpoint;

/* route.serve, of models.c */
void lmstudio_models_serve(struct exchange *x, struct http *h);    /* /api/v0/models */
void lmstudio_model_serve(struct exchange *x, struct http *h);     /* one of the models */
void lmstudio_models_v1_serve(struct exchange *x, struct http *h); /* /api/v1/models */
extern const struct endpoint lmstudio_load;
void lmstudio_unload_serve(struct exchange *x, struct http *h);
