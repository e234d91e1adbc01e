#pragma once

/*
 * model - the model files of the simulator, and the text that each of them writes: that of the
 * tell-tale engine (tests/support/telltale.h), in letters that only this model has, so that the
 * answer of a wrong model is detected.
 */

#include "base/buf.h"
#include "text/tokenizer.h"

#define MODELS_MAX 3
#define MODEL_END 257 /* token that ends an answer */
#define MODEL_VOCAB 260
#define MODEL_CONTEXT 2048
#define MODEL_PAGE_TOKENS 16

/* Writes the file of model @i to @path. */
void model_write(uint32_t i, const char *path);
/* Returns the number of the model whose file has the general.name that model_write() gave it. */
uint32_t model_of_file(const struct gguf *file);
/* Makes the next engine, and model_expect(), those of model @i. */
void model_use(uint32_t i);

struct expected {
    struct buf text;
    /* numbers of tokens; n_out includes the end token */
    uint32_t n_prompt, n_out;
    /* the end token ended it, not the number of tokens */
    bool ended;
};

/* Computes the answer of model @i to the text @prompt, in which control tokens are recognised, of
 * at most @max tokens at temperature 0. */
void model_expect(uint32_t i, const char *prompt, uint32_t max, struct expected *out);
/* Writes the prompt of a chat with one message by the template of the files. */
void model_chat_prompt(const char *message, struct buf *out);
