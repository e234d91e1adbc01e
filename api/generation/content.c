#include "api/generation/content.h"

#include <errno.h>
#include "api/generation/picture_parts.h"

void content_deinit(struct content *c) {
    buf_deinit(&c->text);
}

/* Ends the collected text, which becomes a part of type text. */
static int flush(struct content *c, yyjson_mut_doc *doc) {
    if (!c->text.len)
        return 0;
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(doc, c->parts);
    yyjson_mut_val *text = yyjson_mut_strncpy(doc, c->text.data, c->text.len);

    buf_clear(&c->text);
    return o && text && yyjson_mut_obj_add_str(doc, o, "type", "text") &&
                   yyjson_mut_obj_add_val(doc, o, "text", text)
               ? 0
               : -ENOMEM;
}

/* Adds a part of @type. NULL: no memory. */
static yyjson_mut_val *add_part(struct content *c, yyjson_mut_doc *doc, const char *type,
                                const char *place) {
    if ((!c->parts && !(c->parts = yyjson_mut_arr(doc))) || flush(c, doc) < 0)
        return NULL;
    yyjson_mut_val *o = yyjson_mut_arr_add_obj(doc, c->parts);

    return o && yyjson_mut_obj_add_str(doc, o, "type", type) &&
                   yyjson_mut_obj_add_strcpy(doc, o, PICTURE_PLACE, place)
               ? o
               : NULL;
}

int content_add_file(struct content *c, yyjson_mut_doc *doc, const char *place) {
    return add_part(c, doc, "file", place) ? 0 : -ENOMEM;
}

int content_add_picture(struct content *c, yyjson_mut_doc *doc, yyjson_val *data,
                        yyjson_val *detail, const char *place) {
    yyjson_mut_val *o = add_part(c, doc, "image_url", place);
    bool ok = o;

    if (ok && data)
        ok = yyjson_mut_obj_add_val(doc, o, "image_url", yyjson_val_mut_copy(doc, data));
    if (ok && detail)
        ok = yyjson_mut_obj_add_val(doc, o, "detail", yyjson_val_mut_copy(doc, detail));
    return ok ? 0 : -ENOMEM;
}

yyjson_mut_val *content_take(struct content *c, yyjson_mut_doc *doc) {
    yyjson_mut_val *v = c->parts;

    if (v && flush(c, doc) < 0)
        return NULL;
    if (!v)
        v = yyjson_mut_strncpy(doc, c->text.data ? c->text.data : "", c->text.len);
    buf_clear(&c->text);
    c->parts = NULL;
    return v;
}
