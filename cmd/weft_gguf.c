/*
 * weft-gguf - looks into model files, checks them, makes synthetic ones, uses their vocabularies.
 */

#include <stdio.h>
#include <string.h>
#include "cmd/cli.h"
#include "cmd/gguf_cmd.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = {
    {"info", gguf_cmd_info, "metadata, tensors and sizes of a file"},
    {"verify", gguf_cmd_verify, "check a file: structure and finite weights"},
    {"synth", gguf_cmd_synth, "write a model with random weights"},
    {"tokenize", gguf_cmd_tokenize, "token ids of a text"},
    {"detokenize", gguf_cmd_detokenize, "text of token ids"},
    {"render", gguf_cmd_render, "the prompt that a conversation becomes"},
};

static void print_usage(FILE *f) {
    fputs("usage: weft-gguf COMMAND ...   (weft-gguf COMMAND --help for its options)\n", f);
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        fprintf(f, "  %-11s %s\n", commands[i].name, commands[i].help);
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
