#pragma once

/* front - the front process: its parts and the state of its life. */

#include <limits.h>
#include <uv.h>

#include "daemon/config/config.h"
#include "daemon/front/admin.h"
#include "daemon/front/listeners.h"
#include "daemon/models/models.h"
#include "daemon/upgrade/upgrade.h"

/*
 * The front starts until the first worker serves (was_ready), then serves; it drains after SIGTERM,
 * and closes when everything has been told to end. handed_over: the next daemon serves, and this
 * one drains. was_ready, draining, handed_over and closing are set once and stay set.
 */
struct front {
    uv_loop_t loop;
    struct config config;
    int argc;
    char **argv;
    uint32_t max_connections;
    struct api *api;
    struct kept *kept;
    /* NULL: the options name no address */
    struct kv_events *kv_events;
    struct models *models;
    struct admin *admin;
    struct upgrade *upgrade;
    uv_signal_t term, interrupt, hup, usr2;
    uv_timer_t drain, late;
    int64_t leave_ends_ns, drain_ends_ns;
    struct listeners listeners;
    /* file of the disk tier; -1: none */
    int disk_fd;
    uint64_t share_secret[2];
    /* database of the state; "": none */
    char state_path[PATH_MAX];
    /* usage of an earlier version; "": none */
    char usage_path[PATH_MAX];
    /* status line for the service manager, from was_ready on */
    char status[400];
    bool draining, closing, was_ready, handed_over;
    /* a thread has not ended in its time: the process ends without it */
    bool gave_up;
    /* a thread reads the files; another reload follows */
    bool reloading, reload_again;
    /* the next daemon asked for the device and got it */
    bool gave_way;
    int exit_code;
};

/* Accepts no new requests and ends the front when the running ones have finished, or after
 * drain-timeout-ms (upgrade-timeout-ms if the next daemon serves). */
void front_start_drain(struct front *f);
