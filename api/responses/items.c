/*
 * Items are smaller than messages: what a model says in one turn is up to one item of reasoning,
 * texts and calls each, and comes back like that. Templates know one message for all of it, so
 * items of the assistant are gathered until something else comes, or until they can no longer be
 * one message (text or reasoning after a call). Since the prompt is then the one that the model
 * continued itself, the prefix cache finds it.
 *
 * Instructions and the system messages in front of the conversation become one system message:
 * agents send several, and many templates take only one, at the beginning.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/content.h"
#include "api/generation/env.h"
#include "api/generation/foreign.h"
#include "api/generation/messages.h"
#include "api/generation/opaque_reasoning.h"
#include "api/http/json.h"
#include "api/responses/build.h"
#include "base/json_read.h"
#include "base/try.h"

#define PAUSE 16u            /* items between two places where another tenant may have its turn */
#define QUICK_MAX (8u << 10) /* bytes of stored items that are read on the loop */

/* Refuses "input[i]" or a place inside it. */
static int items_refuse(const struct responses_build *b, const char *place, const char *must) {
    char param[64];

    if (b->past)
        return responses_refuse(b, "previous_response_id",
                                "must be a response that can be continued");
    snprintf(param, sizeof(param), "input[%zu]%.44s", b->i, place);
    return responses_refuse(b, param, must);
}

int responses_refuse_item(const struct responses_build *b, const char *place, const char *must) {
    return items_refuse(b, place, must);
}

/* ---- texts ---- */

static bool is_media(yyjson_val *type) {
    return json_is(type, "input_image input_file input_audio computer_screenshot");
}

/* Finds the text of part @at of member @field. With @output a part that cannot be shown becomes the
 * note *instead: refusing the output of a tool or of a model would end the conversation. */
static int items_part_text(const struct responses_build *b, const char *field, size_t at,
                           yyjson_val *part, bool output, yyjson_val **text, const char **instead) {
    yyjson_val *type = yyjson_obj_get(part, "type");
    const char *key = json_is(type, "refusal") ? "refusal" : "text";
    char place[44];

    *instead = NULL;
    if ((*text = content_text(part)))
        return 0;
    if (json_is(type, CONTENT_TEXTS)) {
        snprintf(place, sizeof(place), ".%s[%zu].%s", field, at, key);
        return items_refuse(b, place, "must be a string");
    }
    snprintf(place, sizeof(place), ".%s[%zu]%s", field, at, yyjson_is_obj(part) ? ".type" : "");
    if (output && yyjson_is_str(type)) {
        *instead = is_media(type) ? FOREIGN_NOT_VISIBLE : "(A part that this model cannot see.)";
        return 0;
    }
    return items_refuse(b, place,
                        is_media(type) ? "is not supported: this model reads only text"
                                       : "must be a text part");
}

/* Author of the content: pictures of the user and of tools are shown. */
enum says { SAYS_USER, SAYS_MODEL, SAYS_TOOL, SAYS_OTHER };

/* Writes the place of @member of part @at of member @field, or of the response that is
 * continued. */
static void items_place(const struct responses_build *b, const char *field, size_t at,
                        const char *member, char out[96]) {
    if (b->past)
        snprintf(out, 96, "previous_response_id");
    else
        snprintf(out, 96, "input[%zu].%.20s[%zu].%s", b->i, field, at, member);
}

/* Adds the picture in @part, part @at of member @field. */
static void items_add_picture(const struct responses_build *b, const char *field, size_t at,
                              yyjson_val *part, struct content *out) {
    char place[96];

    items_place(b, field, at, "image_url", place);
    content_add_picture(out, b->doc, yyjson_obj_get(part, "image_url"),
                        yyjson_obj_get(part, "detail"), place);
}

/* Adds the file or sound that is part @at of member @field. */
static void items_add_file(const struct responses_build *b, const char *field, size_t at,
                           struct content *out) {
    char place[96];

    items_place(b, field, at, "type", place);
    content_add_file(out, b->doc, place);
}

static bool items_is_picture(yyjson_val *part) {
    return json_has(part, "type", "input_image computer_screenshot");
}

/* Adds member @field of an item, a string or parts. Each text is a line, but the texts of a tool's
 * output are one text; there only notes are lines. */
static int items_add_content(const struct responses_build *b, yyjson_val *item, const char *field,
                             enum says who, struct content *out) {
    yyjson_val *v = yyjson_obj_get(item, field), *s = NULL;
    bool sees = who == SAYS_USER || who == SAYS_TOOL, lines = false, noted = false;
    char place[44];

    bool repeated = who == SAYS_MODEL || who == SAYS_TOOL;

    if (yyjson_is_null(v) || (!v && repeated))
        return 0;
    if (who == SAYS_TOOL && content_is_data(v))
        return content_add_json(&out->text, v);
    if (content_text(v))
        return json_add_text(&out->text, content_text(v));
    snprintf(place, sizeof(place), ".%s", field);
    if (!yyjson_is_arr(v))
        return items_refuse(b, place, "must be a string or an array of parts");
    JSON_EACH_AT(i, part, v) {
        bool picture = sees && items_is_picture(part);
        bool file = who == SAYS_USER && !picture && is_media(yyjson_obj_get(part, "type"));
        const char *instead = NULL;
        bool record = who == SAYS_TOOL && content_is_record(part);
        bool odd = record || (repeated && content_is_odd(part));
        bool text = odd || (!picture && !file);

        if (picture)
            items_add_picture(b, field, i, part, out);
        else if (file)
            items_add_file(b, field, i, out);
        else if (!odd)
            TRY(items_part_text(b, field, i, part, repeated, &s, &instead));
        bool line = record || instead;
        if (text && lines && (who != SAYS_TOOL || line || noted))
            TRY(buf_add_char(&out->text, '\n'));
        lines = text;
        noted = line;
        if (odd)
            TRY(content_add_odd(&out->text, part));
        else if (instead)
            TRY(buf_add_str(&out->text, instead));
        else if (text)
            TRY(json_add_text(&out->text, s));
    }
    return 0;
}

/* Adds member @field of an item that has no pictures. */
static int items_add_text(const struct responses_build *b, yyjson_val *item, const char *field,
                          bool output, struct buf *out) {
    struct content c = {.text = *out};
    int r = items_add_content(b, item, field, output ? SAYS_MODEL : SAYS_OTHER, &c);

    *out = c.text;
    return r;
}

/* Reads a member that must be a name or an id: a string of at least one byte, without NUL. */
static int need_name(const struct responses_build *b, yyjson_val *item, const char *field,
                     yyjson_val **out) {
    char place[44];

    snprintf(place, sizeof(place), ".%s", field);
    *out = yyjson_obj_get(item, field);
    if (!json_is_name(*out, SIZE_MAX))
        return items_refuse(b, place, "must be a string of at least one byte, without NUL");
    return 0;
}

/* Reads the name of a call's tool, with that of its namespace if it has one. Returns 0, or a 400
 * where one of both is no name. */
static int need_tool(const struct responses_build *b, yyjson_val *item, yyjson_val **name) {
    yyjson_val *space = yyjson_obj_get(item, "namespace");

    TRY(need_name(b, item, "name", name));
    if (yyjson_is_str(space) && !json_cstr(space))
        return items_refuse(b, ".namespace", "must not contain NUL");
    return 0;
}

/* ---- messages ---- */

static yyjson_mut_val *items_add_message(struct responses_build *b, const char *role,
                                         yyjson_mut_val *content) {
    yyjson_mut_val *m =
        json_make(b->doc, "{role:%, content:%}", yyjson_mut_strcpy(b->doc, role), content);

    yyjson_mut_arr_append(b->messages, m);
    return m;
}

/* Begins the conversation with the gathered instructions as its first message. */
static void items_begin(struct responses_build *b) {
    if (!b->begun && b->system.len)
        items_add_message(b, "system", json_text_of(b->doc, &b->system));
    b->begun = true;
}

/* Makes a message of the assistant's collected parts. */
static void end_turn(struct responses_build *b) {
    const struct buf *content = &b->turn.content, *reasoning = &b->turn.reasoning;

    assert(b->turn.open || (!b->turn.calls && !b->turn.content.len && !b->turn.reasoning.len));
    if (!b->turn.open)
        return;
    yyjson_mut_val *text;

    if (content->len || !b->turn.calls)
        text = json_text_of(b->doc, content);
    else
        text = yyjson_mut_null(b->doc);
    yyjson_mut_val *m = items_add_message(b, "assistant", text);
    if (reasoning->len)
        yyjson_mut_obj_add_val(b->doc, m, "reasoning_content", json_text_of(b->doc, reasoning));
    yyjson_mut_obj_add_val(b->doc, m, "tool_calls", b->turn.calls);
    buf_clear(&b->turn.content);
    buf_clear(&b->turn.reasoning);
    b->turn.calls = NULL;
    b->turn.open = false;
}

/* Adds text of the assistant; @anew begins a new message for it. */
static void open_turn(struct responses_build *b, bool anew) {
    items_begin(b); /* instructions come first */
    if (anew)
        end_turn(b);
    b->turn.open = true;
}

int responses_instructions(struct responses_build *b, const char *text, size_t len) {
    if (b->system.len)
        TRY(buf_add_str(&b->system, "\n\n"));
    return buf_add(&b->system, text, len);
}

int responses_say(struct responses_build *b, const struct buf *text) {
    struct buf *said = &b->turn.content;

    open_turn(b, b->turn.calls);
    if (said->len && text->len)
        TRY(buf_add_char(said, '\n'));
    return buf_add(said, text->data, text->len);
}

/* Adds a message of another side than the assistant's. */
static int add_said(struct responses_build *b, const char *role, yyjson_mut_val *content) {
    items_begin(b);
    end_turn(b);
    items_add_message(b, role, content);
    return 0;
}

int responses_add_user(struct responses_build *b, const struct buf *text) {
    return add_said(b, "user", json_text_of(b->doc, text));
}

static int items_read_message(struct responses_build *b, yyjson_val *item) {
    yyjson_val *role = yyjson_obj_get(item, "role");
    CLEANUP(content_deinit) struct content all = {.text = {.max = UINT32_MAX}};
    bool system = json_is(role, "system developer"), user = json_is(role, "user");
    bool assistant = json_is(role, "assistant");
    enum says says = user ? SAYS_USER : SAYS_OTHER;

    if (assistant)
        says = SAYS_MODEL;
    TRY(items_add_content(b, item, "content", says, &all));
    if (assistant)
        return responses_say(b, &all.text);
    if (system && !b->begun) {
        if (!all.text.len)
            return 0;
        return responses_instructions(b, all.text.data, all.text.len);
    }
    if (!system && !user)
        return items_refuse(b, ".role", "must be user, assistant, system or developer");
    return add_said(b, system ? "system" : "user", content_finish(&all, b->doc));
}

/* ---- reasoning ---- */

/* Reads the model's reasoning: from encrypted_content if we wrote that, else from the item's plain
 * text. Encrypted content of another service cannot be read. */
static int read_reasoning(struct responses_build *b, yyjson_val *item) {
    yyjson_val *sealed = yyjson_obj_get(item, "encrypted_content");
    yyjson_val *content = yyjson_obj_get(item, "content"),
               *summary = yyjson_obj_get(item, "summary");
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    int r = 0;

    if (yyjson_is_str(sealed) && opaque_reasoning_is_ours(json_text(sealed), json_len(sealed))) {
        r = opaque_reasoning_read(&text, json_text(sealed), json_len(sealed));
        if (r == -EINVAL)
            return items_refuse(b, ".encrypted_content",
                                "was not written by this server; send it back as it was received");
    } else if (yyjson_arr_size(content)) {
        r = items_add_text(b, item, "content", false, &text);
    } else if (yyjson_arr_size(summary)) {
        r = items_add_text(b, item, "summary", false, &text);
    }
    if (r < 0 || !text.len)
        return r;
    open_turn(b, b->turn.content.len || b->turn.calls);
    if (b->turn.reasoning.len)
        TRY(buf_add_char(&b->turn.reasoning, '\n'));
    return buf_add(&b->turn.reasoning, text.data, text.len);
}

/* ---- calls ---- */

static int remember_call(struct responses_build *b, const char *id, const char *name) {
    int r = call_table_add(&b->calls, id, name);

    if (r == -ENOSPC)
        return items_refuse(b, "", "exceeds the number of calls that a request may have");
    return r;
}

int responses_add_call(struct responses_build *b, const char *id, const char *name,
                       yyjson_mut_val *args) {
    assert(id && name);
    open_turn(b, false);
    if (!b->turn.calls)
        b->turn.calls = yyjson_mut_arr(b->doc);
    yyjson_mut_arr_append(
        b->turn.calls,
        json_make(b->doc, "{id:%, type:'function', function:{name:%, arguments:%}}",
                  yyjson_mut_strcpy(b->doc, id), yyjson_mut_strcpy(b->doc, name), args));
    return remember_call(b, id, name);
}

/* Adds a call whose id and @name were read from an item; @name NULL: no memory. */
static int items_add_call(struct responses_build *b, yyjson_val *id, const char *name,
                          yyjson_mut_val *args) {
    const char *kept = arena_strndup(&b->rs->arena, json_text(id), json_len(id));

    if (!kept || !name)
        return -ENOMEM;
    return responses_add_call(b, kept, name, args);
}

static int items_read_call(struct responses_build *b, yyjson_val *item) {
    yyjson_val *id, *name, *args = json_given(item, "arguments");
    yyjson_mut_val *copy = NULL;

    TRY(need_name(b, item, "call_id", &id));
    TRY(need_tool(b, item, &name));
    if (args)
        copy = yyjson_val_mut_copy(b->doc, args);
    return items_add_call(b, id, responses_flat_name(b, yyjson_obj_get(item, "namespace"), name),
                          copy);
}

static int read_custom_call(struct responses_build *b, yyjson_val *item) {
    yyjson_val *id, *name, *input = yyjson_obj_get(item, "input");

    TRY(need_name(b, item, "call_id", &id));
    TRY(need_tool(b, item, &name));
    if (!yyjson_is_str(input))
        return items_refuse(b, ".input", "must be a string");
    return items_add_call(b, id, responses_flat_name(b, yyjson_obj_get(item, "namespace"), name),
                          json_make(b->doc, "{input:%}", yyjson_val_mut_copy(b->doc, input)));
}

static int read_native_call(struct responses_build *b, yyjson_val *item) {
    const struct responses_native *n = responses_native_item(yyjson_obj_get(item, "type"));
    yyjson_val *id = yyjson_obj_get(item, "call_id");
    char place[44];

    TRY(need_name(b, item, yyjson_is_str(id) ? "call_id" : "id", &id));
    snprintf(place, sizeof(place), ".%s", n->member);
    if (!yyjson_is_obj(yyjson_obj_get(item, n->member)))
        return items_refuse(b, place, "must be an object");
    return items_add_call(b, id, n->type, responses_native_args(b->doc, n, item));
}

/* Writes a tool's output: a shell reports the result of each command, a patch perhaps only whether
 * it succeeded. */
static int items_add_output(struct responses_build *b, yyjson_val *item, struct content *out) {
    yyjson_val *output = yyjson_obj_get(item, "output"), *first = yyjson_arr_get_first(output);
    yyjson_val *status = yyjson_obj_get(item, "status");
    bool native = responses_native_item(yyjson_obj_get(item, "type"));

    if (native && yyjson_obj_get(first, "outcome")) {
        int r = responses_native_output(output, &out->text);
        if (r == -EINVAL)
            return items_refuse(b, ".output", "must have strings as stdout and stderr");
        return r;
    }
    if (native && json_is_empty(output) && yyjson_is_str(status))
        return json_add_text(&out->text, status);
    if (items_is_picture(output)) { /* screenshot of a computer */
        items_add_picture(b, "output", 0, output, out);
        return 0;
    }
    return items_add_content(b, item, "output", SAYS_TOOL, out);
}

static int items_add_result(struct responses_build *b, const char *id, const char *name,
                            yyjson_mut_val *content) {
    items_begin(b);
    end_turn(b);
    yyjson_mut_arr_append(b->messages,
                          json_make(b->doc, "{role:'tool', tool_call_id:%, name:%, content:%}",
                                    yyjson_mut_strcpy(b->doc, id), yyjson_mut_strcpy(b->doc, name),
                                    content));
    return 0;
}

int responses_add_result(struct responses_build *b, const char *id, const char *name,
                         const struct buf *text) {
    return items_add_result(b, id, name, json_text_of(b->doc, text));
}

/* Adds the output of call @id. */
static int items_put_output(struct responses_build *b, yyjson_val *id, yyjson_mut_val *content) {
    const char *name = call_table_find(&b->calls, json_text(id), json_len(id));

    if (!name)
        return items_refuse(b, ".call_id", "must be the id of an earlier call");
    const char *kept = arena_strndup(&b->rs->arena, json_text(id), json_len(id));
    if (!kept)
        return -ENOMEM;
    return items_add_result(b, kept, name, content);
}

static int read_output(struct responses_build *b, yyjson_val *item) {
    CLEANUP(content_deinit) struct content all = {.text = {.max = UINT32_MAX}};
    yyjson_val *id = yyjson_obj_get(item, "call_id");
    bool old = !yyjson_is_str(id) && yyjson_obj_get(item, "id");

    TRY(need_name(b, item, old ? "id" : "call_id", &id));
    TRY(items_add_output(b, item, &all));
    return items_put_output(b, id, content_finish(&all, b->doc));
}

/* ---- tools ---- */

static int read_additional_tools(struct responses_build *b, yyjson_val *item) {
    return responses_item_tools(b, yyjson_obj_get(item, "tools"), NULL);
}

/* Returns true for a search that a service ran itself: it has no call to answer. */
static bool is_hosted(yyjson_val *item) {
    return !yyjson_is_str(yyjson_obj_get(item, "call_id")) || json_has(item, "execution", "server");
}

static int read_search_call(struct responses_build *b, yyjson_val *item) {
    if (is_hosted(item))
        return 0;
    return read_native_call(b, item);
}

static int read_search_output(struct responses_build *b, yyjson_val *item) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_val *id = yyjson_obj_get(item, "call_id");
    bool hosted = is_hosted(item);

    TRY(responses_item_tools(b, yyjson_obj_get(item, "tools"), hosted ? NULL : &text));
    if (hosted)
        return 0;
    TRY(text.len ? 0 : buf_add_str(&text, "No tools were found."));
    return items_put_output(b, id, json_text_of(b->doc, &text));
}

/* ---- summaries ---- */

/* Reads a trigger, which asks for a summary in place of an answer. A trigger in the past has been
 * answered. */
static int read_trigger(struct responses_build *b, yyjson_val *item) {
    b->rs->compacts |= !b->past;
    return 0;
}

/* Asks the model for the summary. The tools stay as they were: without them the prompt would begin
 * differently, and none of it would be found in the prefix cache. */
static int ask_for_summary(struct responses_build *b) {
    static const char text[] =
        "Write a summary of this conversation that takes its place: whoever goes on with the work "
        "will see nothing else of it. Tell what the user wants, with all constraints; what has "
        "been "
        "done and found out, with names of files, commands and values; what failed and why; and "
        "what is to be done next. Call no tool. Answer with the summary alone.";
    CLEANUP(buf_deinit) struct buf ask = {.max = UINT32_MAX};

    TRY(buf_add_str(&ask, text));
    return responses_add_user(b, &ask);
}

/* ---- items ---- */

/* Skips the trace of a tool that ran elsewhere, which is of no use to a model. */
static int skip(struct responses_build *b, yyjson_val *item) {
    return 0;
}

static const struct {
    /* separated by blanks */
    const char *types;
    int (*read)(struct responses_build *b, yyjson_val *item);
} kinds[] = {
    {"message", items_read_message},
    {"function_call", items_read_call},
    {"function_call_output custom_tool_call_output computer_call_output local_shell_call_output "
     "shell_call_output apply_patch_call_output",
     read_output},
    {"reasoning", read_reasoning},
    {"custom_tool_call", read_custom_call},
    {"local_shell_call shell_call apply_patch_call", read_native_call},
    {"web_search_call image_generation_call mcp_list_tools ghost_snapshot", skip},
    {"additional_tools", read_additional_tools},
    {"compaction_trigger", read_trigger},
    {"tool_search_call", read_search_call},
    {"tool_search_output", read_search_output},
};

/* Adds the content of @item according to its type. */
static int items_read(struct responses_build *b, yyjson_val *item) {
    yyjson_val *type = json_given(item, "type");

    if (!yyjson_is_obj(item))
        return items_refuse(b, "", "must be an object");
    if (!type && yyjson_obj_get(item, "role"))
        return items_read_message(b, item);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (json_is(type, kinds[i].types))
            return kinds[i].read(b, item);
    if (yyjson_is_str(type))
        return responses_foreign(b, item);
    return items_refuse(b, ".type", "must be a string");
}

/* Returns true if an item of this type has no content for a model. */
static bool is_silent(yyjson_val *type) {
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
        if (json_is(type, kinds[i].types))
            return kinds[i].read == skip;
    return false;
}

/* Replaces the text of @item, a message, by one part. */
static void split_content(yyjson_mut_doc *doc, yyjson_mut_val *item, yyjson_val *text, bool said) {
    yyjson_mut_val *list =
        json_make(doc,
                  said ? "[{type:'output_text', text:%, annotations:[], logprobs:[]}]"
                       : "[{type:'input_text', text:%}]",
                  yyjson_val_mut_copy(doc, text));

    yyjson_mut_obj_put(item, yyjson_mut_str(doc, "content"), list);
}

/* Writes @item in the form in which items are listed: a message has its type and parts, and
 * messages, calls and their outputs have a status. Returns NULL if there is no memory. */
static char *write_listed(yyjson_val *item, bool message, size_t *len) {
    yyjson_val *content = yyjson_obj_get(item, "content");
    bool splits = message && yyjson_is_str(content);
    bool lacks = (message || yyjson_obj_get(item, "call_id")) && !yyjson_obj_get(item, "status");

    if (!splits && !lacks && (!message || yyjson_obj_get(item, "type")))
        return yyjson_val_write(item, 0, len);
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_new(&failed);
    yyjson_mut_val *out = yyjson_val_mut_copy(doc, item);
    if (message)
        yyjson_mut_obj_put(out, yyjson_mut_str(doc, "type"), yyjson_mut_str(doc, "message"));
    if (splits)
        split_content(doc, out, content, json_has(item, "role", "assistant"));
    if (lacks)
        yyjson_mut_obj_add_str(doc, out, "status", "completed");
    if (failed)
        return NULL;
    return yyjson_mut_val_write(out, 0, len);
}

/* Writes @item behind the items that are kept of this request, and lists it. */
static int store_item(struct responses_build *b, yyjson_val *item) {
    struct stored_parts *p = &b->rs->kept;

    assert(p->input.len > 0 && !b->past); /* begins with the bracket */
    yyjson_val *id = yyjson_obj_get(item, "id"), *type = json_given(item, "type");
    struct item_entry e = {.at = p->input.len + (p->input.len > 1),
                           .message = !type || json_is(type, "message"),
                           .silent = is_silent(type)};
    CLEANUP(freep) char *text = write_listed(item, e.message, &e.len);

    if (!text || (p->input.len > 1 && buf_add_char(&p->input, ',') < 0))
        return -ENOMEM;
    TRY(item_list_add(&p->items, e, json_text(id), json_len(id)));
    return buf_add(&p->input, text, e.len);
}

int responses_ask_for(struct responses_build *b, size_t n, const char *param) {
    size_t max = b->rs->env->opts.max_body_bytes;

    b->n_asked += n;
    b->rs->env->store->n_read += n;
    if (b->n_asked > max)
        return err_set_code(b->err, 400, "invalid_value", param,
                            "%s: the request refers to more than %zu bytes of stored items.", param,
                            max);
    if (b->quick && b->n_asked > QUICK_MAX)
        return -EAGAIN;
    return 0;
}

/* Returns item @id of the output of @s, whose id ends with its number, or NULL if there is no such
 * item. */
static const struct item_entry *items_find(const struct stored *s, const char *id) {
    const struct item_list *l = &s->parts.output;
    size_t i = strtoul(strrchr(id, '_') + 1, NULL, 10);
    const struct item_entry *e = i < item_list_n(l) ? item_list_get(l, i) : NULL;

    if (!e || strcmp(item_list_id(l, e), id) != 0)
        return NULL;
    return e;
}

/* Follows {"type":"item_reference","id":..} to an item of the output of a response that is kept.
 * The ids of items contain that of their response. */
static int items_follow(struct responses_build *b, yyjson_val *item, yyjson_doc **doc,
                        yyjson_val **out) {
    const char *id = json_cstr(yyjson_obj_get(item, "id")), *hex = id ? strchr(id, '_') : NULL;
    char name[sizeof("resp_") + RESPONSES_ID_HEX], place[40];
    CLEANUP(buf_deinit) struct buf scratch = {.max = UINT32_MAX};
    struct stored *s = NULL;
    const char *text = NULL;
    int r = 0;

    if (hex) {
        snprintf(name, sizeof(name), "resp_%.*s", (int)RESPONSES_ID_HEX, hex + 1);
        s = store_get(b->rs->env->store, b->rs->tenant, name, strlen(name));
    }
    const struct item_entry *e = s ? items_find(s, id) : NULL;
    snprintf(place, sizeof(place), "input[%zu].id", b->i);
    if (!id)
        r = items_refuse(b, ".id", "must be a string");
    else if (!e)
        r = err_set_code(b->err, 404, NULL, place,
                         "Item with id '%.100s' not found. Stored items are lost some time after "
                         "their last use, and without state-file when weftd restarts: send the "
                         "items themselves, as SDKs do with `store` set to false.",
                         id);
    else if ((r = responses_ask_for(b, e->len, place)) == 0 &&
             (!(text = stored_item(&s->parts, true, e, &scratch)) ||
              !(*doc = yyjson_read(text, e->len, 0))))
        r = -ENOMEM;
    stored_unref(s);
    *out = yyjson_doc_get_root(*doc);
    return r;
}

/* Returns true for {"type":"item_reference","id":..}; the type may be missing or null. */
static bool is_reference(yyjson_val *item) {
    yyjson_val *type = yyjson_obj_get(item, "type");

    if (!type || yyjson_is_null(type))
        return yyjson_obj_get(item, "id") && yyjson_obj_size(item) == (type ? 2 : 1);
    return yyjson_equals_str(type, "item_reference");
}

/* Adds @item, or the one that it refers to; @keep: it will be found again in the store. */
static int items_read_one(struct responses_build *b, yyjson_val *item, bool keep) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    if (is_reference(item))
        TRY(items_follow(b, item, &doc, &item));
    TRY(items_read(b, item));
    if (!keep)
        return 0;
    return store_item(b, item);
}

int responses_items(struct responses_build *b, yyjson_val *items, bool keep) {
    messages_spell_roles(items);
    JSON_EACH_AT(i, item, items) {
        b->i = i;
        if (i % PAUSE == 0)
            TRY(job_pause());
        TRY(items_read_one(b, item, keep));
    }
    return 0;
}

int responses_past(struct responses_build *b, const struct stored_parts *p, bool output) {
    const struct item_list *list = output ? &p->output : &p->items;
    CLEANUP(buf_deinit) struct buf scratch = {.max = UINT32_MAX};

    assert(b->past);
    for (b->i = 0; b->i < item_list_n(list); b->i++) {
        const struct item_entry *e = item_list_get(list, b->i);

        if (e->silent)
            continue;
        if (b->i % PAUSE == 0)
            TRY(job_pause());
        const char *text = stored_item(p, output, e, &scratch);
        CLEANUP(json_doc_freep) yyjson_doc *doc = text ? yyjson_read(text, e->len, 0) : NULL;
        TRY(doc ? items_read(b, yyjson_doc_get_root(doc)) : -ENOMEM);
    }
    return 0;
}

int responses_items_end(struct responses_build *b) {
    items_begin(b);
    if (b->rs->compacts)
        TRY(ask_for_summary(b));
    end_turn(b);
    return 0;
}
