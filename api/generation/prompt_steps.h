#pragma once

/*
 * prompt_steps - the steps of a prompt job (prompt_job.h), which run on the loop or on a thread of
 * the pool: the prompts are found in the body, messages are rendered, texts become tokens. Each
 * returns 0, -EINVAL with job->err, -ENOMEM or -ECANCELED; with job->quick also -EAGAIN, if the
 * step takes too long for the loop.
 */

#include "api/generation/prompt.h"

#define PROMPT_INLINE_TEXT (32u << 10) /* bytes of prompts that are tokenised on the loop */

/* Name of a place in a body. */
struct prompt_place {
    char s[32];
};
/* Returns the place of prompt @i in the body: "messages", "prompt", "input[3]". */
struct prompt_place prompt_place(const struct prompt_job *job, uint32_t i);

/* Makes job->prompts of the request: one chat, texts, ids or pairs of texts. */
int prompt_find(struct prompt_job *job);
/* Renders the messages of the chat as the text of its prompt, with the prefill. */
int prompt_render(struct prompt_job *job);
/* Returns true if the pairs of query and document of @m have a place for an instruction. */
bool prompt_pair_is_instructed(const struct api_model *m);
/* Returns the bytes of BOS with which the text of @p begins, if the tokenizer would add it; 0: it
 * begins otherwise, or with text of a user. */
size_t prompt_bos_bytes(const struct prompt_job *job, const struct prompt *p);
/* Makes the tokens of prompt @i. */
int prompt_encode(struct prompt_job *job, uint32_t i);
/* Sets the error for the prompt at @place, whose @n tokens, or more with @more, do not fit into
 * @context. Clients of each API recognise its words, and then shorten the conversation; any others
 * would make them repeat it. @n 0: it could not be rendered. @context 0: unknown. Returns
 * -EINVAL. */
int prompt_exceeds(const struct prompt_job *job, const char *place, size_t n, bool more,
                   uint32_t context, struct err *err);
/* Does the same for more than @n tokens and the job's context. */
int prompt_too_long(const struct prompt_job *job, const char *place, size_t n, struct err *err);
/* Makes the text of request.tokens, in job->text. */
int prompt_decode(struct prompt_job *job);
