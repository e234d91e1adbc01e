/* Translates bodies of /completion and /infill to bodies of /v1/completions. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/generation/endpoint.h"
#include "api/generation/model.h"
#include "api/generation/picture_parts.h"
#include "api/generation/prompt_steps.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "api/llamacpp/llamacpp.h"
#include "api/openai/openai.h"
#include "base/json_read.h"
#include "base/result.h"
#include "base/text.h"
#include "base/try.h"

struct input {
    struct prompt_job *job;
    yyjson_val *body;
    yyjson_mut_doc *doc;
    /* memory was short for it */
    bool failed;
    yyjson_mut_val *root;
    struct err *err;
    /* tokens of logit_bias, those that are named twice counted twice */
    size_t n_bias;
};

#define FIELDS_MAX 64u /* entries of response_fields */

static int llamacpp_refuse(struct input *in, const char *field, const char *what) {
    if (in->failed)
        return -ENOMEM;
    return err_set_code(in->err, 400, "invalid_value", field, "%s must be %s.", field, what);
}

/* Sets @key to @v in place of the client's value. */
static int llamacpp_replace(struct input *in, const char *key, yyjson_mut_val *v) {
    yyjson_mut_obj_remove_key(in->root, key);
    yyjson_mut_obj_add_val(in->doc, in->root, key, v);
    return 0;
}

/* ---- /infill ---- */

/* Adds the files of input_extra, which the editor has seen, as "NAME\nTEXT\n" each. */
static int llamacpp_add_files(struct input *in, struct buf *out) {
    static const char what[] = "an array of objects with filename and text";
    yyjson_val *files = yyjson_obj_get(in->body, "input_extra");

    if (files && !yyjson_is_arr(files))
        return llamacpp_refuse(in, "input_extra", what);
    JSON_EACH(file, files) {
        yyjson_val *name = yyjson_obj_get(file, "filename"), *text = yyjson_obj_get(file, "text");

        if (!yyjson_is_str(text) || (name && !yyjson_is_str(name)))
            return llamacpp_refuse(in, "input_extra", what);
        TRY(json_add_text(out, name));
        if (name)
            TRY(buf_add_char(out, '\n'));
        TRY(json_add_text(out, text));
        TRY(buf_add_char(out, '\n'));
    }
    return 0;
}

/* Replaces the members that an editor sends by prompt and suffix. */
static int fill_in(struct input *in) {
    static const char *const names[] = {"input_prefix", "prompt", "input_suffix"};
    CLEANUP(buf_deinit) struct buf before = {.max = UINT32_MAX};
    yyjson_val *v[ARRAY_SIZE(names)];

    TRY(llamacpp_add_files(in, &before));
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        v[i] = json_given(in->body, names[i]);
        if (v[i] && !yyjson_is_str(v[i]))
            return llamacpp_refuse(in, names[i], "a string");
        if (i < 2)
            TRY(json_add_text(&before, v[i]));
    }
    if (!json_len(v[2]))
        return err_set_code(in->err, 400, "missing_required_parameter", "input_suffix",
                            "Missing required parameter: input_suffix.");
    llamacpp_replace(in, "prompt", json_text_of(in->doc, &before));
    return llamacpp_replace(in, "suffix", yyjson_val_mut_copy(in->doc, v[2]));
}

/* ---- prompts of texts and tokens ---- */

static int llamacpp_encode(struct input *in, const char *s, size_t len, bool first,
                           struct tokens *out) {
    return tokenizer_encode(in->job->model->info->tokenizer, s, len,
                            TOKENIZE_SPECIAL | (first ? TOKENIZE_BOS : 0), NULL, 0, out);
}

static int llamacpp_add_text(struct input *in, yyjson_val *v, bool first, struct tokens *out) {
    return llamacpp_encode(in, json_text(v), json_len(v), first, out);
}

/* ---- prompts with pictures ---- */

/* Adds the pictures of @data to the request. */
static int add_pictures(struct input *in, yyjson_val *data) {
    char place[64];

    if (!yyjson_is_arr(data))
        return llamacpp_refuse(in, "multimodal_data", "an array of pictures in base64");
    if (!*in->job->model->sight.text)
        return llamacpp_refuse(in, "multimodal_data", "absent, because this model reads only text");
    JSON_EACH_AT(i, item, data) {
        snprintf(place, sizeof(place), "multimodal_data[%zu]", i);
        TRY(picture_parts_add(&in->job->request, item, false, place, in->err));
    }
    return 0;
}

/* Adds the tokens of a text with a marker (/props tells it) for each of the pictures @data. As in
 * llama-server, the tokens around a picture end the text before it and begin the text behind it. */
static int add_marked(struct input *in, yyjson_val *text, yyjson_val *data, struct tokens *out) {
    CLEANUP(buf_deinit) struct buf piece = {.max = UINT32_MAX};
    const struct sight *sight = &in->job->model->sight;
    const char *at = json_text(text), *end = at + json_len(text), *found;
    char marker[MEDIA_MARKER];
    size_t n = 0;

    TRY(add_pictures(in, data));
    llamacpp_marker(in->job->env, marker);
    while ((found = memmem(at, (size_t)(end - at), marker, strlen(marker)))) {
        if (buf_add(&piece, at, (size_t)(found - at)) < 0 ||
            buf_add(&piece, sight->text, sight->split) < 0)
            return -ENOMEM;
        TRY(llamacpp_encode(in, piece.data, piece.len, n++ == 0, out));
        buf_clear(&piece);
        TRY(sight->stays ? 0 : tokens_add(out, sight->mark));
        TRY(buf_add_str(&piece, sight->text + sight->split + sight->mark_len));
        at = found + strlen(marker);
    }
    if (n != yyjson_arr_size(data))
        return llamacpp_refuse(in, "prompt_string",
                               "a text with one media marker for each picture");
    if (buf_add(&piece, at, (size_t)(end - at)) < 0)
        return -ENOMEM;
    return llamacpp_encode(in, text_or(piece.data, ""), piece.len, n == 0, out);
}

static int prompt_add_items(struct input *in, yyjson_val *text, struct tokens *t) {
    static const char form[] = "texts and arrays of tokens and texts";

    if (yyjson_is_str(text))
        return llamacpp_add_text(in, text, true, t);
    if (!yyjson_is_arr(text))
        return llamacpp_refuse(in, "prompt", form);
    JSON_EACH_AT(i, item, text) {
        if (yyjson_is_str(item))
            TRY(llamacpp_add_text(in, item, i == 0, t));
        else if (yyjson_is_uint(item) && yyjson_get_uint(item) <= INT32_MAX)
            TRY(tokens_add(t, (int32_t)yyjson_get_uint(item)));
        else
            return llamacpp_refuse(in, "prompt", form);
    }
    return 0;
}

/* Adds one prompt, @v: a text, {"prompt_string": text}, or an array of ids and texts. */
static int add_prompt(struct input *in, yyjson_val *v, yyjson_mut_val *to) {
    CLEANUP(tokens_deinit)
    struct tokens t = {.max = REQUEST_PROMPTS_MAX * (size_t)in->job->model->info->max_context};
    yyjson_val *text = yyjson_is_obj(v) ? yyjson_obj_get(v, "prompt_string") : v;
    yyjson_val *data = yyjson_is_str(text) ? json_given(v, "multimodal_data") : NULL;
    bool none = !data || (yyjson_is_arr(data) && !yyjson_arr_size(data));
    int r;

    if (none)
        r = prompt_add_items(in, text, &t);
    else
        r = add_marked(in, text, data, &t);
    if (r == -EMSGSIZE)
        return prompt_too_long(in->job, "prompt", t.max, in->err);
    TRY(r);
    yyjson_mut_arr_append(to, yyjson_mut_arr_with_uint32(in->doc, (const uint32_t *)t.id, t.n));
    return 0;
}

/* Turns all prompts into arrays of tokens if texts, tokens and objects stand beside each other, or
 * within one prompt. */
static int mix_prompts(struct input *in) {
    yyjson_val *v = yyjson_obj_get(in->body, "prompt");
    size_t n_text = 0, n_id = 0, n_other = 0, n_mixed = 0;

    n_other = yyjson_is_obj(v);
    JSON_EACH(item, v) {
        n_text += yyjson_is_str(item);
        n_id += yyjson_is_num(item);
        n_other += yyjson_is_obj(item) || yyjson_is_arr(item);
        n_mixed += yyjson_is_obj(item);
        JSON_EACH(inner, item) {
            n_mixed += yyjson_is_str(inner);
        }
    }
    if (!yyjson_is_obj(v) && (n_text > 0) + (n_id > 0) + (n_other > 0) < 2 && n_mixed == 0)
        return 0; /* one of the four forms of /v1/completions */
    yyjson_mut_val *all = yyjson_mut_arr(in->doc);
    if (yyjson_is_obj(v) || n_id > 0) {
        TRY(add_prompt(in, v, all));
        return llamacpp_replace(in, "prompt", yyjson_mut_arr_remove_first(all));
    }
    JSON_EACH(item, v) {
        TRY(add_prompt(in, item, all));
    }
    return llamacpp_replace(in, "prompt", all);
}

/* ---- parameters of other names and forms ---- */

static int llamacpp_add_bias(struct input *in, yyjson_val *key, yyjson_val *value,
                             yyjson_mut_val *to) {
    static const char what[] = "pairs of a token or text and a number from -100 to 100 or false";
    CLEANUP(tokens_deinit) struct tokens t = {.max = REQUEST_BIAS_MAX};
    const char *text = json_cstr(key);
    char id[16], *end = id;
    int r;

    if (!yyjson_is_num(value) && !yyjson_is_false(value))
        return llamacpp_refuse(in, "logit_bias", what);
    if (text && *text && strtoul(text, &end, 10) <= INT32_MAX && !*end && *text != ' ')
        r = tokens_add(&t, (int32_t)strtoul(text, NULL, 10));
    else if (yyjson_is_str(key))
        r = tokenizer_encode(in->job->model->info->tokenizer, json_text(key), json_len(key), 0,
                             NULL, 0, &t);
    else if (yyjson_is_uint(key) && yyjson_get_uint(key) <= INT32_MAX)
        r = tokens_add(&t, (int32_t)yyjson_get_uint(key));
    else
        return llamacpp_refuse(in, "logit_bias", what);
    in->n_bias += t.n;
    if (r == -EMSGSIZE || (r == 0 && in->n_bias > REQUEST_BIAS_MAX))
        return llamacpp_refuse(in, "logit_bias", "a list of at most 1024 tokens");
    for (size_t i = 0; r == 0 && i < t.n; i++) {
        snprintf(id, sizeof(id), "%d", (int)t.id[i]);
        yyjson_mut_obj_remove_key(to, id);
        double b = yyjson_is_num(value) ? yyjson_get_num(value) : -100;
        yyjson_mut_obj_add(to, yyjson_mut_strcpy(in->doc, id), yyjson_mut_real(in->doc, b));
    }
    return r;
}

/* Takes logit_bias: [[TOKEN or TEXT, BIAS or false], ...] or {TOKEN or TEXT: BIAS}. All tokens of a
 * text get its bias. */
static int read_bias(struct input *in) {
    yyjson_val *v = yyjson_obj_get(in->body, "logit_bias");
    yyjson_mut_val *to = yyjson_mut_obj(in->doc);

    if (!yyjson_is_ctn(v))
        return 0;
    JSON_EACH(item, v) {
        TRY(llamacpp_add_bias(in, yyjson_arr_get(item, 0), yyjson_arr_get(item, 1), to));
    }
    JSON_MEMBERS(key, item, v) {
        TRY(llamacpp_add_bias(in, key, item, to));
    }
    return llamacpp_replace(in, "logit_bias", to);
}

static int read_flag(struct input *in, const char *field, bool *out) {
    yyjson_val *v = json_given(in->body, field);

    if (v && !yyjson_is_bool(v))
        return llamacpp_refuse(in, field, "a boolean");
    *out = yyjson_is_true(v);
    return 0;
}

/* Reads the fields that choose the form of the answer. */
static int read_form(struct input *in) {
    struct llamacpp_completion *c = in->job->state;
    yyjson_val *n = yyjson_obj_get(in->body, "n_probs");
    yyjson_val *fields = json_given(in->body, "response_fields");
    int64_t probs = 0;
    bool after = false;

    assert(c);
    TRY(read_flag(in, "return_tokens", &c->return_tokens));
    TRY(read_flag(in, "post_sampling_probs", &after));
    if (after)
        return err_set_code(in->err, 400, "unsupported_parameter", "post_sampling_probs",
                            "post_sampling_probs is not supported: n_probs gives the "
                            "probabilities before sampling.");
    if (fields && (!yyjson_is_arr(fields) || yyjson_arr_size(fields) > FIELDS_MAX))
        return llamacpp_refuse(in, "response_fields", "an array of at most 64 paths");
    if (yyjson_arr_size(fields) > 0) {
        yyjson_doc_free(STEAL(c->fields));
        TRY(json_doc_seal(in->doc, yyjson_val_mut_copy(in->doc, fields), &c->fields));
    }
    if (n && (!json_whole(n, &probs) || probs > SUBMIT_TOP_MAX))
        return llamacpp_refuse(in, "n_probs", "an integer of at most 20");
    if (probs <= 0)
        return 0;
    return llamacpp_replace(in, "logprobs", yyjson_mut_sint(in->doc, probs));
}

/* ---- bodies ---- */

static int llamacpp_translate_body(struct input *in, yyjson_doc **out) {
    if (in->job->endpoint == &llamacpp_infill)
        TRY(fill_in(in));
    else
        TRY(mix_prompts(in));
    TRY(read_bias(in));
    TRY(read_form(in));
    return json_doc_seal(in->doc, in->root, out);
}

/* Without a limit the rest of the context is generated, unlike OpenAI's 16 tokens. Takes @body
 * over. */
int llamacpp_translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    struct input in = {.job = job, .body = yyjson_doc_get_root(body), .err = err};
    yyjson_doc *ours = NULL;

    in.doc = json_doc_copy(body, &in.failed);
    in.root = yyjson_mut_doc_get_root(in.doc);
    int r = llamacpp_translate_body(&in, &ours);
    yyjson_mut_doc_free(in.doc);
    yyjson_doc_free(body);
    if (r < 0)
        return r;
    struct gen_request *to = &job->request;
    struct request_picture *pictures = STEAL(to->made.pictures);
    uint32_t n = to->made.n_pictures;
    r = openai_read_completion(job, ours, err);
    assert(!to->made.pictures);
    to->made.pictures = pictures;
    to->made.n_pictures = n;
    if (r == 0 && !to->input.max_new)
        to->input.max_new = GEN_REQUEST_NO_LIMIT;
    return r;
}

int llamacpp_open(struct prompt_job *job, struct exchange *x, struct writer *w) {
    assert(!job->state);
    job->state = calloc(1, sizeof(struct llamacpp_completion));
    return enomem_unless(job->state);
}

void llamacpp_close(struct prompt_job *job) {
    struct llamacpp_completion *c = job->state;

    if (c)
        yyjson_doc_free(c->fields);
    free(c);
}
