#pragma once

/*
 * responses_support - sends requests to /v1/responses and writes the answer that a client gets on
 * one line. A stream is assembled by the rules of the SDKs, each of which is asserted: names,
 * sequence numbers, order, and that the texts repeated at the end of a part, an item and the
 * response equal the streamed ones.
 *
 *      R<reasoning> S<summary> M<message> name{arguments} name<custom input> status
 *
 * Behind a message with log probabilities, L<tokens>. An item that is incomplete has a `!` behind
 * it.
 */

#include "base/lib_types.h"
#include "stream.h"
#include "tiny.h"

#define RESPONSES "/v1/responses"

/* Starts a world with a template in Hermes' form; reasoning is in <think>, which stays in the
 * prompt. */
void responses_start(struct world *w);
void responses_init(struct world *w); /* to be called before world_start() */
/* Sends {FIELDS}, while the model writes @output. */
void responses_ask(struct world *w, const char *fields, const char *output, struct reply *r);
/* Reads @r, plain or a stream, and frees it. Returns its line, which is valid until the next
 * call. */
const char *responses_told(struct reply *r);
/* Reads @r like responses_told(); returns the final response. */
yyjson_doc *responses_read(struct reply *r, struct buf *line);
/* Asserts that the client gets @want, both plain and as a stream. */
void responses_expect(struct world *w, const char *fields, const char *output, const char *want);
/* Returns the prompt of the last request that reached the worker. */
const char *responses_prompt(struct world *w);
/* Asserts that {FIELDS} is refused with @status, @code and @param. */
void responses_refused(struct world *w, const char *fields, int status, const char *code,
                       const char *param);
