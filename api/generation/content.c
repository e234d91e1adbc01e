#include "api/generation/content.h"

#include <errno.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/picture_parts.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/try.h"
#include "base/util.h"

yyjson_val *content_text(yyjson_val *part) {
    yyjson_val *type = json_given(part, "type"), *text;

    if (yyjson_is_str(part))
        return part;
    if (type && !json_is(type, CONTENT_TEXTS))
        return NULL;
    text = yyjson_obj_get(part, json_is(type, "refusal") ? "refusal" : "text");
    if (!yyjson_is_str(text))
        return NULL;
    return text;
}

bool content_is_data(yyjson_val *output) {
    bool part = json_given(output, "type") && content_text(output);

    if (!output || yyjson_is_null(output) || yyjson_is_str(output) || part)
        return false;
    JSON_EACH(entry, output) {
        if (yyjson_is_str(yyjson_obj_get(entry, "type")))
            return false;
    }
    return !yyjson_is_arr(output) || yyjson_arr_size(output) > 0;
}

int content_add_json(struct buf *out, yyjson_val *v) {
    CLEANUP(freep) char *text = yyjson_val_write(v, 0, NULL);
    bool in_string = false;

    if (!text)
        return -ENOMEM;
    for (const char *s = text; *s; s++) {
        TRY(buf_add_char(out, *s));
        if (in_string && *s == '\\')
            TRY(buf_add_char(out, *++s));
        else if (*s == '"')
            in_string = !in_string;
        else if (!in_string && (*s == ',' || *s == ':'))
            TRY(buf_add_char(out, ' '));
    }
    return 0;
}

bool content_is_odd(yyjson_val *part) {
    yyjson_val *type = yyjson_obj_get(part, "type");

    if (content_text(part))
        return false;
    return !yyjson_is_str(type) || json_is(type, CONTENT_TEXTS);
}

bool content_is_record(yyjson_val *part) {
    static const char *const media[] = {"image", "audio", "video", "screenshot"};
    const char *type = json_cstr(yyjson_obj_get(part, "type"));
    yyjson_val *resource = yyjson_obj_get(part, "resource");

    if (!type || json_is(yyjson_obj_get(part, "type"), CONTENT_TEXTS))
        return false;
    for (size_t i = 0; i < ARRAY_SIZE(media); i++)
        if (strstr(type, media[i]))
            return false;
    if (strstr(type, "file") && !json_given(part, "name") && !json_given(part, "path"))
        return false;
    if (strcmp(type, "document") == 0 && !json_given(part, "document"))
        return false;
    return !yyjson_is_str(yyjson_obj_get(part, "data")) && !json_given(resource, "blob") &&
           !json_given(part, "encrypted_content");
}

int content_add_odd(struct buf *out, yyjson_val *part) {
    yyjson_val *v = json_has(part, "type", CONTENT_TEXTS) ? json_given(part, "text") : part;

    if (!v)
        return 0;
    return content_add_json(out, v);
}

void content_deinit(struct content *c) {
    buf_deinit(&c->text);
}

/* Ends the collected text, which becomes a part of type text. */
static void flush(struct content *c, yyjson_mut_doc *doc) {
    if (c->text.len)
        yyjson_mut_arr_append(c->parts,
                              json_make(doc, "{type:'text', text:%}", json_text_of(doc, &c->text)));
    buf_clear(&c->text);
}

/* Adds a part without a text. */
static void content_add_part(struct content *c, yyjson_mut_doc *doc, yyjson_mut_val *part,
                             const char *place) {
    if (!c->parts)
        c->parts = yyjson_mut_arr(doc);
    flush(c, doc);
    yyjson_mut_obj_add_strcpy(doc, part, PICTURE_PLACE, place);
    yyjson_mut_arr_append(c->parts, part);
}

void content_add_file(struct content *c, yyjson_mut_doc *doc, const char *place) {
    content_add_part(c, doc, json_constant(doc, "{type:'file'}"), place);
}

void content_add_picture(struct content *c, yyjson_mut_doc *doc, yyjson_val *data,
                         yyjson_val *detail, const char *place) {
    content_add_part(c, doc,
                     json_make(doc, "{type:'image_url', image_url:%, detail:%}",
                               yyjson_val_mut_copy(doc, data), yyjson_val_mut_copy(doc, detail)),
                     place);
}

yyjson_mut_val *content_finish(struct content *c, yyjson_mut_doc *doc) {
    yyjson_mut_val *v = c->parts;

    if (v)
        flush(c, doc);
    else
        v = json_text_of(doc, &c->text);
    buf_clear(&c->text);
    c->parts = NULL;
    return v;
}
