/* Preloaded into a process: a record of everything it does to the files of one folder, in order.
 *
 * POWERCUT_FOLDER names the folder, POWERCUT_LOG the file that takes the records. What is written to a file named
 * "acks" beside the log is recorded as a mark. A record is a `struct record`, then a name, then bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 'o', WRITE = 'w', SIZE = 't', GROW = 'g', SYNC = 's', RENAME = 'r', UNLINK = 'u', MARK = 'm' };
enum { MOST_FILES = 4096, LONGEST = 512 };

struct record {
    uint32_t what, name_nbytes;
    uint64_t file, offset, nbytes; /* file: its inode; 0 for the folder */
};

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static int to = -1;
static uint64_t files[MOST_FILES]; /* by descriptor: inode, or 0 */
static char is_folder[MOST_FILES], is_acks[MOST_FILES];

static void put(const void *data, size_t n) {
    while (n > 0) {
        long done = syscall(SYS_write, to, data, n);
        if (done <= 0) abort();
        data = (const char *)data + done;
        n -= (size_t)done;
    }
}

static void record(int what, uint64_t file, uint64_t offset, const char *name, const struct iovec *parts, int n,
                   uint64_t nbytes) {
    struct record head = {(uint32_t)what, (uint32_t)strlen(name), file, offset, nbytes};
    put(&head, sizeof head);
    put(name, head.name_nbytes);
    for (int i = 0; i < n && nbytes > 0; i++) {
        size_t some = parts[i].iov_len < nbytes ? parts[i].iov_len : nbytes;
        put(parts[i].iov_base, some);
        nbytes -= some;
    }
}

__attribute__((constructor)) static void begin(void) {
    const char *log = getenv("POWERCUT_LOG");
    folder = getenv("POWERCUT_FOLDER");
    if (folder && log) to = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* The name of a path in the folder; "" for the folder itself; NULL elsewhere. */
static const char *inside(const char *path) {
    size_t n;
    if (to < 0 || !path) return NULL;
    n = strlen(folder);
    if (strncmp(path, folder, n) != 0) return NULL;
    return path[n] == 0 ? path + n : path[n] == '/' ? path + n + 1 : NULL;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define LOCKED(body)                                                                                                   \
    do {                                                                                                               \
        int kept = errno;                                                                                              \
        pthread_mutex_lock(&one_at_a_time);                                                                            \
        body;                                                                                                          \
        pthread_mutex_unlock(&one_at_a_time);                                                                          \
        errno = kept;                                                                                                  \
    } while (0)

static int opened(int fd, const char *path) {
    const char *name = inside(path);
    struct stat found;
    if (fd < 0 || fd >= MOST_FILES || to < 0) return fd;
    files[fd] = 0;
    is_folder[fd] = 0;
    is_acks[fd] = path && strlen(path) > 5 && strcmp(path + strlen(path) - 5, "/acks") == 0;
    if (!name || fstat(fd, &found) != 0) return fd;
    if (*name == 0) is_folder[fd] = 1;
    else LOCKED(files[fd] = found.st_ino; record(OPEN, found.st_ino, (uint64_t)found.st_size, name, NULL, 0, 0));
    return fd;
}

static mode_t mode_of(int flags, va_list more) { return flags & (O_CREAT | O_TMPFILE) ? (mode_t)va_arg(more, int) : 0; }

#define OPENER(name)                                                                                                   \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = mode_of(flags, more);                                                                            \
        va_end(more);                                                                                                  \
        return opened(REAL(name)(path, flags, mode), path);                                                            \
    }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name)                                                                                                \
    int name(int at, const char *path, int flags, ...) {                                                               \
        va_list more;                                                                                                  \
        va_start(more, flags);                                                                                         \
        mode_t mode = mode_of(flags, more);                                                                            \
        va_end(more);                                                                                                  \
        return opened(REAL(name)(at, path, flags, mode), path);                                                        \
    }
OPENER_AT(openat)
OPENER_AT(openat64)

int close(int fd) {
    if (fd >= 0 && fd < MOST_FILES) files[fd] = is_folder[fd] = is_acks[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

static ssize_t wrote(int fd, int64_t offset, const struct iovec *parts, int n, ssize_t done) {
    if (done <= 0 || fd < 0 || fd >= MOST_FILES) return done;
    if (files[fd]) LOCKED(record(WRITE, files[fd], (uint64_t)offset, "", parts, n, (uint64_t)done));
    if (is_acks[fd]) LOCKED(record(MARK, 0, 0, "", parts, n, (uint64_t)done));
    return done;
}

ssize_t write(int fd, const void *data, size_t n) {
    struct iovec part = {(void *)data, n};
    int64_t at = fd >= 0 && fd < MOST_FILES && files[fd] ? lseek(fd, 0, SEEK_CUR) : 0;
    return wrote(fd, at, &part, 1, REAL(write)(fd, data, n));
}

#define WRITER(name)                                                                                                   \
    ssize_t name(int fd, const void *data, size_t n, off_t offset) {                                                   \
        struct iovec part = {(void *)data, n};                                                                         \
        return wrote(fd, offset, &part, 1, REAL(name)(fd, data, n, offset));                                           \
    }
WRITER(pwrite)
WRITER(pwrite64)

#define GATHERER(name)                                                                                                 \
    ssize_t name(int fd, const struct iovec *parts, int n, off_t offset) {                                             \
        return wrote(fd, offset, parts, n, REAL(name)(fd, parts, n, offset));                                          \
    }
GATHERER(pwritev)
GATHERER(pwritev64)

static int sized(int fd, int what, uint64_t size, int failed) {
    if (!failed && fd >= 0 && fd < MOST_FILES && files[fd]) LOCKED(record(what, files[fd], size, "", NULL, 0, 0));
    return failed;
}

#define CUTTER(name)                                                                                                   \
    int name(int fd, off_t size) { return sized(fd, SIZE, (uint64_t)size, REAL(name)(fd, size)); }
CUTTER(ftruncate)
CUTTER(ftruncate64)

#define GROWER(name)                                                                                                   \
    int name(int fd, off_t offset, off_t n) {                                                                          \
        return sized(fd, GROW, (uint64_t)(offset + n), REAL(name)(fd, offset, n));                                     \
    }
GROWER(posix_fallocate)
GROWER(posix_fallocate64)

#define SYNCER(name)                                                                                                   \
    int name(int fd) {                                                                                                 \
        int failed = REAL(name)(fd);                                                                                   \
        if (!failed && fd >= 0 && fd < MOST_FILES && (files[fd] || is_folder[fd]))                                     \
            LOCKED(record(SYNC, is_folder[fd] ? 0 : files[fd], 0, "", NULL, 0, 0));                                    \
        return failed;                                                                                                 \
    }
SYNCER(fsync)
SYNCER(fdatasync)

int rename(const char *before, const char *after) {
    int failed = REAL(rename)(before, after);
    const char *from = inside(before), *into = inside(after);
    if (!failed && from && into) {
        char both[LONGEST];
        snprintf(both, sizeof both, "%s/%s", from, into);
        LOCKED(record(RENAME, 0, 0, both, NULL, 0, 0));
    }
    return failed;
}

int unlink(const char *path) {
    int failed = REAL(unlink)(path);
    const char *name = inside(path);
    if (!failed && name) LOCKED(record(UNLINK, 0, 0, name, NULL, 0, 0));
    return failed;
}
