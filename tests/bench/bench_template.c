/*
 * bench_template [-n MESSAGES | -c CALLS] TEMPLATE.jinja...: the CPU time to parse each template
 * and to render a conversation of 50 messages with two tools (median of several runs), the bytes of
 * the text and the steps it takes. With -c the conversation is one request with that many tool
 * calls, as an agent sends it.
 */

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "text/template.h"

#define RUNS 101         /* most renderings whose median is printed */
#define RUNS_SECONDS 5.0 /* time after which no more begin */

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const char TOOLS[] = R"([{"type": "function", "function": {"name": "search_files", )"
                            R"("description": "Find lines.", )"
                            R"("parameters": {"type": "object", "properties": {"pattern": )"
                            R"({"type": "string", "description": )"
                            R"("Regular expression"}, "paths": {"type": "array", "items": )"
                            R"({"type": "string"}, "description": )"
                            R"("Where to look"}}, "required": ["pattern"]}}}, {"type": )"
                            R"("function", "function": {"name": )"
                            R"("read_file", "description": "Read a file.", "parameters": )"
                            R"({"type": "object", "properties": )"
                            R"({"path": {"type": "string", "description": "Its path"}}, )"
                            R"("required": ["path"]}}}])";

static const char SENTENCE[] =
    R"(The scheduler plans a step, the engine runs it, and "nothing" is lost. )";

/* Adds message @i of a chat, some 570 bytes long. */
static void add_turn(struct buf *b, int i) {
    buf_printf(b, R"(%s{"role": "%s", "content": ")", i ? "," : "", i % 2 ? "assistant" : "user");
    for (int k = 0; k < 8; k++) {
        for (const char *p = SENTENCE; *p; p++)
            buf_printf(b, *p == '"' ? "\\%c" : "%c", *p);
    }
    buf_add_str(b, R"("})");
}

/* Adds tool call @i and its result. */
static void add_call(struct buf *b, int i) {
    buf_printf(b,
               R"(,{"role": "assistant", "content": "", "tool_calls": [{"id": "c%08d", )"
               R"("type": "function", "function": {"name": "read_file", "arguments": )"
               R"({"path": "a"}}}]}, {"role": "tool", "tool_call_id": "c%08d", "name": )"
               R"("read_file", "content": "one line"})",
               i, i);
}

static yyjson_doc *make_vars(int n_messages, int n_calls) {
    struct buf b;

    buf_init(&b, 1u << 28);
    buf_printf(&b,
               R"({"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, )"
               R"("tools": %s, "messages": [)",
               TOOLS);
    for (int i = 0; i < n_messages; i++)
        add_turn(&b, i);
    for (int i = 0; i < n_calls; i++)
        add_call(&b, i);
    buf_add_str(&b, "]}");
    yyjson_doc *doc = b.data ? yyjson_read(b.data, b.len, 0) : NULL;

    buf_deinit(&b);
    return doc;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(const char *name, const char *source, size_t len, yyjson_val *vars) {
    uint64_t steps = 0;
    struct template_opts opts = {.fuel = 1ull << 40, .steps = &steps};
    CLEANUP(template_freep) struct template *t = NULL;
    struct err err = {0};
    double t0 = now(), parse, times[RUNS];
    size_t bytes = 0, n = 0;

    if (template_new(&t, source, len, &err)) {
        printf("%-44.44s %s\n", name, err.message);
        return;
    }
    parse = now() - t0;
    for (double begin = now(); n < RUNS && (!n || now() - begin < RUNS_SECONDS); n++) {
        struct rendered r = {0};

        t0 = now();
        steps = 0;
        if (template_render(t, vars, &opts, &r, &err)) {
            printf("%-44.44s %.60s\n", name, err.message);
            return;
        }
        times[n] = now() - t0;
        bytes = r.text.len;
        rendered_deinit(&r);
    }
    qsort(times, n, sizeof(times[0]), by_size);
    printf("%-44.44s parse %6.1f us, render %7.1f us, %7zu bytes, %8llu steps\n", name, parse * 1e6,
           times[n / 2] * 1e6, bytes, (unsigned long long)steps);
}

int main(int argc, char **argv) {
    bool calls = argc > 2 && strcmp(argv[1], "-c") == 0;
    int first = calls || (argc > 2 && strcmp(argv[1], "-n") == 0) ? 3 : 1;
    int n = first == 3 ? atoi(argv[2]) : 50;
    yyjson_doc *vars = calls ? make_vars(1, n) : make_vars(n, 0);

    for (int i = first; i < argc && vars; i++) {
        CLEANUP(freep) char *source = malloc(1 << 20);
        const char *name = strrchr(argv[i], '/');
        FILE *f = fopen(argv[i], "rb");

        if (!f || !source) {
            fprintf(stderr, "%s cannot be read\n", argv[i]);
            return 1;
        }
        size_t len = fread(source, 1, 1 << 20, f);

        fclose(f);
        measure(name ? name + 1 : argv[i], source, len, yyjson_doc_get_root(vars));
    }
    yyjson_doc_free(vars);
    return 0;
}
