#pragma once

/*
 * responses_support - asks /v1/responses and says what a client was told, on one line. A stream is
 * put together again by the SDKs' rules, each of which is asserted: names, sequence numbers, order,
 * that what is said again at the end of a part, an item and the response is what was said before.
 *
 *      R<reasoning> S<summary> M<message> name{arguments} name<custom input> status
 *
 * Behind a message with log probabilities, L<tokens>. An item that is incomplete has a `!` behind
 * it.
 */

#include <yyjson.h>
#include "stream.h"
#include "tiny.h"

#define RESPONSES "/v1/responses"

/* A world with a template in Hermes' form; reasoning is in <think>, which stays in the prompt. */
void responses_start(struct world *w);
void responses_init(struct world *w); /* before world_start() */
/* Asks with {FIELDS} while the model says @output. */
void responses_ask(struct world *w, const char *fields, const char *output, struct reply *r);
/* Reads @r, plain or stream, and frees it. The line lives until the next call. */
const char *responses_told(struct reply *r);
/* The same; also the final response. */
yyjson_doc *responses_read(struct reply *r, struct buf *line);
/* Plain and as a stream, the client is told @want. */
void responses_expect(struct world *w, const char *fields, const char *output, const char *want);
/* The prompt of the last request that reached the worker. */
const char *responses_prompt(struct world *w);
/* {FIELDS} is refused with @status, @code and @param. */
void responses_refused(struct world *w, const char *fields, int status, const char *code,
                       const char *param);
