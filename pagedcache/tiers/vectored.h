/* Reading and writing of several pieces at once, at a place in a file: preadv and pwritev of POSIX.
 * Windows has neither. There, whoever comes here is told so; caches in memory never do. */
#ifndef PAGEDCACHE_VECTORED_H
#define PAGEDCACHE_VECTORED_H

#ifndef _WIN32
#include <sys/uio.h>
#else
#include <errno.h>
#include <stdint.h>

struct iovec {
    void *iov_base;
    size_t iov_len;
};

static inline intptr_t refuse_vectored(void) {
    errno = ENOSYS;
    return -1;
}
#define preadv(fd, parts, count, offset) refuse_vectored()
#define pwritev(fd, parts, count, offset) refuse_vectored()
#endif

#endif
