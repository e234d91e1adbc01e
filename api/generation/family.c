/*
 * Templates differ in the form of past calls: most write the arguments with tojson or member by
 * member and want an object; a few paste them into text and want the JSON that the model wrote.
 * family_init() renders a small conversation both ways to find out: an object that is pasted is an
 * error, or appears as Python would print it, in single quotes.
 */

#include "api/generation/family.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <yyjson.h>

#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/json_value.h"
#include "base/try.h"

#define MARK_TOKENS 64 /* tokens of a marker; it has about 20 bytes */

/* The variables of a probe: @tools, a member or nothing; @asks, whether an answer is to follow; and
 * the messages. */
#define VARIABLES(tools, asks, messages)                                                           \
    "{\"bos_token\": \"\", \"eos_token\": \"\", " tools "\"documents\": null, "                    \
    "\"add_generation_prompt\": " asks ", \"messages\": [" messages "]}"
#define NULL_TOOLS "\"tools\": null, "
#define ASK "{\"role\": \"user\", \"content\": \"x\"}"
#define PROBE(args)                                                                                \
    VARIABLES(NULL_TOOLS, "false",                                                                 \
              ASK ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": "      \
                  "\"call12345\", \"type\": \"function\", \"function\": {\"name\": \"f\", "        \
                  "\"arguments\": " args "}}]}")

/* Renders @vars to @out, which is empty; returns false if the template fails. */
static bool render_probe(const struct template *t, const char *vars, struct rendered *out) {
    struct template_opts o = {.max_output = 256 << 10};
    struct err err = {0};
    yyjson_doc *doc = yyjson_read(vars, strlen(vars), 0);
    bool ok = doc && template_render(t, yyjson_doc_get_root(doc), &o, out, &err) == 0;

    yyjson_doc_free(doc);
    return ok;
}

/* Returns true if a rendering of @vars succeeds and contains @needle. */
static bool renders(const struct template *t, const char *vars, const char *needle, bool *ok) {
    CLEANUP(rendered_deinit) struct rendered out = {0};

    *ok = render_probe(t, vars, &out);
    return *ok && out.text.len && memmem(out.text.data, out.text.len, needle, strlen(needle));
}

/* Returns true if the template leaves out a system message that is not the first message. Agents
 * send such messages. */
static bool drops_system(const struct template *t) {
    static const char vars[] =
        VARIABLES(NULL_TOOLS, "true",
                  ASK ", {\"role\": \"assistant\", \"content\": \"y\"}, {\"role\": \"system\", "
                      "\"content\": \"needle\"}, {\"role\": \"user\", \"content\": \"z\"}");
    bool ok, found = renders(t, vars, "needle", &ok);

    return ok && !found;
}

/* Returns true if @word is in the source, and not as the beginning of a longer word. */
static bool family_has_word(const struct buf *source, const char *word) {
    const char *at = source->data, *end = at + source->len;
    size_t n = strlen(word);

    while ((at = memmem(at, (size_t)(end - at), word, n))) {
        at += n;
        if (at == end || (!isalnum((unsigned char)*at) && *at != '_'))
            return true;
    }
    return false;
}

/* Returns the member of a past message from which the template reads reasoning; NULL if it reads
 * reasoning_content, as most do and as clients write it, or if none is known. */
static const char *name_of_thoughts(const struct buf *source) {
    static const char *const rows[][2] = {
        {"message.thinking", "thinking"},   {"message['thinking']", "thinking"},
        {"message.thought", "thought"},     {"message['thought']", "thought"},
        {"message.reasoning", "reasoning"}, {"message['reasoning']", "reasoning"},
    };

    if (!source->len || family_has_word(source, "reasoning_content"))
        return NULL;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (family_has_word(source, rows[i][0]))
            return rows[i][1];
    return NULL;
}

/* Returns true if the template reads the reasoning of a past message from parts of its content, as
 * Mistral's do, rather than printing the list of parts. */
static bool reads_thought_parts(const struct template *t) {
    static const char vars[] =
        VARIABLES(NULL_TOOLS, "false",
                  ASK ", {\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", "
                      "\"thinking\": \"needle\"}, {\"type\": \"text\", \"text\": \"y\"}]}");
    bool ok, quoted = renders(t, vars, "'needle'", &ok) || renders(t, vars, "\"needle\"", &ok);

    return !quoted && renders(t, vars, "needle", &ok);
}

#define ASKED(tools) VARIABLES(tools, "true", ASK)

/* Returns true if the template fails for a chat without tools, unless `tools` is missing. */
static bool fails_on_null_tools(const struct template *t) {
    bool null_ok, ok;

    renders(t, ASKED(NULL_TOOLS), "", &null_ok);
    renders(t, ASKED(""), "", &ok);
    return ok && !null_ok;
}

#define ASKED_WITH(content)                                                                        \
    VARIABLES(NULL_TOOLS, "true", "{\"role\": \"user\", \"content\": " content "}")

/* Returns true if the template, as SmolVLM's, iterates over the parts of a content and shows
 * nothing of a string. */
static bool shows_only_parts(const struct template *t) {
    bool ok;

    return !renders(t, ASKED_WITH("\"needle\""), "needle", &ok) &&
           renders(t, ASKED_WITH("[{\"type\": \"text\", \"text\": \"needle\"}]"), "needle", &ok);
}

static bool reads_text_args(const struct template *t) {
    bool ok, printed = renders(t, PROBE("{\"needle\": 1}"), "'needle'", &ok);

    if (ok && !printed)
        return false;
    return renders(t, PROBE("\"{\\\"needle\\\": 1}\""), "{\"needle\": 1}", &ok);
}

#define SAID(message) VARIABLES(NULL_TOOLS, "true", ASK ", " message)

/* Returns true if the template, one of GLM-4's, has roles of its own for calls and results, and
 * does not show them where other templates do. */
static bool names_calls(const struct template *t) {
    static const char call[] =
        SAID("{\"role\": \"assistant\", \"metadata\": \"needle\", \"content\": \"{}\"}");
    static const char result[] = SAID("{\"role\": \"observation\", \"content\": \"needle\"}");
    bool ok;

    return renders(t, call, "needle", &ok) && renders(t, result, "needle", &ok) &&
           !renders(t, PROBE("{\"needle\": 1}"), "needle", &ok);
}

/* Returns true if the template shows nothing of a past call, whichever form its arguments have. */
static bool drops_calls(const struct family *f, const struct template *t) {
    bool ok, text_ok;

    return f->takes_tools && f->format && toolcall_can_write(f->format) &&
           !renders(t, PROBE("{\"needle\": 1}"), "needle", &ok) &&
           !renders(t, PROBE("\"{\\\"needle\\\": 1}\""), "needle", &text_ok) && ok && text_ok;
}

bool family_reads_text(const struct template *t) {
    return template_uses(t, "functions") && !template_uses(t, "tools");
}

#define RESULT(in_call, message)                                                                   \
    VARIABLES(NULL_TOOLS, "true",                                                                  \
              ASK ", {\"role\": \"assistant\", \"content\": \"\", " in_call                        \
                  "\"tool_calls\": [{\"id\": \"a\", \"type\": \"function\", \"function\": "        \
                  "{\"name\": \"f\", \"arguments\": {}}}]}" message)

/* Returns true if the template, an early one of Gemma 4, writes results of calls in the trained
 * form only where they are members of the message with the calls. */
static bool reads_result_members(const struct template *t) {
    static const char own[] = RESULT("", ", {\"role\": \"tool\", \"tool_call_id\": \"a\", "
                                         "\"content\": \"y\"}");
    static const char member[] =
        RESULT("\"tool_responses\": [{\"name\": \"f\", \"response\": \"y\"}], ", "");
    bool own_ok, ok, written = renders(t, own, "<|tool_response>", &own_ok);

    return own_ok && !written && renders(t, member, "<|tool_response>", &ok);
}

/* Finds out whether the model reasons in requests that do not say so. Apertus, whose maker
 * leaves its deliberation off, does not, nor does Granite 3.3, which gets a text for the variable
 * `thinking`. Other templates that know this variable alone open or close reasoning at the end of
 * the prompt. */
static void family_find_default(struct family *f, const struct template *t) {
    CLEANUP(rendered_deinit) struct rendered out = {0};
    bool opens = false,
         alone = template_uses(t, "thinking") && !template_uses(t, "enable_thinking");
    bool apertus = f->reasoning && strcmp(f->reasoning->name, "apertus") == 0;

    if (render_probe(t, ASKED(NULL_TOOLS), &out) && out.text.len) {
        opens = toolcall_opens_reasoning(f->reasoning, out.text.data, out.text.len);
        f->closes_thoughts = toolcall_closes_reasoning(f->reasoning, out.text.data, out.text.len);
    }
    f->thinks = f->reasons && !apertus && (!alone || opens || f->closes_thoughts);
}

static bool reasons(const struct toolcall_reasoning *r, const struct toolcall_format *f) {
    return r || (f && f->own.begin);
}

bool api_template_reasons(const char *source, size_t len) {
    CLEANUP(buf_deinit) struct buf own = family_source(source, len);

    return own.len && reasons(toolcall_detect_reasoning(own.data, own.len),
                              toolcall_detect(own.data, own.len));
}

/* Returns what the marker of reasoning is among the tokens of @t. */
static enum toolcall_mark mark_of(const struct toolcall_reasoning *r, const struct tokenizer *t) {
    struct tokens first = {.max = MARK_TOKENS};
    enum toolcall_mark mark = MARK_TEXT;
    size_t len;

    if (r && t &&
        tokenizer_encode(t, r->open, strlen(r->open), TOKENIZE_SPECIAL, NULL, 0, &first) == 0 &&
        first.n && tokenizer_is_special(t, first.id[0])) {
        tokenizer_piece(t, first.id[0], false, &len);
        mark = len ? MARK_TOKEN : MARK_CONTROL;
    }
    tokens_deinit(&first);
    return mark;
}

/* Returns true if a source has the markers of more than one format. */
static bool may_vary(const struct buf *source) {
    uint32_t n = 0;

    for (size_t i = 0; source->len && toolcall_at(i); i++)
        n += toolcall_mentions(toolcall_at(i), source->data, source->len);
    return n > 1;
}

void family_init(struct family *f, const struct api_model *m) {
    CLEANUP(buf_deinit) struct buf source = {0};

    memset(f, 0, sizeof(*f));
    family_formats_init(&f->formats);
    if (!m->template)
        return;
    if (m->template_source)
        source = family_source(m->template_source, m->template_len);
    f->format = family_find_format(m->template, &source, NULL);
    f->reasoning = family_find_reasoning(m->template, &source);
    f->varies = may_vary(&source);
    f->mark = mark_of(f->reasoning, m->tokenizer);
    if (m->tokenizer)
        f->n_ends = family_find_ends(m->template, m->tokenizer, f->format, f->reasoning, f->ends);
    f->takes_tools = family_tools_variable(m->template) || family_reads_text(m->template);
    f->names_calls = f->takes_tools && names_calls(m->template);
    f->text_args = f->takes_tools && (f->names_calls || reads_text_args(m->template));
    f->drops_calls = !f->names_calls && drops_calls(f, m->template);
    f->thoughts = name_of_thoughts(&source);
    f->drops_system = drops_system(m->template);
    f->thought_parts = f->reasoning && !f->thoughts && source.len &&
                       !family_has_word(&source, "reasoning_content") &&
                       reads_thought_parts(m->template);
    f->reasons = reasons(f->reasoning, f->format);
    f->result_members = reads_result_members(m->template);
    family_find_default(f, m->template);
    f->no_null_tools = fails_on_null_tools(m->template);
    f->reads_parts = shows_only_parts(m->template);
}

/* Makes the text of those @kwargs that the template mentions; NULL: it mentions none. */
static int known_kwargs(const struct template *t, yyjson_val *kwargs, char **out) {
    bool failed = false;
    CLEANUP(json_mut_doc_freep) yyjson_mut_doc *d = json_doc_new(&failed);
    yyjson_mut_val *known = yyjson_mut_obj(d);

    *out = NULL;
    JSON_MEMBERS(key, value, kwargs) {
        if (template_uses(t, json_cstr(key)))
            yyjson_mut_obj_add(known, yyjson_val_mut_copy(d, key), yyjson_val_mut_copy(d, value));
    }
    if (!failed && yyjson_mut_obj_size(known) == 0)
        return 0;
    *out = yyjson_mut_val_write(known, 0, NULL);
    if (failed || !*out)
        return -ENOMEM;
    return 0;
}

int family_format_of(struct family *f, const struct api_model *m, yyjson_val *kwargs, bool quick,
                     const struct toolcall_format **out) {
    CLEANUP(buf_deinit) struct buf source = {0};
    CLEANUP(freep) char *known = NULL;

    *out = f->format;
    if (!f->takes_tools || !f->varies)
        return 0;
    TRY(known_kwargs(m->template, kwargs, &known));
    if (!known || family_formats_get(&f->formats, known, out))
        return 0;
    if (quick)
        return -EAGAIN;
    if (m->template_source)
        source = family_source(m->template_source, m->template_len);
    *out = family_find_format(m->template, &source, kwargs);
    family_formats_insert(&f->formats, known, *out);
    return 0;
}

const struct toolcall_format *family_format(const struct family *f,
                                            const struct toolcall_format *own, bool tools) {
    bool reads = own && own->own.begin; /* no other format tells its reasoning from its content */

    if (tools) {
        if (own && (f->takes_tools || reads))
            return own;
        return toolcall_find("generic");
    }
    if (!reads && (!own || !own->content_begin))
        return NULL;
    return own;
}

void family_deinit(struct family *f) {
    family_formats_deinit(&f->formats);
}
