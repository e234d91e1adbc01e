#pragma once

/* fake_find - for tests of the whole backend: the fake device in the module that they load, and a
 * model for it. */

#include "engine/engine.h"
#include "tests/engine/cuda/fake_api.h"

/* Returns the struct of the weft-cuda.so beside the program. */
struct fake_cuda *fake_find(void);
/* Writes a model with one narrow layer to a new file and its name to @path. */
void fake_small_model(char path[64]);
/* Launches the step, seals it and waits for its results. Returns 0 or the first error. */
int fake_run_step(struct engine *e, const struct engine_batch *b, struct engine_result *out);
/* Computes step @step of a sequence that has a row in each step, up to the 64th, and samples a
 * token that @mask allows, or any. Returns 0 or -errno. */
int fake_run_row(struct engine *e, uint64_t step, const uint32_t *mask, struct engine_result *out);
