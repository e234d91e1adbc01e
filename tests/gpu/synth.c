/* synth - `weft-gguf synth` alone, without the libraries that its other commands need. */

#include "cmd/gguf_cmd.h"

int main(int argc, char **argv) {
    return gguf_cmd_synth(argc, argv);
}
