#pragma once

/*
 * listeners - the listening sockets of the front: the service manager's, or its own for the
 * addresses in the options. An upgrade (upgrade.h) passes all of them to the next daemon, which
 * keeps the sockets whose addresses are still in its options, and accepts as soon as the old daemon
 * has stopped.
 */

#include "api/api.h"
#include "daemon/config/config.h"
#include "daemon/front/admin.h"
#include "daemon/front/service.h"
#include "daemon/upgrade/upgrade.h"
#include "daemon/workers/kept.h"

/* A socket on which this daemon listens, or which it got and will listen on. Invariant: an unwanted
 * socket has an address and is not listened on; fd is open, or -1 once it was dropped. */
struct front_socket {
    int fd;
    /* true: admin socket; false: HTTP */
    bool admin;
    bool tls;
    bool listens;
    /* bound by the previous daemon for an address that is not in the options any more */
    bool unwanted;
    const char
        *address; /* address in the options if a daemon bound it; NULL: the service manager did */
};

/* The listening sockets. config is set from the beginning, api and admin from listeners_open()
 * on. */
struct listeners {
    const struct config *config;
    struct api *api;
    struct admin *admin;
    struct front_socket sockets[SERVICE_FDS_MAX];
    uint32_t n;
    /* URL of the first HTTP listener, for messages */
    char url[300];
    /* path of the admin socket that this daemon chose; "": it chose none */
    char chosen[108];
};

/* Takes the descriptors that the service manager or the previous daemon passed: sockets, and files
 * for @kept. Returns 0, or -errno with @err. */
int listeners_inherit(struct listeners *l, struct kept *kept, struct err *err);
/* Returns true if the service manager holds sockets: for HTTP, or for the admin socket. */
bool listeners_managed(const struct listeners *l, bool admin);
/* Binds the addresses of the options for which no socket was passed. Listens on these and on the
 * service manager's admin sockets, except in an upgrade. Returns 0, or -errno with @err. */
int listeners_open(struct listeners *l, struct err *err);
/* Listens on the sockets that were passed. Clients that connected earlier, also before a restart,
 * have waited in the queues of the sockets. Returns 0, or -errno with @err. */
int listeners_open_given(struct listeners *l, struct err *err);

/* Adds all sockets to @f, the descriptors for the next daemon. Returns 0 or -E2BIG. */
int listeners_pass(const struct listeners *l, struct upgrade_files *f);
/* Leaves the sockets to the next daemon, which listens on them: this daemon removes no file of a
 * UNIX socket when it ends, and its admin socket accepts no new clients. */
void listeners_hand_over(struct listeners *l);
/* Takes over the sockets that the previous daemon bound: this daemon removes their files when it
 * ends. Closes those that the options no longer name. */
void listeners_own_paths(struct listeners *l);
