#pragma once

/*
 * hf_tokenizer - reads the tokenizer of a Hugging Face folder (tokenizer.json and the small files
 * beside it) and writes what it says as the keys of a GGUF file, from which tokenizer_new() makes
 * the tokenizer. Keys that GGUF does not have begin with "tokenizer.weft."; tokenizer_private.h
 * lists them.
 *
 * Ids are those of the library `tokenizers` on text that is trusted as a whole. Whatever would lead
 * to other ids is refused by the name that the file gives it.
 */

#include "base/err.h"
#include "base/gguf.h"
#include "base/gguf_keys.h"

#define HF_TOKENIZER_FILE_MAX (64u << 20) /* most bytes of tokenizer.json */

/* Contents of the files; .data == NULL: the folder has no such file. One of the first two is
 * needed. */
struct hf_tokenizer_files {
    /* tokenizer.json */
    struct gguf_str tokenizer;
    /* tokenizer.model, which is read where there is no tokenizer.json */
    struct gguf_str sentencepiece;
    /* added_tokens.json, which is read with tokenizer.model */
    struct gguf_str added_tokens;
    /* tokenizer_config.json */
    struct gguf_str tokenizer_config;
    /* special_tokens_map.json */
    struct gguf_str special_tokens_map;
    /* generation_config.json */
    struct gguf_str generation_config;
    /* config.json */
    struct gguf_str config;
    /* chat_template.jinja */
    struct gguf_str chat_template;
    /* vocab_size of the model, to which the vocabulary is cut or filled up; 0: unknown */
    uint32_t n_vocab;
};

/* Appends the keys of the tokenizer to @out: tokenizer.ggml.*, tokenizer.chat_template*,
 * tokenizer.weft.*. Takes time in proportion to the files. Returns 0, -ENOMEM, or -EINVAL with the
 * file, the key and the mistake in @err; @out then has a part of the keys. */
int hf_tokenizer_keys(const struct hf_tokenizer_files *in, struct gguf_keys *out, struct err *err);
