#pragma once

/*
 * models_presets - makes and removes the files of presets for clients. The functions read and write
 * disks, so they run on a thread.
 */

#include "daemon/config/config.h"

/* Preset to be made or removed. A member that is NULL or 0 leaves the value of the base model. */
struct preset_change {
    /* options of the daemon */
    struct config own;
    /* options of the base model */
    struct config base;
    /* from: name of the base model; NULL: the preset is removed */
    char *name, *from;
    char *sampling, *template, *system;
    uint32_t max_context;
    /* a served model has the name already */
    bool served;
};

enum { PRESET_NONE = 1 }; /* answer of preset_remove() */

/* Writes the preset and the files of its texts. Returns 0, or -errno with @err. */
int preset_make(const struct preset_change *p, struct err *err);
/* Undoes the changes during which a daemon was killed, so that no preset has the texts of
 * another. Does nothing while another daemon changes presets of the folder. */
void presets_recover(const struct config *own);
/* Removes the preset and the files of its texts. Returns 0; PRESET_NONE: no preset has the name; or
 * -errno with @err. */
int preset_remove(const struct preset_change *p, struct err *err);
