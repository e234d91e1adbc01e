#pragma once

#include <stdatomic.h>
#include <stdbool.h>

struct fake_nvml {
    unsigned long long total, used;
    _Atomic unsigned long long mj, reasons;
    unsigned mw, mhz, celsius;
    _Atomic int n_open, n_asked;
    /* result of nvmlInit_v2() */
    int refuses;
    /* the device reports neither energy nor power */
    bool old;
    /* NVML of CUDA 14, without the calls that CUDA 13 deprecates; else without their successors */
    bool newer;
    /* calls do not return while it is set */
    atomic_bool hangs;
};
