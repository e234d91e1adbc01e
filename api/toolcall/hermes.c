/*
 * Hermes: <tool_call>{"name": .., "arguments": {..}}</tool_call>, one pair of tags for each call.
 * Hermes 2 and 3, Qwen 2.5 and 3, EXAONE 4, Granite 4, Reka and many fine-tunes write it. Models
 * whose template knows no tools are asked for it, too (`generic`). ERNIE 4.5 Thinking puts its text
 * into <response>.
 */

#include <errno.h>

#include "api/http/json.h"
#include "api/toolcall/parser.h"
#include "base/json_read.h"
#include "base/text.h"
#include "base/try.h"

enum { OPENED = TC_FIRST, OBJECT, CLOSE, RESPONSE };

static const struct tc_state states[] = {
    [TC_CONTENT] = TC_READS(TC_TEXT, {"<tool_call>", OPENED, TC_OPEN}),
    [OPENED] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = CLOSE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"</tool_call>", TC_CONTENT, 0}),
};

#define SHAPE                                                                                      \
    {                                                                                              \
        .separator = "\n", .call_begin = "<tool_call>\n{\"name\": \"",                             \
        .name_end = "\", \"arguments\": ", .call_end = "}\n</tool_call>"                           \
    }

const struct toolcall_format format_hermes = {
    .name = "hermes",
    .detect = {"<tool_call>"},
    .triggers = {"<tool_call>"},
    .shape = SHAPE,
    .states = states,
};

/* A response ends at the last closing tag, since users may ask for such tags inside. */
static const char *const ernie_follow[] = {"<tool_call>", "{", NULL};

static const struct tc_state ernie_states[] = {
    [TC_CONTENT] =
        TC_READS(TC_TEXT, {"<tool_call>", OPENED, TC_OPEN}, {"<response>", RESPONSE, TC_START}),
    [RESPONSE] = {.kind = TC_TEXT,
                  .follow = ernie_follow,
                  TC_EDGES({"<tool_call>", OPENED, TC_OPEN}, {"</response>", TC_CONTENT, 0})},
    [OPENED] = TC_EXPECTS(TC_FAIL, {"{", OBJECT, 0}),
    [OBJECT] = {.kind = TC_OBJECT, .next = CLOSE, .act = TC_END},
    [CLOSE] = TC_EXPECTS(TC_CONTENT, {"</tool_call>", TC_CONTENT, 0}),
};

const struct toolcall_format format_ernie = {
    .name = "ernie",
    .detect = {"<tool_call>"},
    .around = "<global_setting>",
    .triggers = {"<tool_call>"},
    .content_begin = "<response>\n",
    .content_end = "\n</response>",
    .shape = SHAPE,
    .states = ernie_states,
};

const struct toolcall_format format_generic = {
    .name = "generic",
    .triggers = {"<tool_call>"},
    .shape = SHAPE,
    .states = states,
};

static const char intro[] =
    "You may call functions to help with the user's request. The functions, one JSON object per "
    "line:\n";
static const char outro[] =
    "\nTo call a function, write a JSON object with its name and arguments between tags, exactly "
    "like this:\n"
    "<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}\n"
    "</tool_call>\n"
    "Write one such block for each call and nothing after the last one. The results come in the "
    "next message. If no function is needed, answer directly.";

int toolcall_describe(struct buf *out, yyjson_val *tools) {
    TRY(buf_add_str(out, intro));
    JSON_EACH(tool, tools) {
        yyjson_val *f = yyjson_obj_get(tool, "function");
        size_t len;
        CLEANUP(freep) char *text = yyjson_val_write(f ? f : tool, 0, &len);

        TRY(text ? buf_add(out, text, len) : -ENOMEM);
        TRY(buf_add_char(out, '\n'));
    }
    return buf_add_str(out, outro);
}

int toolcall_write_call(struct buf *out, const char *name, const char *args, size_t args_len) {
    struct json j = {.out = out};
    TRY(buf_add_str(out, "<tool_call>\n{\"name\": "));
    json_cstring(&j, name);
    TRY(j.error);
    TRY(buf_add_str(out, ", \"arguments\": "));
    if (args_len)
        TRY(buf_add(out, args, args_len));
    else
        TRY(buf_add_str(out, "{}"));
    return buf_add_str(out, "}\n</tool_call>\n");
}

int toolcall_write_result(struct buf *out, const char *name, const char *result, size_t len) {
    TRY(buf_printf(out, "<tool_response>\n%s%s", text_or(name, ""), name ? ": " : ""));
    TRY(buf_add(out, result, len));
    return buf_add_str(out, "\n</tool_response>\n");
}
