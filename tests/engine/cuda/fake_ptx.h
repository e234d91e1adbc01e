#pragma once

/*
 * fake_ptx - runs launches of the fake runtime in an interpreter of the PTX that nvcc has compiled
 * (tests/engine/ptx/ptx.h), if the environment variable WEFT_PTX names the folder of the modules'
 * PTX. Without it, kernels compiled for the CPU run (simt.h).
 */

#include "tests/engine/cuda/fake_streams.h"

/* Reads the modules and sets the devices' compute capability to the modules'. */
void fake_ptx_open(void);
/* Runs a launch. Returns false if no modules are loaded. */
bool fake_ptx_launch(const struct op *launch);
