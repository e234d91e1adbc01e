#pragma once

/*
 * writer - answers a request for generations, as a whole or as a stream. Endpoints give the answer
 * its form; the rest is common: admission, one generation for each prompt and choice, sending the
 * head only when the worker has accepted all of them, errors, usage, order.
 *
 * The order of a stream: the role of each choice (chat), texts, one chunk with finish_reason for
 * each choice, the usage if asked for, [DONE]. Output is pulled: when the client is slow nothing is
 * written and tokens wait in their generation.
 */

#include "api/generation/custom.h"
#include "api/generation/echo.h"
#include "api/generation/gen.h"
#include "api/generation/prompt_job.h"
#include "api/http/exchange.h"
#include "api/http/json.h"
#include "api/limits/admit.h"
#include "base/blob.h"

/* One generation of the answer, and how much of it was sent: text_sent <= gen->ready, n_sent <=
 * gen->n_out, n_echoed <= echo->n; finish_sent is the last thing that happens to it. */
struct choice {
    struct gen *gen;
    size_t text_sent;
    /* position in the parsed text, if the text is parsed */
    struct output_at at;
    /* output tokens */
    uint32_t n_sent;
    /* characters of the text before token n_sent, for text_offset */
    uint64_t n_chars;
    /* text of the prompt to send first; NULL: none */
    struct echo *echo;
    /* tokens of it that have been written */
    uint32_t n_echoed;
    /* the first piece was written; the last one was */
    bool begun, finish_sent;
    /* sort key of writer_sort() */
    double mean_logprob;
    /* text of the open call, if its tool takes text */
    struct custom_text custom;
};

/* A piece of one choice: its text [text, text + len) and output tokens [from, to). */
struct piece {
    struct choice *choice;
    uint32_t index, from, to;
    const char *text;
    size_t len;
    /* tokens of choice->echo, which precede the text */
    uint32_t echo_from, echo_to;
    /* part of the parsed text of a stream; or NULL */
    const struct output_piece *part;
    /* last: with the finish reason; in a stream such a piece has no text */
    bool first, last;
};

struct endpoint;
struct writer;

struct writer_usage {
    uint32_t prompt, cached, output, reasoning;
    /* tokens of the prompt that are rows of pictures */
    uint32_t pictures;
    /* tokens of speculation: proposed, and kept */
    uint32_t drafted, accepted;
    /* drafted from the request's prediction, and accepted of them */
    uint32_t predicted, predicted_accepted;
};

/* Invariants: with an exchange, exchange->state is this writer; without one the writer exists only
 * until its job or the pool has finished; head_sent implies that the answer is a stream;
 * writing implies that all generations are DONE. */
struct writer {
    const struct endpoint *endpoint;
    /* NULL: the client is gone, or was answered */
    struct exchange *exchange;
    /* Copies of the exchange's, for endpoint.whole(), which may run on the pool when the client is
     * gone. */
    const struct route *route;
    int64_t started_ns;
    struct prompt_job job;
    struct waiter waiter;
    struct choice *choices;
    uint32_t n_choices;
    char id[48];
    int64_t created;
    /* the head and the endpoint's first events were sent (exchange.stream: the head was) */
    bool head_sent;
    /* tokens, with alternatives, that this turn has written into the stream */
    size_t n_told;
    /* A whole answer that takes long to write is written on the pool. */
    struct job task;
    struct buf whole;
    /* to be inserted in it */
    struct splices refs;
    int whole_error;
    /* the pool writes the answer: the generations are done, and nothing may change */
    bool writing;
    /* Current block of the stream, for endpoints whose answers have blocks. */
    struct {
        /* blocks that have begun */
        uint32_t n;
        bool open;
        enum output_kind kind;
        /* bytes of reasoning so far, and before this block */
        size_t reasoned, from;
        /* output tokens whose log probabilities were written */
        uint32_t n_tokens;
    } block;
};

/* Implements route.serve: answers @x, whose body the route's endpoint reads, with generated text.
 * On the loop's thread; ends the exchange now or later. */
void writer_serve(struct exchange *x, struct http *h);

/* Returns the tokens so far, for the endpoints. A prompt counts once, even if it has several
 * choices. */
struct writer_usage writer_usage(const struct writer *w);
/* Returns the piece that is all of @c, whose generation is done, in place @index of the answer. */
struct piece writer_whole_piece(struct choice *c, uint32_t index);
/* Sorts the choices of each prompt, the best first. */
void writer_sort(struct writer *w);
/* Sends a comment to a silent stream that says why its first generation without a token waits.
 * Returns false if there is no such generation, or the dialect has no comments; nothing is sent
 * then. */
bool writer_send_wait(struct writer *w);
