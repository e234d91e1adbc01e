#include "daemon/front/check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "api/http/tls.h"
#include "base/files.h"
#include "base/printable.h"
#include "base/try.h"
#include "daemon/front/audit.h"
#include "daemon/front/process.h"
#include "daemon/front/service.h"
#include "daemon/models/kv_events.h"
#include "daemon/models/models_find.h"
#include "engine/engine.h"

/* Checks that the folder in option @key can be read, and with @writes written; a start creates such
 * a folder. *@at_fs: a folder of the same file system that exists. */
static int check_folder(const char *key, const char *path, bool writes, char at_fs[PATH_MAX],
                        struct err *err) {
    int mode = writes ? R_OK | W_OK | X_OK : R_OK | X_OK;
    struct stat st;

    snprintf(at_fs, PATH_MAX, "%s", path);
    int r = stat(at_fs, &st);
    if (r < 0 && errno == ENOENT && writes) {
        const char *parent = dirname(at_fs);
        memmove(at_fs, parent, strlen(parent) + 1);
        r = stat(at_fs, &st);
    }
    if (r == 0 && !S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        r = -1;
    }
    if (r == 0 && access(at_fs, mode) == 0)
        return 0;
    return err_set(err, 0, key, "%s: %s: cannot be used: %s", key, at_fs, strerror(errno));
}

static int check_disk(const struct config *c, struct err *err) {
    char at[PATH_MAX], file[PATH_MAX + 16];
    struct statvfs fs;
    struct stat st;
    uint64_t has = 0;

    TRY(check_folder("kv-disk", c->kv_disk, true, at, err));
    snprintf(file, sizeof(file), "%s/prefixes.kv", c->kv_disk);
    if (stat(file, &st) == 0)
        has = (uint64_t)st.st_blocks * 512;
    if (statvfs(at, &fs) < 0)
        return 0;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize + has;
    if (room < c->sched.disk.n_bytes)
        fprintf(stderr,
                "weftd: kv-disk: %s has room for %llu MiB, less than kv-disk-size, %llu MiB\n", at,
                (unsigned long long)(room >> 20),
                (unsigned long long)(c->sched.disk.n_bytes >> 20));
    return 0;
}

/* Tells that the socket at @path, of option @key, cannot be bound now. That is no error: the folder
 * may appear with the service, and a service gets its sockets from systemd. */
static void check_socket_path(const char *key, const char *path) {
    struct err err = {0};

    if (service_check_path(key, path, &err) < 0)
        fprintf(stderr, "weftd: %s\n", printable(err.message).s);
}

/* Tells that the file of `state-file` cannot be written: a start serves without it. */
static void check_state_file(const char *path) {
    char folder[PATH_MAX];
    int why = 0;

    snprintf(folder, sizeof(folder), "%s", path);
    if (access(dirname(folder), W_OK | X_OK) < 0)
        why = errno;
    if (files_is_folder(path))
        why = EISDIR;
    if (why)
        fprintf(stderr, "weftd: state-file: %s: %s; nothing would be kept over a restart\n",
                printable(path).s, strerror(why));
}

/* Checks that weft-cuda.so can be used if the options ask for it; devices are not looked at. */
static int check_cuda(const struct config *c, struct err *err) {
    char found[500];

    if (strcmp(c->engine.backend, "cuda") != 0)
        return 0;
    engine_describe_cuda(found, sizeof(found));
    if (!*found)
        return err_set(err, 0, "backend", "backend: cuda: weft-cuda.so is not installed");
    if (strstr(found, "(not used: "))
        return err_set(err, 0, "backend", "backend: %.300s", found);
    return 0;
}

/* Tells that an address of `listen` cannot be bound now: the running daemon may have it. */
static void check_port(const char *address) {
    const char *at = config_without_tls(address), *colon = strrchr(at, ':');
    struct sockaddr_storage sa = {0};
    struct sockaddr_in *v4 = (void *)&sa;
    struct sockaddr_in6 *v6 = (void *)&sa;
    char host[64]; /* room for each address, whose zone may be cut off */
    int yes = 1;

    if (strncmp(address, "unix:", 5) == 0) {
        check_socket_path("listen", address + 5);
        return;
    }
    if (!colon)
        return;
    uint16_t port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    snprintf(host, sizeof(host), "%.*s", (int)(colon - at), at);
    if (strcmp(host, "localhost") == 0)
        snprintf(host, sizeof(host), "127.0.0.1");
    if (strcmp(host, "*") == 0)
        snprintf(host, sizeof(host), "0.0.0.0");
    host[strcspn(host, "]%")] = 0;
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = port;
    } else if (*host == '[' && inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = port;
    } else {
        return;
    }
    int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
        fprintf(stderr, "weftd: listen: %s cannot be used now: %s (ss -ltnp shows who uses it)\n",
                address, strerror(errno));
    close(fd);
}

int check_start(const struct config *c, struct err *err) {
    CLEANUP(buf_deinit) struct buf memory = {.max = 4096};
    char at[PATH_MAX];
    struct tls_config tls;

    if (*c->models)
        TRY(check_folder("models", c->models, false, at, err));
    if (*c->models_dir && strcmp(c->models_dir, "auto") != 0)
        TRY(check_folder("models-dir", c->models_dir, false, at, err));
    TRY(check_cuda(c, err));
    TRY(models_check(c, &memory, err));
    TRY(process_name_key(api_check_keys(c->api_keys, err), "api-keys", err));
    if (*c->kv_disk)
        TRY(check_disk(c, err));
    if (*c->fault_dir)
        TRY(check_folder("fault-dir", c->fault_dir, true, at, err));
    if (*c->kv_events)
        TRY(kv_events_check(c->kv_events, c->kv_events_replay, err));
    audit_key_file(c->api_keys);
    if (*c->tls_certificate) {
        TRY(tls_config_init(&tls, c->tls_certificate, c->tls_key, err));
        tls_config_deinit(&tls);
    }
    for (char *const *l = c->listen; *l; l++)
        check_port(*l);
    if (*c->admin_socket && strcmp(c->admin_socket, "auto") != 0)
        check_socket_path("admin-socket", c->admin_socket);
    if (*c->state_file)
        check_state_file(c->state_file);
    if (memory.len)
        fputs(memory.data, stdout);
    printf("configuration is valid\n");
    return 0;
}
