#pragma once

/*
 * tokenizer - converts text to token ids and back, for the vocabularies of GGUF files: byte-level
 * BPE (tokenizer.ggml.model "gpt2", pre-tokenizers in text/pretok.c), SentencePiece ("llama"),
 * gemma 4's BPE over characters ("gemma4"), WordPiece ("bert"), Unigram ("t5") and PLaMo's least
 * costs ("plamo2"). A tokenizer is immutable after tokenizer_new(); any thread may encode.
 *
 * Special tokens (control and user-defined tokens of the vocabulary) are recognised only in text
 * that the caller trusts: in text of a chat template, never in a user's text. The pre-tokenizer
 * cuts the remaining text across the borders between the two, as in training. User-defined tokens
 * that consist of white space count as text and are recognised everywhere. Text for Qwen's models
 * is normalised to NFC first, as in their own tokenizers.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/gguf.h"

struct tokenizer;

/* A growing array of ids; zeroed at first. n <= cap; n <= max unless max is 0. */
struct tokens {
    int32_t *id;
    /* max: limit of n, beyond which adding returns -EMSGSIZE; 0: none */
    size_t n, cap, max;
};

void tokens_deinit(struct tokens *t); /* frees the ids; the array is empty and may be used again */
/* Appends @id. Returns 0, -ENOMEM, or -EMSGSIZE: the array has `max` ids. */
int tokens_add(struct tokens *t, int32_t id);

/* Bytes [begin, end) of a text that come from a user. Arrays of ranges are sorted and disjoint. */
struct text_range {
    size_t begin, end;
};

enum tokenize_flags {
    /* prepend BOS and append EOS if the vocabulary demands it */
    TOKENIZE_BOS = 1,
    /* recognise special tokens outside the user ranges */
    TOKENIZE_SPECIAL = 2,
};

/* Makes the tokenizer of model file @g. Returns 0, -ENOMEM, or -EINVAL with the key and the mistake
 * in @err. @g is not needed afterwards. */
int tokenizer_new(struct tokenizer **out, const struct gguf *g, struct err *err);
struct tokenizer *tokenizer_free(struct tokenizer *t);
DEFINE_FREEP(struct tokenizer, tokenizer)

/* Appends the ids of @text to @out. Returns 0, -ENOMEM, -EMSGSIZE, or in an abandoned job
 * -ECANCELED (base/jobs.h). Any bytes are accepted: invalid UTF-8 is encoded byte by byte (replaced
 * by U+FFFD only where the vocabulary has no bytes). Takes linear time. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t len, unsigned flags,
                     const struct text_range *user, size_t n_user, struct tokens *out);

/* Returns the bytes of @id in running text (no bytes for control tokens, unless @special;
 * user-defined tokens, such as <tool_call>, always have their text). They live as long as the
 * tokenizer. The caller removes SentencePiece's leading space of a whole text (as
 * tokenizer_decode() does). */
const char *tokenizer_piece(const struct tokenizer *t, int32_t id, bool special, size_t *len);
struct buf;
/* Appends the text of @n ids to @out; drops the one leading space that SentencePiece added.
 * @special: as for tokenizer_piece(). Returns 0 or -errno of buf_add(). */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool special,
                     struct buf *out);

uint32_t tokenizer_n_vocab(const struct tokenizer *t); /* number of tokens; ids are below it */
int32_t tokenizer_bos(const struct tokenizer *t);      /* token at the start of texts, or -1 */
int32_t tokenizer_eos(const struct tokenizer *t);      /* token at the end of texts, or -1 */
/* Returns the token that the file names for filling in, or -1. */
enum tokenizer_fim { TOKENIZER_FIM_PREFIX, TOKENIZER_FIM_SUFFIX, TOKENIZER_FIM_MIDDLE };
#define TOKENIZER_FIM_N 3
int32_t tokenizer_fim(const struct tokenizer *t, enum tokenizer_fim part);
bool tokenizer_adds_bos(const struct tokenizer *t); /* true if TOKENIZE_BOS adds a token */
/* Returns whether @id ends a generation: eos, eot, eom and similar tokens. */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);
/* Returns the *@n ids that end a generation; the array lives as long as the tokenizer. */
const int32_t *tokenizer_end_ids(const struct tokenizer *t, size_t *n);
/* Returns whether user text can never become @id: control, unknown and user-defined tokens (not
 * white space). */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* Return the number of tokens that encoding never makes because another one has the same text, and
 * of merges in the file that were skipped because their texts are no tokens. */
uint32_t tokenizer_n_duplicates(const struct tokenizer *t);
uint32_t tokenizer_n_skipped_merges(const struct tokenizer *t);
/* Returns the token whose text is exactly @text, a special one if there are several; -1: there is
 * none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len);
/* Returns the token's text as in the file ("<|im_end|>"), for templates and for messages. */
struct gguf_str tokenizer_text(const struct tokenizer *t, int32_t id);
