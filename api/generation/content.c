#include "api/generation/content.h"

#include <yyjson.h>

#include "api/generation/picture_parts.h"
#include "api/http/json_build.h"

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
