#pragma once

/*
 * writer - a request for generations and the answer made of them, whole or as a stream. chat.c and
 * completions.c give it its form; everything else is the same for both: admission, one generation for
 * each prompt and choice, the head only when the worker has accepted all, errors, usage, order.
 *
 * The order of a stream: the role of each choice (chat), texts, one chunk with finish_reason for each
 * choice, the usage if asked for, [DONE]. Output is pulled: when the client is slow nothing is written
 * and tokens wait in their generation.
 */

#include "api/limits/admit.h"
#include "api/http/exchange.h"
#include "api/generation/custom.h"
#include "api/generation/echo.h"
#include "api/generation/gen.h"
#include "api/http/json.h"
#include "api/generation/prompt_job.h"

struct choice {
    struct gen *gen;
    size_t text_sent;
    struct output_at at; /* the same where the text is taken apart */
    uint32_t n_sent;     /* output tokens */
    uint64_t n_chars;    /* of the text before token n_sent, for text_offset */
    struct echo *echo;   /* goes before the text; NULL: nothing does */
    bool finish_sent;
    struct custom_text custom; /* of the call that is being told, if its tool takes text */
};

/* A piece of one choice: its text [text, text + len) and output tokens [from, to). */
struct piece {
    struct choice *choice;
    uint32_t index, from, to;
    const char *text;
    size_t len;
    const struct output_piece *part; /* of a stream whose text is taken apart */
    bool first, last; /* last: with the finish reason; in a stream such a piece has no text */
};

struct writer;

/* Of a form that is not made of OpenAI's choices. It has one generation, whose text is always taken
 * apart. */
struct writer_events {
    void (*begin)(struct writer *w); /* after the head */
    /* What is new: @p->part, or the end, with @p->last. */
    void (*piece)(struct writer *w, const struct piece *p);
    void (*end)(struct writer *w); /* everything is sent */
    void (*whole)(struct json *j, const struct writer *w);
    /* The next four may be NULL. A 400 about w prompt of @n tokens, which fills all of @context. */
    int (*too_long)(const char *field, size_t n, uint32_t context, struct err *err);
    /* Before the body is worked on: 0 or -ENOMEM. */
    int (*prepare)(struct writer *w);
    /* The answer fails: @err may be put into other words. In w stream that has begun it may be told
     * here, which is answered with true. */
    bool (*fail)(struct writer *w, struct err *err);
    void (*alive)(struct writer *w); /* w stream has been silent for keepalive_ms */
};

struct writer_form {
    enum gen_request_kind kind;
    const char *id_prefix, *object, *chunk_object;
    bool has_role;           /* the first piece of each choice is empty */
    uint32_t default_tokens; /* max_tokens when not given; 0: the service's default */
    /* Writes the members of w choice between index and logprobs, and logprobs' value. */
    void (*content)(struct json *j, const struct writer *w, const struct piece *p, bool stream);
    void (*logprobs)(struct json *j, const struct writer *w, const struct piece *p);
    const struct writer_events *events; /* NULL: choices, as above */
};

struct writer_usage {
    uint32_t prompt, cached, output, reasoning;
    uint32_t predicted, predicted_accepted; /* tokens drafted from the request's prediction */
};

struct writer {
    const struct writer_form *form;
    struct exchange *exchange; /* NULL: the client is gone, or was answered */
    struct prompt_job job;
    struct waiter waiter;
    struct choice *choices;
    uint32_t n_choices;
    char id[48];
    int64_t created;
    bool head_sent;
    /* Of a form with events: the block that the stream is in. */
    struct {
        uint32_t n; /* blocks that have begun */
        bool open;
        enum output_kind kind;
        size_t reasoned, from; /* bytes of reasoning so far, and before this block */
    } block;
};

void writer_serve(struct exchange *x, const struct writer_form *form);

/* For the forms: tokens so far. A prompt counts once, however many choices it has. */
struct writer_usage writer_usage(const struct writer *w);
/* vLLM's list of what is told of the prompt of @g. */
void writer_put_prompt(struct json *j, const struct writer *w, const struct gen *g);
/* For each prompt the best of its choices come first, best first. */
void writer_sort(struct writer *w);
uint64_t writer_chars(const char *s, size_t len);
/* Text and bytes of a token in logprobs. */
const char *writer_token(const struct writer *w, int32_t id, size_t *len);
