#pragma once

/*
 * writer - a request for generations and the answer made of them, whole or as a stream. chat.c and
 * completions.c give it its form; everything else is the same for both: admission, one generation
 * for each prompt and choice, the head only when the worker has accepted all, errors, usage, order.
 *
 * The order of a stream: the role of each choice (chat), texts, one chunk with finish_reason for
 * each choice, the usage if asked for, [DONE]. Output is pulled: when the client is slow nothing is
 * written and tokens wait in their generation.
 */

#include "api/limits/admit.h"
#include "api/http/exchange.h"
#include "api/generation/custom.h"
#include "api/generation/echo.h"
#include "api/generation/gen.h"
#include "api/http/json.h"
#include "api/generation/prompt_job.h"

/* One generation of the answer and what of it was sent: text_sent <= gen->ready, n_sent <=
 * gen->n_out, n_echoed <= echo->n; finish_sent is the last thing that happens to it. */
struct choice {
    struct gen *gen;
    size_t text_sent;
    struct output_at at;       /* position in the parsed text, if the text is parsed */
    uint32_t n_sent;           /* output tokens */
    uint64_t n_chars;          /* characters of the text before token n_sent, for text_offset */
    struct echo *echo;         /* goes before the text; NULL: nothing does */
    uint32_t n_echoed;         /* tokens of it that have been written */
    bool begun, finish_sent;   /* the first piece was written; the last one was */
    double mean_logprob;       /* by which writer_sort() has sorted it */
    struct custom_text custom; /* text of the open call, if its tool takes text */
};

/* A piece of one choice: its text [text, text + len) and output tokens [from, to). */
struct piece {
    struct choice *choice;
    uint32_t index, from, to;
    const char *text;
    size_t len;
    uint32_t echo_from, echo_to;     /* tokens of choice->echo, which precede the text */
    const struct output_piece *part; /* part of the parsed text of a stream; or NULL */
    bool first, last; /* last: with the finish reason; in a stream such a piece has no text */
};

struct endpoint;
struct writer;

struct writer_usage {
    uint32_t prompt, cached, output, reasoning;
    uint32_t pictures;          /* tokens of the prompt that are rows of pictures */
    uint32_t drafted, accepted; /* tokens of speculation: proposed, and kept */
    /* drafted from the request's prediction, and accepted of them */
    uint32_t predicted, predicted_accepted;
};

/* Invariants: with an exchange, exchange->state is this writer; without one it is there only until
 * its job or the pool is done with it; head_sent and waited imply that the answer is a stream;
 * writing implies that all generations are DONE. */
struct writer {
    const struct endpoint *endpoint;
    struct exchange *exchange; /* NULL: the client is gone, or was answered */
    struct prompt_job job;
    struct waiter waiter;
    struct choice *choices;
    uint32_t n_choices;
    char id[48];
    int64_t created;
    bool head_sent; /* with what the endpoint begins with */
    bool waited;    /* the head alone was sent while the model was loaded */
    size_t n_told;  /* tokens, with alternatives, that this turn has written into the stream */
    /* A whole answer that takes long to write is written on the pool. */
    struct job task;
    struct buf whole;
    int whole_error;
    bool writing; /* the pool has it: the generations are done, and nothing of it may change */
    /* For endpoints whose answers have blocks: the block that the stream is in. */
    struct {
        uint32_t n; /* blocks that have begun */
        bool open;
        enum output_kind kind;
        size_t reasoned, from; /* bytes of reasoning so far, and before this block */
        uint32_t n_tokens;     /* output tokens whose log probabilities were written */
    } block;
};

/* route.serve: answers @x, whose body the route's endpoint reads, with what is generated. On the
 * loop's thread; ends the exchange now or later. */
void writer_serve(struct exchange *x, struct http *h);

/* For the forms: tokens so far. A prompt counts once, however many choices it has. */
struct writer_usage writer_usage(const struct writer *w);
/* For each prompt the best of its choices come first, best first. */
void writer_sort(struct writer *w);
/* Tells a silent stream of events, in a comment, what its first generation without a token waits
 * for. False: it has none, or its dialect no comments; nothing was sent. */
bool writer_tell_wait(struct writer *w);
