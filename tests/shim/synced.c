/* Preloaded into a gate: writes down what has really been made durable, so that the test can throw
 * the rest away after kill -9, as a power cut would. One line per event, appended to $SYNCED_LOG:
 *   C path        a file was created
 *   S size path   a file was synced when it had this size
 *   D path        a folder was synced: the names in it are durable
 *   R from to     a file was renamed (taken as durable at once)
 * Files are only ever appended to by what we test, so a size says it all. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void note(const char *line) {
    static int log_fd = -1;
    if (log_fd < 0) {
        const char *path = getenv("SYNCED_LOG");
        if (!path) return;
        log_fd = NEXT(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    if (write(log_fd, line, strlen(line)) < 0) abort();
}

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static void note_synced(int fd, const struct stat *before) {
    char path[2048], line[4096];
    if (!path_of(fd, path, sizeof path)) return;
    if (S_ISDIR(before->st_mode))
        snprintf(line, sizeof line, "D %s\n", path);
    else
        snprintf(line, sizeof line, "S %lld %s\n", (long long)before->st_size, path);
    note(line);
}

static void note_created(int fd, int flags) {
    char path[2048], line[4096];
    if (fd < 0 || !(flags & O_CREAT) || !path_of(fd, path, sizeof path)) return;
    snprintf(line, sizeof line, "C %s\n", path);
    note(line);
}

/* The size that counts is the one before the sync began: what is written meanwhile is not covered. */
#define SYNC(name)                                              \
    int name(int fd) {                                          \
        struct stat before;                                     \
        int known = fstat(fd, &before) == 0;                    \
        int done = NEXT(name)(fd);                              \
        if (done == 0 && known) note_synced(fd, &before);       \
        return done;                                            \
    }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
    char line[4352];
    int done = NEXT(rename)(from, to);
    if (done == 0) {
        snprintf(line, sizeof line, "R %s\t%s\n", from, to);
        note(line);
    }
    return done;
}

#define OPEN(name)                                              \
    int name(const char *path, int flags, ...) {                \
        va_list rest;                                           \
        va_start(rest, flags);                                  \
        mode_t mode = (flags & O_CREAT) ? va_arg(rest, int) : 0; \
        va_end(rest);                                           \
        int fd = NEXT(name)(path, flags, mode);                 \
        note_created(fd, flags);                                \
        return fd;                                              \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                            \
    int name(int dir, const char *path, int flags, ...) {       \
        va_list rest;                                           \
        va_start(rest, flags);                                  \
        mode_t mode = (flags & O_CREAT) ? va_arg(rest, int) : 0; \
        va_end(rest);                                           \
        int fd = NEXT(name)(dir, path, flags, mode);            \
        note_created(fd, flags);                                \
        return fd;                                              \
    }
OPENAT(openat)
OPENAT(openat64)
