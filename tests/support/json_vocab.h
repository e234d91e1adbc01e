#pragma once

/*
 * json_vocab - a small vocabulary that can write every text, and JSON with few tokens, for tests of
 * constrained generation with a random model. SentencePiece: bytes as <0x00> to <0xFF>, pieces of
 * JSON and words, and the markers of a chat format.
 */

#include "text/tokenizer.h"

#define JSON_VOCAB 320
#define JSON_VOCAB_END 2 /* </s> */

/* Makes the tokenizer; aborts on failure. */
struct tokenizer *json_vocab_new(void);
