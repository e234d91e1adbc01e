#include "daemon/front/listeners.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/try.h"
#include "daemon/upgrade/takeover.h"

static int add_socket(struct listeners *l, struct front_socket s) {
    assert(s.fd >= 0 && (!s.unwanted || (s.address && !s.listens)));
    if (l->n == SERVICE_FDS_MAX)
        return -EMFILE;
    l->sockets[l->n++] = s;
    return 0;
}

/* Adds a socket of the options for the listener that the API has opened last. */
static int add_own_socket(struct listeners *l, const char *address) {
    return add_socket(l, (struct front_socket){.fd = api_last_fd(l->api),
                                               .tls = config_without_tls(address) != address,
                                               .listens = true,
                                               .address = address});
}

/* Returns the socket that the previous daemon bound for @address; NULL: there is none. */
static const struct front_socket *listeners_find_socket(const struct listeners *l, bool admin,
                                                        const char *address) {
    for (uint32_t i = 0; i < l->n; i++) {
        const struct front_socket *s = &l->sockets[i];

        if (s->admin == admin && !s->listens && s->address && strcmp(s->address, address) == 0)
            return s;
    }
    return NULL;
}

bool listeners_managed(const struct listeners *l, bool admin) {
    for (uint32_t i = 0; i < l->n; i++)
        if (l->sockets[i].admin == admin && !l->sockets[i].address)
            return true;
    return false;
}

/* Listens on the sockets of the API or, with @admin, on the admin sockets that this daemon got. */
static int listen_on_given(struct listeners *l, bool admin, struct err *err) {
    for (uint32_t i = 0; i < l->n; i++) {
        struct front_socket *s = &l->sockets[i];

        if (s->admin != admin || s->listens || s->unwanted)
            continue;
        if (admin)
            TRY(admin_listen_fd(l->admin, s->fd, err));
        else
            TRY(api_listen_fd(l->api, s->fd, s->tls, err));
        s->listens = true;
    }
    return 0;
}

int listeners_open_given(struct listeners *l, struct err *err) {
    TRY(listen_on_given(l, true, err));
    return listen_on_given(l, false, err);
}

static int port_of(int fd) {
    struct sockaddr_in6 sa = {.sin6_port = 0}; /* its port is where that of IPv4 is */
    socklen_t len = sizeof(sa);

    getsockname(fd, (struct sockaddr *)&sa, &len);
    return ntohs(sa.sin6_port);
}

/* Reads the port behind @colon, which may be NULL. Returns -1 if it is none. */
static int read_port(const char *colon) {
    char *end;

    if (!colon)
        return -1;
    long port = strtol(colon + 1, &end, 10);
    return end == colon + 1 || *end || port < 0 || port > 65535 ? -1 : (int)port;
}

/* Listens on one address of the listen option. The first one names the service in messages. */
static int listen_on(struct listeners *l, const char *address, struct err *err) {
    char host[256];
    const struct front_socket *given = listeners_find_socket(l, false, address);
    const char *at = config_without_tls(address), *colon = strrchr(at, ':');
    bool tls = at != address;
    int port, bound;

    if (strncmp(address, "unix:", 5) == 0) {
        TRY(given ? 0 : service_check_path("listen", address + 5, err));
        TRY(given ? 0 : api_listen_unix(l->api, address + 5, err));
        if (!*l->url)
            snprintf(l->url, sizeof(l->url), "%s", address);
        return given ? 0 : add_own_socket(l, address);
    }
    port = read_port(colon);
    if (port < 0 || colon == at || (size_t)(colon - at) >= sizeof(host))
        return err_set(err, 0, "listen", "listen: must be ADDRESS:PORT or unix:PATH, not \"%s\"",
                       at);
    size_t len = (size_t)(colon - at);
    bool v6 = at[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(v6 ? len - 2 : len), at + v6);
    if (given)
        bound = port_of(given->fd);
    else
        TRY(api_listen_tcp(l->api, host, port, tls, &bound, err));
    if (!*l->url)
        snprintf(l->url, sizeof(l->url), "http%s://%.*s:%d", tls ? "s" : "", (int)len, at, bound);
    return given ? 0 : add_own_socket(l, address);
}

/* Returns true if this daemon chooses the path of its admin socket. */
static bool is_auto(const struct listeners *l) {
    return strcmp(l->config->admin_socket, "auto") == 0;
}

/* Returns true if connections to @s begin with TLS, according to its name or its address. */
static bool has_tls(const struct service_fd *s) {
    if (s->address)
        return !s->admin && config_without_tls(s->address) != s->address;
    return strcmp(s->name, "tls") == 0;
}

/* Returns true if the service manager bound @s, or if the options still have its address. */
static bool listeners_is_wanted(const struct listeners *l, const struct service_fd *s) {
    if (!s->address)
        return true;
    if (s->admin)
        return is_auto(l) || strcmp(s->address, l->config->admin_socket) == 0;
    for (char *const *a = l->config->listen; *a; a++)
        if (strcmp(*a, s->address) == 0)
            return true;
    return false;
}

/* Closes the socket of an address that is not in the options any more. */
static void drop_socket(struct front_socket *s) {
    const char *path = s->admin ? s->address : NULL;

    assert(s->unwanted && s->fd >= 0);
    if (strncmp(s->address, "unix:", 5) == 0)
        path = s->address + 5;
    if (path)
        unlink(path);
    close(s->fd);
    s->fd = -1;
}

int listeners_inherit(struct listeners *l, struct kept *kept, struct err *err) {
    struct service_fd fds[SERVICE_FDS_MAX];
    int n = service_inherited(fds, err);

    TRY(n);
    for (int i = 0; i < n; i++) {
        if (fds[i].kept)
            kept_inherit(kept, fds[i].fd, fds[i].name);
        else
            TRY(add_socket(l, (struct front_socket){.fd = fds[i].fd,
                                                    .admin = fds[i].admin,
                                                    .tls = has_tls(&fds[i]),
                                                    .unwanted = !listeners_is_wanted(l, &fds[i]),
                                                    .address = fds[i].address}));
    }
    return 0;
}

static int open_admin_at(struct listeners *l, const char *path, struct err *err) {
    TRY(service_check_path("admin-socket", path, err));
    TRY(admin_listen_unix(l->admin, path, err));
    return add_socket(
        l, (struct front_socket){
               .fd = admin_last_fd(l->admin), .admin = true, .listens = true, .address = path});
}

/* Opens the admin socket in the folder @place, under the port of the first listener, which weftctl
 * shows where several daemons run. Two daemons may have the same port of different addresses, so
 * the process's number is the second choice. */
static int open_admin_in(struct listeners *l, int place, struct err *err) {
    char folder[sizeof(l->chosen)];
    const char *port = strrchr(l->url, ':');
    bool has_port = strncmp(l->url, "http", 4) == 0;
    size_t size = sizeof(l->chosen);

    if (!files_socket_folder(place, folder, sizeof(folder)))
        return -ENOENT;
    if (has_port && (size_t)snprintf(l->chosen, size, "%s/%s.sock", folder, port + 1) < size) {
        TRY(files_make_folders(l->chosen, 0700));
        if (open_admin_at(l, l->chosen, err) == 0)
            return 0;
    }
    if ((size_t)snprintf(l->chosen, size, "%s/pid-%d.sock", folder, (int)getpid()) >= size)
        return -ENAMETOOLONG;
    TRY(files_make_folders(l->chosen, 0700));
    return open_admin_at(l, l->chosen, err);
}

/* Opens an admin socket for a daemon that was started by hand. The daemon serves without it where
 * no folder can be used. */
static void open_auto_admin(struct listeners *l) {
    struct err err = {0};
    int r = -ENOENT;

    for (int place = 0; place < FILES_SOCKETS_N && r < 0; place++)
        r = open_admin_in(l, place, &err);
    if (r == 0)
        return;
    l->chosen[0] = 0;
    log_event(WLOG_INFO, "no_admin_socket", "reason=%s",
              quoted(*err.message ? err.message : strerror(-r)).s);
}

/* Returns true if there is an admin socket that a previous daemon bound and this one keeps. */
static bool has_given_admin(const struct listeners *l) {
    for (uint32_t i = 0; i < l->n; i++)
        if (l->sockets[i].admin && !l->sockets[i].unwanted)
            return true;
    return false;
}

static int listeners_open_admin(struct listeners *l, struct err *err) {
    const char *path = l->config->admin_socket;

    TRY(takeover_is_pending() ? 0 : listen_on_given(l, true, err));
    if (listeners_managed(l, true) || !*path)
        return 0;
    if (!is_auto(l))
        return listeners_find_socket(l, true, path) ? 0 : open_admin_at(l, path, err);
    if (!has_given_admin(l) && !listeners_managed(l, false))
        open_auto_admin(l);
    return 0;
}

static bool listens_tls(const struct listeners *l) {
    for (uint32_t i = 0; i < l->n; i++)
        if (l->sockets[i].tls && !l->sockets[i].unwanted)
            return true;
    return false;
}

int listeners_open(struct listeners *l, struct err *err) {
    bool managed = listeners_managed(l, false);

    if (managed)
        snprintf(l->url, sizeof(l->url), "inherited sockets");
    for (char *const *a = l->config->listen; !managed && *a; a++)
        TRY(listen_on(l, *a, err));
    if (*l->config->tls_certificate && !listens_tls(l))
        return err_set(
            err, 0, "tls-certificate",
            "tls-certificate: listen has no tls: address, and no inherited socket is named tls");
    return listeners_open_admin(l, err);
}

/* Returns the name under which the next daemon gets @s; an address shows whether there is TLS. */
static const char *listeners_name(const struct front_socket *s) {
    if (s->admin)
        return "admin";
    return s->tls && !s->address ? "tls" : "http";
}

int listeners_pass(const struct listeners *l, struct upgrade_files *f) {
    for (uint32_t i = 0; i < l->n; i++) {
        const struct front_socket *s = &l->sockets[i];

        if (!s->unwanted)
            TRY(upgrade_add(f, s->fd, listeners_name(s), s->address));
    }
    return 0;
}

void listeners_hand_over(struct listeners *l) {
    api_own_paths(l->api, false);
    admin_hand_over(l->admin);
}

void listeners_own_paths(struct listeners *l) {
    if (!listeners_managed(l, false))
        api_own_paths(l->api, true);
    if (!listeners_managed(l, true))
        admin_own_paths(l->admin);
    for (uint32_t i = 0; i < l->n; i++)
        if (l->sockets[i].unwanted)
            drop_socket(&l->sockets[i]);
}
