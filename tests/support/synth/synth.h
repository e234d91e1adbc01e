#pragma once

/*
 * synth - writes model files of any shape and format with random weights, and projector files: the
 * program weft-synth, and a library for tests.
 */

/* Runs weft-synth with @argv; argv[0] is not read. Returns an exit code of cmd/cli.h. */
int synth_main(int argc, char **argv);
