/*
 * Items that this server does not write: conversations that began at another service have them, and
 * an agent cannot take them back. A call of a tool that ran there is read as a call with its
 * result. Other items are read as their text where they have some, else as a note that names their
 * type, so that no type of item makes a request fail.
 */

#include "api/generation/foreign.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/opaque_reasoning.h"
#include "api/responses/build.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

/* ---- calls ---- */

/* Tools of services whose call has a type of its own. */
static const struct {
    const char *type, *tool;
    /* members that are the arguments */
    const char *args[2];
    /* the item holds the result, too */
    bool finished;
} calls[] = {
    {"code_interpreter_call", "code_interpreter", {"code"}, true},
    {"file_search_call", "file_search", {"queries"}, true},
    {"computer_call", "computer", {"action", "actions"}, false},
    {"program", "program", {"code"}, false},
};

/* Returns the id of the call @item, by which its result finds it; a call without an id gets one
 * here. */
static const char *foreign_id(struct responses_build *b, yyjson_val *item) {
    yyjson_val *id = yyjson_obj_get(item, "call_id");
    char made[40];

    if (!json_is_name(id, SIZE_MAX))
        id = yyjson_obj_get(item, "id");
    if (json_is_name(id, SIZE_MAX))
        return arena_strndup(&b->rs->arena, json_text(id), json_len(id));
    snprintf(made, sizeof(made), "call_%zu", b->i);
    return arena_strndup(&b->rs->arena, made, strlen(made));
}

static int add_finished(struct responses_build *b, yyjson_val *item, const char *name,
                        yyjson_mut_val *args) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    const char *id = foreign_id(b, item);

    TRY(id ? responses_add_call(b, id, name, args) : -ENOMEM);
    TRY(foreign_text(&text, item));
    return responses_add_result(b, id, name, &text);
}

/* Reads a call of a tool in `calls`. Returns 1 if @item is none. */
static int foreign_read_call(struct responses_build *b, yyjson_val *item) {
    yyjson_mut_val *args = yyjson_mut_obj(b->doc);
    size_t at = 0;

    while (at < ARRAY_SIZE(calls) && !json_has(item, "type", calls[at].type))
        at++;
    if (at == ARRAY_SIZE(calls))
        return 1;
    for (size_t i = 0; i < ARRAY_SIZE(calls[at].args) && calls[at].args[i]; i++)
        json_put_copy(b->doc, args, calls[at].args[i], yyjson_obj_get(item, calls[at].args[i]));
    if (calls[at].finished)
        return add_finished(b, item, calls[at].tool, args);
    const char *id = foreign_id(b, item);
    if (!id)
        return -ENOMEM;
    return responses_add_call(b, id, calls[at].tool, args);
}

/* Reads a call of an MCP server that the service reached itself. */
static int read_mcp_call(struct responses_build *b, yyjson_val *item) {
    yyjson_val *name = yyjson_obj_get(item, "name"), *args = yyjson_obj_get(item, "arguments");
    yyjson_val *server = yyjson_obj_get(item, "server_label");

    if (!json_is_name(name, SIZE_MAX))
        return responses_refuse_item(b, ".name", "must be a string without NUL");
    const char *s = yyjson_is_str(args) ? json_text(args) : "{}";
    size_t len = yyjson_is_str(args) ? json_len(args) : strlen(s);
    const char *flat = responses_flat_name(b, server, name);
    if (!flat)
        return -ENOMEM;
    return add_finished(b, item, flat, yyjson_mut_strncpy(b->doc, s, len));
}

/* ---- other items ---- */

/* Reads a summary of the conversation so far. A summary of another service is encrypted. */
static int read_compaction(struct responses_build *b, yyjson_val *item) {
    yyjson_val *sealed = yyjson_obj_get(item, "encrypted_content");
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    TRY(buf_add_str(&text, "Summary of the conversation until here:\n\n"));
    if (!opaque_reasoning_is_ours(json_text(sealed), json_len(sealed))) {
        TRY(buf_add_str(&text, "(It was written by another service and cannot be read here.)"));
        return responses_add_user(b, &text);
    }
    int r = opaque_reasoning_read(&text, json_text(sealed), json_len(sealed));
    if (r == -EINVAL)
        return responses_refuse_item(b, ".encrypted_content",
                                     "was not written by this server; send it back as it was "
                                     "received");
    TRY(r);
    return responses_add_user(b, &text);
}

/* Reads a message from one agent to another. */
static int read_agent_message(struct responses_build *b, yyjson_val *item) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    const char *author = json_cstr(yyjson_obj_get(item, "author"));

    TRY(buf_printf(&text, "Message from %s:\n", text_or(author, "another agent")));
    size_t head = text.len;
    TRY(foreign_text(&text, yyjson_obj_get(item, "content")));
    if (text.len == head)
        TRY(buf_add_str(&text, "(It cannot be read here.)"));
    return responses_add_user(b, &text);
}

static int read_approval(struct responses_build *b, yyjson_val *item) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    bool yes = yyjson_is_true(yyjson_obj_get(item, "approve"));

    TRY(buf_printf(&text, "(The call was %sapproved.)", yes ? "" : "not "));
    TRY(foreign_text(&text, yyjson_obj_get(item, "reason")));
    return responses_add_user(b, &text);
}

static int read_approval_request(struct responses_build *b, yyjson_val *item) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    const char *name = json_cstr(yyjson_obj_get(item, "name"));

    TRY(buf_printf(&text, "(Asked for approval to call %.256s.)", text_or(name, "a tool")));
    return responses_say(b, &text);
}

/* Reads an item of a type that is not known. An output belongs to its call; any other item without
 * a role is taken for the assistant's. */
static int read_unknown(struct responses_build *b, yyjson_val *item) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_val *id = yyjson_obj_get(item, "call_id"), *role = yyjson_obj_get(item, "role");
    const char *type = json_cstr(yyjson_obj_get(item, "type"));
    const char *call =
        yyjson_is_str(id) ? call_table_find(&b->calls, json_text(id), json_len(id)) : NULL;

    TRY(foreign_text(&text, item));
    if (!text.len)
        TRY(buf_printf(&text, "(An item of type %.64s, which this model cannot see.)",
                       text_or(type, "unknown")));
    if (call && type && strstr(type, "output"))
        return responses_add_result(b, foreign_id(b, item), call, &text);
    if (yyjson_is_str(role) && !yyjson_equals_str(role, "assistant"))
        return responses_add_user(b, &text);
    return responses_say(b, &text);
}

int responses_foreign(struct responses_build *b, yyjson_val *item) {
    static const struct {
        /* separated by blanks */
        const char *types;
        int (*read)(struct responses_build *b, yyjson_val *item);
    } kinds[] = {
        {"mcp_call", read_mcp_call},
        {"mcp_approval_request", read_approval_request},
        {"mcp_approval_response", read_approval},
        {"agent_message", read_agent_message},
        {"compaction compaction_summary context_compaction", read_compaction},
    };
    int r = foreign_read_call(b, item);

    for (size_t i = 0; i < ARRAY_SIZE(kinds) && r == 1; i++)
        if (json_has(item, "type", kinds[i].types))
            return kinds[i].read(b, item);
    if (r != 1)
        return r;
    return read_unknown(b, item);
}
