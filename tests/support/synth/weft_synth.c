/* weft-synth - writes a model file with random weights, for tests and measurements. */

#include "tests/support/synth/synth.h"

int main(int argc, char **argv) {
    return synth_main(argc, argv);
}
