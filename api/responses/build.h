#pragma once

/*
 * build - state of the translation of a Responses request to a chat's body, shared by input.c,
 * items.c and tools.c. Everything is copied into `doc`.
 */

#include "api/http/json_build.h"
#include "api/responses/call_table.h"
#include "api/responses/responses.h"

struct responses_build {
    struct responses *rs;
    struct err *err;
    /* the chat's body */
    yyjson_mut_doc *doc;
    /* memory was short for it */
    bool failed;
    /* in it */
    yyjson_mut_val *messages;

    /* items.c */
    /* the item being read */
    size_t i;
    /* the item comes from the store */
    bool past;
    /* on the loop: little may be read from the store */
    bool quick;
    /* bytes of stored items, in all */
    size_t n_asked;
    /* an item other than instructions was read */
    bool begun;
    /* instructions, until then */
    struct buf system;
    struct { /* assistant message being collected; empty unless open */
        bool open;
        struct buf content, reasoning;
        yyjson_mut_val *calls;
    } turn;
    struct call_table calls;

    /* tools.c */
    /* tools of the chat */
    yyjson_mut_val *tools;
    /* for which rs->tools has room */
    uint32_t tools_cap;
    /* tools of items, in all */
    size_t n_item_tools;
    /* an item's tools are being added */
    bool in_item;
    /* the result of the search that found them; NULL: none did */
    struct buf *found;
};

/* Refuses with a 400 about field @param; returns -ENOMEM if memory was short before. */
int responses_refuse(const struct responses_build *b, const char *param, const char *must);

/* items.c: adds messages. */
/* Refuses with a 400 about @place of the current item. */
int responses_refuse_item(const struct responses_build *b, const char *place, const char *must);
/* Adds text to the assistant's message. */
int responses_say(struct responses_build *b, const struct buf *text);
int responses_add_user(struct responses_build *b, const struct buf *text);
/* Adds a call with @args, a string of JSON or an object; @id and @name live as long as the
 * request. */
int responses_add_call(struct responses_build *b, const char *id, const char *name,
                       yyjson_mut_val *args);
int responses_add_result(struct responses_build *b, const char *id, const char *name,
                         const struct buf *text);
int responses_instructions(struct responses_build *b, const char *text, size_t len);
/* Adds the messages of @items; @keep: also writes the items to rs->kept. */
int responses_items(struct responses_build *b, yyjson_val *items, bool keep);
/* Adds the items of @p, its output or its input, as the past of this conversation. */
int responses_past(struct responses_build *b, const struct stored_parts *p, bool output);
/* Counts @n bytes of stored items that the request, in its field @param, has to have read. -EAGAIN:
 * too many for the loop; -EINVAL: for any request. */
int responses_ask_for(struct responses_build *b, size_t n, const char *param);
int responses_items_end(struct responses_build *b);

/* foreign.c: adds the text of an item of a kind that this server does not write. */
int responses_foreign(struct responses_build *b, yyjson_val *item);

/* tools.c: the tools and the choice among them as a chat's; they are kept in @b->rs. First those of
 * the request (NULL: none), then those of items, then all go into the chat. */
int responses_tools(struct responses_build *b, yyjson_val *tools);
/* Adds the tools of an item. @found: a search has found them, and they are described there; NULL:
 * they are shown with those of the request. */
int responses_item_tools(struct responses_build *b, yyjson_val *tools, struct buf *found);
void responses_tools_end(struct responses_build *b, yyjson_mut_val *root);
int responses_tool_choice(struct responses_build *b, yyjson_val *choice, yyjson_mut_val *root);
/* Returns the name under which the model knows tool @name, a json_is_name(), of namespace @ns (no
 * string: none), in the arena. NULL: no memory. */
const char *responses_flat_name(struct responses_build *b, yyjson_val *ns, yyjson_val *name);
