#include "api/generation/gen_request.h"

#include <errno.h>
#include <yyjson.h>
#include "api/generation/picture_table.h"

void gen_request_drop_body(struct gen_request *r) {
    yyjson_doc_free(r->doc);
    yyjson_doc_free(r->form.doc);
    r->doc = NULL;
    r->choice.function = r->choice.allowed = NULL;
    r->form = (struct gen_request_form){0};
    r->messages = r->tools = r->kwargs = r->prompt = r->suffix = r->tokens = r->reasoning_effort =
        r->expected = r->response_format = r->breakers = r->query = r->documents = NULL;
}

int gen_request_set_prefill(struct gen_request *r, const char *text, size_t len) {
    r->prefill = (struct str){arena_strndup(&r->arena, text, len), (uint32_t)len};
    return r->prefill.data ? 0 : -ENOMEM;
}

yyjson_val *gen_request_switch(const struct gen_request *r) {
    static const char *const names[] = {"enable_thinking", "thinking"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        yyjson_val *v = yyjson_obj_get(r->kwargs, names[i]);

        if (yyjson_is_bool(v))
            return v;
    }
    return NULL;
}

bool gen_request_thinks_not(const struct gen_request *r) {
    yyjson_val *own = gen_request_switch(r);

    if (own)
        return yyjson_is_false(own);
    if (r->thinking == THINK_ON || r->thinking == THINK_OFF)
        return r->thinking == THINK_OFF;
    return yyjson_equals_str(r->reasoning_effort, "none");
}

static void drop_pictures(struct gen_request *r) {
    for (uint32_t i = 0; i < r->n_pictures; i++) {
        free(r->pictures[i].address);
        free(r->pictures[i].file);
        picture_release(r->pictures[i].seen);
    }
    free(r->pictures);
    r->pictures = NULL;
    r->n_pictures = 0;
    yyjson_doc_free(r->seen_messages);
    r->seen_messages = NULL;
}

void gen_request_drop_functions(struct gen_request *r) {
    yyjson_doc_free(r->functions);
    yyjson_doc_free(r->shown);
    r->functions = r->shown = NULL;
}

void gen_request_deinit(struct gen_request *r) {
    gen_request_drop_body(r);
    gen_request_drop_functions(r);
    drop_pictures(r);
    arena_deinit(&r->arena);
}
