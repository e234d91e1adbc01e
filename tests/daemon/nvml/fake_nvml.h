#pragma once

#include <stdatomic.h>
#include <stdbool.h>

struct fake_nvml {
    unsigned long long total, used;
    _Atomic unsigned long long mj, reasons;
    unsigned mw, mhz, celsius;
    _Atomic int n_open, n_asked;
    int refuses;       /* what nvmlInit_v2() answers */
    bool old;          /* a device that tells neither energy nor power */
    atomic_bool hangs; /* calls do not return meanwhile */
};
