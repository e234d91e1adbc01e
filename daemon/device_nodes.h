#pragma once

/* device_nodes - the nodes of NVIDIA devices in /dev. libcuda itself starts the setuid program
 * nvidia-modprobe where the driver's modules are not loaded or nodes are missing, as after a boot
 * without a display; in a worker it may start nothing (sandbox.h), so that is done before. */

/* Where things are; device_nodes_system: on a real system. */
struct device_nodes {
    const char *dev, *gpus, *program; /* gpus: a folder for each device, of the loaded module */
};
extern const struct device_nodes device_nodes_system;

/* Where a node that CUDA needs is missing, and the program is there, runs it for each; waits up to
 * some seconds that a module takes to load. Without rights to do so nothing comes of it: the worker
 * says that there is no device. */
void device_nodes_make(const struct device_nodes *at);
