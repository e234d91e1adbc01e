/*
 * weft-bench - measures the engine, and servers under the load of agents.
 */

#include <stdio.h>
#include <string.h>
#include "cmd/bench_cmd.h"
#include "cmd/cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"engine", bench_cmd_engine, "prefill and decode without a server"},
#ifdef HAVE_CURL
    {"serve", bench_cmd_serve, "an OpenAI-compatible server under load: latencies and throughput"},
    {"identity", bench_cmd_identity, "how many answers are the same alone and under load"},
#endif
};

static void print_usage(FILE *f) {
    fputs("usage: weft-bench COMMAND ...   (weft-bench COMMAND --help for its options)\n", f);
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        fprintf(f, "  %-9s %s\n", commands[i].name, commands[i].help);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        print_usage(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_usage(stdout);
        return cli_flush() ? CLI_OK : CLI_FAILED;
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return cli_usage("unknown command \"%s\"", argv[1]);
}
