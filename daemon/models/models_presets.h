#pragma once

/*
 * models_presets - the files of presets that clients make. All of it reads and writes disks, and is
 * for a thread.
 */

#include "daemon/config/config.h"

/* A preset to be made or removed. A member that is NULL or 0 keeps the value of the base. */
struct preset_change {
    struct config own;  /* the daemon's */
    struct config base; /* options of the model it is made from */
    char *name, *from;  /* from NULL: it is removed */
    char *sampling, *template, *system;
    uint32_t max_context;
    bool served; /* a model has the name already */
};

enum { PRESET_NONE = 1 }; /* an answer of preset_remove() */

/* Writes the preset and its texts. 0 or -errno with @err. */
int preset_make(const struct preset_change *p, struct err *err);
/* Removes them. 0, PRESET_NONE: no preset has the name, or -errno with @err. */
int preset_remove(const struct preset_change *p, struct err *err);
