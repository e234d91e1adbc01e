#pragma once

/* ctl_local - the commands of weftctl that need no daemon, since they manage model files and keys.
 * Each gets the arguments from its name on and returns an exit code. */

#include <stdbool.h>

int ctl_pull(int argc, char **argv, bool json);   /* fetches a model from a hub */
int ctl_models(int argc, char **argv, bool json); /* lists the models on this machine */
int ctl_rm(int argc, char **argv, bool json);     /* removes a model */
int ctl_key(int argc, char **argv, bool json);    /* makes an API key */
