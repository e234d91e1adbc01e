#pragma once

/* hf_tokenizer_private - what the parts of the reader of Hugging Face's tokenizers share. */

#include "base/buf.h"
#include "base/json_read.h"
#include "text/hf_tokenizer.h"
#include "text/pretok.h"
#include "text/tokenizer_private.h"

#define HF_SEQUENCE_DEPTH 8 /* most levels of a Sequence inside a Sequence */

/* A token of the file; type TOKEN_UNDEFINED: no entry has this id. */
struct hf_token {
    struct gguf_str text;
    /* enum token_type, enum token_flag */
    uint8_t type, flags;
};

/* A cut of the pre-tokenizer: its expression, and enum pretok_rule. */
struct hf_cut {
    struct buf text;
    uint8_t rule;
};

/* State of one reading. The JSON values live as long as it; all but root are NULL where the
 * folder has no such file. */
struct hf_reader {
    yyjson_val *root, *config, *map, *generation, *model_config, *added;
    /* [n] tokens by id */
    struct hf_token *token;
    /* n_limit: ids from there on are left out; 0: none */
    uint32_t n, cap, n_limit;
    enum tokenizer_kind kind;
    bool byte_fallback, whole_words, fuse_unk;
    /* the normaliser's steps as strings of a GGUF array */
    struct buf steps;
    uint32_t n_steps;
    /* the cuts found; the same as stages with their parameters, unless unlike: an expression is not
     * known, or parameters of two stages differ */
    struct hf_cut cut[PRETOK_STAGES];
    struct pretok rules;
    unsigned n_stages;
    bool unlike;
    /* a word ends before each space mark */
    bool cut_marks;
    /* WhitespaceSplit was found */
    bool words;
    /* the steps so far leave no space in a text */
    bool no_spaces;
    /* the normalizer may remove the first character of a text, or put another one there */
    bool removes;
    /* BertNormalizer or BertPreTokenizer */
    bool bert;
    /* decoding removes the first space of a text */
    bool drop_space;
    /* precompiled_charsmap */
    struct gguf_str map_base64;
    /* scores of the tokens of SentencePiece, F32 */
    struct buf scores;
    /* text of the unknown token; .data == NULL: none */
    struct gguf_str unk;
    /* tokens that the post-processor adds; -1: none */
    int32_t lead, tail;
    struct gguf_keys *out;
    struct err *err;
};

/* Sets the error "tokenizer.json: ...". Returns -EINVAL. */
int hf_fail(const struct hf_reader *r, const char *fmt, ...) PRINTF(2, 3);
/* Returns the text of @v for messages, or its type if it is no text. */
struct hf_shown {
    char s[64];
};
struct hf_shown hf_show(yyjson_val *v);
/* Returns the text of a string; .data == NULL: @v is none. */
struct gguf_str hf_str(yyjson_val *v);
/* Returns whether both texts are equal; a missing one equals none. */
bool hf_same(struct gguf_str a, const char *b);

/* Reads member @key of @object, a bool, to *@out, which keeps its value if there is none. Returns
 * 0, or -EINVAL; @where names the object. */
int hf_bool(const struct hf_reader *r, yyjson_val *object, const char *where, const char *key,
            bool *out);
/* Returns the id of the token with the text @s, or -1. Takes time in proportion to the
 * vocabulary. */
int32_t hf_find(const struct hf_reader *r, struct gguf_str s);
/* Returns whether token @id was entered with another text than @text. */
bool hf_has_other_text(const struct hf_reader *r, uint64_t id, struct gguf_str text);
/* Enters token @id. Returns 0, -ENOMEM, or -EINVAL: the id is too large; *entered = false: it is
 * beyond n_limit. */
int hf_set_token(struct hf_reader *r, uint64_t id, struct gguf_str text, uint8_t type,
                 bool *entered);

/* Each reads a part of the file into @r. They return 0, -ENOMEM or -EINVAL with an error. */
int hf_read_model(struct hf_reader *r);         /* model: kind, tokens */
int hf_read_added(struct hf_reader *r);         /* added_tokens */
int hf_read_normalizer(struct hf_reader *r);    /* normalizer: steps */
int hf_read_pre_tokenizer(struct hf_reader *r); /* pre_tokenizer: steps, stages */
int hf_read_decoder(struct hf_reader *r);
int hf_read_post_processor(struct hf_reader *r); /* lead, tail */

/* Each writes keys from @r. They return 0, -ENOMEM, -EMSGSIZE or -EINVAL. */
int hf_write_model(struct hf_reader *r);
int hf_write_rules(struct hf_reader *r);    /* pre-tokenizer and steps */
int hf_write_specials(struct hf_reader *r); /* special ids, ends, flags of tokens */
/* Reads @file, the contents of tokenizer.model, and writes all keys but the templates. */
int hf_write_sentencepiece(struct hf_reader *r, struct gguf_str file);
int hf_write_templates(struct hf_reader *r, struct gguf_str file);
