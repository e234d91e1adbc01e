#pragma once

/* fake_find - for tests of the whole backend: the fake device inside the module that they load, and
 * a model for it. */

#include "tests/engine/cuda/fake_api.h"

/* That of the weft-cuda.so beside the program. */
struct fake_cuda *fake_find(void);
/* One narrow layer, saved under a new name that is written to @path. */
void fake_small_model(char path[64]);
