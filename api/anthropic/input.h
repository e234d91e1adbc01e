#pragma once

/*
 * anthropic_input - translates the body of a Messages request to that of a chat completion, so that
 * the rest of the code exists once. Errors of the body are refused here with the names of Messages
 * ("messages.3.content.0.text: must be a string.").
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/anthropic/tool_search.h"
#include "api/generation/content.h"
#include "api/http/json_build.h"
#include "base/buf.h"
#include "base/err.h"

struct gen_env;

/* Times for which cache_control asks prefixes to be kept. */
enum cache_wish { CACHE_NONE, CACHE_5M, CACHE_1H };

#define ANTHROPIC_CALLS_MAX 128u /* calls of a turn for which results are matched */
#define ANTHROPIC_NO_THREADS "thread_unsupported_request" /* a code that clients know */

/* State of a translation. Invariants (turns.c): without a message role is "" and parts, calls,
 * reasoning and result are empty; result is a tool's, reasoning the assistant's. */
struct anthropic_input {
    yyjson_mut_doc *doc;
    /* memory was short for it */
    bool failed;
    /* the chat's body */
    yyjson_mut_val *root;
    struct err *err;
    /* path of the value being read, for messages */
    char place[112];
    /* tools of the chat */
    yyjson_mut_val *tools;
    uint32_t n_looked_up;
    /* one of the tools is deferred */
    bool defers;
    /* searches that the request offers, with deferred tools to find */
    bool offered[TOOL_SEARCH_KINDS];

    /* turns.c */
    /* messages */
    yyjson_mut_val *list;
    /* number of the first messages, which no summary replaces */
    size_t n_system;
    /* the last message, which may still grow; NULL: none */
    yyjson_mut_val *message;
    /* content of `message` */
    yyjson_mut_val *parts;
    /* tool_calls of `message` */
    yyjson_mut_val *calls;
    /* messages of the body before the one that is read */
    size_t n_turns;
    /* role of `message`, or "" */
    const char *role;
    /* content of the assistant's last message, where calls have names */
    yyjson_val *asked;
    /* Calls of the assistant's last turns that lack a result. */
    struct {
        yyjson_val *id[ANTHROPIC_CALLS_MAX];
        uint32_t n;
        /* there are others, which are not checked */
        bool more;
        /* a message of the user has followed */
        bool replied;
        /* number of the last message with a call */
        size_t turn;
    } open;
    /* reasoning of `message` */
    struct buf reasoning;
    /* content of a message of a tool */
    struct content result;
};

/* Makes the body of the chat, *out, and leaves @body unchanged. If the last message is the
 * assistant's, which the answer is to continue, its text is added to @prefill instead. @count: for
 * count_tokens, which needs no max_tokens. @offered, or NULL, receives the searches that the model
 * may call. Returns 0, -ENOMEM, or a 400 that names the field (404 for an unknown model). */
int anthropic_translate(const struct gen_env *env, yyjson_doc *body, bool count, yyjson_doc **out,
                        struct buf *prefill, bool offered[TOOL_SEARCH_KINDS], struct err *err);
/* Returns true if @body only asks to put its prompt into the prefix cache: the chat then generates
 * one token, which is not sent. */
bool anthropic_warms(yyjson_val *body);
/* Returns the longest cache_control of @body: in itself, its tools, its system prompt and its
 * messages. */
enum cache_wish anthropic_cache_wish(yyjson_val *body);
/* Rewrites a message about a chat's field in the terms of Messages. */
void anthropic_rename(struct err *err);

/* ---- between the files ---- */

/* Refuses with a 400: "PLACE.FIELD: MUST." Returns -ENOMEM if memory was short before. */
int anthropic_refuse(struct anthropic_input *in, const char *field, const char *must);
void anthropic_place(struct anthropic_input *in, const char *place);

/* Returns true if @name is served, or is a name built into Anthropic's clients, which they also use
 * for small background requests. */
bool anthropic_is_served(const struct gen_env *env, const char *name);

/* tools.c: before the turns; NULL: none */
int anthropic_tools(struct anthropic_input *in, yyjson_val *tools);
int anthropic_tool_choice(struct anthropic_input *in, const char *key, yyjson_val *v);
/* Adds the text that announces the tool @name to the model among the turns. */
int anthropic_show_tool(struct anthropic_input *in, yyjson_val *name, struct buf *out);
/* Handles a block that adds or removes a tool: registers the change, and adds the text that
 * announces it to the model. */
int anthropic_change_tools(struct anthropic_input *in, yyjson_val *block, bool add,
                           struct buf *out);

/* blocks.c. Handles one content block; @to is the caller's context. */
typedef int (*anthropic_taker)(struct anthropic_input *in, yyjson_val *block, const char *type,
                               void *to);
/* Calls @f for block @i of the place, or for each block of the array @blocks, which is at @field of
 * the place; checks that it is a block. */
int anthropic_block(struct anthropic_input *in, yyjson_val *block, size_t i, anthropic_taker f,
                    void *to);
int anthropic_each(struct anthropic_input *in, yyjson_val *blocks, const char *field,
                   anthropic_taker f, void *to);
/* Handles text blocks only: adds each as a line to the buffer @to. */
int anthropic_plain(struct anthropic_input *in, yyjson_val *block, const char *type, void *to);
/* Adds the value of @field, which must be a string, to @out. */
int anthropic_string(struct anthropic_input *in, yyjson_val *v, const char *field, struct buf *out);
/* Adds the text of a block of the user or of a tool (@result) to @out. Returns 1 for a document of
 * the user that is not text. */
int anthropic_text(struct anthropic_input *in, yyjson_val *block, const char *type, bool result,
                   struct buf *out);

/* Adds the picture of a block of type image. Returns false where it is a file of another
 * service. */
bool anthropic_picture(struct anthropic_input *in, yyjson_val *block, struct content *to);

/* turns.c */
int anthropic_system(struct anthropic_input *in, yyjson_val *system);
int anthropic_turns(struct anthropic_input *in, yyjson_val *messages, struct buf *prefill);
