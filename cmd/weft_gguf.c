/*
 * weft-gguf - shows and checks model files, makes synthetic ones, and uses their vocabularies.
 */

#include <string.h>

#include "cmd/cli.h"
#include "cmd/gguf_cmd.h"
#include "vision/decoder.h"

static const struct cli_command commands[] = {
    {"info", gguf_cmd_info, "print metadata, tensors and sizes of a file"},
    {"verify", gguf_cmd_verify, "check structure and weights of a file"},
    {"tokenize", gguf_cmd_tokenize, "print the token ids of a text"},
    {"detokenize", gguf_cmd_detokenize, "print the text of token ids"},
    {"picture", gguf_cmd_picture, "decode a picture, resize it and encode it"},
    {"render", gguf_cmd_render, "print the prompt of a conversation"},
};

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], DECODER_FLAG) == 0)
        return decoder_main();
    return cli_run("weft-gguf", commands, ARRAY_SIZE(commands), argc, argv);
}
