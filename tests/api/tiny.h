#pragma once

/*
 * tiny - a vocabulary in which the id of a byte is the byte, with special tokens after the 256
 * bytes, and a chat template in ChatML.
 */

#include "text/template.h"
#include "text/tokenizer.h"

enum {
    TINY_START = 256,
    TINY_END,
    TINY_EOT,
    TINY_VOCAB,
    TINY_CALL = TINY_VOCAB + 1,
    TINY_CALL_END,
    TINY_JUNK,
    TINY_ALL
};

struct tokenizer *tiny_tokenizer(void); /* the caller frees */
/* Returns a tokenizer that begins texts with BOS, <s> for TINY_EOT. */
struct tokenizer *tiny_bos_tokenizer(void);
/* Returns a tokenizer with <fim_pad> for TINY_EOT and <fim_prefix>, <fim_suffix>, <fim_middle> from
 * TINY_CALL on. */
struct tokenizer *tiny_fim_tokenizer(void);
/* Returns a tokenizer with @special from TINY_START on and @late from TINY_CALL on, which begins
 * texts with @bos unless it is negative. */
struct tokenizer *tiny_named_tokenizer(const char *const special[3], const char *const late[3],
                                       int bos);
/* Returns a tokenizer with <before>, <after>, <between>, which the keys of the file name. */
struct tokenizer *tiny_fim_keys_tokenizer(void);
/* Returns a tokenizer with <|endofturn|>, <|stop|>, <|junk|> from TINY_CALL on. */
struct tokenizer *tiny_turns_tokenizer(void);
/* A tokenizer with the special tokens of GLM-4. */
struct tokenizer *tiny_observing_tokenizer(void);
/* Returns a tokenizer with <|vision_start|>, <|image_pad|>, <|vision_end|> from TINY_CALL on. */
struct tokenizer *tiny_seeing_tokenizer(void);
/* Returns a tokenizer with <|media_start|> for TINY_EOT, and <|media_content|>, <|media_pad|>,
 * <|media_end|> from TINY_CALL on. */
struct tokenizer *tiny_media_tokenizer(void);
struct template *tiny_template(void);
