/* A machine's clocks, for one process and what it starts: LD_PRELOAD this.
 *
 * SCORE_CLOCK="SPEED MONOTONIC BOOTTIME REALTIME AHEAD" (in nanoseconds; the first three of the moment from which it counts):
 * time passes SPEED times as fast, for those who ask (clock_gettime(2)) and for those who wait; the time of day is AHEAD. SCORE_CLOCK_STATE names a file
 * "STATE MAXERROR ESTERROR STEP": what adjtimex(2) answers (microseconds), and by how many seconds the clock was set on;
 * read anew at every call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define REAL(name) static typeof(&name) real; if (!real) real = (typeof(&name))dlsym(RTLD_NEXT, #name)

static double speed = 1;
static long long base_monotonic, base_boottime, base_realtime, ahead;
static const char *state_path;

__attribute__((constructor)) static void prepare(void) {
    const char *given = getenv("SCORE_CLOCK");
    state_path = getenv("SCORE_CLOCK_STATE");
    if (given && sscanf(given, "%lf %lld %lld %lld %lld", &speed, &base_monotonic, &base_boottime, &base_realtime, &ahead) != 5)
        speed = 1;
}

struct state { int code; long maximum, estimated; double step; };
static int read_state(struct state *s) {
    FILE *f = state_path ? fopen(state_path, "re") : NULL;
    if (!f) return 0;
    int all = fscanf(f, "%d %ld %ld %lf", &s->code, &s->maximum, &s->estimated, &s->step) == 4;
    fclose(f);
    return all;
}

static long long count(const struct timespec *t) { return t->tv_sec * SECOND + t->tv_nsec; }
static struct timespec spec(long long n) { return (struct timespec){n / SECOND, n % SECOND}; }
static struct timespec shorter(const struct timespec *t) { return spec((long long)(count(t) / speed)); }

static long long base_of(clockid_t id) {
    if (id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE) return base_monotonic;
    if (id == CLOCK_BOOTTIME) return base_boottime;
    return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE ? base_realtime : -1;
}
/* A moment of the node's time as one of the machine's. */
static struct timespec moment(clockid_t id, const struct timespec *t) {
    long long base = base_of(id);
    long long asked = count(t) - (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE ? ahead : 0);
    return base < 0 ? *t : spec(base + (long long)((asked - base) / speed));
}

int clock_gettime(clockid_t id, struct timespec *out) {
    struct state s;
    long long base = base_of(id), now;
    if (syscall(SYS_clock_gettime, id, out)) return -1;
    if (base < 0) return 0;
    now = count(out);
    if (speed != 1) now = base + (long long)((now - base) * speed);
    if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) {
        now += ahead;
        if (read_state(&s)) now += (long long)(s.step * SECOND);
    }
    *out = spec(now);
    return 0;
}

int adjtimex(struct timex *t) {
    struct state s;
    int code = (int)syscall(SYS_adjtimex, t);
    if (t->modes || code < 0 || !read_state(&s)) return code;
    t->maxerror = s.maximum;
    t->esterror = s.estimated;
    t->status = s.code == TIME_ERROR ? STA_UNSYNC : STA_PLL;
    return s.code;
}

int select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout) {
    REAL(select);
    if (!timeout || speed == 1) return real(n, r, w, e, timeout);
    long long micros = (long long)((timeout->tv_sec * 1000000LL + timeout->tv_usec) / speed);
    struct timeval t = {micros / 1000000, micros % 1000000};
    return real(n, r, w, e, &t);
}
int poll(struct pollfd *fds, nfds_t n, int timeout) {
    REAL(poll);
    return real(fds, n, timeout > 0 ? (int)(timeout / speed) + 1 : timeout);
}
int nanosleep(const struct timespec *t, struct timespec *rest) {
    REAL(nanosleep);
    struct timespec s = shorter(t);
    return real(&s, rest);
}
int clock_nanosleep(clockid_t id, int flags, const struct timespec *t, struct timespec *rest) {
    REAL(clock_nanosleep);
    struct timespec s = flags & TIMER_ABSTIME ? moment(id, t) : shorter(t);
    return real(id, flags, &s, rest);
}
/* A thread that waits for another does so for PATIENCE at least, if it asked for that much: however fast the clocks run, the other
 * one takes its time, and a disk that answers in 25 ms is not silent. */
#define PATIENCE SECOND
static struct timespec patient(clockid_t id, const struct timespec *t) {
    struct timespec now, there = moment(id, t);
    if (speed == 1 || base_of(id) < 0) return there;
    clock_gettime(id, &now);
    long long asked = count(t) - count(&now), least = asked < PATIENCE ? asked : PATIENCE;
    if (asked <= 0 || syscall(SYS_clock_gettime, id, &now) || count(&there) >= count(&now) + least) return there;
    return spec(count(&now) + least);
}
int sem_clockwait(sem_t *sem, clockid_t id, const struct timespec *t) {
    REAL(sem_clockwait);
    struct timespec s = patient(id, t);
    return real(sem, id, &s);
}
int sem_timedwait(sem_t *sem, const struct timespec *t) {
    REAL(sem_timedwait);
    struct timespec s = patient(CLOCK_REALTIME, t);
    return real(sem, &s);
}
