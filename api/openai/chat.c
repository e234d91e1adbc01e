#include <assert.h>

#include "api/generation/read_request.h"
#include "api/http/json.h"
#include "api/http/json_build.h"
#include "api/openai/choices.h"
#include "api/openai/functions.h"
#include "api/openai/openai.h"
#include "api/openai/raw_answer.h"
#include "base/json_read.h"
#include "base/try.h"

/* Writes reasoning under two names, because clients read one or the other. */
static void chat_put_reasoning(struct json *j, const char *text, size_t len) {
    json_print(j, "reasoning_content:%.*s, reasoning:%.*s", (int)len, text, (int)len, text);
}

/* Writes the members of a call before its arguments, and leaves "function" or "custom" open. */
static void open_function(struct json *j, const struct output_call *c, bool custom) {
    const char *kind = custom ? "custom" : "function";

    json_print(j, "id:%s, type:%s, %s:{name:%s", c->id, kind, kind, c->name);
}

/* Writes the new text for a custom tool; arguments in another form are sent as they came. */
static void put_input_delta(struct json *j, struct custom_text *t, const char *args,
                            const struct output_piece *part) {
    size_t known = part->len ? (size_t)(part->text - args) + part->len : 0;

    if (custom_read(t, args, known) < 0) {
        j->error = -ENOMEM;
        return;
    }
    assert(t->n_sent <= t->text.len);
    if (custom_is_other(t))
        json_print(j, "input:%.*s", (int)part->len, part->text);
    else
        json_print(j, "input:%.*s", (int)(t->text.len - t->n_sent),
                   t->text.len ? t->text.data + t->n_sent : "");
    t->n_sent = t->text.len;
}

/* Writes the delta of a call in the form of `functions`, which has one call without an id. */
static void put_function_delta(struct json *j, const struct piece *p) {
    const struct output_piece *part = p->part;

    if (part->call > 0)
        return;
    json_print(j, "function_call:{");
    if (part->begins)
        json_print(j, "name:%s", p->choice->gen->output->calls[part->call].name);
    json_print(j, "arguments:%.*s}", (int)part->len, part->text);
}

/* Writes a delta of a call: the first has id, type and name, the others a part of the arguments. */
static void put_call_delta(struct json *j, const struct writer *w, const struct piece *p) {
    const struct output_piece *part = p->part;
    const struct output_parser *s = p->choice->gen->output;
    const struct output_call *c = &s->calls[part->call];
    bool custom = custom_is(&w->job.request, c->name);

    assert(part->call < s->n_calls);
    json_print(j, "tool_calls:[{index:%u", part->call);
    if (part->begins) {
        struct buf text = p->choice->custom.text;

        buf_clear(&text);
        p->choice->custom = (struct custom_text){.text = text};
        open_function(j, c, custom);
    } else {
        json_print(j, custom ? "custom:{" : "function:{");
    }
    if (custom)
        put_input_delta(j, &p->choice->custom, s->text[OUTPUT_CALL].data + c->begin, part);
    else
        json_print(j, "arguments:%.*s", (int)part->len, part->text);
    json_print(j, "}}]");
}

static void put_delta(struct json *j, const struct writer *w, const struct piece *p) {
    json_print(j, "delta:{");
    if (p->part->kind == OUTPUT_CALL && w->job.request.answer.functions_form) {
        put_function_delta(j, p);
    } else if (p->part->kind == OUTPUT_CALL) {
        put_call_delta(j, w, p);
    } else if (p->part->kind == OUTPUT_REASONING) {
        if (!w->job.request.answer.no_reasoning)
            chat_put_reasoning(j, p->text, p->len);
    } else {
        json_print(j, "content:%.*s", (int)p->len, p->text);
    }
    json_close(j, '}');
}

static void chat_put_input(struct json *j, const char *args, size_t len) {
    struct custom_text t = {.text = {.max = UINT32_MAX}};

    if (custom_read(&t, args, len) < 0)
        j->error = -ENOMEM;
    else if (custom_is_other(&t))
        json_print(j, "input:%.*s", (int)len, args);
    else
        json_print(j, "input:%.*s", (int)t.text.len, t.text.data);
    buf_deinit(&t.text);
}

static void chat_put_calls(struct json *j, const struct writer *w, const struct output_parser *s) {
    json_print(j, "tool_calls:[");
    for (uint32_t i = 0; i < s->n_calls; i++) {
        const struct output_call *c = &s->calls[i];
        const char *all = s->text[OUTPUT_CALL].data, *args = all ? all + c->begin : "";
        bool custom = custom_is(&w->job.request, c->name);

        assert(c->begin <= c->end && c->end <= s->text[OUTPUT_CALL].len);
        json_open(j, '{');
        open_function(j, c, custom);
        if (custom)
            chat_put_input(j, args, c->end - c->begin);
        else
            json_print(j, "arguments:%.*s", (int)(c->end - c->begin), args);
        json_print(j, "}}");
    }
    json_close(j, ']');
}

/* Writes the first call in the form of `functions`, which knows only one. */
static void put_function(struct json *j, const struct output_parser *s) {
    const struct output_call *c = &s->calls[0];
    const char *all = s->text[OUTPUT_CALL].data;

    json_print(j, "function_call:{name:%s, arguments:%.*s}", c->name, (int)(c->end - c->begin),
               all ? all + c->begin : "");
}

static void chat_put_message(struct json *j, const struct writer *w,
                             const struct output_parser *s) {
    const struct buf *content = &s->text[OUTPUT_CONTENT], *reasoning = &s->text[OUTPUT_REASONING];

    json_print(j, "message:{role:'assistant'");
    if (s->n_calls && !content->len)
        json_print(j, "content:null");
    else
        json_print(j, "content:%.*s", (int)content->len, content->data);
    if (reasoning->len && !w->job.request.answer.no_reasoning)
        chat_put_reasoning(j, reasoning->data, reasoning->len);
    if (s->n_calls && w->job.request.answer.functions_form)
        put_function(j, s);
    else if (s->n_calls)
        chat_put_calls(j, w, s);
    json_print(j, "refusal:null}");
}

void choices_put_message(struct json *j, const struct writer *w, const struct piece *p,
                         bool stream) {
    if (p->part) {
        put_delta(j, w, p);
        return;
    }
    if (!stream && p->choice->gen->output) {
        chat_put_message(j, w, p->choice->gen->output);
        return;
    }
    json_print(j, stream ? "delta:{" : "message:{");
    if (p->first)
        json_print(j, "role:'assistant'");
    if (stream && p->first && !p->len && openai_is_llama_server(w->route))
        json_print(j, "content:null");
    else if (p->first || p->len)
        json_print(j, "content:%.*s", (int)p->len, p->text);
    if (!stream)
        json_print(j, "refusal:null");
    json_close(j, '}');
}

/* Writes {"token":..,"logprob":..,"bytes":[..]} and leaves it open for more members. */
static void open_token(struct json *j, const struct writer *w, int32_t id, float logprob,
                       bool has_id) {
    size_t len;
    const char *text = choices_token(w, id, &len);

    json_open(j, '{');
    if (has_id)
        json_print(j, "id:%d", id);
    json_print(j, "token:");
    choices_put_token(j, w, id);
    json_print(j, "logprob:%g, bytes:[", (double)logprob);
    for (size_t i = 0; i < len; i++)
        json_int(j, (unsigned char)text[i]);
    json_close(j, ']');
}

void choices_put_logprob(struct json *j, const struct writer *w, const struct gen *g, uint32_t i,
                         bool has_ids) {
    open_token(j, w, g->tokens[g->n_prompt + i], g->logprobs[i], has_ids);
    json_print(j, "top_logprobs:[");
    for (uint32_t k = 0; k < g->m.n_top; k++) {
        const struct event_top *t = &g->top[(size_t)i * g->m.n_top + k];

        if (t->token < 0)
            continue;
        open_token(j, w, t->token, t->logprob, has_ids);
        json_close(j, '}');
    }
    json_print(j, "]}");
}

void choices_put_logprobs(struct json *j, const struct writer *w, const struct gen *g,
                          uint32_t from, uint32_t to, bool llama_server) {
    assert(from <= to && to <= g->n_out && (from == to || g->logprobs));
    json_open(j, '[');
    for (uint32_t i = from; i < to; i++) {
        if (i % CHOICES_PAUSE == 0)
            choices_pause(j);
        if (llama_server || gen_is_text(g, i))
            choices_put_logprob(j, w, g, i, llama_server);
    }
    json_close(j, ']');
}

void choices_put_message_logprobs(struct json *j, const struct writer *w, const struct piece *p) {
    json_print(j, "{content:");
    choices_put_logprobs(j, w, p->choice->gen, p->from, p->to, false);
    json_print(j, "refusal:null}");
}

static const struct choices_form form = {
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .has_role = true,
    .content = choices_put_message,
    .logprobs = choices_put_message_logprobs,
    .figures = raw_answer_put_figures,
};

/* ---- a last message that the answer continues ---- */

static int refuse_continue(const char *why, struct err *err) {
    return err_set_code(err, 400, "invalid_value", "continue_final_message",
                        "continue_final_message %s.", why);
}

/* Adds the text of @message, which must be the assistant's, to @out, with @between between its
 * parts. */
static int chat_add_text(yyjson_mut_val *message, const char *between, struct buf *out,
                         struct err *err) {
    static const char what[] = "needs a last message of the assistant that is text alone";
    yyjson_mut_val *content = yyjson_mut_obj_get(message, "content"), *part;
    size_t i, n;

    if (!yyjson_mut_equals_str(yyjson_mut_obj_get(message, "role"), "assistant") ||
        yyjson_mut_arr_size(yyjson_mut_obj_get(message, "tool_calls")) > 0)
        return refuse_continue(what, err);
    if (yyjson_mut_is_str(content))
        return json_mut_add_text(out, content);
    if (!yyjson_mut_is_arr(content))
        return refuse_continue(what, err);
    yyjson_mut_arr_foreach(content, i, n, part) {
        yyjson_mut_val *text = yyjson_mut_obj_get(part, "text");

        if (yyjson_mut_is_str(part))
            text = part;
        if (!yyjson_mut_is_str(text))
            return refuse_continue(what, err);
        if (i > 0)
            TRY(buf_add_str(out, between));
        TRY(json_mut_add_text(out, text));
    }
    return 0;
}

/* Removes the last message from *@body; its text becomes @prefill. */
static int remove_final(yyjson_doc **body, const char *between, struct buf *prefill,
                        struct err *err) {
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *doc = json_doc_copy(*body, &failed);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(doc);
    yyjson_mut_val *messages = yyjson_mut_obj_get(root, "messages");

    if (!doc)
        return -ENOMEM;
    if (yyjson_mut_is_true(yyjson_mut_obj_get(root, "add_generation_prompt")))
        return refuse_continue("and add_generation_prompt cannot be given together", err);
    TRY(chat_add_text(yyjson_mut_arr_get_last(messages), between, prefill, err));
    yyjson_mut_arr_remove_last(messages);
    yyjson_mut_obj_remove_key(root, "add_generation_prompt");
    yyjson_doc *rest = NULL;
    TRY(json_doc_seal(doc, root, &rest));
    yyjson_doc_free(*body);
    *body = rest;
    return 0;
}

/* Returns true if the last message of @body is a text of the assistant, and nothing says that
 * another message begins after it. */
static bool chat_ends_with_answer(yyjson_val *body) {
    yyjson_val *last = yyjson_arr_get_last(yyjson_obj_get(body, "messages"));
    yyjson_val *content = yyjson_obj_get(last, "content");

    if (!json_has(last, "role", "assistant") || json_given(last, "tool_calls"))
        return false;
    if (yyjson_is_true(yyjson_obj_get(body, "add_generation_prompt")))
        return false;
    if (yyjson_is_str(content))
        return json_len(content) > 0;
    JSON_EACH(part, content) {
        if (!yyjson_is_str(part) && !yyjson_is_str(yyjson_obj_get(part, "text")))
            return false;
    }
    return yyjson_arr_size(content) > 0;
}

/* Returns true if the last message of @body says itself that the answer continues it: with
 * `prefix`, as in the APIs of Mistral and DeepSeek, or `partial`, as in those of Moonshot and
 * Alibaba. */
static bool chat_marks_start(yyjson_val *body) {
    yyjson_val *last = yyjson_arr_get_last(yyjson_obj_get(body, "messages"));

    return json_has(last, "role", "assistant") && (yyjson_is_true(yyjson_obj_get(last, "prefix")) ||
                                                   yyjson_is_true(yyjson_obj_get(last, "partial")));
}

/* Rewrites old functions to tools, and moves a message that is to be continued to @prefill. */
static int chat_rewrite(yyjson_doc **body, enum field_set kind, bool llama, bool *functions,
                        struct buf *prefill, struct err *err) {
    bool continues;

    if (kind == FIELDS_CHAT)
        TRY(functions_translate(body, functions, err));
    yyjson_val *root = yyjson_doc_get_root(*body), *v = json_given(root, "continue_final_message");
    if (!v)
        v = json_given(json_given(root, "extra_body"), "continue_final_message");
    if (v)
        continues = yyjson_is_true(v);
    else
        continues = chat_marks_start(root) || (llama && chat_ends_with_answer(root));
    if (v && !yyjson_is_bool(v))
        return refuse_continue("must be a boolean", err);
    if (continues)
        return remove_final(body, llama ? "\n\n" : "\n", prefill, err);
    return 0;
}

/* Reads a body with messages. @llama: as llama-server does, whose answer continues a last message
 * of the assistant unless continue_final_message is given. */
static int chat_read(struct prompt_job *job, yyjson_doc *body, enum field_set kind, bool llama,
                     struct err *err) {
    CLEANUP(buf_deinit) struct buf prefill = {.max = UINT32_MAX};
    struct gen_request *r = &job->request;
    bool functions = false;
    int result = chat_rewrite(&body, kind, llama, &functions, &prefill, err);

    if (result < 0) {
        yyjson_doc_free(body);
        return result;
    }
    TRY(gen_request_read(r, job->model, kind, body, err));
    r->answer.functions_form = functions;
    if (!prefill.len)
        return 0;
    return gen_request_set_prefill(r, prefill.data, prefill.len);
}

int openai_read_rendered(struct prompt_job *job, yyjson_doc *body, enum field_set kind,
                         struct err *err) {
    return chat_read(job, body, kind, false, err);
}

int openai_read_chat(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    return chat_read(job, body, FIELDS_CHAT, false, err);
}

int openai_read_llama_chat(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    return chat_read(job, body, FIELDS_CHAT, true, err);
}

#define CHAT_WITH(translate_)                                                                      \
    {                                                                                              \
        .translate = (translate_), .id_prefix = "chatcmpl-", .repeats = REPEATS_TEXT,              \
        .inlines_reasoning = true, CHOICES_OF(form), .alive = choices_alive,                       \
    }

const struct endpoint openai_chat = CHAT_WITH(openai_read_chat);
const struct endpoint openai_llama_chat = CHAT_WITH(openai_read_llama_chat);
