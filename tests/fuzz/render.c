/*
 * Renders templates for check_jinja2.py: reads lines of {"source": text, "vars": object}, writes
 * for each {"text": text} or {"error": text}.
 */

#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "text/template.h"

#define LINE_MAX_BYTES 65536

static int render(yyjson_val *source, yyjson_val *vars, struct rendered *out, struct err *err) {
    CLEANUP(template_freep) struct template *t = NULL;
    const struct template_opts opts = {.now_unix = 1768469213};
    int r = template_new(&t, yyjson_get_str(source), yyjson_get_len(source), err);

    return r < 0 ? r : template_render(t, vars, &opts, out, err);
}

int main(void) {
    static char line[LINE_MAX_BYTES];

    while (fgets(line, sizeof(line), stdin)) {
        yyjson_doc *in = yyjson_read(line, strlen(line), 0);
        yyjson_val *root = yyjson_doc_get_root(in), *source = yyjson_obj_get(root, "source");
        yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
        yyjson_mut_val *answer = yyjson_mut_obj(d);
        struct rendered out = {0};
        struct err err = {0};

        if (!yyjson_is_str(source)) {
            fprintf(stderr, "no source in: %s", line);
            return 1;
        }
        if (render(source, yyjson_obj_get(root, "vars"), &out, &err) == 0)
            yyjson_mut_obj_add_strn(d, answer, "text", out.text.len ? out.text.data : "",
                                    out.text.len);
        else
            yyjson_mut_obj_add_str(d, answer, "error", err.message);
        yyjson_mut_doc_set_root(d, answer);
        char *json = yyjson_mut_write(d, YYJSON_WRITE_ALLOW_INVALID_UNICODE, NULL);
        puts(json);
        free(json);
        rendered_deinit(&out);
        yyjson_mut_doc_free(d);
        yyjson_doc_free(in);
    }
    return 0;
}
