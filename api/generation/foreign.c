#include "api/generation/foreign.h"

#include <string.h>

#include "base/json_read.h"
#include "base/try.h"
#include "base/util.h"

static int foreign_add_line(struct buf *out, const char *s, size_t len) {
    if (len && out->len && out->data[out->len - 1] != '\n')
        TRY(buf_add_char(out, '\n'));
    return buf_add(out, s, len);
}

/* Returns true for the type of a part that no text describes. */
static bool foreign_is_picture(yyjson_val *type) {
    const char *s = json_cstr(type);

    return s && (strstr(s, "image") || strstr(s, "audio") || strstr(s, "screenshot"));
}

static bool foreign_is_file(yyjson_val *type) {
    const char *s = json_cstr(type);

    return s && (strstr(s, "file") || strstr(s, "document"));
}

static int add_note(struct buf *out) {
    return foreign_add_line(out, FOREIGN_NOT_VISIBLE, strlen(FOREIGN_NOT_VISIBLE));
}

/* Calls itself for members: bodies are at most JSON_DEPTH deep. */
int foreign_text(struct buf *out, yyjson_val *v) {
    static const char *const members[] = {
        "title",  "url",    "filename", "text",   "refusal", "logs",       "content",
        "source", "output", "outputs",  "result", "results", "stdout",     "stderr",
        "lines",  "error",  "summary",  "reason", "message", "error_code", "error_message"};
    size_t before = out->len;
    yyjson_val *type = yyjson_obj_get(v, "type");

    if (yyjson_is_str(v))
        return foreign_add_line(out, json_text(v), json_len(v));
    if (foreign_is_picture(type))
        return add_note(out);
    JSON_EACH(part, v) {
        TRY(foreign_text(out, part));
    }
    for (size_t i = 0; i < ARRAY_SIZE(members) && yyjson_is_obj(v); i++)
        TRY(foreign_text(out, yyjson_obj_get(v, members[i])));
    if (yyjson_equals_str(type, "text")) /* a document's source */
        TRY(foreign_text(out, yyjson_obj_get(v, "data")));
    if (out->len != before || !foreign_is_file(type))
        return 0;
    return add_note(out);
}
