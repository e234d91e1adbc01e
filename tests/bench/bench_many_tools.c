/*
 * bench_many_tools VOCABULARY.gguf N [FORMAT] [TOOLS.json]: compiles the calls of N tools together,
 * for every format, as a request with `tool_choice` "required" does. TOOLS.json is an array of
 * {"name": ..., "inputSchema": ...}, whose first N are taken and repeated under other names where
 * there are fewer; without it each tool has 12 parameters. Writes a line for each format: the tools
 * that it can hold alone, bytes of the nodes, the times in ms to write them, to check them as the
 * front does and to compile them as the worker does, work, and bytes of the compiled grammar.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/toolcall/grammar_ir.h"
#include "api/toolcall/toolcall.h"
#include "base/clock.h"
#include "grammar/constraint.h"
#include "text/tokenizer.h"

#define TOOLS_MAX 10000

static const struct grammar_vocab *vocab;
static struct toolcall_tool tool[TOOLS_MAX];
static char name[TOOLS_MAX][80];

static double now_ms(void) {
    return (double)clock_now(clock_monotonic()) / 1e6;
}

/* Returns the tools without a file: @n with 12 parameters of three types. */
static yyjson_doc *synthetic(void) {
    static const char *const type[] = {"string", "integer", "boolean"};
    char text[2000];
    int len = snprintf(text, sizeof(text),
                       R"([{"name": "tool", "inputSchema": {"type": )"
                       R"("object", "required": ["p0"], "properties": {)");

    for (int i = 0; i < 12; i++)
        len += snprintf(text + len, sizeof(text) - (size_t)len, R"(%s"p%d": {"type": "%s"})",
                        i ? ", " : "", i, type[i % 3]);
    snprintf(text + len, sizeof(text) - (size_t)len, "}}}]");
    return yyjson_read(text, strlen(text), 0);
}

static uint32_t collect(yyjson_val *list, uint32_t n) {
    size_t size = yyjson_arr_size(list);

    for (uint32_t i = 0; i < n; i++) {
        yyjson_val *v = yyjson_arr_get(list, i % size);
        yyjson_val *schema = yyjson_obj_get(v, "inputSchema");

        if (size >= n)
            snprintf(name[i], sizeof(name[i]), "%s", yyjson_get_str(yyjson_obj_get(v, "name")));
        else
            snprintf(name[i], sizeof(name[i]), "%.50s_%u",
                     yyjson_get_str(yyjson_obj_get(v, "name")), i);
        tool[i] = (struct toolcall_tool){.name = name[i], .parameters = schema, .param = "tools"};
    }
    return n;
}

/* Writes the calls of @n tools from @from on. Returns the text, NULL with @err on a refusal. */
static char *force(const struct toolcall_format *f, uint32_t from, uint32_t n, size_t *len,
                   struct err *err) {
    struct toolcall_force o = {.format = f, .tools = tool + from, .n_tools = n};
    struct nodes nodes = {.doc = yyjson_mut_doc_new(NULL)};
    yyjson_mut_val *root = NULL;
    char *text = NULL;

    if (toolcall_force(&root, &nodes, &o, err) == 0)
        text = yyjson_mut_val_write(root, 0, len);
    yyjson_mut_doc_free(nodes.doc);
    return text;
}

/* Marks tools that the format cannot hold alone as loose. Returns the number of the others. */
static uint32_t loosen(const struct toolcall_format *f, uint32_t n) {
    uint32_t held = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct grammar *g = NULL;
        struct err err = {0};
        size_t len;

        tool[i].loose = false;
        char *text = force(f, i, 1, &len, &err);
        tool[i].loose = !text || constraint_compile(&g, NULL, text, len, NULL, &err) < 0;
        held += !tool[i].loose;
        grammar_free(g);
        free(text);
    }
    return held;
}

static void run_format(const struct toolcall_format *f, uint32_t n) {
    struct constraint *c = NULL;
    struct grammar *g = NULL;
    struct err err = {0};
    uint64_t work = 0;
    struct grammar_limits limits = CONSTRAINT_LIMITS;
    double from = now_ms(), alone, forced, checked;
    size_t len = 0;
    uint32_t held = loosen(f, n);

    alone = now_ms();
    char *text = force(f, 0, n, &len, &err);
    forced = now_ms();
    limits.work = &work;
    limits.max_work = 64000000;
    int r = text ? constraint_compile(&g, NULL, text, len, &limits, &err) : -1;

    checked = now_ms();
    limits.work = NULL;
    limits.max_work = 144000000;
    if (r == 0)
        r = constraint_new(&c, vocab, text, len, NULL, 0, &limits, &err);
    printf("%-16s held %4u  nodes %8zu  alone %6.0f  write %5.0f  check %5.0f  compile %6.0f  "
           "work %9lu  bytes %9zu %s\n",
           f->name, held, len, alone - from, forced - alone, checked - forced, now_ms() - checked,
           (unsigned long)work, c ? constraint_bytes(c) : 0, err.message);
    fflush(stdout);
    grammar_free(g);
    constraint_free(c);
    free(text);
}

int main(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    struct err err = {0};
    long n = argc > 2 ? strtol(argv[2], NULL, 10) : 0;

    if (n < 1 || n > TOOLS_MAX || gguf_open(&file, argv[1], &err) < 0 ||
        tokenizer_new(&t, file, &err) < 0 || grammar_vocab_of(&v, t) < 0) {
        fprintf(stderr, "usage: bench_many_tools VOCABULARY.gguf N [FORMAT|-] [TOOLS.json] %s\n",
                err.message);
        return 1;
    }
    vocab = v;
    yyjson_doc *doc = argc > 4 ? yyjson_read_file(argv[4], 0, NULL, NULL) : synthetic();

    if (yyjson_arr_size(yyjson_doc_get_root(doc)) == 0)
        return 1;
    collect(yyjson_doc_get_root(doc), (uint32_t)n);
    for (size_t i = 0; toolcall_at(i); i++)
        if (argc < 4 || strcmp(argv[3], "-") == 0 || strcmp(toolcall_at(i)->name, argv[3]) == 0)
            run_format(toolcall_at(i), (uint32_t)n);
    yyjson_doc_free(doc);
    return 0;
}
