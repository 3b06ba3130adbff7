/* The driver's buffer of samples, and GPM (GPU performance monitoring): as flat as the values of the tree are. */
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define HOPPER 9u        /* nvmlDeviceArchitecture_t: GPM came with it */
#define ENTRIES 120u     /* of the buffer */
#define APART_US 100000u /* between two of them */

struct gpm_sample {
    int gpu; /* NO_GPU before the first nvmlGpmSampleGet */
    double gpu_percent, memory_percent;
};

static nvmlReturn gpm_gpu(int gpu) {
    unsigned int architecture;
    TRY(sim_uint(gpu, "architecture", &architecture));
    return architecture < HOPPER ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlGpmQueryDeviceSupport(nvmlDevice device, c_nvmlGpmSupport_t *out) {
    ENTER_GPU();
    NEED(out);
    if (out->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->isSupportedDevice = gpm_gpu(gpu) == NVML_SUCCESS;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpmSampleAlloc(struct gpm_sample **out) {
    ENTER();
    NEED(out);
    *out = calloc(1, sizeof **out);
    if (!*out) return NVML_ERROR_MEMORY;
    (*out)->gpu = NO_GPU;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER();
    NEED(sample);
    free(sample);
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpmSampleGet(nvmlDevice device, struct gpm_sample *sample) {
    unsigned int busy, memory;
    ENTER_GPU();
    NEED(sample);
    TRY(gpm_gpu(gpu));
    TRY(sim_uint(gpu, "utilization.gpu_percent", &busy));
    TRY(sim_uint(gpu, "utilization.memory_percent", &memory));
    *sample = (struct gpm_sample){gpu, busy, memory};
    return NVML_SUCCESS;
}
/* Utilisation of graphics, SM and memory. Every other metric has its own NOT_SUPPORTED, as each entry has its own code. */
NVML_API nvmlReturn nvmlGpmMetricsGet(c_nvmlGpmMetricsGet_t *asked) {
    ENTER();
    NEED(asked && asked->numMetrics <= NVML_GPM_METRIC_MAX);
    if (asked->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct gpm_sample *first = asked->sample1, *second = asked->sample2;
    NEED(first && second && first->gpu != NO_GPU && first->gpu == second->gpu);
    for (unsigned int i = 0; i < asked->numMetrics; i++) {
        unsigned int id = asked->metrics[i].metricId;
        int known = id == NVML_GPM_METRIC_GRAPHICS_UTIL || id == NVML_GPM_METRIC_SM_UTIL || id == NVML_GPM_METRIC_DRAM_BW_UTIL;
        asked->metrics[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        asked->metrics[i].value = id == NVML_GPM_METRIC_DRAM_BW_UTIL ? (first->memory_percent + second->memory_percent) / 2
                                                                     : (first->gpu_percent + second->gpu_percent) / 2;
    }
    return NVML_SUCCESS;
}

/* The value of one kind of sample now. The kinds without a key are those that the simulated GPUs do not have. */
static nvmlReturn sample_now(int gpu, unsigned int kind, unsigned int *out) {
    static const char *const keys[] = {"power.draw_milliwatts", "utilization.gpu_percent", "utilization.memory_percent"};
    if (kind < sizeof keys / sizeof keys[0]) return sim_uint(gpu, keys[kind], out);
    if (kind == NVML_PROCESSOR_CLK_SAMPLES) return sim_megahertz(gpu, 1, 0, out);
    if (kind == NVML_MEMORY_CLK_SAMPLES) return sim_megahertz(gpu, 2, 0, out);
    return NVML_ERROR_NOT_SUPPORTED;
}
NVML_API nvmlReturn nvmlDeviceGetSamples(nvmlDevice device, unsigned int kind, unsigned long long since, unsigned int *type,
                                         unsigned int *count, c_nvmlSample_t *out) {
    unsigned int value, found = 0;
    struct timespec now;
    ENTER_GPU();
    NEED(type && count);
    TRY(sample_now(gpu, kind, &value));
    clock_gettime(CLOCK_REALTIME, &now);
    *type = NVML_VALUE_TYPE_UNSIGNED_INT;
    for (unsigned int i = 0; i < ENTRIES; i++) {
        unsigned long long at = (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
        at -= (unsigned long long)(ENTRIES - 1 - i) * APART_US;
        if (at <= since) continue;
        if (out && found < *count) {
            memset(&out[found], 0, sizeof *out);
            out[found].timeStamp = at;
            out[found].sampleValue.uiVal = value;
        }
        found++;
    }
    if (!found) return NVML_ERROR_NOT_FOUND;
    if (out && found > *count) found = *count;
    *count = found;
    return NVML_SUCCESS;
}
