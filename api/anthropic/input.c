/*
 * One row per field of a Messages request: its name and the function that takes it. A field without
 * a row is ignored, as in every dialect: beta headers bring new ones every month. Sampling
 * parameters that only weft has are passed on under their own names, so that what can be asked of a
 * chat can be asked here.
 */

#include "api/anthropic/input.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/gen_request.h"
#include "api/generation/messages.h"
#include "api/generation/models.h"
#include "base/json_read.h"
#include "base/try.h"

int anthropic_refuse(struct anthropic_input *in, const char *field, const char *must) {
    char param[160];

    if (in->failed)
        return -ENOMEM;
    snprintf(param, sizeof(param), "%s%s", in->place, field);
    return err_set_code(in->err, 400, "invalid_value", param, "%s: %s.", param, must);
}

void anthropic_place(struct anthropic_input *in, const char *place) {
    *stpncpy(in->place, place, sizeof(in->place) - 1) = 0;
}

static void anthropic_put_member(struct anthropic_input *in, const char *key, yyjson_mut_val *v) {
    yyjson_mut_obj_add_val(in->doc, in->root, key, v);
}

#define FIELD(name) static int name(struct anthropic_input *in, const char *key, yyjson_val *v)

/* Copies a field under its own name into the chat. */
FIELD(pass) {
    json_put_copy(in->doc, in->root, key, v);
    return 0;
}

/* Takes the temperature. Values that Anthropic refuses are refused, so that a client learns of them
 * before it goes there. */
FIELD(take_temperature) {
    if (!yyjson_is_num(v) || yyjson_get_num(v) < 0 || yyjson_get_num(v) > 1)
        return anthropic_refuse(in, "", "must be a number from 0 to 1");
    return pass(in, key, v);
}

static bool is_blank(yyjson_val *s) {
    const char *text = json_text(s);

    for (size_t i = 0; i < json_len(s); i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i])
            return false;
    return true;
}

FIELD(take_stops) {
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > SUBMIT_STOPS_MAX)
        return anthropic_refuse(in, "", "must be an array of at most 16 strings");
    JSON_EACH(s, v) {
        if (!yyjson_is_str(s) || json_len(s) == 0 || json_len(s) > 256)
            return anthropic_refuse(in, "", "must hold strings of 1 to 256 bytes");
        if (is_blank(s))
            return anthropic_refuse(in, "", "must hold strings that are not only white space");
    }
    return pass(in, "stop", v);
}

/* Claude Code puts its session into user_id. */
FIELD(take_metadata) {
    yyjson_val *user = json_given(v, "user_id");

    if (!yyjson_is_obj(v))
        return anthropic_refuse(in, "", "must be an object");
    if (!user)
        return 0;
    if (!yyjson_is_str(user) || json_len(user) > 4096)
        return anthropic_refuse(in, ".user_id", "must be a string of at most 4096 bytes");
    return pass(in, "user", user);
}

FIELD(take_format) {
    yyjson_val *schema = yyjson_obj_get(v, "schema");

    if (!json_has(v, "type", "json_schema"))
        return anthropic_refuse(in, ".type", "must be \"json_schema\"");
    if (!yyjson_is_obj(schema))
        return anthropic_refuse(in, ".schema", "must be an object");
    anthropic_put_member(in, "response_format",
                         json_make(in->doc,
                                   "{type:'json_schema', json_schema:{name:'output', schema:%}}",
                                   yyjson_val_mut_copy(in->doc, schema)));
    return 0;
}

FIELD(take_output_config) {
    yyjson_val *effort = json_given(v, "effort"), *format = json_given(v, "format");

    if (!yyjson_is_obj(v))
        return anthropic_refuse(in, "", "must be an object");
    if (effort && !json_is(effort, "low medium high xhigh max"))
        return anthropic_refuse(in, ".effort", "must be low, medium, high, xhigh or max");
    json_put_copy(in->doc, in->root, "reasoning_effort", effort);
    anthropic_place(in, "output_config.format");
    if (!format)
        return 0;
    return take_format(in, key, format);
}

/* ---- thinking ---- */

/* Sets the switches of reasoning: templates read one of two names, or an effort. Values that the
 * client sets itself stay. */
static void anthropic_set_switches(struct anthropic_input *in, bool on, yyjson_val *given) {
    static const char *const names[] = {"enable_thinking", "thinking"};
    yyjson_mut_val *kwargs;

    if (yyjson_is_obj(given))
        kwargs = yyjson_val_mut_copy(in->doc, given);
    else
        kwargs = yyjson_mut_obj(in->doc);

    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!yyjson_obj_get(given, names[i]))
            yyjson_mut_obj_add_bool(in->doc, kwargs, names[i], on);
    if (!on && !yyjson_mut_obj_get(in->root, "reasoning_effort"))
        anthropic_put_member(in, "reasoning_effort", yyjson_mut_str(in->doc, "none"));
    anthropic_put_member(in, "chat_template_kwargs", kwargs);
}

/* Turns thinking off for clients that do not ask for it, where the model allows that. */
static int set_thinking(struct anthropic_input *in, yyjson_val *thinking, yyjson_val *given) {
    yyjson_val *type = yyjson_obj_get(thinking, "type");
    yyjson_val *budget = json_given(thinking, "budget_tokens");
    bool on = json_is(type, "enabled adaptive");
    int64_t n = 0;

    anthropic_place(in, "thinking");
    if (thinking && !yyjson_is_str(type))
        return anthropic_refuse(in, "", "must be an object with a type");
    if (type && !on && !json_is(type, "disabled"))
        return anthropic_refuse(in, ".type", "must be enabled, adaptive or disabled");
    if (json_is(type, "enabled") && !budget)
        return anthropic_refuse(in, ".budget_tokens", "must be given where thinking is enabled");
    if (on && budget) {
        if (!json_whole(budget, &n) || n < 1 || n > INT32_MAX)
            return anthropic_refuse(in, ".budget_tokens", "must be a whole number of at least 1");
        json_put_copy(in->doc, in->root, "thinking_budget", budget);
    }
    if (json_has(thinking, "display", "omitted"))
        anthropic_put_member(in, "include_reasoning", yyjson_mut_false(in->doc));
    anthropic_place(in, "chat_template_kwargs");
    if (given && !yyjson_is_obj(given))
        return anthropic_refuse(in, "", "must be an object");
    anthropic_set_switches(in, on, given);
    return 0;
}

/* Refuses a conversation that the server would store. The SDK then sends all messages in each
 * request. */
FIELD(take_thread) {
    return err_set_code(in->err, 400, ANTHROPIC_NO_THREADS, key,
                        "%s: this server stores no conversations; send all messages.", key);
}

/* ---- the body ---- */

static const struct {
    const char *name;
    int (*take)(struct anthropic_input *in, const char *key, yyjson_val *v);
} fields[] = {
    {"thread", take_thread},
    {"stream", pass},
    {"temperature", take_temperature},
    {"top_p", pass},
    {"top_k", pass},
    {"stop_sequences", take_stops},
    {"metadata", take_metadata},
    {"output_config", take_output_config},
    {"output_format", take_format},
    {"tool_choice", anthropic_tool_choice},
    {"cache_salt", pass},
    {"complete_output", pass},
    {"loop_breaker", pass},
    {"ignore_eos", pass},
    {"keep_alive", pass},
    {"ttl", pass},
    {"min_p", pass},
    {"min_tokens", pass},
    {"presence_penalty", pass},
    {"frequency_penalty", pass},
    {"repetition_penalty", pass},
    {"priority", pass},
    {"prediction", pass},
    {"prompt_cache_key", pass},
    {"seed", pass},
};

static bool anthropic_is_known(yyjson_val *key) {
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (yyjson_equals_str(key, fields[i].name))
            return true;
    return json_is(key, "model messages max_tokens system thinking chat_template_kwargs tools");
}

static int refuse_twice(struct anthropic_input *in, yyjson_val *body) {
    JSON_MEMBERS(key, value, body) {
        if (!anthropic_is_known(key) ||
            yyjson_obj_getn(body, json_text(key), json_len(key)) == value)
            continue;
        anthropic_place(in, json_cstr(key)); /* a known name: without NUL */
        return anthropic_refuse(in, "", "is given twice");
    }
    return 0;
}

/* Gets a field that must be there. */
static int anthropic_require(struct anthropic_input *in, yyjson_val *body, const char *key,
                             yyjson_val **out) {
    anthropic_place(in, key);
    if ((*out = json_given(body, key)))
        return 0;
    return err_set_code(in->err, 400, "missing_required_parameter", key, "%s: Field required.",
                        key);
}

bool anthropic_is_served(const struct gen_env *env, const char *name) {
    return strcasestr(name, "claude") || models_is_served(env, name, strlen(name));
}

static int anthropic_read_model(struct anthropic_input *in, const struct gen_env *env,
                                yyjson_val *body) {
    yyjson_val *v;

    TRY(anthropic_require(in, body, "model", &v));
    const char *name = json_cstr(v);
    if (!name)
        return anthropic_refuse(in, "", "must be a string without NUL");
    if (anthropic_is_served(env, name) || models_is_answered(env, name, strlen(name)))
        return 0;
    return models_unknown(env, name, strlen(name), in->err);
}

/* Takes max_tokens. With 0 (anthropic_warms()) the worker still makes one token, which it needs to
 * end a request. */
static int read_max_tokens(struct anthropic_input *in, yyjson_val *body) {
    yyjson_val *v;
    int64_t n = 0;

    TRY(anthropic_require(in, body, "max_tokens", &v));
    if (!json_whole(v, &n) || n < 0 || n > INT32_MAX)
        return anthropic_refuse(in, "", "must be a whole number, 0 or more");
    anthropic_put_member(in, "max_tokens", yyjson_mut_sint(in->doc, MAX(n, 1)));
    return 0;
}

bool anthropic_warms(yyjson_val *body) {
    int64_t n = 1;

    return json_whole(yyjson_obj_get(body, "max_tokens"), &n) && n == 0;
}

static int anthropic_read_messages(struct anthropic_input *in, yyjson_val *body,
                                   struct buf *prefill) {
    yyjson_val *v;

    TRY(anthropic_require(in, body, "messages", &v));
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) == 0 || yyjson_arr_size(v) > REQUEST_MESSAGES_MAX)
        return anthropic_refuse(in, "", "must be an array of 1 to 100000 messages");
    messages_spell_roles(v);
    in->list = yyjson_mut_arr(in->doc);
    anthropic_put_member(in, "messages", in->list);
    TRY(anthropic_system(in, json_given(body, "system")));
    TRY(anthropic_turns(in, v, prefill));
    anthropic_place(in, "messages");
    if (!yyjson_mut_arr_size(in->list))
        return anthropic_refuse(in, "", "must contain a message with the role user");
    return 0;
}

static int anthropic_read_all(struct anthropic_input *in, const struct gen_env *env,
                              yyjson_val *body, bool count, struct buf *prefill, yyjson_doc **out) {
    in->root = yyjson_mut_obj(in->doc);
    TRY(refuse_twice(in, body));
    TRY(anthropic_read_model(in, env, body));
    if (!count)
        TRY(read_max_tokens(in, body));
    TRY(anthropic_tools(in, json_given(body, "tools")));
    TRY(anthropic_read_messages(in, body, prefill));
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        yyjson_val *v = json_given(body, fields[i].name);

        anthropic_place(in, fields[i].name);
        if (v)
            TRY(fields[i].take(in, fields[i].name, v));
    }
    TRY(set_thinking(in, json_given(body, "thinking"), json_given(body, "chat_template_kwargs")));
    return json_doc_seal(in->doc, in->root, out);
}

int anthropic_translate(const struct gen_env *env, yyjson_doc *body, bool count, yyjson_doc **out,
                        struct buf *prefill, bool offered[TOOL_SEARCH_KINDS], struct err *err) {
    struct anthropic_input in = {.err = err,
                                 .role = "",
                                 .reasoning = {.max = UINT32_MAX},
                                 .result = {.text = {.max = UINT32_MAX}}};

    in.doc = json_doc_new(&in.failed);
    int r = anthropic_read_all(&in, env, yyjson_doc_get_root(body), count, prefill, out);
    if (offered)
        memcpy(offered, in.offered, sizeof(in.offered));
    buf_deinit(&in.reasoning);
    content_deinit(&in.result);
    yyjson_mut_doc_free(in.doc);
    return r;
}

/* Returns the longer of @wish and the cache_control of @v. */
static enum cache_wish longer(enum cache_wish wish, yyjson_val *v) {
    yyjson_val *c = yyjson_obj_get(v, "cache_control");

    if (!yyjson_is_obj(c))
        return wish;
    return MAX(wish, json_has(c, "ttl", "1h") ? CACHE_1H : CACHE_5M);
}

/* Returns the longest of @wish and those of the entries of @list. */
static enum cache_wish wish_of(yyjson_val *list, enum cache_wish wish) {
    JSON_EACH(v, list) {
        wish = longer(wish, v);
    }
    return wish;
}

enum cache_wish anthropic_cache_wish(yyjson_val *body) {
    enum cache_wish wish = wish_of(yyjson_obj_get(body, "tools"), CACHE_NONE);

    wish = wish_of(yyjson_obj_get(body, "system"), wish);
    JSON_EACH(turn, yyjson_obj_get(body, "messages")) {
        wish = wish_of(yyjson_obj_get(turn, "content"), wish);
    }
    return longer(wish, body);
}

/* Renames the schema of a tool, whose message begins with the name of the tool. */
static void rename_schema(struct err *err) {
    char theirs[sizeof(err->param)];
    size_t n = strcspn(err->param, "]");

    if (strncmp(err->param, "tools[", 6) != 0 ||
        strcmp(err->param + n, "].function.parameters") != 0)
        return;
    snprintf(theirs, sizeof(theirs), "%s", err->param);
    err_rename(err, theirs, "input_schema");
}

void anthropic_rename(struct err *err) {
    static const char *const names[][2] = {
        {"response_format.json_schema.schema", "output_config.format.schema"},
        {"response_format", "output_config.format"},
        {"user", "metadata.user_id"},
    };

    rename_schema(err);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        size_t n = strlen(names[i][0]);

        if (strcmp(err->param, names[i][0]) != 0 || strncmp(err->message, names[i][0], n) != 0)
            continue;
        struct err old = *err;
        err_set_code(err, old.status, old.code, names[i][1], "%s%s", names[i][1], old.message + n);
        return;
    }
}
