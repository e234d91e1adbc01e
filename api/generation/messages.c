/*
 * Templates were written against what transformers passes them: plain dictionaries with string
 * content, `tools` and `documents` present but None when there are none, arguments of calls as
 * objects. Clients send what OpenAI's API takes. This file is the difference. Everything a client
 * can influence is copied into the variables as it is, never spliced into text: the template
 * language marks it as the user's.
 */

#include "api/generation/messages.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "api/generation/content.h"
#include "api/generation/custom.h"
#include "api/generation/family.h"
#include "api/generation/foreign.h"
#include "api/generation/picture_parts.h"
#include "api/generation/template_variables.h"
#include "api/generation/tool_forms.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "api/toolcall/toolcall.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

struct build {
    yyjson_mut_doc *doc;
    /* memory was short for it */
    bool failed;
    struct err *err;
    const struct messages_form *form;
    /* the description of the tools, until a message takes it */
    struct buf note;
    /* placeholder of a picture in a content; "": the model takes no pictures */
    const char *sight;
    const struct request_picture *pictures;
    /* the message being built */
    size_t i;
    /* index of that message in the template's list */
    size_t at;
    /* the message in which the user asks; the number of messages: none */
    size_t asks;
    struct messages_trust *trust;
};

/* Refuses "messages[i]" or a place inside it. */
static int messages_refuse(const struct build *b, const char *place, const char *must) {
    char param[96];

    if (b->failed)
        return -ENOMEM;
    snprintf(param, sizeof(param), "messages[%zu]%.60s", b->i - MIN(b->i, b->form->n_own), place);
    return json_refuse(b->err, param, must);
}

static yyjson_mut_val *messages_text(struct build *b, yyjson_val *v) {
    return yyjson_mut_strncpy(b->doc, json_text(v), json_len(v));
}

static void messages_put(struct build *b, yyjson_mut_val *object, const char *key,
                         yyjson_mut_val *v) {
    yyjson_mut_obj_add_val(b->doc, object, key, v);
}

/* Finds the text of one part of a content array. */
static int messages_part_text(struct build *b, size_t at, yyjson_val *part, yyjson_val **text) {
    yyjson_val *type = yyjson_obj_get(part, "type");
    const char *member = json_is(type, "refusal") ? "refusal" : "text";
    char place[40];

    if ((*text = content_text(part)))
        return 0;
    snprintf(place, sizeof(place), ".content[%zu]%s", at, yyjson_is_obj(part) ? ".type" : "");
    if (!yyjson_is_str(type))
        return messages_refuse(b, place, "must be a part with a type");
    if (!json_is(type, CONTENT_TEXTS))
        return messages_refuse(b, place,
                               "must be \"text\" or \"image_url\": no other content of the user "
                               "is read");
    snprintf(place, sizeof(place), ".content[%zu].%s", at, member);
    return messages_refuse(b, place, "must be a string");
}

/* Returns true for a message whose parts a model or a tool wrote, not the client. Refusing such a
 * part would end the conversation. */
static bool is_repeated(yyjson_val *m) {
    return message_is_result(m) || json_has(m, "role", "assistant");
}

static bool is_thought(yyjson_val *part) {
    return json_has(part, "type", "thinking redacted_thinking");
}

/* Returns true for a part with a file or a sound, which no model here reads. */
static bool messages_is_file(yyjson_val *part) {
    return json_has(part, "type", "file input_file input_audio audio_url video_url");
}

/* Notes that the text [begin, end) in the content of message @at is the service's own. */
static int trust_range(struct build *b, size_t at, size_t begin, size_t end) {
    struct messages_trust *t = b->trust;

    assert(begin < end);
    if (!array_resize(&t->v, t->n + 1, sizeof(*t->v)))
        return -ENOMEM;
    t->v[t->n++] = (struct template_trust){(uint32_t)at, begin, end};
    return 0;
}

/* Adds a picture to the content of the message being built. */
static int messages_add_picture(struct build *b, yyjson_val *part, struct buf *text) {
    struct messages_trust *t = b->trust;
    size_t begin = text->len;

    if (!array_resize(&t->pictures, t->n_pictures + 1, sizeof(*t->pictures)))
        return -ENOMEM;
    t->pictures[t->n_pictures++] = picture_part_index(part);
    if (buf_add_str(text, b->sight) < 0)
        return -ENOMEM;
    return trust_range(b, b->at, begin, text->len);
}

/* Adds a part that this model does not read: a note where refusing it would end the
 * conversation. */
static int add_unseen(struct build *b, yyjson_val *m, size_t i, yyjson_val *part,
                      struct buf *text) {
    char place[96];

    if (is_repeated(m) || b->i != b->asks)
        return buf_add_str(text, FOREIGN_NOT_VISIBLE);
    const char *given = json_cstr(yyjson_obj_get(part, PICTURE_PLACE));
    if (given)
        snprintf(place, sizeof(place), "%s", given);
    else
        snprintf(place, sizeof(place), "messages[%zu].content[%zu].type",
                 b->i - MIN(b->i, b->form->n_own), i);
    return err_set_code(b->err, 400, "invalid_value", place, "%s is not supported: %s.", place,
                        messages_is_file(part) ? "files and audio cannot be read"
                                               : "this model reads only text");
}

/* Joins parts to one string at the end of @out. Each text is a line, as in other servers, but the
 * texts of a tool's output are one text, as at the services; there only notes are lines. */
static int messages_join_parts(struct build *b, yyjson_val *m, yyjson_val *parts, struct buf *out) {
    bool assistant = json_has(m, "role", "assistant"), lines = false;
    bool output = json_has(m, "role", "tool function"), noted = false;
    bool sees = *b->sight && !assistant, repeated = is_repeated(m);
    yyjson_val *s = NULL;

    JSON_EACH_AT(i, part, parts) {
        bool picture = picture_part_is(part);
        bool shown = picture && sees && !b->pictures[picture_part_index(part)].unread;
        bool text = content_text(part) || json_has(part, "type", CONTENT_TEXTS);
        bool record = output && content_is_record(part);
        bool line = picture || messages_is_file(part) || (repeated && yyjson_is_obj(part) && !text);
        bool unseen = line && !record;

        if (repeated && is_thought(part))
            continue;
        bool odd = repeated && !unseen && !content_text(part);
        if (!unseen && !odd)
            TRY(messages_part_text(b, i, part, &s));
        if (lines && !shown && (!output || line || noted))
            TRY(buf_add_char(out, '\n'));
        lines = !shown;
        noted = line && !shown;
        if (shown)
            TRY(messages_add_picture(b, part, out));
        else if (unseen)
            TRY(add_unseen(b, m, i, part, out));
        else if (odd)
            TRY(content_add_odd(out, part));
        else
            TRY(json_add_text(out, s));
    }
    return 0;
}

/* Adds the reasoning @v of a part: a text, or Mistral's list of parts with texts. */
static int add_thought(struct buf *text, yyjson_val *v) {
    JSON_EACH(part, v) {
        TRY(json_add_text(text, content_text(part)));
    }
    return json_add_text(text, v);
}

/* Adds the reasoning that is in parts of an assistant's content rather than in a member of the
 * message. */
static int put_thought_parts(struct build *b, yyjson_val *m, yyjson_mut_val *to) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_val *parts = yyjson_obj_get(m, "content");

    if (!yyjson_is_arr(parts) || yyjson_mut_obj_get(to, "reasoning_content"))
        return 0;
    JSON_EACH(part, parts) {
        yyjson_val *s = is_thought(part) ? yyjson_obj_get(part, "thinking") : NULL;
        bool empty = json_len(s) == 0 && yyjson_arr_size(s) == 0;

        if ((text.len && !empty && buf_add_char(&text, '\n') < 0) || add_thought(&text, s) < 0)
            return -ENOMEM;
    }
    if (text.len)
        messages_put(b, to, "reasoning_content", json_text_of(b->doc, &text));
    return 0;
}

/* Returns true for a content that is JSON: data of a tool, or a value of the model's that is no
 * list. */
static bool messages_is_data(yyjson_val *m, yyjson_val *content) {
    if (message_is_result(m))
        return content_is_data(content);
    return json_has(m, "role", "assistant") && !yyjson_is_arr(content) && !content_text(content);
}

/* Adds the content to @text as one string. Data becomes JSON. */
static int messages_add_content(struct build *b, yyjson_val *m, struct buf *text) {
    yyjson_val *given = yyjson_obj_get(m, "content"), *v = json_given(m, "content");

    if (yyjson_is_str(v))
        return json_add_text(text, v);
    if (!v && (given || is_repeated(m)))
        return 0;
    if (messages_is_data(m, v))
        return content_add_json(text, v);
    if (content_text(v)) /* one part, without a list */
        return json_add_text(text, content_text(v));
    if (yyjson_is_arr(v))
        return messages_join_parts(b, m, v, text);
    return messages_refuse(b, ".content", "must be a string or an array of parts");
}

static void messages_put_text(struct build *b, yyjson_mut_val *to, const struct buf *text) {
    messages_put(b, to, "content", json_text_of(b->doc, text));
}

static int put_content(struct build *b, yyjson_val *m, yyjson_mut_val *to, const char *role) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    bool noted = b->note.len && strcmp(role, b->form->no_system ? "user" : "system") == 0;

    if (noted && b->form->no_system &&
        (buf_add(&text, b->note.data, b->note.len) < 0 || buf_add_str(&text, "\n\n") < 0))
        return -ENOMEM;
    TRY(messages_add_content(b, m, &text));
    if (noted && !b->form->no_system &&
        ((text.len && buf_add_str(&text, "\n\n") < 0) ||
         buf_add(&text, b->note.data, b->note.len) < 0))
        return -ENOMEM;
    if (noted)
        buf_clear(&b->note);
    messages_put_text(b, to, &text);
    return 0;
}

static yyjson_mut_val *json_of(struct build *b, yyjson_val *v) {
    CLEANUP(buf_deinit) struct buf out = {.max = UINT32_MAX};

    b->failed |= content_add_json(&out, v) < 0;
    return json_text_of(b->doc, &out);
}

/* Returns a call's arguments as an object, which most templates print as JSON; clients send its
 * text. */
static yyjson_mut_val *arguments_of(struct build *b, yyjson_val *v) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    bool none = !v || (yyjson_is_arr(v) && yyjson_arr_size(v) == 0);

    if (none && b->form->text_args)
        return yyjson_mut_str(b->doc, "{}");
    if (none) /* PHP has one form for an empty list and an empty object */
        return yyjson_mut_obj(b->doc);
    if (!yyjson_is_str(v) && (b->form->text_args || !yyjson_is_obj(v)))
        return json_of(b, v);
    if (!b->form->text_args && yyjson_is_str(v))
        b->failed |= json_parse(&doc, json_text(v), json_len(v), 0) == -ENOMEM;
    yyjson_val *root = yyjson_doc_get_root(doc);
    return yyjson_val_mut_copy(b->doc, yyjson_is_obj(root) ? root : v);
}

/* Returns the arguments of a call of a custom tool. */
static yyjson_mut_val *messages_input(struct build *b, yyjson_val *input) {
    yyjson_mut_val *args = json_make(b->doc, "{input:%}", yyjson_val_mut_copy(b->doc, input));
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;

    if (!b->form->text_args)
        return args;
    doc = yyjson_mut_val_imut_copy(args, NULL);
    return json_of(b, yyjson_doc_get_root(doc));
}

static int messages_put_call(struct build *b, yyjson_val *call, size_t at, yyjson_mut_val *calls) {
    yyjson_val *f = tool_forms_function(call), *id = yyjson_obj_get(call, "id");
    yyjson_val *name = yyjson_obj_get(f, "name"), *args = yyjson_obj_get(f, "arguments");
    yyjson_val *custom = custom_tool(call), *input = yyjson_obj_get(custom, "input");
    char place[40];

    if (custom)
        name = yyjson_obj_get(custom, "name");
    if (yyjson_is_null(args) || yyjson_equals_str(args, "")) /* no arguments */
        args = NULL;
    snprintf(place, sizeof(place), ".tool_calls[%zu]", at);
    if (!yyjson_is_str(name))
        return messages_refuse(b, place, "must be a function call with a name");
    if (!json_cstr(name))
        return messages_refuse(b, place, "must have a name without NUL");
    if (custom && !yyjson_is_str(input))
        return messages_refuse(b, place, "must be a custom call with name and input");
    yyjson_mut_val *arguments;

    if (custom)
        arguments = messages_input(b, input);
    else
        arguments = arguments_of(b, args);
    yyjson_mut_arr_append(
        calls, json_make(b->doc, "{id:%, type:'function', function:{name:%, arguments:%}}",
                         yyjson_is_str(id) ? messages_text(b, id) : NULL, messages_text(b, name),
                         arguments));
    return 0;
}

static int messages_put_calls(struct build *b, yyjson_val *m, yyjson_mut_val *to) {
    yyjson_val *v = json_given(m, "tool_calls");

    if (!v)
        return 0;
    if (!yyjson_is_arr(v))
        return messages_refuse(b, ".tool_calls", "must be an array");
    yyjson_mut_val *calls = yyjson_mut_arr(b->doc);
    JSON_EACH_AT(i, call, v) {
        TRY(messages_put_call(b, call, i, calls));
    }
    if (yyjson_arr_size(v))
        messages_put(b, to, "tool_calls", calls);
    return 0;
}

/* Copies a field that is a string or absent. Another value of the model's or a tool's is left out.
 * @as is its name for the template. */
static int messages_put_string(struct build *b, yyjson_val *m, yyjson_mut_val *to, const char *key,
                               const char *as) {
    yyjson_val *v = json_given(m, key);
    char place[40];

    if (!v)
        return 0;
    snprintf(place, sizeof(place), ".%s", key);
    if (!yyjson_is_str(v) && is_repeated(m))
        return 0;
    if (!yyjson_is_str(v))
        return messages_refuse(b, place, "must be a string");
    messages_put(b, to, as, messages_text(b, v));
    return 0;
}

void messages_spell_roles(yyjson_val *messages) {
    static const struct {
        const char *name, *role;
    } roles[] = {{"system", "system"},       {"developer", "developer"}, {"user", "user"},
                 {"assistant", "assistant"}, {"model", "assistant"},     {"tool", "tool"},
                 {"ipython", "tool"},        {"function", "function"}};

    JSON_EACH(m, messages) {
        yyjson_val *v = yyjson_obj_get(m, "role");
        const char *name = json_cstr(v);

        for (size_t i = 0; name && i < ARRAY_SIZE(roles); i++) {
            if (strcasecmp(name, roles[i].name) == 0)
                yyjson_set_str(v, roles[i].role);
        }
    }
}

/* Newer clients give the system prompt the role "developer", which templates do not know. */
static const char *role_of(yyjson_val *v) {
    static const char *const roles[] = {"system", "user", "assistant", "tool", "function"};

    if (yyjson_equals_str(v, "developer"))
        return "system";
    for (size_t i = 0; i < ARRAY_SIZE(roles); i++)
        if (yyjson_equals_str(v, roles[i]))
            return roles[i];
    return NULL;
}

/* Adds an assistant's message with its calls as text, for a template that knows none. */
static int put_plain_calls(struct build *b, yyjson_val *m, yyjson_mut_val *to) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_mut_val *scratch = yyjson_mut_obj(b->doc), *calls, *call;
    size_t i, n;

    TRY(messages_add_content(b, m, &text));
    TRY(messages_put_calls(b, m, scratch)); /* checks them, too */
    calls = b->failed ? NULL : yyjson_mut_obj_get(scratch, "tool_calls");
    yyjson_mut_arr_foreach(calls, i, n, call) {
        yyjson_mut_val *f = yyjson_mut_obj_get(call, "function");
        yyjson_mut_val *args = yyjson_mut_obj_get(f, "arguments");

        if (text.len && text.data[text.len - 1] != '\n')
            TRY(buf_add_char(&text, '\n'));
        TRY(toolcall_write_call(&text, json_mut_cstr(yyjson_mut_obj_get(f, "name")),
                                json_mut_text(args), json_mut_len(args)));
    }
    messages_put_text(b, to, &text);
    return 0;
}

/* Notes that the markers @own in the content of message @at are trusted. */
static int trust(struct build *b, const struct toolcall_marks *own, size_t at) {
    assert(own->n == 0 || own->v);
    for (size_t i = 0; i < own->n; i++)
        if (trust_range(b, at, own->v[i].begin, own->v[i].end) < 0)
            return -ENOMEM;
    return 0;
}

/* Adds an assistant's message with its calls in the content, as the model wrote them, for a
 * template that leaves calls out. @at is its number in the list. */
static int put_written_calls(struct build *b, yyjson_val *m, yyjson_mut_val *to, size_t at) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_mut_val *scratch = yyjson_mut_obj(b->doc);
    CLEANUP(freep) void *marks = NULL;
    struct toolcall_marks own = {0};

    TRY(messages_add_content(b, m, &text));
    TRY(messages_put_calls(b, m, scratch)); /* checks them, too */
    yyjson_mut_val *calls = yyjson_mut_obj_get(scratch, "tool_calls");
    if (!b->failed && yyjson_mut_arr_size(calls) > 0) {
        int r = toolcall_write_calls(b->form->calls, calls, &text, &own);

        marks = own.v;
        TRY(r);
        TRY(trust(b, &own, at));
    }
    messages_put_text(b, to, &text);
    return 0;
}

/* Moves reasoning to the template's own name for it. gpt-oss takes either reasoning or content
 * beside a call and shows both as analysis, so both are joined there. */
static int put_thoughts(struct build *b, yyjson_mut_val *to) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    yyjson_mut_val *thoughts = yyjson_mut_obj_get(to, "reasoning_content");
    yyjson_mut_val *content = yyjson_mut_obj_get(to, "content");
    bool both = strcmp(b->form->thoughts, "thinking") == 0 && json_mut_len(content) &&
                yyjson_mut_obj_get(to, "tool_calls");

    if (!json_mut_len(thoughts))
        return 0;
    if (json_mut_add_text(&text, thoughts) < 0 ||
        (both && (buf_add_str(&text, "\n\n") < 0 || json_mut_add_text(&text, content) < 0)))
        return -ENOMEM;
    if (both)
        yyjson_mut_set_str(content, "");
    messages_put(b, to, b->form->thoughts, json_text_of(b->doc, &text));
    return 0;
}

/* Moves reasoning into a part of the content. */
static void put_thought_part(struct build *b, yyjson_mut_val *to) {
    yyjson_mut_val *thoughts = yyjson_mut_obj_remove_key(to, "reasoning_content"), *content;
    yyjson_mut_val *parts = yyjson_mut_arr(b->doc);

    if (!json_mut_len(thoughts))
        return;
    content = yyjson_mut_obj_remove_key(to, "content");
    yyjson_mut_arr_append(parts, json_make(b->doc, "{type:'thinking', thinking:%}", thoughts));
    if (json_mut_len(content))
        yyjson_mut_arr_append(parts, json_make(b->doc, "{type:'text', text:%}", content));
    messages_put(b, to, "content", parts);
}

/* Returns the name of the call of @calls that the result @m answers; NULL: unknown. */
static yyjson_mut_val *called_name(yyjson_mut_val *calls, yyjson_mut_val *m) {
    yyjson_mut_val *id = yyjson_mut_obj_get(m, "tool_call_id"), *call;
    size_t i, n;

    yyjson_mut_arr_foreach(calls, i, n, call) {
        yyjson_mut_val *f = yyjson_mut_obj_get(call, "function");

        if (id && yyjson_mut_equals(yyjson_mut_obj_get(call, "id"), id))
            return yyjson_mut_obj_get(f, "name");
    }
    return yyjson_mut_obj_get(m, "name");
}

/* Moves the last message of @list, a result, into the message with its call, if that is the one
 * before. Pictures are recognised in contents alone, so a result with @pictures stays. */
static void move_result(struct build *b, yyjson_mut_val *list, bool pictures) {
    size_t n = yyjson_mut_arr_size(list);
    yyjson_mut_val *calling = n > 1 ? yyjson_mut_arr_get(list, n - 2) : NULL;
    yyjson_mut_val *calls = yyjson_mut_obj_get(calling, "tool_calls");

    if (!calls || pictures)
        return;
    yyjson_mut_val *m = yyjson_mut_arr_remove_last(list), *name = called_name(calls, m);
    yyjson_mut_val *results = yyjson_mut_obj_get(calling, "tool_responses");
    if (!results) {
        results = yyjson_mut_arr(b->doc);
        messages_put(b, calling, "tool_responses", results);
    }
    yyjson_mut_arr_append(results, json_make(b->doc, "{name:%, response:%}",
                                             name ? yyjson_mut_val_mut_copy(b->doc, name) : NULL,
                                             yyjson_mut_obj_remove_key(m, "content")));
}

/* Adds the calls of @m behind its message @to, the last one of @list: as messages of their own. A
 * message without a text is left out. */
static int put_named_calls(struct build *b, yyjson_val *m, yyjson_mut_val *list,
                           yyjson_mut_val *to) {
    yyjson_mut_val *scratch = yyjson_mut_obj(b->doc), *calls, *call;
    size_t i, n;

    TRY(messages_put_calls(b, m, scratch)); /* checks them, too */
    calls = b->failed ? NULL : yyjson_mut_obj_get(scratch, "tool_calls");
    if (yyjson_mut_arr_size(calls) && !json_mut_len(yyjson_mut_obj_get(to, "content")))
        yyjson_mut_arr_remove_last(list);
    yyjson_mut_arr_foreach(calls, i, n, call) {
        yyjson_mut_val *f = yyjson_mut_obj_get(call, "function");
        yyjson_mut_val *name = yyjson_mut_val_mut_copy(b->doc, yyjson_mut_obj_get(f, "name"));
        yyjson_mut_val *args = yyjson_mut_val_mut_copy(b->doc, yyjson_mut_obj_get(f, "arguments"));

        yyjson_mut_arr_append(
            list, json_make(b->doc, "{role:'assistant', metadata:%, content:%}", name, args));
    }
    return 0;
}

static int messages_put_one(struct build *b, yyjson_val *m, yyjson_mut_val *list) {
    const char *role = role_of(yyjson_obj_get(m, "role"));
    yyjson_mut_val *to = yyjson_mut_arr_add_obj(b->doc, list);
    uint32_t n_pictures = b->trust->n_pictures;

    b->at = yyjson_mut_arr_size(list) - 1;
    if (!yyjson_is_obj(m))
        return messages_refuse(b, "", "must be an object");
    if (!role)
        return messages_refuse(b, ".role",
                               "must be system, developer, user, assistant, tool or function");
    bool observed = b->form->family->names_calls && message_is_result(m);
    messages_put(b, to, "role", yyjson_mut_strcpy(b->doc, observed ? "observation" : role));
    bool assistant = strcmp(role, "assistant") == 0, plain = b->form->plain && assistant;
    bool named = b->form->family->names_calls && assistant && !plain;
    bool written = b->form->calls && assistant && yyjson_arr_size(yyjson_obj_get(m, "tool_calls"));
    if (plain) {
        TRY(put_plain_calls(b, m, to));
    } else if (written) {
        TRY(put_written_calls(b, m, to, b->at));
    } else {
        TRY(put_content(b, m, to, role));
        if (!named)
            TRY(messages_put_calls(b, m, to));
    }
    TRY(messages_put_string(b, m, to, "name", "name"));
    TRY(messages_put_string(b, m, to, "tool_call_id", "tool_call_id"));
    TRY(messages_put_string(
        b, m, to, yyjson_obj_get(m, "reasoning_content") ? "reasoning_content" : "reasoning",
        "reasoning_content"));
    if (assistant)
        TRY(put_thought_parts(b, m, to));
    if (b->form->family->thought_parts)
        put_thought_part(b, to);
    if (b->form->family->result_members && message_is_result(m))
        move_result(b, list, b->trust->n_pictures != n_pictures);
    if (named)
        return put_named_calls(b, m, list, to);
    if (!b->form->thoughts)
        return 0;
    return put_thoughts(b, to);
}

/* Moves the ranges of @t from @first on, which are of @text, to its place behind @begin in @all. */
static void move_trust(struct messages_trust *t, size_t first, const struct buf *all, size_t begin,
                       const struct buf *text) {
    size_t at = all->len - text->len;

    if (first == t->n)
        return;
    while (at > begin && memcmp(all->data + at, text->data, text->len) != 0)
        at--; /* skips the text that toolcall_write_result() has appended */
    assert(memcmp(all->data + at, text->data, text->len) == 0);
    for (size_t i = first; i < t->n; i++) {
        t->v[i].begin += at;
        t->v[i].end += at;
    }
}

/* Joins consecutive results into one message of the user. Moves @m and @b->i to the last result. */
static int messages_put_results(struct build *b, yyjson_val **m, size_t n, yyjson_mut_val *list) {
    CLEANUP(buf_deinit) struct buf all = {.max = UINT32_MAX}, text = {.max = UINT32_MAX};
    yyjson_mut_val *to = yyjson_mut_arr_add_obj(b->doc, list);

    assert(b->i < n && message_is_result(*m));
    b->at = yyjson_mut_arr_size(list) - 1;
    for (;; b->i++, *m = json_next(*m)) {
        size_t begin = all.len, first = b->trust->n;

        buf_clear(&text);
        TRY(messages_add_content(b, *m, &text));
        if (toolcall_write_result(&all, json_cstr(yyjson_obj_get(*m, "name")),
                                  text_or(text.data, ""), text.len) < 0)
            return -ENOMEM;
        move_trust(b->trust, first, &all, begin, &text);
        if (b->i + 1 == n || !message_is_result(json_next(*m)))
            break;
    }
    messages_put(b, to, "role", yyjson_mut_str(b->doc, "user"));
    messages_put_text(b, to, &all);
    return 0;
}

static void put_note(struct build *b, yyjson_mut_val *list) {
    assert(b->note.len && !b->form->no_system);
    yyjson_mut_arr_append(
        list, json_make(b->doc, "{role:'system', content:%}", json_text_of(b->doc, &b->note)));
    buf_clear(&b->note);
}

/* Returns the functions that the prompt shows the model at its beginning; NULL: none. */
static yyjson_val *shown_functions(const struct gen_request *r) {
    yyjson_val *shown = yyjson_doc_get_root(r->made.shown ? r->made.shown : r->made.functions);

    if (!yyjson_arr_size(shown))
        return NULL;
    return shown;
}

/* Makes each content that is a string a list with one part. */
static void put_contents_in_parts(struct build *b, yyjson_mut_val *list) {
    yyjson_mut_val *m;
    size_t i, n;

    yyjson_mut_arr_foreach(list, i, n, m) {
        yyjson_mut_val *content = yyjson_mut_obj_get(m, "content");

        if (!yyjson_mut_is_str(content))
            continue;
        content = yyjson_mut_obj_remove_key(m, "content");
        messages_put(b, m, "content", json_make(b->doc, "[{type:'text', text:%}]", content));
    }
}

static int messages_put_list(struct build *b, const struct gen_request *r, yyjson_mut_val *root) {
    yyjson_mut_val *list = yyjson_mut_arr(b->doc);
    yyjson_val *m = yyjson_arr_get_first(r->input.messages);
    const char *first = role_of(yyjson_obj_get(m, "role"));
    size_t n = yyjson_arr_size(r->input.messages);
    int result = 0;

    b->asks = picture_parts_asking(r->input.messages);

    if (b->form->plain && shown_functions(r))
        TRY(toolcall_describe(&b->note, shown_functions(r)));
    if (b->note.len && !b->form->no_system && first && strcmp(first, "system") != 0)
        put_note(b, list);
    for (b->i = 0; result == 0 && b->i < n; b->i++, m = json_next(m)) {
        if (b->form->plain && message_is_result(m))
            result = messages_put_results(b, &m, n, list);
        else
            result = messages_put_one(b, m, list);
    }
    if (b->form->family->reads_parts)
        put_contents_in_parts(b, list);
    messages_put(b, root, "messages", list);
    return result;
}

/* Sets the variable `functions`, which Firefunction's template puts into the text. */
static int set_functions_text(struct build *b, const struct gen_request *r, yyjson_mut_val *root) {
    yyjson_val *shown = shown_functions(r);
    CLEANUP(freep) char *text = NULL;

    if (shown)
        text = yyjson_val_write(shown, 0, NULL);
    else
        text = strdup("");
    if (!text)
        return -ENOMEM;
    if (!yyjson_obj_get(r->input.kwargs, "functions"))
        messages_put(b, root, "functions", yyjson_mut_strcpy(b->doc, text));
    return 0;
}

static int messages_put_tools(struct build *b, const struct gen_request *r,
                              const struct api_model *model, yyjson_mut_val *root) {
    yyjson_val *functions = b->form->plain ? NULL : shown_functions(r);

    if (!b->form->plain && family_reads_text(model->template))
        TRY(set_functions_text(b, r, root));
    if (!functions && b->form->family->no_null_tools)
        return 0;
    yyjson_mut_val *tools;

    if (functions)
        tools = yyjson_val_mut_copy(b->doc, functions);
    else
        tools = yyjson_mut_null(b->doc);

    if (b->form->simple_tools)
        messages_simplify_tools(b->doc, tools);
    messages_put(b, root, text_or(family_tools_variable(model->template), "tools"), tools);
    return 0;
}

static void put_token(struct build *b, yyjson_mut_val *root, const char *key,
                      const struct tokenizer *t, int32_t id) {
    struct gguf_str s = {"", 0};

    if (id >= 0)
        s = tokenizer_text(t, id);
    messages_put(b, root, key, yyjson_mut_strncpy(b->doc, s.data, s.len));
}

static int messages_put_all(struct build *b, const struct gen_request *r,
                            const struct api_model *model, yyjson_mut_val *root) {
    const struct tokenizer *t = model->tokenizer;
    template_variables_put(b->doc, root, r, model, b->form->family);
    TRY(messages_put_list(b, r, root));
    TRY(messages_put_tools(b, r, model, root));
    messages_put(b, root, "documents", yyjson_mut_null(b->doc));
    messages_put(b, root, "add_generation_prompt",
                 yyjson_mut_bool(b->doc, !r->input.no_generation_prompt));
    put_token(b, root, "bos_token", t, tokenizer_bos(t));
    put_token(b, root, "eos_token", t, tokenizer_eos(t));
    return 0;
}

void messages_trust_deinit(struct messages_trust *t) {
    free(t->v);
    free(t->pictures);
}

static int write_vars(struct build *b, const struct gen_request *r, const struct api_model *model,
                      yyjson_doc **out) {
    yyjson_mut_val *root = yyjson_mut_obj(b->doc);

    TRY(messages_put_all(b, r, model, root));
    return json_doc_seal(b->doc, root, out);
}

int messages_vars(const struct gen_request *r, const struct api_model *model,
                  const struct messages_form *form, yyjson_doc **out, struct messages_trust *trust,
                  struct err *err) {
    struct build b = {.err = err,
                      .form = form,
                      .sight = form->sight,
                      .pictures = r->made.pictures,
                      .note = {.max = UINT32_MAX},
                      .trust = trust};
    b.doc = json_doc_new(&b.failed);
    int result = write_vars(&b, r, model, out);
    assert(result < 0 || b.i == yyjson_arr_size(r->input.messages));
    buf_deinit(&b.note);
    yyjson_mut_doc_free(b.doc);
    return result;
}
