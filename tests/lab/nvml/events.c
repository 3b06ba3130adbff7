/* Events (Xid) and the processes on a GPU. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XID_EVENT 0x8ull /* nvmlEventTypeXidCriticalError */

struct sim_event_set {
    int used;
    long next; /* the first event not yet given out */
    char registered[SIM_GPUS];
};
static struct sim_event_set sets[32];

static struct sim_event_set *valid(nvmlEventSet set) {
    size_t at = (size_t)((char *)set - (char *)sets);
    return set && at < sizeof sets && at % sizeof sets[0] == 0 && set->used ? set : NULL;
}

NVML_API nvmlReturn nvmlEventSetCreate(nvmlEventSet *out) {
    ENTER();
    NEED(out);
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if (!__sync_lock_test_and_set(&sets[i].used, 1)) {
            memset(sets[i].registered, 0, sizeof sets[i].registered);
            sets[i].next = sim_xid_count();
            *out = &sets[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}
NVML_API nvmlReturn nvmlEventSetFree(nvmlEventSet set) {
    ENTER();
    struct sim_event_set *s = valid(set);
    NEED(s);
    __sync_lock_release(&s->used);
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetSupportedEventTypes(nvmlDevice device, unsigned long long *out) {
    ENTER_GPU();
    (void)gpu;
    NEED(out);
    *out = XID_EVENT;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceRegisterEvents(nvmlDevice device, unsigned long long types, nvmlEventSet set) {
    struct sim_event_set *s = valid(set);
    ENTER_GPU();
    NEED(s);
    if (types & ~XID_EVENT) return NVML_ERROR_NOT_SUPPORTED;
    if (!memchr(s->registered, 1, sizeof s->registered)) s->next = sim_xid_count(); /* what came before is lost */
    s->registered[gpu] = (types & XID_EVENT) != 0;
    return NVML_SUCCESS;
}

static nvmlReturn wait_event(nvmlEventSet set, c_nvmlEventData_t *out, unsigned int milliseconds) {
    struct sim_event_set *s = valid(set);
    struct timespec now, end, nap = {0, 1000000};
    NEED(s && out);
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += milliseconds / 1000;
    end.tv_nsec += milliseconds % 1000 * 1000000L;
    for (;;) {
        struct sim_xid x;
        if (s->next > sim_xid_count()) s->next = 0; /* the control file was begun anew */
        while (sim_xid_at(s->next, &x)) {
            s->next++;
            if (x.gpu < 0 || x.gpu >= SIM_GPUS || !s->registered[x.gpu]) continue;
            memset(out, 0, sizeof *out);
            out->device = &sim_devices[x.gpu];
            out->eventType = XID_EVENT;
            out->eventData = x.code;
            out->gpuInstanceId = out->computeInstanceId = 0xFFFFFFFFu;
            return NVML_SUCCESS;
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((now.tv_sec - end.tv_sec) * 1000000000LL + now.tv_nsec - end.tv_nsec >= 0) return NVML_ERROR_TIMEOUT;
        nanosleep(&nap, NULL);
        sim_refresh();
    }
}
NVML_API nvmlReturn nvmlEventSetWait_v2(nvmlEventSet set, c_nvmlEventData_t *out, unsigned int milliseconds) {
    ENTER();
    return wait_event(set, out, milliseconds);
}
NVML_API nvmlReturn nvmlEventSetWait(nvmlEventSet set, c_nvmlEventData_t *out, unsigned int milliseconds) {
    c_nvmlEventData_t full;
    ENTER();
    NEED(out);
    TRY(wait_event(set, &full, milliseconds));
    memcpy(out, &full, offsetof(c_nvmlEventData_t, gpuInstanceId)); /* version 1 ends there */
    return NVML_SUCCESS;
}

/* processes.N.{pid,used_bytes,type,gi,ci}, type C (compute) or G (graphics); gi and ci only of a process on a MIG device. */
static int process(int gpu, unsigned int number, char type, c_nvmlProcessInfo_v3_t *out) {
    char key[64], text[SIM_TEXT];
    unsigned long long bytes = ~0ull; /* NVML_VALUE_NOT_AVAILABLE */
    snprintf(key, sizeof key, "processes.%u.type", number);
    if ((sim_text(gpu, key, text, sizeof text) == NVML_SUCCESS ? text[0] : 'C') != type) return 0;
    memset(out, 0, sizeof *out);
    snprintf(key, sizeof key, "processes.%u.pid", number);
    if (sim_uint(gpu, key, &out->pid) != NVML_SUCCESS) return 0;
    snprintf(key, sizeof key, "processes.%u.used_bytes", number);
    (void)sim_ull(gpu, key, &bytes);
    out->usedGpuMemory = bytes;
    unsigned int at[2];
    sim_process_instance(gpu, number, at);
    out->gpuInstanceId = at[0];
    out->computeInstanceId = at[1];
    return 1;
}

static nvmlReturn list(int gpu, const struct sim_mig *mig, char type, unsigned int *count, char *out, size_t size) {
    unsigned int all, found = 0, room;
    c_nvmlProcessInfo_v3_t one;
    NEED(count);
    TRY(sim_uint(gpu, "processes.count", &all));
    room = *count;
    for (unsigned int i = 0; i < all; i++) {
        if (!process(gpu, i, type, &one)) continue;
        if (mig && (one.gpuInstanceId != mig->gi || one.computeInstanceId != mig->ci)) continue;
        if (out && found < room) memcpy(out + found * size, &one, size); /* version 1 is the start of version 3 */
        found++;
    }
    *count = found;
    return found && (!out || found > room) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
#define PROCESSES(call, type, size)                                                               \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int *count, void *out) {                 \
        ENTER_GPU_OR_MIG();                                                                       \
        if (divided && !mig.slices) return NVML_ERROR_NOT_FOUND;                                  \
        return list(gpu, divided ? &mig : NULL, type, count, out, size);                          \
    }
#define FIRST_SIZE offsetof(c_nvmlProcessInfo_v3_t, gpuInstanceId)
PROCESSES(nvmlDeviceGetComputeRunningProcesses, 'C', FIRST_SIZE)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 'C', sizeof(c_nvmlProcessInfo_v3_t))
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 'C', sizeof(c_nvmlProcessInfo_v3_t))
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 'G', FIRST_SIZE)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', sizeof(c_nvmlProcessInfo_v3_t))
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', sizeof(c_nvmlProcessInfo_v3_t))
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 'M', FIRST_SIZE)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', sizeof(c_nvmlProcessInfo_v3_t))
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', sizeof(c_nvmlProcessInfo_v3_t))

NVML_API nvmlReturn nvmlDeviceGetProcessUtilization(nvmlDevice device, void *samples, unsigned int *count,
                                                    unsigned long long since) {
    ENTER_GPU();
    (void)gpu;
    (void)samples;
    (void)since;
    NEED(count);
    *count = 0;
    return NVML_ERROR_NOT_FOUND; /* no sample since then: what the driver says for an idle GPU */
}
