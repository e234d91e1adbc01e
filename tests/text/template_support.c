#include "tests/text/template_support.h"

#include <criterion/criterion.h>
#include <string.h>

char *template_text(const char *source, const char *vars, const struct template_opts *opts,
                    struct err *err) {
    CLEANUP(template_freep) struct template *t = NULL;
    struct rendered out = {0};
    char *text = NULL;

    *err = (struct err){0};
    if (template_new(&t, source, strlen(source), err))
        return NULL;
    yyjson_doc *doc = yyjson_read(vars, strlen(vars), 0);

    cr_assert(doc, "variables are not JSON: %s", vars);
    if (template_render(t, yyjson_doc_get_root(doc), opts, &out, err) == 0) {
        text = strndup(out.text.data ? out.text.data : "", out.text.len);
        rendered_deinit(&out);
    }
    yyjson_doc_free(doc);
    return text;
}

void expect_text(const char *source, const char *vars, const char *want) {
    struct err err;
    CLEANUP(freep) char *text = template_text(source, vars, NULL, &err);

    if (!text)
        cr_expect(false, "%s: failed: %s", source, err.message);
    else
        cr_expect_str_eq(text, want, "%s: got <%s>, want <%s>", source, text, want);
}

void expect_error(const char *source, const char *vars, const char *part) {
    struct err err;
    CLEANUP(freep) char *text = template_text(source, vars, NULL, &err);

    if (text)
        cr_expect(false, "%s: no error but <%s>", source, text);
    else
        cr_expect(strstr(err.message, part), "%s: got \"%s\", want \"%s\"", source, err.message,
                  part);
}
