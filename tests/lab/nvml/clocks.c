/* Clocks: what they are, may be and are set to; how long they were held back, how far a GPU is from its slowdown. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counters of nanoseconds, by field id. Those of the slowdowns came with r575 and moved with r590. */
nvmlReturn sim_clock_field(int gpu, unsigned int id, unsigned long long *out) {
    static const struct { unsigned int id; const char *name; } always[] = {
        {74, "sw_power_cap"}, {75, "thermal"}, {76, "sync_boost"}, {77, "board_limit"}, {79, "reliability"},
    };
    static const char *const slowdowns[] = {"hw_thermal_slowdown", "hw_power_brake_slowdown"};
    char text[SIM_TEXT], key[64];
    const char *name = NULL;
    unsigned int branch = 0, first;
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        if (always[i].id == id) name = always[i].name;
    if (sim_text(NO_GPU, "driver_version", text, sizeof text) == NVML_SUCCESS) branch = (unsigned int)atoi(text);
    first = branch >= 590 ? 270 : 252;
    if (branch >= 575 && id >= first && id - first < 2) name = slowdowns[id - first];
    if (!name) return NVML_ERROR_NOT_SUPPORTED;
    snprintf(key, sizeof key, "clock_events.%s_nanoseconds", name);
    return sim_ull(gpu, key, out);
}

/* What the tree says, or less where the GPU has become hotter since: a fault may set either. */
NVML_API nvmlReturn nvmlDeviceGetMarginTemperature(nvmlDevice device, c_nvmlMarginTemperature_v1_t *out) {
    unsigned int celsius, slowdown;
    long long margin;
    ENTER_GPU();
    NEED(out);
    if (out->version != (sizeof *out | 1u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(sim_number(gpu, "temperature.margin_celsius", &margin));
    if (sim_uint(gpu, "temperature.gpu_celsius", &celsius) == NVML_SUCCESS &&
        sim_uint(gpu, "temperature.slowdown_celsius", &slowdown) == NVML_SUCCESS &&
        (long long)slowdown - (long long)celsius < margin)
        margin = (long long)slowdown - (long long)celsius;
    out->marginTemperature = (int)margin;
    return NVML_SUCCESS;
}

nvmlReturn sim_megahertz(int gpu, unsigned int kind, int highest, unsigned int *out) {
    static const char *const now[] = {"clocks.sm_hertz", "clocks.sm_hertz", "clocks.memory_hertz", "clocks.video_hertz"};
    static const char *const most[] = {"clocks.sm_max_hertz", "clocks.sm_max_hertz", "clocks.memory_max_hertz",
                                       "clocks.video_max_hertz"};
    static const char *const locks[] = {"locked.sm", "locked.sm", "locked.memory", "locked.video"};
    unsigned long long hertz;
    unsigned int lock;
    NEED(out && kind < 4); /* graphics, SM, memory, video */
    TRY(sim_ull(gpu, (highest ? most : now)[kind], &hertz));
    *out = (unsigned int)(hertz / 1000000);
    if (!highest && sim_uint(gpu, locks[kind], &lock) == NVML_SUCCESS && lock) { /* minimum and maximum, 16 bit each */
        if (*out < lock >> 16) *out = lock >> 16;
        if (*out > (lock & 0xffff)) *out = lock & 0xffff;
    }
    return NVML_SUCCESS;
}
#define CLOCK(call, highest)                                                                      \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int kind, unsigned int *out) {           \
        ENTER_GPU();                                                                              \
        return sim_megahertz(gpu, kind, highest, out);                                                \
    }
CLOCK(nvmlDeviceGetClockInfo, 0)
CLOCK(nvmlDeviceGetMaxClockInfo, 1)
NVML_API nvmlReturn nvmlDeviceGetClock(nvmlDevice device, unsigned int kind, unsigned int which, unsigned int *out) {
    ENTER_GPU();
    return sim_megahertz(gpu, kind, which != 0, out); /* 0 is the current clock, the others are targets and maxima */
}
NVML_API nvmlReturn nvmlDeviceGetSupportedMemoryClocks(nvmlDevice device, unsigned int *count, unsigned int *out) {
    unsigned int room;
    ENTER_GPU();
    NEED(count);
    room = *count;
    *count = 1;
    if (room < 1 || !out) return NVML_ERROR_INSUFFICIENT_SIZE;
    return sim_megahertz(gpu, 2, 1, out);
}
NVML_API nvmlReturn nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice device, unsigned int memory_clock,
                                                         unsigned int *count, unsigned int *out) {
    unsigned int highest, room;
    ENTER_GPU();
    NEED(count);
    (void)memory_clock;
    TRY(sim_megahertz(gpu, 0, 1, &highest));
    room = *count;
    *count = (highest - 210) / 15 + 1; /* steps of 15 MHz down to 210 */
    if (room < *count || !out) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++) out[i] = highest - 15 * i;
    return NVML_SUCCESS;
}

#define APPLICATION_CLOCK(call, prefix)                                                           \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int kind, unsigned int *out) {           \
        unsigned long long hertz;                                                                 \
        ENTER_GPU();                                                                              \
        NEED(out && kind < 3);                                                                    \
        TRY(sim_ull(gpu, kind == 2 ? "application_clocks." prefix "memory_hertz"                  \
                                   : "application_clocks." prefix "sm_hertz", &hertz));           \
        *out = (unsigned int)(hertz / 1000000);                                                   \
        return NVML_SUCCESS;                                                                      \
    }
APPLICATION_CLOCK(nvmlDeviceGetApplicationsClock, "")
APPLICATION_CLOCK(nvmlDeviceGetDefaultApplicationsClock, "default_")

static nvmlReturn set_applications(int gpu, unsigned long long memory, unsigned long long sm) {
    TRY(sim_append_set(gpu, "application_clocks.memory_hertz", (long long)memory));
    return sim_append_set(gpu, "application_clocks.sm_hertz", (long long)sm);
}
NVML_API nvmlReturn nvmlDeviceSetApplicationsClocks(nvmlDevice device, unsigned int memory, unsigned int sm) {
    unsigned int highest, only;
    unsigned long long now;
    ENTER_GPU();
    TRY(sim_ull(gpu, "application_clocks.sm_hertz", &now));
    TRY(sim_megahertz(gpu, 0, 1, &highest));
    TRY(sim_megahertz(gpu, 2, 1, &only));
    NEED(memory == only && sm >= 210 && sm <= highest && (highest - sm) % 15 == 0); /* a pair that is on the list */
    return set_applications(gpu, memory * 1000000ull, sm * 1000000ull);
}
NVML_API nvmlReturn nvmlDeviceResetApplicationsClocks(nvmlDevice device) {
    unsigned long long memory, sm;
    ENTER_GPU();
    TRY(sim_ull(gpu, "application_clocks.default_memory_hertz", &memory));
    TRY(sim_ull(gpu, "application_clocks.default_sm_hertz", &sm));
    return set_applications(gpu, memory, sm);
}
/* Locks have no getter in NVML: what they do to the clocks is all that is seen of them. */
#define LOCK(call, kind, key)                                                                     \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int low, unsigned int high) {            \
        unsigned int highest;                                                                     \
        ENTER_GPU();                                                                              \
        TRY(sim_megahertz(gpu, kind, 1, &highest));                                               \
        NEED(low && low <= high && high <= highest);                                              \
        return sim_append_set(gpu, key, (long long)low << 16 | high);                             \
    }
#define UNLOCK(call, key)                                                                         \
    NVML_API nvmlReturn call(nvmlDevice device) {                                                 \
        ENTER_GPU();                                                                              \
        return sim_append_set(gpu, key, 0);                                                       \
    }
LOCK(nvmlDeviceSetGpuLockedClocks, 0, "locked.sm")
LOCK(nvmlDeviceSetMemoryLockedClocks, 2, "locked.memory")
UNLOCK(nvmlDeviceResetGpuLockedClocks, "locked.sm")
UNLOCK(nvmlDeviceResetMemoryLockedClocks, "locked.memory")
