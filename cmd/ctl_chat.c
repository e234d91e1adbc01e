#include "cmd/ctl_chat.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/meant.h"
#include "base/printable.h"
#include "base/text.h"
#include "base/try.h"
#include "cmd/cli.h"
#include "cmd/ctl.h"
#ifdef HAVE_LIBEDIT
#include <editline/readline.h>
#endif

/* weftctl chat - runs a conversation in the terminal. The model's text is printed without bytes
 * that could control the terminal. The key comes from the environment or a file and not from the
 * command line, which other users can read; the history of input lines is kept in memory only. */

#define MESSAGE_MAX (8u << 20)
#define KEY_MAX 512

static const char help[] =
    "usage: weftctl chat [OPTIONS] [MESSAGE]\n"
    "  --url URL        address of weftd ($WEFT_URL, else that of the one daemon that runs,\n"
    "                   else http://127.0.0.1:8080)\n"
    "  --unix PATH      UNIX socket of weftd instead\n"
    "  --key-file FILE  file with the API key (else $WEFT_API_KEY)\n"
    "  --model NAME     model to talk with\n"
    "  --system TEXT    system prompt\n"
    "  --load FILE      continue a conversation that /save has written\n"
    "With a MESSAGE, or when stdin is not a terminal, prints one answer and exits; with --json\n"
    "(before chat) as JSON with its usage.\n";

static const char commands[] =
    "  /new             forget the conversation\n"
    "  /retry           answer the last message again\n"
    "  /undo            take back the last message and its answer\n"
    "  /system [TEXT]   set the system prompt; without TEXT: none\n"
    "  /set NAME VALUE  a field of the requests (temperature 0.2, reasoning_effort low);\n"
    "                   without VALUE: the server's own\n"
    "  /model [NAME]    which model; without NAME: those that are served\n"
    "  /save FILE       write the conversation as JSON; /load FILE reads it\n"
    "  /help, /quit     this text; the end (Ctrl-D)\n"
    "A line that ends in \\ goes on; lines between two of \"\"\" are one message. Ctrl-C stops an\n"
    "answer.\n";

struct chat {
    struct chat_server *server;
    struct chat_talk talk;
    /* json: format of stdout; terminal: stdout is a terminal; dims: it takes escape sequences */
    bool json, terminal, dims;
    bool in_reasoning;
};

static volatile sig_atomic_t stop;

static void chat_on_interrupt(int signal) {
    stop = 1;
}

/* ---- output ---- */

/* Returns false if the user wants no escape sequences, or the terminal knows none. */
static bool chat_may_dim(void) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");

    if (no_color && *no_color)
        return false;
    return term && strcmp(term, "dumb") != 0;
}

static void dim(const struct chat *c, bool on) {
    if (!c->dims)
        return;
    if (on)
        fputs("\033[2m", stdout);
    else
        fputs("\033[0m", stdout);
}

/* Returns whether the character @s, which is escaped in names, is allowed in a text: a newline, a
 * tab, or a joiner, which emoji and some scripts need. */
static bool is_of_text(const char *s, size_t len) {
    return (len == 1 && (*s == '\n' || *s == '\t')) ||
           (len == 3 && (memcmp(s, "\xE2\x80\x8C", 3) == 0 || memcmp(s, "\xE2\x80\x8D", 3) == 0));
}

/* Prints the text of a model or a server, escaped. */
static void put_safely(const char *s, size_t len) {
    char one[PRINTABLE_MAX];
    size_t n_one;

    for (size_t i = 0, n; i < len; i += n) {
        n = printable_next(s + i, len - i, one, &n_one);
        if (is_of_text(s + i, n))
            fwrite(s + i, 1, n, stdout);
        else
            fwrite(one, 1, n_one, stdout);
    }
}

static void on_text(void *ctx, bool reasoning, const char *text, size_t len) {
    struct chat *c = ctx;

    if (reasoning != c->in_reasoning) {
        dim(c, reasoning);
        if (!reasoning)
            fputs("\n\n", stdout);
        c->in_reasoning = reasoning;
    }
    put_safely(text, len);
    fflush(stdout);
}

static long long chat_count(const yyjson_val *usage, const char *key) {
    return (long long)yyjson_get_sint(yyjson_obj_get((yyjson_val *)(uintptr_t)usage, key));
}

/* Shows tokens and times on a terminal. */
static void show_figures(const struct chat *c, const struct chat_answer *a) {
    yyjson_val *u = yyjson_obj_get(yyjson_doc_get_root(a->usage), "usage");
    double decode = a->total_s - a->first_s;
    long long n = chat_count(u, "completion_tokens");
    const char *cut = "";
    double rate = 0;

    if (strcmp(a->finish, "length") == 0)
        cut = ", cut";
    if (n > 1 && decode > 0)
        rate = (double)(n - 1) / decode;
    dim(c, true);
    if (a->stopped)
        fputs("(stopped)", stdout);
    else if (u)
        printf("(%lld prompt tokens, %lld output tokens%s; first after %.2f s, %.1f tokens/s)",
               chat_count(u, "prompt_tokens"), n, cut, a->first_s, rate);
    dim(c, false);
    fputs("\n", stdout);
}

/* Tells a loop apart from an answer that the model ended. */
static void show_loop(const struct chat_answer *a) {
    if (a->loop_ended)
        fputs("weftctl: the answer only repeated itself and was ended (loop-breaker)\n", stderr);
}

static void show_json(const struct chat_answer *a) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);
    yyjson_val *u = yyjson_obj_get(yyjson_doc_get_root(a->usage), "usage");

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_strn(d, root, "content", text_or(a->text.data, ""), a->text.len);
    if (a->reasoning.len)
        yyjson_mut_obj_add_strn(d, root, "reasoning_content", a->reasoning.data, a->reasoning.len);
    yyjson_mut_obj_add_str(d, root, "finish_reason", a->finish);
    if (a->loop_ended)
        yyjson_mut_obj_add_bool(d, root, "loop_ended", true);
    if (u)
        yyjson_mut_obj_add_val(d, root, "usage", yyjson_val_mut_copy(d, u));
    ctl_print_json(d, stdout);
}

/* ---- a turn ---- */

/* Requests the answer to the conversation so far and adds it. Returns an exit code. */
static int chat_answer_turn(struct chat *c) {
    struct chat_sink sink = {.ctx = c, .stop = &stop};
    struct sigaction interrupt = {.sa_handler = chat_on_interrupt}, before;
    struct chat_answer a = {0};
    struct err err = {0};
    CLEANUP(freep) char *body = NULL;
    size_t len;
    int r = chat_talk_body(&c->talk, &body, &len);

    if (r == -EILSEQ)
        return cli_fail("the text is not UTF-8");
    if (r < 0)
        return cli_fail("out of memory");
    if (!c->json)
        sink.text = on_text;
    stop = 0;
    c->in_reasoning = false;
    sigaction(SIGINT, &interrupt, &before); /* without a handler, SIGINT ends the program */
    r = chat_ask(c->server, body, len, &sink, &a, &err);
    sigaction(SIGINT, &before, NULL);
    if (c->in_reasoning)
        dim(c, false);
    if (r == CTL_OK && c->json)
        show_json(&a);
    else if (a.text.len || a.reasoning.len || a.stopped)
        puts("");
    if (r == CTL_OK && c->terminal && !c->json)
        show_figures(c, &a);
    if (r == CTL_OK && !c->json)
        show_loop(&a);
    if (r != CTL_OK)
        cli_fail_as(r, "%s", err.message);
    else if (chat_talk_add(&c->talk, "assistant", a.text.data, a.text.len, &a.reasoning) < 0)
        r = cli_fail("out of memory");
    chat_answer_deinit(&a);
    return r;
}

/* Adds a message and its answer; removes a message that gets no answer. */
static int chat_say(struct chat *c, const char *text, size_t len) {
    if (chat_talk_add(&c->talk, "user", text, len, NULL) < 0)
        return cli_fail("out of memory");
    int r = chat_answer_turn(c);
    if (r != CTL_OK)
        chat_talk_drop(&c->talk, "user");
    return r;
}

/* ---- commands ---- */

static void list_models(struct chat *c) {
    struct err err = {0};
    yyjson_doc *doc = NULL;

    if (chat_get(c->server, "/v1/models", &doc, &err) != CTL_OK) {
        cli_fail("%s", err.message);
        return;
    }
    JSON_EACH(m, yyjson_obj_get(yyjson_doc_get_root(doc), "data")) {
        struct ctl_cell id = ctl_text(m, "id");
        puts(id.s);
    }
    yyjson_doc_free(doc);
}

/* Replaces *@field by a copy of @text, or by NULL if @text is empty. */
static void set_text(char **field, const char *text) {
    free(*field);
    *field = NULL;
    if (*text)
        *field = strdup(text);
}

static void chat_set_param(struct chat *c, char *text) {
    char *value = text + strcspn(text, " ");

    if (*value)
        *value++ = 0;
    if (!*text)
        fputs("/set NAME VALUE\n", stdout);
    else if (chat_talk_set(&c->talk, text, value + strspn(value, " ")) < 0)
        cli_fail("out of memory");
}

/* Loads or saves the conversation. Returns an exit code. */
static int file_command(struct chat *c, bool load, const char *path) {
    int r = -ENOENT;

    if (*path && load)
        r = chat_talk_load(&c->talk, path);
    else if (*path)
        r = chat_talk_save(&c->talk, path);
    if (r == -EBADMSG)
        return cli_fail("%s: the file contains no conversation", path);
    if (r < 0)
        return cli_fail("%s: %s", path, strerror(-r));
    return CTL_OK;
}

static void chat_retry(struct chat *c) {
    if (chat_talk_drop(&c->talk, "assistant"))
        (void)chat_answer_turn(c);
    else
        fputs("There is no answer yet.\n", stdout);
}

/* Refuses @line, which is no command. */
static void command_unknown(const char *line) {
    static const char *const known[] = {"/new",   "/retry", "/undo", "/system", "/set",
                                        "/model", "/save",  "/load", "/help",   "/quit"};
    struct meant m;

    meant_init(&m, line);
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        meant_try(&m, known[i]);
    if (m.name)
        cli_fail("unknown command %s; is %s meant?", line, m.name);
    else
        cli_fail("unknown command %s; /help lists all", line);
}

/* Runs the command @line, which begins with a slash. Returns false if it ends the program. */
static bool command(struct chat *c, char *line) {
    char *arg = line + strcspn(line, " ");

    if (*arg)
        *arg++ = 0;
    arg += strspn(arg, " ");
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0)
        return false;
    if (strcmp(line, "/new") == 0)
        chat_talk_clear(&c->talk);
    else if (strcmp(line, "/retry") == 0)
        chat_retry(c);
    else if (strcmp(line, "/undo") == 0)
        chat_talk_drop(&c->talk, "assistant"), chat_talk_drop(&c->talk, "user");
    else if (strcmp(line, "/system") == 0)
        set_text(&c->talk.system, arg);
    else if (strcmp(line, "/set") == 0)
        chat_set_param(c, arg);
    else if (strcmp(line, "/model") == 0 && *arg)
        set_text(&c->talk.model, arg);
    else if (strcmp(line, "/model") == 0 || strcmp(line, "/models") == 0)
        list_models(c);
    else if (strcmp(line, "/save") == 0 || strcmp(line, "/load") == 0)
        (void)file_command(c, line[1] == 'l', arg);
    else if (strcmp(line, "/help") == 0)
        fputs(commands, stdout);
    else
        command_unknown(line);
    return true;
}

/* ---- input ---- */

/* Reads a line without its end; the caller frees it. NULL: the end of the input. */
static char *chat_read_line(bool first) {
    const char *prompt = "  ";

    if (first)
        prompt = "> ";
#ifdef HAVE_LIBEDIT
    if (isatty(STDIN_FILENO)) {
        char *line = readline(prompt);

        if (line && *line)
            add_history(line);
        return line;
    }
#endif
    CLEANUP(freep) char *line = NULL;
    size_t size = 0;

    fputs(prompt, stdout);
    fflush(stdout);
    ssize_t n = getline(&line, &size, stdin);
    if (n < 0)
        return NULL;
    if (n > 0 && line[n - 1] == '\n')
        line[n - 1] = 0;
    return STEAL(line);
}

/* Reads a message of one or several lines into @out. Returns 1, 0 at the end of the input, or
 * -ENOMEM. */
static int chat_read_message(struct buf *out) {
    bool block = false, more = true;

    for (bool first = true; more; first = false) {
        CLEANUP(freep) char *line = chat_read_line(first);

        if (!line)
            return 0;
        size_t n = strlen(line);
        if (strcmp(line, "\"\"\"") == 0) {
            more = block = !block;
            continue;
        }
        more = block || (n > 0 && line[n - 1] == '\\');
        if (more && !block)
            line[n - 1] = 0;
        if (buf_add_str(out, line) < 0 || (more && buf_add_char(out, '\n') < 0))
            return -ENOMEM;
    }
    if (buf_add_char(out, 0) < 0)
        return -ENOMEM;
    return 1;
}

static int converse(struct chat *c) {
    int r = CTL_OK;

    printf("weftctl chat: /help lists commands, Ctrl-D ends\n");
    for (;;) {
        CLEANUP(buf_deinit) struct buf text = {.max = MESSAGE_MAX};
        int got = chat_read_message(&text);

        if (got < 0)
            return cli_fail("out of memory");
        if (got == 0)
            break;
        if (text.data[0] == '/') {
            if (!command(c, text.data))
                break;
        } else if (text.data[strspn(text.data, " \t\n")]) {
            r = chat_say(c, text.data, text.len - 1);
            if (r == CTL_UNREACHABLE || r == CTL_DENIED)
                return r;
        }
    }
    puts("");
    return CTL_OK;
}

/* ---- the command ---- */

int chat_find_key(const char *file, char *key, size_t size, const char **out) {
    const char *env = getenv("WEFT_API_KEY");
    size_t len;
    char *text;

    *out = NULL;
    if (env && *env)
        *out = env;
    if (!file)
        return CLI_OK;
    int r = cli_read_file(file, size - 1, &text, &len);
    if (r < 0)
        return cli_fail("%s: %s", file, strerror(-r));
    snprintf(key, size, "%.*s", (int)strcspn(text, "\r\n"), text);
    explicit_bzero(text, len);
    free(text);
    *out = key;
    return CLI_OK;
}

static int read_message(char **words, int n, struct buf *text) {
    CLEANUP(freep) char *input = NULL;
    size_t len = 0;

    for (int i = 0; i < n; i++) {
        if (i > 0)
            TRY(buf_add_char(text, ' '));
        TRY(buf_add_str(text, words[i]));
    }
    if (n > 0 || isatty(STDIN_FILENO))
        return 0;
    TRY(cli_read_file("-", MESSAGE_MAX, &input, &len));
    return buf_add(text, input, len);
}

/* Sends one message: the words of the command line, or all of stdin. */
static int one_message(struct chat *c, char **words, int n) {
    CLEANUP(buf_deinit) struct buf text = {.max = MESSAGE_MAX};
    int r = read_message(words, n, &text);

    if (r < 0)
        return cli_fail("cannot read the message: %s", strerror(-r));
    if (text.len)
        return chat_say(c, text.data, text.len);
    return cli_usage("no message given");
}

int ctl_chat(int argc, char **argv, bool json) {
    const char *url = NULL, *path = NULL, *file = NULL, *model = "", *system = "";
    const char *load = NULL, *key;
    char key_text[KEY_MAX], found[CTL_URL_MAX];
    struct err err;
    CLEANUP(chat_server_freep) struct chat_server *server = NULL;
    const struct cli_option options[] = {
        {"url", CLI_TEXT, &url, 0, 0},       {"unix", CLI_TEXT, &path, 0, 0},
        {"key-file", CLI_TEXT, &file, 0, 0}, {"model", CLI_TEXT, &model, 0, 0},
        {"system", CLI_TEXT, &system, 0, 0}, {"load", CLI_TEXT, &load, 0, 0},
    };
    int n, r = cli_parse(argc, argv, options, ARRAY_SIZE(options), help, &n);

    if (r >= 0)
        return r;
    r = chat_find_key(file, key_text, sizeof(key_text), &key);
    if (r != 0)
        return r;
    if (path && !url)
        url = "http://localhost";
    else if (!url || !*url)
        r = ctl_url(&url, found, &err);
    if (r != CTL_OK)
        return cli_fail_as(r, "%s", err.message);
    if (chat_server_new(&server, url, path, key) < 0)
        return cli_fail("out of memory");
    struct chat c = {.server = server, .json = json, .terminal = isatty(STDOUT_FILENO)};
    c.dims = c.terminal && chat_may_dim();
    if (chat_talk_init(&c.talk) < 0)
        return cli_fail("out of memory");
    if (load)
        r = file_command(&c, true, load);
    set_text(&c.talk.model, model);
    if (*system)
        set_text(&c.talk.system, system);
    bool single = n > 0 || !isatty(STDIN_FILENO);
    if (r == CTL_OK && single)
        r = one_message(&c, argv + 1, n);
    else if (r == CTL_OK)
        r = converse(&c);
    chat_talk_deinit(&c.talk);
    if (r == CTL_OK && !files_flush())
        return CLI_FAILED;
    return r;
}
