/* Let a process believe that the machine has FAKEAFF_NCPU CPUs.
 *
 * sched_setaffinity() and sched_getaffinity() are answered from files: FAKEAFF_DIR/<pid> holds the raw mask of
 * one process. A process without a file has the mask of its nearest ancestor that has one, as fork() would have
 * given it, and every CPU when there is none. Loaded by LD_PRELOAD; with hwloc's HWLOC_SYNTHETIC beside it,
 * slurmd lays out and binds tasks as on the real machine of that shape. /proc/PID/status and programs without
 * a dynamic libc keep seeing the true CPUs.
 *
 * No scanf or strtol: built on a newer libc they would ask the older one in a lab root for symbols it lacks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { MASK_BYTES = 128, PATH_BYTES = 256, DEPTH = 64 };

static long number(const char *text) {
    long value = 0;
    while (*text >= '0' && *text <= '9') value = value * 10 + (*text++ - '0');
    return value;
}

static long cpu_count(void) {
    const char *text = getenv("FAKEAFF_NCPU");
    long count = text ? number(text) : 0;
    return count > 0 && count <= MASK_BYTES * 8 ? count : 112;
}

/* head + decimal pid + tail into out; 0 when it does not fit. */
static int compose(char *out, const char *head, pid_t pid, const char *tail) {
    char digits[16];
    size_t n = 0, at = strlen(head);
    if (at + sizeof digits + strlen(tail) + 1 > PATH_BYTES) return 0;
    do digits[n++] = (char)('0' + pid % 10);
    while ((pid /= 10) > 0);
    memcpy(out, head, at);
    while (n > 0) out[at++] = digits[--n];
    strcpy(out + at, tail);
    return 1;
}

static int mask_path(char *out, pid_t pid) {
    const char *folder = getenv("FAKEAFF_DIR");
    char head[PATH_BYTES - 32];
    if (!folder) folder = "/run/fakeaff";
    if (strlen(folder) + 2 > sizeof head) return 0;
    strcpy(head, folder);
    strcat(head, "/");
    return compose(out, head, pid, "");
}

static ssize_t read_file(const char *path, void *into, size_t size) {
    int saved = errno, fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, into, size);
    if (fd >= 0) close(fd);
    errno = saved;
    return got;
}

static pid_t parent_of(pid_t pid) {
    char path[PATH_BYTES], stat[1024], *end;
    ssize_t got;
    if (!compose(path, "/proc/", pid, "/stat")) return 0;
    got = read_file(path, stat, sizeof stat - 1);
    if (got <= 0) return 0;
    stat[got] = 0;
    end = strrchr(stat, ')'); /* the name in parentheses may hold anything */
    return end && strlen(end) > 4 ? (pid_t)number(end + 4) : 0;
}

int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *mask) {
    long count = cpu_count();
    char path[PATH_BYTES];
    pid_t at = pid ? pid : getpid();
    if (size * 8 < (size_t)count) { /* as the kernel does; callers then ask again with more room */
        errno = EINVAL;
        return -1;
    }
    memset(mask, 0, size);
    for (int depth = 0; depth < DEPTH && at > 1; depth++, at = parent_of(at))
        if (mask_path(path, at) && read_file(path, mask, size < MASK_BYTES ? size : MASK_BYTES) > 0) return 0;
    for (long cpu = 0; cpu < count; cpu++) ((unsigned char *)mask)[cpu / 8] |= (unsigned char)(1u << (cpu % 8));
    return 0;
}

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *mask) {
    unsigned char wanted[MASK_BYTES] = {0};
    char path[PATH_BYTES];
    long count = cpu_count();
    int any = 0, fd;
    ssize_t put;
    memcpy(wanted, mask, size < MASK_BYTES ? size : MASK_BYTES);
    for (long cpu = 0; cpu < MASK_BYTES * 8; cpu++) {
        unsigned char bit = (unsigned char)(1u << (cpu % 8));
        if (cpu >= count) wanted[cpu / 8] &= (unsigned char)~bit;
        else if (wanted[cpu / 8] & bit) any = 1;
    }
    if (!any || !mask_path(path, pid ? pid : getpid())) {
        errno = EINVAL;
        return -1;
    }
    unlink(path); /* it may be root's, from before the task became the user's */
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    put = write(fd, wanted, sizeof wanted);
    fchmod(fd, 0666);
    close(fd);
    return put == (ssize_t)sizeof wanted ? 0 : -1;
}
