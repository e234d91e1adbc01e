#pragma once

/*
 * model - the model files of the simulator, and the text that each of them writes: the tell-tale
 * engine's (tests/support/telltale.h), of letters that only this model has, so that the answer of
 * another model is seen.
 */

#include "base/buf.h"
#include "text/tokenizer.h"

#define MODELS_MAX 3
#define MODEL_END 257 /* the token that ends an answer */
#define MODEL_VOCAB 260
#define MODEL_CONTEXT 2048
#define MODEL_PAGE_TOKENS 16

/* Writes the file of model @i to @path. */
void model_write(uint32_t i, const char *path);
/* Returns the number of the model whose file has the general.name that model_write() gave it. */
uint32_t model_of_file(const struct gguf *file);
/* The next engine is that of model @i; so is what model_expect() says. */
void model_use(uint32_t i);

struct expected {
    struct buf text;
    uint32_t n_prompt, n_out; /* tokens; with the one that ends it */
    bool ended;               /* by that token; else by the number of tokens */
};

/* The answer of model @i to the text @prompt, in which control tokens are recognised where they
 * are, of at most @max tokens, at temperature 0. */
void model_expect(uint32_t i, const char *prompt, uint32_t max, struct expected *out);
/* The prompt of a chat with one message, as the template of the files has it. */
void model_chat_prompt(const char *message, struct buf *out);
