/*
 * ctl_socket - finds the admin socket of the daemon that runs. A service has its socket at a fixed
 * path; a daemon that was started by hand has one in a folder of its user, under its port. The file
 * of a daemon that was killed stays, so each candidate is tried.
 */

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/files.h"
#include "base/json_read.h"
#include "cmd/ctl.h"

#define FOUND_MAX 16
#define TRIED_MAX 256 /* files of a folder that are tried */

/* Paths of services and of containers. ./quickstart puts its socket beside its programs. */
static const char *const fixed_paths[] = {"/run/weft-admin.sock", "/run/weft/admin.sock",
                                          "./build/admin.sock"};

/* Sockets of daemons. A denied one exists, but this user may not use it. */
struct found {
    char path[FOUND_MAX][sizeof(((struct sockaddr_un *)0)->sun_path)];
    uint32_t n;
    char denied[sizeof(((struct sockaddr_un *)0)->sun_path)];
};

/* Returns 0 if a process listens at @path, else -errno. */
static int socket_try(const char *path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), r;

    if (fd < 0)
        return -errno;
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    r = connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -errno : 0;
    close(fd);
    if (r == -EAGAIN) /* its queue of connections is full */
        return 0;
    return r;
}

static void found_add(struct found *f, const char *path) {
    if (f->n == FOUND_MAX || strlen(path) >= sizeof(f->path[0]))
        return;
    switch (socket_try(path)) {
    case 0:
        strcpy(f->path[f->n++], path);
        break;
    case -EACCES:
        if (!f->denied[0])
            strcpy(f->denied, path);
        break;
    }
}

static void found_add_folder(struct found *f, const char *folder) {
    DIR *d = opendir(folder);
    const struct dirent *e;
    char path[PATH_MAX];

    for (int i = 0; d && i < TRIED_MAX && (e = readdir(d)) != NULL; i++) {
        size_t n = strlen(e->d_name);

        if (n > 5 && strcmp(e->d_name + n - 5, ".sock") == 0 &&
            (size_t)snprintf(path, sizeof(path), "%s/%s", folder, e->d_name) < sizeof(path))
            found_add(f, path);
    }
    if (d)
        closedir(d);
}

/* Adds "admin.sock" in the folder of this program, unless it is ./build. */
static void found_add_beside(struct found *f) {
    char path[PATH_MAX], here[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof("/admin.sock"));
    char *slash = NULL;

    if (n > 0) {
        path[n] = 0;
        slash = strrchr(path, '/');
    }
    if (!slash)
        return;
    strcpy(slash, "/admin.sock");
    if (!realpath("./build/admin.sock", here) || strcmp(here, path) != 0)
        found_add(f, path);
}

/* Adds the sockets of this user's daemons and of services to @f. */
static void found_all(struct found *f) {
    char folder[PATH_MAX];

    for (size_t i = 0; i < ARRAY_SIZE(fixed_paths); i++)
        found_add(f, fixed_paths[i]);
    found_add_beside(f);
    for (int place = 0; place < FILES_SOCKETS_N; place++)
        if (files_socket_folder(place, folder, sizeof(folder)))
            found_add_folder(f, folder);
}

/* Returns the port that the name of the socket @path is: 8080 for ".../8080.sock". 0: none. */
static unsigned socket_port(const char *path) {
    const char *name = strrchr(path, '/');
    unsigned port = 0;
    int end = 0;

    if (!name || sscanf(name, "/%5u.sock%n", &port, &end) != 1 || !end || name[end])
        return 0;
    return port;
}

static void socket_url(char out[static CTL_URL_MAX], unsigned port) {
    snprintf(out, CTL_URL_MAX, "http://127.0.0.1:%u", port);
}

/* Lists the daemons in @err, since the user must choose one by the options @how: their sockets, or
 * with @urls their addresses where they are known. Returns an exit code. */
static int found_list(const struct found *f, bool urls, const char *how, struct err *err) {
    char list[300] = "", url[CTL_URL_MAX];
    size_t n = 0;

    for (uint32_t i = 0; i < f->n && n < sizeof(list); i++) {
        const char *name = f->path[i];
        unsigned port = urls ? socket_port(name) : 0;

        if (port) {
            socket_url(url, port);
            name = url;
        }
        n += (size_t)snprintf(list + n, sizeof(list) - n, "%s%s", i ? ", " : "", name);
    }
    err_set(err, 0, NULL, "%u daemons run: choose one with %s: %s", f->n, how, list);
    return CTL_UNREACHABLE;
}

int ctl_socket(char *out, size_t size, struct err *err) {
    struct found f = {.n = 0};

    found_all(&f);
    if (f.n > 1)
        return found_list(&f, false, "--socket PATH or $WEFT_ADMIN", err);
    if (f.n == 0 && !f.denied[0]) {
        err_set(err, 0, NULL,
                "no daemon of this user runs (weftd --model FILE starts one; the socket of "
                "another one: --socket PATH or $WEFT_ADMIN)");
        return CTL_UNREACHABLE;
    }
    snprintf(out, size, "%s", f.n ? f.path[0] : f.denied);
    return CTL_OK;
}

/* Asks the daemon at the socket @path for its address. Returns false if it has none for HTTP, as a
 * service whose sockets systemd opens. */
static bool socket_ask_url(const char *path, char out[static CTL_URL_MAX]) {
    CLEANUP(ctl_freep) struct ctl *ctl = NULL;
    yyjson_doc *doc = NULL;
    struct err err = {0};

    if (ctl_new(&ctl, path) < 0 || ctl_get(ctl, "/health", &doc, &err) != CTL_OK)
        return false;
    const char *url = json_cstr(yyjson_obj_get(yyjson_doc_get_root(doc), "url"));
    bool known = url && strncmp(url, "http://", 7) == 0 && strlen(url) < CTL_URL_MAX;
    if (known)
        strcpy(out, url);
    yyjson_doc_free(doc);
    return known;
}

char *ctl_base_url(const char *given) {
    char *url = NULL;

    if (asprintf(&url, "%s%s", strstr(given, "://") ? "" : "http://", given) < 0)
        return NULL;
    size_t n = strlen(url);
    bool version = false;
    do {
        while (n > 0 && url[n - 1] == '/')
            n--;
        version = !version && n > 3 && memcmp(url + n - 3, "/v1", 3) == 0;
        n -= version ? 3 : 0;
    } while (version);
    url[n] = 0;
    return url;
}

int ctl_url(const char **out, char text[static CTL_URL_MAX], struct err *err) {
    const char *url = getenv("WEFT_URL"), *admin = getenv("WEFT_ADMIN");
    struct found f = {.n = 0};

    *out = text;
    if (url && *url) {
        *out = url;
        return CTL_OK;
    }
    if (!admin || !*admin) {
        found_all(&f);
        if (f.n > 1)
            return found_list(&f, true, "--url URL or $WEFT_URL", err);
        admin = f.n == 1 ? f.path[0] : "";
    }
    unsigned port = socket_port(admin);
    if (port || !*admin || !socket_ask_url(admin, text))
        socket_url(text, port ? port : 8080);
    return CTL_OK;
}
