#pragma once

/* hf_folder - makes a tokenizer of the files of a Hugging Face folder, through a GGUF file in
 * memory. */

#include "text/hf_tokenizer.h"
#include "text/tokenizer.h"

/* Returns as hf_tokenizer_keys() and tokenizer_new(). */
int hf_folder_load(struct tokenizer **out, const struct hf_tokenizer_files *in, struct err *err);
