/*
 * Turns of a Messages conversation as messages of a chat. There a turn is a list of blocks: text,
 * what the model thought, calls, and in the user's turns the results of calls. Here results are
 * messages of their own, and a message of the assistant has its text, reasoning and calls in three
 * places. Turns of one side that follow each other are one, as Anthropic does it: many templates
 * want them to alternate.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/anthropic/input.h"
#include "api/generation/foreign.h"
#include "api/generation/opaque_reasoning.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"
#include "base/util.h"

#define CALLS_MAX ANTHROPIC_CALLS_MAX

/* Returns a string as it is; NULL is the empty one. */
static yyjson_mut_val *turns_text(struct anthropic_input *in, yyjson_val *v) {
    return yyjson_mut_strn(in->doc, text_or(json_text(v), ""), json_len(v));
}

/* Asserts the invariants of the last message. */
static void turns_check(const struct anthropic_input *in) {
    assert(*in->role || (!in->message && !in->parts && !in->calls));
    assert((in->result.text.len == 0 && !in->result.parts) || strcmp(in->role, "tool") == 0);
    assert(in->reasoning.len == 0 || strcmp(in->role, "assistant") == 0);
}

/* Adds the parts that the message still lacks. */
static void end_message(struct anthropic_input *in) {
    turns_check(in);
    if (in->reasoning.len)
        yyjson_mut_obj_add_val(in->doc, in->message, "reasoning_content",
                               json_text_of(in->doc, &in->reasoning));
    if (strcmp(in->role, "tool") == 0)
        yyjson_mut_obj_add_val(in->doc, in->message, "content",
                               content_finish(&in->result, in->doc));
    buf_clear(&in->reasoning);
    in->message = in->parts = in->calls = NULL;
    in->role = "";
}

/* Sets in->message to the message of @role to which the next block belongs: the last one, or a new
 * one. */
static void need_message(struct anthropic_input *in, const char *role) {
    if (strcmp(in->role, role) == 0)
        return;
    end_message(in);
    in->parts = yyjson_mut_arr(in->doc);
    in->message =
        json_make(in->doc, "{role:%, content:%}", yyjson_mut_str(in->doc, role), in->parts);
    yyjson_mut_arr_append(in->list, in->message);
    in->role = role;
}

static int turns_add_part(struct anthropic_input *in, const char *role, yyjson_mut_val *text) {
    need_message(in, role);
    yyjson_mut_arr_append(in->parts, json_make(in->doc, "{type:'text', text:%}", text));
    return 0;
}

/* ---- results of calls ---- */

/* Adds the type of a block to its place, as Anthropic does: by it Claude Code finds the picture or
 * file that it has to leave out, and tries again without it. */
static void name_type(struct anthropic_input *in, const char *type) {
    static const char *const types[] = {"image", "document", "tool_result"};
    size_t len = strlen(in->place);

    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (strcmp(type, types[i]) == 0)
            snprintf(in->place + len, sizeof(in->place) - len, ".%s", type);
}

/* The content of a result while its blocks are read. */
struct result_blocks {
    struct content *all;
    /* the last block was a text */
    bool after_text;
};

/* Adds a block of a result. Texts that follow each other are one text; other blocks are lines. */
static int add_result_block(struct anthropic_input *in, yyjson_val *block, const char *type,
                            void *to) {
    struct result_blocks *blocks = to;
    struct buf *out = &blocks->all->text;
    bool is_text = strcmp(type, "text") == 0, joins = is_text && blocks->after_text;

    name_type(in, type);
    blocks->after_text = is_text;
    if (strcmp(type, "image") == 0 && anthropic_picture(in, block, blocks->all))
        return 0;
    if (out->len && !joins)
        TRY(buf_add_char(out, '\n'));
    return anthropic_text(in, block, type, true, out);
}

/* Returns true if @block is of @type and its @key is @id. */
static bool is_about(yyjson_val *block, const char *type, const char *key, yyjson_val *id) {
    return json_has(block, "type", type) && yyjson_equals(yyjson_obj_get(block, key), id);
}

/* Returns the name under which the model knows the server tool of call @block; a tool of an MCP
 * server has the server's name before its own. */
static yyjson_mut_val *server_tool_name(struct anthropic_input *in, yyjson_val *block) {
    const char *server = json_cstr(yyjson_obj_get(block, "server_name"));
    const char *name = json_cstr(yyjson_obj_get(block, "name"));
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    if (buf_printf(&text, "%s%s%s", text_or(server, ""), server ? "__" : "",
                   text_or(name, "server_tool")) < 0)
        in->failed = true;
    return json_text_of(in->doc, &text);
}

/* Returns the name of call @id in the assistant's last message; NULL: it is not there. */
static yyjson_mut_val *turns_name(struct anthropic_input *in, yyjson_val *id) {
    JSON_EACH_AT(i, block, in->asked) {
        if (i >= CALLS_MAX)
            break;
        if (is_about(block, "tool_use", "id", id))
            return turns_text(in, yyjson_obj_get(block, "name"));
        if (is_about(block, "server_tool_use mcp_tool_use", "id", id))
            return server_tool_name(in, block);
    }
    return NULL;
}

/* Marks a failed result in its text, because templates know no failed results. Most tools say it
 * there anyway. */
static int mark_error(const struct buf *text, struct buf *out) {
    bool said = text->data && strcasestr(text->data, "error");

    if (said)
        return 0;
    return buf_add_str(out, "Error: ");
}

/* Begins the message for the result of call @id, whose text is in->result until the message
 * ends. */
static void begin_result(struct anthropic_input *in, yyjson_val *id) {
    end_message(in);
    in->message = json_make(in->doc, "{role:'tool', tool_call_id:%, name:%}", turns_text(in, id),
                            turns_name(in, id));
    yyjson_mut_arr_append(in->list, in->message);
    in->role = "tool";
}

/* Reads the content of a result into @all. What is neither a text nor blocks becomes JSON. */
static int read_result(struct anthropic_input *in, yyjson_val *v, struct content *all) {
    struct result_blocks blocks = {all, false};
    size_t len = strlen(in->place);

    if (content_text(v))
        return json_add_text(&all->text, content_text(v));
    if (content_is_data(v))
        return content_add_json(&all->text, v);
    snprintf(in->place + len, sizeof(in->place) - len, ".content");
    JSON_EACH_AT(i, block, v) {
        if (content_is_odd(block))
            TRY(content_add_odd(&all->text, block));
        else
            TRY(anthropic_block(in, block, i, add_result_block, &blocks));
    }
    in->place[len] = 0;
    return 0;
}

/* ---- calls and results belong together, as at Anthropic ---- */

static void turns_open_call(struct anthropic_input *in, yyjson_val *id) {
    in->open.turn = in->n_turns;
    if (in->open.n < CALLS_MAX)
        in->open.id[in->open.n++] = id;
    else
        in->open.more = true;
}

/* Notes the result of call @id, which must be one of the assistant's last turns. */
static int close_call(struct anthropic_input *in, yyjson_val *id) {
    for (uint32_t i = 0; i < in->open.n; i++)
        if (yyjson_equals(in->open.id[i], id)) {
            in->open.id[i] = in->open.id[--in->open.n];
            return 0;
        }
    if (!in->open.more)
        return anthropic_refuse(in, ".tool_use_id",
                                "must be the id of a tool_use block in the previous "
                                "message that has no other result");
    return 0;
}

/* Ends the calls before the assistant speaks again: refuses calls that the user has left without
 * results. */
static int end_calls(struct anthropic_input *in) {
    if (!in->open.replied)
        return 0;
    if (in->open.n) {
        snprintf(in->place, sizeof(in->place), "messages.%zu", in->open.turn);
        return anthropic_refuse(in, "",
                                "has tool_use blocks without a tool_result block in the next "
                                "message");
    }
    in->open.n = 0;
    in->open.more = in->open.replied = false;
    return 0;
}

static int turns_add_result(struct anthropic_input *in, yyjson_val *block) {
    CLEANUP(content_deinit) struct content all = {.text = {.max = UINT32_MAX}};
    yyjson_val *id = yyjson_obj_get(block, "tool_use_id");
    struct buf *text = &in->result.text;

    if (!yyjson_is_str(id))
        return anthropic_refuse(in, ".tool_use_id", "must be a string");
    TRY(read_result(in, json_given(block, "content"), &all));
    TRY(close_call(in, id));
    begin_result(in, id);
    in->result.parts = all.parts;
    if (yyjson_get_bool(yyjson_obj_get(block, "is_error")))
        TRY(mark_error(&all.text, text));
    return buf_add(text, text_or(all.text.data, ""), all.text.len);
}

/* Returns true for text that the client, not the user, adds behind a result. Templates take a
 * message of the user for a new question, and then leave out the model's reasoning since the last
 * one. */
static bool is_reminder(const struct buf *text) {
    static const char *const heads[] = {"<system-reminder>", "Tool loaded."};

    for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
        size_t n = strlen(heads[i]);

        if (text->len >= n && memcmp(text->data, heads[i], n) == 0)
            return true;
    }
    return false;
}

static int add_to_result(struct anthropic_input *in, const struct buf *text, bool wrap) {
    assert(strcmp(in->role, "tool") == 0);
    const char *open = wrap ? "<system-reminder>\n" : "",
               *close = wrap ? "\n</system-reminder>" : "";

    if (in->result.text.len)
        TRY(buf_add_char(&in->result.text, '\n'));
    TRY(buf_add_str(&in->result.text, open));
    TRY(buf_add(&in->result.text, text_or(text->data, ""), text->len));
    return buf_add_str(&in->result.text, close);
}

/* Adds a call to the assistant's message. */
static void turns_put_call(struct anthropic_input *in, yyjson_val *id, yyjson_mut_val *name,
                           yyjson_mut_val *input) {
    assert(strcmp(in->role, "assistant") == 0);
    if (!in->calls) {
        in->calls = yyjson_mut_arr(in->doc);
        yyjson_mut_obj_add_val(in->doc, in->message, "tool_calls", in->calls);
    }
    yyjson_mut_arr_append(
        in->calls, json_make(in->doc, "{id:%, type:'function', function:{name:%, arguments:%}}",
                             turns_text(in, id), name, input));
}

/* ---- blocks of other services ---- */

/*
 * A conversation that began at another service has calls of tools that ran there, whose results
 * stand in the assistant's own turn. Here they become calls with their results, too. Other blocks
 * become their text, or a note that names their type.
 */

/* Returns true if the turn has a result of call @id, or has more blocks than this search reads. */
static bool has_server_result(const struct anthropic_input *in, yyjson_val *id) {
    JSON_EACH_AT(i, block, in->asked) {
        if (i >= CALLS_MAX || yyjson_equals(yyjson_obj_get(block, "tool_use_id"), id))
            return true;
    }
    return false;
}

/* Adds a call that a service made. One that it paused has no result: it gets a note as its result,
 * because the tool does not exist here. */
static int add_server_call(struct anthropic_input *in, yyjson_val *block) {
    yyjson_val *id = yyjson_obj_get(block, "id"), *input = yyjson_obj_get(block, "input");

    if (!yyjson_is_str(id))
        return anthropic_refuse(in, ".id", "must be a string");
    yyjson_mut_val *args;

    if (yyjson_is_obj(input))
        args = yyjson_val_mut_copy(in->doc, input);
    else
        args = yyjson_mut_obj(in->doc);
    need_message(in, "assistant");
    turns_put_call(in, id, server_tool_name(in, block), args);
    if (has_server_result(in, id))
        return 0;
    begin_result(in, id);
    return buf_add_str(&in->result.text, "This tool cannot be run here.");
}

static int add_reference(struct anthropic_input *in, yyjson_val *block, const char *type,
                         void *to) {
    yyjson_val *name = yyjson_obj_get(block, "tool_name");
    struct buf *out = to;

    if (!yyjson_is_str(name))
        return anthropic_refuse(in, ".tool_name", "must be a string");
    if (out->len)
        TRY(buf_add_char(out, '\n'));
    return anthropic_show_tool(in, name, out);
}

/* Writes the text of a server tool's result: the tools that a search found, or else any text in
 * it. */
static int server_result_text(struct anthropic_input *in, yyjson_val *block, struct buf *out) {
    yyjson_val *content = yyjson_obj_get(block, "content");
    yyjson_val *found = yyjson_obj_get(content, "tool_references");

    if (!yyjson_is_arr(found))
        return foreign_text(out, content);
    TRY(anthropic_each(in, found, ".content.tool_references", add_reference, out));
    if (out->len)
        return 0;
    return buf_add_str(out, "No tool was found.");
}

static int add_server_result(struct anthropic_input *in, yyjson_val *block) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_val *id = yyjson_obj_get(block, "tool_use_id");

    TRY(server_result_text(in, block, &text));
    if (!yyjson_is_str(id))
        return anthropic_refuse(in, ".tool_use_id", "must be a string");
    begin_result(in, id);
    return buf_add(&in->result.text, text_or(text.data, ""), text.len);
}

/* Replaces the earlier conversation by its summary; the system prompt stays. A block without a
 * summary records a compaction that failed. */
static int add_compaction(struct anthropic_input *in, yyjson_val *block) {
    yyjson_val *summary = yyjson_obj_get(block, "content");
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    if (!yyjson_is_str(summary))
        return 0;
    end_message(in);
    in->open.n = 0;
    yyjson_mut_arr_remove_range(in->list, in->n_system,
                                yyjson_mut_arr_size(in->list) - in->n_system);
    TRY(buf_add_str(&text, "Summary of the conversation until here:\n\n"));
    TRY(json_add_text(&text, summary));
    return turns_add_part(in, "user", json_text_of(in->doc, &text));
}

/* Reads a block that this server never writes. Returns 1 for a block of another type. */
static int add_foreign(struct anthropic_input *in, yyjson_val *block, const char *type) {
    size_t n = strlen(type), tail = strlen("_tool_result");

    if (strcmp(type, "server_tool_use") == 0 || strcmp(type, "mcp_tool_use") == 0)
        return add_server_call(in, block);
    if (n > tail && strcmp(type + n - tail, "_tool_result") == 0)
        return add_server_result(in, block);
    if (strcmp(type, "compaction") == 0)
        return add_compaction(in, block);
    if (strcmp(type, "fallback") == 0 || strcmp(type, "mcp_tool_listing") == 0)
        return 0;
    return 1;
}

/* Reads a block of the assistant that is of no known type. */
static int turns_add_unknown(struct anthropic_input *in, yyjson_val *block, const char *type) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    TRY(foreign_text(&text, block));
    if (!text.len)
        TRY(buf_printf(&text, "[%.64s: left out, this model cannot see it]", type));
    return turns_add_part(in, "assistant", json_text_of(in->doc, &text));
}

/* ---- turns ---- */

/* Adds a picture of the user. */
static int turns_add_picture(struct anthropic_input *in, yyjson_val *block) {
    struct content one = {0};

    need_message(in, "user");
    one.parts = in->parts;
    if (anthropic_picture(in, block, &one))
        return 0;
    return anthropic_refuse(in, ".source.type", "must be base64: send the picture itself");
}

/* Adds a document of the user that is not text. */
static int turns_add_file(struct anthropic_input *in) {
    struct content one = {0};
    char place[sizeof(in->place) + sizeof(".source.type")];

    need_message(in, "user");
    one.parts = in->parts;
    snprintf(place, sizeof(place), "%s.source.type", in->place);
    content_add_file(&one, in->doc, place);
    return 0;
}

static int add_user_block(struct anthropic_input *in, yyjson_val *block, const char *type,
                          void *to) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    name_type(in, type);
    if (strcmp(type, "tool_result") == 0)
        return turns_add_result(in, block);
    if (strcmp(type, "image") == 0)
        return turns_add_picture(in, block);
    int r = add_foreign(in, block, type);
    if (r <= 0)
        return r;
    r = anthropic_text(in, block, type, false, &text);
    if (r == 1)
        return turns_add_file(in);
    if (r == 0 && strcmp(in->role, "tool") == 0 && is_reminder(&text))
        return add_to_result(in, &text, false);
    TRY(r);
    return turns_add_part(in, "user", json_text_of(in->doc, &text));
}

/* Adds instructions among the turns to a result or to a message of the user: most templates refuse
 * a second system message. */
static int put_instruction(struct anthropic_input *in, const struct buf *text) {
    if (strcmp(in->role, "tool") == 0)
        return add_to_result(in, text, !is_reminder(text));
    return turns_add_part(in, "user", json_text_of(in->doc, text));
}

static int add_instruction(struct anthropic_input *in, yyjson_val *block, const char *type,
                           void *to) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    bool adds = strcmp(type, "tool_addition") == 0;

    if (adds || strcmp(type, "tool_removal") == 0)
        TRY(anthropic_change_tools(in, block, adds, &text));
    else
        TRY(anthropic_plain(in, block, type, &text));
    return put_instruction(in, &text);
}

/* Adds results in the order of their calls, whichever tool was ready first: few templates show ids,
 * so that only the order tells which call a result belongs to. Then adds the other blocks. */
static int add_user_blocks(struct anthropic_input *in, yyjson_val *content) {
    CLEANUP(freep) bool *done = calloc(yyjson_arr_size(content) + 1, sizeof(*done));

    if (!done)
        return -ENOMEM;
    JSON_EACH_AT(k, call, in->asked) {
        yyjson_val *id = yyjson_obj_get(call, "id");

        if (k >= CALLS_MAX || !is_about(call, "tool_use", "id", id))
            continue;
        JSON_EACH_AT(i, block, content) {
            if (i >= CALLS_MAX)
                break;
            if (done[i] || !is_about(block, "tool_result", "tool_use_id", id))
                continue;
            done[i] = true;
            TRY(anthropic_block(in, block, i, add_user_block, NULL));
        }
    }
    JSON_EACH_AT(i, block, content) {
        TRY(done[i] ? 0 : anthropic_block(in, block, i, add_user_block, NULL));
    }
    return 0;
}

static int turns_add_call(struct anthropic_input *in, yyjson_val *block) {
    yyjson_val *id = yyjson_obj_get(block, "id"), *name = yyjson_obj_get(block, "name");
    yyjson_val *input = json_given(block, "input");

    if (!yyjson_is_str(id))
        return anthropic_refuse(in, ".id", "must be a string");
    if (!json_cstr(name))
        return anthropic_refuse(in, ".name", "must be a string without NUL");
    turns_open_call(in, id);
    turns_put_call(in, id, turns_text(in, name), yyjson_val_mut_copy(in->doc, input));
    return 0;
}

/* Adds the model's reasoning; where the client did not want to see it, it is in the signature. */
static int add_thinking(struct anthropic_input *in, yyjson_val *block) {
    yyjson_val *text = json_given(block, "thinking");
    yyjson_val *signature = yyjson_obj_get(block, "signature");
    const char *s = json_text(signature);
    size_t len = json_len(signature);

    assert(strcmp(in->role, "assistant") == 0);
    if (in->reasoning.len)
        TRY(buf_add_char(&in->reasoning, '\n'));
    bool ours = s && opaque_reasoning_is_ours(s, len);

    if (!text && !ours)
        return 0;
    if (json_len(text) > 0 || !ours)
        return anthropic_string(in, text, ".thinking", &in->reasoning);
    int r = opaque_reasoning_read(&in->reasoning, s, len);

    if (r == -EINVAL)
        return anthropic_refuse(in, ".signature",
                                "was not written by this server; send it back as it was received");
    return r;
}

static int add_assistant_block(struct anthropic_input *in, yyjson_val *block, const char *type,
                               void *to) {
    int r = add_foreign(in, block, type);

    if (r <= 0)
        return r;
    need_message(in, "assistant");
    if (strcmp(type, "tool_use") == 0)
        return turns_add_call(in, block);
    if (strcmp(type, "redacted_thinking") == 0)
        return 0; /* made by another service, and unreadable here */
    if (strcmp(type, "thinking") == 0)
        return add_thinking(in, block);
    if (strcmp(type, "text") != 0)
        return turns_add_unknown(in, block, type);
    yyjson_val *text = content_text(block);
    if (text || !json_given(block, "text"))
        return turns_add_part(in, "assistant", turns_text(in, text));
    return anthropic_refuse(in, ".text", "must be a string");
}

static int add_system_turn(struct anthropic_input *in, yyjson_val *turn, bool before_user) {
    yyjson_val *content = json_given(turn, "content");
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};

    if (!content)
        return 0; /* only settings */
    if (before_user && json_has(turn, "clear_at", "next_user_message"))
        return 0;
    if (yyjson_is_str(content)) {
        TRY(json_add_text(&text, content));
        return put_instruction(in, &text);
    }
    if (!yyjson_is_arr(content))
        return anthropic_refuse(in, ".content", "must be a string or an array of content blocks");
    return anthropic_each(in, content, ".content", add_instruction, NULL);
}

static int add_turn(struct anthropic_input *in, yyjson_val *turn, bool before_user) {
    yyjson_val *role = yyjson_obj_get(turn, "role"), *content = yyjson_obj_get(turn, "content");
    bool assistant = yyjson_equals_str(role, "assistant");
    const char *as = assistant ? "assistant" : "user";
    size_t len = strlen(in->place);

    if (!yyjson_is_obj(turn))
        return anthropic_refuse(in, "", "must be an object");
    if (json_is(role, "system developer"))
        return add_system_turn(in, turn, before_user);
    if (!assistant && !yyjson_equals_str(role, "user"))
        return anthropic_refuse(in, ".role", "must be user, assistant or system");
    bool text = content_text(content) || yyjson_is_null(content);

    if (!text && !yyjson_is_arr(content))
        return anthropic_refuse(in, ".content", "must be a string or an array of content blocks");
    if (assistant) {
        TRY(end_calls(in));
        need_message(in, as);
        in->asked = content;
    }
    in->open.replied |= !assistant;
    if (text)
        return turns_add_part(in, as, turns_text(in, content_text(content)));
    if (assistant)
        return anthropic_each(in, content, ".content", add_assistant_block, NULL);
    snprintf(in->place + len, sizeof(in->place) - len, ".content");
    return add_user_blocks(in, content);
}

/* Reads the last, incomplete message of the assistant: the answer begins with its text. */
static int read_prefill(struct anthropic_input *in, struct buf *prefill) {
    size_t i, n;
    yyjson_mut_val *part;

    turns_check(in);
    assert(strcmp(in->role, "assistant") == 0);
    if (in->calls)
        return anthropic_refuse(in, "", "must not be the last one: its calls have no results");
    yyjson_mut_arr_foreach(in->parts, i, n, part) {
        yyjson_mut_val *text = yyjson_mut_obj_get(part, "text");

        if (i)
            TRY(buf_add_char(prefill, '\n'));
        TRY(json_mut_add_text(prefill, text));
    }
    in->message = in->parts = NULL;
    in->role = "";
    buf_clear(&in->reasoning);
    yyjson_mut_arr_remove_last(in->list);
    return 0;
}

int anthropic_turns(struct anthropic_input *in, yyjson_val *messages, struct buf *prefill) {
    size_t last_user = 0;

    assert(!in->message && yyjson_arr_size(messages) > 0);
    in->n_system = yyjson_mut_arr_size(in->list);
    JSON_EACH_AT(i, turn, messages) {
        if (json_has(turn, "role", "user"))
            last_user = i;
    }
    JSON_EACH_AT(i, turn, messages) {
        snprintf(in->place, sizeof(in->place), "messages.%zu", i);
        in->n_turns = i;
        TRY(add_turn(in, turn, i < last_user));
    }
    TRY(end_calls(in));
    snprintf(in->place, sizeof(in->place), "messages.%zu", in->n_turns);
    if (strcmp(in->role, "assistant") == 0)
        TRY(read_prefill(in, prefill));
    end_message(in);
    return 0;
}

/* ---- the system prompt ---- */

/* Skips the line at the head of Claude Code's system prompt that is different each time and means
 * nothing to a model. With it no prefix would ever be found in the cache. */
static void drop_billing(const char **s, size_t *len) {
    static const char header[] = "x-anthropic-billing-header:";

    while (*len >= strlen(header) && memcmp(*s, header, strlen(header)) == 0) {
        const char *end = memchr(*s, '\n', *len);
        size_t n = end ? (size_t)(end - *s) + 1 : *len;

        *s += n;
        *len -= n;
    }
}

static int turns_add_system(struct anthropic_input *in, yyjson_val *v) {
    const char *s = json_text(v);
    size_t len = json_len(v);

    if (!*in->role)
        drop_billing(&s, &len);
    if (!len)
        return 0;
    return turns_add_part(in, "system", yyjson_mut_strn(in->doc, s, len));
}

static int add_system_block(struct anthropic_input *in, yyjson_val *block, const char *type,
                            void *to) {
    yyjson_val *text = content_text(block);

    if (strcmp(type, "text") != 0)
        return anthropic_refuse(in, ".type", "is not supported here: only \"text\" is");
    if (yyjson_is_str(text))
        return turns_add_system(in, text);
    return anthropic_refuse(in, ".text", "must be a string");
}

int anthropic_system(struct anthropic_input *in, yyjson_val *system) {
    snprintf(in->place, sizeof(in->place), "system");
    if (content_text(system))
        TRY(turns_add_system(in, content_text(system)));
    else if (yyjson_is_arr(system))
        TRY(anthropic_each(in, system, "", add_system_block, NULL));
    else if (system)
        return anthropic_refuse(in, "", "must be a string or an array of text blocks");
    end_message(in);
    return 0;
}
