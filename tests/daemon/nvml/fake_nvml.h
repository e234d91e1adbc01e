#pragma once

#include <stdatomic.h>
#include <stdbool.h>

struct fake_nvml {
    unsigned long long total, used;
    _Atomic unsigned long long mj, reasons;
    unsigned mw, mhz, celsius;
    _Atomic int n_open, n_asked;
    int refuses; /* what nvmlInit_v2() answers */
    bool old;    /* a device that tells neither energy nor power */
    bool newer; /* of CUDA 14: what CUDA 13 deprecated is gone; else its successors are not there */
    atomic_bool hangs; /* calls do not return meanwhile */
};
