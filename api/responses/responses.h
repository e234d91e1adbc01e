#pragma once

/*
 * responses - OpenAI's Responses API (/v1/responses) over the machinery of chats: the request
 * becomes the body of a chat (input.c, items.c, tools.c), the output of its one generation becomes
 * items, whole (responses.c) or as a stream of events (stream.c), and responses that a client may
 * refer to later are kept in memory (store.c).
 */

#include "api/generation/custom.h"
#include "api/generation/writer.h"
#include "api/responses/logprobs.h"
#include "api/responses/native.h"
#include "api/responses/store.h"
#include "base/arena.h"

struct endpoint;

#define RESPONSES_ID_PREFIX "resp_"
#define RESPONSES_ID_HEX 24u /* hex digits of an id */

/* A tool that is offered to the model as the function `name`. */
struct responses_tool {
    const char *name;
    /* namespace and name for the client; NULL: `name` */
    const char *ns, *own;
    /* takes a text instead of an object */
    bool custom;
    const struct responses_native *native;
};

/* One request, from its body to its answer. */
struct responses {
    /* api.responses: those under way; what only counts tokens is not in it */
    struct list link;
    struct gen_env *env;
    /* once the body is read */
    const struct model *model;
    uint32_t tenant;
    /* NULL: it only counts tokens */
    struct writer *writer;
    /* reports a prompt that is too long in the stream */
    bool streams_errors;
    /* came over a WebSocket, which remembers the last response */
    bool framed;
    /* that response, or NULL */
    struct stored *last;
    struct arena arena;

    /* Fields of the request, set when its body was read. */
    bool store;
    /* only the prompt is computed */
    bool warms;
    /* continues without its client */
    bool background;
    /* reasoning is reported as its summary */
    bool summary;
    /* length in tokens from which on the prompt is shortened; 0: never */
    uint32_t compact_from;
    /* the answer is a summary of the conversation */
    bool compacts;
    /* asks for log probabilities of messages */
    bool wants_logprobs;
    /* reasoning items contain the encoded reasoning, which later requests send back */
    bool encrypted;
    /* response that it continues */
    struct stored *parent;
    /* conversation as it was when the body was read */
    struct stored *conversation;
    /* prevents other responses from adding to `conversation` */
    bool locks;
    struct responses_tool *tools;
    uint32_t n_tools;
    /* head and output, once reported */
    struct stored_parts kept;

    /* State of the stream. */
    uint64_t sequence;
    /* an item is open */
    bool open;
    /* index of its run; UINT32_MAX: the empty message */
    uint32_t run;
    bool cancelled;
    struct custom_text custom;
    struct logprobs logprobs;
    /* events of one in the background, from its answer on */
    struct event_log *log;
    /* bytes of it that store.n_logged has */
    size_t n_logged;
    /* row of one in the background; or NULL */
    struct stored *promise;
};

/* Makes the state of a request without a writer. NULL: no memory. */
struct responses *responses_new(struct exchange *x);
struct responses *responses_free(struct responses *rs); /* accepts NULL */
/* endpoint.open and .close: the state of a job. */
int responses_open(struct prompt_job *job, struct exchange *x, struct writer *w);
void responses_close(struct prompt_job *job);
static inline struct responses *responses_of(const struct writer *w) {
    return w->job.state;
}
/* Returns the response under way with this id, or NULL. */
struct responses *responses_find(struct gen_env *env, uint32_t tenant, const char *id);

/* input.c: endpoint.translate, into the chat that the body asks for. */
int responses_translate(struct prompt_job *job, yyjson_doc *body, struct err *err);
/* Translates the body of /v1/responses/compact, whose answer is a summary that is not stored. */
int responses_translate_compact(struct prompt_job *job, yyjson_doc *body, struct err *err);
/* Reads @items, an array named @field, as the items behind rs->parent, into rs->kept. On any
 * thread. */
int responses_read_items(struct responses *rs, yyjson_val *items, const char *field,
                         struct err *err);
/* Returns true if @v is an object of few short strings. */
bool responses_is_metadata(yyjson_val *v);
/* Rewrites a message about a chat's field in the terms of this API. */
void responses_rename(struct err *err);

/* tools.c */
const struct responses_tool *responses_find_tool(const struct responses *rs, const char *name);

/* responses.c */
enum responses_status { RESPONSES_QUEUED, RESPONSES_IN_PROGRESS, RESPONSES_DONE, RESPONSES_FAILED };
/* Writes the response object, in which *@head is the place where it begins to repeat the request.
 * @err for RESPONSES_FAILED. */
void responses_put(struct json *j, const struct writer *w, enum responses_status status,
                   const struct err *err, size_t *head);
/* Answers @x with the response as it stands. Ends the exchange. */
void responses_answer(struct exchange *x, const struct writer *w, enum responses_status status);
/* Writes an item of the output: run @run as number @i, @finished or as it begins. */
void responses_put_item(struct json *j, const struct writer *w, uint32_t run, uint32_t i,
                        bool finished);
/* Writes the empty message of an output without text and calls. */
void responses_put_empty(struct json *j, const struct writer *w, uint32_t i, bool finished);
/* Returns true if @run is an item: a run without text is not, and a summary is the only item of its
 * response. */
bool responses_is_item(const struct writer *w, const struct output_run *run);
/* Returns the index in the output of run @run; for the number of runs, the index behind all
 * items. */
uint32_t responses_number(const struct writer *w, uint32_t run);
/* Returns true if the finished output lacks a message and calls. */
bool responses_needs_empty(const struct writer *w);
/* "msg_..", of run @run (NULL: a message) as number @i. */
void responses_item_id(const struct writer *w, const struct output_run *run, uint32_t i, char *out,
                       size_t size);
bool responses_is_native(const struct writer *w, const struct output_run *run);
/* Returns the call's name for the client. */
const char *responses_call_name(const struct writer *w, const struct output_run *run);
bool responses_is_custom(const struct writer *w, const struct output_run *run);
/* Writes a part of a message or of reasoning, of run @run (NULL: an empty message). @len may be
 * less than that of the run. */
void responses_put_part(struct json *j, const struct writer *w, const struct output_run *run,
                        const char *type, const char *text, size_t len);
/* Writes the member "logprobs" of a message's part, which is the first @len bytes of run @run, or
 * NULL. */
void responses_put_logprobs(struct json *j, const struct writer *w, const struct output_run *run,
                            size_t len);
/* Writes the answer of /v1/responses/compact: items that replace the conversation. */
void responses_put_compacted(struct json *j, struct writer *w);

/* stream.c */
/* Writes the events before the head of a response in the background. */
void responses_stream_queued(struct writer *w);
void responses_stream_begin(struct writer *w);
void responses_stream_piece(struct writer *w, const struct piece *p);
void responses_stream_end(struct writer *w);
bool responses_stream_fail(struct writer *w, const struct err *err);
void responses_stream_alive(struct writer *w);

/* serve.c */
/* Keeps the finished response, if the request asked for it, or for the WebSocket over which it is
 * sent: the text of @j, with what was inserted, from @from up to @head of responses_put(), which
 * must not be called again. */
void responses_store(const struct writer *w, const struct json *j, size_t from, size_t head);
/* route.serve */
void responses_serve(struct exchange *x, struct http *h);
extern const struct endpoint responses_endpoint, responses_compact;
