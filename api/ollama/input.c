/*
 * Translates bodies of Ollama's API to bodies of OpenAI's. Sampling parameters that a request
 * leaves out have the model's defaults, as in every other dialect. `num_ctx` is ignored, since
 * every request has the whole context; a longer prompt is refused, not cut.
 */

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/content.h"
#include "api/generation/env.h"
#include "api/generation/fields.h"
#include "api/generation/gen_request.h"
#include "api/generation/messages.h"
#include "api/generation/models.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "api/ollama/ollama.h"
#include "base/json_read.h"
#include "base/try.h"

struct input {
    const struct model *m;
    yyjson_mut_doc *doc;
    /* memory was short for it */
    bool failed;
    yyjson_mut_val *root;
    struct err *err;
};

static int ollama_refuse(struct input *in, const char *field, const char *must) {
    if (in->failed)
        return -ENOMEM;
    return err_set_code(in->err, 400, "invalid_value", field, "%s must be %s", field, must);
}

static void ollama_put(struct input *in, const char *key, yyjson_mut_val *v) {
    yyjson_mut_obj_add_val(in->doc, in->root, key, v);
}

static yyjson_mut_val *ollama_copy(struct input *in, yyjson_val *v) {
    return yyjson_val_mut_copy(in->doc, v);
}

static int ollama_read_model(struct input *in, yyjson_val *body) {
    yyjson_val *model = json_given(body, "model");
    const char *name = json_cstr(model);

    if (!model)
        return err_set_code(in->err, 400, "invalid_value", "model",
                            "model is required; GET /api/tags lists the names");
    if (!name)
        return ollama_refuse(in, "model", "a string without NUL");
    if (!models_is_answered(in->m->env, name, strlen(name)))
        return err_set_code(in->err, 404, "model_not_found", "model", "model '%.200s' not found",
                            name);
    return 0;
}

/* ---- options ---- */

static int ollama_read_options(struct input *in, yyjson_val *options) {
    static const struct {
        const char *theirs, *ours;
    } rows[] = {
        {"temperature", "temperature"},
        {"top_k", "top_k"},
        {"top_p", "top_p"},
        {"min_p", "min_p"},
        {"seed", "seed"},
        {"stop", "stop"},
        {"repeat_penalty", "repetition_penalty"},
        {"presence_penalty", "presence_penalty"},
        {"frequency_penalty", "frequency_penalty"},
        {"typical_p", "typical_p"},
        {"mirostat", "mirostat"},
    };
    yyjson_val *n = json_given(options, "num_predict");

    if (options && !yyjson_is_obj(options))
        return ollama_refuse(in, "options", "an object");
    if (n)
        field_number(n);
    if (n && !yyjson_is_num(n))
        return ollama_refuse(in, "num_predict", "a number");
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        yyjson_val *v = json_given(options, rows[i].theirs);

        if (yyjson_is_arr(v) && yyjson_arr_size(v) == 0)
            v = NULL; /* no stop strings */
        ollama_put(in, rows[i].ours, ollama_copy(in, v));
    }
    if (n && yyjson_get_num(n) > 0)
        ollama_put(in, "max_tokens", ollama_copy(in, n));
    return 0;
}

/* Takes the format: "json", or a schema. Without one, a chat's response_format holds. */
static int ollama_read_format(struct input *in, yyjson_val *body) {
    yyjson_val *v = json_given(body, "format");
    bool json = yyjson_equals_str(v, "json");
    yyjson_mut_val *format;

    if (!v || (yyjson_is_str(v) && json_len(v) == 0)) {
        ollama_put(in, "response_format", ollama_copy(in, json_given(body, "response_format")));
        return 0;
    }
    if (!json && !yyjson_is_obj(v))
        return ollama_refuse(in, "format", "\"json\" or a JSON schema");
    if (json)
        format = json_constant(in->doc, "{type:'json_object'}");
    else
        format =
            json_make(in->doc, "{type:'json_schema', json_schema:{schema:%}}", ollama_copy(in, v));
    ollama_put(in, "response_format", format);
    return 0;
}

/* Takes the fields of log probabilities. A completion (@text) has the number of the best tokens
 * alone. */
static int read_logprob_fields(struct input *in, yyjson_val *body, bool text) {
    yyjson_val *logprobs = json_given(body, "logprobs"), *n = json_given(body, "top_logprobs");
    int64_t most = 0;

    if (logprobs && !yyjson_is_bool(logprobs))
        return ollama_refuse(in, "logprobs", "a boolean");
    if (n && (!json_whole(n, &most) || most < 0 || most > SUBMIT_TOP_MAX))
        return ollama_refuse(in, "top_logprobs", "an integer between 0 and 20");
    if (!yyjson_get_bool(logprobs))
        return 0;
    if (text) {
        ollama_put(in, "logprobs", yyjson_mut_sint(in->doc, most));
        return 0;
    }
    ollama_put(in, "logprobs", ollama_copy(in, logprobs));
    ollama_put(in, "top_logprobs", ollama_copy(in, n));
    return 0;
}

static int read_common(struct input *in, yyjson_val *body) {
    /* fields with the meaning that they have in a chat; most of them Ollama does not know */
    static const char *const same[] = {
        "think",           "tool_choice",     "parallel_tool_calls",  "reasoning_effort",
        "thinking_budget", "enable_thinking", "chat_template_kwargs", "keep_alive",
        "complete_output", "loop_breaker",
    };
    yyjson_val *stream = json_given(body, "stream");

    TRY(ollama_read_model(in, body));
    if (stream && !yyjson_is_bool(stream))
        return ollama_refuse(in, "stream", "a boolean");
    ollama_put(in, "stream", yyjson_mut_bool(in->doc, !stream || yyjson_get_bool(stream)));
    for (size_t i = 0; i < ARRAY_SIZE(same); i++)
        ollama_put(in, same[i], ollama_copy(in, json_given(body, same[i])));
    TRY(ollama_read_options(in, json_given(body, "options")));
    return ollama_read_format(in, body);
}

/* ---- messages ---- */

/* Adds the content @text with the pictures of @o, which are base64 without a data URI's head. @at
 * is the number of the message; -1: it is the body. */
static int read_content_of(struct input *in, yyjson_val *o, yyjson_val *text, int at,
                           yyjson_mut_val *to) {
    CLEANUP(content_deinit) struct content c = {.text = {.max = UINT32_MAX}};
    yyjson_val *images = json_given(o, "images");
    char place[64];

    if (images && !yyjson_is_arr(images))
        return ollama_refuse(in, "images", "an array of pictures in base64");
    if (!yyjson_arr_size(images)) {
        if (text)
            yyjson_mut_obj_add_val(in->doc, to, "content", ollama_copy(in, text));
        else
            yyjson_mut_obj_add_str(in->doc, to, "content", "");
        return 0;
    }
    if (text && !yyjson_is_str(text))
        return ollama_refuse(in, "content", "a string");
    JSON_EACH_AT(i, image, images) {
        if (at < 0)
            snprintf(place, sizeof(place), "images[%zu]", i);
        else
            snprintf(place, sizeof(place), "messages[%d].images[%zu]", at, i);
        content_add_picture(&c, in->doc, image, NULL, place);
    }
    TRY(json_add_text(&c.text, text));
    yyjson_mut_obj_add_val(in->doc, to, "content", content_finish(&c, in->doc));
    return 0;
}

static int ollama_add_message(struct input *in, yyjson_val *m, int at, yyjson_mut_val *list) {
    static const char *const keys[][2] = {
        {"role", "role"},      {"thinking", "reasoning_content"}, {"tool_calls", "tool_calls"},
        {"tool_name", "name"}, {"tool_call_id", "tool_call_id"},
    };
    yyjson_mut_val *to = yyjson_mut_arr_add_obj(in->doc, list);

    if (!yyjson_is_obj(m))
        return ollama_refuse(in, "messages", "an array of objects");
    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        json_put_copy(in->doc, to, keys[i][1], json_given(m, keys[i][0]));
    return read_content_of(in, m, json_given(m, "content"), at, to);
}

/* Returns true if @m, the last message, is the beginning of the answer, as Ollama's templates take
 * it. */
static bool begins_answer(yyjson_val *m) {
    return json_has(m, "role", "assistant") && yyjson_is_str(yyjson_obj_get(m, "content")) &&
           !yyjson_arr_size(yyjson_obj_get(m, "tool_calls")) &&
           !yyjson_arr_size(yyjson_obj_get(m, "images"));
}

static int chat(struct input *in, yyjson_val *body, bool *load) {
    yyjson_val *messages = json_given(body, "messages"), *tools = json_given(body, "tools");
    yyjson_val *last = yyjson_arr_get_last(messages);
    yyjson_mut_val *list = yyjson_mut_arr(in->doc);

    if (messages && !yyjson_is_arr(messages))
        return ollama_refuse(in, "messages", "an array");
    if (tools && !yyjson_is_arr(tools))
        return ollama_refuse(in, "tools", "an array");
    messages_spell_roles(messages);
    *load = yyjson_arr_size(messages) == 0;
    JSON_EACH_AT(i, m, messages) {
        TRY(ollama_add_message(in, m, (int)MIN(i, (size_t)INT_MAX), list));
    }
    ollama_put(in, "messages", list);
    if (yyjson_arr_size(tools))
        ollama_put(in, "tools", ollama_copy(in, tools));
    if (begins_answer(last))
        ollama_put(in, "continue_final_message", yyjson_mut_bool(in->doc, true));
    return 0;
}

static int prompt_messages(struct input *in, yyjson_val *body, yyjson_val *prompt,
                           yyjson_val *system) {
    yyjson_mut_val *list = yyjson_mut_arr(in->doc), *m;

    for (int i = 0; i < 2; i++) {
        yyjson_val *text = i ? prompt : system;

        if (!text)
            continue;
        m = yyjson_mut_arr_add_obj(in->doc, list);
        yyjson_mut_obj_add_str(in->doc, m, "role", i ? "user" : "system");
        TRY(read_content_of(in, i ? body : NULL, text, -1, m));
    }
    ollama_put(in, "messages", list);
    return 0;
}

/* Reads a body of /api/generate. The prompt goes through the chat template unless it is raw, has a
 * suffix, or the model has no template. */
static int generate(struct input *in, yyjson_val *body, bool *text, bool *load) {
    static const char *const strings[] = {"prompt", "suffix", "system", "template"};
    yyjson_val *v[ARRAY_SIZE(strings)];

    for (size_t i = 0; i < ARRAY_SIZE(strings); i++) {
        v[i] = json_given(body, strings[i]);
        if (v[i] && !yyjson_is_str(v[i]))
            return ollama_refuse(in, strings[i], "a string");
    }
    if (json_len(v[3]))
        return err_set_code(in->err, 400, "unsupported_parameter", "template",
                            "template is not supported here");
    *load = json_len(v[0]) == 0 && json_len(v[1]) == 0;
    *text = *load || yyjson_get_bool(json_given(body, "raw")) || json_len(v[1]) ||
            !in->m->info->template;
    if (!*text)
        return prompt_messages(in, body, v[0], json_len(v[2]) ? v[2] : NULL);
    if (!*load && yyjson_arr_size(yyjson_obj_get(body, "images")))
        return err_set_code(in->err, 400, "unsupported_parameter", "images",
                            "images need the model's chat template: leave out raw and suffix");
    ollama_put(in, "prompt", ollama_copy(in, v[0]));
    if (json_len(v[1]))
        ollama_put(in, "suffix", ollama_copy(in, v[1]));
    return 0;
}

int ollama_translate(const struct model *m, yyjson_doc *body, bool is_generate, yyjson_doc **out,
                     bool *text, bool *load, struct err *err) {
    struct input in = {.m = m, .err = err};
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = in.doc = json_doc_new(&in.failed);
    yyjson_val *root = yyjson_doc_get_root(body);

    in.root = yyjson_mut_obj(doc);
    *text = *load = false;
    TRY(read_common(&in, root));
    if (is_generate)
        TRY(generate(&in, root, text, load));
    else
        TRY(chat(&in, root, load));
    TRY(read_logprob_fields(&in, root, *text));
    if (*load) { /* the model is loaded, nothing is generated */
        *text = true;
        yyjson_mut_obj_remove_key(in.root, "messages");
        yyjson_mut_obj_remove_key(in.root, "prompt");
        ollama_put(&in, "prompt", yyjson_mut_str(doc, "a"));
    }
    return json_doc_seal(doc, in.root, out);
}
