#include "api/generation/gen_request.h"

#include <errno.h>
#include <yyjson.h>

#include "api/generation/picture_table.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/json_value.h"
#include "base/result.h"

void gen_request_drop_body(struct gen_request *r) {
    yyjson_doc_free(r->doc);
    yyjson_doc_free(r->input.form.doc);
    yyjson_doc_free(r->input.tools_doc);
    r->input.tools_doc = NULL;
    r->doc = NULL;
    r->input.choice.function = r->input.choice.allowed = NULL;
    r->input.form = (struct gen_request_form){0};
    yyjson_doc_free(r->made.merged_kwargs);
    r->made.merged_kwargs = NULL;
    r->input.messages = r->input.tools = r->input.kwargs = r->input.prompt = r->input.suffix =
        r->input.tokens = r->input.reasoning_effort = r->input.expected = r->input.response_format =
            r->input.breakers = r->input.query = r->input.documents = NULL;
}

int gen_request_set_prefill(struct gen_request *r, const char *text, size_t len) {
    r->made.prefill = (struct str){arena_strndup(&r->arena, text, len), (uint32_t)len};
    return enomem_unless(r->made.prefill.data);
}

yyjson_val *gen_request_switch(const struct gen_request *r) {
    static const char *const names[] = {"enable_thinking", "thinking"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        yyjson_val *v = yyjson_obj_get(r->input.kwargs, names[i]);

        if (yyjson_is_bool(v))
            return v;
    }
    return NULL;
}

bool gen_request_allows_kwargs(yyjson_val *kwargs) {
    static const char reserved[] = "messages tools add_generation_prompt bos_token eos_token "
                                   "pad_token unk_token documents";

    if (!yyjson_is_obj(kwargs))
        return false;
    JSON_MEMBERS(key, value, kwargs) {
        if (yyjson_is_ctn(value) || json_is(key, reserved))
            return false;
    }
    return true;
}

/* Returns true if the request has a value for the variable @key, perhaps under another name. */
static bool sets(const struct gen_request *r, yyjson_val *key) {
    if (yyjson_obj_getn(r->input.kwargs, json_text(key), json_len(key)))
        return true;
    if (json_is(key, "enable_thinking thinking"))
        return r->input.thinking || r->input.reasoning_effort || gen_request_switch(r);
    return json_is(key, "reasoning_effort reasoning_strength") && r->input.reasoning_effort;
}

int gen_request_default_kwargs(struct gen_request *r, yyjson_val *defaults) {
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = json_doc_new(&failed);
    yyjson_mut_val *all = yyjson_mut_obj(d);

    JSON_MEMBERS(key, value, r->input.kwargs) {
        yyjson_mut_obj_add(all, yyjson_val_mut_copy(d, key), yyjson_val_mut_copy(d, value));
    }
    JSON_MEMBERS(key, value, defaults) {
        if (!sets(r, key))
            yyjson_mut_obj_add(all, yyjson_val_mut_copy(d, key), yyjson_val_mut_copy(d, value));
    }
    int e = json_doc_seal(d, all, &r->made.merged_kwargs);
    if (e < 0)
        return e;
    r->input.kwargs = yyjson_doc_get_root(r->made.merged_kwargs);
    return 0;
}

bool gen_request_thinks_not(const struct gen_request *r) {
    yyjson_val *own = gen_request_switch(r);

    if (own)
        return yyjson_is_false(own);
    if (r->input.thinking == THINK_ON || r->input.thinking == THINK_OFF)
        return r->input.thinking == THINK_OFF;
    return yyjson_equals_str(r->input.reasoning_effort, "none");
}

static void drop_pictures(struct gen_request *r) {
    for (uint32_t i = 0; i < r->made.n_pictures; i++) {
        free(r->made.pictures[i].address);
        free(r->made.pictures[i].file);
        picture_release(r->made.pictures[i].seen);
    }
    free(r->made.pictures);
    r->made.pictures = NULL;
    r->made.n_pictures = 0;
    yyjson_doc_free(r->made.seen_messages);
    r->made.seen_messages = NULL;
}

void gen_request_drop_functions(struct gen_request *r) {
    yyjson_doc_free(r->made.functions);
    yyjson_doc_free(r->made.shown);
    r->made.functions = r->made.shown = NULL;
}

void gen_request_deinit(struct gen_request *r) {
    gen_request_drop_body(r);
    gen_request_drop_functions(r);
    drop_pictures(r);
    arena_deinit(&r->arena);
}
