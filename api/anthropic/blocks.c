/*
 * Content blocks of the user and of tools as text.
 *
 * In the result of a tool a note stands for a block that a model cannot read: an agent cannot take
 * back what its tool has said, and every later request of the conversation would be refused as
 * well.
 */

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "api/anthropic/input.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/try.h"

#define NOT_READABLE "[%.64s: left out, this model reads only text]"

int anthropic_block(struct anthropic_input *in, yyjson_val *block, size_t i, anthropic_taker f,
                    void *to) {
    const char *type = json_cstr(yyjson_obj_get(block, "type"));
    size_t len = strlen(in->place);

    snprintf(in->place + len, sizeof(in->place) - len, ".%zu", i);
    if (content_text(block))
        type = "text";
    if (!type && !yyjson_is_obj(block))
        return anthropic_refuse(in, "", "must be a content block");
    if (!type)
        return anthropic_refuse(in, ".type", "must be a string");
    TRY(f(in, block, type, to));
    in->place[len] = 0;
    return 0;
}

int anthropic_each(struct anthropic_input *in, yyjson_val *blocks, const char *field,
                   anthropic_taker f, void *to) {
    size_t len = strlen(in->place);

    assert(yyjson_is_arr(blocks) && in->place[0]);
    snprintf(in->place + len, sizeof(in->place) - len, "%s", field);
    JSON_EACH_AT(i, block, blocks) {
        TRY(anthropic_block(in, block, i, f, to));
    }
    in->place[len] = 0;
    return 0;
}

int anthropic_string(struct anthropic_input *in, yyjson_val *v, const char *field,
                     struct buf *out) {
    if (!yyjson_is_str(v))
        return anthropic_refuse(in, field, "must be a string");
    return json_add_text(out, v);
}

/* Adds the string @key of @block, if there is one, to @out on a line of its own as
 * <key>..</key>. */
static int add_tagged(struct anthropic_input *in, yyjson_val *block, const char *key,
                      struct buf *out) {
    yyjson_val *v = json_given(block, key);
    char field[32];

    if (!v)
        return 0;
    snprintf(field, sizeof(field), ".%s", key);
    TRY(buf_printf(out, "<%s>", key));
    TRY(anthropic_string(in, v, field, out));
    return buf_printf(out, "</%s>\n", key);
}

int anthropic_plain(struct anthropic_input *in, yyjson_val *block, const char *type, void *to) {
    struct buf *out = to;

    assert(out);
    if (strcmp(type, "text") != 0)
        return anthropic_refuse(in, ".type", "is not supported here: only \"text\" is");
    if (out->len && out->data[out->len - 1] != '\n')
        TRY(buf_add_char(out, '\n'));
    return anthropic_string(in, content_text(block), ".text", out);
}

/* Adds the string or the array of text blocks @v, which is at @field of the place. */
static int add_plain_content(struct anthropic_input *in, yyjson_val *v, const char *field,
                             struct buf *out) {
    if (yyjson_is_str(v))
        return json_add_text(out, v);
    if (!yyjson_is_arr(v))
        return anthropic_refuse(in, field, "must be a string or an array of text blocks");
    return anthropic_each(in, v, field, anthropic_plain, out);
}

/* Adds a document of text. Sets *text to false, and adds nothing, if it is of another kind. */
static int add_document(struct anthropic_input *in, yyjson_val *block, struct buf *out,
                        bool *text) {
    yyjson_val *source = yyjson_obj_get(block, "source"), *type = yyjson_obj_get(source, "type");

    if (!yyjson_is_str(type))
        return anthropic_refuse(in, ".source", "must be an object with a type");
    *text = json_is(type, "text content");
    if (!*text)
        return 0;
    TRY(buf_add_str(out, "<document>\n"));
    TRY(add_tagged(in, block, "title", out));
    TRY(add_tagged(in, block, "context", out));
    if (yyjson_equals_str(type, "text"))
        TRY(anthropic_string(in, yyjson_obj_get(source, "data"), ".source.data", out));
    else
        TRY(add_plain_content(in, yyjson_obj_get(source, "content"), ".source.content", out));
    return buf_add_str(out, "\n</document>");
}

static int add_search_result(struct anthropic_input *in, yyjson_val *block, struct buf *out) {
    TRY(buf_add_str(out, "<search_result>\n"));
    TRY(add_tagged(in, block, "title", out));
    TRY(add_tagged(in, block, "source", out));
    TRY(add_plain_content(in, yyjson_obj_get(block, "content"), ".content", out));
    return buf_add_str(out, "\n</search_result>");
}

int anthropic_text(struct anthropic_input *in, yyjson_val *block, const char *type, bool result,
                   struct buf *out) {
    bool text = false;

    if (strcmp(type, "text") == 0)
        return anthropic_string(in, content_text(block), ".text", out);
    if (strcmp(type, "search_result") == 0)
        return add_search_result(in, block, out);
    if (strcmp(type, "document") == 0 && (!result || yyjson_obj_get(block, "source")))
        TRY(add_document(in, block, out, &text));
    if (text)
        return 0;
    if (result && strcmp(type, "tool_reference") == 0) {
        yyjson_val *name = yyjson_obj_get(block, "tool_name");

        if (yyjson_is_str(name))
            return anthropic_show_tool(in, name, out);
        return anthropic_refuse(in, ".tool_name", "must be a string");
    }
    if (result && content_is_record(block) && strcmp(type, "container_upload") != 0)
        return content_add_json(out, block);
    if (result || strcmp(type, "container_upload") == 0)
        return buf_printf(out, NOT_READABLE, type);
    if (strcmp(type, "document") != 0)
        return anthropic_refuse(in, ".type", "is not supported here");
    return 1;
}

bool anthropic_picture(struct anthropic_input *in, yyjson_val *block, struct content *to) {
    yyjson_val *source = yyjson_obj_get(block, "source"), *type = yyjson_obj_get(source, "type");
    bool url = yyjson_equals_str(type, "url");
    char place[160];

    if (!url && !yyjson_equals_str(type, "base64"))
        return false;
    snprintf(place, sizeof(place), "%s.source.%s", in->place, url ? "url" : "data");
    content_add_picture(to, in->doc, yyjson_obj_get(source, url ? "url" : "data"), NULL, place);
    return true;
}
