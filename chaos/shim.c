/* Preloaded into a gate: the disk and the clock that a chaos run gives it.
 *
 * It writes down what was really made durable, one line per event, appended to $CHAOS_SYNCED, so that
 * the rest can be thrown away after kill -9, as a power cut would:
 *   C path        a file was created
 *   T path        a file was cut to nothing
 *   S size path   a file was synced when it had this size
 *   D path        a folder was synced: the names in it are durable
 *   L from to     a file got a second name
 *   R from to     a file or folder was renamed
 * Files are only ever appended to, or begun anew, by what we test, so a size says it all. With $CHAOS_REPLACED, a
 * folder on the same disk, the file whose place a renamed one takes is kept there, and its path is a third word of that
 * line: until the folder is synced, a power cut may bring the old names back.
 *
 * And it does what the file $CHAOS_CONTROL asks for, which both sides map into memory: see `control`.
 * With $CHAOS_KILL_AT=N the process is killed at the N-th step that changes the disk, before it is done.
 * With $CHAOS_HOLDS_ONE only the first thread that asks for that file learns that it exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The driver knows these by their places (control.py). */
struct control {
    _Atomic int64_t wall_offset_ms; /* added to the wall clock */
    _Atomic int64_t wall_reads;     /* how often it was read with an offset */
    _Atomic int64_t fail_syncs;     /* so many syncs of a log fail with EIO */
    _Atomic int64_t failed_syncs;   /* so many have */
    _Atomic int64_t hold_sync;      /* while 1, syncs of a log wait before they are done */
    _Atomic int64_t held_syncs;     /* so many have waited */
};

static struct control *control(void) {
    static struct control none, *_Atomic found;
    struct control *known = found;
    if (known) return known;
    const char *path = getenv("CHAOS_CONTROL");
    int fd = path ? NEXT(open)(path, O_RDWR | O_CLOEXEC) : -1;
    void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    found = mapped == MAP_FAILED ? &none : mapped;
    return found;
}

/* A step that changes the disk is about to be done. */
static void step(void) {
    static _Atomic int64_t steps, kill_at = -1;
    if (kill_at < 0) {
        const char *asked = getenv("CHAOS_KILL_AT");
        kill_at = asked ? atoll(asked) : 0;
    }
    if (kill_at > 0 && ++steps == kill_at) kill(getpid(), SIGKILL);
}

static int is_stepped(void) {
    static _Atomic int asked = -1;
    if (asked < 0) asked = getenv("CHAOS_KILL_AT") != NULL;
    return asked;
}

static void note(const char *line) {
    static _Atomic int log_fd = -1;
    if (log_fd < 0) {
        const char *path = getenv("CHAOS_SYNCED");
        if (!path) return;
        log_fd = NEXT(open)(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    if (NEXT(write)(log_fd, line, strlen(line)) < 0) abort();
}

static int path_of(int fd, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int is_log(const char *path) {
    size_t length = strlen(path);
    return length > 4 && strcmp(path + length - 4, ".log") == 0;
}

static void note_synced(const char *path, const struct stat *before) {
    char line[4096];
    if (S_ISDIR(before->st_mode))
        snprintf(line, sizeof line, "D %s\n", path);
    else
        snprintf(line, sizeof line, "S %lld %s\n", (long long)before->st_size, path);
    note(line);
}

static void note_opened(int fd, int flags) {
    char path[2048], line[4352];
    if (fd < 0 || !(flags & (O_CREAT | O_TRUNC)) || !path_of(fd, path, sizeof path)) return;
    if (flags & O_CREAT) {
        snprintf(line, sizeof line, "C %s\n", path);
        note(line);
    }
    if (flags & O_TRUNC) {
        snprintf(line, sizeof line, "T %s\n", path);
        note(line);
    }
}

/* Bytes of a file are about to be written. RocksDB's diary and what a process says do not count. */
static void step_write(int fd) {
    char path[2048];
    struct stat found;
    if (!is_stepped() || fd <= STDERR_FILENO || fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return;
    if (!path_of(fd, path, sizeof path)) return;
    const char *name = strrchr(path, '/');
    if (name && strncmp(name + 1, "LOG", 3) == 0) return;
    step();
}

/* Waits while it is asked to. Says whether the sync shall fail. */
static int meddle(const char *path) {
    struct control *asked = control();
    if (!is_log(path)) return 0;
    if (asked->hold_sync) {
        asked->held_syncs++;
        while (asked->hold_sync) usleep(500);
    }
    int64_t left = asked->fail_syncs;
    while (left > 0)
        if (atomic_compare_exchange_weak(&asked->fail_syncs, &left, left - 1)) {
            asked->failed_syncs++;
            return 1;
        }
    return 0;
}

/* The size that counts is the one before the sync began: what is written meanwhile is not covered. */
static int sync_and_note(int fd, int (*sync)(int)) {
    char path[2048];
    struct stat before;
    step();
    if (fstat(fd, &before) != 0 || !path_of(fd, path, sizeof path)) return sync(fd);
    if (meddle(path)) {
        errno = EIO;
        return -1;
    }
    int done = sync(fd);
    if (done == 0) note_synced(path, &before);
    return done;
}

int fsync(int fd) { return sync_and_note(fd, NEXT(fsync)); }
int fdatasync(int fd) { return sync_and_note(fd, NEXT(fdatasync)); }

ssize_t write(int fd, const void *bytes, size_t count) {
    static ssize_t (*_Atomic next)(int, const void *, size_t);
    if (!next) next = NEXT(write);
    step_write(fd);
    return next(fd, bytes, count);
}

#define PWRITE(name, offset)                                          \
    ssize_t name(int fd, const void *bytes, size_t count, offset at) { \
        step_write(fd);                                               \
        return NEXT(name)(fd, bytes, count, at);                      \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

/* Keeps the file whose name is about to be another's. */
static void keep_replaced(const char *path, char *kept, size_t size) {
    static _Atomic int64_t count;
    const char *folder = getenv("CHAOS_REPLACED");
    kept[0] = 0;
    if (!folder) return;
    snprintf(kept, size, "%s/%d-%lld", folder, getpid(), (long long)++count);
    if (NEXT(link)(path, kept) != 0) kept[0] = 0;
}

int rename(const char *from, const char *to) {
    char line[6400], kept[2048];
    step();
    keep_replaced(to, kept, sizeof kept);
    int done = NEXT(rename)(from, to);
    if (done == 0) {
        snprintf(line, sizeof line, "R %s\t%s%s%s\n", from, to, kept[0] ? "\t" : "", kept);
        note(line);
    }
    return done;
}

int mkdir(const char *path, mode_t mode) {
    step();
    return NEXT(mkdir)(path, mode);
}

int link(const char *from, const char *to) {
    char line[4352];
    step();
    int done = NEXT(link)(from, to);
    if (done == 0) {
        snprintf(line, sizeof line, "L %s\t%s\n", from, to);
        note(line);
    }
    return done;
}

int unlink(const char *path) {
    step();
    return NEXT(unlink)(path);
}

int rmdir(const char *path) {
    step();
    return NEXT(rmdir)(path);
}

int unlinkat(int dir, const char *path, int flags) {
    step();
    return NEXT(unlinkat)(dir, path, flags);
}

int chmod(const char *path, mode_t mode) {
    step();
    return NEXT(chmod)(path, mode);
}

#define OPEN(name)                                               \
    int name(const char *path, int flags, ...) {                 \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode_t mode = (flags & O_CREAT) ? va_arg(rest, int) : 0; \
        va_end(rest);                                            \
        if (flags & (O_CREAT | O_TRUNC)) step();                 \
        int fd = NEXT(name)(path, flags, mode);                  \
        note_opened(fd, flags);                                  \
        return fd;                                               \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                             \
    int name(int dir, const char *path, int flags, ...) {        \
        va_list rest;                                            \
        va_start(rest, flags);                                   \
        mode_t mode = (flags & O_CREAT) ? va_arg(rest, int) : 0; \
        va_end(rest);                                            \
        if (flags & (O_CREAT | O_TRUNC)) step();                 \
        int fd = NEXT(name)(dir, path, flags, mode);             \
        note_opened(fd, flags);                                  \
        return fd;                                               \
    }
OPENAT(openat)
OPENAT(openat64)

/* The machine's own clock is left alone: only this process reads another wall time. */
int clock_gettime(clockid_t id, struct timespec *time) {
    static int (*_Atomic next)(clockid_t, struct timespec *);
    if (!next) next = NEXT(clock_gettime);
    int done = next(id, time);
    int64_t offset = control()->wall_offset_ms;
    if (done == 0 && id == CLOCK_REALTIME && offset != 0) {
        control()->wall_reads++;
        int64_t nanos = time->tv_nsec + (offset % 1000) * 1000000;
        time->tv_sec += offset / 1000 + (nanos >= 1000000000) - (nanos < 0);
        time->tv_nsec = nanos + (nanos < 0 ? 1000000000 : 0) - (nanos >= 1000000000 ? 1000000000 : 0);
    }
    return done;
}

int statx(int dir, const char *restrict path, int flags, unsigned mask, struct statx *restrict found) {
    static _Atomic pid_t first;
    const char *held = getenv("CHAOS_HOLDS_ONE");
    int done = NEXT(statx)(dir, path, flags, mask, found);
    if (done == 0 && held && strcmp(path, held) == 0) {
        pid_t none = 0, me = gettid();
        if (!atomic_compare_exchange_strong(&first, &none, me) && none != me) {
            errno = ENOENT;
            return -1;
        }
    }
    return done;
}
