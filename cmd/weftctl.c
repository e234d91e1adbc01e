/*
 * weftctl - talks to a running weftd through its admin socket, and manages model files.
 */

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/json_read.h"
#include "base/meant.h"
#include "cmd/cli.h"
#include "cmd/ctl.h"
#include "cmd/ctl_chat.h"
#include "cmd/ctl_launch.h"
#include "cmd/ctl_local.h"
#include "cmd/ctl_usage.h"

static const char help[] =
    "usage: weftctl [--socket PATH] [--json] COMMAND | --version\n"
    "  stats [--watch[=SECONDS]]  print state and counters; --watch: a line every SECONDS\n"
    "                             (1); --all: every statistic with its description\n"
    "  requests                   list the running and waiting requests; --ended: the last\n"
    "                             ones that have ended; --tenant=NAME; --since=10:30,\n"
    "                             --until=10:35 (or 15m, 2h ago); --slowest first\n"
    "  why ID                     print the scheduler's decisions about a request, step by\n"
    "                             step, also after its end; ID may be its x-request-id\n"
    "  cancel ID                  end a request\n"
    "  dump FILE [MODEL]          write the flight recorder, for weft-sim replay\n"
    "  health                     print the states of daemon and worker; exit code 0 only\n"
    "                             when the daemon serves\n"
    "  tenants                    list the use of each tenant\n"
    "  usage [--since=DATE]       print the tokens of each key and model since DATE (UTC);\n"
    "                             --csv: by day\n"
    "  reload                     read configuration, keys and tenants again\n"
    "  upgrade                    start the installed program beside the running daemon; it\n"
    "                             takes over once it is ready, without a pause\n"
    "  drain                      accept no more requests, finish the running ones, exit\n"
    "  ps                         list the served models, and which are loaded\n"
    "  load MODEL                 load an on-demand model before its first request\n"
    "  unload MODEL               unload a model once its requests have ended\n"
    "  swap MODEL [FILE]          replace a model by FILE while it serves\n"
    "  top [SECONDS]              show requests, tenants and counters on a live screen\n"
    "  chat [MESSAGE]             talk with the model, over HTTP\n"
    "  launch CLIENT              start claude, codex, opencode, ... with this model\n"
    "  pull hf:OWNER/REPO[:QUANT] download a model from the Hugging Face hub\n"
    "  models [NAME]              list the model files on this machine\n"
    "  rm NAME                    remove a pulled model\n"
    "  key new NAME FILE          make an API key, add its checksum to FILE, print it once;\n"
    "                             --expires=DATE; --operator: it sees the ended requests\n"
    "                             of all tenants\n"
    "The socket is PATH, else $WEFT_ADMIN, else that of the one daemon that runs: at\n"
    "/run/weft-admin.sock, /run/weft/admin.sock, ./build/admin.sock, admin.sock beside\n"
    "this program, or in $XDG_RUNTIME_DIR/weft or ~/.local/state/weft. --json prints\n"
    "the daemon's answer unchanged. Exit codes: 0 success; 1 refused; 64 wrong usage;\n"
    "69 no daemon or hub answers; 77 not allowed; 130 interrupted.\n";

struct call {
    struct ctl *ctl;
    bool json;
    /* number of arguments after the command's name */
    int argc;
    char **argv;
};

static int weftctl_finish(const struct call *c, int code, const struct err *err) {
    if (code != CTL_OK)
        return cli_fail_as(code, "%s", err->message);
    return cli_flush(CLI_OK);
}

static void weftctl_print(const char *text, size_t len) {
    fwrite(text, 1, len, stdout);
    if (len == 0 || text[len - 1] != '\n')
        putchar('\n');
}

/* Prints an answer as it arrived, or as @show renders the object in it. Returns an exit code. */
static int weftctl_answer(struct call *c, const char *path,
                          void (*show)(struct buf *out, yyjson_val *object, size_t columns)) {
    CLEANUP(buf_deinit) struct buf text = {.max = CTL_REPLY_MAX};
    struct err err = {0};
    yyjson_doc *doc = NULL;
    int r;

    if (c->json) {
        r = ctl_call(c->ctl, "GET", path, &text, &err);
    } else {
        r = ctl_get(c->ctl, path, &doc, &err);
        if (r == CTL_OK)
            show(&text, yyjson_doc_get_root(doc), ctl_columns());
    }
    if (r == CTL_OK)
        weftctl_print(text.data, text.len);
    yyjson_doc_free(doc);
    return weftctl_finish(c, r, &err);
}

/* State of a watched command, which prints one line after the other. */
struct watch {
    bool json;
    uint64_t n;
    int64_t at_ns;
    yyjson_doc *before;
};

/* Prints one answer of /stats?watch. Returns false if stdout is closed. */
static bool weftctl_print_line(void *ctx, const char *text, size_t len) {
    CLEANUP(buf_deinit) struct buf out = {.max = 4096};
    struct watch *w = ctx;
    int64_t now = clock_now(clock_monotonic());
    yyjson_doc *doc = NULL;

    if (!w->json) {
        doc = ctl_parse(text, len);
        ctl_show_line(&out, yyjson_doc_get_root(doc), yyjson_doc_get_root(w->before),
                      (double)(now - w->at_ns) * 1e-9, w->n++, ctl_columns());
        text = out.data, len = out.len;
    }
    weftctl_print(text, len);
    yyjson_doc_free(w->before);
    w->before = doc;
    w->at_ns = now;
    return fflush(stdout) == 0;
}

static int watch_stats(struct call *c, double seconds) {
    struct watch w = {.json = c->json};
    struct err err = {0};
    char path[64];

    snprintf(path, sizeof(path), "/stats?watch=%.0fms", seconds * 1000);
    int r = ctl_watch(c->ctl, path, weftctl_print_line, &w, &err);
    yyjson_doc_free(w.before);
    if (r == CTL_OK)
        return weftctl_finish(c, r, &err);
    cli_report_to(NULL); /* the reason must not be one of the lines on stdout */
    return cli_fail_as(r, "%s", err.message);
}

static int run_stats(struct call *c) {
    double seconds = 1;

    if (c->argc == 0)
        return weftctl_answer(c, "/stats", ctl_show_stats);
    if (c->argc == 1 && strcmp(c->argv[0], "--all") == 0)
        return weftctl_answer(c, "/stats", ctl_show_all);
    if (c->argc > 1 || strncmp(c->argv[0], "--watch", 7) != 0)
        return cli_usage("stats takes only --all or --watch[=SECONDS]");
    const char *value = c->argv[0] + 7;
    if (*value && (*value != '=' || !cli_double(value + 1, 0.1, 3600, &seconds)))
        return cli_usage("--watch takes a number of seconds from 0.1 to 3600");
    return watch_stats(c, seconds);
}

static int run_health(struct call *c) {
    CLEANUP(buf_deinit) struct buf text = {.max = CTL_REPLY_MAX};
    struct err err = {0};

    if (c->argc > 0)
        return cli_usage("health takes no arguments");
    yyjson_doc *doc = NULL;
    int r = ctl_call(c->ctl, "GET", "/health", &text, &err);
    if (r == CTL_OK)
        r = ctl_read(c->ctl, "/health", &text, &doc, &err);
    if (r != CTL_OK)
        return weftctl_finish(c, r, &err);
    struct ctl_cell health = ctl_text(yyjson_doc_get_root(doc), "health");
    struct ctl_cell worker = ctl_text(yyjson_doc_get_root(doc), "worker");
    if (c->json)
        weftctl_print(text.data, text.len);
    else
        printf("%s, worker %s\n", health.s, worker.s);
    yyjson_doc_free(doc);
    if (!files_flush() || strcmp(health.s, "serving") != 0)
        return CLI_FAILED;
    return CLI_OK;
}

/* Sends a POST without a body and prints @done. */
static int weftctl_post(struct call *c, const char *path, const char *done) {
    CLEANUP(buf_deinit) struct buf reply = {.max = CTL_REPLY_MAX};
    struct err err = {0};

    /* The answer to an upgrade arrives when the next daemon has taken over, so the daemon is first
     * asked whether it answers. */
    bool is_long = strcmp(path, "/upgrade") == 0;
    int r = is_long ? ctl_call(c->ctl, "GET", "/health", &reply, &err) : CTL_OK;
    buf_clear(&reply);
    if (r == CTL_OK)
        r = (is_long ? ctl_call_long : ctl_call)(c->ctl, "POST", path, &reply, &err);
    if (r == CTL_OK && c->json)
        weftctl_print(reply.data, reply.len);
    else if (r == CTL_OK)
        puts(done);
    return weftctl_finish(c, r, &err);
}

/* Reloads, and names the keys whose changes have no effect; "reloaded" alone would suggest that all
 * changes are in effect. */
static int run_reload(struct call *c) {
    CLEANUP(buf_deinit) struct buf reply = {.max = CTL_REPLY_MAX};
    struct err err = {0};

    if (c->argc > 0)
        return cli_usage("reload takes no arguments");
    int r = ctl_call(c->ctl, "POST", "/reload", &reply, &err);
    if (r != CTL_OK)
        return weftctl_finish(c, r, &err);
    if (c->json) {
        weftctl_print(reply.data, reply.len);
        return weftctl_finish(c, r, &err);
    }
    yyjson_doc *doc = ctl_parse(reply.data, reply.len);
    puts("reloaded");
    JSON_EACH(key, yyjson_obj_get(yyjson_doc_get_root(doc), "needs_restart")) {
        if (json_cstr(key))
            printf("%.100s: takes effect when weftd is restarted\n", json_cstr(key));
    }
    yyjson_doc_free(doc);
    return weftctl_finish(c, r, &err);
}

static int run_cancel(struct call *c) {
    char path[64];
    uint64_t id;

    if (c->argc != 1 || !cli_u64(c->argv[0], 0, UINT64_MAX, &id))
        return cli_usage("cancel takes the ID of a request, a number of `weftctl requests`");
    snprintf(path, sizeof(path), "/requests/%llu/cancel", (unsigned long long)id);
    return weftctl_post(c, path, "cancelled");
}

static int run_why(struct call *c) {
    char path[128];

    if (c->argc != 1 || !*c->argv[0] ||
        strspn(c->argv[0], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:") !=
            strlen(c->argv[0]) ||
        strlen(c->argv[0]) > 63)
        return cli_usage("why takes the ID of a request, or the x-request-id of its answer");
    snprintf(path, sizeof(path), "/requests/%s/why", c->argv[0]);
    return weftctl_answer(c, path, ctl_show_why);
}

static int weftctl_write_file(const struct call *c, const char *path, const struct buf *file) {
    int r = cli_write_file(path, 0600, file->data, file->len, false);
    struct err err;

    if (r < 0) {
        err_set(&err, 0, NULL, "%s: %s", path, strerror(-r));
        return cli_fail_as(CLI_FAILED, "%s", err.message);
    }
    if (c->json)
        ctl_print_result("file", path, "bytes", NULL, file->len);
    else
        printf("%s: %zu bytes\n", path, file->len);
    return cli_flush(CLI_OK);
}

static int run_dump(struct call *c) {
    CLEANUP(buf_deinit) struct buf file = {.max = CTL_REPLY_MAX};
    struct err err = {0};

    if (c->argc < 1 || c->argc > 2 || !*c->argv[0])
        return cli_usage("dump takes the name of a file to write, and optionally of a model");
    int r = ctl_flight(c->ctl, c->argc > 1 ? c->argv[1] : NULL, &file, &err);
    if (r == CTL_OK)
        return weftctl_write_file(c, c->argv[0], &file);
    return weftctl_finish(c, r, &err);
}

static int run_requests(struct call *c) {
    char path[400];

    if (c->argc == 0)
        return weftctl_answer(c, "/requests", ctl_show_requests);
    int code = ctl_ended_path(c->argc + 1, c->argv - 1, time(NULL), help, path, sizeof(path));
    if (code >= 0)
        return code;
    return weftctl_answer(c, path, ctl_show_ended);
}

/* Prints the usage since a day or a month, by default since the first of this month. */
static int run_usage(struct call *c) {
    CLEANUP(buf_deinit) struct buf text = {.max = CTL_REPLY_MAX};
    time_t now = time(NULL);
    struct err err = {0};
    struct tm tm;
    char month[32];
    const char *since = month;
    bool csv = false;
    const struct cli_option options[] = {
        {"csv", CLI_TRUE, &csv, 0, 0},
        {"since", CLI_TEXT, &since, 0, 0},
    };

    strftime(month, sizeof(month), "%Y-%m", gmtime_r(&now, &tm));
    int n_args,
        code = cli_parse(c->argc + 1, c->argv - 1, options, ARRAY_SIZE(options), help, &n_args);
    if (code >= 0)
        return code;
    if (n_args > 0 || (since != month && !ctl_usage_is_date(since)))
        return cli_usage("usage takes only --csv and --since YYYY-MM[-DD]");
    if (c->json)
        return weftctl_answer(c, "/usage", NULL);
    yyjson_doc *doc = NULL;
    int r = ctl_get(c->ctl, "/usage", &doc, &err);
    if (r == CTL_OK) {
        if (csv)
            ctl_usage_csv(&text, yyjson_doc_get_root(doc), since);
        else
            ctl_usage_table(&text, yyjson_doc_get_root(doc), since, ctl_columns());
        weftctl_print(text.data, text.len);
    }
    yyjson_doc_free(doc);
    return weftctl_finish(c, r, &err);
}

/* Requests a change of a model and waits until it is done. @done: the value of @key then. */
static int weftctl_change(struct call *c, const char *what, const char *key,
                          const char *const *under_way, const char *done) {
    const char *file = c->argc > 1 ? c->argv[1] : NULL;
    struct err err = {0};
    char is[500];
    int r = ctl_change(c->ctl, c->argv[0], what, file, &err);

    if (r == CTL_OK)
        r = ctl_wait_change(c->ctl, c->argv[0], key, under_way, is, &err);
    if (r == CTL_OK && strcmp(is, done) != 0) {
        err_set(&err, 0, "", "%.100s: %.280s", c->argv[0], is);
        r = CTL_REFUSED;
    }
    if (r == CTL_OK && c->json)
        ctl_print_result("model", c->argv[0], key, is, 0);
    else if (r == CTL_OK)
        printf("%s: %s\n", c->argv[0], is);
    return weftctl_finish(c, r, &err);
}

static int run_load(struct call *c) {
    static const char *const under_way[] = {"unloaded", "opening", "queued", "loading",
                                            "leaving",  "ending",  NULL};

    if (c->argc != 1)
        return cli_usage("load takes the name of a model");
    return weftctl_change(c, "load", "state", under_way, "loaded");
}

static int run_unload(struct call *c) {
    static const char *const under_way[] = {"leaving", "ending", "opening", "loading", NULL};

    if (c->argc != 1)
        return cli_usage("unload takes the name of a model");
    return weftctl_change(c, "unload", "state", under_way, "unloaded");
}

static int run_swap(struct call *c) {
    static const char *const under_way[] = {"under way", NULL};

    if (c->argc < 1 || c->argc > 2)
        return cli_usage("swap takes the name of a model, and optionally a file");
    return weftctl_change(c, "swap", "swap", under_way, "done");
}

static int run_top(struct call *c) {
    struct err err = {0};
    double seconds = 1;

    if (c->argc > 1 || (c->argc == 1 && !cli_double(c->argv[0], 0.1, 3600, &seconds)))
        return cli_usage("top takes a number of seconds from 0.1 to 3600");
    return weftctl_finish(c, ctl_top(c->ctl, seconds, &err), &err);
}

/* Commands of the admin socket. Those without `run` take no arguments: they show the answer to GET
 * @path, or send a POST and print @done. */
static const struct command {
    const char *name;
    int (*run)(struct call *c);
    const char *path, *done;
    void (*show)(struct buf *out, yyjson_val *object, size_t columns);
} commands[] = {
    {.name = "stats", run_stats},
    {.name = "requests", run_requests},
    {.name = "cancel", run_cancel},
    {.name = "health", run_health},
    {.name = "drain", .path = "/drain", .done = "draining"},
    {.name = "top", run_top},
    {.name = "tenants", .path = "/tenants", .show = ctl_show_tenants},
    {.name = "why", run_why},
    {.name = "reload", run_reload},
    {.name = "dump", run_dump},
    {.name = "ps", .path = "/models", .show = ctl_show_served},
    {.name = "load", run_load},
    {.name = "unload", run_unload},
    {.name = "swap", run_swap},
    {.name = "upgrade", .path = "/upgrade", .done = "upgraded"},
    {.name = "usage", run_usage},
};

static int run_plain(const struct command *command, struct call *c) {
    if (c->argc > 0)
        return cli_usage("%s takes no arguments", command->name);
    if (command->show)
        return weftctl_answer(c, command->path, command->show);
    return weftctl_post(c, command->path, command->done);
}

/* Commands that need no daemon; they read their own options. */
static const struct {
    const char *name;
    int (*run)(int argc, char **argv, bool json);
} local_commands[] = {{"chat", ctl_chat},     {"launch", ctl_launch}, {"pull", ctl_pull},
                      {"models", ctl_models}, {"rm", ctl_rm},         {"key", ctl_key}};

/* Commands of other programs for which weftctl has another word. */
static const struct {
    const char *name, *own;
} aliases[] = {{"list", "models"},   {"ls", "models"}, {"stop", "unload"},
               {"download", "pull"}, {"delete", "rm"}, {"remove", "rm"}};

/* Commands of other programs that weftctl does not have, and what does the same. */
static const struct {
    const char *name, *remedy;
} others[] = {
    {"serve",
     "start weftd --model FILE, or weftd --models-dir auto for all models of this machine"},
    {"start",
     "start weftd --model FILE, or weftd --models-dir auto for all models of this machine"},
    {"restart", "weftctl upgrade replaces the running daemon without a pause"},
    {"status", "use weftctl health, or weftctl stats"},
    {"logs", "weftd writes its log to the standard error; journalctl -u weftd shows a service's"},
    {"config", "weftd --check-config checks it, and weftctl reload reads it again"},
    {"search", "search at https://huggingface.co/models?library=gguf, then use weftctl pull"},
    {"bench", "use weft-bench"},
    {"show", "use weft-gguf info FILE, with the file that weftctl models --path NAME prints"},
    {"info", "use weft-gguf info FILE, with the file that weftctl models --path NAME prints"},
    {"create", "write a preset: docs/manual/several-models.md, or POST /api/create"},
    {"cp", "write a preset with another name, or POST /api/copy"},
    {"push", "models are only pulled"},
    {"version", "use weftctl --version"},
    {"signin", "weftctl pull needs no account; HF_TOKEN is used where a repository asks for it"},
    {"signout", "weftctl pull needs no account"},
};

/* Returns weftctl's word for @command. */
static const char *own_name(const char *command) {
    for (size_t i = 0; i < ARRAY_SIZE(aliases); i++)
        if (strcmp(command, aliases[i].name) == 0)
            return aliases[i].own;
    return command;
}

static int weftctl_unknown(const char *command) {
    char names[320] = "";
    struct meant m;
    size_t n = 0;

    meant_init(&m, command);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        if (strcmp(command, others[i].name) == 0)
            return cli_usage("there is no command \"%s\": %s", command, others[i].remedy);
    for (size_t i = 0; i < ARRAY_SIZE(commands) && n < sizeof(names); i++) {
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s, ", commands[i].name);
        meant_try(&m, commands[i].name);
    }
    for (size_t i = 0; i < ARRAY_SIZE(local_commands) && n < sizeof(names); i++) {
        n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "",
                              local_commands[i].name);
        meant_try(&m, local_commands[i].name);
    }
    if (m.name)
        return cli_usage("unknown command \"%s\"; is %s meant?", command, m.name);
    return cli_usage("unknown command \"%s\"; the commands are %s", command, names);
}

static bool asks_help(const char *arg) {
    return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static int say_help(void) {
    fputs(help, stdout);
    return cli_flush(CLI_OK);
}

/* Takes an option of all commands from the beginning of @argv. Returns the number of arguments that
 * it has, 0 if there is another one. */
static int parse_option(int argc, char **argv, struct call *c, const char **socket) {
    bool json = strcmp(argv[0], "--json") == 0;

    c->json |= json;
    if (strncmp(argv[0], "--socket=", 9) == 0)
        *socket = argv[0] + 9;
    else if (strcmp(argv[0], "--socket") == 0 && argc > 1)
        *socket = argv[1];
    else
        return json;
    if (argv[0][8])
        return 1;
    return 2;
}

/* Takes the options that all commands have from behind the command, where many users write them. */
static void weftctl_parse_options(struct call *c, const char **socket) {
    int kept = 0;

    for (int i = 0, n; i < c->argc; i += n ? n : 1) {
        n = parse_option(c->argc - i, c->argv + i, c, socket);
        if (n == 0)
            c->argv[kept++] = c->argv[i];
    }
    c->argc = kept;
}

#define RUN_ARGS_MAX 256

/* Talks with the model that the first argument names: `run MODEL [MESSAGE]` of other programs. */
static int run_model(int argc, char **argv, bool json) {
    char *with_option[RUN_ARGS_MAX + 2];
    int n = 0;

    if (argc > 1 && asks_help(argv[1]))
        return ctl_chat(argc, argv, json);
    if (argc < 2 || argv[1][0] == '-')
        return cli_usage("run takes the name of a model, and optionally a message");
    if (argc > RUN_ARGS_MAX)
        return cli_usage("run takes at most %d arguments: put the message into quotes",
                         RUN_ARGS_MAX - 1);
    with_option[n++] = argv[0];
    with_option[n++] = "--model";
    for (int i = 1; i < argc; i++)
        with_option[n++] = argv[i];
    with_option[n] = NULL;
    return ctl_chat(n, with_option, json);
}

static int weftctl_dispatch(const char *socket, struct call *c) {
    CLEANUP(ctl_freep) struct ctl *ctl = NULL;

    const char *name = own_name(c->argv[0]);

    if (socket && setenv("WEFT_ADMIN", socket, 1) < 0) /* chat and launch ask it for the address */
        return cli_fail("out of memory");
    if (strcmp(name, "help") == 0 && c->argc < 2)
        return say_help();
    if (strcmp(name, "help") == 0) { /* help COMMAND is COMMAND --help */
        c->argv[0] = c->argv[1];
        c->argv[1] = "--help";
        name = own_name(c->argv[0]);
    }
    if (strcmp(name, "run") == 0)
        return run_model(c->argc, c->argv, c->json);
    for (size_t i = 0; i < ARRAY_SIZE(local_commands); i++)
        if (strcmp(name, local_commands[i].name) == 0)
            return local_commands[i].run(c->argc, c->argv, c->json);
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++) {
        if (strcmp(name, commands[i].name) != 0)
            continue;
        if (c->argc > 1 && asks_help(c->argv[1]))
            return say_help();
        c->argc--;
        c->argv++;
        weftctl_parse_options(c, &socket);
        if (ctl_new(&ctl, socket) < 0)
            return cli_fail("out of memory");
        c->ctl = ctl;
        if (c->json)
            ctl_report_details(ctl);
        if (commands[i].run)
            return commands[i].run(c);
        return run_plain(&commands[i], c);
    }
    return weftctl_unknown(c->argv[0]);
}

/* Returns true if errors are JSON, too, those of the command line included. */
static bool wants_json(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return true;
    return false;
}

/* Refuses @arg, which is no option of all commands. Returns CLI_USAGE. */
static int refuse_global(const char *arg) {
    static const char *const known[] = {"--socket", "--json", "--version", "--help", "-V", "-h"};
    struct meant m;

    if (strcmp(arg, "--socket") == 0)
        return cli_usage("option --socket needs a value");
    meant_init(&m, arg);
    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        meant_try(&m, known[i]);
    if (m.name)
        return cli_usage("unknown option %s; is %s meant?", arg, m.name);
    return cli_usage("unknown option %s; options of a command stand behind its name", arg);
}

int main(int argc, char **argv) {
    struct call c = {.argc = argc - 1, .argv = argv + 1};
    const char *socket = NULL;

    files_open_standard();
    if (wants_json(argc, argv))
        cli_report_to(ctl_report);
    for (int n; c.argc > 0 && c.argv[0][0] == '-'; c.argc -= n, c.argv += n) {
        if (asks_help(c.argv[0]))
            return say_help();
        if (cli_asks_version(c.argv[0]))
            return cli_version("weftctl");
        n = parse_option(c.argc, c.argv, &c, &socket);
        if (n == 0)
            return refuse_global(c.argv[0]);
    }
    if (c.argc == 0) {
        fputs(help, stderr);
        return CLI_USAGE;
    }
    return weftctl_dispatch(socket, &c);
}
