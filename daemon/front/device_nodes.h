#pragma once

/* device_nodes - the nodes of NVIDIA devices in /dev. libcuda itself starts the setuid program
 * nvidia-modprobe where the driver's modules are not loaded or nodes are missing, as after a boot
 * without a display; a worker may not start programs (sandbox.h), so the front does it first. */

/* Paths in a system; device_nodes_system has the real ones. */
struct device_nodes {
    /* gpus: folder of the loaded module with a folder for each device */
    const char *dev, *gpus, *program;
};
extern const struct device_nodes device_nodes_system;

/* Runs the program for each missing node that CUDA needs, if the program exists, and waits some
 * seconds while a module loads. Without the necessary rights it does nothing, and the worker then
 * reports that there is no device. */
void device_nodes_make(const struct device_nodes *at);
