/*
 * weftctl launch - starts a client that talks to weftd. If the environment and the command line can
 * configure the client, nothing is written, so that without weftctl it behaves as before. --write
 * changes the client's own file instead; --undo restores it.
 */

#include "cmd/ctl_launch.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_read.h"
#include "base/meant.h"
#include "base/text.h"
#include "base/try.h"
#include "cmd/cli.h"
#include "cmd/ctl.h"
#include "cmd/ctl_chat.h"

#define KEY_MAX 512
#define TELL_S 5 /* a first prompt that takes less time is not mentioned */
#define CLIENTS                                                                                    \
    "claude, codex, opencode, kilo, copilot, qwen, pi, openclaw, hermes, aider, goose or continue"

static const char help[] =
    "usage: weftctl launch CLIENT [OPTIONS] [-- ARGUMENTS]\n"
    "Starts CLIENT with a model of weftd, through environment variables and arguments; no file is\n"
    "written, except for pi, openclaw, hermes and continue, which read only their files. CLIENT\n"
    "is one of " CLIENTS ".\n"
    "  --url URL        address of weftd ($WEFT_URL, else that of the one daemon that runs,\n"
    "                   else http://127.0.0.1:8080)\n"
    "  --model NAME     model to use (else the first served model)\n"
    "  --key-file FILE  file with the API key (else $WEFT_API_KEY)\n"
    "  --print          print the settings for a shell or for the client's file, and start\n"
    "                   nothing\n"
    "  --write          write the settings to the client's own file (claude, codex, opencode, pi,\n"
    "                   openclaw, hermes, continue)\n"
    "  --undo           restore that file\n"
    "  --anyway         start the client although the model's context is too small for it\n"
    "For another CLIENT the settings are printed that every client has in some form.\n";

const struct launch_client launch_clients[] = {
    {
        .name = "claude",
        .program = "claude",
        .n_first = 12000,
        .env = {"ANTHROPIC_BASE_URL={url}", "ANTHROPIC_AUTH_TOKEN={key}", "ANTHROPIC_MODEL={model}",
                "ANTHROPIC_SMALL_FAST_MODEL={model}", "ANTHROPIC_DEFAULT_HAIKU_MODEL={model}",
                "CLAUDE_CODE_AUTO_COMPACT_WINDOW={window}",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", NULL},
        .file = ".claude/settings.json",
        .fragment = "{\"env\": {\"ANTHROPIC_BASE_URL\": \"{url}\", \"ANTHROPIC_AUTH_TOKEN\": "
                    "\"{key}\", \"ANTHROPIC_MODEL\": \"{model}\", "
                    "\"ANTHROPIC_SMALL_FAST_MODEL\": \"{model}\", "
                    "\"ANTHROPIC_DEFAULT_HAIKU_MODEL\": \"{model}\"}}",
    },
    {
        .name = "codex",
        .program = "codex",
        .n_first = 9000,
        .env = {"WEFT_API_KEY={key}", NULL},
        .args = {"-c", "model=\"{model}\"", "-c", "model_provider=\"weft\"", "-c",
                 "model_providers.weft={name=\"weft\", base_url=\"{url}/v1\", "
                 "wire_api=\"responses\", env_key=\"WEFT_API_KEY\"}",
                 "--config=model_context_window={context}", NULL},
        .file = ".codex/weft.config.toml",
        .appended = "model = \"{model}\"\nmodel_provider = \"weft\"\n{limit}"
                    "\n[model_providers.weft]\nname = \"weft\"\nbase_url = \"{url}/v1\"\n"
                    "wire_api = \"responses\"\n",
        .limit = "model_context_window = {context}\n",
        .mark = "[", /* text behind the line of a table would belong to the table */
        .note = "start it with: codex --profile weft",
    },
    {
        .name = "opencode",
        .program = "opencode",
        .n_first = 7500,
        .env = {"OPENCODE_CONFIG_CONTENT="
                "{\"provider\": {\"weft\": {\"npm\": \"@ai-sdk/openai-compatible\", \"name\": "
                "\"weft\", \"options\": {\"baseURL\": \"{url}/v1\", \"apiKey\": \"{key}\"}, "
                "\"models\": {\"{model}\": {\"name\": \"{model}\"{limit}}}}}, \"model\": "
                "\"weft/{model}\", \"small_model\": \"weft/{model}\"}",
                NULL},
        .limit = ", \"limit\": {\"context\": {context}, \"output\": {output}}",
        .file = ".config/opencode/opencode.json",
        .fragment = "{\"provider\": {\"weft\": {\"npm\": \"@ai-sdk/openai-compatible\", \"name\": "
                    "\"weft\", \"options\": {\"baseURL\": \"{url}/v1\", \"apiKey\": \"{key}\"}, "
                    "\"models\": {\"{model}\": {\"name\": \"{model}\"{limit}}}}}, \"model\": "
                    "\"weft/{model}\", \"small_model\": \"weft/{model}\"}",
    },
    {
        .name = "kilo",
        .program = "kilo",
        .env = {"KILO_CONFIG_CONTENT="
                "{\"provider\": {\"weft\": {\"npm\": \"@ai-sdk/openai-compatible\", \"name\": "
                "\"weft\", \"options\": {\"baseURL\": \"{url}/v1\", \"apiKey\": \"{key}\"}, "
                "\"models\": {\"{model}\": {\"name\": \"{model}\"{limit}}}}}, \"model\": "
                "\"weft/{model}\", \"small_model\": \"weft/{model}\"}",
                NULL},
        .limit = ", \"limit\": {\"context\": {context}, \"output\": {output}}",
    },
    {
        .name = "continue",
        .program = "cn",
        .file = ".continue/config.yaml",
        .appended = "\nname: weft\nversion: 0.0.1\nschema: v1\nmodels:\n  - name: \"{model}\"\n"
                    "    provider: openai\n    model: \"{model}\"\n    apiBase: \"{url}/v1\"\n"
                    "    apiKey: \"{key}\"\n    capabilities: [tool_use]\n{limit}",
        .limit = "    defaultCompletionOptions:\n      contextLength: {context}\n",
        .mark = "name:",
        .note = "start it with: cn",
    },
    {
        .name = "copilot",
        .program = "copilot",
        .n_first = 11000,
        .env = {"COPILOT_PROVIDER_BASE_URL={url}/v1", "COPILOT_PROVIDER_API_KEY={key}",
                "COPILOT_MODEL={model}", "COPILOT_PROVIDER_MAX_PROMPT_TOKENS={context}",
                "COPILOT_OFFLINE=true", NULL},
    },
    {
        .name = "pi",
        .program = "pi",
        .n_first = 1500,
        .args = {"--provider", "weft", "--model", "{model}", NULL},
        .file = ".pi/agent/models.json",
        .fragment = "{\"providers\": {\"weft\": {\"baseUrl\": \"{url}/v1\", \"api\": "
                    "\"openai-completions\", \"apiKey\": \"{key}\", \"models\": [{\"id\": "
                    "\"{model}\"{limit}}]}}}",
        .limit = ", \"contextWindow\": {context}, \"maxTokens\": {output}",
        .note = "start it with: weftctl launch pi",
    },
    {
        .name = "openclaw",
        .program = "openclaw",
        .n_first = 14000,
        .file = ".openclaw/openclaw.json",
        .fragment = "{\"models\": {\"providers\": {\"weft\": {\"baseUrl\": \"{url}/v1\", "
                    "\"apiKey\": \"{key}\", \"api\": \"openai-completions\", \"models\": "
                    "[{\"id\": \"{model}\", \"name\": \"{model}\", \"input\": "
                    "[\"text\"]{limit}}]}}}, \"agents\": {\"defaults\": {\"model\": "
                    "{\"primary\": \"weft/{model}\"}}}}",
        .limit = ", \"contextWindow\": {context}, \"maxTokens\": {output}",
        .note = "it applies to all of its agents",
    },
    {
        .name = "hermes",
        .program = "hermes",
        .args = {"chat", "--provider", "custom:weft", "--model", "{model}", NULL},
        .file = ".hermes/config.yaml",
        .appended = "\ncustom_providers:\n  - name: weft\n    base_url: \"{url}/v1\"\n"
                    "    api_key: \"{key}\"\n    model: \"{model}\"\n",
        .mark = "custom_providers:",
        .note = "start it with: weftctl launch hermes",
    },
    {
        .name = "qwen",
        .program = "qwen",
        .n_first = 14000,
        .env = {"OPENAI_BASE_URL={url}/v1", "OPENAI_API_KEY={key}", "OPENAI_MODEL={model}", NULL},
    },
    {
        .name = "aider",
        .program = "aider",
        .env = {"OPENAI_API_BASE={url}/v1", "OPENAI_API_KEY={key}",
                "AIDER_SHOW_MODEL_WARNINGS=false", NULL},
        .args = {"--model", "openai/{model}", NULL},
    },
    {
        .name = "goose",
        .program = "goose",
        .n_first = 4500,
        .env = {"GOOSE_PROVIDER=openai", "OPENAI_HOST={url}", "OPENAI_API_KEY={key}",
                "GOOSE_MODEL={model}", "GOOSE_CONTEXT_LIMIT={context}", NULL},
    },
    {0},
};

/* ---- texts ---- */

/* Appends @s, escaped for a JSON string if @json. Returns 0 or -errno. */
static int launch_add(struct buf *out, const char *s, bool json) {
    for (; *s; s++) {
        char c = *s;

        if (json && (unsigned char)c < 0x20)
            c = ' ';
        if (json && (c == '"' || c == '\\'))
            TRY(buf_add_char(out, '\\'));
        TRY(buf_add_char(out, c));
    }
    return 0;
}

/* Settings that a client gets. */
struct target {
    /* key: "none" if there is no API key */
    const char *url, *model, *key;
    /* 0: not known */
    uint64_t n_context;
    /* longest context of the model; 0: not known */
    uint64_t n_trained;
    /* the model reads pictures */
    bool sees;
    /* numbers as texts; "": not known */
    char context[24], output[24];
    /* launch_client.limit, filled in; "": not known */
    const char *limit;
};

/* Returns @text filled in, which the caller frees. NULL: no memory. If @text is JSON, the values
 * are escaped. */
static char *filled(const char *text, const struct target *t) {
    const struct {
        const char *place, *value;
        bool plain;
    } places[] = {{"{url}", t->url, false},      {"{model}", t->model, false},
                  {"{key}", t->key, false},      {"{context}", t->context, true},
                  {"{output}", t->output, true}, {"{limit}", t->limit, true},
                  {"{window}", t->context, true}};
    bool json = strchr(text, '"') != NULL;
    struct buf b = {.max = 1 << 20};
    int r = 0;

    assert(t->url && t->model && t->key && t->limit);
    while (*text && r == 0) {
        size_t i = 0;

        while (i < ARRAY_SIZE(places) &&
               strncmp(text, places[i].place, strlen(places[i].place)) != 0)
            i++;
        if (i == ARRAY_SIZE(places)) {
            r = buf_add_char(&b, *text++);
        } else {
            r = launch_add(&b, places[i].value, json && !places[i].plain);
            text += strlen(places[i].place);
        }
    }
    if (r < 0 || buf_add_char(&b, 0) < 0) {
        buf_deinit(&b);
        return NULL;
    }
    return b.data;
}

/* Returns whether the values in @text are known. {window} is a context that Claude Code accepts as
 * its window; it raises smaller ones to this size, with a warning. */
static bool launch_is_known(const char *text, const struct target *t) {
    if (strstr(text, "{window}"))
        return t->n_context >= 100000;
    return *t->context || !strstr(text, "{context}");
}

/* ---- print, start, write, undo ---- */

/* Prints a word for a shell, in single quotes if it needs quotes. */
static void launch_print_quoted(const char *s) {
    putchar('\'');
    for (; *s; s++)
        if (*s == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*s);
    putchar('\'');
}

/* Adds this machine to NO_PROXY if the client would ask a weftd of this machine through a proxy.
 * Returns 0 if it would not, 1 if it was added, or -ENOMEM. */
static int go_round_proxy(const struct target *t) {
    static const char *const proxies[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"};
    const char *old = getenv("no_proxy");
    CLEANUP(freep) char *text = NULL;
    bool any = false;

    if (!old)
        old = getenv("NO_PROXY");
    for (size_t i = 0; i < ARRAY_SIZE(proxies); i++)
        any |= getenv(proxies[i]) != NULL;
    if (!any || !cli_is_loopback(t->url))
        return 0;
    if (asprintf(&text, "%s%s127.0.0.1,localhost,::1", text_or(old, ""), old && *old ? "," : "") <
        0) {
        text = NULL;
        return -ENOMEM;
    }
    if (setenv("NO_PROXY", text, 1) < 0 || setenv("no_proxy", text, 1) < 0)
        return -ENOMEM;
    return 1;
}

/* Prints what --write adds to the file of a client that reads nothing else. Returns an exit
 * code. */
static int launch_print_block(const struct launch_client *c, const struct target *t) {
    CLEANUP(freep) char *text = filled(text_or(c->fragment, c->appended), t);

    if (!text)
        return cli_fail("out of memory");
    printf("# in ~/%s, where weftctl launch %s --write puts it:\n%s\n# then:\n", c->file, c->name,
           text + strspn(text, "\n"));
    return CLI_OK;
}

static int launch_print(const struct launch_client *c, const struct target *t) {
    int direct = go_round_proxy(t);

    if (direct < 0)
        return cli_fail("out of memory");
    if (!c->env[0] && launch_print_block(c, t) != CLI_OK)
        return CLI_FAILED;
    if (direct) {
        fputs("export NO_PROXY=", stdout);
        launch_print_quoted(getenv("NO_PROXY"));
        puts(" no_proxy=\"$NO_PROXY\"");
    }
    for (size_t i = 0; c->env[i]; i++) {
        CLEANUP(freep) char *text = filled(c->env[i], t);

        if (!text)
            return cli_fail("out of memory");
        if (!launch_is_known(c->env[i], t))
            continue;
        size_t n = strcspn(text, "=");
        printf("export %.*s=", (int)n, text);
        launch_print_quoted(text + n + 1);
        putchar('\n');
    }
    fputs(c->program, stdout);
    for (size_t i = 0; c->args[i]; i++) {
        CLEANUP(freep) char *text = filled(c->args[i], t);

        if (!text)
            return cli_fail("out of memory");
        if (!launch_is_known(c->args[i], t))
            continue;
        putchar(' ');
        launch_print_quoted(text);
    }
    putchar('\n');
    return cli_flush(CLI_OK);
}

/* Replaces this process by the client. Returns only after a failure. */
static int launch_start(const struct launch_client *c, const struct target *t, char **more,
                        int n_more) {
    char **argv = calloc(ARRAY_SIZE(c->args) + (size_t)n_more + 2, sizeof(*argv));
    size_t n = 0;

    if (!argv || go_round_proxy(t) < 0)
        return cli_fail("out of memory");
    argv[n++] = (char *)(uintptr_t)c->program;
    for (size_t i = 0; c->args[i]; i++)
        if (launch_is_known(c->args[i], t) && !(argv[n++] = filled(c->args[i], t)))
            return cli_fail("out of memory");
    for (int i = 0; i < n_more; i++)
        argv[n++] = more[i];
    for (size_t i = 0; c->env[i]; i++) {
        if (!launch_is_known(c->env[i], t))
            continue;
        char *text = filled(c->env[i], t);

        if (!text || putenv(text) != 0)
            return cli_fail("out of memory");
    }
    execvp(c->program, argv);
    if (errno == ENOENT)
        return cli_fail("%s: it is not installed (%s)", c->program, strerror(errno));
    return cli_fail("%s: %s", c->program, strerror(errno));
}

/* Refuses to change @path, and prints the lines to be added; cli_fail() would escape the ends of
 * lines. */
static int by_hand(const char *path, const char *why, const char *text) {
    cli_fail("%s: %s; add this by hand:", path, why);
    fprintf(stderr, "%s%s", text, text[strlen(text) - 1] == '\n' ? "" : "\n");
    return CLI_FAILED;
}

/* Makes the new content of @path, which the caller frees. Returns an exit code. */
static int launch_change(const struct launch_client *c, const struct target *t, const char *path,
                         char **out, size_t *len) {
    CLEANUP(freep) char *text = filled(text_or(c->fragment, c->appended), t);
    CLEANUP(freep) char *old = NULL;
    size_t n = 0;
    int r;

    assert(!c->fragment != !c->appended);
    if (!text)
        return cli_fail("out of memory");
    if (c->fragment) {
        r = launch_file_merge(path, text, out, len);
        if (r == -EBADMSG)
            return by_hand(path, "is not plain JSON", text);
        if (r < 0)
            return cli_fail("%s: %s", path, strerror(-r));
        return CLI_OK;
    }
    r = cli_read_file(path, 1 << 20, &old, &n);
    if (r < 0 && r != -ENOENT)
        return cli_fail("%s: %s", path, strerror(-r));
    if (n && strstr(old, c->mark))
        return by_hand(path, "has such settings (--undo removes them if weftctl added them)", text);
    *len = n + strlen(text);
    *out = malloc(*len + 1);
    if (!*out)
        return cli_fail("out of memory");
    snprintf(*out, *len + 1, "%s%s", n ? old : "", text);
    return CLI_OK;
}

static int launch_write_file(const struct launch_client *c, const struct target *t,
                             const char *path) {
    CLEANUP(freep) char *text = NULL;
    size_t len;
    int code = launch_change(c, t, path, &text, &len);

    if (code != CLI_OK)
        return code;
    int r = launch_file_write(path, text, len);
    if (r == -EEXIST)
        return cli_fail("%s: weftctl changed it before; undo that first: weftctl launch %s --undo",
                        path, c->name);
    if (r < 0)
        return cli_fail("%s: %s", path, strerror(-r));
    printf("%s was changed; ", path);
    if (c->note)
        printf("%s; ", c->note);
    printf("weftctl launch %s --undo restores it\n", c->name);
    return cli_flush(CLI_OK);
}

static int undo(const struct launch_client *c, const char *path) {
    int r = launch_file_undo(path);

    if (r == -ENOENT)
        return cli_fail("%s: there is nothing to undo", path);
    if (r == -EBUSY)
        return cli_fail(
            "%s was changed after weftctl wrote it; its earlier content is in %s.before-weft", path,
            path);
    if (r < 0)
        return cli_fail("%s: %s", path, strerror(-r));
    printf("%s was restored\n", path);
    return cli_flush(CLI_OK);
}

/* Returns true if an entry of /v1/models lists the capability. */
static bool has_capability(yyjson_val *model, const char *name) {
    JSON_EACH(v, yyjson_obj_get(model, "capabilities")) {
        const char *s = json_cstr(v);

        if (s && strcmp(s, name) == 0)
            return true;
    }
    return false;
}

/* ---- the command ---- */

/* Looks up the context length of the model that @t names, or of the first served one, whose name it
 * also returns in *out, owned by the caller. Returns an exit code; 0 also if the name is given and
 * nothing answers. */
static int launch_look_up(struct target *t, const char *key, char **out) {
    CLEANUP(chat_server_freep) struct chat_server *server = NULL;
    yyjson_doc *doc = NULL;
    struct err err = {0};
    yyjson_val *found = NULL;

    if (chat_server_new(&server, t->url, NULL, key) < 0)
        return cli_fail("out of memory");
    int r = chat_get(server, "/v1/models", &doc, &err);
    JSON_EACH(m, yyjson_obj_get(yyjson_doc_get_root(doc), "data")) {
        const char *id = json_cstr(yyjson_obj_get(m, "id"));

        if (!found && id && (!t->model || strcmp(id, t->model) == 0))
            found = m;
    }
    uint64_t context = yyjson_get_uint(yyjson_obj_get(found, "max_model_len"));
    t->n_context = context;
    t->n_trained = yyjson_get_uint(yyjson_obj_get(yyjson_obj_get(found, "meta"), "n_ctx_train"));
    t->sees = has_capability(found, "multimodal");
    if (context) {
        snprintf(t->context, sizeof(t->context), "%llu", (unsigned long long)context);
        snprintf(t->output, sizeof(t->output), "%llu", (unsigned long long)MIN(context / 2, 8192));
    }
    if (found && !t->model)
        t->model = *out = strdup(json_cstr(yyjson_obj_get(found, "id")));
    yyjson_doc_free(doc);
    if (t->model)
        return CLI_OK;
    if (r == CTL_OK)
        return cli_fail("%s serves no model", t->url);
    cli_fail("%s", err.message);
    return r;
}

/* Returns false, with an error message, if the client's first prompt does not fit into the context.
 * Warns if little room is left behind it. */
static bool is_roomy(const struct launch_client *c, const struct target *t) {
    bool fits = t->n_context > c->n_first;
    bool grows = !t->n_trained || t->n_trained > t->n_context;
    const char *effect = "little room is left for work", *remedy = "weftd --max-context N, or";

    if (!t->n_context || !c->n_first || t->n_context >= c->n_first + c->n_first / 2)
        return true;
    if (!fits)
        effect = "it cannot work";
    if (!grows)
        remedy = "this is the model's limit; choose";
    fprintf(stderr,
            "weftctl: %s sends about %u tokens first; %s has a context of %llu: %s "
            "(%s a model with a longer context)\n",
            c->name, c->n_first, t->model, (unsigned long long)t->n_context, effect, remedy);
    return fits;
}

/* Prints how long the client's first prompt will take. */
static void print_time(const struct launch_client *c, const struct target *t, const char *key) {
    CLEANUP(chat_server_freep) struct chat_server *server = NULL;

    if (!t->n_context || !c->n_first || chat_server_new(&server, t->url, NULL, key) < 0)
        return;
    double rate = launch_prompt_rate(server, t->model);
    if (rate <= 0 || c->n_first / rate < TELL_S)
        return;
    double time = c->n_first / rate;
    const char *unit = "s";
    if (time >= 120) {
        time /= 60;
        unit = "min";
    }
    fprintf(stderr,
            "weftctl: %s sends about %u tokens first: about %.0f %s at %.0f tokens/s; later "
            "turns find them in the prefix cache\n",
            c->name, c->n_first, time, unit, rate);
}

/* Prints the settings that every client has in some form, for one that weftctl does not know. */
static int print_generic(const char *name, const struct target *t) {
    const char *which = "your key of weftd", *key = "KEY";

    if (strcmp(t->key, "none") == 0) {
        which = "any text";
        key = "none";
    }
    printf("weftctl launch knows " CLIENTS ", not %s. Give it these settings:\n\n"
           "  base URL, OpenAI      %s/v1\n"
           "  base URL, Anthropic   %s\n"
           "  API key               %s\n"
           "  model                 %s\n"
           "  context               %s\n\n"
           "Many clients read the environment:\n\n"
           "  export OPENAI_BASE_URL=%s/v1 OPENAI_API_KEY=%s\n",
           name, t->url, t->url, which, t->model, text_filled_or(t->context, "not known"), t->url,
           key);
    return cli_flush(CLI_OK);
}

/* Prints settings for the client @name, which weftctl does not know. Returns an exit code, which is
 * an error's: nothing was started. */
static int launch_unknown(const char *name, struct target *t, const char *key) {
    CLEANUP(freep) char *found = NULL;

    if (launch_look_up(t, key, &found) != CLI_OK)
        t->model = "a name from /v1/models";
    if (print_generic(name, t) != CLI_OK)
        return CLI_FAILED;
    return CLI_USAGE;
}

static const struct launch_client *launch_find(const char *name) {
    for (const struct launch_client *c = launch_clients; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

/* Writes the path of the client's file below $HOME to @path. Returns false, after an error message,
 * if the client has no file. */
static bool launch_client_file(const struct launch_client *c, char path[PATH_MAX]) {
    const char *home = getenv("HOME");

    assert(!c->file == (!c->fragment && !c->appended));
    if (!c->file) {
        cli_fail("%s is configured by environment variables only; there is no file to write",
                 c->name);
        return false;
    }
    if (!home || (size_t)snprintf(path, PATH_MAX, "%s/%s", home, c->file) >= PATH_MAX) {
        cli_fail("$HOME does not name a folder");
        return false;
    }
    return true;
}

/* Returns true if @said is @name with an addition, as in claude-code. */
static bool begins_with_name(const char *said, const char *name) {
    size_t n = strlen(name);

    return strncmp(said, name, n) == 0 && (said[n] == '-' || said[n] == '_' || said[n] == '.');
}

int ctl_launch(int argc, char **argv, bool json) {
    const char *url = NULL, *model = NULL, *file = NULL;
    bool prints = false, writes = false, undoes = false, anyway = false;
    char key_text[KEY_MAX], path[PATH_MAX], address[CTL_URL_MAX];
    const char *key;
    struct err err;
    CLEANUP(freep) char *found = NULL, *limit = NULL, *base = NULL;
    const struct cli_option options[] = {
        {"url", CLI_TEXT, &url, 0, 0},       {"model", CLI_TEXT, &model, 0, 0},
        {"key-file", CLI_TEXT, &file, 0, 0}, {"print", CLI_TRUE, &prints, 0, 0},
        {"write", CLI_TRUE, &writes, 0, 0},  {"undo", CLI_TRUE, &undoes, 0, 0},
        {"anyway", CLI_TRUE, &anyway, 0, 0},
    };
    int own = 1, n;

    while (own < argc && strcmp(argv[own], "--") != 0)
        own++;
    int r = cli_parse(own, argv, options, ARRAY_SIZE(options), help, &n);
    if (r >= 0)
        return r;
    if (n != 1)
        return cli_usage("launch takes a client: " CLIENTS);
    const struct launch_client *c = launch_find(argv[1]);
    struct meant m;
    meant_init(&m, argv[1]);
    for (const struct launch_client *known = launch_clients; known->name; known++)
        if (begins_with_name(argv[1], known->name))
            m.name = known->name;
        else
            meant_try(&m, known->name);
    if (!c && m.name)
        return cli_usage("%s: unknown client; is %s meant?", argv[1], m.name);
    if (prints + writes + undoes > 1)
        return cli_usage("give only one of --print, --write and --undo");
    if (!c && (writes || undoes))
        return cli_fail("%s: --write and --undo are only for " CLIENTS, argv[1]);
    if ((writes || undoes) && !launch_client_file(c, path))
        return CLI_FAILED;
    if (undoes)
        return undo(c, path);
    if (c && !c->env[0] && !writes && !prints &&
        (!launch_client_file(c, path) || !launch_file_is_changed(path)))
        return cli_fail("%s is configured by its file only; use weftctl launch %s --write", c->name,
                        c->name);
    r = chat_find_key(file, key_text, sizeof(key_text), &key);
    if (r == CLI_OK && (!url || !*url))
        r = ctl_url(&url, address, &err);
    if (r == CTL_UNREACHABLE)
        return cli_fail_as(r, "%s", err.message);
    if (r == CLI_OK && !(base = ctl_base_url(url)))
        return cli_fail("out of memory");
    struct target t = {.url = base, .model = model, .key = text_or(key, "none"), .limit = ""};
    if (r == CLI_OK && !c)
        return launch_unknown(argv[1], &t, key);
    if (r == CLI_OK)
        r = launch_look_up(&t, key, &found);
    if (r != CLI_OK)
        return r;
    if (*t.context && c->limit) {
        if (!(limit = filled(c->limit, &t)))
            return cli_fail("out of memory");
        t.limit = limit;
    }
    if (!is_roomy(c, &t) && !anyway && !prints && !writes)
        return cli_fail("%s was not started; --anyway starts it nevertheless", c->name);
    if (prints)
        return launch_print(c, &t);
    if (t.sees)
        fprintf(stderr, "weftctl: %s reads pictures\n", t.model);
    if (writes)
        return launch_write_file(c, &t, path);
    print_time(c, &t, key);
    return launch_start(c, &t, argv + own + 1, own < argc ? argc - own - 1 : 0);
}
