#include "base/control_group.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Returns the path of @line, "ID:CONTROLLER:PATH", or NULL if it has another controller. */
static const char *path_in_line(const char *line, const char *controller) {
    const char *name = strchr(line, ':');
    size_t n = strlen(controller);

    if (!name || strncmp(name + 1, controller, n) != 0 || name[1 + n] != ':')
        return NULL;
    return name + 2 + n;
}

bool control_group_path(const char *controller, char path[CONTROL_GROUP_PATH]) {
    char line[CONTROL_GROUP_PATH + 64];
    const char *found = NULL;
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f && !found && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        found = path_in_line(line, controller);
    }
    if (f)
        fclose(f);
    if (found)
        snprintf(path, CONTROL_GROUP_PATH, "%s", found);
    return found;
}

void control_group_each(const char *root, const char *path,
                        void (*fn)(const char *folder, void *ctx), void *ctx) {
    char folder[1024];
    size_t n_root = strlen(root);

    if ((size_t)snprintf(folder, sizeof(folder), "%s%s", root, path) >= sizeof(folder))
        return;
    for (;;) {
        fn(folder, ctx);
        char *slash = strrchr(folder + n_root, '/');
        if (!slash)
            return;
        *slash = 0;
    }
}

int control_group_read(const char *folder, const char *name, const char *format, ...) {
    char file[1200];
    va_list args;
    int n = 0;

    snprintf(file, sizeof(file), "%s/%s", folder, name);
    FILE *f = fopen(file, "re");
    if (!f)
        return 0;
    va_start(args, format);
    n = vfscanf(f, format, args);
    va_end(args);
    fclose(f);
    if (n < 0)
        return 0;
    return n;
}
