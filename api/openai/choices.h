#pragma once

/*
 * choices - answers that are a list of choices, as OpenAI has them for chats and completions:
 * whole, or as a stream of chunks that each have a part of one choice.
 *
 * The order of a stream: the role of each choice (chat), texts, one chunk with finish_reason for
 * each choice, the usage if asked for.
 */

#include "api/generation/endpoint.h"
#include "api/generation/writer.h"
#include "api/http/json.h"

/* endpoint.form of an endpoint with choices_begin(), _piece(), _end() and _whole(). */
struct choices_form {
    const char *object, *chunk_object;
    /* the first piece of each choice is empty */
    bool has_role;
    /* prompt_logprobs is a member of the choice, not of the answer */
    bool prompt_in_choice;
    /* Writes the members of a choice between index and logprobs, and logprobs' value. */
    void (*content)(struct json *j, const struct writer *w, const struct piece *p, bool stream);
    void (*logprobs)(struct json *j, const struct writer *w, const struct piece *p);
    /* Writes members behind the usage: the times and the raw answer. */
    void (*figures)(struct json *j, const struct writer *w);
};

/* The functions of an endpoint with such a form (endpoint.h): the stream's first chunks, a chunk
 * for a piece, the usage at its end, and the whole answer. */
void choices_begin(struct writer *w);
void choices_piece(struct writer *w, const struct piece *p);
void choices_end(struct writer *w);
void choices_whole(struct json *j, struct writer *w);
/* The members of an endpoint with the form @form_. */
#define CHOICES_OF(form_)                                                                          \
    .form = &(form_), .begin = choices_begin, .piece = choices_piece, .end = choices_end,          \
    .whole = choices_whole
/* Sends the dialect's comment and a chunk that says nothing: some clients count only chunks. */
void choices_alive(struct writer *w);

/* The functions of OpenAI's own forms. */
void choices_put_message(struct json *j, const struct writer *w, const struct piece *p,
                         bool stream);
/* Output token @i of @g with its log probability and the best tokens there, as a chat has it.
 * @has_ids: with the tokens' ids. */
void choices_put_logprob(struct json *j, const struct writer *w, const struct gen *g, uint32_t i,
                         bool has_ids);
/* The list of output tokens [from, to) of @g with their log probabilities and the best tokens
 * there, as a chat has it. @llama_server: with ids, and also of tokens that are no text. */
void choices_put_logprobs(struct json *j, const struct writer *w, const struct gen *g,
                          uint32_t from, uint32_t to, bool llama_server);
void choices_put_message_logprobs(struct json *j, const struct writer *w, const struct piece *p);
void choices_put_text(struct json *j, const struct writer *w, const struct piece *p, bool stream);
void choices_put_text_logprobs(struct json *j, const struct writer *w, const struct piece *p);
/* Returns true if @p, of a stream, begins its choice: no token is in it. */
static inline bool choices_begins(const struct piece *p) {
    return p->first && p->to == 0 && !p->last;
}
/* For clients of llama-server: the progress of a prompt; @begins: before any of it was computed. */
void choices_put_progress(struct json *j, const struct writer *w, const struct gen *g, bool begins);

/* Lets another tenant have its turn, between entries of long lists on the pool. An abandoned answer
 * fails. */
#define CHOICES_PAUSE 8u /* entries between two of these */
void choices_pause(struct json *j);
/* Returns text and bytes of a token in logprobs; @id < 0: none. The tokenizer owns the text. */
const char *choices_token(const struct writer *w, int32_t id, size_t *len);
/* Writes the text of a token, or "token_id:ID" where the request wants that. */
void choices_put_token(struct json *j, const struct writer *w, int32_t id);
