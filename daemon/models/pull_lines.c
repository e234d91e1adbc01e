#include "daemon/models/pull_lines.h"

#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/json_value.h"
#include "base/try.h"

static void read_progress_line(struct pull_lines *p, const char *text, size_t len) {
    yyjson_doc *doc = yyjson_read(text, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    const char *error = json_cstr(yyjson_obj_get(root, "error"));

    if (error)
        snprintf(p->error, sizeof(p->error), "%s", error);
    else if (p->report && yyjson_is_obj(root))
        p->report(p->ctx, text, len);
    yyjson_doc_free(doc);
}

static int pull_lines_add_data(struct pull_lines *p, const char *data, size_t len) {
    const char *end;

    for (; (end = memchr(data, '\n', len)); len -= (size_t)(end + 1 - data), data = end + 1) {
        TRY(buf_add(&p->line, data, (size_t)(end - data)));
        read_progress_line(p, p->line.data, p->line.len);
        buf_clear(&p->line);
    }
    return buf_add(&p->line, data, len);
}

int pull_lines_add(struct pull_lines *p, const char *data, size_t len) {
    p->line.max = PULL_LINE_MAX;
    int r = p->failed ? 0 : pull_lines_add_data(p, data, len);
    p->failed |= r < 0;
    return r;
}

void pull_lines_deinit(struct pull_lines *p) {
    buf_deinit(&p->line);
}
