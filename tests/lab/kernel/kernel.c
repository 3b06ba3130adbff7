/* A kernel's clocks and log for one process, by LD_PRELOAD: see tests/lab/kernel/__init__.py.

   FAIRLEAD_SIM_CLOCKS names a file of two int64: nanoseconds to add to CLOCK_REALTIME (and its coarse kind) and to
   CLOCK_BOOTTIME. CLOCK_MONOTONIC is the machine's: a suspended machine's does not go on, nor does it here.

   FAIRLEAD_SIM_KMSG names a FIFO. Opened, it is a character device that reads as Documentation/ABI/testing/dev-kmsg says of
   /dev/kmsg: one record a read, EAGAIN at the end, EPIPE once when the next record has been overwritten, and then the oldest
   there is. The records lie in a ring in FIFO.ring: two uint64 (oldest, next), then SLOTS slots of SLOT_BYTES. A byte in the
   FIFO says that there is news. */

/* FAIRLEAD_SIM_KILL names a file of one int64: so many calls that change what is on a disk are still made (write to a file,
   pwrite, ftruncate, fsync, fdatasync, rename, unlink), and before the next one the process is killed. Negative: none is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 1024
#define SLOT_BYTES 512

struct clocks { volatile int64_t realtime, boottime; };
struct ring { volatile uint64_t oldest, next; char slot[SLOTS][SLOT_BYTES]; };

static struct clocks *clocks;
static volatile int64_t *left; /* writes that are still done: the process is killed before the next one */
static struct ring *ring;
static const char *kmsg;
static int kmsg_fd = -1;
static uint64_t position;

static void *mapped(const char *path, size_t size, int write)
{
	int fd = syscall(SYS_openat, AT_FDCWD, path, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	void *at = mmap(NULL, size, PROT_READ | (write ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
	close(fd);
	return at == MAP_FAILED ? NULL : at;
}

__attribute__((constructor)) static void start(void)
{
	const char *path = getenv("FAIRLEAD_SIM_CLOCKS");
	if (path)
		clocks = mapped(path, sizeof *clocks, 0);
	path = getenv("FAIRLEAD_SIM_KILL");
	if (path)
		left = mapped(path, sizeof *left, 1);
	kmsg = getenv("FAIRLEAD_SIM_KMSG");
	if (kmsg) {
		char name[4096];
		snprintf(name, sizeof name, "%s.ring", kmsg);
		ring = mapped(name, sizeof *ring, 0);
	}
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	long rc = syscall(SYS_clock_gettime, id, ts);
	int64_t add = 0;
	if (rc == 0 && clocks) {
		if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)
			add = clocks->realtime;
		else if (id == CLOCK_BOOTTIME)
			add = clocks->boottime;
		int64_t ns = ts->tv_sec * 1000000000LL + ts->tv_nsec + add;
		ts->tv_sec = ns / 1000000000LL;
		ts->tv_nsec = ns % 1000000000LL;
	}
	return rc;
}

static int opened(const char *path, int flags, mode_t mode)
{
	int ours = ring && strcmp(path, kmsg) == 0;
	if (ours)
		flags = (flags & ~O_ACCMODE) | O_RDWR; /* a FIFO with a writer never ends */
	int fd = syscall(SYS_openat, AT_FDCWD, path, flags, mode);
	if (ours && fd >= 0) {
		kmsg_fd = fd;
		position = ring->oldest;
	}
	return fd;
}

int open(const char *path, int flags, ...)
{
	va_list more;
	va_start(more, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
	va_end(more);
	return opened(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	va_list more;
	va_start(more, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
	va_end(more);
	return opened(path, flags, mode);
}

static int as_device(int rc, int fd, const char *path, struct stat *st)
{
	if (rc == 0 && ring && (path ? strcmp(path, kmsg) == 0 : fd == kmsg_fd))
		st->st_mode = (st->st_mode & ~S_IFMT) | S_IFCHR;
	return rc;
}

int stat(const char *path, struct stat *st) { return as_device(fstatat(AT_FDCWD, path, st, 0), -1, path, st); }
int stat64(const char *path, struct stat64 *st) { return stat(path, (struct stat *)st); }
int fstat(int fd, struct stat *st) { return as_device(fstatat(fd, "", st, AT_EMPTY_PATH), fd, NULL, st); }
int fstat64(int fd, struct stat64 *st) { return fstat(fd, (struct stat *)st); }

ssize_t read(int fd, void *to, size_t size)
{
	if (fd != kmsg_fd || !ring)
		return syscall(SYS_read, fd, to, size);
	char news[4096];
	if (position >= ring->next) {
		while (syscall(SYS_read, fd, news, sizeof news) > 0)
			;
		if (position >= ring->next) {
			errno = EAGAIN;
			return -1;
		}
	}
	if (position < ring->oldest) {
		position = ring->oldest;
		errno = EPIPE;
		return -1;
	}
	char record[SLOT_BYTES];
	memcpy(record, ring->slot[position % SLOTS], SLOT_BYTES);
	__sync_synchronize();
	if (position < ring->oldest) { /* overwritten while it was copied */
		position = ring->oldest;
		errno = EPIPE;
		return -1;
	}
	size_t length = strnlen(record, SLOT_BYTES);
	if (length > size) {
		errno = EINVAL;
		return -1;
	}
	memcpy(to, record, length);
	position++;
	return length;
}

int close(int fd)
{
	if (fd == kmsg_fd)
		kmsg_fd = -1;
	return syscall(SYS_close, fd);
}

static void step(void)
{
	if (!left || *left < 0)
		return;
	if (__sync_fetch_and_sub(left, 1) <= 0) {
		kill(getpid(), SIGKILL);
		pause();
	}
}

ssize_t write(int fd, const void *from, size_t size)
{
	struct stat st;
	if (left && *left >= 0 && fstatat(fd, "", &st, AT_EMPTY_PATH) == 0 && S_ISREG(st.st_mode) && fd > 2)
		step();
	return syscall(SYS_write, fd, from, size);
}

ssize_t pwrite(int fd, const void *from, size_t size, off_t at)
{
	step();
	return syscall(SYS_pwrite64, fd, from, size, at);
}

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at) { return pwrite(fd, from, size, at); }

int ftruncate(int fd, off_t size)
{
	step();
	return syscall(SYS_ftruncate, fd, size);
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int fsync(int fd)
{
	step();
	return syscall(SYS_fsync, fd);
}

int fdatasync(int fd)
{
	step();
	return syscall(SYS_fdatasync, fd);
}

int rename(const char *from, const char *to)
{
	step();
	return syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path)
{
	step();
	return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
