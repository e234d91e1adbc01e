/*
 * Translates the body of a Responses request to that of a chat. Fields that a chat has under the
 * same name are passed on and checked there; the others are checked here. Unknown fields are
 * ignored; known fields that would change the output but are not supported are refused by name, as
 * in chats (read_request.c).
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/model.h"
#include "api/generation/read_request.h"
#include "api/http/json.h"
#include "api/responses/build.h"
#include "api/responses/conversation.h"
#include "base/json_read.h"
#include "base/result.h"
#include "base/text.h"
#include "base/try.h"

#define ID_MAX 256u
#define METADATA_MAX 16u
/* Tokens of a summary, thinking included, where the request gives no limit: without one a model
 * that repeats itself would fill the context that the summary is to free. */
#define SUMMARY_TOKENS 8192u

#define OWN_FIELDS(X)                                                                              \
    X(INPUT, "input")                                                                              \
    X(INSTRUCTIONS, "instructions")                                                                \
    X(TOOLS, "tools")                                                                              \
    X(TOOL_CHOICE, "tool_choice")                                                                  \
    X(MAX_OUTPUT, "max_output_tokens")                                                             \
    X(MAX_TOOL_CALLS, "max_tool_calls")                                                            \
    X(REASONING, "reasoning")                                                                      \
    X(TEXT, "text")                                                                                \
    X(STORE, "store")                                                                              \
    X(PREVIOUS, "previous_response_id")                                                            \
    X(INCLUDE, "include")                                                                          \
    X(TRUNCATION, "truncation")                                                                    \
    X(SERVICE_TIER, "service_tier")                                                                \
    X(BACKGROUND, "background")                                                                    \
    X(CONVERSATION, "conversation")                                                                \
    X(PROMPT, "prompt")                                                                            \
    X(MANAGEMENT, "context_management")                                                            \
    X(STREAM_OPTIONS, "stream_options")                                                            \
    X(EXTRA_BODY, "extra_body")
/* Fields with the same meaning as in a chat. */
#define CHAT_FIELDS(X)                                                                             \
    X(TOP_LOGPROBS, "top_logprobs")                                                                \
    X(MODEL, "model")                                                                              \
    X(STREAM, "stream")                                                                            \
    X(PARALLEL, "parallel_tool_calls")                                                             \
    X(TEMPERATURE, "temperature")                                                                  \
    X(TOP_P, "top_p")                                                                              \
    X(CACHE_KEY, "prompt_cache_key")                                                               \
    X(USER, "user")                                                                                \
    X(SAFETY, "safety_identifier")                                                                 \
    X(METADATA, "metadata")
#define NUMBER(number, name) number,
#define NAME(number, name) name,

enum field { OWN_FIELDS(NUMBER) CHAT_FIELDS(NUMBER) };

static const char *const names[] = {
    OWN_FIELDS(NAME) /* in the order of enum field */
    CHAT_FIELDS(NAME)
    /* and what a chat alone has */
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "seed",
    "stop",
    "stop_token_ids",
    "logit_bias",
    "priority",
    "cache_salt",
    "complete_output",
    "loop_breaker",
    "chat_template_kwargs",
    "enable_thinking",
    "thinking_budget",
    "keep_alive",
    "ttl",
    "prediction",
    "return_progress",
    "timings_per_token",
};

struct fields {
    /* NULL: not given, or null */
    yyjson_val *v[ARRAY_SIZE(names)];
};

int responses_refuse(const struct responses_build *b, const char *param, const char *must) {
    if (b->failed)
        return -ENOMEM;
    return json_refuse(b->err, param, must);
}

static int responses_unsupported(const struct responses_build *b, const char *param) {
    return err_set_code(b->err, 400, "unsupported_parameter", param, "%s is not supported.", param);
}

/* ---- names ---- */

/* Fields of a chat, and where a Responses request has them. */
static const char *const moved[][2] = {
    {"messages", "input"},
    {"max_tokens", "max_output_tokens"},
    {"max_completion_tokens", "max_output_tokens"},
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"reasoning_effort", "reasoning.effort"},
    {"tool_choice.allowed_tools", "tool_choice"},
    {"functions", "tools"},
    {"function_call", "tool_choice"},
    {"logprobs", "top_logprobs"},
};

void responses_rename(struct err *err) {
    static const char *const tools[][2] = {{".function.", "."}, {".custom.", "."}};

    for (size_t i = 0; i < ARRAY_SIZE(tools) && strncmp(err->param, "tools[", 6) == 0; i++)
        err_rename(err, tools[i][0], tools[i][1]);
    for (size_t i = 0; i < ARRAY_SIZE(moved); i++) {
        if (strncmp(err->param, moved[i][0], strlen(moved[i][0])) != 0)
            continue;
        err_rename(err, moved[i][0], moved[i][1]);
        return;
    }
}

/* ---- fields ---- */

/* Refuses a field of a chat, as OpenAI does: ignored, it would change the output in silence. The
 * error's field is the one to give, since responses_rename() renames the others. */
static int check_unknown(const struct responses_build *b, const char *name, yyjson_val *value) {
    for (size_t i = 0; name && i < ARRAY_SIZE(moved) && !yyjson_is_null(value); i++)
        if (strcmp(name, moved[i][0]) == 0)
            return err_set_code(b->err, 400, "unsupported_parameter", moved[i][1],
                                "%s is a field of chat completions: give %s instead.", name,
                                moved[i][1]);
    return 0;
}

/* Returns the number of the field @key, or that of the fields if there is none. */
static size_t field_number_of(yyjson_val *key) {
    size_t k = 0;

    while (k < ARRAY_SIZE(names) && !yyjson_equals_str(key, names[k]))
        k++;
    return k;
}

/* Takes the members of extra_body as those of the body, which take precedence. The model was found
 * by the body's own member. */
static void find_extra(struct fields *f) {
    JSON_MEMBERS(key, value, f->v[EXTRA_BODY]) {
        size_t k = field_number_of(key);

        if (k < ARRAY_SIZE(names) && k != MODEL && !f->v[k] && !yyjson_is_null(value))
            f->v[k] = value;
    }
}

static int find_fields(const struct responses_build *b, yyjson_val *root, struct fields *f) {
    bool seen[ARRAY_SIZE(names)] = {0};

    JSON_MEMBERS(key, value, root) {
        size_t k = field_number_of(key);

        if (k == ARRAY_SIZE(names)) {
            TRY(check_unknown(b, json_cstr(key), value));
            continue;
        }
        if (seen[k])
            return err_set_code(b->err, 400, "duplicate_key", names[k], "%s is given twice.",
                                names[k]);
        seen[k] = true;
        f->v[k] = yyjson_is_null(value) ? NULL : value;
    }
    find_extra(f);
    return 0;
}

static bool is_short(yyjson_val *v) {
    return json_cstr(v) && json_len(v) <= ID_MAX;
}

/* Returns the id of {"id": ..}, or @v itself. */
static yyjson_val *responses_input_id(yyjson_val *v) {
    if (!yyjson_is_obj(v))
        return v;
    return yyjson_obj_get(v, "id");
}

bool responses_is_metadata(yyjson_val *v) {
    if (!yyjson_is_obj(v) || yyjson_obj_size(v) > METADATA_MAX)
        return false;
    JSON_MEMBERS(key, value, v) {
        if (json_len(key) > 64 || !yyjson_is_str(value) || json_len(value) > 512 * 4)
            return false;
    }
    return true;
}

static int check_type(const struct responses_build *b, const struct fields *f, enum field at,
                      bool ok, const char *must) {
    if (f->v[at] && !ok)
        return responses_refuse(b, names[at], must);
    return 0;
}

/* Checks the types of the values that this file reads. */
static int check_types(const struct responses_build *b, const struct fields *f) {
    yyjson_val *input = f->v[INPUT];
    int64_t calls = 0;

    if (!input && !f->v[PREVIOUS] && !f->v[CONVERSATION] && !f->v[PROMPT])
        return err_set_code(b->err, 400, "missing_required_parameter", "input",
                            "One of input, previous_response_id and conversation must be given.");
#define CHECK(at, test, must) TRY(check_type(b, f, at, test, must))
    CHECK(INPUT,
          yyjson_is_str(input) ||
              (yyjson_is_arr(input) && yyjson_arr_size(input) <= REQUEST_MESSAGES_MAX),
          "must be a string or an array of items");
    CHECK(INSTRUCTIONS, yyjson_is_str(f->v[INSTRUCTIONS]), "must be a string");
    CHECK(TOOLS, yyjson_is_arr(f->v[TOOLS]), "must be an array");
    CHECK(TOOL_CHOICE, yyjson_is_str(f->v[TOOL_CHOICE]) || yyjson_is_obj(f->v[TOOL_CHOICE]),
          "must be a string or an object");
    CHECK(MAX_TOOL_CALLS, json_whole(f->v[MAX_TOOL_CALLS], &calls) && calls >= 0,
          "must be a whole number");
    CHECK(REASONING, yyjson_is_obj(f->v[REASONING]), "must be an object");
    CHECK(TEXT, yyjson_is_obj(f->v[TEXT]), "must be an object");
    CHECK(STORE, yyjson_is_bool(f->v[STORE]), "must be a boolean");
    CHECK(PREVIOUS, is_short(f->v[PREVIOUS]), "must be the id of a response");
    CHECK(METADATA, responses_is_metadata(f->v[METADATA]),
          "must be an object of at most 16 strings");
    CHECK(INCLUDE, yyjson_is_arr(f->v[INCLUDE]), "must be an array of strings");
    CHECK(TRUNCATION, json_is(f->v[TRUNCATION], "auto disabled"),
          "must be \"auto\" or \"disabled\"");
    CHECK(SERVICE_TIER, is_short(f->v[SERVICE_TIER]), "must be a string");
    CHECK(SAFETY, is_short(f->v[SAFETY]), "must be a string of at most 256 bytes");
    CHECK(BACKGROUND, yyjson_is_bool(f->v[BACKGROUND]), "must be a boolean");
    CHECK(CONVERSATION, is_short(responses_input_id(f->v[CONVERSATION])),
          "must be the id of a conversation");
    CHECK(STREAM_OPTIONS, yyjson_is_obj(f->v[STREAM_OPTIONS]), "must be an object");
    CHECK(EXTRA_BODY, yyjson_is_obj(f->v[EXTRA_BODY]), "must be an object");
#undef CHECK
    return 0;
}

static int check_support(const struct responses_build *b, const struct fields *f) {
    b->rs->wants_logprobs = f->v[TOP_LOGPROBS] && yyjson_get_num(f->v[TOP_LOGPROBS]) != 0;

    if (f->v[CONVERSATION] && f->v[PREVIOUS])
        return responses_refuse(b, "conversation",
                                "and previous_response_id cannot be given together");
    if (f->v[PROMPT])
        return responses_unsupported(b, "prompt");
    JSON_EACH(item, f->v[INCLUDE]) {
        if (!yyjson_is_str(item))
            return responses_refuse(b, "include", "must be an array of strings");
        b->rs->wants_logprobs |= yyjson_equals_str(item, "message.output_text.logprobs");
        b->rs->encrypted |= yyjson_equals_str(item, "reasoning.encrypted_content");
    }
    return 0;
}

/* Reads from how many tokens on the conversation is to be made shorter. */
static int read_management(const struct responses_build *b, yyjson_val *list) {
    static const char must[] = "must be an array of {\"type\": \"compaction\"}";

    if (list && !yyjson_is_arr(list))
        return responses_refuse(b, "context_management", must);
    JSON_EACH(one, list) {
        yyjson_val *from = json_given(one, "compact_threshold");
        int64_t tokens = UINT32_MAX;

        if (!json_has(one, "type", "compaction"))
            return responses_refuse(b, "context_management", must);
        if (from && (!json_whole(from, &tokens) || tokens < 1))
            return responses_refuse(b, "context_management.compact_threshold",
                                    "must be a positive whole number");
        tokens = MIN(tokens, (int64_t)UINT32_MAX);
        if (!b->rs->compact_from || tokens < b->rs->compact_from)
            b->rs->compact_from = (uint32_t)tokens;
    }
    return 0;
}

/* ---- reasoning, text ---- */

static int responses_read_reasoning(struct responses_build *b, yyjson_val *v,
                                    yyjson_mut_val *root) {
    yyjson_val *effort = json_given(v, "effort"), *summary = json_given(v, "summary");

    if (!summary)
        summary = json_given(v, "generate_summary"); /* older name of the field */
    if (summary && !yyjson_is_str(summary))
        return responses_refuse(b, "reasoning.summary", "must be a string");
    b->rs->summary = yyjson_is_str(summary) && !yyjson_equals_str(summary, "none");
    if (effort && !json_is(effort, EFFORTS " auto default"))
        return responses_refuse(b, "reasoning.effort", "must be " EFFORTS_ARE);
    json_put_copy(b->doc, root, "reasoning_effort", effort);
    return 0;
}

/* text.format has the members of json_schema beside its type. */
static int put_format(struct responses_build *b, yyjson_val *text, yyjson_mut_val *root) {
    static const char shape[] =
        "{type:'json_schema', json_schema:{name:%, schema:%, strict:%, description:%}}";
    yyjson_val *format = json_given(text, "format"), *inner = json_given(format, "json_schema");
    yyjson_val *from = inner ? inner : format; /* a chat's form */

    if (format && !yyjson_is_str(yyjson_obj_get(format, "type")))
        return responses_refuse(b, "text.format.type", "must be a string");
    yyjson_mut_val *o;

    if (json_has(format, "type", "json_schema"))
        o = json_make(b->doc, shape, json_copy_of(b->doc, from, "name"),
                      json_copy_of(b->doc, from, "schema"), json_copy_of(b->doc, from, "strict"),
                      json_copy_of(b->doc, from, "description"));
    else
        o = yyjson_val_mut_copy(b->doc, format);
    yyjson_mut_obj_add_val(b->doc, root, "response_format", o);
    return 0;
}

/* ---- the conversation ---- */

static bool is_prefixed(yyjson_val *id, const char *prefix) {
    const char *s = json_cstr(id);

    return s && strncmp(s, prefix, strlen(prefix)) == 0;
}

/* Returns the bytes that have to be read of @s and all that it continues. */
static size_t past_bytes(const struct stored *s) {
    size_t n = 0;

    for (; s; s = s->parent)
        n += s->parts.items.n_said + s->parts.output.n_said;
    return n;
}

/* Reads the response or conversation that the request continues, named by field @param. */
static int read_past(struct responses_build *b, const char *param) {
    struct responses *rs = b->rs;
    size_t n = 0;

    TRY(responses_ask_for(b, past_bytes(rs->parent), param));
    assert(!b->past && b->calls.n == 0);
    for (struct stored *s = rs->parent; s; s = s->parent)
        n++;
    CLEANUP(freep) struct stored **chain = calloc(n + 1, sizeof(struct stored *));
    if (!chain)
        return -ENOMEM;
    for (struct stored *s = rs->parent; s; s = s->parent)
        chain[--n] = s;
    b->past = true;
    for (struct stored *s; (s = chain[n]); n++) {
        TRY(responses_past(b, &s->parts, false));
        TRY(responses_past(b, &s->parts, true));
    }
    b->past = false;
    return 0;
}

static int put_past(struct responses_build *b, yyjson_val *id) {
    struct responses *rs = b->rs;

    if (rs->last && yyjson_equals_str(id, rs->last->id))
        rs->parent = stored_ref(rs->last);
    else if (is_prefixed(id, RESPONSES_ID_PREFIX))
        rs->parent = store_get(rs->env->store, rs->tenant, json_text(id), json_len(id));
    if (!rs->parent)
        return err_set_code(b->err, 404, "previous_response_not_found", "previous_response_id",
                            "Previous response with id '%.100s' not found.", json_cstr(id));
    store_use(rs->parent);
    return read_past(b, "previous_response_id");
}

static int put_conversation(struct responses_build *b, yyjson_val *id) {
    struct responses *rs = b->rs;

    if (is_prefixed(id, CONVERSATION_ID_PREFIX))
        rs->conversation = store_get(rs->env->store, rs->tenant, json_text(id), json_len(id));
    if (!rs->conversation)
        return err_set_code(b->err, 404, "not_found", "conversation",
                            "Conversation with id '%.100s' not found.", json_cstr(id));
    store_use(rs->conversation);
    if (!rs->conversation->parent)
        return 0;
    rs->parent = stored_ref(rs->conversation->parent);
    return read_past(b, "conversation");
}

/* Adds an input that is a string as a message of the user. */
static int put_string_input(struct responses_build *b, yyjson_val *text) {
    CLEANUP(json_doc_freep) yyjson_doc *copy = NULL;
    yyjson_mut_val *list =
        json_make(b->doc, "[{type:'message', role:'user', content:[{type:'input_text', text:%}]}]",
                  yyjson_mut_strn(b->doc, json_text(text), json_len(text)));

    TRY(json_doc_seal(b->doc, list, &copy));
    return responses_items(b, yyjson_doc_get_root(copy), b->rs->store || b->rs->framed);
}

/* Reads items, or the text of one, and keeps them in the response if that is stored. */
static int responses_put_items(struct responses_build *b, yyjson_val *items) {
    bool keep = b->rs->store || b->rs->framed;

    if (keep)
        TRY(buf_add_char(&b->rs->kept.input, '['));
    if (yyjson_is_str(items))
        TRY(put_string_input(b, items));
    else
        TRY(responses_items(b, items, keep));
    if (!keep)
        return 0;
    return buf_add_char(&b->rs->kept.input, ']');
}

static int responses_put_messages(struct responses_build *b, const struct fields *f,
                                  yyjson_mut_val *root) {
    yyjson_val *text = f->v[INSTRUCTIONS];

    b->messages = yyjson_mut_arr(b->doc);
    if (json_len(text))
        TRY(responses_instructions(b, json_text(text), json_len(text)));
    if (f->v[PREVIOUS])
        TRY(put_past(b, f->v[PREVIOUS]));
    if (f->v[CONVERSATION])
        TRY(put_conversation(b, responses_input_id(f->v[CONVERSATION])));
    TRY(responses_put_items(b, f->v[INPUT]));
    TRY(responses_items_end(b));
    if (yyjson_mut_arr_size(b->messages) == 0)
        return responses_refuse(b, "input", "must not be empty");
    yyjson_mut_obj_add_val(b->doc, root, "messages", b->messages);
    return 0;
}

/* ---- the chat ---- */

static int build_chat(struct responses_build *b, const struct fields *f, yyjson_doc **out) {
    yyjson_mut_val *root = yyjson_mut_obj(b->doc);

    TRY(responses_tools(b, f->v[TOOLS]));
    TRY(responses_put_messages(b, f, root));
    responses_tools_end(b, root);
    if (f->v[TOOL_CHOICE])
        TRY(responses_tool_choice(b, f->v[TOOL_CHOICE], root));
    if (f->v[REASONING])
        TRY(responses_read_reasoning(b, f->v[REASONING], root));
    if (f->v[TEXT])
        TRY(put_format(b, f->v[TEXT], root));
    json_put_copy(b->doc, root, "max_completion_tokens", f->v[MAX_OUTPUT]);
    if (b->rs->wants_logprobs)
        yyjson_mut_obj_add_bool(b->doc, root, "logprobs", true);
    for (size_t i = TOP_LOGPROBS; i < ARRAY_SIZE(names); i++)
        json_put_copy(b->doc, root, names[i], f->v[i]);
    return json_doc_seal(b->doc, root, out);
}

/* ---- what the response repeats ---- */

/* Writes @v as given, or the JSON @otherwise. */
static void echo_value(struct json *j, const char *key, yyjson_val *v, const char *otherwise) {
    size_t len;
    CLEANUP(freep) char *text = v ? yyjson_val_write(v, 0, &len) : NULL;

    json_print(j, "%s:", key);
    json_raw(j, text ? text : otherwise, text ? len : strlen(otherwise));
    if (v && !text)
        j->error = -ENOMEM;
}

static void echo(struct json *j, const struct fields *f, enum field at, const char *otherwise) {
    echo_value(j, names[at], f->v[at], otherwise);
}

static void echo_member(struct json *j, yyjson_val *v, const char *key, const char *otherwise) {
    echo_value(j, key, yyjson_obj_get(v, key), otherwise);
}

static int put_echo(struct responses *rs, const struct fields *f, const struct gen_request *r) {
    CLEANUP(buf_deinit) struct buf text = {.max = UINT32_MAX};
    struct json j = {.out = &text};

    json_print(&j, "background:%i", rs->background);
    if (rs->conversation)
        json_print(&j, "conversation:{id:%s}", rs->conversation->id);
    else
        json_print(&j, "conversation:null");
    echo(&j, f, INSTRUCTIONS, "null");
    echo(&j, f, MAX_OUTPUT, "null");
    echo(&j, f, MAX_TOOL_CALLS, "null");
    echo(&j, f, METADATA, "{}");
    json_print(&j, "model:%s", rs->model->info->id);
    echo(&j, f, PARALLEL, "true");
    echo(&j, f, PREVIOUS, "null");
    echo(&j, f, CACHE_KEY, "null");
    json_print(&j, "reasoning:{");
    echo_member(&j, f->v[REASONING], "effort", "null");
    echo_member(&j, f->v[REASONING], "summary", "null");
    json_close(&j, '}');
    echo(&j, f, SAFETY, "null");
    json_print(&j, "service_tier:'default', store:%i, temperature:%g, text:{", rs->store,
               r->submit.sampling.temperature);
    echo_member(&j, f->v[TEXT], "format", "{\"type\":\"text\"}");
    json_close(&j, '}');
    echo(&j, f, TOOL_CHOICE, "\"auto\"");
    echo(&j, f, TOOLS, "[]");
    echo(&j, f, TOP_LOGPROBS, "0");
    json_print(&j, "top_p:%g", r->submit.sampling.top_p);
    echo(&j, f, TRUNCATION, "\"disabled\"");
    echo(&j, f, USER, "null");
    if (j.error < 0)
        return j.error;
    rs->kept.echo = blob_new(&text);
    return enomem_unless(rs->kept.echo);
}

/* ---- all ---- */

/* Checks the members that a WebSocket message has and a request body has not. */
static int check_message(const struct responses_build *b, yyjson_val *root,
                         const struct fields *f) {
    yyjson_val *warm = yyjson_obj_get(root, "generate");
    const char *name = json_cstr(yyjson_obj_get(root, "type"));

    if (!json_has(root, "type", "response.create"))
        return err_set_code(b->err, 400, "unknown_event_type", "type",
                            "type must be \"response.create\", not \"%.50s\".", text_or(name, ""));
    if (yyjson_obj_get(root, "stream_id"))
        return err_set_code(b->err, 400, "unsupported_parameter", "stream_id",
                            "stream_id is not supported: the responses of a connection follow each "
                            "other. Use a connection for each stream.");
    if (yyjson_is_true(f->v[BACKGROUND]))
        return responses_refuse(b, "background", "cannot be given over a WebSocket");
    if (warm && !yyjson_is_bool(warm))
        return responses_refuse(b, "generate", "must be a boolean");
    b->rs->warms = warm && !yyjson_is_true(warm);
    return 0;
}

/* Adapts a request over a WebSocket: every answer is a stream there. A response that only warms
 * computes the prompt, with the one token that the worker needs to end it. */
static void set_framed(const struct responses *rs, struct gen_request *r) {
    r->answer.stream = true;
    r->input.score_only = rs->warms;
    if (rs->warms)
        r->input.max_new = 1;
}

static int responses_read_body(struct responses_build *b, yyjson_val *root, struct gen_request *r) {
    struct responses *rs = b->rs;
    struct fields f = {0};
    yyjson_doc *chat = NULL;

    TRY(find_fields(b, root, &f));
    if (rs->framed)
        TRY(check_message(b, root, &f));
    TRY(check_types(b, &f));
    TRY(check_support(b, &f));
    TRY(read_management(b, f.v[MANAGEMENT]));
    rs->store =
        rs->env->store->limits.n && !rs->compacts && (!f.v[STORE] || yyjson_is_true(f.v[STORE]));
    rs->background = yyjson_is_true(f.v[BACKGROUND]);
    if (rs->background && !rs->store)
        return responses_refuse(b, "background", "needs a response that is stored");
    if (f.v[CONVERSATION] && !rs->store)
        return responses_refuse(b, "conversation", "needs a response that is stored");
    TRY(build_chat(b, &f, &chat));
    TRY(gen_request_read(r, rs->model, FIELDS_CHAT, chat, b->err));
    if (rs->compacts && !r->input.max_new)
        r->input.max_new = SUMMARY_TOKENS;
    if (rs->framed)
        set_framed(rs, r);
    int result = put_echo(rs, &f, r);
    if (result < 0)
        gen_request_deinit(r);
    return result;
}

/* Drops the parts of the request that the pool will read once more. */
static void forget_request(struct responses *rs) {
    rs->conversation = stored_unref(rs->conversation);
    rs->parent = stored_unref(rs->parent);
    stored_parts_deinit(&rs->kept);
    arena_deinit(&rs->arena);
    rs->tools = NULL;
    rs->n_tools = 0;
    rs->compact_from = 0;
    rs->store = rs->warms = rs->background = rs->summary = rs->wants_logprobs = rs->encrypted =
        rs->compacts = false;
}

static void responses_build_init(struct responses_build *b, struct responses *rs, struct err *err) {
    *b = (struct responses_build){.rs = rs, .err = err};
    b->doc = json_doc_new(&b->failed);
    call_table_init(&b->calls, rs->env->secret);
    buf_init(&b->system, UINT32_MAX);
    buf_init(&b->turn.content, UINT32_MAX);
    buf_init(&b->turn.reasoning, UINT32_MAX);
}

static void responses_build_deinit(struct responses_build *b) {
    buf_deinit(&b->system);
    buf_deinit(&b->turn.content);
    buf_deinit(&b->turn.reasoning);
    call_table_deinit(&b->calls);
    yyjson_mut_doc_free(b->doc);
}

int responses_translate(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    struct responses *rs = job->state;
    struct responses_build b;

    responses_build_init(&b, rs, err);
    b.quick = job->quick;
    rs->model = job->model;
    int r = responses_read_body(&b, yyjson_doc_get_root(body), &job->request);
    responses_build_deinit(&b);
    yyjson_doc_free(body);
    if (r == -EAGAIN)
        forget_request(rs);
    return r;
}

static int check_items(struct responses *rs, yyjson_val *items, const char *field,
                       struct err *err) {
    CLEANUP(responses_build_deinit) struct responses_build b = {0};

    responses_build_init(&b, rs, err);
    b.messages = yyjson_mut_arr(b.doc);
    responses_tools(&b, NULL);
    TRY(read_past(&b, field));
    TRY(responses_put_items(&b, items));
    if (b.failed)
        return -ENOMEM;
    return 0;
}

int responses_read_items(struct responses *rs, yyjson_val *items, const char *field,
                         struct err *err) {
    int r = check_items(rs, items, field, err);

    if (r < 0 && strncmp(err->param, "input", strlen("input")) == 0)
        err_rename(err, "input", field);
    return r;
}

int responses_translate_compact(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    struct responses *rs = job->state;

    rs->compacts = true;
    return responses_translate(job, body, err);
}
