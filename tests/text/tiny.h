#pragma once

/* tiny - vocabularies of a few hundred tokens for tests, put together token by token. */

#include "tests/support/gguf_writer.h"
#include "text/tokenizer_private.h"

#define TINY_MAX 600

struct tiny {
    char store[TINY_MAX][48];
    const char *token[TINY_MAX], *merge[TINY_MAX];
    int32_t type[TINY_MAX];
    float score[TINY_MAX];
    uint32_t n, n_merges;
    char merge_store[TINY_MAX][48];
};

/* All return the id. */
int32_t tiny_add(struct tiny *t, const char *text, enum token_type type, float score);
/* The merge "a b" and its result, when that is not there yet. */
int32_t tiny_merge(struct tiny *t, const char *a, const char *b);

/* ids 0..255: the bytes, as byte-level vocabularies write them; merges of a few words; then
 * <|endoftext|> <|im_start|> <|im_end|> (control) <think> </think> (user-defined) "\n\n\n"
 * (plain). */
void tiny_bytes(struct tiny *t);
/* <unk> <s> </s>, <0x00>..<0xFF>, letters, some words, U+2581. */
void tiny_scores(struct tiny *t);

/* Writes model, pre (may be NULL), tokens, types, and merges or scores. */
void tiny_put(const struct tiny *t, struct gguf_writer *w, const char *model, const char *pre);
