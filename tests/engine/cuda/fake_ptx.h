#pragma once

/*
 * fake_ptx - runs launches of the fake runtime on what nvcc wrote (tests/engine/ptx/ptx.h): with
 * the environment variable WEFT_PTX, the folder of the modules' PTX. Without it the kernels are
 * those that are compiled for the CPU (simt.h).
 */

#include "tests/engine/cuda/fake_streams.h"

/* Reads the modules, and makes the devices of the family that they are compiled for. */
void fake_ptx_open(void);
/* Returns false without modules. */
bool fake_ptx_launch(const struct op *launch);
