/*
 * Reads tools of MCP servers (tests/data/README.md) and writes, for formats and tools, the
 * arguments of a random call that the tool's grammar allows, as the format's parser reads them. For
 * check_tools.py.
 *
 * usage: tool_texts TOOLS.json EVERY [FORMAT]
 *
 * Tool i is tried in format k if i + k is a multiple of EVERY. A line for each:
 *      {"format", "server", "tool", "loosened": ["TOOL#/PLACE"], "arguments"}
 */

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/loosen.h"
#include "base/json_read.h"
#include "grammar/constraint.h"
#include "tests/api/toolcall_random.h"

#define TOKENS_MAX 3000
#define DROPS_MAX 48

struct job {
    const struct toolcall_format *format;
    const char *server;
    struct toolcall_tool tool;
    /* [{"function": ..}], for the parser */
    yyjson_val *tools;
    /* the tool's schema after parts were left out, or NULL */
    yyjson_doc *reduced;
    struct arena arena;
    struct loosened_list loosened;
    struct buf text, args;
    bool complete;
};

static int on_event(void *ctx, const struct toolcall_event *e) {
    struct job *j = ctx;

    if (e->kind == TOOLCALL_ARGS)
        buf_add(&j->args, e->data, e->len);
    if (e->kind == TOOLCALL_END)
        j->complete = e->complete;
    return 0;
}

static void fail(const struct job *j, const char *what, const char *why) {
    fprintf(stderr, "%s: %s of %s: %s: %s\n", j->format->name, j->tool.name, j->server, what, why);
    exit(1);
}

/* Compiles the grammar of the call, if need be with less than the whole schema. */
static struct constraint *compile(struct job *j, struct grammar_vocab *v) {
    char place[GRAMMAR_PLACE_MAX];
    struct grammar_limits limits = {.place = place};
    yyjson_mut_doc *own = yyjson_mut_doc_new(NULL);
    struct loosener l = {
        .doc = own, .arena = &j->arena, .tool = j->tool.name, .list = &j->loosened};
    struct constraint *c = NULL;
    struct err err = {0};
    int r = -1;

    l.schema = yyjson_val_mut_copy(own, j->tool.parameters);
    for (int i = 0; r < 0 && i < DROPS_MAX; i++) {
        struct toolcall_force o = {
            .format = j->format, .tools = &j->tool, .n_tools = 1, .max_calls = 1, .place = place};
        struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
        yyjson_mut_val *root = NULL;
        size_t len = 0;

        place[0] = 0;
        r = toolcall_force(&root, &n, &o, &err);
        char *text = r == 0 ? yyjson_mut_val_write(root, 0, &len) : NULL;

        if (text)
            r = constraint_new(&c, v, text, len, NULL, 0, &limits, &err);
        free(text);
        yyjson_mut_doc_free(n.doc);
        if (r == 0)
            break;
        if (!loosen_schema(&l, place))
            fail(j, "no part of the schema is left", err.message);
        j->tool.sent = j->tool.sent ? j->tool.sent : j->tool.parameters;
        yyjson_doc_free(j->reduced);
        j->reduced = yyjson_mut_val_imut_copy(l.schema, NULL);
        j->tool.parameters = yyjson_doc_get_root(j->reduced);
    }
    yyjson_mut_doc_free(own);
    return c;
}

static void print_call(const struct job *j) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *o = yyjson_mut_obj(d), *list = yyjson_mut_arr(d);
    yyjson_doc *args = yyjson_read(j->args.data ? j->args.data : "", j->args.len, 0);

    if (!args || !j->complete)
        fail(j, "no call is read", j->text.data);
    for (uint32_t i = 0; i < j->loosened.n && i < LOOSENED_KEPT; i++)
        yyjson_mut_arr_add_strcpy(d, list, j->loosened.v[i].place);
    yyjson_mut_doc_set_root(d, o);
    yyjson_mut_obj_add_str(d, o, "format", j->format->name);
    yyjson_mut_obj_add_str(d, o, "server", j->server);
    yyjson_mut_obj_add_str(d, o, "tool", j->tool.name);
    yyjson_mut_obj_add_val(d, o, "loosened", list);
    yyjson_mut_obj_add_val(d, o, "arguments", yyjson_val_mut_copy(d, yyjson_doc_get_root(args)));
    char *line = yyjson_mut_write(d, 0, NULL);

    puts(line);
    free(line);
    yyjson_doc_free(args);
    yyjson_mut_doc_free(d);
}

static void run_job(struct job *j, struct grammar_vocab *v, uint32_t n_tokens, struct rng *r) {
    struct toolcall_opts opts = {.format = j->format, .tools = j->tools};
    struct toolcall_parser *p = NULL;
    struct constraint *c = compile(j, v);

    if (!c)
        fail(j, "too many parts were left out", "");
    random_text_short(c, j->format, r, n_tokens, TOKENS_MAX, &j->text);
    if (toolcall_parser_new(&p, &opts) < 0 ||
        toolcall_feed(p, j->text.data, j->text.len, on_event, j) < 0 ||
        toolcall_finish(p, false, on_event, j) < 0)
        fail(j, "the parser fails", j->text.data);
    print_call(j);
    toolcall_parser_free(p);
    constraint_free(c);
}

/* Returns [{"function": {"name", "parameters"}}] of an MCP tool. */
static yyjson_doc *as_function(yyjson_val *tool) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *list = yyjson_mut_arr(d), *f = yyjson_mut_obj(d);

    yyjson_mut_obj_add_val(d, f, "name", yyjson_val_mut_copy(d, yyjson_obj_get(tool, "name")));
    yyjson_mut_obj_add_val(d, f, "parameters",
                           yyjson_val_mut_copy(d, yyjson_obj_get(tool, "inputSchema")));
    yyjson_mut_obj_add_val(d, yyjson_mut_arr_add_obj(d, list), "function", f);
    yyjson_doc *doc = yyjson_mut_val_imut_copy(list, NULL);

    yyjson_mut_doc_free(d);
    return doc;
}

static void run_tool(const struct toolcall_format *f, const char *server, yyjson_val *tool,
                     struct rng *r) {
    bool special = rng_below(r, 2);
    struct grammar_vocab *v = random_vocab(special);
    yyjson_doc *tools = as_function(tool);
    yyjson_val *function =
        yyjson_obj_get(yyjson_arr_get_first(yyjson_doc_get_root(tools)), "function");
    struct job j = {.format = f,
                    .server = server,
                    .tools = yyjson_doc_get_root(tools),
                    .text = {.max = 1 << 20},
                    .args = {.max = 1 << 20}};

    j.tool = (struct toolcall_tool){.name = json_cstr(yyjson_obj_get(function, "name")),
                                    .parameters = yyjson_obj_get(function, "parameters"),
                                    .param = "tools"};
    arena_init(&j.arena, 1 << 20);
    run_job(&j, v, random_n_tokens(special), r);
    yyjson_doc_free(j.reduced);
    arena_deinit(&j.arena);
    buf_deinit(&j.text);
    buf_deinit(&j.args);
    yyjson_doc_free(tools);
    grammar_vocab_free(v);
}

int main(int argc, char **argv) {
    yyjson_doc *doc = argc > 2 ? yyjson_read_file(argv[1], 0, NULL, NULL) : NULL;
    uint32_t every = argc > 2 ? (uint32_t)atoi(argv[2]) : 0;
    struct rng r = {7};

    if (!doc || every == 0) {
        fprintf(stderr, "usage: tool_texts TOOLS.json EVERY [FORMAT]\n");
        return 2;
    }
    setlocale(LC_CTYPE, "C.UTF-8");
    for (size_t k = 0; toolcall_at(k); k++) {
        uint32_t i = 0;

        if (argc > 3 && strcmp(argv[3], toolcall_at(k)->name) != 0)
            continue;
        JSON_EACH(server, yyjson_doc_get_root(doc)) {
            JSON_EACH(tool, yyjson_obj_get(server, "tools")) {
                if ((i++ + k) % every == 0)
                    run_tool(toolcall_at(k), json_cstr(yyjson_obj_get(server, "server")), tool, &r);
            }
        }
    }
    yyjson_doc_free(doc);
    return 0;
}
