/* Faults and the way into every call. The lock is never held while a call sleeps, hangs or writes. */
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct fault {
    enum fault_kind kind;
    int gpu; /* ANY_GPU, or the only one it hits */
    long number; /* error code, or milliseconds */
    char call[96];
    char path[256]; /* of a true D state: a file on a frozen file system */
};

struct sim_device sim_devices[SIM_GPUS];
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static struct fault *faults;
static size_t fault_count, fault_room;
static char lost[SIM_GPUS], handle_lost[SIM_GPUS];
static _Atomic int initialised;

void fault_lock_read(void) { pthread_rwlock_rdlock(&lock); }
void fault_lock_write(void) { pthread_rwlock_wrlock(&lock); }
void fault_unlock(void) { pthread_rwlock_unlock(&lock); }

static void before_fork(void) { pthread_rwlock_wrlock(&lock); }
static void after_fork_in_child(void) { pthread_rwlock_init(&lock, NULL); } /* its owner is a thread of the parent */

__attribute__((constructor)) static void prepare(void) {
    for (int i = 0; i < SIM_GPUS; i++) sim_devices[i].index = i;
    pthread_atfork(before_fork, fault_unlock, after_fork_in_child);
}

void fault_add(enum fault_kind kind, const char *call, int gpu, long number, const char *path) {
    if (fault_count == fault_room) {
        size_t room = fault_room ? 2 * fault_room : 32;
        struct fault *more = realloc(faults, room * sizeof *more);
        if (!more) return;
        faults = more;
        fault_room = room;
    }
    struct fault *f = &faults[fault_count++];
    f->kind = kind;
    f->gpu = gpu;
    f->number = number;
    snprintf(f->call, sizeof f->call, "%s", call);
    snprintf(f->path, sizeof f->path, "%s", path);
}

void fault_lift(void) {
    size_t kept = 0;
    for (size_t i = 0; i < fault_count; i++)
        if (faults[i].kind != FAULT_HANG && faults[i].kind != FAULT_DSTATE) faults[kept++] = faults[i];
    fault_count = kept;
}

void fault_clear(void) {
    fault_count = 0;
    memset(lost, 0, sizeof lost);
    memset(handle_lost, 0, sizeof handle_lost);
}

void fault_lose(int gpu, int handle_too) {
    if (gpu < 0 || gpu >= SIM_GPUS) return;
    lost[gpu] = 1;
    if (handle_too) handle_lost[gpu] = 1;
}

int fault_handle_lost(int gpu) {
    fault_lock_read();
    int is = handle_lost[gpu];
    fault_unlock();
    return is;
}

/* Length of a name without its version: nvmlDeviceGetCount_v2 is nvmlDeviceGetCount. */
static size_t bare(const char *name) {
    size_t n = strlen(name);
    return n > 3 && name[n - 3] == '_' && name[n - 2] == 'v' && name[n - 1] >= '0' && name[n - 1] <= '9' ? n - 3 : n;
}

static int hits(const struct fault *f, enum fault_kind kind, const char *call, int gpu) {
    if (f->kind != kind || (f->gpu != ANY_GPU && f->gpu != gpu)) return 0;
    if (!strcmp(f->call, "*") || !strcmp(f->call, call)) return 1;
    return bare(f->call) == strlen(f->call) && bare(call) == strlen(f->call) && !strncmp(f->call, call, bare(call));
}

/* The newest fault of a kind for this call, copied out. */
static int look(enum fault_kind kind, const char *call, int gpu, struct fault *out) {
    int found = 0;
    fault_lock_read();
    for (size_t i = fault_count; i > 0 && !found; i--)
        if (hits(&faults[i - 1], kind, call, gpu)) {
            *out = faults[i - 1];
            found = 1;
        }
    fault_unlock();
    return found;
}

static void rest(long milliseconds) {
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void trace(const char *call, int gpu) {
    static const char *path;
    static _Atomic int asked;
    if (!atomic_exchange(&asked, 1)) path = getenv("FAIRLEAD_SIM_TRACE");
    if (!path || !*path) return;
    char line[160];
    int length = gpu >= 0 ? snprintf(line, sizeof line, "%d %s %d\n", (int)getpid(), call, gpu)
                          : snprintf(line, sizeof line, "%d %s\n", (int)getpid(), call);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return;
    if (write(fd, line, (size_t)length) < 0) path = NULL;
    close(fd);
}

nvmlReturn sim_suffer(const char *call, int gpu) {
    struct fault f;
    if (look(FAULT_CRASH, call, gpu, &f)) abort();
    if (look(FAULT_DELAY, call, gpu, &f)) rest(f.number);
    if (look(FAULT_DSTATE, call, gpu, &f)) {
        int fd = open(f.path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0) {
            if (write(fd, "x", 1) < 0) rest(1); /* sleeps uninterruptibly while the file system is frozen */
            close(fd);
        }
    }
    for (int turn = 0; look(FAULT_HANG, call, gpu, &f); turn++) {
        rest(turn < 100 ? 10 : 200); /* a call that hangs takes no CPU: looking for the end of it does */
        sim_refresh();
    }
    return look(FAULT_ERROR, call, gpu, &f) ? (nvmlReturn)f.number : NVML_SUCCESS;
}

void sim_set_initialised(int change) { atomic_fetch_add(&initialised, change); }

nvmlReturn sim_begin(const char *call) {
    trace(call, NO_GPU);
    if (strncmp(call, "nvmlInit", 8) && atomic_load(&initialised) <= 0) return NVML_ERROR_UNINITIALIZED;
    sim_refresh();
    return NVML_SUCCESS;
}

nvmlReturn sim_enter(const char *call) {
    TRY(sim_begin(call));
    int starting = !strncmp(call, "nvmlInit", 8);
    if (starting && strcmp(call, "nvmlInit")) TRY(sim_suffer("nvmlInit", NO_GPU)); /* one fault for all ways to start */
    return sim_suffer(call, NO_GPU);
}

/* The number of the GPU that a handle stands for, or NO_GPU for anything that is no handle. */
int sim_index(nvmlDevice device) {
    size_t at = (size_t)((char *)device - (char *)sim_devices);
    int valid = device && at < sizeof sim_devices && at % sizeof sim_devices[0] == 0;
    return valid ? (int)(at / sizeof sim_devices[0]) : NO_GPU;
}

nvmlReturn sim_enter_gpu(const char *call, nvmlDevice device, int *gpu, int answers_when_lost) {
    int index = sim_index(device);
    trace(call, index);
    if (atomic_load(&initialised) <= 0) return NVML_ERROR_UNINITIALIZED;
    sim_refresh();
    if (sim_is_mig(device)) return NVML_ERROR_NOT_SUPPORTED; /* the calls that answer for a MIG device come with its GPU */
    if (index == NO_GPU || index >= sim_gpu_count()) return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = index;
    TRY(sim_suffer(call, index));
    fault_lock_read();
    int gone = lost[index];
    fault_unlock();
    return gone && !answers_when_lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}
