#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "text/template.h"

/* ChatML without a template language, in text/template.h's words. */

struct template {
    int unused;
};

int template_new(struct template **out, const char *source, size_t len, struct err *err) {
    (void)source;
    (void)len;
    (void)err;
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : -ENOMEM;
}

struct template *template_free(struct template *t) {
    free(t);
    return NULL;
}

int template_render(const struct template *t, yyjson_val *vars, const struct template_opts *opts,
                    struct rendered *out, struct err *err) {
    yyjson_val *m, *tools = yyjson_obj_get(vars, "tools");
    size_t i, n;

    (void)t;
    (void)opts;
    buf_init(&out->text, 16 << 20);
    out->user = calloc(yyjson_arr_size(yyjson_obj_get(vars, "messages")), sizeof(*out->user));
    yyjson_arr_foreach(yyjson_obj_get(vars, "messages"), i, n, m) {
        yyjson_val *content = yyjson_obj_get(m, "content");

        if (yyjson_equals_str(yyjson_obj_get(m, "role"), "function"))
            return err_set(err, 400, NULL, "no functions here");
        buf_add_str(&out->text, "<|im_start|>");
        buf_add_str(&out->text, yyjson_get_str(yyjson_obj_get(m, "role")));
        buf_add_char(&out->text, '\n');
        out->user[out->n_user].begin = out->text.len;
        buf_add(&out->text, yyjson_get_str(content), yyjson_get_len(content));
        out->user[out->n_user++].end = out->text.len;
        buf_add_str(&out->text, "<|im_end|>\n");
    }
    if (yyjson_arr_size(tools))
        buf_printf(&out->text, "[%zu]", yyjson_arr_size(tools));
    if (yyjson_get_bool(yyjson_obj_get(vars, "add_generation_prompt")))
        buf_add_str(&out->text, "<|im_start|>assistant\n");
    return 0;
}

void rendered_deinit(struct rendered *r) {
    buf_deinit(&r->text);
    free(r->user);
}

bool template_uses(const struct template *t, const char *name) {
    (void)t;
    (void)name;
    return false;
}
