/*
 * weft-gguf render - prints the prompt of a conversation. The conversation is a JSON object of
 * template variables (messages, tools, add_generation_prompt, ...). It may also have
 *
 *   bos_token, eos_token   by default those of the model
 *   kwargs                 an object: more variables
 *   now                    ISO time for strftime_now (2026-01-15T09:26:53, UTC), by default the
 *                          time of the clock
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "cmd/cli.h"
#include "cmd/gguf_cmd.h"
#include "text/template.h"
#include "text/tokenizer.h"

#define CONVERSATION_MAX ((size_t)256 << 20)
#define TEMPLATE_MAX ((size_t)16 << 20)

static const char usage[] =
    "usage: weft-gguf render (MODEL | --template FILE) CONVERSATION.json\n"
    "Prints the prompt that the chat template makes. CONVERSATION.json (-: stdin) is an object of\n"
    "template variables; it may also set bos_token, eos_token and now (ISO time for\n"
    "strftime_now).\n";

/* Text and special tokens of a model's template; a template file has only a text, and then there is
 * no tokenizer. `data` points into `text` or `file`. */
struct source {
    struct gguf *file;
    struct tokenizer *tokenizer;
    /* text of a template file */
    char *text;
    const char *data;
    size_t len;
};

static int gguf_render_read_source(struct source *s, const char *model, const char *template,
                                   struct err *err) {
    struct gguf_str text;
    int r;

    if (template) {
        r = cli_read_file(template, TEMPLATE_MAX, &s->text, &s->len);
        s->data = s->text;
        return r;
    }
    TRY(checkpoint_open_model(&s->file, model, err));
    TRY(tokenizer_new(&s->tokenizer, s->file, err));
    if (gguf_string(s->file, "tokenizer.chat_template", &text) < 0)
        return err_set(err, 0, NULL,
                       "the model has no chat template; give --template FILE in its place");
    s->data = text.data;
    s->len = text.len;
    return 0;
}

/* Parses an ISO time, in UTC, without a zone or with "Z". Returns 0 or -EINVAL with @err. */
static int parse_now(yyjson_val *v, int64_t *now, struct err *err) {
    const char *text = json_cstr(v);
    struct tm tm = {0};

    *now = time(NULL);
    if (!v)
        return 0;
    const char *end = text ? strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    if (!end || (*end && strcmp(end, "Z") != 0))
        return err_set(err, 0, NULL, "now is not an ISO time like 2026-01-15T09:26:53");
    *now = timegm(&tm);
    return 0;
}

/* Adds copies of the members of @from, including the members of the object "kwargs" as if they were
 * members of @from. */
static void add_members(yyjson_mut_doc *d, yyjson_mut_val *vars, yyjson_val *from, bool top) {
    JSON_MEMBERS(key, value, from) {
        if (top && yyjson_equals_str(key, "now"))
            continue;
        if (top && yyjson_equals_str(key, "kwargs") && yyjson_is_obj(value))
            add_members(d, vars, value, false);
        else
            yyjson_mut_obj_put(vars, yyjson_val_mut_copy(d, key), yyjson_val_mut_copy(d, value));
    }
}

static void gguf_render_add_token(yyjson_mut_doc *d, yyjson_mut_val *vars, const char *key,
                                  const struct source *s, int32_t id) {
    if (id < 0 || yyjson_mut_obj_get(vars, key))
        return;
    struct gguf_str text = tokenizer_text(s->tokenizer, id);
    yyjson_mut_obj_add_strncpy(d, vars, key, text.data, text.len);
}

/* Reads the variables of the conversation @path; the caller frees *out. Returns 0 or -errno with
 * @err. */
static int read_variables(const char *path, const struct source *s, yyjson_doc **out, int64_t *now,
                          struct err *err) {
    CLEANUP(freep) char *json = NULL;
    size_t len;

    TRY(cli_read_file(path, CONVERSATION_MAX, &json, &len));
    yyjson_doc *doc = yyjson_read(json, len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *vars = yyjson_mut_obj(d);
    int r;
    if (yyjson_is_obj(root))
        r = parse_now(yyjson_obj_get(root, "now"), now, err);
    else
        r = err_set(err, 0, NULL, "%s: not a JSON object", path);
    if (r == 0) {
        yyjson_mut_doc_set_root(d, vars);
        add_members(d, vars, root, true);
        if (s->tokenizer) {
            gguf_render_add_token(d, vars, "bos_token", s, tokenizer_bos(s->tokenizer));
            gguf_render_add_token(d, vars, "eos_token", s, tokenizer_eos(s->tokenizer));
        }
        *out = yyjson_mut_doc_imut_copy(d, NULL);
        r = *out ? 0 : -ENOMEM;
    }
    yyjson_mut_doc_free(d);
    yyjson_doc_free(doc);
    return r;
}

/* Renders a conversation. Returns CLI_OK or an exit code. */
static int gguf_render_conversation(const struct source *s, const char *name,
                                    const char *conversation) {
    CLEANUP(template_freep) struct template *t = NULL;
    struct template_opts opts = {0};
    struct rendered out = {0};
    yyjson_doc *vars = NULL;
    struct err err = {0};
    int code = CLI_OK, r = template_new(&t, s->data, s->len, &err);

    if (r < 0)
        return cli_fail_err(name, &err, r);
    r = read_variables(conversation, s, &vars, &opts.now_unix, &err);
    if (r < 0)
        return cli_fail_err(conversation, &err, r);
    r = template_render(t, yyjson_doc_get_root(vars), &opts, &out, &err);
    if (r < 0)
        code = cli_fail_err(name, &err, r);
    else if (out.text.len)
        fwrite(out.text.data, 1, out.text.len, stdout);
    if (r == 0)
        rendered_deinit(&out);
    yyjson_doc_free(vars);
    return code;
}

int gguf_cmd_render(int argc, char **argv) {
    const char *template = NULL;
    const struct cli_option options[] = {{"template", CLI_TEXT, &template, 0, 0}};
    struct source s = {0};
    struct err err = {0};
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args != (template ? 1 : 2))
        return cli_usage("render needs a MODEL or --template FILE, and one CONVERSATION.json");
    const char *name = template ? template : argv[1];
    int r = gguf_render_read_source(&s, argv[1], template, &err);
    if (r < 0)
        code = cli_fail_err(name, &err, r);
    else
        code = gguf_render_conversation(&s, name, argv[n_args]);
    tokenizer_free(s.tokenizer);
    gguf_free(s.file);
    free(s.text);
    if (code == CLI_OK && !files_flush())
        code = CLI_FAILED;
    return code;
}
